//! How opening treats the logs of a database: they are read back, and unreliable ones are distrusted.

use terrace_base::{Error, Result};

use super::CommitLog;
use super::pool::Gathered;
use super::replay::{Replayed, Source, replay};
use crate::batch::WriteBatch;
use crate::manifest::{Edit, Listing, Manifest};
use crate::pool::StartState;

impl CommitLog {
    /// Passes everything that the logs hold beyond what is flushed to `apply`, as [`replay`] does. `listing`
    /// is the contents of the database's directory; `gathered` are its logs if they lie elsewhere. No number
    /// of an existing file is given out again.
    ///
    /// The files of a killed process are whole, but its last sync may have failed; after a power cut they may
    /// be torn. Before anything is logged that depends on them, their contents are written elsewhere
    /// (`mod.rs`, 5).
    pub fn replay(
        &self,
        (manifest, listing): (&Manifest, &Listing),
        state: StartState,
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
        manifest.pass_over(source.numbers().into_iter().chain(listing.unknown_numbers()));
        if let Some(pool) = &in_pool
            && state == StartState::Closed
        {
            pool.check_end()?;
        }
        let replayed = replay(source, &manifest.state(), damaged, apply)?;
        let is_doubtful = replayed.gap || state == StartState::Crashed && replayed.logs > 0;
        if in_pool.is_none() && is_doubtful && !self.core.options.read_only {
            self.distrust();
        }
        Ok(replayed)
    }

    /// Notes that everything up to `last`, the last write, is in tables, and drops all logs. The caller lets
    /// nobody write meanwhile.
    pub fn forget_all(&self, manifest: &Manifest, last: u64) -> Result<()> {
        let mut ready = self.ready.lock();
        let number = manifest.take_numbers(1).start;
        manifest.apply(&[Edit::FlushedSeq(last), Edit::LogNumber(number)])?;
        *ready = None;
        drop(ready);
        self.drop_old(manifest)
    }
}

/// The outcome of flushing what was replayed, except for a lack of room: then it stays in memory and in its
/// logs. A full disk or pool is no reason not to open.
pub(crate) fn unless_full(flushed: Result<()>) -> Result<()> {
    match flushed {
        Err(e) if e.is_out_of_space() => Ok(()),
        flushed => flushed,
    }
}
