//! One log in a file.
//!
//! 1. `good` bytes of the file are records that were acknowledged; what follows was not, or not yet.
//! 2. Records in `buffered` are in no file. They are handed over in order, all or none.
//! 3. After an error other than [`Failure::Refused`] the file takes no more.

use std::path::{Path, PathBuf};

use terrace_base::{Error, ErrorKind, Result};
use terrace_log::{FIRST_LSN, FileSegment, LogWriter, create_log_file, create_reserved_log_file};

use super::record::Record;
use crate::core::Core;
use crate::manifest::FileName;

/// What became of a log that could not do what it was asked.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing: it is as it was before, and may be asked again.
    Refused(Error),
    /// What its end is, or what of it is durable, is not known.
    Broken(Error),
}

impl Failure {
    pub fn error(&self) -> &Error {
        let (Failure::Refused(error) | Failure::Broken(error)) = self;
        error
    }
}

/// A log in a file, being written.
#[derive(Debug)]
pub(super) struct FileLog {
    pub number: u64,
    writer: LogWriter<FileSegment>,
    good: u64,
    unsynced: bool,
    /// Encoded records not yet handed over, with their ends.
    buffered: Vec<u8>,
    ends: Vec<usize>,
}

/// The path of log file `number` in `dir`.
pub(super) fn log_path(dir: &Path, number: u64) -> PathBuf {
    FileName::Log(number).path(dir)
}

/// What an append has come to. By the contract of files one without room leaves nothing.
fn written(outcome: Result<u64>) -> Result<(), Failure> {
    match outcome {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NoSpace => Err(Failure::Refused(e)),
        Err(e) => Err(Failure::Broken(e)),
    }
}

impl FileLog {
    /// Creates log file `number` of `database` with `first` as its first record, not yet synced, and with room to write
    /// through a mapping if it is to be `mapped` and can be.
    pub fn create(
        core: &Core,
        (number, mapped): (u64, bool),
        database: u64,
        first: &Record,
    ) -> Result<FileLog> {
        let path = log_path(&core.dir, number);
        let create = if mapped { create_reserved_log_file } else { create_log_file };
        create(core.fs(), &path, (number, FIRST_LSN), database).and_then(|mut writer| {
            writer.append(&first.bytes())?;
            let good = writer.len();
            let (buffered, ends) = (Vec::new(), Vec::new());
            Ok(FileLog { number, writer, good, unsynced: true, buffered, ends })
        })
    }

    /// Appends `record`, keeping up to `buffer_bytes` back, and makes it durable if `sync`.
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
            // The others were acknowledged.
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

    /// Makes everything appended durable. After a failure nothing that was not durable before can be taken to be so,
    /// whatever a second try says.
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

    /// Whether an append is a copy into a mapping.
    pub fn is_mapped(&self) -> bool {
        self.writer.has_room()
    }

    /// Gives back the room of a log that is complete. What stays does no harm but take it.
    pub fn trim(&mut self) {
        if let Err(error) = self.writer.trim() {
            tracing::warn!(%error, "the room behind a commit log is given back with the log");
        }
    }

    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Everything appended, after which nothing was, has been made durable.
    pub fn note_synced(&mut self) {
        self.unsynced = false;
    }

    /// Leaves the log, of which only what was acknowledged may be found by the next opening of the file. What a failed sync has
    /// made of the file nobody knows; a power cut may bring back what is cut here.
    pub fn leave(&mut self) {
        if let Err(error) = self.writer.cut(self.good) {
            tracing::warn!(%error, "a write that was refused stays in the commit log until that is begun anew");
        }
    }

    /// Ends the log; says how many bytes it has. Where that fails it ends with its last record, as that of a process which was
    /// killed: of an end whose sync has failed anything may be left.
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
