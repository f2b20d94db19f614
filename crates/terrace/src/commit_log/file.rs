//! One log in a file.
//!
//! 1. The first `good` bytes of the file are acknowledged records; the rest was not acknowledged, or not yet.
//! 2. Records in `buffered` are in no file yet. They are handed over in order, all or none.
//! 3. After an error other than [`Failure::Refused`] the file accepts no more records.

use std::path::{Path, PathBuf};

use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::Room;
use terrace_log::{FIRST_LSN, FileSegment, LogWriter, create_reserved_log_file};

use super::record::LogRecord;
use crate::core::Core;
use crate::manifest::FileName;

/// Bytes of a log that will be synced as a whole, and that the medium is asked to begin with at a time.
const STARTED_BYTES: u64 = 1 << 20;

/// The state of a log after a failed operation.
#[derive(Debug)]
pub(super) enum Failure {
    /// Unchanged: it may be tried again.
    Refused(Error),
    /// Its end, or how much of it is durable, is unknown.
    Broken(Error),
}

impl Failure {
    pub fn error(&self) -> &Error {
        let (Failure::Refused(error) | Failure::Broken(error)) = self;
        error
    }
}

/// A log in a file that is being written.
#[derive(Debug)]
pub(super) struct FileLog {
    pub number: u64,
    writer: LogWriter<FileSegment>,
    good: u64,
    unsynced: bool,
    /// Bytes that the medium was asked to begin with.
    started: u64,
    /// Encoded records not yet handed over, with their ends.
    buffered: Vec<u8>,
    ends: Vec<usize>,
}

/// The path of log file `number` in `dir`.
pub(super) fn log_path(dir: &Path, number: u64) -> PathBuf {
    FileName::Log(number).path(dir)
}

/// The outcome of an append. By the contract of files, an append without room leaves nothing.
fn written(outcome: Result<u64>) -> Result<(), Failure> {
    match outcome {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NoSpace => Err(Failure::Refused(e)),
        Err(e) => Err(Failure::Broken(e)),
    }
}

impl FileLog {
    /// Creates log file `number` of `database`, with `room` if it can have some. It is durable, and has no record yet.
    pub fn create(core: &Core, (number, room): (u64, Room), database: u64) -> Result<FileLog> {
        let path = log_path(&core.dir, number);
        let writer = create_reserved_log_file(core.fs(), &path, (number, FIRST_LSN), database, room)?;
        let good = writer.len();
        let (buffered, ends) = (Vec::new(), Vec::new());
        Ok(FileLog { number, writer, good, unsynced: false, started: 0, buffered, ends })
    }

    /// Begins it with the record `first`, which is not synced.
    pub fn begin(&mut self, first: &LogRecord) -> Result<()> {
        self.unsynced = true;
        self.writer.append(&first.bytes())?;
        self.acknowledge();
        Ok(())
    }

    /// Appends `record`, keeping back up to `buffer_bytes`, and makes it durable if `sync`.
    pub fn append(&mut self, record: &[u8], buffer_bytes: usize, sync: bool) -> Result<(), Failure> {
        self.unsynced = true;
        if self.buffered.is_empty() && record.len() > buffer_bytes {
            written(self.writer.append(record))?;
        } else {
            self.buffer(record, buffer_bytes, sync)?;
        }
        if sync {
            self.sync()?;
        }
        self.acknowledge();
        Ok(())
    }

    fn buffer(&mut self, record: &[u8], buffer_bytes: usize, hand_over: bool) -> Result<(), Failure> {
        let before = (self.buffered.len(), self.ends.len());
        self.buffered.extend_from_slice(record);
        self.ends.push(self.buffered.len());
        if !hand_over && self.buffered.len() <= buffer_bytes {
            return Ok(());
        }
        self.hand_over().inspect_err(|_| {
            // The earlier records were acknowledged.
            self.buffered.truncate(before.0);
            self.ends.truncate(before.1);
        })
    }

    fn acknowledge(&mut self) {
        self.good = self.writer.len();
    }

    fn hand_over(&mut self) -> Result<(), Failure> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let records = starts.zip(&self.ends).map(|(start, &end)| &self.buffered[start..end]);
        written(self.writer.append_all(records))?;
        self.buffered.clear();
        self.ends.clear();
        Ok(())
    }

    /// Makes everything appended durable. After a failure, nothing that was not durable before may be assumed
    /// durable, whatever a second attempt reports.
    pub fn sync(&mut self) -> Result<(), Failure> {
        if !self.unsynced {
            return Ok(());
        }
        self.hand_over()?;
        self.writer.sync().map_err(Failure::Broken)?;
        self.acknowledge();
        self.unsynced = false;
        Ok(())
    }

    /// Has the medium begin with what a sync would wait for, once that is much.
    pub fn start_sync(&mut self) {
        if self.writer.len() - self.started >= STARTED_BYTES {
            self.writer.start_sync();
            self.started = self.writer.len();
        }
    }

    /// Whether it is written through a mapping.
    pub fn is_mapped(&self) -> bool {
        self.writer.is_mapped()
    }

    /// Gives back the unused room of a complete log. If that fails, the room is merely wasted.
    pub fn trim(&mut self) {
        if let Err(error) = self.writer.trim() {
            tracing::warn!(%error, "the room behind a commit log is given back with the log");
        }
    }

    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Everything appended has been made durable, and nothing was appended since.
    pub fn note_synced(&mut self) {
        self.unsynced = false;
    }

    /// Stops using the log; the next opening of the file may find only what was acknowledged. The state of
    /// the file after a failed sync is unknown; a power cut may bring back what is cut here.
    pub fn leave(&mut self) {
        if let Err(error) = self.writer.cut(self.good) {
            tracing::warn!(%error, "a write that was refused stays in the commit log until that is begun anew");
        }
    }

    /// Ends the log; returns its size in bytes. If that fails, it ends with its last record, like the log of
    /// a killed process: after a failed sync any part of its end may be left.
    pub fn seal(&mut self) -> Result<u64, Failure> {
        let sealed = self.writer.seal();
        let is_written = self.writer.len() > self.good;
        match sealed {
            Ok(()) => Ok(self.writer.len()),
            Err(e) if e.kind() == ErrorKind::NoSpace && !is_written => Err(Failure::Refused(e)),
            Err(e) => {
                self.leave();
                Err(Failure::Broken(e))
            }
        }
    }
}
