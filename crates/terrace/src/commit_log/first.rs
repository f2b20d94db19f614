//! Where a memtable's writes begin in the logs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first log with writes of a memtable; zero while there is none.
#[derive(Debug, Default)]
pub(crate) struct FirstLog(AtomicU64);

impl FirstLog {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether log `number`, or one before it, has writes of the memtable.
    pub fn is_up_to(&self, number: u64) -> bool {
        (1..=number).contains(&self.get())
    }

    /// Notes that a write went to log `number`. The first one counts.
    pub fn note(&self, number: u64) {
        if self.0.load(Ordering::Relaxed) == 0 {
            let _ = self.0.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Notes that log `number` replaces all logs before it.
    pub fn replace(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }
}

/// The oldest log that the memtables `newer`, newest first, begin in.
pub(crate) fn oldest_first_log(newer: impl Iterator<Item = u64>) -> Option<u64> {
    newer.filter(|&number| number > 0).last()
}
