//! A change of the runs: what a flush or a compaction has written, moved and done with.
//!
//! It goes into the manifest as one group, so after a crash it has been made or not; readers are shown it after that.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrace_base::Result;
use terrace_table::TableMeta;

use super::{LeveledTree, Readable, Stage, WriteBuffer};
use crate::levels::Levels;
use crate::levels::output::{Noted, Written};
use crate::levels::run::{Made, Run};
use crate::manifest::Edit;

/// A change, as it is put together.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub edits: Vec<Edit>,
    /// Runs among those added that hold versions which only snapshots keep.
    keeping: Vec<u64>,
    /// What holds those added.
    made: Vec<Made>,
    written_bytes: u64,
    pub lie: Lie,
}

/// Where versions have come to lie that the stage asked about.
#[derive(Debug, Default)]
pub(crate) struct Lie {
    pub noted: Vec<Noted>,
    /// Keys that lay in runs which were taken away.
    pub moved: Vec<Vec<u8>>,
    /// Runs that were taken away.
    pub gone: BTreeSet<u64>,
}

impl Change {
    /// Adds what a flush or a compaction has written to `level`.
    pub fn add(&mut self, level: usize, runs: Vec<Written>) {
        for run in runs {
            self.keeping.extend(run.keeps_old.then_some(run.meta.number));
            let (level, meta) = (level as u32, run.meta);
            self.edits.push(match &run.made {
                Made::File(_) => Edit::AddTable { level, job: 0, meta },
                Made::List(list) => Edit::AddList { level, place: list.place(), meta },
            });
            self.made.push(run.made);
            self.written_bytes += run.written_bytes;
            self.lie.noted.extend(run.noted);
        }
    }

    /// Takes the runs `numbers` away.
    pub fn remove(&mut self, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.edits.push(Edit::RemoveTable { number });
            self.lie.gone.insert(number);
        }
    }

    /// Puts the runs `numbers` on `level`.
    pub fn move_to(&mut self, level: usize, numbers: impl Iterator<Item = u64>) {
        let level = level as u32;
        self.edits.extend(numbers.map(|number| Edit::MoveTable { number, level }));
    }

    /// Bytes that were written for the runs added.
    pub fn bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The runs added.
    pub fn metas(&self) -> impl Iterator<Item = &TableMeta> {
        self.edits.iter().filter_map(|edit| match edit {
            Edit::AddTable { meta, .. } | Edit::AddList { meta, .. } => Some(meta),
            _ => None,
        })
    }
}

impl<B: WriteBuffer> LeveledTree<B> {
    /// Applies `change` and shows its runs to readers; `leaves` is the memtable whose contents they are. The new
    /// runs, which are whole and durable, are looked at first, so that nothing fails once they are in the manifest.
    pub(super) fn install(&self, mut change: Change, leaves: Option<&Arc<B::Memtable>>) -> Result<()> {
        let lie = std::mem::take(&mut change.lie);
        self.install_runs(change, leaves)?;
        B::Stage::placed(self, &lie);
        Ok(())
    }

    fn install_runs(&self, mut change: Change, leaves: Option<&Arc<B::Memtable>>) -> Result<()> {
        let run = |(made, meta): (&Made, &TableMeta)| match made {
            Made::File(_) => self.runs.made(meta),
            Made::List(list) => Ok(Run::List(list.run.clone())),
        };
        let made: Vec<Run> = change.made.iter().zip(change.metas()).map(run).collect::<Result<_>>()?;
        let _alone = self.changing.lock();
        let holders = std::mem::take(&mut change.made);
        let levels = self.levels_after(&change, &made)?;
        if let Err(e) = self.manifest.apply(&self.with_candidates(&change)) {
            // Whether they are in it a crash would decide: they stay until that is settled.
            holders.into_iter().for_each(Made::keep_until_decided);
            return Err(e);
        }
        holders.into_iter().for_each(Made::keep);
        self.runs.insert(made);
        let levels = Arc::new(levels);
        self.note_load(&levels);
        self.readable.rcu(|now| {
            let mut memtables = now.memtables.clone();
            memtables.retain(|m| leaves.is_none_or(|gone| !Arc::ptr_eq(m, gone)));
            Readable { memtables, levels: levels.clone() }
        });
        self.fit_cache();
        self.jobs.progressed();
        Ok(())
    }

    /// The runs on their levels once `change` has been made; `made` are those that it adds.
    fn levels_after(&self, change: &Change, made: &[Run]) -> Result<Levels> {
        let state = self.manifest.state();
        let mut levels = (*self.readable().levels).clone();
        let level = |number| state.tables.get(number).map_or(0, |table| table.level as usize);
        // In this order: what leaves a level makes room for what comes.
        for edit in &change.edits {
            if let Edit::RemoveTable { number } | Edit::MoveTable { number, .. } = edit {
                levels.remove(level(number), &self.runs.get(*number)?);
            }
        }
        for edit in &change.edits {
            if let Edit::MoveTable { number, level } = edit {
                levels.insert(*level as usize, self.runs.get(*number)?);
            }
        }
        let added = change.edits.iter().filter_map(|edit| match edit {
            Edit::AddTable { level, .. } | Edit::AddList { level, .. } => Some(*level as usize),
            _ => None,
        });
        added.zip(made).for_each(|(level, run)| levels.insert(level, run.clone()));
        Ok(levels)
    }

    /// The edits of `change` with the list of runs that hold what only snapshots keep.
    fn with_candidates(&self, change: &Change) -> Vec<Edit> {
        let mut edits = change.edits.clone();
        if !change.keeping.is_empty() {
            let mut candidates = (*self.manifest.state().candidates).clone();
            candidates.extend(&change.keeping);
            for edit in &change.edits {
                if let Edit::RemoveTable { number } = edit {
                    candidates.remove(number);
                }
            }
            edits.push(Edit::Candidates(candidates.into_iter().collect()));
        }
        edits
    }
}
