//! The commit log of a database whose pool is an ordinary file.
//!
//! Such a pool survives the process but not a power cut, so every group is also appended to a log file,
//! one group of logs for each memtable. A power cut then costs at most what was never synced: SSTables
//! and logs rebuild a prefix of the history that holds every synced write.
//!
//! 1. A log is complete and synced before its successor is begun, and before its memtable is flushed: what is
//!    in tables and not yet counted as flushed is in the logs.
//! 2. Where that fails, because a process was killed or a log could not be written, a new log begins with
//!    everything that the memtables hold ([`Slm::restart_log`]); it stands for all logs before it.
//! 3. Logs are changed by the leader alone.
//!
//! A record is the first sequence number (varint) and the batch as `batch.rs` encodes it. An empty batch
//! begins a log that stands for all before it.

use std::path::Path;
use std::sync::atomic::Ordering;

use terrace_base::codec::{Reader, put_varint};
use terrace_base::{Error, Result};
use terrace_disk::Fs;
use terrace_index::ListCursor;
use terrace_log::{FIRST_LSN, FileSegment, LogReader, LogWriter, Tail, create_log_file, unfinished_path};
use terrace_pmem::Granularity;
use terrace_table::Kind;

use super::Slm;
use super::memtable::{MemSet, MemTable};
use super::tables::{FileKind, classify, log_path};
use crate::batch::WriteBatch;
use crate::engine::Group;
use crate::manifest::Edit;

/// Bytes kept in DRAM before they are handed to the file system. Unsynced records are in the pool as
/// well, so a killed process loses none of them.
const BUFFER_BYTES: usize = 256 << 10;

/// The log being written.
#[derive(Debug)]
pub(super) struct CommitLog {
    writer: LogWriter<FileSegment>,
    /// Encoded records not yet handed over, with their ends.
    buffered: Vec<u8>,
    ends: Vec<usize>,
}

impl CommitLog {
    fn create(fs: &dyn Fs, dir: &Path, number: u64) -> Result<CommitLog> {
        let writer = create_log_file(fs, &log_path(dir, number), (number, FIRST_LSN), 0)?;
        Ok(CommitLog { writer, buffered: Vec::new(), ends: Vec::new() })
    }

    /// Makes it stand for all logs before it: it holds `records`, which come after `flushed`, durably.
    fn begin_with(mut self, flushed: u64, records: &[ListCursor]) -> Result<CommitLog> {
        self.push(flushed, &WriteBatch::new())?;
        for records in records.chunk_by(|a, b| a.batch_first() == b.batch_first()) {
            let mut batch = WriteBatch::new();
            for record in records {
                match Kind::from_u8(record.kind()) {
                    Some(Kind::Put) => batch.put(record.key(), record.value()?),
                    _ => batch.delete(record.key()),
                }
            }
            self.push(records[0].seq(), &batch)?;
        }
        self.sync()?;
        Ok(self)
    }

    fn push(&mut self, first_seq: u64, batch: &WriteBatch) -> Result<()> {
        put_varint(&mut self.buffered, first_seq);
        self.buffered.extend_from_slice(batch.encoded());
        self.ends.push(self.buffered.len());
        if self.buffered.len() >= BUFFER_BYTES { self.hand_over() } else { Ok(()) }
    }

    fn hand_over(&mut self) -> Result<()> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let records = starts.zip(&self.ends).map(|(start, &end)| &self.buffered[start..end]);
        self.writer.append_all(records)?;
        self.buffered.clear();
        self.ends.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.hand_over()?;
        self.writer.sync()
    }
}

impl Slm {
    /// Whether writes need a log beside the pool.
    pub(super) fn logs_writes(&self) -> bool {
        self.pool.granularity() == Granularity::Page
    }

    /// Appends the group, and syncs it where asked to. After a failure the log's end is unknown, so
    /// it is left behind; see [`mend_log`](Self::mend_log).
    pub(super) fn append_to_log(&self, memtable: &MemTable, group: &Group<'_>) -> Result<()> {
        let mut log = self.log.lock();
        let outcome = self.append_locked(&mut log, memtable, group);
        if outcome.is_err() {
            self.abandon_log(&mut log);
        }
        outcome
    }

    fn abandon_log(&self, log: &mut Option<CommitLog>) {
        *log = None;
        self.log_broken.store(true, Ordering::Release);
    }

    /// After a failure of the log: puts everything that it may have lost into a new one.
    pub(super) fn mend_log(&self) -> Result<()> {
        if self.log_broken.load(Ordering::Acquire) { self.restart_log() } else { Ok(()) }
    }

