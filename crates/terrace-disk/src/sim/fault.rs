//! Faults on demand, and watching operations.

use std::fmt::Debug;
use std::io;
use std::path::Path;

use terrace_base::{Error, Result};

/// A change about to be made to the simulated disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsEvent<'a> {
    /// `path` will be created, empty.
    Create {
        /// The file.
        path: &'a Path,
    },
    /// Bytes will be appended to the file created as `path`.
    Write {
        /// The file.
        path: &'a Path,
        /// How many.
        bytes: u64,
    },
    /// The file created as `path` will be synced.
    Sync {
        /// The file.
        path: &'a Path,
    },
    /// `from` will become `to`.
    Rename {
        /// The name it has.
        from: &'a Path,
        /// The name it will have.
        to: &'a Path,
    },
    /// `path` will be removed.
    Remove {
        /// The file.
        path: &'a Path,
    },
    /// The names in directory `path` will be made durable.
    SyncDir {
        /// The directory.
        path: &'a Path,
    },
    /// `path` will be locked, and made if it is not there.
    Lock {
        /// The file.
        path: &'a Path,
    },
    /// Directory `path` and its parents will be made, durably.
    CreateDir {
        /// The directory.
        path: &'a Path,
    },
}

/// Told of every change before it takes effect.
pub trait Observer: Send + Sync + Debug {
    /// `event` is about to happen. No lock is held: the observer may copy, crash or read the disk.
    fn before(&self, event: FsEvent<'_>);

    /// The error with which `operation`, named by the verb of error messages, is to fail on `path`; `None` if it is to
    /// succeed. Called for every operation, including those that change nothing.
    fn refuse(&self, path: &Path, operation: &'static str) -> Option<io::Error> {
        let _ = (path, operation);
        None
    }
}

/// An I/O error to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// How many operations still succeed before the one that fails.
    pub after: u64,
    /// Whether reads and listings neither count nor fail.
    pub only_changes: bool,
    /// Whether every counted operation from then on fails, not only the first.
    pub sticky: bool,
}

/// How a sync fails.
#[derive(Debug, Clone, Copy)]
pub(super) struct SyncFailure {
    /// With the error of a full disk.
    pub(super) full: bool,
    /// After dropping some pages that were not durable, chosen by this seed.
    pub(super) drops: Option<u64>,
}

/// Counts operations and says which one fails.
#[derive(Debug, Default)]
pub(super) struct Faults {
    planned: Option<Fault>,
    /// Operations so far that changed something, and all of them.
    pub(super) changes: u64,
    pub(super) operations: u64,
}

impl Faults {
    pub(super) fn plan(&mut self, fault: Option<Fault>) {
        self.planned = fault;
    }

    /// The behaviour of a sync that is made to fail; it alternates.
    pub(super) fn sync_failure(&self) -> SyncFailure {
        SyncFailure {
            full: self.changes.is_multiple_of(3),
            drops: (!self.changes.is_multiple_of(2)).then_some(self.changes),
        }
    }

    /// Counts an operation, or fails it.
    pub(super) fn step(&mut self, path: &Path, operation: &'static str, change: bool) -> Result<()> {
        self.operations += 1;
        self.changes += u64::from(change);
        match &mut self.planned {
            Some(fault) if change || !fault.only_changes => {
                if fault.after > 0 {
                    fault.after -= 1;
                    return Ok(());
                }
                if !fault.sticky {
                    self.planned = None;
                }
                Err(Error::io(path, operation, io::Error::other("injected fault")))
            }
            _ => Ok(()),
        }
    }
}
