//! The work of opening: replaying logs into a memtable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};

use super::{LoggedMemtable, LoggedMemtables};
use crate::batch::WriteBatch;
use crate::commit_log::{Gathered, LogHome, Opened, Replayed, unless_full};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::leveled::{LeveledTree, Memtable, Stage};
use crate::pool::StartState;

/// If more logs than this are left after a recovery, their memtable is flushed at once.
const FEW_LOGS: usize = 1;

/// Opens or creates the database of an engine whose log lies as `home` says. `assemble` makes the engine of its opened
/// parts, and `prepare` sends work that is done after the first answers. Returns the engine and the last sequence
/// number in it.
pub(crate) fn open<S: Stage>(
    core: Arc<Core>,
    home: &LogHome,
    assemble: impl FnOnce(
        Arc<Core>,
        Opened,
        Option<&Gathered>,
        &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Arc<LeveledTree<LoggedMemtables<S>>>>,
    prepare: impl FnOnce(&LeveledTree<LoggedMemtables<S>>),
) -> Result<(Arc<dyn Engine>, u64)> {
    let opened = home.open(&core)?;
    let tree = assemble(core, opened, None, &mut Err)?;
    tree.verify_pool();
    prepare(&tree);
    let last = tree.last_seq();
    Ok((tree, last))
}

impl<S: Stage> LeveledTree<LoggedMemtables<S>> {
    /// Brings a just opened database to rest. `gathered` are its logs if they lie elsewhere. `damaged` is asked about
    /// each damaged log; if it returns no error, the rest of that log and all that follows are left out.
    pub fn recover(
        &self,
        state: StartState,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        let replayed = self.jobs.closed_unless(self.replay_all(state, gathered, damaged))?;
        let _ = self.opened.set(match state {
            StartState::New => "created a new database".into(),
            state => {
                let how = if state == StartState::Closed { "a clean shutdown" } else { "a crash" };
                format!("after {how} replayed {} groups of {} logs", replayed.groups, replayed.logs)
            }
        });
        Ok(())
    }

    fn replay_all(
        &self,
        state: StartState,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Replayed> {
        let log = &self.buffer.log;
        let logged = |known| log.gather().map_or(Some(known), |logs| logs.reached(known));
        self.buffer.stage.prove(&self.manifest.state(), logged)?;
        let listing = self.manifest.listing()?;
        let mut apply =
            |number, first_seq, ops: &WriteBatch, reached| self.replay_group(number, first_seq, ops, reached);
        let replayed = log.replay((&self.manifest, &listing), state, gathered, damaged, &mut apply)?;
        self.applied.fetch_max(self.last_seq(), Ordering::AcqRel);
        self.runs.lists().map_or(Ok(()), |lists| lists.prove(self.last_seq()))?;
        if self.core.options.read_only {
            return Ok(replayed);
        }
        self.core.files.forget_ingests(&listing);
        if self.manifest.try_decide()? {
            self.remove_leftovers(listing.dead_tables)?;
            log.drop_old(&self.manifest)?;
            self.sweep();
        } else {
            self.core.files.remove_when_decided(listing.dead_tables);
        }
        if replayed.logs > FEW_LOGS && !self.readable().active().is_empty() {
            self.rotate_memtable()?;
        }
        self.reclaim_after(state == StartState::Crashed);
        self.spawn_compaction();
        Ok(replayed)
    }

    /// Notes that everything is in runs, and drops all logs; nothing is written meanwhile.
    pub fn forget_logs(&self) -> Result<()> {
        self.buffer.log.forget_all(&self.manifest, self.last_seq())
    }

    /// Puts a group's operations after `reached` into the memtable; makes room first if that is full.
    fn replay_group(&self, number: u64, first_seq: u64, ops: &WriteBatch, reached: u64) -> Result<()> {
        let need = ops.encoded().len() as u64 + ops.len() as u64 * LoggedMemtable::ENTRY_BYTES;
        let active = self.readable().active().clone();
        let used = active.bytes_used();
        if used > 0 && used + need > self.settings.memtable_bytes {
            self.set_active_aside();
            self.readable().active().first_log.note(number);
            if !self.core.options.read_only {
                // Without room it stays in memory, and in its logs.
                unless_full(self.run_flushes())?;
            }
        }
        let readable = self.readable();
        let active = readable.active();
        active.first_log.note(number);
        let newer = ops.ops().zip(first_seq..).filter(|(_, seq)| *seq > reached);
        active.insert(newer);
        self.applied.store(first_seq + ops.len() as u64 - 1, Ordering::Release);
        Ok(())
    }
}
