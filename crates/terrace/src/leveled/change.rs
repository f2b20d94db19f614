//! A change of the runs: what a flush or a compaction has written, moved and done with.
//!
//! It goes into the manifest as one group, so after a crash it has been made or not; readers are shown it after that.

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

/// A change, as it is put together.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// What else the manifest is told.
    pub edits: Vec<Edit>,
    runs: RunChange,
    written_bytes: u64,
    pub relocations: Relocations,
}

/// Where versions have come to lie that the stage asked about.
#[derive(Debug, Default)]
pub(crate) struct Relocations {
    pub hints: Vec<BlockHint>,
    /// Keys that lay in runs which were taken away.
    pub moved: Vec<Vec<u8>>,
    /// Runs that were taken away.
    pub gone: BTreeSet<u64>,
}

impl Change {
    /// Adds what a flush or a compaction has written to `level`.
    pub fn add(&mut self, level: usize, mut runs: Vec<Written>) {
        for run in &mut runs {
            self.written_bytes += run.written_bytes;
            self.relocations.hints.append(&mut run.hints);
        }
        self.runs.add(level, runs);
    }

    /// Takes the runs `numbers` away.
    pub fn remove(&mut self, numbers: impl Iterator<Item = u64>) {
        let numbers: Vec<u64> = numbers.collect();
        self.relocations.gone.extend(&numbers);
        self.runs.remove(numbers);
    }

    /// Puts the runs `numbers` on `level`.
    pub fn move_to(&mut self, level: usize, numbers: impl Iterator<Item = u64>) {
        self.runs.move_to(level, numbers);
    }

    /// Bytes that were written for the runs added.
    pub fn bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The runs added.
    pub fn metas(&self) -> impl Iterator<Item = &TableMeta> {
        self.runs.added().map(|(_, meta)| meta)
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// Applies `change` and shows its runs to readers; `leaves` is the memtable whose contents they are. The new
    /// runs, which are whole and durable, are looked at first, so that nothing fails once they are in the manifest.
    pub(super) fn install(&self, mut change: Change, leaves: Option<&Arc<B::Memtable>>) -> Result<()> {
        let relocations = std::mem::take(&mut change.relocations);
        self.install_runs(change, leaves)?;
        B::Stage::placed(self, &relocations);
        Ok(())
    }

    fn install_runs(&self, mut change: Change, leaves: Option<&Arc<B::Memtable>>) -> Result<()> {
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

    /// The runs on their levels once `change` has been made; `made` are those that it adds.
    fn levels_after(&self, change: &RunChange, made: &[Run]) -> Result<Levels> {
        let state = self.manifest.state();
        let mut levels = (*self.readable().levels).clone();
        let level = |number| state.tables.get(number).map_or(0, |table| table.level as usize);
        // In this order: what leaves a level makes room for what comes.
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
