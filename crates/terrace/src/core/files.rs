//! The files of tables: making and opening them, and one queue for their removal.
//!
//! 1. A failed removal is tried again whenever a job begins or ends, until it succeeds.
//! 2. Files queued together are removed in order: behind a file that stays, the rest of its row stays, too.
//! 3. A table that a failed group of edits names stays until the manifest has decided about the group.
//! 4. A table that somebody may still read stays until nobody may: a file is opened when it is read, and
//!    closed and opened again while a reader continues. The last holder to release it removes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_disk::{Access, Descriptors, Fs, LazyFile, Mapping, ReadFile, WriteFile};
use terrace_table::TableMeta;

use crate::manifest::{FileName, IngestNote, Listing, Manifest};

/// The files of a store.
pub(crate) struct Files {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    descriptors: Arc<Descriptors>,
    waiting: Mutex<Waiting>,
}

/// Removals that could not be done yet.
#[derive(Debug, Default)]
struct Waiting {
    /// Rows of files, each removed from its end.
    rows: Vec<Vec<PathBuf>>,
    /// Tables about which a failed group has left the manifest undecided.
    undecided: BTreeSet<u64>,
    /// Notes of ingests, which go last.
    notes: Vec<PathBuf>,
    /// Tables that somebody may read, with the number of their holders.
    held: BTreeMap<u64, usize>,
}

impl Waiting {
    fn is_held(&self, path: &Path) -> bool {
        match FileName::parse(path) {
            Some(FileName::Table(number)) => self.held.contains_key(&number),
            _ => false,
        }
    }
}

/// The file of a table that may be read as long as this is held.
#[derive(Debug)]
struct TableFile {
    file: Arc<LazyFile>,
    number: u64,
    files: Arc<Files>,
}

impl TableFile {
    /// A missing table is damage.
    fn missing_is_damage<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|e| if is_gone(&e) { missing_table(self.path()) } else { e })
    }
}

impl ReadFile for TableFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.missing_is_damage(self.file.read_at(offset, buf))
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.missing_is_damage(self.file.read_many(reads))
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.file.will_need(offset, len);
    }

    fn map(&self) -> Option<Mapping> {
        self.file.map()
    }

    fn past_cache(&self) -> Result<Option<Arc<dyn ReadFile>>> {
        self.missing_is_damage(self.file.past_cache())
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        self.files.let_go(self.number);
    }
}

/// The error for a table of the manifest without a file.
pub(crate) fn missing_table(path: &Path) -> Error {
    Error::corruption(path, 0, "a table that the manifest names (try `repair`)", "no such file")
}

impl Files {
    /// The files in `dir` of `fs`; `descriptors` bounds how many are open; nothing waits to be removed.
    pub fn new(fs: Arc<dyn Fs>, dir: &Path, descriptors: Arc<Descriptors>) -> Arc<Files> {
        Arc::new(Files { fs, dir: dir.to_path_buf(), descriptors, waiting: Mutex::default() })
    }

    /// Where table `number` lies.
    pub fn table(&self, number: u64) -> PathBuf {
        FileName::Table(number).path(&self.dir)
    }

    /// Creates the file of table `number`.
    pub fn create_table(&self, number: u64) -> Result<Box<dyn WriteFile>> {
        self.fs.create(&self.table(number))
    }

    /// Where table `number` lies as long as it is hidden.
    pub fn hidden_table(&self, number: u64) -> PathBuf {
        FileName::TableHidden(number).path(&self.dir)
    }

    /// Creates the file of table `number`, which is hidden: whatever becomes of the manifest, it does not count.
    pub fn create_hidden(&self, number: u64) -> Result<Box<dyn WriteFile>> {
        self.fs.create(&self.hidden_table(number))
    }

    /// Makes it durable that an ingest is taking place: as long as the note is there, those of its tables that the
    /// manifest does not name are worthless, and no sign that it has lost some.
    pub fn begin_ingest(&self, note: &IngestNote) -> Result<()> {
        let mut file = self.fs.create(&self.ingest_note(note))?;
        file.append(&note.encode())?;
        file.sync()?;
        self.sync_names()
    }

