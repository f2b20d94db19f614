//! How much to slow a writer down, so that none ever has to be stopped.
//!
//! Three things can fall behind: the flush of the memtable before this one, the pool, and the
//! reclaiming of garbage. Each slows writers a little when it begins to fall behind and much when it
//! is nearly lost, along a square: the delay and its slope start at zero, so that writers settle where
//! they are as fast as the background work. The delay is in proportion to the bytes written, so that one
//! large batch pays what many small writes of the same size pay.

use std::time::Duration;

/// The rate to which writers are slowed when any one measure is at its end.
const SLOWEST_BYTES_PER_SEC: f64 = (4 << 20) as f64;

/// No group waits longer than this, however large.
const LONGEST: Duration = Duration::from_millis(50);

/// How far background work is behind.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    /// Whether a memtable is waiting to be flushed or being flushed.
    pub immutable_pending: bool,
    /// The share of the active memtable that is used, 0 to 1. When it is full and the one before is
    /// still pending, writers stop.
    pub memtable_fill: f64,
    /// The share of the pool, at its largest, that is used, 0 to 1.
    pub pool_fill: f64,
    /// Dead entries in tables for every live one.
    pub garbage_debt: f64,
    /// Bytes of the group that is about to be written.
    pub group_bytes: u64,
}

/// Where each measure begins to matter, and where its delay is the longest.
mod ramp {
    pub const MEMTABLE: (f64, f64) = (0.5, 1.0);
    pub const POOL: (f64, f64) = (0.8, 0.98);
    pub const GARBAGE: (f64, f64) = (1.0, 4.0);
}

/// How long a group waits before it is written. Zero when nothing is behind; never decreasing in any of
/// the measures, and without jumps; the longest of the three.
pub fn delay(pressure: &Pressure) -> Duration {
    let memtable = if pressure.immutable_pending { pressure.memtable_fill } else { 0.0 };
    let worst = [
        climb(memtable, ramp::MEMTABLE),
        climb(pressure.pool_fill, ramp::POOL),
        climb(pressure.garbage_debt, ramp::GARBAGE),
    ]
    .into_iter()
    .fold(0.0, f64::max);
    let seconds = worst * pressure.group_bytes as f64 / SLOWEST_BYTES_PER_SEC;
    Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64()))
}

/// The square of how far `value` is from the beginning of the ramp to its end.
pub(super) fn climb(value: f64, (from, to): (f64, f64)) -> f64 {
    let part = ((value - from) / (to - from)).clamp(0.0, 1.0);
    // A measure that is not a number says nothing.
    if part.is_nan() { 0.0 } else { part * part }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that take ten milliseconds at the slowest.
    const GROUP: Pressure = Pressure {
        immutable_pending: false,
        memtable_fill: 0.0,
        pool_fill: 0.0,
        garbage_debt: 0.0,
        group_bytes: (4 << 20) / 100,
    };
    const SLOWEST: Duration = Duration::from_millis(10);

    /// Within a microsecond of each other.
    fn close(a: Duration, b: Duration) -> bool {
        a.abs_diff(b) < Duration::from_micros(1)
    }

    #[test]
    fn nothing_behind_nothing_delayed() {
        assert_eq!(delay(&GROUP), Duration::ZERO);
        let full = Pressure { memtable_fill: 1.0, ..GROUP };
        assert_eq!(delay(&full), Duration::ZERO, "it can be switched at once");
        let odd = Pressure { garbage_debt: f64::NAN, ..GROUP };
        assert_eq!(delay(&odd), Duration::ZERO);
    }

    #[test]
    fn each_measure_alone_reaches_the_slowest_rate() {
        let pending = Pressure { immutable_pending: true, memtable_fill: 1.0, ..GROUP };
        let pool = Pressure { pool_fill: 1.0, ..GROUP };
        let garbage = Pressure { garbage_debt: 9.0, ..GROUP };
        for pressure in [pending, pool, garbage] {
            assert!(close(delay(&pressure), SLOWEST));
        }
        let half = Pressure { immutable_pending: true, memtable_fill: 0.75, ..GROUP };
        assert!(close(delay(&half), SLOWEST / 4));
    }

    #[test]
    fn a_large_group_waits_longer_but_not_for_ever() {
        let full = Pressure { pool_fill: 1.0, ..GROUP };
        assert!(close(delay(&Pressure { group_bytes: full.group_bytes * 2, ..full }), SLOWEST * 2));
        assert_eq!(delay(&Pressure { group_bytes: u64::MAX, ..full }), LONGEST);
        assert_eq!(delay(&Pressure { group_bytes: 0, ..full }), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn more_pressure_never_shortens_the_delay(
            pending: bool, a in 0.0..1.2f64, b in 0.0..1.2f64, c in 0.0..6.0f64, more in 0.0..0.5f64, which in 0..4,
        ) {
            let base = Pressure {
                immutable_pending: pending, memtable_fill: a, pool_fill: b, garbage_debt: c, ..GROUP
            };
            let mut worse = base;
            match which {
                0 => worse.memtable_fill += more,
                1 => worse.pool_fill += more,
                2 => worse.garbage_debt += more,
                _ => worse.group_bytes += 1,
            }
            prop_assert!(delay(&worse) >= delay(&base));
            prop_assert!(delay(&worse) <= LONGEST);
        }

        #[test]
        fn a_small_step_is_a_small_delay(fill in 0.0..1.0f64, garbage in 0.0..5.0f64) {
            let at = |step: f64| delay(&Pressure {
                immutable_pending: true,
                memtable_fill: fill + step,
                pool_fill: fill + step,
                garbage_debt: garbage + step,
                ..GROUP
            });
            prop_assert!(at(0.001) - at(0.0) <= SLOWEST / 50);
        }
    }
}
