//! Tables whose files are opened when they are read, of which only so many are open at a time.

use std::path::PathBuf;

use terrace::{Db, EngineKind, ErrorKind, Options, Result};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;
use terrace_sim::{Map, PmOptions, Refusal, Survival, Trouble, World, WorldOptions};

use crate::crash::env::{DIR, Process, tiny};
use crate::crash::run::{contents, contents_of};
use crate::harness::{assert_clean, engines_on_files};

/// Tables that may be open.
const OPEN_TABLES: usize = 64;

/// What else a database has open: its manifest and log, what it is writing, what it looks at in passing.
const OTHER_FILES: usize = 8;

const TABLES: u64 = 2000;

fn world() -> World {
    let granularity = Granularity::CacheLine;
    World::new(3, WorldOptions { pm: PmOptions { bytes: 8 << 20, capacity: 48 << 20, granularity } })
}

/// Options with which a few records make a table, and what is in one memtable makes hundreds.
fn small_tables(engine: EngineKind, max_open_tables: usize) -> Options {
    let mut options = Options { max_open_tables, pm_bytes: 48 << 20, ..tiny(engine) };
    (options.slm.memtable_bytes, options.slm.table_bytes) = (1 << 20, 1 << 10);
    (options.lsm.memtable_bytes, options.lsm.table_bytes) = (1 << 20, 1 << 10);
    (options.lsm.l0_slowdown_tables, options.lsm.l0_stop_tables) = (20, 36);
    options.lsm.base_level_bytes = 64 << 20;
    (options.wip.memtable_bytes, options.wip.most_memtable_bytes) = (1 << 10, 1 << 10);
    (options.wip.bucket_bytes, options.wip.sublevels, options.wip.min_sublevels) = (4 << 10, 8, 8);
    options
}

fn key(i: u64) -> Vec<u8> {
    format!("key{:08}", i.wrapping_mul(0x9e37_79b9) % 100_000_000).into_bytes()
}

fn value(i: u64, round: u8) -> Vec<u8> {
    let mut value = vec![round; 90];
    value[..8].copy_from_slice(&i.to_le_bytes());
    value
}

struct Bed {
    world: World,
    process: Process,
    options: Options,
    db: Option<Db>,
    model: Map,
}

impl Bed {
    fn new(options: Options) -> Bed {
        let world = world();
        let process = Process::new(&world);
        let mut bed = Bed { world, process, options, db: None, model: Map::new() };
        bed.open();
        bed
    }

    fn try_open(&mut self) -> Result<()> {
        self.db = None;
        self.process = Process::new(&self.world);
        self.db = Some(Db::open_in(self.process.env.clone(), DIR, self.options.clone())?);
        Ok(())
    }

