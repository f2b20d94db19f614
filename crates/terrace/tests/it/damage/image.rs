//! All bytes of a database, and a machine made of them to open it on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use terrace::{
    Db, EngineKind, Env, Error, Options, PmSpace, RepairOptions, RepairReport, Result, SlmOptions,
    SplitOptions, WipOptions,
};
use terrace_base::checksum::hash64;
use terrace_base::clock::{Clock, ManualClock};
use terrace_base::exec::{Executor, Inline, Job, Lane};
use terrace_disk::{Fs, SimFs};
use terrace_index::kinds;
use terrace_pmem::{Granularity, Media, MemMedia, Pool, PoolOptions};

use crate::harness::{HASH_SEED, tiny_engines, tiny_split, tiny_wip};

/// The database directory.
pub const DIR: &str = "/db";

/// The boot in which every image is made.
pub const FIRST_BOOT: &str = "the first boot";
/// Where its pool lies.
const POOL: &str = "/db/pool";

/// Size to which a pool may grow.
const PM_BYTES: u64 = 1 << 20;

/// Everything of a database that outlives its process.
#[derive(Debug, Clone)]
pub struct Image {
    /// What it is opened with.
    pub options: Options,
    /// Its files, by name.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Its pool; `None` if that is gone.
    pub pool: Option<Vec<u8>>,
    /// What the pool's medium is like.
    pub granularity: Granularity,
    /// The boot of the machine on which it is looked at.
    pub boot: &'static str,
    /// The time of day.
    pub now: Duration,
}

/// A machine that starts with the bytes of an image.
#[derive(Debug, Clone)]
pub struct Bed {
    options: Options,
    fs: SimFs,
    pm: Arc<PlainMemory>,
    granularity: Granularity,
    clock: Arc<ManualClock>,
}

/// Pools in memory of their own, each locked while it is open.
#[derive(Debug)]
struct PlainMemory {
    pools: Mutex<BTreeMap<PathBuf, Arc<MemMedia>>>,
    open: Mutex<BTreeMap<PathBuf, Weak<Watched>>>,
    granularity: Granularity,
    boot: &'static str,
    /// While it is `Some`: the pool's bytes before each drain.
    film: Arc<Film>,
}

/// Threads that come to nothing.
#[derive(Debug)]
struct Idle;

impl Executor for Idle {
    fn spawn_in(&self, _: Lane, _: Job) {}

    fn help(&self) -> bool {
        false
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        first();
        second();
    }
}

/// Pictures of a pool, while they are taken.
type Film = Mutex<Option<Vec<Vec<u8>>>>;

/// Memory that takes pictures.
#[derive(Debug)]
struct Watched {
    memory: Arc<MemMedia>,
    film: Arc<Film>,
}

impl Media for Watched {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.memory.grow(len)
    }

    fn granularity(&self) -> Granularity {
        self.memory.granularity()
    }

    fn flush(&self, offset: u64, len: u64) {
        self.memory.flush(offset, len);
    }

    fn drain(&self) {
        if let Some(film) = &mut *self.film.lock().unwrap() {
            film.push(bytes_of(&self.memory));
        }
        self.memory.drain();
    }

    fn order(&self, offset: u64) {
        self.memory.order(offset);
    }

    fn charge_read(&self, offset: u64, len: u64) {
        self.memory.charge_read(offset, len);
    }

    fn sync(&self) -> Result<()> {
        self.memory.sync()
    }

    fn describe(&self) -> String {
        self.memory.describe()
    }
}

impl Image {
    /// No database yet.
    pub fn empty(options: Options, granularity: Granularity) -> Image {
        Image {
            options,
            files: BTreeMap::new(),
            pool: None,
            granularity,
            boot: FIRST_BOOT,
            now: Duration::ZERO,
        }
    }

