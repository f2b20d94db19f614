//! What opening has to do: logs back into a memtable, files that nobody refers to out of the way.
//!
//! What a killed process left in files is whole, but its last sync may have failed: before anything is logged that rests
//! on it, it goes elsewhere. So does what a power cut has left of the logs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::exec::Lane;
use terrace_base::{Error, ErrorKind, Result};
use terrace_table::Kind;

use super::open::Found;
use super::{Lsm, MemTable, Readable, flush};
use crate::batch::WriteBatch;
use crate::commit_log::{Gathered, Replayed, Source, replay};
use crate::manifest::Edit;
use crate::memtable::NODE_OVERHEAD_BYTES;

/// More logs than this after a recovery, and their memtable is flushed at once.
const FEW_LOGS: usize = 1;

/// A disk without room is no reason not to open.
fn unless_full(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(e) if e.kind() == ErrorKind::NoSpace => Ok(()),
        outcome => outcome,
    }
}

impl Lsm {
    /// Brings a just opened database to rest; returns the last sequence number in it. `damaged` is asked about each
    /// damaged log; what it held from there on, and all that follows, is left out if that is no error.
    pub(super) fn recover(
        &self,
        found: Found,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Replayed> {
        let listing = self.manifest.listing()?;
        let in_pool = self.log.gather();
        let files = self.log.files(listing.logs.clone());
        let source: &dyn Source = match gathered.or(in_pool.as_ref()) {
            Some(gathered) => gathered,
            None => &files,
        };
        let logs = source.numbers();
        self.reserve_numbers(logs.iter().chain(&listing.dead_tables).max().copied());
        if let Some(pool) = &in_pool
            && found == Found::Closed
        {
            pool.check_end()?;
        }
        let state = self.manifest.state();
        let replayed = replay(source, &state, damaged, &mut |number, first_seq, ops, reached| {
            self.replay_group(number, first_seq, ops, reached)
        })?;
        self.applied.fetch_max(self.last_seq(), Ordering::AcqRel);
        if self.core.options.read_only {
            return Ok(replayed);
        }
        self.core.files.remove_tables(listing.dead_tables);
        self.remove_leftovers()?;
        if in_pool.is_none() && (replayed.gap || found == Found::Crashed && replayed.logs > 0) {
            self.log.distrust();
        }
        self.log.drop_old(&self.manifest)?;
        if logs.len() > FEW_LOGS && !self.readable().active().list.is_empty() {
            self.rotate_memtable()?;
        }
        self.reclaim(found == Found::Crashed);
        self.spawn_compaction();
        Ok(replayed)
    }

    /// Notes that everything is in tables, and lets go of all logs; nothing is written meanwhile.
    pub(super) fn forget_logs(&self) -> Result<()> {
        let number = self.new_file_number();
        self.manifest.apply(&[Edit::FlushedSeq(self.last_seq()), Edit::LogNumber(number)])?;
        self.log.drop_old(&self.manifest)
    }

    /// The last sequence number in tables and memtables.
    pub(super) fn last_seq(&self) -> u64 {
        let state = self.manifest.state();
        let tables = state.tables.values().map(|t| t.meta.max_seq).max().unwrap_or(0);
        tables.max(state.flushed_seq).max(self.applied.load(Ordering::Acquire))
    }

    /// Numbers of files that were made and forgotten are not given out again.
    fn reserve_numbers(&self, highest: Option<u64>) {
        let next = self.manifest.state().next_file;
        if let Some(highest) = highest.filter(|n| *n >= next) {
            self.manifest.take_numbers(highest + 1 - next);
        }
    }

    /// Removes what is no longer needed.
    fn remove_leftovers(&self) -> Result<()> {
        self.core.files.remove(self.manifest.listing()?.leftovers);
        Ok(())
    }

    /// After a crash, frees what was allocated in the pool and belongs to no log.
    fn reclaim(&self, crashed: bool) {
        let wanted = self.pool.as_ref().is_some_and(|pool| crashed || pool.needs_reclaim());
        if wanted {
            self.spawn(Lane::Tidying, |lsm| {
                if let Err(e) = lsm.reclaim_now() {
                    lsm.core.health.fail(e);
                }
            });
        }
    }

    fn reclaim_now(&self) -> Result<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        // Nobody frees a log meanwhile, so nothing that is found has an owner.
        self.log.with_marked(pool.marks(), |marks| {
            pool.reclaim(marks)?;
            pool.release_reclaimed().map(drop)
        })
    }

    /// Puts a group's operations after `reached` into the memtable; makes room first where it is full.
    fn replay_group(&self, number: u64, first_seq: u64, ops: &WriteBatch, reached: u64) -> Result<()> {
        let need = ops.encoded().len() as u64 + ops.len() as u64 * NODE_OVERHEAD_BYTES;
        let active = self.readable().active().clone();
        let used = active.list.bytes_used();
        if used > 0 && used + need > self.core.options.lsm.memtable_bytes {
            self.set_active_aside();
            self.readable().active().logged_from(number);
            if !self.core.options.read_only {
                // Without room it stays in memory, and in its logs.
                unless_full(flush::run(self))?;
            }
        }
        let readable = self.readable();
        let active = readable.active();
        active.logged_from(number);
        let mut writer = active.list.writer();
        for (op, seq) in ops.ops().zip(first_seq..).filter(|(_, seq)| *seq > reached) {
            let value = if op.kind == Kind::Put { op.value } else { &[] };
            writer.insert(op.key, seq, op.kind, value);
        }
        self.applied.store(first_seq + ops.len() as u64 - 1, Ordering::Release);
        Ok(())
    }

    /// Makes what was replayed so far immutable. Unlike a rotation this leaves the logs as they are.
    fn set_active_aside(&self) {
        let next = MemTable::new(self.core.options.lsm.memtable_bytes);
        self.readable.rcu(|now| {
            let memtables: Vec<Arc<MemTable>> =
                std::iter::once(&next).chain(&now.memtables).cloned().collect();
            Readable { memtables, levels: now.levels.clone() }
        });
    }
}
