//! SLM-DB (Kaiyrakhmet et al., FAST '19): a persistent memtable that needs no log, a persistent B+-tree over
//! all keys, and one level of SSTables that selective compaction keeps in order.
//!
//! ```text
//!   write ──▶ memtable (skiplist in PM) ──flush──▶ SSTable ──┐
//!                                  └────keys────▶ B+-tree ──┴──▶ get: memtables, tree, one block
//! ```
//!
//! Threads: one leader writes at a time, any number read without locks, one flush and several compactions run
//! in the background. Invariants:
//!
//! 1. Every index word names a record of a table that is in the manifest and open.
//! 2. Whatever is in no table is in a memtable that hangs from a root.
//! 3. A version that a held snapshot sees is in a memtable, behind the key's word, or in its chain.
//! 4. Lock order: `flushing` or `located`'s `collapsing`, `choosing`, `located`'s other locks, `unfinished`,
//!    `log`, `new_candidates`, then the parts' own locks.
//!
//! `docs/engines/slm.md` describes the paper's design, what is kept and what is changed.

mod ahead;
mod behind;
mod check;
mod compact;
mod flush;
mod memtable;
mod open;
mod output;
mod read;
mod rebuild;
mod recover;
mod repair;
#[cfg(test)]
mod tests;
mod walk;
mod write;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::Result;
use terrace_base::exec::Lane;
use terrace_index::{PointIndex, SkipList, WeakSkipList};
use terrace_pmem::Pool;

use crate::commit_log::{CommitLog, oldest_first_log};
use crate::compaction::selective::{LeafScan, PinnedEntries};
use crate::core::Core;
use crate::core::engine::{Direction, Engine, EngineIter};
use crate::core::lent::{Lent, to_keep};
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::core::scrub::LiveTables;
use crate::located::{JobRoots, Located};
use crate::manifest::Manifest;
use crate::pool::{self, StartState};
use crate::stats::Stats;

pub(crate) use open::open;
pub(crate) use repair::repair;

use crate::background::{Background, Flushes};
use crate::tables::TableStore;
use memtable::{FlushPace, MemSet, MemTable};

/// The engine's name.
const NAME: &str = "slm";

/// The roots of its jobs' logs.
const JOB_ROOTS: JobRoots = JobRoots {
    flush: "slm.job.flush",
    collapse: "slm.job.chains",
    compactions: &["slm.job.c0", "slm.job.c1", "slm.job.c2"],
};

/// A new log replaces a job's log that has grown by this part of a memtable, so that an open has little to
/// read.
const MEMTABLE_LOGS: u64 = 32;

/// And by at least this.
const SHORT_LOG_BYTES: u64 = 2 << 10;

/// An open database of the `slm` engine.
#[derive(Debug)]
pub(crate) struct Slm {
    me: Weak<Slm>,
    core: Arc<Core>,
    pool: Pool,
    located: Located,
    manifest: Arc<Manifest>,
    tables: Arc<TableStore>,
    mem: ArcSwap<MemSet>,
    /// Bytes at which a memtable is full.
    memtable_bytes: u64,
    /// Bytes at which a flush or compaction starts the next table.
    table_bytes: u64,
    /// How full the memtable was, in sixteenths, when the cache's bound was last checked.
    cache_fitted_at: AtomicU64,
    /// Flushed memtables that readers may still hold.
    retired: Mutex<Vec<WeakSkipList>>,
    log: CommitLog,
    /// The part of the opening that lacked room: nothing is written before it is done.
    unfinished_opening: Mutex<Option<StartState>>,
    is_opening_unfinished: AtomicBool,
    /// The manifest does not name some existing tables, and nobody has checked yet that the index does not
    /// either: a manifest that was closed cleanly would have them removed without a check.
    has_unproved_tables: AtomicBool,
    flushes: Flushes,
    flush_pace: FlushPace,
    /// A failed flush that will continue.
    unfinished: Mutex<Option<flush::Unfinished>>,
    /// [`overdue_garbage`] when a flush or a compaction last ended, as the bits of the float.
    overdue_garbage: AtomicU64,
    /// The state for choosing compactions.
    choosing: Mutex<Choosing>,
    /// Candidates since the last compaction; the manifest has the earlier ones.
    new_candidates: Mutex<BTreeSet<u64>>,
    /// A range was read since the last leaf scan.
    range_was_read: AtomicBool,
    /// Whether the memtables hold so many deletions that a walk wants them flushed.
    rotate_soon: AtomicBool,
    /// A job that collapses chains is queued or running.
    collapse_pending: AtomicBool,
    jobs: Arc<Background>,
    /// A line about the work of opening.
    opened: Mutex<String>,
    /// The medium that an emulated pool stands for.
    emulated: Option<String>,
}

