//! The database: everything that users call.

mod apply;
mod commit;
mod entries;
mod explain;
mod filtering;
mod folding;
mod hold;
mod ingest;
mod iter;
mod keyspace;
mod range;
mod range_delete;
mod read;
mod removal;
mod scrub;
mod shown;
mod swap;
mod traces;
mod transaction;
mod turn;
mod write;

use std::cell::Cell;
use std::fmt::Debug;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use terrace_base::{Error, Result};
use terrace_disk::FileLock;
use terrace_pmem::Pool;

use crate::core::Core;
use crate::core::engine::Engine;
use crate::core::masked::Masked;
use crate::core::report::{CheckReport, RepairReport};
use crate::db::commit::CommitQueue;
use crate::db::hold::Reading;
use crate::db::keyspace::catalog::Catalog;
use crate::db::keyspace::sweep::Sweeps;
use crate::db::range_delete::RangeDeletes;
use crate::db::scrub::Scrubs;
use crate::db::traces::Traces;
use crate::db::turn::Turns;
use crate::engine;
use crate::env::Env;
use crate::keyspaces::callbacks;
use crate::options::{self, Options};
use crate::repair::{self, RepairOptions};
use crate::scratch;
use crate::stats::Stats;

pub use entries::Entries;
pub use explain::Explanation;
pub use ingest::{Ingest, Ingested};
pub use iter::DbIter;
pub use keyspace::{Expiry, Keyspace, KeyspaceOptions};
pub use range::KeyRange;
pub use read::Snapshot;
pub use swap::CasMismatch;
pub use transaction::{
    Isolation, Savepoint, Transaction, TransactionIter, TransactionKeyspace, TransactionOptions,
};

/// The file whose lock says that a process has the database open.
const LOCK_FILE: &str = "LOCK";

/// An open database. Cloning is cheap and gives another handle of the same database; dropping the last one
/// closes it. It can be opened again once its snapshots and iterators are dropped, too.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use terrace::{Db, Options};
///
/// let db = Db::open(dir.path(), Options::default())?;
/// db.put(b"apple", b"red")?;
/// assert_eq!(db.get(b"apple")?.as_deref(), Some(&b"red"[..]));
/// let keys: Vec<_> = db.prefix(b"a")?.map(|entry| entry.map(|(key, _)| key)).collect::<Result<_, _>>()?;
/// assert_eq!(keys, ["apple"]);
/// db.close()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Db {
    inner: Arc<Inner>,
}

/// Held by everything that still reads the database's files and pool, so that nobody opens them beside it.
type DirectoryLock = Option<Box<dyn FileLock>>;

/// What the handles of a database share. The last of them closes it.
#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    /// The outcome of closing the engine, which is done once.
    outcome: OnceLock<Result<()>>,
    /// Last: it has the lock.
    reading: Arc<Reading>,
}

impl Deref for Inner {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// An open database, as background work may keep it that ends before the database is closed.
#[derive(Debug)]
struct Store {
    core: Arc<Core>,
    /// As readers see it: without what is hidden or due.
    engine: Arc<dyn Engine>,
    /// The same with it, and with the deadlines of values.
    unmasked: Arc<dyn Engine>,
    range_deletes: RangeDeletes,
    /// Refuses all writes, even if the engine would take them.
    read_only: bool,
    queue: CommitQueue,
    /// The last sequence number given out; only the current leader changes it.
    last_seq: AtomicU64,
    /// Streams that ingests have begun to write, as often as that was.
    streams: AtomicU64,
    /// Set by the current leader, so that no group is applied beside or after the close.
    closed: AtomicBool,
    /// Among those who try a transaction again.
    turns: Turns,
    /// Whether writes that may go past the queue do not.
    all_queue: AtomicBool,
    catalog: Catalog,
    sweeps: Arc<Sweeps>,
    scrubs: Arc<Scrubs>,
}

impl Db {
    /// Opens the database in directory `path`, or creates it there.
    ///
    /// # Errors
    ///
    /// `Locked` if another process (or another handle in this one) has it open (readers alone may
    /// have it open side by side), `Corruption` if it is damaged, `InvalidFormat` if another version wrote
    /// it, `InvalidArgument` if there is none and none is to be created, if it was created with other fixed
    /// options, or if the directory holds another store's files.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let env = Env::real(options.background_threads);
        Self::open_in(env, path, options)
    }

