//! The leveled core: a leveled LSM-tree without the parts that each design puts above and around it.
//!
//! ```text
//!   group ──▶ write buffer ──▶ memtables ──flush──▶ (stage) ──▶ level 0 ──compaction──▶ level 1 .. the last
//!             what is durable  read first           may be none           runs; the policy says which go where
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `mod.rs` | the tree, and what is readable at one moment |
//! | `buffer.rs` | the seams above level 0: memtable, write buffer, stage |
//! | `engine.rs` | the tree as an engine |
//! | `write.rs`, `read.rs` | groups and lookups; throttling of writers |
//! | `flush.rs` | memtables, oldest first, out of memory |
//! | `task.rs` | the next compaction, and the kind of its outputs |
//! | `compact.rs`, `merge.rs` | compaction jobs, and the merge that one does in parts |
//! | `ingest.rs` | tables written from a sorted stream, and the step in which they appear |
//! | `change.rs` | a change of the runs: into the manifest, and before readers |
//! | `options.rs` | the options of a tree |
//! | `recover.rs`, `check.rs`, `repair.rs` | the work of opening; proving everything; what a repair recovers |
//! | `logged/` | a write buffer: memtables in DRAM and a commit log |
//!
//! The [`LevelPolicy`] decides about levels; a level consists of [`Run`](crate::levels::run::Run)s. An engine
//! chooses policy and write buffer, and opens what they need.
//!
//! Threads: one leader writes at a time, any number read without locks, one flush and several compactions run in
//! the background. Invariants:
//!
//! 1. Every acknowledged write is in the write buffer, as durable as requested, or in runs of the manifest
//!    (or on the stage). The write buffer keeps its part until everything in it is there.
//! 2. `readable` shows every version that some reader may ask for, in runs and in memtables; a memtable
//!    leaves it in the same step in which its runs enter.
//! 3. A reader loads `readable` before it asks what is visible. No version visible to it is then missing:
//!    merges drop no version that was the newest when it loaded `readable`.
//! 4. Lock order: `flushes`, `choosing`, the write buffer's, `changing`, then the parts' own locks.

mod buffer;
mod change;
mod check;
mod compact;
mod engine;
mod flush;
mod ingest;
pub(crate) mod logged;
mod merge;
mod operands;
mod options;
mod read;
mod recover;
mod repair;
mod task;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_base::Result;
use terrace_base::key_filter::KeyFilter;
use terrace_pmem::Pool;
use terrace_table::{Cursor, TableOptions};

use crate::background::{Background, Flushes};
use crate::compaction::leveled::{LevelPolicy, Limits};
use crate::core::Core;
use crate::levels::Levels;
use crate::levels::hidden::Undecided;
use crate::levels::lists::ListStore;
use crate::levels::run::Runs;
use crate::manifest::Manifest;
use crate::memtable::Memtables;
use crate::pool;
use crate::tables::WriterOptions;

pub(crate) use buffer::{Memtable, MergePart, Moment, Stage, Watched, WriteBuffer};
pub(crate) use change::{LevelsEdit, Relocations};
pub(crate) use flush::Add;
pub(crate) use options::{policy, settings, table_options};
pub(crate) use repair::{PlacedRun, gather_runs};

/// An open database of levels of runs under a write buffer.
#[derive(Debug)]
pub(crate) struct LeveledTree<B: WriteBuffer> {
    me: Weak<LeveledTree<B>>,
    core: Arc<Core>,
    settings: Settings,
    /// Decides what is compacted.
    policy: Box<dyn LevelPolicy>,
    buffer: B,
    /// The pool of the write buffer, the stage or runs, if any of them is on persistent memory.
    pool: Option<Pool>,
    /// The medium that an emulated pool stands for.
    emulated: Option<String>,
    manifest: Manifest,
    runs: Runs,
    readable: ArcSwap<Readable<B::Memtable>>,
    /// Held while `readable` and the manifest change together.
    changing: Mutex<()>,
    /// The last sequence number in a memtable or run.
    applied: AtomicU64,
    flushes: Flushes,
    /// Runs that running compactions read.
    choosing: Mutex<BTreeSet<u64>>,
    /// What writers are throttled by: runs on level 0, and bytes to be compacted.
    l0_runs: AtomicUsize,
    debt_bytes: AtomicU64,
    /// Runs hold versions or tombstones that only snapshots keep.
    holds_garbage: AtomicBool,
    undecided: Undecided,
    jobs: Arc<Background>,
    /// A line about the work of opening.
    opened: OnceLock<String>,
}

