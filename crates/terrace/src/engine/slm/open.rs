//! Opening: the manifest says what should exist, the pool what does.
//!
//! A pool that holds everything that was stored is attached as it is (`pool.rs`). An ordinary file that a power cut may
//! have torn is made again from tables and logs (`rebuild.rs`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_base::{Error, Result};

use terrace_pmem::Pool;

use super::behind::note_flushed;
use super::memtable::{MEMTABLES, MemSet, MemTable, first_bytes, root};
use super::{JOB_ROOTS, MEMTABLE_LOGS, NAME, SHORT_LOG_BYTES, Slm};
use crate::background::Background;
use crate::commit_log::{CommitLog, Policy};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::located::{Foundation, Located, LocationIndex};
use crate::manifest::{self, Identity, KnownPool, Manifest};
use crate::options::{EngineKind, Options};
use crate::pool::{self, MEDIA, StartState};
use crate::tables::{TableStore, refuse_missing};

/// The root of the index.
pub(super) const INDEX_ROOT: &str = "slm.index";

/// The root with the sequence number up to which the memtables have been flushed.
pub(super) const FLUSHED_ROOT: &str = "slm.flushed";

/// Memtables outlive the process, so what they hold may be logged late. A flush shows its tables one by one:
/// all of it must be in logs before that, so memtables are never flushed instead of being logged.
const LOG_POLICY: Policy = Policy { buffer_bytes: 256 << 10, each_complete: true, copy_bytes: u64::MAX };

/// A memtable takes at most this part of the pool.
const MEMTABLE_SHARE: u64 = 16;

/// A budget in which hardly any keys can be held.
const SMALLEST_BUDGET_BYTES: u64 = 16 << 20;

/// Memtables and tables may hold this much however small the memory budget is.
const SMALL_BYTES: u64 = 1 << 20;

/// And this much in the smallest pool.
const SMALLEST_MEMTABLE_BYTES: u64 = 4096;

/// Opens or creates the database in `core.dir`.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    open_slm(core).map(|(slm, last)| (slm as Arc<dyn Engine>, last))
}

/// [`open`], with the engine's own type.
pub(super) fn open_slm(core: Arc<Core>) -> Result<(Arc<Slm>, u64)> {
    let (manifest, pool, state) = match manifest::locate(&*core.fs, &core.dir)? {
        Some(_) => open_existing(&core)?,
        None => create(&core)?,
    };
    let slm = assemble(core, manifest, pool, state)?;
    slm.jobs.tidy_in_pieces(&slm.me, |slm, from| pool::verify(&slm.pool, from));
    let last = slm.jobs.closed_unless(begin_again(&slm, state))?;
    Ok((slm, last))
}

/// Brings an opened database to rest; returns the last sequence number in it.
fn begin_again(slm: &Slm, state: StartState) -> Result<u64> {
    let last = slm.recover(state)?;
    if state == StartState::Lost {
        // Only now does the manifest know the pool: a pool whose rebuilding was cut short is not taken for
        // whole.
        slm.manifest.apply(&[])?;
    }
    Ok(last)
}

/// How an opening came about, in words.
pub(super) fn describe(state: StartState) -> &'static str {
    match state {
        StartState::New => "created a new database",
        StartState::Closed => "attached the pool of a clean shutdown",
        StartState::Crashed => "attached the pool after a crash; nothing had to be replayed",
        StartState::Lost => "the pool could not be trusted; rebuilt it from tables and log",
    }
}

/// Creates a database: the pool, then the manifest, then the pool's owner and the first file number. If it is
/// cut short anywhere it starts again: nothing is in the database yet.
fn create(core: &Core) -> Result<(Manifest, Pool, StartState)> {
    if !core.options.create_if_missing {
        return Err(Error::NotFound { dir: core.dir.clone() });
    }
    refuse_to_create(core)?;
    let mut identity = pool::new_identity(&core.dir, &core.options, EngineKind::Slm)?;
    let pool = fresh_pool(core, &identity)?;
    identity.options.insert(MEDIA.into(), pool::media_name(&pool).into());
    let manifest = Manifest::create(core.fs.clone(), &core.dir, identity)?;
    begin(manifest, pool)
}

fn refuse_to_create(core: &Core) -> Result<()> {
    if core.options.read_only {
        return Err(Error::NotFound { dir: core.dir.clone() });
    }
    Ok(())
}

fn begin(manifest: Manifest, pool: Pool) -> Result<(Manifest, Pool, StartState)> {
    pool::note(&manifest, &pool);
    pool::set_owner(&pool, &manifest.state().identity)?;
    manifest.take_numbers(1);
    manifest.apply(&[])?;
    Ok((manifest, pool, StartState::New))
}

fn open_existing(core: &Core) -> Result<(Manifest, Pool, StartState)> {
    let manifest = Manifest::open(core.fs.clone(), &core.dir)?;
    let state = manifest.state();
    if state.identity.engine != NAME {
        return Err(Error::invalid(format!("this database belongs to engine {}", state.identity.engine)));
    }
    if state.is_being_created() {
        // A root has a memtable only after the first file number was taken.
        let has_memtable = |pool: &Pool| {
            (0..MEMTABLES).try_fold(false, |found, slot| Ok(found || pool.root(root(slot))?.is_some()))
        };
        pool::refuse_used(core, &state.identity, has_memtable)?;
        refuse_to_create(core)?;
        let pool = fresh_pool(core, &state.identity)?;
        return begin(manifest, pool);
    }
    refuse_missing(core, &manifest)?;
    let (pool, state) = open_pool(core, &manifest)?;
    Ok((manifest, pool, state))
}