    /// Opens a database in the caller's environment, for tests under simulation.
    pub fn open_in(env: Env, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let (dir, options) = lasting(path, options)?;
        let (engine, read_only) = (options.engine.name(), options.read_only);
        let _span = tracing::info_span!("open", dir = %dir.display(), engine, read_only).entered();
        repair::admit(&*env.fs, &dir)?;
        let traces = Traces::make(&*env.fs, &dir, &dir.join(LOCK_FILE), &options)?;
        let lock = match read_only {
            true => env.fs.lock_to_read(&dir.join(LOCK_FILE))?,
            false => Some(env.fs.lock(&dir.join(LOCK_FILE))?),
        };
        let opened = match read_only {
            true => repair::refuse_unfinished(&env, &dir)
                .and_then(|()| scratch::open_to_read(&dir, &options, &env)),
            false => finish_repair(&env, &dir)
                .and_then(|()| Core::new(dir, options, env.clone()))
                .and_then(|core| Ok((core.clone(), engine::open(core)?))),
        };
        if opened.is_err() && lock.is_some() {
            traces.remove(&env);
        }
        let (core, (unmasked, last)) = opened?;
        core.snapshots.advance(last);
        let queue = CommitQueue::default();
        let (last_seq, streams, closed) = (AtomicU64::new(last), AtomicU64::new(0), AtomicBool::new(false));
        let give_up = |engine: &Arc<dyn Engine>| {
            // Another opening meets none of its jobs. Why it cannot be opened says more than why it cannot be closed.
            let _ = engine.close();
        };
        let catalog = Catalog::open(&*unmasked, &core).inspect_err(|_| give_up(&unmasked))?;
        let (sweeps, range_deletes) = (Arc::default(), RangeDeletes::default());
        let engine: Arc<dyn Engine> = Arc::new(Masked::new(unmasked.clone(), core.clone()));
        let store = Store {
            core,
            engine,
            unmasked,
            range_deletes,
            read_only,
            queue,
            last_seq,
            streams,
            closed,
            turns: Turns::default(),
            all_queue: AtomicBool::new(false),
            catalog,
            sweeps,
            scrubs: Arc::default(),
        };
        if store.catalog.may_have_ranges() {
            store.load_range_tombstones().inspect_err(|_| give_up(&store.unmasked))?;
        }
        store.recall_marker();
        store.recall_keyspaces();
        let reading = Arc::new(Reading::new(&store, lock));
        let (store, outcome) = (Arc::new(store), OnceLock::new());
        let db = Db { inner: Arc::new(Inner { store, outcome, reading }) };
        if !read_only {
            keyspace::sweep::follow_filters(&db.inner.store);
        }
        keyspace::sweep::resume(&db.inner.store);
        scrub::begin(&db.inner.store);
        Ok(db)
    }

    /// Recovers everything of a damaged database that is not itself damaged, and reports what is lost. A healthy
    /// database is left as it is, but for its record of the pool's place: a path in `options` is recorded. What was
    /// damaged is kept in the folder `lost` of its directory, and a pool that lies elsewhere beside its place. All
    /// or nothing of the repair has happened, whenever it is killed; it needs room for what it writes beside the
    /// existing files.
    ///
    /// # Errors
    ///
    /// `Locked` if it is open; `InvalidArgument` if there is no database, or another engine's. Then
    /// nothing was changed.
    pub fn repair(path: impl AsRef<Path>, options: Options) -> Result<RepairReport> {
        let env = Env::real(options.background_threads);
        Self::repair_in(env, path, options)
    }

    /// [`repair`](Self::repair), with the choices of `how`; the engine in `options` is ignored.
    pub fn repair_with(path: impl AsRef<Path>, options: Options, how: RepairOptions) -> Result<RepairReport> {
        let env = Env::real(options.background_threads);
        Self::repair_with_in(env, path, options, how)
    }

