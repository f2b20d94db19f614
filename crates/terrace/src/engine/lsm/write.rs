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

use terrace_base::{ErrorKind, Result};

use super::{Lsm, MemTable, Readable, compact, flush};
use crate::compaction::leveled::{Limits, Load, delay};
use crate::engine::Group;
use crate::memtable::NODE_OVERHEAD_BYTES;

/// The share of the active memtable that may be filled while the others wait for their flush before writers are
/// slowed down.
const MEMTABLE_FILL: f64 = 0.5;

impl Lsm {
    pub(super) fn apply_group(&self, group: Group<'_>) -> Result<()> {
        self.core.health.check()?;
        self.mend_log()?;
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

    /// Logs the group; a full pool is given the chance to let go of a flushed memtable's log first.
    fn log_with_retry(&self, group: &Group<'_>) -> Result<()> {
        loop {
            match self.append_to_log(group) {
                Err(e) if e.kind() == ErrorKind::PoolFull && self.has_immutable() => self.wait_for_flush()?,
                outcome => return outcome,
            }
        }
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
                (true, false) => self.rotate_memtable(),
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
    pub(super) fn rotate_memtable(&self) {
        self.log.lock().rotate();
        let next = MemTable::new(self.core.options.lsm.memtable_bytes);
        self.readable.rcu(|now| {
            let memtables = std::iter::once(&next).chain(&now.memtables).cloned().collect();
            Readable { memtables, levels: now.levels.clone() }
        });
        self.settle_memory();
        self.spawn_flush();
    }

    pub(super) fn has_immutable(&self) -> bool {
        self.readable.load().oldest_immutable().is_some()
    }

    /// Waits until the oldest immutable memtable is flushed.
    pub(super) fn wait_for_flush(&self) -> Result<()> {
        let Some(waited_for) = self.readable().oldest_immutable().cloned() else { return Ok(()) };
        let gone = || !self.readable.load().has(&waited_for);
        self.core.wait_for_flush(gone, &self.flushing, &self.room, || flush::run(self))
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
        self.spawn(|lsm| {
            // The failure is kept in `health`; writers that need the room get it.
            let _ = flush::run(lsm);
        });
    }

    /// The log from which on the memtables after `memtable` are logged. Where there is no such log yet a number is
    /// taken for it: under the log's lock, so that the log to come has a higher one.
    pub(super) fn first_log_after(&self, memtable: &Arc<MemTable>) -> u64 {
        let _log = self.log.lock();
        let readable = self.readable();
        let newer = readable.memtables.iter().take_while(|m| !Arc::ptr_eq(m, memtable));
        match newer.map(|m| m.first_log()).filter(|&n| n > 0).last() {
            Some(number) => number,
            None => self.new_file_number(),
        }
    }
}