    /// The ingest has taken place.
    pub fn end_ingest(&self, note: &IngestNote) {
        self.remove([self.ingest_note(note)]);
        if let Err(error) = self.sync_names() {
            tracing::warn!(%error, "it may seem to the next opening that an ingest was taking place");
        }
    }

    /// The ingest has failed.
    pub fn give_up_ingest(&self, note: &IngestNote) {
        self.remove_notes_last([self.ingest_note(note)]);
    }

    fn ingest_note(&self, note: &IngestNote) -> PathBuf {
        FileName::Ingest(note.tables.first().copied().unwrap_or(0)).path(&self.dir)
    }

    /// Removes notes of ingests once everything else that waits to be removed is gone, which may be tables that they tell
    /// of.
    fn remove_notes_last(&self, notes: impl IntoIterator<Item = PathBuf>) {
        self.waiting.lock().notes.extend(notes);
    }

    /// For an opening: removes what ingests have left, whatever the manifest decides, and their notes last.
    pub fn forget_ingests(&self, listing: &Listing) {
        self.remove(listing.hidden_tables.iter().map(|number| self.hidden_table(*number)));
        self.remove_notes_last(listing.ingests.iter().cloned());
    }

    /// Hides table `number` no more. Its name is not durable yet.
    pub fn show_table(&self, number: u64) -> Result<()> {
        self.fs.rename(&self.hidden_table(number), &self.table(number))
    }

    /// The file of the table described by `meta`; it is opened when it is read and not removed before this is
    /// dropped.
    pub fn hold_table(self: &Arc<Self>, meta: &TableMeta) -> Arc<dyn ReadFile> {
        let path = self.table(meta.number);
        let file = LazyFile::new(self.fs.clone(), &self.descriptors, path, meta.file_bytes, Access::Random);
        *self.waiting.lock().held.entry(meta.number).or_default() += 1;
        Arc::new(TableFile { file, number: meta.number, files: self.clone() })
    }

    /// The numbers of open tables and of files that wait to be removed.
    pub fn figures(&self) -> (u64, u64) {
        let waiting = self.waiting.lock();
        let files = waiting.rows.iter().map(Vec::len).sum::<usize>() + waiting.undecided.len();
        (self.descriptors.open() as u64, files as u64)
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
        self.try_row(row);
    }

    /// Removes the files of the tables `numbers` in order, now or later. The manifest does not name them.
    pub fn remove_tables(&self, numbers: impl IntoIterator<Item = u64>) {
        self.remove(numbers.into_iter().map(|number| self.table(number)));
    }

    /// Removes the files of the tables `numbers` once the manifest has decided that it does not name them.
    pub fn remove_when_decided(&self, numbers: impl IntoIterator<Item = u64>) {
        self.waiting.lock().undecided.extend(numbers);
    }

    /// Removes waiting files that can be removed now. Makes `manifest` decide if that is needed.
    pub fn sweep(&self, manifest: &Manifest) {
        manifest.tidy();
        let (rows, undecided) = {
            let mut waiting = self.waiting.lock();
            (std::mem::take(&mut waiting.rows), std::mem::take(&mut waiting.undecided))
        };
        rows.into_iter().for_each(|row| self.try_row(row));
        let decided = if undecided.is_empty() { Ok(()) } else { manifest.decide() };
        match decided {
            Ok(()) => {
                let state = manifest.state();
                self.remove_tables(undecided.into_iter().filter(|n| !state.tables.contains_key(n)));
                self.try_notes();
            }
            Err(error) => {
                tracing::warn!(%error, "what a failed job made stays for now");
                self.waiting.lock().undecided.extend(undecided);
            }
        }
    }

    /// Removes notes of ingests, if nothing is left that they may tell of.
    fn try_notes(&self) {
        let notes = {
            let mut waiting = self.waiting.lock();
            match waiting.rows.is_empty() && waiting.undecided.is_empty() {
                true => std::mem::take(&mut waiting.notes),
                false => return,
            }
        };
        if notes.is_empty() {
            return;
        }
        // Not even after a power cut is a table there without its note.
        match self.sync_names() {
            Ok(()) => self.remove(notes),
            Err(error) => {
                tracing::warn!(%error, "the note of an ingest could not be removed");
                self.remove_notes_last(notes);
            }
        }
    }

