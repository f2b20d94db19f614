//! A change of the runs: those that a flush or a compaction has written, moved and removed.
//!
//! It goes into the manifest as one group, so after a crash all or nothing of it has happened; readers see it
//! after that.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrace_base::Result;
use terrace_table::TableMeta;

use super::{LeveledTree, Readable, Stage, WriteBuffer};
use crate::levels::Levels;
use crate::levels::change::RunChange;
use crate::levels::output::{BlockHint, Written};
use crate::levels::run::Run;
use crate::manifest::Edit;

/// A change under construction.
#[derive(Debug, Default)]
pub(crate) struct LevelsEdit {
    /// Further edits for the manifest.
    pub edits: Vec<Edit>,
    runs: RunChange,
    written_bytes: u64,
    pub relocations: Relocations,
}

/// The new places of versions that the stage asked about.
#[derive(Debug, Default)]
pub(crate) struct Relocations {
    pub hints: Vec<BlockHint>,
    /// Keys that were in removed runs.
    pub moved: Vec<Vec<u8>>,
    /// Removed runs.
    pub gone: BTreeSet<u64>,
}

impl LevelsEdit {
    /// Adds the runs that a flush or a compaction has written to `level`.
    pub fn add(&mut self, level: usize, mut runs: Vec<Written>) {
        for run in &mut runs {
            self.written_bytes += run.written_bytes;
            self.relocations.hints.append(&mut run.hints);
        }
        self.runs.add(level, runs);
    }

    /// Removes the runs `numbers`.
    pub fn remove(&mut self, numbers: impl Iterator<Item = u64>) {
        let numbers: Vec<u64> = numbers.collect();
        self.relocations.gone.extend(&numbers);
        self.runs.remove(numbers);
    }

    /// Moves the runs `numbers` to `level`.
    pub fn move_to(&mut self, level: usize, numbers: impl Iterator<Item = u64>) {
        self.runs.move_to(level, numbers);
    }

    /// Bytes written for the added runs.
    pub fn bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The runs added.
    pub fn metas(&self) -> impl Iterator<Item = &TableMeta> {
        self.runs.added().map(|(_, meta)| meta)
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// Applies `change` and shows its runs to readers; `leaves` is the memtable whose contents they hold. The
    /// new runs, which are whole and durable, are opened first, so that nothing fails once they are in the
    /// manifest.
    pub(super) fn install(&self, mut change: LevelsEdit, leaves: Option<&Arc<B::Memtable>>) -> Result<()> {
        let relocations = std::mem::take(&mut change.relocations);
        self.install_runs(change, leaves)?;
        B::Stage::placed(self, &relocations);
        Ok(())
    }

    fn install_runs(&self, mut change: LevelsEdit, leaves: Option<&Arc<B::Memtable>>) -> Result<()> {
        let made = change.runs.open(&self.runs)?;
        let _alone = self.changing.lock();
        let levels = Arc::new(self.levels_after(&change.runs, &made)?);
        change.runs.commit(&self.manifest, std::mem::take(&mut change.edits))?;
        self.runs.insert(made);
        self.note_load(&levels);
        self.readable.rcu(|now| {
            let memtables = now.memtables.without(|m| leaves.is_some_and(|gone| Arc::ptr_eq(m, gone)));
            Readable { memtables, levels: levels.clone() }
        });
        self.fit_cache();
        self.jobs.progressed();
        Ok(())
    }

    /// The runs on their levels after `change`; `made` are those that it adds.
    fn levels_after(&self, change: &RunChange, made: &[Run]) -> Result<Levels> {
        let state = self.manifest.state();
        let mut levels = (*self.readable().levels).clone();
        let level = |number| state.tables.get(number).map_or(0, |table| table.level as usize);
        // In this order: runs that leave a level make room for those that come.
        for number in change.removed().iter().chain(change.moved().iter().map(|(number, _)| number)) {
            levels.remove(level(number), &self.runs.get(*number)?);
        }
        for (number, level) in change.moved() {
            levels.insert(*level, self.runs.get(*number)?);
        }
        change.added().zip(made).for_each(|((level, _), run)| levels.insert(level, run.clone()));
        Ok(levels)
    }
}
