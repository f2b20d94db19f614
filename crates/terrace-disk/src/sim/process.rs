//! The simulated disk and a process's handles of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use terrace_base::{Error, Result};

use super::fault::Faults;
use super::state::{FileId, State};
use crate::maps::Mapping;
use crate::real::region::Region;

/// `open` counts the write handles of each file; locks and faults belong to the process.
#[derive(Default)]
pub(super) struct Disk {
    pub(super) state: State,
    pub(super) open: BTreeMap<FileId, usize>,
    pub(super) locks: BTreeSet<PathBuf>,
    pub(super) faults: Faults,
    /// Open handles, and how many there may be.
    pub(super) descriptors: usize,
    pub(super) most_descriptors: Option<usize>,
    /// Files that are mapped.
    pub(super) maps: Vec<Weak<Region>>,
}

/// The system's number for too many open files.
const EMFILE: i32 = 24;

impl Disk {
    /// Refuses `operation` if there is no descriptor left.
    pub(super) fn find_descriptor(&self, path: &Path, operation: &'static str) -> Result<()> {
        match self.most_descriptors.is_some_and(|most| self.descriptors >= most) {
            true => Err(Error::io(path, operation, std::io::Error::from_raw_os_error(EMFILE))),
            false => Ok(()),
        }
    }
}

impl Disk {
    /// A handle of the file is made.
    pub(super) fn hold(&mut self, id: FileId) {
        *self.open.entry(id).or_default() += 1;
        self.descriptors += 1;
    }

    /// A handle of the file is gone.
    pub(super) fn let_go(&mut self, id: FileId) {
        self.descriptors -= 1;
        if let Some(count) = self.open.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&id);
            }
        }
    }

    /// A file is mapped.
    pub(super) fn hold_map(&mut self, mapping: &Mapping) {
        if self.maps.len().is_power_of_two() {
            self.maps.retain(|map| map.strong_count() > 0);
        }
        self.maps.push(Arc::downgrade(mapping.region()));
    }

    /// Mapped files are no longer used: they take no memory from now on.
    pub(super) fn empty_maps(&mut self) {
        self.maps.drain(..).filter_map(|map| map.upgrade()).for_each(|map| map.fail_all());
    }

    /// Bytes that fit on the disk still.
    pub(super) fn free(&self) -> u64 {
        self.state.capacity.map_or(u64::MAX, |c| c.saturating_sub(self.state.used(&self.open)))
    }
}
