//! How much to slow a writer down, so that none ever has to be stopped.
//!
//! Three things can fall behind: the flush of the memtable before this one, the pool, and the
//! reclaiming of garbage. Each slows writers a little when it begins to fall behind and much when it
//! is nearly lost, along a square: the delay and its slope start at zero, so that writers settle where
//! they are as fast as the background work. The delay is in proportion to the bytes written, so that one
//! large batch pays what many small writes of the same size pay.

use std::time::Duration;

/// The rate to which writers are slowed when the pool or the garbage is at its end: what comes then is an error, or space
/// that only slow work gives back.
const SLOWEST_BYTES_PER_SEC: f64 = (4 << 20) as f64;

/// The rate to which writers are slowed when they have filled a memtable before the flush is done: what comes then is a
/// stop of milliseconds, so no single write need wait as long as that for its part of it.
const SLOWEST_BESIDE_A_FLUSH: f64 = (32 << 20) as f64;

/// No group waits longer than this, however large.
const LONGEST: Duration = Duration::from_millis(50);

/// How far background work is behind.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    /// How much of the memtable before the active one has been flushed, 0 to 1; `None` if there is none.
    pub flushed: Option<f64>,
    /// The share of the active memtable that is used, 0 to 1. When it is full and the one before is
    /// still being flushed, writers stop.
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
    /// The part of the way to a full memtable that writers are ahead of the flush by.
    pub const MEMTABLE: (f64, f64) = (0.1, 1.0);
    pub const POOL: (f64, f64) = (0.8, 0.98);
    pub const GARBAGE: (f64, f64) = (1.0, 4.0);
}

/// How long a group waits before it is written. Zero when nothing is behind; never decreasing in any of
/// the measures, and without jumps; the longest of the three.
pub fn delay(pressure: &Pressure) -> Duration {
    let seconds_a_byte = [
        climb(lead(pressure), ramp::MEMTABLE) / SLOWEST_BESIDE_A_FLUSH,
        climb(pressure.pool_fill, ramp::POOL) / SLOWEST_BYTES_PER_SEC,
        climb(pressure.garbage_debt, ramp::GARBAGE) / SLOWEST_BYTES_PER_SEC,
    ]
    .into_iter()
    .fold(0.0, f64::max);
    let seconds = seconds_a_byte * pressure.group_bytes as f64;
    Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64()))
}

/// How far writers are ahead of the flush, as a part of the way that is left to it: with none they fill the active
/// memtable as fast as the one before is emptied, and slowed in proportion to it they settle there.
fn lead(pressure: &Pressure) -> f64 {
    match pressure.flushed {
        Some(flushed) if flushed < 1.0 => (pressure.memtable_fill - flushed) / (1.0 - flushed),
        _ => 0.0,
    }
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
        flushed: None,
        memtable_fill: 0.0,
        pool_fill: 0.0,
        garbage_debt: 0.0,
        group_bytes: (4 << 20) / 100,
    };
    const SLOWEST: Duration = Duration::from_millis(10);
    const BESIDE_A_FLUSH: Duration = Duration::from_micros(1250);

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
        let pending = Pressure { flushed: Some(0.9), memtable_fill: 1.0, ..GROUP };
        let pool = Pressure { pool_fill: 1.0, ..GROUP };
        let garbage = Pressure { garbage_debt: 9.0, ..GROUP };
        for (pressure, slowest) in [(pending, BESIDE_A_FLUSH), (pool, SLOWEST), (garbage, SLOWEST)] {
            assert!(close(delay(&pressure), slowest));
        }
        let half = Pressure { flushed: Some(0.0), memtable_fill: 0.55, ..GROUP };
        assert!(close(delay(&half), BESIDE_A_FLUSH / 4));
    }

    #[test]
    fn who_keeps_pace_with_the_flush_is_not_slowed() {
        for part in [0.0, 0.2, 0.5, 0.99, 1.0] {
            let pace = Pressure { flushed: Some(part), memtable_fill: part, ..GROUP };
            assert_eq!(delay(&pace), Duration::ZERO);
        }
        let ahead = |flushed| delay(&Pressure { flushed: Some(flushed), memtable_fill: 0.8, ..GROUP });
        assert!(ahead(0.2) > ahead(0.5) && ahead(0.5) > ahead(0.7));
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
            flushed in proptest::option::of(0.0..1.0f64), a in 0.0..1.2f64, b in 0.0..1.2f64, c in 0.0..6.0f64, more in 0.0..0.5f64, which in 0..4,
        ) {
            let base = Pressure {
                flushed, memtable_fill: a, pool_fill: b, garbage_debt: c, ..GROUP
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
                flushed: Some(0.5),
                memtable_fill: fill + step,
                pool_fill: fill + step,
                garbage_debt: garbage + step,
                ..GROUP
            });
            prop_assert!(at(0.001) - at(0.0) <= SLOWEST / 50);
        }
    }
}
