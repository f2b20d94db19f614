//! Making logs durable: with writers waiting, or beside them.

use terrace_base::Result;

use super::file::{Failure, log_path};
use super::{CommitLog, Log, Series};

impl CommitLog {
    /// Makes everything logged so far survive a power cut.
    pub fn sync(&self) -> Result<()> {
        let mut series = self.series.lock();
        let outcome = sync_all(&mut series);
        self.after(&mut series, outcome)
    }

    /// Makes everything logged so far survive a power cut while writers continue; an error where the log has
    /// failed and its state is unknown. For logs that keep nothing back in DRAM.
    pub fn sync_beside(&self) -> Result<()> {
        debug_assert_eq!(self.policy.buffer_bytes, 0, "everything has been handed to the system");
        // With whether it is complete: more may be appended to the one being written while it is synced.
        let unsynced: Vec<(u64, bool)> = {
            let series = self.series.lock();
            if self.is_broken() {
                return Err(self.failure("sync"));
            }
            let older = series.older.iter().filter_map(Log::number_of_unsynced).map(|number| (number, true));
            let current = series.current.iter().filter_map(Log::number_of_unsynced);
            older.chain(current.map(|number| (number, false))).collect()
        };
        for (number, is_complete) in unsynced {
            let outcome = self.core.fs().sync_file(&log_path(&self.core.dir, number));
            let mut series = self.series.lock();
            let still = series.older.iter_mut().find(|log| log.number() == number);
            match (outcome, still) {
                (Ok(()), Some(Log::File(log))) if is_complete => log.note_synced(),
                (Ok(()), _) => {}
                (Err(e), still) => {
                    let is_needed =
                        still.is_some() || series.current.as_ref().is_some_and(|log| log.number() == number);
                    // If another failure came first, its recovery begins a new log.
                    let outcome = if is_needed { Err(Failure::Broken(e)) } else { Err(Failure::Refused(e)) };
                    return self.after(&mut series, outcome);
                }
            }
        }
        Ok(())
    }
}

/// Syncs every log, the oldest first.
pub(super) fn sync_all(series: &mut Series) -> Result<(), Failure> {
    series.older.iter_mut().chain(&mut series.current).try_for_each(Log::sync)
}