/// State of the choice of compactions.
#[derive(Debug, Default)]
struct Choosing {
    leaf_scan: LeafScan,
    pins: PinnedEntries,
}

/// Bytes of DRAM by their holders.
#[derive(Debug, Clone, Copy)]
struct Dram {
    tables: u64,
    memtables: u64,
    index: u64,
    allocator: u64,
}

impl Slm {
    /// Starts compactions in the background, as soon as a slot is free.
    fn spawn_compaction(&self) {
        // A job that a crash cut short is ended before another begins.
        if self.core.is_scratch || self.is_opening_unfinished.load(Ordering::Acquire) {
            return;
        }
        self.jobs.compact(&self.me, compact::HOW);
    }

    fn spawn(&self, lane: Lane, job: impl FnOnce(&Slm) + Send + 'static) -> bool {
        self.jobs.spawn(lane, &self.me, job)
    }

    /// Notes tables over which a range query found its keys scattered.
    fn note_scattered(&self, tables: Vec<u64>) {
        if !tables.is_empty() && !self.jobs.is_closing() && !self.core.options.read_only {
            self.new_candidates.lock().extend(tables);
            self.spawn_compaction();
        }
    }

    /// Every memtable that a reader may use: the current ones, and flushed ones that readers still hold. In
    /// this order: one that leaves meanwhile is then in the second group if it was not in the first.
    fn readable_memtables(&self) -> Vec<SkipList> {
        let mut all: Vec<SkipList> = self.mem.load().iter().map(|m| m.list().clone()).collect();
        let retired: Vec<SkipList> = self.retired.lock().iter().filter_map(WeakSkipList::upgrade).collect();
        for list in retired {
            if all.iter().all(|other| other.head_offset() != list.head_offset()) {
                all.push(list);
            }
        }
        all
    }

    /// Whether nobody is giving back a memtable that [`readable_memtables`](Self::readable_memtables) no
    /// longer names.
    fn memtables_are_given_back(&self) -> bool {
        self.retired.lock().iter().all(|list| list.is_gone() || list.upgrade().is_some())
    }

    /// DRAM of the engine's structures.
    fn dram(&self) -> Dram {
        Dram {
            tables: self.core.cache().table_bytes(),
            memtables: self.readable_memtables().iter().map(SkipList::dram_bytes).sum(),
            index: self.located.index().dram_bytes(),
            allocator: self.pool.dram_bytes(),
        }
    }

    /// Limits the cache to the rest of the memory budget.
    fn fit_cache(&self) {
        let Dram { tables, memtables, index, allocator } = self.dram();
        self.core.memory.fit_cache(tables + memtables + index + allocator);
    }

    /// The first log of the memtables after `memtable`.
    fn first_log_after(&self, memtable: &Arc<MemTable>) -> u64 {
        self.log.first_after(&self.manifest, || {
            oldest_first_log(self.mem.load().newer_than(memtable).map(|m| m.first_log().get()))
        })
    }

    /// Removes what could not be removed before.
    fn sweep(&self) {
        self.core.files.sweep(&self.manifest);
    }

