//! The write path: make room, log, insert.
//!
//! 1. A group is in the log, as durable as its medium makes it (or as was asked for), before any of it is in the
//!    memtable: nothing is readable that a crash could take back.
//! 2. Inserting cannot fail, so a group is readable wholly or not at all; it is visible once the store says so.
//! 3. Writers are slowed down while flushes and compactions are behind, more the further, and stop at the limit.
//!
//! The caller is the one leader of the moment.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::exec::Lane;
use terrace_base::{ErrorKind, Result};
use terrace_pmem::Pool;
use terrace_table::{Cursor, Kind};

use super::{Lsm, MemTable, Readable, compact, flush};
use crate::batch::WriteBatch;
use crate::commit_log::{Entry, Logged};
use crate::compaction::leveled::{Limits, Load, delay};
use crate::core::request::Group;
use crate::manifest::Manifest;
use crate::memtable::{MemCursor, NODE_OVERHEAD_BYTES};

/// The share of the active memtable that may be filled while the others wait for their flush before writers are
/// slowed down.
const MEMTABLE_FILL: f64 = 0.5;

impl Lsm {
    pub(super) fn apply_group(&self, group: Group<'_>) -> Result<()> {
        self.core.health.check()?;
        self.manifest.announce_pool()?;
        self.log.mend(self)?;
        self.make_room(&group)?;
        self.log_with_retry(&group)?;
        let readable = self.readable.load();
        let mut writer = readable.active().list.writer();
        let mut seq = group.first_seq;
        for op in group.requests.iter().flat_map(|r| r.batch.ops()) {
            writer.insert(op.key, seq, op.kind, op.value);
            seq += 1;
        }
        self.applied.store(seq - 1, Ordering::Release);
        Ok(())
    }

    /// Logs the group; a full pool is given the chance to let go of a flushed memtable's log first, of the active one's
    /// if that would help.
    fn log_with_retry(&self, group: &Group<'_>) -> Result<()> {
        loop {
            let refusal = match self.log.append(self, group) {
                Ok(()) => return Ok(()),
                Err(e) => e,
            };
            if refusal.kind() == ErrorKind::PoolFull {
                if self.has_immutable() {
                    self.wait_for_flush()?;
                    continue;
                }
                if !self.readable.load().active().list.is_empty() && self.would_fit_alone(group) {
                    self.rotate_memtable()?;
                    continue;
                }
            }
            self.log.try_to_mend(self);
            return Err(refusal);
        }
    }

    /// Whether the pool, which holds nothing but logs, has room for a log of this group alone.
    fn would_fit_alone(&self, group: &Group<'_>) -> bool {
        let fits = |pool: &Pool| group.bytes() + 4 * pool.extent_bytes() <= pool.max_size();
        self.pool.as_ref().is_some_and(fits)
    }

    /// Rotates when the active memtable is full, waits when all are, and slows down before that.
    fn make_room(&self, group: &Group<'_>) -> Result<()> {
        let need = group.bytes() + group.ops() * NODE_OVERHEAD_BYTES;
        let limit = self.core.options.lsm.memtable_bytes;
        loop {
            let readable = self.readable.load();
            let used = readable.active().list.bytes_used();
            let full_set = readable.memtables.len() >= self.core.options.lsm.memtables;
            let full = used > 0 && used + need > limit;
            drop(readable);
            match (full, full_set) {
                (false, _) => return self.slow_down(used as f64 / limit as f64, full_set, group),
                (true, false) => self.rotate_memtable()?,
                (true, true) => self.wait_for_flush()?,
            }
        }
    }

    /// Spreads the wait for background work over the writes before it, so that no single one stops for long.
    fn slow_down(&self, memtable_fill: f64, memtables_full: bool, group: &Group<'_>) -> Result<()> {
        let lsm = &self.core.options.lsm;
        let limits = Limits {
            l0_tables: (lsm.l0_slowdown_tables, lsm.l0_stop_tables),
            debt_bytes: (lsm.debt_slowdown_bytes, lsm.debt_stop_bytes),
            memtable_fill: MEMTABLE_FILL,
        };
        let load = || Load {
            l0_tables: self.l0_tables.load(Ordering::Relaxed),
            debt_bytes: self.debt_bytes.load(Ordering::Relaxed),
            memtables_full,
            memtable_fill,
            group_bytes: group.bytes(),
        };
        let Some(delay) = delay(&load(), &limits) else {
            return self.wait_for_compactions(|| delay(&load(), &limits).is_some());
        };
        self.core.slow_down(delay);
        Ok(())
    }

