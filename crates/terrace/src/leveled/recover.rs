//! The work of opening with any write buffer: removing unreferenced files, and starting jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::{Marks, Pool};

use super::{LeveledTree, Stage, WriteBuffer};
use crate::pool;

impl<B: WriteBuffer> LeveledTree<B> {
    /// The last sequence number in runs and memtables.
    pub fn last_seq(&self) -> u64 {
        let state = self.manifest.state();
        let tables = state.tables.values().map(|t| t.meta.max_seq).max().unwrap_or(0);
        tables.max(state.flushed_seq).max(self.applied.load(Ordering::Acquire))
    }

    /// Removes what is no longer needed.
    pub(super) fn remove_leftovers(&self, dead_tables: Vec<u64>) -> Result<()> {
        self.core.files.remove_tables(dead_tables);
        self.core.files.remove(self.manifest.listing()?.leftovers);
        Ok(())
    }

    /// Makes what was replayed so far immutable. Unlike a rotation this leaves the write buffer as it is.
    pub(super) fn set_active_aside(&self) {
        let next = Arc::new(self.buffer.memtable(self.settings.memtable_bytes));
        self.readable.rcu(|now| now.with(&next));
    }

    /// Frees, in the background, what a crash left in the pool without an owner.
    pub(super) fn reclaim_after(&self, crashed: bool) {
        if self.pool.as_ref().is_some_and(|pool| crashed || pool.needs_reclaim()) {
            self.jobs.tidy(&self.me, Self::reclaim_now);
        }
    }

    /// If the manifest cannot decide yet what exists, a later sweep does it, or a check, or the next opening.
    pub(super) fn reclaim_now(&self) -> Result<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        if !pool::may_reclaim(pool, &self.manifest)? {
            return Ok(());
        }
        self.with_marked(pool, |marks| pool::reclaim(pool, marks))
    }

    /// Marks everything of the tree in the pool; nothing of that is freed before `then` has returned.
    ///
    /// Unmarked memory is reclaimed after a crash, and `check` reports it as leaked.
    pub(super) fn with_marked<T>(&self, pool: &Pool, then: impl FnOnce(&Marks) -> Result<T>) -> Result<T> {
        let above =
            |marks| self.buffer.stage().with_marked(marks, |marks| self.buffer.with_marked(marks, then));
        match self.runs.lists() {
            Some(lists) => lists.with_marked(pool.marks(), above),
            None => above(pool.marks()),
        }
    }

    /// Verifies the pool's closing checksums in the background.
    pub fn verify_pool(&self) {
        if self.pool.is_some() {
            self.jobs.tidy_in_pieces(&self.me, |tree, from| pool::verify(tree.pool.as_ref()?, from));
        }
    }
}
