//! What opening does with the logs of a database: they are read back, and what of them cannot be relied upon is distrusted.

use terrace_base::{Error, Result};

use super::CommitLog;
use super::place::Found;
use super::pool::Gathered;
use super::replay::{Replayed, Source, replay};
use crate::batch::WriteBatch;
use crate::manifest::{Edit, Listing, Manifest};

impl CommitLog {
    /// Hands everything that the logs hold after what is flushed to `apply`, as [`replay`] does. `listing` is what the
    /// database's directory holds; `gathered` are its logs if they lie elsewhere. The number of no file that is there is given
    /// out again.
    ///
    /// What a killed process left in files is whole, but its last sync may have failed; what a power cut has left may be torn.
    /// Before anything is logged that rests on it, it goes elsewhere (`mod.rs`, 5).
    pub fn replay(
        &self,
        (manifest, listing): (&Manifest, &Listing),
        found: Found,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
        apply: &mut dyn FnMut(u64, u64, &WriteBatch, u64) -> Result<()>,
    ) -> Result<Replayed> {
        let in_pool = self.gather();
        let files = self.files(listing.logs.clone());
        let source: &dyn Source = match gathered.or(in_pool.as_ref()) {
            Some(gathered) => gathered,
            None => &files,
        };
        manifest.pass_over(source.numbers().iter().chain(&listing.dead_tables).max().copied());
        if let Some(pool) = &in_pool
            && found == Found::Closed
        {
            pool.check_end()?;
        }
        let replayed = replay(source, &manifest.state(), damaged, apply)?;
        let is_doubtful = replayed.gap || found == Found::Crashed && replayed.logs > 0;
        if in_pool.is_none() && is_doubtful && !self.core.options.read_only {
            self.distrust();
        }
        Ok(replayed)
    }

    /// Notes that everything up to `last`, which is all there is, is in tables, and lets go of all logs. Nothing is written
    /// meanwhile.
    pub fn forget_all(&self, manifest: &Manifest, last: u64) -> Result<()> {
        let number = manifest.take_numbers(1).start;
        manifest.apply(&[Edit::FlushedSeq(last), Edit::LogNumber(number)])?;
        self.drop_old(manifest)
    }
}

/// How a flush of what was replayed went, but that there is no room for it: it stays in memory then, and in its logs. A disk
/// or pool without room is no reason not to open.
pub(crate) fn unless_full(flushed: Result<()>) -> Result<()> {
    match flushed {
        Err(e) if e.is_out_of_space() => Ok(()),
        flushed => flushed,
    }
}