/// An engine's options for the tree.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Bytes of a memtable.
    pub memtable_bytes: u64,
    /// Most memtables: the one being written and those that wait for their flush.
    pub memtables: usize,
    /// When writers are throttled.
    pub limits: Limits,
    /// How tables are written; the tree fills in their database.
    pub table: TableOptions,
}

/// The parts of a tree.
#[derive(Debug)]
pub(crate) struct Parts<B> {
    pub settings: Settings,
    pub policy: Box<dyn LevelPolicy>,
    pub manifest: Manifest,
    pub pool: Option<Pool>,
    pub buffer: B,
    /// The lists, if some runs may lie in persistent memory.
    pub lists: Option<Arc<ListStore>>,
}

/// Everything that may be read at one moment, except the stage.
#[derive(Debug)]
struct Readable<M> {
    memtables: Memtables<M>,
    levels: Arc<Levels>,
}

impl<M> Readable<M> {
    fn active(&self) -> &Arc<M> {
        self.memtables.active()
    }

    /// The same with another active memtable.
    fn with(&self, active: &Arc<M>) -> Self {
        Readable { memtables: self.memtables.rotated(active), levels: self.levels.clone() }
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// Assembles the tree from its opened parts, with an empty memtable.
    pub fn new(core: Arc<Core>, parts: Parts<B>) -> Result<Arc<Self>> {
        let Parts { settings, policy, manifest, pool, buffer, lists } = parts;
        let runs = Runs::new(&core, &manifest, lists)?;
        let levels = Levels::new(&manifest.state(), |number| runs.get(number))?;
        let emulated = match &pool {
            Some(_) => pool::emulated(&core, &manifest.state().identity)?,
            None => None,
        };
        let memtables = Memtables::from(Arc::new(buffer.memtable(settings.memtable_bytes)));
        let readable = Readable { memtables, levels: Arc::new(levels) };
        let slots = core.options.background_threads.saturating_sub(1).max(1);
        let jobs = Background::new(core.clone(), slots);
        let wired = LeveledTree {
            me: Weak::new(),
            core,
            settings,
            policy,
            buffer,
            pool,
            emulated,
            manifest,
            runs,
            readable: ArcSwap::from_pointee(readable),
            changing: Default::default(),
            applied: Default::default(),
            flushes: Default::default(),
            choosing: Default::default(),
            l0_runs: Default::default(),
            debt_bytes: Default::default(),
            holds_garbage: Default::default(),
            undecided: Default::default(),
            jobs,
            opened: Default::default(),
        };
        let tree = Arc::new_cyclic(|me| LeveledTree { me: me.clone(), ..wired });
        tree.note_load(&tree.readable().levels);
        tree.fit_cache();
        Ok(tree)
    }

    fn readable(&self) -> Arc<Readable<B::Memtable>> {
        self.readable.load_full()
    }

    /// What the engine shares with the store.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The stage between memtables and level 0.
    pub fn stage(&self) -> &B::Stage {
        self.buffer.stage()
    }

    /// Bytes of all runs.
    pub fn run_bytes(&self) -> u64 {
        self.readable().levels.sizes(0).iter().sum()
    }

    /// Average bytes of an entry of run `number`, if that run exists.
    pub fn entry_bytes(&self, number: u64) -> Option<u64> {
        let state = self.manifest.state();
        state.tables.get(&number).map(|table| table.meta.file_bytes / table.meta.entries.max(1))
    }

    /// The offset of the block of run `number` with the newest version of `key` there, if it has one; `None`
    /// if that run does not exist.
    pub fn block_of(&self, number: u64, key: &[u8]) -> Result<Option<Option<u64>>> {
        if !self.manifest.state().tables.contains_key(&number) {
            return Ok(None);
        }
        let mut cursor = self.runs.get(number)?.cursor(false, 0);
        cursor.seek(key, u64::MAX)?;
        let is_there = cursor.valid() && cursor.key() == key;
        Ok(Some(cursor.position().filter(|_| is_there).map(|block| block.offset())))
    }

    /// Everything up to this sequence number has been flushed.
    pub fn flushed_seq(&self) -> u64 {
        self.manifest.state().flushed_seq
    }

    fn writer_options(&self, table_bytes: u64) -> WriterOptions {
        let origin = self.manifest.state().identity.origin();
        WriterOptions { table_bytes, table: TableOptions { origin, ..self.settings.table.clone() } }
    }

    /// An unused file number.
    fn new_file_number(&self) -> u64 {
        self.manifest.take_numbers(1).start
    }

    /// Removes what could not be removed before.
    fn sweep(&self) {
        self.core.files.sweep(&self.manifest);
        self.runs.lists().iter().for_each(|lists| lists.sweep(&self.manifest));
        if pool::is_reclaim_due(self.pool.as_ref(), &self.manifest) {
            self.jobs.tidy(&self.me, Self::reclaim_now);
        }
    }

    /// Gives the cache the rest of the budget after memtables, each at its full size, the stage and tables.
    fn fit_cache(&self) {
        let readable = self.readable();
        let full = self.settings.memtable_bytes + KeyFilter::bytes_for(self.settings.memtable_bytes);
        let at_full: u64 = readable.memtables.iter().map(|m| m.dram_bytes().max(full)).sum();
        // A memtable that grows takes what is kept for it first.
        let memtables = at_full.max(self.memtables_bytes(&readable));
        let lists = self.runs.lists().map_or(0, |lists| lists.dram_bytes());
        let others = memtables + self.buffer.stage().dram_bytes() + lists;
        self.core.memory.fit_cache(self.core.cache().table_bytes() + others);
    }

    /// Bytes of DRAM in memtables now, and kept for the next ones.
    fn memtables_bytes(&self, readable: &Readable<B::Memtable>) -> u64 {
        let filters = readable.memtables.len() as u64 * KeyFilter::bytes_for(self.settings.memtable_bytes);
        self.buffer.held_bytes() + filters
    }

    /// Notes what writers are throttled by.
    fn note_load(&self, levels: &Levels) {
        let (sizes, l0_runs) = (levels.sizes(self.policy.levels()), layers(levels));
        self.l0_runs.store(l0_runs, Ordering::Relaxed);
        self.debt_bytes.store(self.policy.debt(&sizes, l0_runs), Ordering::Relaxed);
        self.holds_garbage.store(self.has_garbage(levels, sizes.len() - 1), Ordering::Relaxed);
    }

    /// Whether a run of the `last` level has tombstones, or is known to hold versions that only snapshots keep.
    fn has_garbage(&self, levels: &Levels, last: usize) -> bool {
        let state = self.manifest.state();
        let is_there = |number| state.tables.get(number).is_some_and(|table| table.level as usize == last);
        levels.level(last).has_deletes() || state.candidates.iter().any(is_there)
    }

    /// Runs the cleanup `job` in the background. Its failure is the database's.
    pub fn tidy(&self, job: impl FnOnce(&Self) -> Result<()> + Send + 'static) {
        self.jobs.tidy(&self.me, job);
    }
}

/// Layers of level 0: runs of one ingest, which have one number, do not overlap.
fn layers(levels: &Levels) -> usize {
    let row = levels.level(0);
    let numbers = || row.iter().map(|run| run.meta().max_seq);
    row.len() - numbers().zip(numbers().skip(1)).filter(|(a, b)| a == b).count()
}