    /// A machine with this on it.
    pub fn bed(&self) -> Bed {
        let fs = SimFs::new();
        // The files of a machine that was booted since were not written through the page cache of now.
        fs.set_epoch(if self.boot == FIRST_BOOT { 1 } else { 2 });
        fs.create_dir_all(Path::new(DIR)).unwrap();
        fs.set_epoch(hash64(self.boot.as_bytes()));
        for (path, bytes) in &self.files {
            fs.plant(path, bytes).unwrap();
        }
        let pool = self.pool.as_deref().map(|bytes| Arc::new(memory(bytes, self.granularity)));
        let pools = Mutex::new(pool.map(|pool| (POOL.into(), pool)).into_iter().collect());
        let (granularity, boot) = (self.granularity, self.boot);
        let pm = PlainMemory { pools, open: Mutex::default(), granularity, boot, film: Arc::default() };
        let (options, clock) = (self.options.clone(), Arc::new(ManualClock::default()));
        clock.advance(self.now);
        Bed { options, fs, pm: Arc::new(pm), granularity: self.granularity, clock }
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
    /// Opens it with `executor` for its background work.
    pub fn open_with(&self, executor: Arc<dyn Executor>) -> Result<Db> {
        Db::open_in(Env { executor, ..self.env() }, DIR, self.options.clone())
    }

    /// Opens the database.
    pub fn open(&self) -> Result<Db> {
        Db::open_in(self.env(), DIR, self.options.clone())
    }

    /// Opens the database in a process that ends before its background work begins, but for what somebody waits for.
    pub fn open_idly(&self) -> Result<Db> {
        let env = Env { executor: Arc::new(Idle), ..self.env() };
        Db::open_in(env, DIR, self.options.clone())
    }

    /// The names of all pools, those of unfinished repairs among them.
    pub fn pools(&self) -> Vec<PathBuf> {
        self.pm.names()
    }

    /// Does all of a repair but its last step.
    pub fn look(&self) -> Result<RepairReport> {
        let how =
            RepairOptions { engine: Some(self.options.engine), dry_run: true, ..RepairOptions::default() };
        Db::repair_with_in(self.env(), DIR, self.options.clone(), how)
    }

    /// Repairs the database.
    pub fn repair(&self) -> Result<RepairReport> {
        Db::repair_in(self.env(), DIR, self.options.clone())
    }

    /// The pool alone.
    pub fn open_pool(&self) -> Pool {
        self.open_pool_with(&PoolOptions::default())
    }

    /// The pool alone, opened as `options` say.
    pub fn open_pool_with(&self, options: &PoolOptions) -> Pool {
        self.pm.open(Path::new(POOL), options).unwrap()
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
            clock: self.clock.clone(),
            hash_seed: Some(HASH_SEED),
        }
    }

    /// All bytes at this moment, as a process finds them after this one was killed.
    pub fn image(&self) -> Image {
        let pool = self.pm.pools.lock().unwrap().get(Path::new(POOL)).map(|memory| bytes_of(memory));
        self.image_with(pool)
    }

    /// All bytes before each drain of the pool during `work`, which leaves the disk alone.
    pub fn film(&self, work: impl FnOnce()) -> Vec<Image> {
        *self.pm.film.lock().unwrap() = Some(Vec::new());
        work();
        let pools = self.pm.film.lock().unwrap().take().unwrap();
        pools.into_iter().map(|pool| self.image_with(Some(pool))).collect()
    }

    fn image_with(&self, pool: Option<Vec<u8>>) -> Image {
        let mut files = self.fs.image();
        files.retain(|path, _| !path.ends_with("LOCK"));
        let (options, now) = (self.options.clone(), self.clock.calendar());
        Image { options, files, pool, granularity: self.granularity, boot: self.pm.boot, now }
    }
}

/// Everything so small that a hundred keys fill many of each.
pub fn options(engine: EngineKind) -> Options {
    let slm =
        SlmOptions { memtable_bytes: 4096, table_bytes: 2048, block_bytes: 256, ..SlmOptions::default() };
    Options {
        engine,
        slm,
        split: SplitOptions { boundary_bytes: 64, records_bytes: 2 << 10, ..tiny_split() },
        wip: WipOptions { bucket_bytes: 6 << 10, ..tiny_wip() },
        pool_extent_bytes: 4096,
        memory_budget: 1 << 20,
        pm_bytes: PM_BYTES,
        ..tiny_engines()
    }
}

impl PlainMemory {
    /// What a pool is opened on, which nobody else has open.
    fn lock(&self, path: &Path, memory: Arc<MemMedia>) -> Result<Arc<Watched>> {
        let mut open = self.open.lock().unwrap();
        if open.get(path).is_some_and(|watched| watched.strong_count() > 0) {
            return Err(Error::locked(path));
        }
        let watched = Arc::new(Watched { memory, film: self.film.clone() });
        open.insert(path.to_path_buf(), Arc::downgrade(&watched));
        Ok(watched)
    }

    fn options(&self, options: &PoolOptions) -> PoolOptions {
        PoolOptions { boot_id: Some(self.boot.to_owned()), private: false, ..options.clone() }
    }

    /// The names of all pools.
    fn names(&self) -> Vec<PathBuf> {
        self.pools.lock().unwrap().keys().cloned().collect()
    }
}

impl PmSpace for PlainMemory {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let memory = Arc::new(MemMedia::new(64 << 10, PM_BYTES, self.granularity)?);
        let media = self.lock(path, memory.clone())?;
        assert!(self.pools.lock().unwrap().insert(path.to_path_buf(), memory).is_none(), "there is a pool");
        Pool::create_on(media, path, &PoolOptions { size: 64 << 10, ..self.options(options) })
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let found = self.pools.lock().unwrap().get(path).cloned().expect("asked for after `exists`");
        let found =
            if options.private { Arc::new(memory(&bytes_of(&found), self.granularity)) } else { found };
        Pool::open_on(self.lock(path, found)?, path, &self.options(options))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.pools.lock().unwrap().contains_key(path))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.pools.lock().unwrap().remove(path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut pools = self.pools.lock().unwrap();
        let pool = pools.remove(from).expect("asked for after `exists`");
        pools.insert(to.to_path_buf(), pool);
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
