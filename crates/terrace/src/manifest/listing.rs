//! The files in a store's directory, classified by the manifest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use terrace_base::Result;
use terrace_disk::Fs;
use terrace_log::LogReader;
use terrace_table::Table;

use super::Manifest;
use super::files::{self, FileName};
use super::replay;
use super::state::State;

/// A directory compared with a state.
///
/// Dead tables and leftovers may be removed when no group is undecided (after an open, or after a successful
/// `apply`) and no job that writes tables is running. Foreign files are not ours.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Tables that the state does not have, by number.
    pub dead_tables: Vec<u64>,
    /// Tables of the state that have no file, by number: damage.
    pub missing_tables: Vec<u64>,
    /// Commit logs that are still needed, by number, ascending.
    pub logs: Vec<u64>,
    /// Tables of ingests that have not begun to take place, by number.
    pub hidden_tables: Vec<u64>,
    /// Notes of ingests that were taking place. They may be removed when there is no dead table.
    pub ingests: Vec<PathBuf>,
    /// Old manifests, half-written pointers, logs no longer needed and logs that were only begun.
    pub leftovers: Vec<PathBuf>,
    /// The numbers of other tables and logs that name another database.
    pub anothers: Vec<u64>,
    /// Every other name, and every file that would be dead or a leftover and names another database.
    pub foreign: Vec<PathBuf>,
}

/// Whether a file names another database than `origin`. One that cannot be read, as what was cut short, names none.
pub(super) fn is_anothers(fs: &dyn Fs, dir: &Path, name: &FileName, origin: u64) -> bool {
    let path = name.path(dir);
    let named = match name {
        FileName::Table(_) => Table::identify(fs, &path).ok().map(|(_, origin)| origin),
        FileName::Log(_) => LogReader::origin(fs, &path).ok().flatten().map(|origin| origin.database),
        FileName::Manifest(number) => {
            replay::read(fs, dir, *number).ok().map(|(state, _)| state.identity.origin())
        }
        _ => None,
    };
    named.is_some_and(|named| named != origin)
}

impl Listing {
    /// Compares `dir` with `state`.
    pub(super) fn read(fs: &dyn Fs, dir: &Path, state: &State) -> Result<Self> {
        let current = files::locate(fs, dir)?;
        let (ours, foreign) = files::list(fs, dir)?;
        let mut listing = Listing { foreign, ..Listing::default() };
        let mut present = BTreeSet::new();
        let origin = state.identity.origin();
        for name in ours {
            match name {
                FileName::Table(number) => {
                    present.insert(number);
                }
                FileName::Log(number) if number >= state.log_number => listing.logs.push(number),
                FileName::Manifest(number) if Some(number) == current => (),
                FileName::Current | FileName::Slots | FileName::Lock => (),
                FileName::TableHidden(number) => listing.hidden_tables.push(number),
                FileName::Ingest(_) => listing.ingests.push(name.path(dir)),
                FileName::Log(_) | FileName::Manifest(_) if is_anothers(fs, dir, &name, origin) => {
                    listing.note_anothers(dir, name);
                }
                FileName::Log(_) | FileName::LogBegun(_) | FileName::Manifest(_) | FileName::CurrentTemp => {
                    listing.leftovers.push(name.path(dir));
                }
            }
        }
        listing.logs.sort_unstable();
        for number in present.iter().copied().filter(|number| !state.has_file(*number)) {
            let name = FileName::Table(number);
            match is_anothers(fs, dir, &name, origin) {
                true => listing.note_anothers(dir, name),
                false => listing.dead_tables.push(number),
            }
        }
        listing.missing_tables = state.files().filter(|number| !present.contains(number)).collect();
        Ok(listing)
    }

    fn note_anothers(&mut self, dir: &Path, name: FileName) {
        if let FileName::Table(number) | FileName::Log(number) = name {
            self.anothers.push(number);
        }
        self.foreign.push(name.path(dir));
    }

    /// The numbers that files have which the state does not know. They are not given out again.
    pub fn unknown_numbers(&self) -> impl Iterator<Item = u64> + '_ {
        [&self.logs, &self.dead_tables, &self.hidden_tables, &self.anothers].into_iter().flatten().copied()
    }
}

impl Manifest {
    /// Logs of the database that are no longer needed.
    pub fn old_logs(&self) -> Result<Vec<PathBuf>> {
        // It only grows.
        let (needed, origin) = (self.state().log_number, self.state().identity.origin());
        let is_old = |name: &FileName| matches!(name, FileName::Log(number) if *number < needed);
        let (ours, _) = files::list(&*self.fs, &self.dir)?;
        let old =
            ours.into_iter().filter(is_old).filter(|name| !is_anothers(&*self.fs, &self.dir, name, origin));
        Ok(old.map(|name| name.path(&self.dir)).collect())
    }
}
