//! The files in a store's directory, classified by the manifest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use terrace_base::Result;
use terrace_disk::Fs;

use super::files::{self, FileName};
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
    /// Every other name.
    pub foreign: Vec<PathBuf>,
}

impl Listing {
    /// Compares `dir` with `state`.
    pub(super) fn read(fs: &dyn Fs, dir: &Path, state: &State) -> Result<Self> {
        let current = files::locate(fs, dir)?;
        let (ours, foreign) = files::list(fs, dir)?;
        let mut listing = Listing { foreign, ..Listing::default() };
        let mut present = BTreeSet::new();
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
                FileName::Log(_) | FileName::LogBegun(_) | FileName::Manifest(_) | FileName::CurrentTemp => {
                    listing.leftovers.push(name.path(dir));
                }
            }
        }
        listing.logs.sort_unstable();
        listing.dead_tables = present.iter().copied().filter(|number| !state.has_file(*number)).collect();
        listing.missing_tables = state.files().filter(|number| !present.contains(number)).collect();
        Ok(listing)
    }
}
