//! Detects that a pool is an older copy of itself, made during the life of the killed process.
//!
//! An earlier copy has a lower session number (`pool.rs`). A copy made during the session shows by what it
//! lacks:
//!
//! 1. A flush records its progress in the pool before it does so in the manifest, and so does a rebuilding.
//!    The number recorded in the pool is never less than that of the manifest.
//! 2. A group is linked into a memtable before the next one is logged. So logs have at most one group that
//!    memtables lack.
//!
//! A copy that lacks neither is not detected: it was made after the last flush, and the writes since have not
//! been logged yet, or are one group, or there is no log because the pool lies on persistent memory.

use terrace_base::{Error, Result};
use terrace_pmem::{Granularity, Pool};

use super::Slm;
use super::open::FLUSHED_ROOT;
use crate::commit_log::groups_beyond;
use crate::core::Core;
use crate::manifest::State;

/// The greatest value of a root.
const MOST: u64 = (1 << 48) - 1;

/// Records in the pool that everything up to `seq` is in tables and in the index.
pub(super) fn note_flushed(pool: &Pool, seq: u64) -> Result<()> {
    pool.set_root(FLUSHED_ROOT, seq.min(MOST))
}

/// What a pool that was not closed cleanly lacks. Its memtables and the tables hold everything up to
/// `reached`, and `logs` are the numbers of the logs that are needed.
pub(super) fn missed(
    core: &Core,
    pool: &Pool,
    state: &State,
    (logs, reached): (Vec<u64>, u64),
) -> Result<Option<String>> {
    let flushed = state.flushed_seq;
    if let Some(in_pool) = pool.root(FLUSHED_ROOT)?
        && in_pool < flushed.min(MOST)
    {
        return Ok(Some(format!("its memtables are flushed up to {in_pool}, and were up to {flushed}")));
    }
    if pool.granularity() != Granularity::Page {
        return Ok(None);
    }
    let beyond = groups_beyond(core, state, logs, reached);
    Ok((beyond > 1).then(|| format!("it ends after {reached}, and the logs have {beyond} groups more")))
}

impl Slm {
    /// An error if the pool that a killed process left is an older copy of itself.
    pub(super) fn refuse_older_copy(&self) -> Result<()> {
        let state = self.manifest.state();
        let mem = self.mem.load();
        let reached = mem.iter().map(|m| m.list().max_seq()).fold(state.flushed_seq, u64::max);
        let logs = self.manifest.listing()?.logs;
        match missed(&self.core, &self.pool, &state, (logs, reached))? {
            None => Ok(()),
            Some(found) => {
                let expected = "the pool as it was when its process ended (try `repair`)";
                let found = format!("an older copy: {found}");
                Err(Error::corruption(self.pool.path(), 0, expected, found))
            }
        }
    }
}
