//! What the pool knows of the manifest, in two roots that reveal a manifest without its newest groups.
//!
//! 1. A flush records the last write of its memtable before it changes the tree. Logs hold that write until
//!    the manifest says that it is flushed. So manifest and logs together always know it, whatever a crash
//!    has cut short.
//! 2. Keys leave the tree by a file number that the manifest has passed: that of the table which holds them,
//!    or one that is taken for tombstones which need no table. It is recorded before the first key leaves. So
//!    the manifest's next number is always higher.
//!
//! A manifest that knows less has lost its end. New writes would get numbers that the tree already has, and
//! be taken for old ones.
//!
//! Both are lower bounds. If a job with a higher number finished earlier, the second root does not reveal a
//! manifest that has lost no more than the table for which keys have left.

use terrace_base::Result;
use terrace_pmem::Pool;

use super::layout::{FLUSHED_ROOT, LEFT_ROOT};
use crate::manifest::State;
use crate::versions::{RECORD_KIND, Record, RecordRef};

/// The highest value of a root.
const MOST: u64 = (1 << 48) - 1;

/// What the pool knows of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Witness {
    /// The last write of which a flush has begun.
    pub flushed: u64,
    /// The highest number by which keys have left.
    left: u64,
}

impl Witness {
    /// Reads it from `pool`. No flush runs.
    pub fn read(pool: &Pool) -> Result<Witness> {
        let flushed = match pool.root(FLUSHED_ROOT)? {
            Some(flushed) => flushed,
            // Earlier versions of Terrace recorded nothing: the records may show what was flushed last.
            None => newest_record(pool),
        };
        Ok(Witness { flushed, left: pool.root(LEFT_ROOT)?.unwrap_or(0) })
    }

    /// A memtable with the last write `last` is about to be flushed. The record is durable on return.
    pub fn flushes(&mut self, pool: &Pool, last: u64) -> Result<()> {
        raise(pool, FLUSHED_ROOT, &mut self.flushed, last)
    }

    /// Keys are about to leave by `number`, which the manifest has passed. The record is durable on return.
    pub fn leaves_for(&mut self, pool: &Pool, number: u64) -> Result<()> {
        raise(pool, LEFT_ROOT, &mut self.left, number)
    }

    /// Evidence that a manifest with `state` has lost its end. `logged` tells how far logs continue after a
    /// write; `None` if they may have held more than can be told, which is damage of another kind.
    pub fn refutes(&self, state: &State, logged: impl FnOnce(u64) -> Option<u64>) -> Option<String> {
        if self.left >= state.next_file {
            return Some(format!("values have left by file number {}, of which it does not know", self.left));
        }
        let in_tables = state.tables.values().map(|table| table.meta.max_seq).max().unwrap_or(0);
        let known = in_tables.max(state.flushed_seq);
        if self.flushed <= known {
            return None;
        }
        let known = logged(known)?;
        let is_beyond = self.flushed > known;
        is_beyond.then(|| format!("write {} was flushed, and no log goes on after {known}", self.flushed))
    }
}

/// Sets a root to `value`, if that is higher than the `known` one.
fn raise(pool: &Pool, root: &str, known: &mut u64, value: u64) -> Result<()> {
    let value = value.min(MOST);
    if value > *known {
        pool.set_root(root, value)?;
        *known = value;
    }
    Ok(())
}

/// Whether any flush has used the pool.
pub(super) fn is_used(pool: &Pool) -> bool {
    // An unreadable root was set.
    pool.slots(RECORD_KIND).next().is_some() || !matches!(pool.root(FLUSHED_ROOT), Ok(None))
}

/// The highest number of a record. A record without a name cannot raise it wrongly: it was in a memtable,
/// too.
fn newest_record(pool: &Pool) -> u64 {
    let words =
        pool.slots(RECORD_KIND).flat_map(|(at, _)| [false, true].map(|gone| RecordRef::new(at, gone, false)));
    // SAFETY: no flush runs, and nothing else frees a record.
    let records = words.filter_map(|word| unsafe { Record::peek(pool, word) }.ok());
    records.map(|record| record.number).max().unwrap_or(0)
}
