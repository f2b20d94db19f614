//! What `check` and `repair` found.

use terrace_base::{Error, Result};

/// The outcome of [`Db::check`](crate::Db::check).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// What is wrong and where, a line each. Empty for a healthy database.
    pub problems: Vec<String>,
    /// Tables read in full.
    pub tables: u64,
    /// Entries in them.
    pub entries: u64,
    /// Keys that are there, in tables and memtables.
    pub keys: u64,
    /// Bytes of the pool accounted for.
    pub pm_bytes: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Notes what is wrong if something is; what came of it otherwise.
    ///
    /// # Errors
    ///
    /// What says nothing of what is there, or is only for another version to judge: see [`problem`].
    pub(crate) fn note<T>(&mut self, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                self.problems.push(problem(error)?);
                Ok(None)
            }
        }
    }
}

/// What is wrong, in words.
///
/// # Errors
///
/// The error itself where it proves no damage: the system could not read what is there, or another version wrote it.
pub(crate) fn problem(error: Error) -> Result<String> {
    match error.is_system_failure() || error.is_of_another_version() {
        true => Err(error),
        false => Ok(error.to_string()),
    }
}

/// The outcome of [`Db::repair`](crate::Db::repair).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// What was done, a line each.
    pub actions: Vec<String>,
    /// Files that were damaged or are not the database's, a line each with the reason. They lie in the folder `lost` of
    /// the database's directory now, beside a list.
    pub set_aside: Vec<String>,
    /// What could not be brought back, a line each.
    pub lost: Vec<String>,
    /// What cannot be told, a line each: whether more was lost that nothing speaks of any more.
    pub doubts: Vec<String>,
    /// Keys in the repaired database.
    pub keys: u64,
}