    fn open(&mut self) {
        self.try_open().unwrap();
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn put(&mut self, keys: impl Iterator<Item = u64>, round: u8) {
        for i in keys {
            self.db().put(&key(i), &value(i, round)).unwrap();
            self.model.insert(key(i), value(i, round));
        }
    }

    /// Writes `0..count`, in two parts that overlap, and merges them into small tables.
    fn load(&mut self, count: u64) {
        self.put((0..count).step_by(2), 1);
        self.db().flush().unwrap();
        self.put((1..count).step_by(2), 1);
        self.compact();
    }

    /// Flushes and merges everything into small tables.
    fn compact(&self) {
        self.db().flush().unwrap();
        self.rest();
        self.db().compact_range(..).unwrap();
        self.rest();
    }

    fn rest(&self) {
        while self.process.help() {}
    }

    /// No more is open than may be.
    fn assert_few_are_open(&self, when: &str) {
        let (tables, files) = (self.db().stats().ssd.open_tables, self.world.fs().descriptors());
        assert!(tables <= OPEN_TABLES as u64, "{when}: {tables} tables are open");
        assert!(files <= OPEN_TABLES + OTHER_FILES, "{when}: {files} files are open");
    }

    fn files(&self) -> Vec<PathBuf> {
        let is_table = |path: &PathBuf| path.extension().is_some_and(|e| e == "sst");
        self.world.fs().image().into_keys().filter(is_table).collect()
    }

    fn assert_no_file_is_left(&self) {
        let stats = self.db().stats();
        assert_eq!((self.files().len() as u64, stats.ssd.obsolete_files), (stats.ssd.tables, 0));
    }

    fn compare(&self) {
        assert!(contents(self.db()).unwrap() == self.model);
    }
}

/// Records, and the tables that they make at least. Buckets of so few tables are merged all the time.
fn many(engine: EngineKind) -> (u64, u64) {
    if engine == EngineKind::Wip { (5_000, TABLES / 16) } else { (22_000, TABLES) }
}

/// A database with more tables than files may be open.
fn thousands(engine: EngineKind) -> Bed {
    let mut bed = Bed::new(small_tables(engine, OPEN_TABLES));
    // One more is refused by the system from here on.
    bed.world.fs().set_descriptors(Some(OPEN_TABLES + OTHER_FILES));
    let (records, wanted) = many(engine);
    bed.load(records);
    let tables = bed.db().stats().ssd.tables;
    assert!(tables >= wanted, "{engine:?} has {tables} tables");
    bed
}

/// Thousands of tables are opened, read, scanned, merged, checked and held by snapshots with a few descriptors.
#[test]
fn thousands_of_tables_need_few_descriptors() {
    for engine in engines_on_files() {
        let (mut bed, (records, _)) = (thousands(engine), many(engine));
        bed.db().close().unwrap();
        let before = bed.world.fs().operations().0;
        bed.open();
        let (opening, open) = (bed.world.fs().operations().0 - before, bed.world.fs().descriptors());
        assert!(
            open <= OTHER_FILES && opening < 200,
            "{engine:?}: {open} files open after {opening} operations"
        );

        let mut rng = Rng::new(9);
        for _ in 0..3000 {
            let i = rng.below(records);
            assert_eq!(bed.db().get(&key(i)).unwrap().as_deref(), Some(&value(i, 1)[..]));
        }
        bed.assert_few_are_open("after gets");
        bed.compare();
        let backward: Map = bed
            .db()
            .iter()
            .unwrap()
            .rev()
            .map(|e| e.map(|(k, v)| (k.to_vec(), v.to_vec())))
            .collect::<Result<_>>()
            .unwrap();
        assert!(backward == bed.model);
        bed.assert_few_are_open("after scans");

        let snapshot = bed.db().snapshot();
        let (seen, mut walk) = (bed.model.clone(), snapshot.iter().unwrap());
        let mut walked: Map =
            walk.by_ref().take(500).map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        bed.put((0..records).step_by(3), 2);
        bed.compact();
        bed.assert_few_are_open("after a compaction");
        bed.compare();
        assert!(contents_of(&snapshot).unwrap() == seen);
        walked.extend(walk.by_ref().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())));
        assert!(walked == seen);
        drop((walk, snapshot));
        bed.compact();
        assert_clean(bed.db());
        bed.assert_few_are_open("after a check");
        bed.assert_no_file_is_left();
        bed.db().close().unwrap();
        drop(bed.db.take());
        assert_eq!(bed.world.fs().descriptors(), 0);
    }
}

/// A pool that is made anew is filled from all tables at once, as many as there are.
#[test]
fn a_pool_is_made_anew_from_thousands_of_tables() {
    let granularity = Granularity::Page;
    let pm = PmOptions { bytes: 8 << 20, capacity: 48 << 20, granularity };
    let mut bed = Bed::new(small_tables(EngineKind::Slm, OPEN_TABLES));
    bed.db = None;
    bed.world = World::new(3, WorldOptions { pm });
    bed.open();
    bed.load(22_000);
    bed.db().sync().unwrap();
    assert!(bed.db().stats().ssd.tables >= TABLES);
    let survivor = bed.world.capture().power_cut(Survival::Nothing);
    std::mem::forget(bed.db.take());
    bed.world = survivor;
    bed.world.fs().set_descriptors(Some(OPEN_TABLES + OTHER_FILES));
    bed.open();
    assert!(bed.db().stats().opened.contains("rebuilt"), "{}", bed.db().stats().opened);
    bed.assert_few_are_open("after a rebuilding");
    bed.compare();
    assert_clean(bed.db());
}

