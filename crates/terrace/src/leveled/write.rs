//! The write path: make room, make durable, insert.
//!
//! 1. A group is in the write buffer, as durable as its medium makes it (or as requested), before any of it
//!    is in the memtable: nothing is readable that a crash could take back.
//! 2. Inserting cannot fail, so a group is readable wholly or not at all; it is visible once the store says so.
//! 3. Writers are throttled while flushes and compactions are behind, more the further, and stop at the
//!    limit.
//!
//! The caller is the current leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::{LeveledTree, Memtable, WriteBuffer};
use crate::commit_log::comes_half_way;
use crate::compaction::leveled::{Load, delay};
use crate::core::request::Group;

impl<B: WriteBuffer> LeveledTree<B> {
    pub(super) fn apply_group(&self, group: Group<'_>) -> Result<()> {
        self.core.health.check()?;
        self.decide_ingest()?;
        self.manifest.announce_pool()?;
        B::mend(self)?;
        self.make_room(&group)?;
        B::log(self, &group)?;
        let ops = group.requests.iter().flat_map(|r| r.batch.ops());
        self.readable.load().active().insert(ops.zip(group.first_seq..));
        let before = self.applied.swap(group.first_seq + group.ops() - 1, Ordering::AcqRel);
        debug_assert!(before < group.first_seq, "one leader, and numbers ascend");
        Ok(())
    }

    /// Rotates when the active memtable is full, waits when all are, and throttles before that.
    fn make_room(&self, group: &Group<'_>) -> Result<()> {
        let need = group.bytes() + group.ops() * B::Memtable::ENTRY_BYTES;
        let limit = self.settings.memtable_bytes;
        loop {
            let readable = self.readable.load();
            let used = readable.active().bytes_used();
            let full_set = readable.memtables.len() >= self.settings.memtables;
            let full = used > 0 && used + need > limit;
            drop(readable);
            match (full, full_set) {
                (false, _) => {
                    if comes_half_way(used, used + need, limit) {
                        self.make_ready_soon();
                    }
                    return self.slow_down(used as f64 / limit as f64, full_set, group.bytes());
                }
                (true, false) => self.rotate_memtable()?,
                (true, true) => self.wait_for_flush()?,
            }
        }
    }

    fn make_ready_soon(&self) {
        self.tidy(|tree| {
            tree.buffer.make_ready(&tree.manifest);
            Ok(())
        });
    }

    /// Spreads the wait for background work over the preceding writes, so that no single one stops for long.
    pub(super) fn slow_down(&self, memtable_fill: f64, memtables_full: bool, group_bytes: u64) -> Result<()> {
        let limits = &self.settings.limits;
        let load = || Load {
            l0_tables: self.l0_runs.load(Ordering::Relaxed),
            debt: self.debt_bytes.load(Ordering::Relaxed),
            memtables_full,
            memtable_fill,
            group_bytes,
        };
        self.jobs.slow_down(|| delay(&load(), limits), || self.compact_next())
    }

    /// Makes a new memtable the active one and starts the flush of the old one. Writes to the new one are
    /// logged apart from those in the old one.
    pub(super) fn rotate_memtable(&self) -> Result<()> {
        self.buffer.rotate()?;
        let next = Arc::new(self.buffer.memtable(self.settings.memtable_bytes));
        self.readable.rcu(|now| now.with(&next));
        self.fit_cache();
        self.spawn_flush();
        Ok(())
    }

    pub(super) fn has_immutable(&self) -> bool {
        self.readable.load().memtables.oldest_immutable().is_some()
    }

    /// Waits until the oldest immutable memtable is flushed.
    pub(super) fn wait_for_flush(&self) -> Result<()> {
        let memtables = || self.readable().memtables.clone();
        self.flushes.wait_for_oldest(&self.core, memtables, || self.run_flushes())
    }

    /// Waits until every immutable memtable is flushed.
    pub(super) fn wait_for_flushes(&self) -> Result<()> {
        while self.has_immutable() {
            self.wait_for_flush()?;
        }
        Ok(())
    }

    pub(super) fn spawn_flush(&self) {
        self.jobs.spawn_flush(&self.me, |tree| tree.run_flushes());
    }
}