    /// Makes a new memtable the active one and has the old one flushed. What goes into the new one is logged from
    /// the next log on.
    pub(super) fn rotate_memtable(&self) -> Result<()> {
        self.log.rotate()?;
        let next = MemTable::new(self.core.options.lsm.memtable_bytes);
        self.readable.rcu(|now| {
            let memtables = std::iter::once(&next).chain(&now.memtables).cloned().collect();
            Readable { memtables, levels: now.levels.clone() }
        });
        self.settle_memory();
        self.spawn_flush();
        Ok(())
    }

    pub(super) fn has_immutable(&self) -> bool {
        self.readable.load().oldest_immutable().is_some()
    }

    /// Waits until the oldest immutable memtable is flushed.
    pub(super) fn wait_for_flush(&self) -> Result<()> {
        let Some(waited_for) = self.readable().oldest_immutable().cloned() else { return Ok(()) };
        let gone = || !self.readable.load().has(&waited_for);
        self.room.wait_for_flush(&self.core, gone, &self.flushing, || flush::run(self))
    }

    /// Waits until compactions have come far enough; does them where nobody else can.
    fn wait_for_compactions(&self, enough: impl Fn() -> bool) -> Result<()> {
        self.core.stalled(|| {
            while !enough() {
                if self.core.env.executor.help() {
                    continue;
                }
                match self.jobs.free_slot() {
                    Some(_slot) => {
                        if !compact::next(self)? {
                            return Ok(());
                        }
                    }
                    None => self.jobs.wait_a_moment(),
                }
            }
            Ok(())
        })
    }

    pub(super) fn spawn_flush(&self) {
        self.spawn(Lane::Flush, |lsm| {
            // The failure is kept in `health`; writers that need the room get it.
            let _ = flush::run(lsm);
        });
    }

    /// The log from which on the memtables after `memtable` are logged.
    pub(super) fn first_log_after(&self, memtable: &Arc<MemTable>) -> u64 {
        self.log.first_after(&self.manifest, || {
            let readable = self.readable();
            let newer = readable.memtables.iter().take_while(|m| !Arc::ptr_eq(m, memtable));
            newer.map(|m| m.first_log()).filter(|&n| n > 0).last()
        })
    }
}

impl Entry for MemCursor {
    fn seq(&self) -> u64 {
        Cursor::seq(self)
    }

    fn put_into(&self, ops: &mut WriteBatch) -> Result<()> {
        match self.kind() {
            Kind::Put => ops.put(self.key(), self.value_bytes()),
            Kind::Delete => ops.delete(self.key()),
        }
        Ok(())
    }
}

impl Logged for Lsm {
    type Entry = MemCursor;

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn last_applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    fn logged_from(&self, number: u64) {
        self.readable.load().active().logged_from(number);
    }

    fn unflushed(&self, flushed: u64) -> Result<Vec<MemCursor>> {
        let mut records = Vec::new();
        for memtable in &self.readable().memtables {
            let mut cursor = memtable.list.cursor();
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
        self.readable().memtables.iter().map(|m| m.list.bytes_used()).sum()
    }

    fn flush_all(&self) -> Result<()> {
        if !self.readable().active().list.is_empty() {
            self.rotate_memtable()?;
        }
        while self.has_immutable() {
            self.wait_for_flush()?;
        }
        Ok(())
    }

    fn relogged(&self, number: u64) -> bool {
        let readable = self.readable();
        readable.memtables.iter().filter(|m| !m.list.is_empty()).for_each(|m| m.relogged(number));
        !readable.active().list.is_empty()
    }
}
