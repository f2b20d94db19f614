//! A simulated machine as a database sees it: one process after another on one world.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace::env::PmSpace;
use terrace::{EngineKind, Env, Error, Options, Result, SlmOptions};
use terrace_base::clock::ManualClock;
use terrace_base::exec::{Executor, Inline};
use terrace_disk::{FileLock, Fs, SimFs, forward_fs};
use terrace_pmem::{Granularity, Pool, PoolOptions};
use terrace_sim::World;

use crate::harness::{HASH_SEED, tiny_engines};

/// The engines that every scenario is tried on.
pub use crate::harness::ENGINES;

/// The database's directory.
pub const DIR: &str = "/db";

/// A process on a world: its environment, its background work and the locks that die with it.
pub struct Process {
    pub env: Env,
    pub background: Arc<Inline>,
    files: Arc<ProcessFs>,
}

impl Process {
    /// A new process on `world`.
    pub fn new(world: &World) -> Process {
        let files = Arc::new(ProcessFs { fs: world.fs(), locks: Arc::default(), next: AtomicU64::new(0) });
        let background = Arc::new(Inline::default());
        let env = Env {
            fs: files.clone(),
            pm: Arc::new(WorldPm { world: world.clone() }),
            executor: background.clone(),
            clock: Arc::new(ManualClock::default()),
            hash_seed: Some(HASH_SEED),
        };
        Process { env, background, files }
    }

    /// Lets go of the locks, as the system does for a process that has died.
    pub fn died(&self) {
        self.files.locks.lock().clear();
    }

    /// Runs one background job; false if there was none.
    pub fn help(&self) -> bool {
        self.background.help()
    }
}

/// Whether `engine` is tried on such a pool. `TERRACE_CRASH_ENGINE` leaves one engine only, for work on that.
pub fn runs_on(engine: EngineKind, granularity: Granularity) -> bool {
    let asked = std::env::var("TERRACE_CRASH_ENGINE");
    let is_left_out = asked.is_ok_and(|name| name != engine.name());
    !is_left_out && (!engine.needs_memory() || granularity != Granularity::Page)
}

/// Only one in so many images of a scenario is looked at. The engines that keep everything in persistent memory have
/// few structures, and random histories with kills and power cuts in their conformance besides, and `batches` tries
/// every event; all of it takes minutes, and is done if `TERRACE_CRASH_MEMORY` is set.
pub fn share(engine: EngineKind) -> u64 {
    let whole = !engine.keeps_all_in_memory() || std::env::var_os("TERRACE_CRASH_MEMORY").is_some();
    if whole { 1 } else { 8 }
}

/// Options with everything so small that it happens often.
pub fn tiny(engine: EngineKind) -> Options {
    Options {
        engine,
        pool_extent_bytes: 4096,
        pm_bytes: 16 << 20,
        memory_budget: 1 << 20,
        // Tables are closed and opened again all the time.
        max_open_tables: 3,
        slm: SlmOptions {
            memtable_bytes: 4 << 10,
            table_bytes: 8 << 10,
            block_bytes: 256,
            garbage_share: 0.0,
            unasked_leaf_scans: true,
            ..SlmOptions::default()
        },
        ..tiny_engines()
    }
}

/// The name under which a world's persistent memory is a device.
pub const DEVICE: &str = "/dev/dax0.0";

/// A world's persistent memory. Its one pool is there if the file is that stands for its name, which is made, as
/// the real one is, when the pool is whole. Called [`DEVICE`] it is a device: always there, and perhaps blank.
#[derive(Debug)]
struct WorldPm {
    world: World,
}

impl WorldPm {
    fn options(&self, asked: &PoolOptions) -> PoolOptions {
        let own = self.world.pool_options();
        PoolOptions {
            extent_bytes: asked.extent_bytes,
            max_size: own.max_size.min(asked.max_size),
            count_xplines: false,
            read_only: asked.read_only,
            salvage: asked.salvage,
            ..own
        }
    }
}

impl PmSpace for WorldPm {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        if path == Path::new(DEVICE) {
            return Pool::create_on(self.world.media(), path, &self.options(options));
        }
        let fs = self.world.fs();
        if fs.exists(path)? {
            return Err(Error::invalid("there is a pool of this name"));
        }
        let pool = Pool::recreate_on(self.world.media(), path, &self.options(options))?;
        drop(fs.create(path)?);
        fs.sync_dir(path.parent().unwrap_or(Path::new("/")))?;
        Ok(pool)
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        if !self.exists(path)? {
            return Err(Error::io(path, "open", std::io::ErrorKind::NotFound.into()));
        }
        Pool::open_on(self.world.media(), path, &self.options(options))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        if path == Path::new(DEVICE) {
            return Ok(!Pool::is_blank_on(&*self.world.media(), path)?);
        }
        self.world.fs().exists(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if path == Path::new(DEVICE) {
            return Pool::remove_on(&*self.world.media(), path);
        }
        let fs = self.world.fs();
        if !fs.exists(path)? {
            return Ok(());
        }
        fs.remove(path)?;
        // A name that came back would stand for the next pool on the one medium, and not for the old one.
        fs.sync_dir(path.parent().unwrap_or(Path::new("/")))
    }
}

type Locks = Arc<Mutex<Vec<(u64, Box<dyn FileLock>)>>>;

/// The world's disk, with locks that can be let go of from outside.
#[derive(Debug)]
struct ProcessFs {
    fs: SimFs,
    locks: Locks,
    next: AtomicU64,
}

#[derive(Debug)]
struct OwnLock {
    id: u64,
    locks: Locks,
}

impl FileLock for OwnLock {}

impl Drop for OwnLock {
    fn drop(&mut self) {
        self.locks.lock().retain(|(id, _)| *id != self.id);
    }
}

impl Fs for ProcessFs {
    forward_fs! { self, self.fs;
        create create_reserved open_blocks open rename link remove sync_file sync_dir list exists
        create_dir_all free_bytes epoch available_memory
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let lock = self.fs.lock(path)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.locks.lock().push((id, lock));
        Ok(Box::new(OwnLock { id, locks: self.locks.clone() }))
    }
}