/// However many tables may be open, where the system gives no descriptor others are closed; where none is left the call
/// fails, and succeeds when there is one again.
#[test]
fn where_there_is_no_descriptor_left_others_are_closed_or_the_call_fails_and_that_passes() {
    for engine in engines_on_files() {
        let mut bed = Bed::new(small_tables(engine, 100_000));
        bed.load(3000);
        let fs = bed.world.fs();
        fs.set_descriptors(Some(20));
        bed.compare();
        bed.put(0..3000, 2);
        bed.compact();
        bed.compare();
        assert!(fs.descriptors() <= 20);

        // As if others had taken all there are.
        bed.db().close().unwrap();
        bed.open();
        bed.put([0].into_iter(), 3);
        let taken = fs.descriptors();
        fs.set_descriptors(Some(taken));
        let told = bed.db().get(&key(5)).unwrap_err();
        assert!(told.kind() == ErrorKind::Io && told.is_retryable(), "{engine:?}: {told}");
        assert!(told.to_string().contains("open files"), "{told}");
        contents(bed.db()).unwrap_err();
        bed.put([1, 2, 3].into_iter(), 3);
        bed.db().flush().unwrap_err();
        bed.rest();
        fs.set_descriptors(None);
        assert_eq!(bed.db().get(&key(5)).unwrap().as_deref(), Some(&value(5, 2)[..]));
        bed.put([4].into_iter(), 3);
        bed.compact();
        bed.compare();
        assert_eq!(bed.db().stats().failure, None);
        assert_clean(bed.db());
        bed.assert_no_file_is_left();
    }
}

/// Any operation of the disk fails while tables are opened for a get, a scan, a flush or a compaction. The error
/// passes.
#[test]
fn an_opening_that_fails_passes() {
    for (engine, trouble) in engines_on_files().flat_map(|e| [(e, Trouble::Io), (e, Trouble::TooManyFiles)]) {
        let mut bed = Bed::new(small_tables(engine, 2));
        bed.load(200);
        let mut refused = 0;
        for after in 0..40 {
            let round = 2 + after as u8;
            bed.put((after..200).step_by(7), round);
            let snapshot = bed.db().snapshot();
            let seen = bed.model.clone();
            // Longer than a call is made again for.
            bed.world.refuse(Refusal { trouble, after: after / 2, count: 1 + 50 * (after % 2) });
            let got = bed.db().get(&key(after));
            assert!(got.is_err() || got.unwrap().as_deref() == bed.model.get(&key(after)).map(|v| &v[..]));
            assert!(
                contents(bed.db()).is_ok_and(|found| found == bed.model) || bed.world.refused() > refused
            );
            let _ = bed.db().flush();
            bed.rest();
            let _ = bed.db().compact_range(..);
            bed.rest();
            bed.world.heal();
            refused = bed.world.refused();
            bed.compare();
            assert!(contents_of(&snapshot).unwrap() == seen);
            drop(snapshot);
            bed.put([0].into_iter(), round);
            bed.compact();
            assert_eq!(bed.db().stats().failure, None, "{engine:?} {trouble:?} {after}");
            bed.assert_no_file_is_left();
        }
        assert!(refused > 40);
        assert_clean(bed.db());
        bed.db().close().unwrap();
        bed.open();
        bed.compare();
    }
}