    /// [`repair`](Self::repair) in the caller's environment.
    pub fn repair_in(env: Env, path: impl AsRef<Path>, options: Options) -> Result<RepairReport> {
        let how = RepairOptions { engine: Some(options.engine), ..RepairOptions::default() };
        Self::repair_with_in(env, path, options, how)
    }

    /// [`repair_with`](Self::repair_with) in the caller's environment.
    pub fn repair_with_in(
        env: Env,
        path: impl AsRef<Path>,
        options: Options,
        how: RepairOptions,
    ) -> Result<RepairReport> {
        let (dir, options) = lasting(path, options)?;
        if !env.fs.exists(&dir)? {
            return Err(Error::NotFound { dir: dir.to_path_buf() });
        }
        let _span = tracing::info_span!("repair", dir = %dir.display()).entered();
        repair::admit_repair(&env, &dir, &options.pool)?;
        let path = dir.join(LOCK_FILE);
        let was_there = env.fs.exists(&path)?;
        let _lock = env.fs.lock(&path)?;
        let outcome = repair::run(&env, &dir, options, how);
        if !was_there && (how.dry_run || outcome.is_err()) {
            // As it was found. If the file cannot be removed, an empty one stays.
            let _ = env.fs.remove(&path);
        }
        outcome
    }

    /// Moves everything written so far from the write buffer to tables.
    pub fn flush(&self) -> Result<()> {
        if self.inner.read_only {
            return Err(Error::ReadOnly);
        }
        self.inner.alone(|inner| inner.check_open().and_then(|()| inner.engine.rotate()))?;
        self.inner.engine.wait_until_flushed()
    }

    /// Makes everything acknowledged so far survive a power cut, on media where it does not at once.
    pub fn sync(&self) -> Result<()> {
        let _span = tracing::debug_span!("sync").entered();
        self.inner.alone(|inner| inner.check_open().and_then(|()| inner.engine.sync()))
    }

    /// Flushes, and merges all tables with keys in `range`: dead entries there are dropped, and what a compaction filter
    /// lets go is deleted.
    pub fn compact_range(&self, range: impl KeyRange) -> Result<()> {
        self.flush()?;
        let (from, to) = range.bounds();
        let (first, second) = self.inner.catalog.default_space().places(from, to);
        // With what lies between: nobody asks for all but the other keyspaces.
        let places = (first.0, second.map_or(first.1, |second| second.1));
        self.inner.compact(&places)
    }

    /// Figures of the database.
    pub fn stats(&self) -> Stats {
        let core = &self.inner.core;
        let mut stats = Stats { engine: core.options.engine.name(), ..Stats::default() };
        stats.counts = core.counters.snapshot();
        stats.latencies = core.timers.figures();
        stats.scrub = core.scrub.snapshot();
        stats.counts.snapshots = core.snapshots.count() as u64;
        stats.keyspaces = self.inner.catalog.stats_of_open();
        stats.dram.budget = core.options.memory_budget;
        stats.dram.block_cache = core.cache().usage();
        stats.dram.jobs = core.memory.jobs();
        stats.dram.resident = core.env.fs.resident_memory();
        let cache = core.cache().stats();
        (stats.dram.cache_hits, stats.dram.cache_misses) = (cache.hits, cache.misses);
        let io = core.fs.stats();
        stats.ssd.bytes_written = io.bytes_written;
        stats.ssd.bytes_read = io.bytes_read;
        stats.ssd.reads = io.reads;
        stats.ssd.syncs = io.syncs;
        (stats.ssd.open_tables, stats.ssd.obsolete_files) = core.files.figures();
        core.look_at_clock();
        let (table_reads, maps) = core.table_reader.describe();
        stats.table_reads = table_reads;
        (stats.ssd.mapped_tables, stats.ssd.mapped_bytes) = (maps.count, maps.bytes);
        (stats.ssd.mapped_resident, stats.ssd.failed_maps) = (maps.resident, maps.failed);
        stats.failure = core.health.failure().map(|cause| cause.to_string()).or_else(|| self.doubt_of_pool());
        self.inner.engine.fill_stats(&mut stats);
        if self.inner.read_only {
            let how = if core.is_scratch {
                "to read only, putting right in memory alone what an unclean end left: "
            } else {
                "to read only: "
            };
            stats.opened.insert_str(0, how);
        }
        stats
    }