    /// Drops a flushed memtable: root, readers and extents, then its logs. The root is cleared while the
    /// memtable still counts as present: after that its slot is free, and the next one may be published in
    /// it.
    fn forget(&self, memtable: &Arc<MemTable>) -> Result<()> {
        debug_assert!(
            memtable.is_empty() || memtable.list().max_seq() <= self.manifest.state().flushed_seq,
            "whatever is in no table is in a memtable that hangs from a root"
        );
        memtable.unlink(&self.pool)?;
        let mut retired = self.retired.lock();
        retired.retain(|list| !list.is_gone());
        retired.push(memtable.list().downgrade());
        drop(retired);
        self.mem.rcu(|mem| mem.without(|other| Arc::ptr_eq(other, memtable)));
        memtable.free()?;
        // The log that was ready may have been taken meanwhile.
        self.log.make_ready(&self.manifest);
        if let Err(error) = self.log.drop_old(&self.manifest) {
            tracing::warn!(%error, "logs that are no longer needed stay until the next flush");
        }
        self.measure_garbage();
        Ok(())
    }
}

impl Engine for Slm {
    fn tables(&self) -> Option<&dyn LiveTables> {
        Some(&*self.tables)
    }

    fn apply(&self, group: Group<'_>) -> Result<()> {
        self.apply_group(group)
    }

    fn rotate(&self) -> Result<()> {
        self.finish_opening()?;
        if self.mem.load().active().is_empty() {
            return Ok(());
        }
        self.log.mend(self)?;
        self.wait_for_flush()?;
        self.rotate_memtable(0)
    }

    fn wait_until_flushed(&self) -> Result<()> {
        let flush = || self.log.mend(self).and_then(|()| self.wait_for_flush());
        self.jobs.unless_closed(|| self.has_immutable(), flush)
    }

    fn sync(&self) -> Result<()> {
        self.finish_opening()?;
        self.log.mend(self)?;
        self.log.sync().inspect_err(|_| self.log.try_to_mend(self))
    }

    fn get(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        self.with_value(key, at, to_keep)
    }

    fn get_with(&self, key: &[u8], at: Option<u64>, show: &mut dyn FnMut(Lent<'_>)) -> Result<bool> {
        Ok(self.with_value(key, at, show)?.is_some())
    }

    fn get_many(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        self.get_values(keys, at)
    }

    fn contains(&self, key: &[u8]) -> Result<bool> {
        self.contains_key(key)
    }

    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn EngineIter>> {
        Ok(Box::new(walk::SlmIter::new(self, at, direction)))
    }

    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        let _open = self.jobs.hold_open()?;
        self.compact_all(from, to)
    }

    fn released(&self) {
        let may_not = self.is_opening_unfinished.load(Ordering::Acquire) || self.core.options.read_only;
        let wanted = self.located.has_chains() && !may_not;
        if wanted && !self.jobs.is_closing() && !self.collapse_pending.swap(true, Ordering::AcqRel) {
            self.jobs.tidy(&self.me, |slm| {
                slm.collapse_pending.store(false, Ordering::Release);
                let collapsed = slm.located.collapse_chains();
                slm.spawn_compaction();
                collapsed
            });
        }
    }

    fn fill_stats(&self, stats: &mut Stats) {
        check::fill_stats(self, stats);
    }

    fn check(&self) -> Result<CheckReport> {
        self.finish_opening()?;
        check::check(self)
    }

    fn pool(&self) -> Option<&Pool> {
        Some(&self.pool)
    }

    fn close(&self) -> Result<()> {
        // Work of the opening that cannot be done now is left, as after a crash, to the next opening.
        let is_left = self.jobs.is_closing() || self.core.health.is_cut();
        let finished = if is_left { Ok(()) } else { self.finish_opening() };
        if !self.jobs.close() {
            return Ok(());
        }
        self.core.health.uncut()?;
        finished?;
        self.located.drain();
        if self.core.options.read_only {
            return self.pool.close();
        }
        self.located.index().close()?;
        let readers = self.readable_memtables().len() > self.mem.load().iter().count();
        if readers || !self.located.drain() {
            // What readers keep stays until they release it, and is unreachable if the process ends before.
            self.pool.leave_unreclaimed();
        }
        // The logs of a pool that was closed cleanly are taken for whole.
        if self.logs_writes() {
            self.log.close(self)?;
        }
        self.leave_unfinished();
        self.sweep();
        if self.has_unproved_tables.load(Ordering::Acquire) {
            return pool::close_unsealed(&self.manifest, &self.pool);
        }
        pool::close(&self.core, &self.manifest, Some(&self.pool))
    }
}
