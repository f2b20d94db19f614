//! A database at the moments of its life in which a machine can find it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use terrace::{Db, EngineKind, WriteBatch, WriteOptions};
use terrace_disk::{FsEvent, Observer};
use terrace_log::PmLog;
use terrace_pmem::{Granularity, Kind};

use super::image::{Bed, Image, options};
use super::sample::{KEYS, key, value};
use super::spaces;
use crate::harness::Map;

/// One database at three moments.
pub struct Moments {
    pub closed: (Image, Map),
    /// With two memtables, version chains and the log of the flush.
    pub flush: (Image, Map),
    /// With version chains and the log of the compaction.
    pub compaction: (Image, Map),
}

pub fn build(engine: EngineKind, granularity: Granularity) -> Moments {
    live(engine, granularity, false)
}

/// With keyspaces, whose operands lie in logs, tables and lists.
pub fn build_with_keyspaces(engine: EngineKind, granularity: Granularity) -> Moments {
    live(engine, granularity, true)
}

fn live(engine: EngineKind, granularity: Granularity, has_keyspaces: bool) -> Moments {
    let bed = Image::empty(options(engine), granularity).bed();
    let camera = Arc::new(Camera { engine, bed: bed.clone(), shots: Mutex::default() });
    let mut writer =
        Writer { db: bed.open().unwrap(), map: Map::new(), camera: camera.clone(), moments: BTreeMap::new() };
    if has_keyspaces {
        spaces::make(&writer.db, &mut writer.map);
    }
    (0..KEYS).for_each(|i| writer.put(i, 0));
    writer.write_keyspaces(0);
    writer.db.flush().unwrap();
    let mut held = vec![writer.db.snapshot()];
    writer.write_keyspaces(1);
    (0..KEYS).filter(|i| i % 5 == 1).for_each(|i| writer.put(i, 1));
    (0..KEYS).filter(|i| i % 11 == 3).for_each(|i| writer.delete(i));
    writer.db.flush().unwrap();
    if engine == EngineKind::Wip {
        // Of several buckets.
        (0..2).for_each(|_| writer.db.compact_range(..).unwrap());
        assert!(writer.db.stats().buckets.buckets > 1);
    }
    bed.fs().observe(Some(camera));
    let mut version = 2;
    while !JOBS.iter().all(|job| writer.moments.contains_key(job)) {
        assert!(version < 20, "no flush with two memtables, or no compaction");
        (0..KEYS).filter(|i| i % 4 == version % 4).for_each(|i| writer.put(i, version));
        writer.batch(version);
        writer.write_keyspaces(version);
        if has_keyspaces {
            // It keeps operands apart.
            held.push(writer.db.snapshot());
        }
        if version % 4 == 0 {
            writer.compact();
        }
        version += 1;
    }
    bed.fs().observe(None);
    if !has_keyspaces {
        held.clear();
    }
    writer.batch(version);
    writer.write_keyspaces(version);
    writer.db.close().unwrap();
    let Writer { map, mut moments, .. } = writer;
    let mut moment = |job| moments.remove(job).unwrap();
    Moments { flush: moment(JOBS[0]), compaction: moment(JOBS[1]), closed: (bed.image(), map) }
}

/// The roots of the jobs of which there are samples.
const JOBS: [&str; 2] = ["slm.job.flush", "slm.job.c0"];

/// Writes and keeps what the camera saw meanwhile, with what was acknowledged before.
struct Writer {
    db: Db,
    map: Map,
    camera: Arc<Camera>,
    moments: BTreeMap<&'static str, (Image, Map)>,
}

impl Writer {
    fn put(&mut self, i: u32, version: u32) {
        self.db.put_with(&key(i), &value(i, version), WriteOptions::SYNC).unwrap();
        self.keep();
        self.map.insert(key(i), value(i, version));
    }

    fn delete(&mut self, i: u32) {
        self.db.delete_with(&key(i), WriteOptions::SYNC).unwrap();
        self.keep();
        self.map.remove(&key(i));
    }

