//! The results of `check`, `scrub` and `repair`.

use terrace_base::{Error, Result};

/// The outcome of [`Db::check`](crate::Db::check).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// The problems and their places, one line each. Empty for a healthy database.
    pub problems: Vec<String>,
    /// Tables read in full.
    pub tables: u64,
    /// Entries in them.
    pub entries: u64,
    /// Existing keys, in tables and memtables.
    pub keys: u64,
    /// Bytes of the pool accounted for.
    pub pm_bytes: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Notes a problem if there is one; otherwise returns the outcome.
    ///
    /// # Errors
    ///
    /// Errors that say nothing of the data, or that only another version can judge: see [`problem`].
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

/// The outcome of [`Db::scrub`](crate::Db::scrub).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Damaged blocks and other parts of tables, and their places, one line each.
    pub problems: Vec<String>,
    /// Tables that were compared.
    pub tables: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl ScrubReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// The problem, in words.
///
/// # Errors
///
/// Returns the error itself if it proves no damage: the system could not read the data, or another version
/// wrote it.
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
    /// The actions taken, one line each.
    pub actions: Vec<String>,
    /// Files that were damaged or are not the database's, one line each with the reason. They lie in the
    /// folder `lost` of the database's directory now, beside a list; a pool from elsewhere lies beside its place.
    pub set_aside: Vec<String>,
    /// What could not be recovered, one line each.
    pub lost: Vec<String>,
    /// Open questions, one line each: whether more was lost without a trace.
    pub doubts: Vec<String>,
    /// Keys in the repaired database.
    pub keys: u64,
}
