//! Flushing a memtable out of DRAM: to level 0, or as the stage decides.
//!
//! Memtables are flushed oldest first. The manifest takes the run, the last sequence number in it and the end
//! of the memtable's log as one group, so after a crash a flush has happened or not.

use std::ops::RangeInclusive;
use std::sync::Arc;

use terrace_base::Result;
use terrace_table::Kind;

use super::change::LevelsEdit;
use super::{LeveledTree, Memtable, Stage, WriteBuffer};
use crate::compaction::leveled::RunKind;
use crate::levels::list_writer::ListJob;
use crate::levels::merge::Survivors;
use crate::levels::output::{Below, Outputs, Wanted};
use crate::manifest::Edit;

impl<B: WriteBuffer> LeveledTree<B> {
    /// Flushes immutable memtables, oldest first, until none is left. One caller works, the others wait.
    pub(super) fn run_flushes(&self) -> Result<()> {
        let next = || Ok(self.readable().memtables.oldest_immutable().cloned());
        let outcome = self.flushes.run(&self.core, &self.manifest, next, |memtable| self.flush(memtable));
        if outcome.is_ok() {
            self.spawn_compaction();
        }
        outcome
    }

    fn flush(&self, memtable: &Arc<B::Memtable>) -> Result<()> {
        self.buffer.make_ready(&self.manifest);
        // Successful flushes start a compaction: lists that may go must not keep this one from its room.
        self.runs.lists().iter().for_each(|lists| lists.sweep(&self.manifest));
        let mut change = B::Stage::flush(self, memtable)?;
        let bytes = change.bytes();
        change.edits.push(Edit::FlushedSeq(memtable.max_seq()));
        change.edits.extend(B::forgotten(self, memtable));
        self.install(change, Some(memtable))?;
        self.core.counters.count_flush(1, 0, bytes);
        // The log that was ready may have been taken meanwhile.
        self.buffer.make_ready(&self.manifest);
        self.buffer.forget(&self.manifest)?;
        if let Err(error) = B::Stage::evict(self) {
            // The memtable is gone, and the stage is merely fuller than it should be. The next flush tries
            // again.
            tracing::warn!(%error, "what was to leave the stage could not");
            self.core.put_off(&error);
        }
        Ok(())
    }

    /// Puts what a stage has written onto level 0, before anything that it replaces leaves the stage. Returns the
    /// highest number of a run that this adds.
    pub fn put(&self, change: LevelsEdit) -> Result<Option<u64>> {
        let (bytes, number) = (change.bytes(), change.metas().map(|meta| meta.number).max());
        if number.is_some() {
            self.install(change, None)?;
            self.core.counters.count_flush(0, 0, bytes);
        }
        Ok(number)
    }

    /// A file number that the manifest passes by this, and had not passed before.
    pub fn pass_number(&self) -> Result<u64> {
        let number = self.manifest.take_numbers(1).start;
        self.manifest.apply(&[Edit::NextFile(number + 1)])?;
        Ok(number)
    }

    /// Writes those of some versions that a reader may still see to level 0. `versions` receives a function
    /// that takes them in order: keys ascending, each key's newest version first. No version older than any
    /// of them lies above level 0. It may be called twice.
    pub fn to_level_0(&self, mut versions: impl FnMut(&mut Add<'_>) -> Result<()>) -> Result<LevelsEdit> {
        let Some(lists) = self.runs.lists() else { return self.to_level_0_noting(None, versions) };
        match self.write_level_0(RunKind::List, None, &mut versions) {
            // Output without room in persistent memory becomes a table.
            Err(e) if e.is_out_of_space() && lists.options.tiering.falls_back() => {
                self.write_level_0(RunKind::Table, None, versions)
            }
            outcome => outcome,
        }
    }

    /// The same into tables; notes the places of the keys that are `wanted`.
    pub fn to_level_0_noting<'a>(
        &'a self,
        wanted: Option<Box<Wanted<'a>>>,
        versions: impl FnOnce(&mut Add<'_>) -> Result<()>,
    ) -> Result<LevelsEdit> {
        self.write_level_0(RunKind::Table, wanted, versions)
    }

    fn write_level_0<'a>(
        &'a self,
        kind: RunKind,
        wanted: Option<Box<Wanted<'a>>>,
        versions: impl FnOnce(&mut Add<'_>) -> Result<()>,
    ) -> Result<LevelsEdit> {
        // Listed after all of them became visible: a later snapshot needs nothing older.
        let held = self.core.snapshots.list();
        let levels = self.readable().levels.clone();
        // Older versions may lie in any run; those of older memtables are in runs by now.
        let mut survivors = Survivors::new(&held, |key: &[u8], _: RangeInclusive<u64>| levels.lacks(0, key));
        let run_bytes = self.policy.outputs(0).run_bytes;
        let (core, manifest, below) = (&self.core, &self.manifest, Below::default());
        let outputs = match self.runs.lists().filter(|_| kind == RunKind::List) {
            Some(store) => {
                Outputs::lists(core, manifest, store, ListJob { run_bytes, ..ListJob::default() }, below)
            }
            None => Outputs::new(core, manifest, self.writer_options(run_bytes), below),
        };
        let mut outputs = outputs.noting(wanted);
        versions(&mut |key, seq, kind, value| match survivors.keeps(key, seq, kind) {
            true => outputs.add(key, seq, kind, value),
            false => Ok(()),
        })?;
        let mut change = LevelsEdit::default();
        change.add(0, outputs.finish()?);
        Ok(change)
    }
}

/// Takes a version: key, sequence number, kind, value.
pub(crate) type Add<'a> = dyn FnMut(&[u8], u64, Kind, &[u8]) -> Result<()> + 'a;
