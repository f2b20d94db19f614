//! A change of runs: what a flush or a compaction has written, moved and done with.
//!
//! 1. It goes into the manifest as one group, so after a crash it has been made or not.
//! 2. Runs that were added stay once the manifest has them. Where it has failed to take them a later group decides; where
//!    it was never asked they go with the change.

use terrace_base::Result;
use terrace_table::TableMeta;

use super::output::Written;
use super::run::{Made, Run, Runs};
use crate::manifest::{Edit, Manifest};

/// A run that a change adds.
#[derive(Debug)]
struct Added {
    level: usize,
    meta: TableMeta,
    made: Made,
}

/// A change of runs, as it is put together.
#[derive(Debug, Default)]
pub(crate) struct RunChange {
    added: Vec<Added>,
    removed: Vec<u64>,
    moved: Vec<(u64, usize)>,
    /// Runs among those added that hold versions which only snapshots keep.
    keeping: Vec<u64>,
}

impl RunChange {
    /// Adds what was written to `level`.
    pub fn add(&mut self, level: usize, written: Vec<Written>) {
        for Written { meta, made, keeps_old, .. } in written {
            self.keeping.extend(keeps_old.then_some(meta.number));
            self.added.push(Added { level, meta, made });
        }
    }

    /// Takes the runs `numbers` away.
    pub fn remove(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.removed.extend(numbers);
    }

    /// Puts the runs `numbers` on `level` as they are.
    pub fn move_to(&mut self, level: usize, numbers: impl IntoIterator<Item = u64>) {
        self.moved.extend(numbers.into_iter().map(|number| (number, level)));
    }

    /// The runs that are added, by level.
    pub fn added(&self) -> impl Iterator<Item = (usize, &TableMeta)> {
        self.added.iter().map(|added| (added.level, &added.meta))
    }

    /// The runs that are taken away.
    pub fn removed(&self) -> &[u64] {
        &self.removed
    }

    /// The runs that come to other levels, with those.
    pub fn moved(&self) -> &[(u64, usize)] {
        &self.moved
    }

    /// Opens the runs that are added. They are whole and durable: nothing fails once the manifest has them.
    pub fn open(&self, runs: &Runs) -> Result<Vec<Run>> {
        let open = |added: &Added| match &added.made {
            Made::File(_) => runs.made(&added.meta),
            Made::List(list) => Ok(Run::List(list.run.clone())),
        };
        self.added.iter().map(open).collect()
    }

    /// What the manifest is told.
    fn edits(&self) -> Vec<Edit> {
        let mut edits: Vec<Edit> = self.removed.iter().map(|&number| Edit::RemoveTable { number }).collect();
        edits.extend(
            self.moved.iter().map(|&(number, level)| Edit::MoveTable { number, level: level as u32 }),
        );
        edits.extend(self.added.iter().map(|Added { level, meta, made }| {
            let (level, meta) = (*level as u32, meta.clone());
            match made {
                Made::File(_) => Edit::AddTable { level, job: 0, meta },
                Made::List(list) => Edit::AddList { level, place: list.place(), meta },
            }
        }));
        if !self.keeping.is_empty() {
            edits.push(Edit::AddCandidates(self.keeping.clone()));
        }
        edits
    }

    /// Makes the change, and `more` with it, in the manifest.
    pub fn commit(&mut self, manifest: &Manifest, more: Vec<Edit>) -> Result<()> {
        let edits = [self.edits(), more].concat();
        let made = self.added.drain(..).map(|added| added.made);
        match manifest.apply(&edits) {
            Ok(()) => made.for_each(Made::keep),
            Err(e) => {
                made.for_each(Made::keep_until_decided);
                return Err(e);
            }
        }
        Ok(())
    }
}
