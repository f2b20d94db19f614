//! A change of runs: those that a flush or a compaction has written, moved and removed.
//!
//! 1. It goes into the manifest as one group, so after a crash all or nothing of it has happened.
//! 2. Added runs stay once the manifest has them. If the manifest failed to take them, a later group decides;
//!    if it was never asked, they are removed with the change.

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

/// A change of runs under construction.
#[derive(Debug, Default)]
pub(crate) struct RunChange {
    added: Vec<Added>,
    removed: Vec<u64>,
    moved: Vec<(u64, usize)>,
    /// Added runs that hold versions which only snapshots keep.
    keeping: Vec<u64>,
}

impl RunChange {
    /// Adds the runs written to `level`.
    pub fn add(&mut self, level: usize, written: Vec<Written>) {
        for Written { meta, made, keeps_old, .. } in written {
            self.keeping.extend(keeps_old.then_some(meta.number));
            self.added.push(Added { level, meta, made });
        }
    }

    /// Removes the runs `numbers`.
    pub fn remove(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.removed.extend(numbers);
    }

    /// Moves the runs `numbers` to `level` unchanged.
    pub fn move_to(&mut self, level: usize, numbers: impl IntoIterator<Item = u64>) {
        self.moved.extend(numbers.into_iter().map(|number| (number, level)));
    }

    /// The added runs, by level.
    pub fn added(&self) -> impl Iterator<Item = (usize, &TableMeta)> {
        self.added.iter().map(|added| (added.level, &added.meta))
    }

    /// The removed runs.
    pub fn removed(&self) -> &[u64] {
        &self.removed
    }

    /// The moved runs, with their new levels.
    pub fn moved(&self) -> &[(u64, usize)] {
        &self.moved
    }

    /// Opens the added runs. They are whole and durable: nothing fails once the manifest has them.
    pub fn open(&self, runs: &Runs) -> Result<Vec<Run>> {
        let open = |added: &Added| match &added.made {
            Made::File(_) => runs.made(&added.meta),
            Made::List(list) => Ok(Run::List(list.run.clone())),
        };
        self.added.iter().map(open).collect()
    }

    /// The edits for the manifest.
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

    /// Commits the change, with the edits `more`, to the manifest.
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
