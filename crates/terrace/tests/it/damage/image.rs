//! All bytes of a database, and a machine made of them to open it on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use terrace::{Db, EngineKind, Env, Options, PmSpace, RepairReport, Result, SlmOptions};
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_disk::{Fs, SimFs};
use terrace_index::kinds;
use terrace_pmem::{Granularity, Media, MemMedia, Pool, PoolOptions};

use crate::harness::tiny_lsm;

/// The database directory.
pub const DIR: &str = "/db";

/// Size to which a pool may grow.
const PM_BYTES: u64 = 1 << 20;

/// Everything of a database that outlives its process.
#[derive(Debug, Clone)]
pub struct Image {
    /// The engine that it is opened with.
    pub engine: EngineKind,
    /// Its files, by name.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Its pool; `None` if that is gone.
    pub pool: Option<Vec<u8>>,
    /// What the pool's medium is like.
    pub granularity: Granularity,
    /// The boot of the machine on which it is looked at.
    pub boot: &'static str,
}

/// A machine that starts with the bytes of an image.
#[derive(Debug, Clone)]
pub struct Bed {
    engine: EngineKind,
    fs: SimFs,
    pm: Arc<PlainMemory>,
    granularity: Granularity,
}

/// A pool in memory of its own.
#[derive(Debug)]
struct PlainMemory {
    media: Mutex<Option<Arc<MemMedia>>>,
    granularity: Granularity,
    boot: &'static str,
}

impl Image {
    /// No database yet.
    pub fn empty(engine: EngineKind, granularity: Granularity) -> Image {
        Image { engine, files: BTreeMap::new(), pool: None, granularity, boot: "the first boot" }
    }

    /// A machine with this on it.
    pub fn bed(&self) -> Bed {
        let fs = SimFs::new();
        fs.create_dir_all(Path::new(DIR)).unwrap();
        for (path, bytes) in &self.files {
            fs.plant(path, bytes).unwrap();
        }
        let media = Mutex::new(self.pool.as_deref().map(|bytes| Arc::new(memory(bytes, self.granularity))));
        let pm = PlainMemory { media, granularity: self.granularity, boot: self.boot };
        Bed { engine: self.engine, fs, pm: Arc::new(pm), granularity: self.granularity }
    }
}

impl Image {
    /// What lies at `byte` of the pool, and where it begins.
    pub fn structure_at(&self, byte: u64) -> (&'static str, String) {
        let pool = self.bed().open_pool();
        for &(kind, name) in kinds::ALL {
            let extents = pool.extents(kind).into_iter().map(|e| (e.offset, e.bytes));
            let slots = pool.slots(kind);
            if let Some((at, _)) = extents.chain(slots).find(|(at, bytes)| (*at..at + bytes).contains(&byte))
            {
                return (name, format!("{name} at {at:#x}"));
            }
        }
        ("pool", "the pool's own".into())
    }
}

impl Bed {
    /// Opens the database.
    pub fn open(&self) -> Result<Db> {
        Db::open_in(self.env(), DIR, options(self.engine))
    }

    /// Repairs the database.
    pub fn repair(&self) -> Result<RepairReport> {
        Db::repair_in(self.env(), DIR, options(self.engine))
    }

    /// The pool alone.
    pub fn open_pool(&self) -> Pool {
        self.pm.open(Path::new("/db/pool"), &PoolOptions::default()).unwrap()
    }

    /// The disk.
    pub fn fs(&self) -> &SimFs {
        &self.fs
    }

    fn env(&self) -> Env {
        Env {
            // As the next process finds it: locks stay behind.
            fs: Arc::new(self.fs.clone()),
            pm: self.pm.clone(),
            executor: Arc::new(Inline::default()),
            clock: Arc::new(ManualClock::default()),
        }
    }

    /// All bytes at this moment, as a process finds them after this one was killed.
    pub fn image(&self) -> Image {
        let pool = self.pm.media.lock().unwrap().as_ref().map(|media| bytes_of(media));
        let mut files = self.fs.image();
        files.retain(|path, _| !path.ends_with("LOCK"));
        Image { engine: self.engine, files, pool, granularity: self.granularity, boot: self.pm.boot }
    }
}

/// Memtables and tables so small that a hundred keys fill many.
fn options(engine: EngineKind) -> Options {
    let slm =
        SlmOptions { memtable_bytes: 4096, table_bytes: 2048, block_bytes: 256, ..SlmOptions::default() };
    let lsm = tiny_lsm();
    let options = Options { engine, slm, lsm, pool_extent_bytes: 4096, ..Options::default() };
    Options { memory_budget: 1 << 20, pm_bytes: PM_BYTES, ..options }
}

impl PmSpace for PlainMemory {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let media = Arc::new(MemMedia::new(64 << 10, PM_BYTES, self.granularity)?);
        *self.media.lock().unwrap() = Some(media.clone());
        let boot_id = Some(self.boot.to_owned());
        Pool::create_on(media, path, &PoolOptions { boot_id, size: 64 << 10, ..options.clone() })
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let media = self.media.lock().unwrap().clone().expect("asked for after `exists`");
        Pool::open_on(media, path, &PoolOptions { boot_id: Some(self.boot.to_owned()), ..options.clone() })
    }

    fn exists(&self, _path: &Path) -> Result<bool> {
        Ok(self.media.lock().unwrap().is_some())
    }

    fn remove(&self, _path: &Path) -> Result<()> {
        *self.media.lock().unwrap() = None;
        Ok(())
    }
}

fn memory(bytes: &[u8], granularity: Granularity) -> MemMedia {
    let media = MemMedia::new(bytes.len() as u64, PM_BYTES, granularity).unwrap();
    for (i, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
        media.copy_flush(i as u64 * 4096, page);
    }
    media
}

fn bytes_of(media: &MemMedia) -> Vec<u8> {
    // SAFETY: the mapping is as long as `len` says and never moves, and nobody stores to it meanwhile: the
    // images of a database that is at work are taken on the one thread that works.
    unsafe { std::slice::from_raw_parts(media.base(), media.len() as usize) }.to_vec()
}
