//! Whether many ranges are read of a memtable: as many as [`MANY`] within [`WINDOW`].
//!
//! Two reads at once may count as one: the figure must be cheap, and only decides how the next memtable is ordered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Sorting a memtable for each range costs more than keeping it sorted from this many ranges a window on.
const MANY: u64 = 4;

const WINDOW: Duration = Duration::from_secs(10);

/// The range reads of one memtable.
#[derive(Debug, Default)]
pub(super) struct RangeReads {
    /// When the window began, in milliseconds of the clock.
    since: AtomicU64,
    /// Reads in the window.
    count: AtomicU64,
    /// Some window has had many.
    are_many: AtomicBool,
}

impl RangeReads {
    /// Notes a read at the clock's time `now`; true for the one with which they have become many.
    pub fn note(&self, now: Duration) -> bool {
        let now = now.as_millis() as u64;
        if now.saturating_sub(self.since.load(Ordering::Relaxed)) >= WINDOW.as_millis() as u64 {
            self.since.store(now, Ordering::Relaxed);
            self.count.store(0, Ordering::Relaxed);
        }
        let count = 1 + self.count.fetch_add(1, Ordering::Relaxed);
        count == MANY && !self.are_many.swap(true, Ordering::Relaxed)
    }

    /// Whether they were many; the next memtable begins with none.
    pub fn take(&self) -> bool {
        self.count.store(0, Ordering::Relaxed);
        self.are_many.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_within_a_window_are_many() {
        let at = Duration::from_secs;
        let reads = RangeReads::default();
        assert!((0..10).all(|read| !reads.note(at(5 * read))), "one in five seconds");
        assert!(!reads.take());
        let reads = RangeReads::default();
        let noted: Vec<bool> = (0..6).map(|_| reads.note(at(100))).collect();
        assert_eq!(noted, [false, false, false, true, false, false], "told once");
        assert!(!reads.note(at(200)));
        assert!(reads.take(), "a quiet window later the memtable is the same");
        assert!(!reads.take());
    }
}