    /// Begins a log with everything that the memtables hold and drops those before it.
    pub(super) fn restart_log(&self) -> Result<()> {
        let mut log = self.log.lock();
        self.abandon_log(&mut log);
        let number = self.new_file_number();
        // In this order: what is flushed meanwhile is in the log twice rather than not at all.
        let flushed = self.manifest.state().flushed_seq;
        let mem = self.mem.load_full();
        let records = records_after(&mem, flushed)?;
        if !records.is_empty() {
            *log = Some(self.log_containing(number, flushed, &records)?);
        }
        if let Err(e) = self.manifest.apply(&[Edit::LogNumber(number)]) {
            self.abandon_log(&mut log);
            return Err(e);
        }
        // An empty memtable goes on in the log, if there is one: what will be written to it is in there.
        mem.iter().filter(|m| log.is_some() || !m.is_empty()).for_each(|m| m.relogged(number));
        self.log_broken.store(false, Ordering::Release);
        drop(log);
        self.remove_old_logs()
    }

    /// A log that begins with `records`, in order, all durable; `flushed` is where they begin.
    fn log_containing(&self, number: u64, flushed: u64, records: &[ListCursor]) -> Result<CommitLog> {
        let fs = self.core.fs();
        let outcome =
            CommitLog::create(fs, &self.core.dir, number).and_then(|log| log.begin_with(flushed, records));
        if outcome.is_err() {
            // Were it to stay it would do no harm but take room, which may be what is missing.
            let path = log_path(&self.core.dir, number);
            let _ = fs.remove(&unfinished_path(&path)).or_else(|_| fs.remove(&path));
        }
        outcome
    }

    /// Removes logs that the manifest says are no longer needed.
    pub(super) fn remove_old_logs(&self) -> Result<()> {
        for path in self.manifest.listing()?.leftovers {
            if matches!(classify(&path), FileKind::Log(_)) {
                self.core.fs().remove(&path)?;
            }
        }
        Ok(())
    }

    fn append_locked(
        &self,
        log: &mut Option<CommitLog>,
        memtable: &MemTable,
        group: &Group<'_>,
    ) -> Result<()> {
        if log.is_none() {
            let number = self.new_file_number();
            *log = Some(CommitLog::create(self.core.fs(), &self.core.dir, number)?);
            memtable.logged_from(number);
        }
        let Some(log) = log else { return Err(Error::invalid("the commit log is not open")) };
        let mut seq = group.first_seq;
        for request in group.requests {
            log.push(seq, &request.batch)?;
            seq += request.batch.len() as u64;
        }
        if group.sync { log.sync() } else { Ok(()) }
    }

    /// Completes the log before a new memtable, and with it a new log, is begun.
    pub(super) fn finish_log(&self) -> Result<()> {
        let mut log = self.log.lock();
        if let Some(open) = log.as_mut()
            && let Err(e) = open.sync()
        {
            self.abandon_log(&mut log);
            return Err(e);
        }
        *log = None;
        Ok(())
    }

    /// Makes everything logged so far power-safe.
    pub(super) fn sync_log(&self) -> Result<()> {
        self.mend_log()?;
        let mut log = self.log.lock();
        let outcome = log.as_mut().map_or(Ok(()), CommitLog::sync);
        if outcome.is_err() {
            self.abandon_log(&mut log);
        }
        outcome
    }
}

/// The memtables' records after `flushed`, in the order in which they were written.
fn records_after(mem: &MemSet, flushed: u64) -> Result<Vec<ListCursor>> {
    let mut records = Vec::new();
    for memtable in mem.iter() {
        let mut cursor = memtable.list().cursor();
        cursor.seek_first()?;
        while cursor.valid() {
            if cursor.seq() > flushed {
                records.push(cursor.clone());
            }
            cursor.next()?;
        }
    }
    records.sort_unstable_by_key(ListCursor::seq);
    Ok(records)
}

/// Reads the batches of one log with their first sequence numbers. A torn end is where reading stops.
pub(super) fn replay(
    fs: &dyn Fs,
    path: &Path,
    number: u64,
    each: &mut dyn FnMut(u64, WriteBatch) -> Result<()>,
) -> Result<Tail> {
    let outline = LogReader::recover(fs, path, number, &mut |_, payload| {
        let mut reader = Reader::new(payload);
        let seq = reader.varint();
        let batch = WriteBatch::decode(reader.rest());
        match (seq, batch) {
            (Some(seq), Some(batch)) => each(seq, batch),
            _ => Err(Error::corruption(path, 0, "a batch", "bytes that do not decode")),
        }
    });
    outline.map(|outline| outline.tail)
}
