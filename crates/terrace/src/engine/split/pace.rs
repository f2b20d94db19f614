//! How full the records' part of the pool is, when somebody looks, and how much writers are slowed by that.
//!
//! Writers are slowed little by little from a point above that at which migration begins, to less than what migration lately
//! came to when the pool is full: so it catches up before they have to wait for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::options::SplitOptions;

/// Of the bytes that records may take, the part that is written between two looks.
const LOOKS: u64 = 256;

/// Bytes of records to a look, at least.
const LEAST_STEP_BYTES: u64 = 1 << 10;

/// Above where migration begins, the part of what is left that is filled before writers are slowed.
const LEEWAY: f64 = 0.25;

/// What migration is thought to come to a second before it has shown it.
const FIRST_RATE: u64 = 64 << 20;

/// By what migration comes to, how fast writers may be when they begin to be slowed, and in a full pool.
const FASTEST: f64 = 4.0;
const SLOWEST: f64 = 0.5;

/// A write is not held up for longer.
const LONGEST: Duration = Duration::from_millis(5);

/// How full it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fill {
    /// Bytes of records.
    pub used: u64,
    /// Bytes that records may take.
    pub capacity: u64,
}

impl Fill {
    pub fn share(&self) -> f64 {
        self.used as f64 / self.capacity.max(1) as f64
    }

    /// Bytes of records beyond this share.
    pub fn beyond(&self, share: f64) -> u64 {
        self.used.saturating_sub((self.capacity as f64 * share) as u64)
    }
}

/// Nanoseconds for a KiB that is written, of a pool that is so full, where migration comes to `rate` bytes a second and
/// begins at the share `high`.
fn nanos_per_kib(share: f64, high: f64, rate: u64) -> u64 {
    let from = high + (1.0 - high) * LEEWAY;
    if share <= from {
        return 0;
    }
    let way = ((share - from) / (1.0 - from)).min(1.0);
    let allowed = rate.max(1) as f64 * (FASTEST + (SLOWEST - FASTEST) * way);
    (1024.0 * 1e9 / allowed) as u64
}

/// When to look, and how much to wait.
#[derive(Debug)]
pub(super) struct Pace {
    high: f64,
    since_look: AtomicU64,
    step: AtomicU64,
    nanos_per_kib: AtomicU64,
    rate: AtomicU64,
}

impl Pace {
    pub fn new(options: &SplitOptions) -> Pace {
        Pace {
            high: options.high_share,
            since_look: AtomicU64::new(0),
            step: AtomicU64::new(LEAST_STEP_BYTES),
            nanos_per_kib: AtomicU64::new(0),
            rate: AtomicU64::new(FIRST_RATE),
        }
    }

    /// Counts what is about to be written; whether somebody should look how full it is.
    pub fn is_due(&self, bytes: u64) -> bool {
        let step = self.step.load(Ordering::Relaxed);
        let before = self.since_look.fetch_add(bytes, Ordering::Relaxed);
        before < step && before + bytes >= step
    }

    /// Somebody has looked.
    pub fn note(&self, fill: Fill) {
        let rate = self.rate.load(Ordering::Relaxed);
        self.nanos_per_kib.store(nanos_per_kib(fill.share(), self.high, rate), Ordering::Relaxed);
        self.step.store((fill.capacity / LOOKS).max(LEAST_STEP_BYTES), Ordering::Relaxed);
        self.since_look.store(0, Ordering::Relaxed);
    }

    /// So many bytes were migrated in that time.
    pub fn migrated(&self, bytes: u64, took: Duration) {
        let nanos = took.as_nanos() as u64;
        if nanos > 0 && bytes > 0 {
            let rate = (u128::from(bytes) * 1_000_000_000 / u128::from(nanos)) as u64;
            self.rate.store(rate.max(1), Ordering::Relaxed);
        }
    }

    /// How long a write of so many bytes waits.
    pub fn delay(&self, bytes: u64) -> Duration {
        let nanos = self.nanos_per_kib.load(Ordering::Relaxed);
        if nanos == 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(nanos.saturating_mul(bytes) / 1024).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_slowed_smoothly() {
        let at = |share| nanos_per_kib(share, 0.8, 1 << 20);
        assert_eq!((at(0.0), at(0.8), at(0.85)), (0, 0, 0));
        let steps: Vec<u64> = (86..=100).map(|percent| at(f64::from(percent) / 100.0)).collect();
        assert!(steps[0] > 0 && steps.is_sorted());
        assert_eq!(at(1.0), at(7.0));
        // Half of what migration comes to: 512 KiB a second, a KiB in about two milliseconds.
        assert!((1_900_000..2_000_000).contains(&at(1.0)), "{}", at(1.0));
    }

    #[test]
    fn one_of_all_writers_looks() {
        let pace = Pace::new(&SplitOptions::default());
        pace.note(Fill { used: 0, capacity: 256 << 20 });
        let looks = (0..2048).filter(|_| pace.is_due(1024)).count();
        assert_eq!((looks, pace.delay(1 << 20)), (1, Duration::ZERO));
        pace.note(Fill { used: 255 << 20, capacity: 256 << 20 });
        assert!(pace.delay(1 << 10) > Duration::ZERO && pace.delay(1 << 30) == LONGEST);
    }

    #[test]
    fn the_rest_of_a_pool_is_the_records() {
        let fill = Fill { used: 90, capacity: 100 };
        assert_eq!((fill.share(), fill.beyond(0.7), fill.beyond(0.95)), (0.9, 20, 0));
    }
}
