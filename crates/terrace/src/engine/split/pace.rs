//! How full the records' part of the pool is, when to check that, and how much writers are throttled.
//!
//! Throttling begins above the share at which migration begins, and grows as the pool fills; in a full pool
//! writers are slower than the recent migration rate, so migration catches up before writers have to wait for
//! it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::options::SplitOptions;

/// The part of the records' capacity that is written between two checks.
const LOOKS: u64 = 256;

/// The least bytes of records between two checks.
const LEAST_STEP_BYTES: u64 = 1 << 10;

/// The part of the room above the migration threshold that fills before throttling begins.
const LEEWAY: f64 = 0.25;

/// The assumed migration rate, in bytes a second, before one was measured.
const FIRST_RATE: u64 = 64 << 20;

/// Writers' speed, as a multiple of the migration rate, when throttling begins, and in a full pool.
const FASTEST: f64 = 4.0;
const SLOWEST: f64 = 0.5;

/// The longest delay of a write.
const LONGEST: Duration = Duration::from_millis(5);

/// How full the records' part is.
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

/// Nanoseconds of delay for each KiB written, if `share` of the pool is full and migration reaches `rate`
/// bytes a second and begins at the share `high`.
fn nanos_per_kib(share: f64, high: f64, rate: u64) -> u64 {
    let from = high + (1.0 - high) * LEEWAY;
    if share <= from {
        return 0;
    }
    let way = ((share - from) / (1.0 - from)).min(1.0);
    let allowed = rate.max(1) as f64 * (FASTEST + (SLOWEST - FASTEST) * way);
    (1024.0 * 1e9 / allowed) as u64
}

/// When to check, and how long to wait.
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

    /// Counts what is about to be written; returns whether to check how full the pool is.
    pub fn is_due(&self, bytes: u64) -> bool {
        let step = self.step.load(Ordering::Relaxed);
        let before = self.since_look.fetch_add(bytes, Ordering::Relaxed);
        before < step && before + bytes >= step
    }

    /// Notes the result of a check.
    pub fn note(&self, fill: Fill) {
        let rate = self.rate.load(Ordering::Relaxed);
        self.nanos_per_kib.store(nanos_per_kib(fill.share(), self.high, rate), Ordering::Relaxed);
        self.step.store((fill.capacity / LOOKS).max(LEAST_STEP_BYTES), Ordering::Relaxed);
        self.since_look.store(0, Ordering::Relaxed);
    }

    /// Notes that this many bytes were migrated in this time.
    pub fn migrated(&self, bytes: u64, took: Duration) {
        let nanos = took.as_nanos() as u64;
        if nanos > 0 && bytes > 0 {
            let rate = (u128::from(bytes) * 1_000_000_000 / u128::from(nanos)) as u64;
            self.rate.store(rate.max(1), Ordering::Relaxed);
        }
    }

    /// The delay of a write of this many bytes.
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
        // Half of the migration rate: 512 KiB a second, a KiB in about two milliseconds.
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
