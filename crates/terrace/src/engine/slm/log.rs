//! The commit log of a database whose pool is an ordinary file.
//!
//! Such a pool survives the process but not a power cut, so every group is also appended to a log file,
//! one group of logs for each memtable. A power cut then costs at most what was never synced: SSTables
//! and logs rebuild a prefix of the history that holds every synced write. A log is complete and
//! synced before its successor is begun, which is what makes it a prefix.
//!
//! A record is the first sequence number (varint) and the batch as `batch.rs` encodes it.

use std::path::Path;
use std::sync::atomic::Ordering;

use terrace_base::codec::{Reader, put_varint};
use terrace_base::{Error, Result};
use terrace_disk::Fs;
use terrace_log::{FIRST_LSN, FileSegment, LogReader, LogWriter, Tail, create_log_file};
use terrace_pmem::Granularity;

use super::Slm;
use super::memtable::MemTable;
use super::tables::log_path;
use crate::batch::WriteBatch;
use crate::engine::Group;

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
        let writer = create_log_file(fs, &log_path(dir, number), number, FIRST_LSN)?;
        Ok(CommitLog { writer, buffered: Vec::new(), ends: Vec::new() })
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

    /// After a failure of the log: has everything that it may have lost put into tables, so that the next
    /// log continues from there.
    pub(super) fn mend_log(&self) -> Result<()> {
        if !self.log_broken.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait_for_flush()?;
        if !self.mem.load().active().is_empty() {
            self.rotate_memtable()?;
            self.wait_for_flush()?;
        }
        self.log_broken.store(false, Ordering::Release);
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
        let mut log = self.log.lock();
        let outcome = log.as_mut().map_or(Ok(()), CommitLog::sync);
        if outcome.is_err() {
            self.abandon_log(&mut log);
        }
        outcome
    }
}

/// Reads the batches of one log with their first sequence numbers. A torn end is where reading stops.
pub(super) fn replay(
    fs: &dyn Fs,
    path: &Path,
    number: u64,
    each: &mut dyn FnMut(u64, WriteBatch) -> Result<()>,
) -> Result<Tail> {
    LogReader::recover(fs, path, number, &mut |_, payload| {
        let mut reader = Reader::new(payload);
        let seq = reader.varint();
        let batch = WriteBatch::decode(reader.rest());
        match (seq, batch) {
            (Some(seq), Some(batch)) => each(seq, batch),
            _ => Err(Error::corruption(path, 0, "a batch", "bytes that do not decode")),
        }
    })
}