    fn batch(&mut self, version: u32) {
        let mut batch = WriteBatch::new();
        (40..44).for_each(|i| batch.put(&key(i), &value(i, version)));
        batch.delete(&key(45));
        self.db.write_with(batch, WriteOptions::SYNC).unwrap();
        self.keep();
        (40..44).for_each(|i| drop(self.map.insert(key(i), value(i, version))));
        self.map.remove(&key(45));
    }

    /// Takes the steps of a version if there are keyspaces.
    fn write_keyspaces(&mut self, version: u32) {
        if spaces::names(&self.map).is_empty() {
            return;
        }
        for step in spaces::steps(version) {
            spaces::write(&self.db, &step).unwrap();
            self.keep();
            step.enter(&mut self.map);
        }
    }

    fn compact(&mut self) {
        self.db.compact_range(..).unwrap();
        self.keep();
    }

    fn keep(&mut self) {
        for (job, image) in std::mem::take(&mut *self.camera.shots.lock().unwrap()) {
            self.moments.insert(job, (image, self.map.clone()));
        }
    }
}

/// Takes a picture before every change to the disk at which a job has written to its log.
#[derive(Debug)]
struct Camera {
    engine: EngineKind,
    bed: Bed,
    shots: Mutex<BTreeMap<&'static str, Image>>,
}

impl Observer for Camera {
    fn before(&self, event: FsEvent<'_>) {
        match self.engine {
            EngineKind::Lsm | EngineKind::Lab => self.before_of_lsm(event, "sst"),
            // What is in lists by then is in no manifest yet.
            EngineKind::Tlsm => self.before_of_lsm(event, ""),
            EngineKind::Wip => self.before_of_wip(event),
            _ => self.before_of_slm(),
        }
    }
}

impl Camera {
    /// While tables, or files without an extension, are written: with two logs it is a flush, else a compaction.
    fn before_of_lsm(&self, event: FsEvent<'_>, extension: &str) {
        let (FsEvent::Write { path, .. } | FsEvent::Sync { path }) = event else { return };
        if path.extension().unwrap_or_default() != extension {
            return;
        }
        let image = self.bed.image();
        let files = image.files.keys().filter(|path| path.extension().is_some_and(|e| e == "log")).count();
        let in_pool = image.pool.as_ref().map_or(0, |_| {
            let roots = image.bed().open_pool().roots().unwrap();
            roots.iter().filter(|(name, _)| name.starts_with("lsm.log")).count()
        });
        let job = if files + in_pool > 1 { JOBS[0] } else { JOBS[1] };
        self.shots.lock().unwrap().insert(job, image);
    }

    /// While tables are written, rather when a part of one is, and when they are synced.
    fn before_of_wip(&self, event: FsEvent<'_>) {
        let (job, path) = match event {
            FsEvent::Write { path, .. } => (JOBS[0], path),
            FsEvent::Sync { path } => (JOBS[1], path),
            _ => return,
        };
        if path.extension().is_none_or(|e| e != "sst") {
            return;
        }
        let image = self.bed.image();
        let mut shots = self.shots.lock().unwrap();
        if !image.files[path].is_empty() || !shots.contains_key(job) {
            shots.insert(job, image);
        }
    }

    fn before_of_slm(&self) {
        let image = self.bed.image();
        let pool = image.bed().open_pool();
        let has = |root: &str| pool.root(root).unwrap().is_some();
        for job in JOBS {
            let Some(head) = pool.root(job).unwrap() else { continue };
            let log = PmLog::open(&pool, head).unwrap();
            let rich = pool.slots(CHAINS).next().is_some() && log.iter().unwrap().count() > 1;
            if rich && (job == JOBS[1] || has("slm.mem.0") && has("slm.mem.1")) {
                self.shots.lock().unwrap().insert(job, image.clone());
            }
        }
    }
}

/// Slots that hold version chains.
const CHAINS: Kind = Kind(10);
