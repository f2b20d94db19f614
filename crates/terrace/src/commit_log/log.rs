//! One log, wherever it lies.

use super::file::{Failure, FileLog};
use super::pool::PoolLog;

/// One log.
#[derive(Debug)]
pub(super) enum Log {
    Pool(PoolLog),
    File(FileLog),
}

impl Log {
    pub fn number(&self) -> u64 {
        match self {
            Log::Pool(log) => log.number,
            Log::File(log) => log.number,
        }
    }

    /// Its number, if some of its contents are not durable.
    pub fn number_of_unsynced(&self) -> Option<u64> {
        match self {
            Log::Pool(_) => None,
            Log::File(log) => log.is_unsynced().then_some(log.number),
        }
    }

    pub fn append(&mut self, record: &[u8], buffer_bytes: usize, sync: bool) -> Result<(), Failure> {
        match self {
            Log::Pool(log) => log.append(record).map_err(Failure::Refused),
            Log::File(log) => log.append(record, buffer_bytes, sync),
        }
    }

    pub fn sync(&mut self) -> Result<(), Failure> {
        match self {
            // Durable since it was appended.
            Log::Pool(_) => Ok(()),
            Log::File(log) => log.sync(),
        }
    }

    /// Has the medium begin with what a sync would wait for, once that is much.
    pub fn start_sync(&mut self) {
        match self {
            Log::Pool(_) => {}
            Log::File(log) => log.start_sync(),
        }
    }

    /// Gives back what a complete log has reserved and not used, as far as that is possible before the log is removed.
    pub fn trim(&mut self) {
        match self {
            Log::Pool(_) => {}
            Log::File(log) => log.trim(),
        }
    }
}