    /// Why the next opening will not trust the pool, if it will not.
    fn doubt_of_pool(&self) -> Option<String> {
        let is_doubtful = self.inner.engine.pool().is_some_and(Pool::is_doubtful);
        is_doubtful.then(|| {
            "the system could not write all of the pool back: the next opening will not trust what is in it".into()
        })
    }

    /// The lower bounds of the ranges into which the engine has divided the keys, in key order: for `wip`
    /// those of its buckets, of which the first is the empty key. Empty if the engine does not divide the
    /// keys.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use terrace::{Db, EngineKind, Options};
    ///
    /// let db = Db::open(dir.path(), Options { engine: EngineKind::Wip, ..Options::default() })?;
    /// assert_eq!(db.partitions(), [b""]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn partitions(&self) -> Vec<Vec<u8>> {
        let space = self.inner.catalog.default_space();
        let bounds = self.inner.engine.partitions().into_iter().filter(|place| space.holds(place));
        bounds.map(|place| space.key_at(place.into()).to_vec()).collect()
    }

    /// Reads everything and proves every structure; writers wait meanwhile. Damage is in the report, not an
    /// error. A closed database is refused.
    pub fn check(&self) -> Result<CheckReport> {
        let _span = tracing::info_span!("check").entered();
        callbacks::check_none_runs()?;
        let report = Cell::new(CheckReport::default());
        let _unchanged = self.inner.catalog.hold();
        self.inner.alone(|store| {
            // What readers release after the close stays in the pool until the next open.
            store.check_open()?;
            let mut found = store.engine.check()?;
            store.check_keyspaces(&mut found)?;
            store.check_range_tombstones(&mut found)?;
            report.set(found);
            Ok(())
        })?;
        Ok(report.take())
    }

    /// Waits for the background work that has begun and closes the database cleanly. From then on it refuses reads and
    /// writes with `Closed`; snapshots and iterators may still read. Later calls return the same outcome again. Then it
    /// waits until [`Listeners`](crate::Listeners) have heard of everything.
    ///
    /// The database can be opened again once the last handle, snapshot and iterator is dropped; until then that is
    /// `Locked`.
    pub fn close(&self) -> Result<()> {
        let _span = tracing::info_span!("close").entered();
        callbacks::check_none_runs()?;
        // Before the lead is taken, for which a sweep may wait.
        self.inner.sweeps.close();
        self.inner.scrubs.close();
        let outcome = self.inner.alone(|store| {
            store.closed.store(true, Ordering::Release);
            self.inner.close_once()
        });
        self.inner.core.events.settle();
        outcome
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.sweeps.close();
        self.scrubs.close();
        if let Err(error) = self.close_once() {
            tracing::warn!(%error, "closing failed; the next open recovers");
        }
    }
}

impl Inner {
    fn store(&self) -> &Arc<Store> {
        &self.store
    }

    fn close_once(&self) -> Result<()> {
        self.outcome.get_or_init(|| self.engine.close()).clone()
    }
}

/// The directory, and the options, with paths that mean the same when the process changes its directory: files are
/// opened as long as the database is.
fn lasting(dir: impl AsRef<Path>, options: Options) -> Result<(PathBuf, Options)> {
    let pool = options.pool.lasting()?;
    Ok((options::lasting(dir.as_ref())?, Options { pool, ..options }))
}

/// Puts in place what a repair that was cut short in its last step has left.
fn finish_repair(env: &Env, dir: &Path) -> Result<()> {
    if repair::is_unfinished(&*env.fs, dir)? {
        tracing::warn!(dir = %dir.display(), "putting in place what a repair has left that was cut short");
        repair::finish(env, dir)?;
    }
    Ok(())
}

/// The path of the file that locks the database in `dir`; for tools.
pub fn lock_path(dir: &Path) -> PathBuf {
    dir.join(LOCK_FILE)
}