/// What an iterator may still open is there for as long as the iterator is, and goes with it. A crash leaves it to the
/// next opening.
#[test]
fn files_stay_while_somebody_may_open_them() {
    let mut bed = Bed::new(small_tables(EngineKind::Lsm, 1));
    bed.load(400);
    for crashes in [false, true] {
        let snapshot = bed.db().snapshot();
        let seen = bed.model.clone();
        let mut walk = snapshot.iter().unwrap();
        let mut walked: Map =
            walk.by_ref().take(3).map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        let before = bed.files();
        bed.put(0..400, 2 + u8::from(crashes));
        bed.compact();
        let obsolete = bed.db().stats().ssd.obsolete_files;
        assert!(obsolete >= 10, "{obsolete}");
        assert!(before.iter().all(|path| bed.files().contains(path)), "somebody may still read them");
        if crashes {
            let survivor = bed.world.capture().kill();
            std::mem::forget((walk, snapshot, bed.db.take()));
            bed.process.died();
            bed.world = survivor;
            bed.open();
        } else {
            walked.extend(walk.by_ref().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())));
            assert!(walked == seen);
            drop((walk, snapshot));
        }
        bed.rest();
        bed.compare();
        assert!(before.iter().all(|path| !bed.files().contains(path)));
        bed.assert_no_file_is_left();
    }
}

/// A table with a damaged end is no obstacle to opening: a reader of what is in it gets an error, and no other does.
#[test]
fn a_damaged_table_is_told_by_who_reads_it() {
    for engine in engines_on_files() {
        let mut bed = Bed::new(small_tables(engine, 4));
        bed.load(300);
        bed.db().close().unwrap();
        drop(bed.db.take());
        let victim = bed.files().swap_remove(3);
        bed.world.fs().damage(&victim, |bytes| *bytes.last_mut().unwrap() ^= 1).unwrap();
        bed.open();
        let (mut told, mut found) = (0, 0);
        for (key, value) in &bed.model {
            match bed.db().get(key) {
                Ok(got) => {
                    found += 1;
                    assert_eq!(got.as_deref(), Some(&value[..]));
                }
                Err(e) => {
                    told += 1;
                    assert!(e.kind() == ErrorKind::Corruption && e.to_string().contains(".sst"), "{e}");
                }
            }
        }
        assert!(told > 0 && found > 200, "{engine:?}: {told} told, {found} found");
        let problems = bed.db().check().unwrap().problems;
        let name = victim.file_name().unwrap().to_str().unwrap();
        assert!(problems.iter().any(|p| p.contains(name)), "{problems:?}");
        bed.db().close().unwrap();
        drop(bed.db.take());

        // One that is not there at all is refused, by its name.
        bed.world.fs().damage(&victim, |bytes| *bytes.last_mut().unwrap() ^= 1).unwrap();
        let bytes = bed.world.fs().image()[&victim].clone();
        terrace_disk::Fs::remove(&bed.world.fs(), &victim).unwrap();
        let told = bed.try_open().unwrap_err().to_string();
        assert!(told.contains(name) && told.contains("no such file"), "{told}");
        // So is another database's, when it is read; here another table's bytes under its name.
        let other = bed.world.fs().image()[&bed.files()[0]].clone();
        bed.world.fs().plant(&victim, &other).unwrap();
        bed.open();
        let told: Vec<String> =
            bed.model.keys().filter_map(|key| bed.db().get(key).err()).map(|e| e.to_string()).collect();
        assert!(!told.is_empty() && told.iter().all(|e| e.contains(name)), "{told:?}");
        drop(bed.db.take());
        bed.world.fs().plant(&victim, &bytes).unwrap();
        bed.open();
        bed.compare();
        assert_clean(bed.db());
    }
}

/// What a check cannot read, be it that no descriptor is left, is no damage: the check fails, and names no problem.
#[test]
fn a_check_that_cannot_read_names_no_problem() {
    for engine in engines_on_files() {
        let mut bed = Bed::new(small_tables(engine, 4));
        bed.put(0..200, 0);
        bed.db().flush().unwrap();
        bed.open();
        let mut failed = 0;
        for after in 0..60 {
            bed.world.refuse(Refusal { trouble: Trouble::Io, after, count: 1 });
            match bed.db().check() {
                Ok(report) => assert!(report.is_clean(), "{engine:?}: {:?}", report.problems),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Io, "{engine:?}: {e}");
                    failed += 1;
                }
            }
            bed.world.heal();
        }
        assert!(failed > 10, "{engine:?}: {failed}");
        assert_clean(bed.db());
    }
}
