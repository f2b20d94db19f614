//! Recovery from a failure: the memtables' contents are written elsewhere, and earlier logs are no longer
//! needed.

use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};

use super::file::FileLog;
use super::{CommitLog, Log, LogMedium, LogRecord, Logged, Series};
use crate::batch::WriteBatch;
use crate::manifest::Edit;

/// Bytes of operations in one record of a log that begins with the memtables' contents.
const RECORD_BYTES: usize = 256 << 10;

/// Room that a new log takes beside its contents: headers, and whole blocks for its name.
const ROOM_BYTES: u64 = 64 << 10;

/// Up to this many files may remain of logs from openings in which little was written.
const MOST_SMALL_LOGS: usize = 4;

/// Bytes in memtables, for each existing log, up to which everything is copied or flushed.
const SMALL_LOG_BYTES: u64 = 256 << 10;

/// Why a log begins that replaces all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The previous one is broken.
    Must,
    /// There are many small ones.
    Wish,
}

/// Whether one log should replace the `there` logs, which hold at most `bytes` together: openings in which
/// little was written have left them.
pub(crate) fn are_many_and_small(there: usize, bytes: u64) -> bool {
    there > MOST_SMALL_LOGS && bytes <= there as u64 * SMALL_LOG_BYTES
}

/// A memtable record on its way into another log.
pub(crate) trait Entry {
    /// Its sequence number.
    fn seq(&self) -> u64;

    /// Adds the operation to a batch.
    fn put_into(&self, ops: &mut WriteBatch) -> Result<()>;
}

impl CommitLog {
    /// After a failure of the log: writes everything that it may have lost elsewhere. Refused at once, with
    /// nothing written, while the disk lacks room for it.
    pub fn mend(&self, host: &impl Logged) -> Result<()> {
        if !self.is_broken() {
            return Ok(());
        }
        let bytes = host.memtable_bytes();
        let free = self.core.fs().free_bytes(&self.core.dir)?;
        if free < bytes.saturating_add(ROOM_BYTES) {
            return Err(Error::NoSpace { path: self.core.dir.clone() });
        }
        if bytes > self.policy.copy_bytes {
            host.flush_all()?;
        }
        self.begin_anew(host, Need::Must)
    }

    /// [`mend`](Self::mend) for a write that was just refused: if it fails here, it is done before the next
    /// write.
    pub fn try_to_mend(&self, host: &impl Logged) {
        if let Err(error) = self.mend(host) {
            tracing::warn!(%error, "the commit log could not be begun anew");
        }
    }

    /// After a clean opening that has found `there` logs in files: each writer that opens the database begins
    /// one, so if many of them hold little, one log replaces them all. If the disk lacks room for it, they
    /// stay.
    pub fn join_small(&self, host: &impl Logged, there: usize) -> Result<()> {
        let bytes = host.memtable_bytes();
        let is_in_files = matches!(self.series.lock().place, LogMedium::Files);
        if !are_many_and_small(there, bytes) || !is_in_files || bytes > self.policy.copy_bytes {
            return Ok(());
        }
        if self.core.fs().free_bytes(&self.core.dir)? < 2 * (bytes + ROOM_BYTES) {
            return Ok(());
        }
        match self.begin_anew(host, Need::Wish) {
            Err(e) if e.is_out_of_space() => Ok(()),
            outcome => outcome,
        }
    }

    /// Begins a log with everything that the memtables hold and drops the logs before it. If that is merely a
    /// `Wish` and the log cannot be written, nothing changes.
    fn begin_anew(&self, host: &impl Logged, need: Need) -> Result<()> {
        let mut ready = self.ready.lock();
        let mut series = self.series.lock();
        if need == Need::Must && !self.is_broken() {
            return Ok(());
        }
        let manifest = host.manifest();
        let number = manifest.take_numbers(1).start;
        let copied = match self.copy_all(host, number) {
            Err(error) if need == Need::Wish => {
                tracing::warn!(%error, "small logs stay as they are");
                return Ok(());
            }
            copied => copied?,
        };
        let begun = copied.as_ref().map(|log| self.begun(log.number));
        // No log can be trusted until it is certain whether this has happened.
        self.distrust();
        manifest.apply(&begun.into_iter().chain([Edit::LogNumber(number)]).collect::<Vec<_>>())?;
        *ready = None;
        self.go_on(&mut series, host, copied);
        self.broken.store(false, Ordering::Release);
        drop((series, ready));
        self.drop_old(manifest)
    }

    /// A log with everything that the memtables hold, if they hold anything.
    fn copy_all(&self, host: &impl Logged, number: u64) -> Result<Option<FileLog>> {
        // In this order: a write flushed meanwhile is then in the log twice rather than missing.
        let flushed = host.manifest().state().flushed_seq;
        let mut records = host.unflushed(flushed)?;
        records.sort_unstable_by_key(Entry::seq);
        if records.is_empty() { Ok(None) } else { self.copy(number, flushed, &records).map(Some) }
    }

    fn go_on(&self, series: &mut Series, host: &impl Logged, copied: Option<FileLog>) {
        series.older.clear();
        series.current = None;
        let Some(log) = copied else { return };
        (series.previous, series.announced) = (log.number, log.number);
        // An empty memtable begins a log of its own.
        if host.relogged(log.number) {
            series.current = Some(Log::File(log));
        } else {
            series.older.push(Log::File(log));
        }
    }

    /// A durable log that begins with `records`, in order, and replaces all before it.
    fn copy<E: Entry>(&self, number: u64, flushed: u64, records: &[E]) -> Result<FileLog> {
        let copied = (|| {
            let first = LogRecord::Restart { number, flushed };
            let mut log = FileLog::create(&self.core, (number, self.room()), self.database)?;
            log.begin(&first)?;
            let mut append = |record: LogRecord, sync| {
                log.append(&record.bytes(), 0, sync).map_err(|failure| failure.error().clone())
            };
            for run in records.chunk_by(|a, b| a.seq() + 1 == b.seq()) {
                let mut rest = run;
                while !rest.is_empty() {
                    let (ops, taken) = some_ops(rest, RECORD_BYTES)?;
                    append(LogRecord::Batch { first_seq: rest[0].seq(), ops: Box::new(ops) }, false)?;
                    rest = &rest[taken..];
                }
            }
            append(LogRecord::Complete, true)?;
            Ok(log)
        })();
        copied.inspect_err(|_: &Error| self.remove_attempt(number))
    }
}

/// The first operations of `run`, up to about `most_bytes`, and their number.
fn some_ops<E: Entry>(run: &[E], most_bytes: usize) -> Result<(WriteBatch, usize)> {
    let mut ops = WriteBatch::new();
    for (taken, record) in run.iter().enumerate() {
        if ops.encoded().len() >= most_bytes {
            return Ok((ops, taken));
        }
        record.put_into(&mut ops)?;
    }
    Ok((ops, run.len()))
}