    /// Removes the files of a row from its end up to the first that stays. The rest waits.
    fn try_row(&self, mut row: Vec<PathBuf>) {
        loop {
            {
                // In one step: a reader releasing it finds the row here, or it is no longer held.
                let mut waiting = self.waiting.lock();
                match row.last() {
                    None => return,
                    Some(path) if waiting.is_held(path) => return waiting.rows.push(row),
                    Some(_) => {}
                }
            }
            let Some(path) = row.last() else { return };
            match self.fs.remove(path) {
                Err(error) if !is_gone(&error) => {
                    tracing::warn!(%error, "a file that is no longer needed stays for now");
                    return self.waiting.lock().rows.push(row);
                }
                _ => drop(row.pop()),
            }
        }
    }

    /// Notes that a reader of table `number` has released it; removes what waited for that.
    fn let_go(&self, number: u64) {
        let freed: Vec<Vec<PathBuf>> = {
            let mut waiting = self.waiting.lock();
            match waiting.held.get_mut(&number) {
                Some(count @ 2..) => return *count -= 1,
                _ => drop(waiting.held.remove(&number)),
            }
            let path = self.table(number);
            waiting.rows.extract_if(.., |row| row.last() == Some(&path)).collect()
        };
        freed.into_iter().for_each(|row| self.try_row(row));
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Io { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
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
        let files = Files::new(Arc::new(fs.clone()), Path::new(DIR), Descriptors::new(8));
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
        files.remove_when_decided([5]);
        files.sweep(&manifest);
        assert_eq!(left(&fs), [FileName::Table(5)]);
        fs.inject(None);
        files.sweep(&manifest);
        assert_eq!(left(&fs), []);
        assert_eq!(manifest.state().flushed_seq, 0);
    }

    #[test]
    fn what_somebody_may_read_stays_until_the_last_has_let_go() {
        let (fs, files, manifest) = with_tables(&[1, 2, 3]);
        let meta = |number| TableMeta { number, ..TableMeta::default() };
        let (first, again, third) =
            (files.hold_table(&meta(2)), files.hold_table(&meta(2)), files.hold_table(&meta(3)));
        files.remove_tables([1, 2, 3]);
        files.sweep(&manifest);
        assert_eq!((left(&fs), files.figures()), (vec![FileName::Table(2), FileName::Table(3)], (0, 2)));
        drop(first);
        drop(third);
        assert_eq!(left(&fs), [2, 3].map(FileName::Table), "3 does not go before 2");
        let mut read = [0; 1];
        assert!(again.read_at(0, &mut read).is_err() && again.read_at(0, &mut []).is_ok());
        drop(again);
        assert_eq!((left(&fs), files.figures()), (vec![], (0, 0)));
    }

    #[test]
    fn what_cannot_be_removed_when_its_reader_goes_waits_for_the_next_job() {
        let (fs, files, manifest) = with_tables(&[1, 2]);
        let held = files.hold_table(&TableMeta { number: 1, ..TableMeta::default() });
        files.remove_tables([1, 2]);
        fs.inject(Some(Fault { after: 0, only_changes: true, sticky: true }));
        drop(held);
        assert_eq!(left(&fs), [1, 2].map(FileName::Table));
        fs.inject(None);
        files.sweep(&manifest);
        assert_eq!(left(&fs), []);
    }

    #[test]
    fn a_table_that_is_gone_is_told_as_damage() {
        let (fs, files, _manifest) = with_tables(&[1]);
        let held = files.hold_table(&TableMeta { number: 1, ..TableMeta::default() });
        fs.remove(&files.table(1)).unwrap();
        let told = held.read_at(0, &mut []).unwrap_err();
        assert!(
            told.to_string().contains("that the manifest names (try `repair`), found no such file"),
            "{told}"
        );
    }
}
