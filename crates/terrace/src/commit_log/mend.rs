//! Going on after a failure: what memtables hold goes elsewhere, and the logs before are needed no more.

use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};

use super::file::FileLog;
use super::{CommitLog, Log, Logged, Place, Record, Series};
use crate::batch::WriteBatch;
use crate::manifest::Edit;

/// Bytes of operations in one record of a log that begins with what memtables hold.
const RECORD_BYTES: usize = 256 << 10;

/// What a new log takes beside what it holds: headers, and whole blocks for its name.
const ROOM_BYTES: u64 = 64 << 10;

/// So many logs in files may be left by openings in which little was written.
const MOST_SMALL_LOGS: usize = 4;

/// What memtables may hold for each log that is there, for all of it to be copied or flushed.
const SMALL_LOG_BYTES: u64 = 256 << 10;

/// Why a log is begun that takes the place of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The one before is broken.
    Must,
    /// Many small ones are there.
    Wish,
}

/// Whether of `there` logs, which hold no more than `bytes` together, one should take the place: openings in which little was
/// written have left them.
pub(crate) fn are_many_and_small(there: usize, bytes: u64) -> bool {
    there > MOST_SMALL_LOGS && bytes <= there as u64 * SMALL_LOG_BYTES
}

/// A record of a memtable, on its way into another log.
pub(crate) trait Entry {
    /// Its sequence number.
    fn seq(&self) -> u64;

    /// Adds the operation to a batch.
    fn put_into(&self, ops: &mut WriteBatch) -> Result<()>;
}

impl CommitLog {
    /// After a failure of the log: brings everything that it may have lost elsewhere. Refused at once, with nothing
    /// written, while the disk has no room for it.
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

    /// [`mend`](Self::mend), for a write that was refused just now: what does not succeed here is done before the next.
    pub fn try_to_mend(&self, host: &impl Logged) {
        if let Err(error) = self.mend(host) {
            tracing::warn!(%error, "the commit log could not be begun anew");
        }
    }

    /// After an opening in order that has found `there` logs in files: each writer that opens the database begins one, so
    /// where many hold little one takes the place of all. Where the disk has no room for it they stay.
    pub fn join_small(&self, host: &impl Logged, there: usize) -> Result<()> {
        let bytes = host.memtable_bytes();
        let is_in_files = matches!(self.series.lock().place, Place::Files);
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

    /// Begins a log with everything that the memtables hold and drops those before it. Where that is merely a `Wish`, a log
    /// that cannot be written is none, and all stays as it is.
    fn begin_anew(&self, host: &impl Logged, need: Need) -> Result<()> {
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
        // Until it is certain whether this has happened no log is to be trusted.
        self.distrust();
        manifest.apply(&begun.into_iter().chain([Edit::LogNumber(number)]).collect::<Vec<_>>())?;
        self.go_on(&mut series, host, copied);
        self.broken.store(false, Ordering::Release);
        drop(series);
        self.drop_old(manifest)
    }

    /// A log with everything that the memtables hold, if they hold anything.
    fn copy_all(&self, host: &impl Logged, number: u64) -> Result<Option<FileLog>> {
        // In this order: what is flushed meanwhile is in the log twice rather than not at all.
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

    /// A log that begins with `records`, in order, and stands for all before it; durable.
    fn copy<E: Entry>(&self, number: u64, flushed: u64, records: &[E]) -> Result<FileLog> {
        let copied = (|| {
            let first = Record::Restart { number, flushed };
            let mut log = FileLog::create(&self.core, (number, self.maps_files()), self.database, &first)?;
            let mut append = |record: Record, sync| {
                log.append(&record.bytes(), 0, sync).map_err(|failure| failure.error().clone())
            };
            for run in records.chunk_by(|a, b| a.seq() + 1 == b.seq()) {
                let mut rest = run;
                while !rest.is_empty() {
                    let (ops, taken) = some_ops(rest, RECORD_BYTES)?;
                    append(Record::Batch { first_seq: rest[0].seq(), ops }, false)?;
                    rest = &rest[taken..];
                }
            }
            append(Record::Complete, true)?;
            Ok(log)
        })();
        copied.inspect_err(|_: &Error| self.remove_attempt(number))
    }
}

/// The first operations of `run`, not too many, and how many they are.
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
