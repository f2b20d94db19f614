//! The end of the last log at a clean close.

use terrace_base::Result;
use terrace_pmem::Claim;

use super::file::Failure;
use super::sync::sync_all;
use super::{CommitLog, Log, LogMedium, LogRecord, Logged, Series};
use crate::manifest::{Edit, Manifest};

impl CommitLog {
    /// Ends the logs in order, for a clean close. If their contents turn out not to be durable, everything
    /// that memtables hold is written elsewhere now: nothing later will do it.
    pub fn close(&self, host: &impl Logged) -> Result<()> {
        self.mend(host)?;
        match self.seal(host.manifest()) {
            Err(error) if self.is_broken() => {
                tracing::warn!(%error, "the commit log could not be made durable and is begun anew");
                self.mend(host)?;
                self.seal(host.manifest())
            }
            outcome => outcome,
        }
    }

    /// Seals the last log, with those before it durable: then damage to any of their records can be found,
    /// and the manifest knows the seal.
    fn seal(&self, manifest: &Manifest) -> Result<()> {
        let mut ready = self.ready.lock();
        let mut series = self.series.lock();
        let outcome = sync_all(&mut series);
        self.after(&mut series, outcome)?;
        let current = series.current.take();
        series.older.extend(current);
        let outcome = self.seal_last(&mut series);
        let end = self.after(&mut series, outcome)?;
        match series.place {
            LogMedium::Files => {
                // A log that an earlier session has sealed may still be needed.
                let (number, bytes) = end.or_else(|| manifest.state().needed_end()).unwrap_or_default();
                let [last, before] = manifest.state().last_logs;
                let is_unused = ready.as_ref().zip(last).is_some_and(|(log, last)| log.number == last.number);
                let mut edits = vec![Edit::LogEnd { number, bytes }];
                edits.extend(before.filter(|_| is_unused).map(Edit::LogBegun));
                manifest.apply(&edits)?;
                // Nobody will write it. The manifest asks for it only if there was none before.
                if let Some(unused) = ready.take().filter(|log| !manifest.state().has_begun(log.number)) {
                    self.remove_attempt(unused.number);
                }
                Ok(())
            }
            LogMedium::Pool { .. } => Ok(()),
        }
    }

    /// Ends the last log, if there is one; returns its number and, if it lies in a file, its size in bytes.
    fn seal_last(&self, series: &mut Series) -> Result<Option<(u64, u64)>, Failure> {
        match (series.older.last_mut(), &series.place) {
            (Some(Log::File(log)), _) => Ok(Some((log.number, log.seal()?))),
            (Some(Log::Pool(log)), LogMedium::Pool { pool, .. }) => {
                // An extent is kept back for this.
                let closed = pool.claiming(Claim::All, || log.append(&LogRecord::Closed.bytes()));
                closed.map(|()| None).map_err(Failure::Refused)
            }
            _ => Ok(None),
        }
    }
}
