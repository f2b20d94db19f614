//! Logging groups, and what the log needs from the tree whose memtables it makes durable.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::Pool;
use terrace_table::Cursor;

use super::{LoggedMemtable, LoggedMemtables};
use crate::batch::{Op, WriteBatch};
use crate::commit_log::{Entry, Logged, oldest_first_log};
use crate::core::request::Group;
use crate::leveled::{LeveledTree, Memtable, Stage};
use crate::manifest::Manifest;
use crate::memtable::MemCursor;

impl<S: Stage> LeveledTree<LoggedMemtables<S>> {
    /// Logs the group; if the pool is full, it first drops the log of a flushed memtable, or of the active
    /// one if that helps.
    pub(super) fn log_with_retry(&self, group: &Group<'_>) -> Result<()> {
        loop {
            let dropped = self.buffer.log.dropped();
            let refusal = match self.buffer.log.append(self, group) {
                Ok(()) => return Ok(()),
                Err(e) => e,
            };
            if self.buffer.log.lacks_room(&refusal) {
                if self.has_immutable() {
                    self.wait_for_flush()?;
                    continue;
                }
                if !self.readable.load().active().is_empty() && self.would_fit_alone(group) {
                    self.rotate_memtable()?;
                    continue;
                }
                // The flush that has just ended may not have dropped its log yet.
                self.buffer.log.drop_old(&self.manifest)?;
                if self.buffer.log.dropped() > dropped {
                    continue;
                }
            }
            self.buffer.log.try_to_mend(self);
            return Err(refusal);
        }
    }

    /// Whether the pool, if it held only logs, has room for a log of this group alone.
    fn would_fit_alone(&self, group: &Group<'_>) -> bool {
        let fits = |pool: &Pool| group.bytes() + 4 * pool.extent_bytes() <= pool.reachable_bytes();
        self.pool.as_ref().is_some_and(fits)
    }

    /// The first log of the memtables after `memtable`.
    pub(super) fn first_log_after(&self, memtable: &LoggedMemtable) -> u64 {
        self.buffer.log.first_after(&self.manifest, || {
            oldest_first_log(self.readable().memtables.newer_than(memtable).map(|m| m.first_log.get()))
        })
    }
}

impl Entry for MemCursor {
    fn seq(&self) -> u64 {
        Cursor::seq(self)
    }

    fn put_into(&self, ops: &mut WriteBatch) -> Result<()> {
        ops.push(Op { kind: self.kind(), key: self.key(), value: self.value_bytes() });
        Ok(())
    }
}

impl<S: Stage> Logged for LeveledTree<LoggedMemtables<S>> {
    type Entry = MemCursor;

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn last_applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    fn logged_from(&self, number: u64) {
        self.readable.load().active().first_log.note(number);
    }

    fn unflushed(&self, flushed: u64) -> Result<Vec<MemCursor>> {
        let mut records = Vec::new();
        for memtable in &self.readable().memtables {
            let mut cursor = memtable.cursor();
            cursor.seek_first()?;
            while cursor.valid() {
                if Cursor::seq(&cursor) > flushed {
                    records.push(cursor.clone());
                }
                cursor.next()?;
            }
        }
        Ok(records)
    }

    fn memtable_bytes(&self) -> u64 {
        self.readable().memtables.iter().map(|m| m.bytes_used()).sum()
    }

    fn flush_all(&self) -> Result<()> {
        if !self.readable().active().is_empty() {
            self.rotate_memtable()?;
        }
        self.wait_for_flushes()
    }

    fn relogged(&self, number: u64) -> bool {
        let readable = self.readable();
        readable.memtables.iter().filter(|m| !m.is_empty()).for_each(|m| m.first_log.replace(number));
        !readable.active().is_empty()
    }
}
