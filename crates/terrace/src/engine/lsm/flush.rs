//! Flushing a memtable: to a table of level 0, and out of DRAM.
//!
//! Memtables are flushed oldest first. The table, the end of what it holds and the end of the memtable's logs go into
//! the manifest as one group, so after a crash a flush has happened or not.

use std::sync::Arc;

use parking_lot::MutexGuard;
use terrace_base::Result;
use terrace_table::Cursor;

use super::{Change, Lsm, MemTable};
use crate::levels::merge::Survivors;
use crate::levels::output::{Below, Outputs, Written};
use crate::manifest::Edit;

/// The right to flush. Whoever waits for room is told when it is given back, however that comes about.
pub(super) struct Flushing<'a> {
    lsm: &'a Lsm,
    lock: Option<MutexGuard<'a, ()>>,
}

impl<'a> Flushing<'a> {
    /// Waits for whoever has it.
    pub fn claim(lsm: &'a Lsm) -> Self {
        Flushing { lsm, lock: Some(lsm.flushing.lock()) }
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        // In this order: who is woken looks whether the lock is free.
        self.lock = None;
        self.lsm.room.notify();
    }
}

/// Flushes immutable memtables, oldest first, until there is none. One caller works, others wait.
pub(super) fn run(lsm: &Lsm) -> Result<()> {
    let outcome = run_alone(lsm);
    if outcome.is_ok() {
        lsm.spawn_compaction();
    }
    outcome
}

fn run_alone(lsm: &Lsm) -> Result<()> {
    let _alone = Flushing::claim(lsm);
    let mut outcome = Ok(());
    while let Some(memtable) = lsm.readable().oldest_immutable().cloned() {
        // What could not be removed before may be the room that is missing.
        lsm.sweep();
        outcome = lsm.core.health.check().and_then(|()| flush(lsm, &memtable));
        if let Err(e) = &outcome {
            lsm.core.counters.background_errors.add(1);
            lsm.core.health.fail(e.clone());
            break;
        }
        lsm.core.health.recover();
        lsm.room.notify();
    }
    lsm.sweep();
    outcome
}

fn flush(lsm: &Lsm, memtable: &Arc<MemTable>) -> Result<()> {
    let tables = write_tables(lsm, memtable)?;
    let bytes: u64 = tables.iter().map(|t| t.meta.file_bytes).sum();
    let mut change = Change::default();
    change.add(0, tables);
    change.edits.push(Edit::FlushedSeq(memtable.list.max_seq()));
    change.edits.push(Edit::LogNumber(lsm.first_log_after(memtable)));
    lsm.install(change, Some(memtable))?;
    lsm.core.counters.flushes.add(1);
    lsm.core.counters.flush_bytes.add(bytes);
    lsm.log.drop_old(&lsm.manifest)
}

fn write_tables(lsm: &Lsm, memtable: &MemTable) -> Result<Vec<Written>> {
    // Listed after everything in the memtable became visible: a later snapshot needs nothing older.
    let held = lsm.core.snapshots.list();
    let levels = lsm.readable().levels.clone();
    // Older versions may lie in any table; those of older memtables are in tables by now.
    let mut survivors = Survivors::new(&held, &levels, 0);
    let options = lsm.output_options(lsm.policy.outputs(0).run_bytes);
    let mut outputs = Outputs::new(&lsm.core, &lsm.manifest, options, Below::default());
    let mut cursor = memtable.list.cursor();
    cursor.seek_first()?;
    while cursor.valid() {
        if survivors.keeps(cursor.key(), cursor.seq(), cursor.kind()) {
            outputs.add(cursor.key(), cursor.seq(), cursor.kind(), cursor.value_bytes())?;
        }
        cursor.next()?;
    }
    outputs.finish()
}