/// A pool with only an empty index.
fn fresh_pool(core: &Core, identity: &Identity) -> Result<Pool> {
    let pool = pool::fresh(core, identity, &[INDEX_ROOT, FLUSHED_ROOT])?;
    LocationIndex::create(&pool, INDEX_ROOT)?;
    note_flushed(&pool, 0)?;
    Ok(pool)
}

fn open_pool(core: &Core, manifest: &Manifest) -> Result<(Pool, StartState)> {
    match pool::open(core, manifest)? {
        Some(opened) => Ok(opened),
        None => {
            // Until it is full: if that is cut short, the pool is not taken for a damaged one.
            manifest.note_pool(KnownPool::BEING_MADE);
            manifest.apply(&[])?;
            Ok((replace_pool(core, &manifest.state().identity)?, StartState::Lost))
        }
    }
}

/// Replaces the pool by an empty one with an empty index.
pub(super) fn replace_pool(core: &Core, identity: &Identity) -> Result<Pool> {
    let pool = pool::replace(core, identity)?;
    LocationIndex::create(&pool, INDEX_ROOT)?;
    note_flushed(&pool, 0)?;
    Ok(pool)
}

/// Assembles the engine from its opened parts.
pub(super) fn assemble(
    core: Arc<Core>,
    manifest: Manifest,
    pool: Pool,
    state: StartState,
) -> Result<Arc<Slm>> {
    if state != StartState::Lost {
        pool::note(&manifest, &pool);
    }
    let manifest = Arc::new(manifest);
    let tables = Arc::new(TableStore::new(&core, &manifest)?);
    let memtable_bytes = memtable_bytes(&core.options, &pool);
    let foundation = Foundation {
        core: core.clone(),
        manifest: manifest.clone(),
        tables: tables.clone(),
        pool: pool.clone(),
        roots: JOB_ROOTS,
        log_growth: (memtable_bytes / MEMTABLE_LOGS).max(SHORT_LOG_BYTES),
    };
    let located = Located::open(foundation, INDEX_ROOT)?;
    let table_bytes = table_bytes(&core.options);
    let mem = open_memtables(&core, &pool, memtable_bytes)?;
    let emulated = pool::emulated(&core, &manifest.state().identity)?;
    let log = CommitLog::new(core.clone(), &manifest, None, LOG_POLICY);
    // If there are two or more threads, one is left to the flush.
    let slots = JOB_ROOTS.compactions.len().min(core.options.background_threads.saturating_sub(1).max(1));
    let jobs = Background::new(core.clone(), slots);
    Ok(Arc::new_cyclic(|me| Slm {
        me: me.clone(),
        core,
        pool,
        located,
        manifest,
        tables,
        mem: ArcSwap::from_pointee(mem),
        memtable_bytes,
        table_bytes,
        cache_fitted_at: Default::default(),
        overdue_garbage: Default::default(),
        log,
        unfinished_opening: Default::default(),
        is_opening_unfinished: Default::default(),
        has_unproved_tables: Default::default(),
        flushes: Default::default(),
        flush_pace: Default::default(),
        unfinished: Default::default(),
        choosing: Default::default(),
        new_candidates: Default::default(),
        range_was_read: Default::default(),
        rotate_soon: Default::default(),
        retired: Default::default(),
        collapse_pending: AtomicBool::new(false),
        jobs,
        opened: Mutex::new(describe(state).into()),
        emulated,
    }))
}

/// The size of a memtable: as requested, unless the pool is too small for two such and the index, or the
/// memory for the B-trees over two such.
fn memtable_bytes(options: &Options, pool: &Pool) -> u64 {
    let fits = (2 * key_memory(options)).max(SMALL_BYTES);
    options.slm.memtable_bytes.min(fits).min(pool.max_size() / MEMTABLE_SHARE).max(SMALLEST_MEMTABLE_BYTES)
}

/// The size of a table: as requested, unless the memory is too small for its keys.
fn table_bytes(options: &Options) -> u64 {
    options.slm.table_bytes.min(key_memory(options).max(SMALL_BYTES))
}

/// Bytes of a table whose keys fit into the memory budget several times: a job holds those of a few tables,
/// and the C library's allocator as much again. It is a quarter of the usual budget and less of a small one.
fn key_memory(options: &Options) -> u64 {
    options.memory_budget.saturating_sub(SMALLEST_BUDGET_BYTES) / 15 * 4
}

/// The memtables of the pool, newest first; a new one if there is none.
fn open_memtables(core: &Core, pool: &Pool, memtable_bytes: u64) -> Result<MemSet> {
    // In parallel: walking along them is most of an opening's work after a crash.
    let slots: [Mutex<Result<Option<MemTable>>>; MEMTABLES] = std::array::from_fn(|_| Mutex::new(Ok(None)));
    let open = |slot: usize| *slots[slot].lock() = MemTable::open(pool, slot, memtable_bytes);
    core.env.executor.join(&mut || open(0), &mut || open(1));
    let mut found = Vec::new();
    for slot in slots {
        found.extend(slot.into_inner()?.map(Arc::new));
    }
    if found.is_empty() {
        if core.options.read_only {
            // Left by a creation that was cut short.
            return Err(Error::NotClosed { path: core.dir.clone() });
        }
        let bytes = first_bytes(pool, 0, memtable_bytes);
        found.push(Arc::new(MemTable::create_within(pool, 0, bytes, memtable_bytes)?));
    }
    // Only the newest may be empty, and the empty one is the newest.
    found.sort_by_key(|m| std::cmp::Reverse(if m.is_empty() { u64::MAX } else { m.list().max_seq() }));
    Ok(MemSet::new(found))
}
