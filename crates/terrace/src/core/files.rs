//! Removing files, of which some have to wait.
//!
//! 1. A file that cannot be removed is tried again, whenever a job begins or ends, and goes when it can.
//! 2. What is to go together goes in order: behind a file that stays, the rest of its row stays, too.
//! 3. A table that a failed group of edits names stays until the manifest has decided about the group.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_disk::{Access, Fs, WriteFile};
use terrace_table::{BlockCache, Table};

use crate::manifest::{FileName, Manifest};

/// The files of a store.
pub(crate) struct Files {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    waiting: Mutex<Waiting>,
}

/// What could not be removed yet.
#[derive(Debug, Default)]
struct Waiting {
    /// Rows of files, each of which goes from its end.
    rows: Vec<Vec<PathBuf>>,
    /// Tables whose place in the manifest a failed group has left undecided.
    undecided: BTreeSet<u64>,
}

impl Files {
    /// The files in `dir` of `fs`; nothing waits to be removed.
    pub fn new(fs: Arc<dyn Fs>, dir: &Path) -> Arc<Files> {
        Arc::new(Files { fs, dir: dir.to_path_buf(), waiting: Mutex::default() })
    }

    /// Where table `number` lies.
    pub fn table(&self, number: u64) -> PathBuf {
        FileName::Table(number).path(&self.dir)
    }

    /// Creates the file of table `number`.
    pub fn create_table(&self, number: u64) -> Result<Box<dyn WriteFile>> {
        self.fs.create(&self.table(number))
    }

    /// Opens table `number`.
    pub fn open_table(&self, number: u64, cache: &Arc<BlockCache>) -> Result<Arc<Table>> {
        Table::open(&*self.fs, &self.table(number), number, cache.clone(), Access::Random)
    }

    /// Makes the names of files durable.
    pub fn sync_names(&self) -> Result<()> {
        self.fs.sync_dir(&self.dir)
    }

    /// Removes `paths` in order, now or later.
    pub fn remove(&self, paths: impl IntoIterator<Item = PathBuf>) {
        let mut row: Vec<PathBuf> = paths.into_iter().collect();
        {
            let waiting = self.waiting.lock();
            row.retain(|path| !waiting.rows.iter().flatten().any(|other| other == path));
        }
        row.reverse();
        self.try_row(&mut row);
        if !row.is_empty() {
            self.waiting.lock().rows.push(row);
        }
    }

    /// Removes the files of the tables `numbers` in order, now or later. The manifest does not have them.
    pub fn remove_tables(&self, numbers: impl IntoIterator<Item = u64>) {
        self.remove(numbers.into_iter().map(|number| self.table(number)));
    }

    /// Removes the file of table `number` once the manifest has decided that it is none of its own.
    pub fn remove_when_decided(&self, number: u64) {
        self.waiting.lock().undecided.insert(number);
    }

    /// Removes what waits and can go now. Makes `manifest` decide where that is asked for.
    pub fn sweep(&self, manifest: &Manifest) {
        manifest.tidy();
        let Waiting { rows, undecided } = std::mem::take(&mut *self.waiting.lock());
        for mut row in rows {
            self.try_row(&mut row);
            if !row.is_empty() {
                self.waiting.lock().rows.push(row);
            }
        }
        if undecided.is_empty() {
            return;
        }
        match manifest.decide() {
            Ok(()) => {
                let state = manifest.state();
                self.remove_tables(undecided.into_iter().filter(|n| !state.tables.contains_key(n)));
            }
            Err(error) => {
                tracing::warn!(%error, "what a failed job made stays for now");
                self.waiting.lock().undecided.extend(undecided);
            }
        }
    }

    /// Removes the files of a row from its end up to the first that stays.
    fn try_row(&self, row: &mut Vec<PathBuf>) {
        while let Some(path) = row.last() {
            match self.fs.remove(path) {
                Err(error) if !is_gone(&error) => {
                    tracing::warn!(%error, "a file that is no longer needed stays for now");
                    return;
                }
                _ => drop(row.pop()),
            }
        }
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("dir", &self.dir)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Identity;
    use terrace_disk::{Fault, SimFs};

    const DIR: &str = "/db";

    fn with_tables(numbers: &[u64]) -> (SimFs, Arc<Files>, Manifest) {
        let fs = SimFs::new();
        fs.create_dir_all(Path::new(DIR)).unwrap();
        let manifest = manifest(&fs);
        let files = Files::new(Arc::new(fs.clone()), Path::new(DIR));
        numbers.iter().for_each(|&number| drop(files.create_table(number).unwrap()));
        (fs, files, manifest)
    }

    fn left(fs: &SimFs) -> Vec<FileName> {
        fs.image()
            .keys()
            .filter_map(|path| FileName::parse(path))
            .filter(|n| matches!(n, FileName::Table(_)))
            .collect()
    }

    fn manifest(fs: &SimFs) -> Manifest {
        let identity = Identity { engine: "slm".into(), uuid: [7; 16], options: Default::default() };
        Manifest::create(Arc::new(fs.clone()), Path::new(DIR), identity).unwrap()
    }

    #[test]
    fn what_cannot_be_removed_goes_later_and_in_order() {
        let (fs, files, manifest) = with_tables(&[1, 2, 3, 4]);
        fs.inject(Some(Fault { after: 1, only_changes: true, sticky: false }));
        files.remove_tables([1, 2, 3]);
        assert_eq!(left(&fs), [2, 3, 4].map(FileName::Table), "3 is not to go before 2");
        files.remove_tables([4, 9]);
        assert_eq!(left(&fs), [2, 3].map(FileName::Table), "another row does not wait");
        fs.inject(Some(Fault { after: 0, only_changes: true, sticky: true }));
        files.sweep(&manifest);
        assert_eq!(left(&fs), [2, 3].map(FileName::Table));
        fs.inject(None);
        files.sweep(&manifest);
        assert_eq!(left(&fs), []);
    }

    #[test]
    fn what_is_undecided_waits_for_the_manifest() {
        let (fs, files, manifest) = with_tables(&[5]);
        fs.inject(Some(Fault { after: 0, only_changes: true, sticky: true }));
        manifest.apply(&[crate::manifest::Edit::FlushedSeq(3)]).unwrap_err();
        files.remove_when_decided(5);
        files.sweep(&manifest);
        assert_eq!(left(&fs), [FileName::Table(5)]);
        fs.inject(None);
        files.sweep(&manifest);
        assert_eq!(left(&fs), []);
        assert_eq!(manifest.state().flushed_seq, 0);
    }
}
