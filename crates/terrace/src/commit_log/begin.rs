//! How logs begin: the next one, which is ready or made when it is needed, and what the manifest is told of it.
//!
//! 1. A log takes its number while `ready` is locked, so that numbers ascend as logs begin.
//! 2. A log that is ready has no record, and may be unknown to the manifest. Before its first group the manifest knows it.

use parking_lot::MutexGuard;
use terrace_base::{ErrorKind, Result};

use super::file::FileLog;
use super::log::Log;
use super::pool::PoolLog;
use super::record::LogRecord;
use super::{CommitLog, LogMedium, Logged, Series};
use crate::manifest::{BegunLog, Edit, Manifest};

/// A disk with less room is kept for what must be written.
const AMPLE_BYTES: u64 = 1 << 20;

/// Whether what takes `limit` bytes comes to be half full as it grows from `before` to `after`. Then the log after the one
/// that fills it is made ready, so that the first of an opening is, too.
pub(crate) fn comes_half_way(before: u64, after: u64, limit: u64) -> bool {
    before <= limit / 2 && after > limit / 2
}

impl CommitLog {
    /// The logs, of which the leader, which this is, begins the next; one in the pool has room for a record of `bytes`.
    pub(super) fn begin_next(&self, host: &impl Logged, bytes: u64) -> Result<MutexGuard<'_, Series>> {
        let mut ready = self.ready.lock();
        let mut series = self.series.lock();
        if self.is_broken() {
            return Err(self.failure("write"));
        }
        let log = match ready.take() {
            Some(log) => Log::File(self.begin_ready(log, (&mut ready, &mut series), host)?),
            None => self.begin(&series, host, bytes)?,
        };
        series.previous = log.number();
        // Even if the manifest cannot be told of it: a flush that ends meanwhile leaves the log in its
        // place.
        host.logged_from(log.number());
        series.current = Some(log);
        Ok(series)
    }

    /// Begins the next log. If that fails, nothing has changed.
    fn begin(&self, series: &Series, host: &impl Logged, bytes: u64) -> Result<Log> {
        let number = host.manifest().take_numbers(1).start;
        let first = LogRecord::Start { number, before: host.last_applied(), previous: series.previous };
        match &series.place {
            LogMedium::Pool { pool, log_bytes } => {
                PoolLog::create_for(pool, *log_bytes, bytes, number, &first).map(Log::Pool)
            }
            LogMedium::Files => self.create(number, Some(&first)).map(Log::File),
        }
    }

    /// Begins `log`, which was ready. Without room for its first record it stays so.
    fn begin_ready(
        &self,
        mut log: FileLog,
        (ready, series): (&mut Option<FileLog>, &mut Series),
        host: &impl Logged,
    ) -> Result<FileLog> {
        let first =
            LogRecord::Start { number: log.number, before: host.last_applied(), previous: series.previous };
        match log.begin(&first) {
            Ok(()) => Ok(log),
            Err(error) => {
                match error.kind() == ErrorKind::NoSpace {
                    true => *ready = Some(log),
                    // It keeps its place, whatever of the record is there.
                    false => series.previous = log.number,
                }
                Err(error)
            }
        }
    }

    /// Creates log file `number`, with its first record if there is one.
    fn create(&self, number: u64, first: Option<&LogRecord>) -> Result<FileLog> {
        let created = FileLog::create(&self.core, (number, self.room()), self.database);
        let begun = created.and_then(|mut log| first.map_or(Ok(()), |first| log.begin(first)).map(|()| log));
        begun.inspect_err(|_| self.remove_attempt(number))
    }

    /// Makes the next log ready, if logs lie in files and none is: then a memtable that is full costs its writer no sync.
    /// For jobs in the background. If it fails, whoever needs the log makes it.
    pub fn make_ready(&self, manifest: &Manifest) {
        let Some(mut ready) = self.ready.try_lock() else { return };
        if ready.is_some() || self.is_broken() || !self.has_begun_files() || !self.has_room_for_more() {
            return;
        }
        let number = manifest.take_numbers(1).start;
        let made = self.create(number, None).and_then(|log| {
            *ready = Some(log);
            manifest.apply(&[self.begun(number)])
        });
        if let Err(error) = made {
            tracing::debug!(%error, "the rest of the next commit log is made when it is needed");
        }
    }

    /// Whether what is merely to save time may take room.
    fn has_room_for_more(&self) -> bool {
        self.core.fs().free_bytes(&self.core.dir).is_ok_and(|free| free >= AMPLE_BYTES)
    }

    /// Whether logs lie in files, and one was begun since the opening.
    fn has_begun_files(&self) -> bool {
        let series = self.series.lock();
        matches!(series.place, LogMedium::Files) && series.announced != 0
    }

    /// Tells the manifest of the log being written, unless it knows it. If that fails, the log waits for its first group.
    pub(super) fn announce(&self, series: &mut Series, manifest: &Manifest) -> Result<()> {
        match &series.current {
            Some(Log::File(log)) if log.number != series.announced => {
                if !manifest.state().has_begun(log.number) {
                    manifest.apply(&[self.begun(log.number)])?;
                }
                series.announced = log.number;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn begun(&self, number: u64) -> Edit {
        Edit::LogBegun(BegunLog { number, epoch: self.core.fs().epoch(&self.core.dir) })
    }
}
