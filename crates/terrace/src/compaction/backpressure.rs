//! How much to throttle a writer, so that none ever has to stop.
//!
//! Three things can run out: the time until the flush of the previous memtable ends, the room in the pool, and
//! the room that garbage in tables may take while compactions are behind. Each throttles writers a little when it
//! begins to and much when it has nearly run out, along a square: the delay and its slope start at zero, so that
//! writers settle at the speed of the background work. The delay is in proportion to the bytes written, so that one
//! large batch pays what many small writes of the same size pay.
//!
//! The duration of a flush is known, and writers that are ahead of it are throttled in proportion to that. A
//! delay by bytes alone would be too short for small records, which cost a flush more for each byte: writers
//! would still fill their memtable, and stop.

use std::time::Duration;

/// The rate to which writers are throttled when the pool is at its end, where an error comes next, and when
/// garbage is at the end of its ramp.
const SLOWEST_BYTES_PER_SEC: f64 = (4 << 20) as f64;

/// Writers that have nearly filled a memtable before the flush is done are throttled to this part of its
/// pace. That is enough for those that are ten times as fast as the flush; with less throttling they stop,
/// with more the delays exceed the stop.
const SLOWEST_BESIDE_A_FLUSH: f64 = 0.2;

/// No group waits longer than this, however large.
const LONGEST: Duration = Duration::from_millis(50);

/// How far background work is behind.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    /// How much of the previous memtable has been flushed, 0 to 1; `None` if there is none.
    pub flushed: Option<f64>,
    /// The duration of that whole flush, in seconds; 0 if nothing is known of it yet.
    pub flush_seconds: f64,
    /// The share of the active memtable that is used, 0 to 1. When it is full and the previous one is still
    /// being flushed, writers stop.
    pub memtable_fill: f64,
    /// The share of the active memtable that the group is about to take.
    pub group_fill: f64,
    /// The share of the pool, at its largest, that is used, 0 to 1.
    pub pool_fill: f64,
    /// Bytes of garbage that compactions are behind with, for each byte that lives.
    pub garbage: f64,
    /// Bytes of the group that is about to be written.
    pub group_bytes: u64,
}

/// Where each measure begins to matter, and where its delay is longest.
mod ramp {
    /// Writers' lead over the flush, as a part of the way to a full memtable.
    pub const MEMTABLE: (f64, f64) = (0.1, 1.0);
    pub const POOL: (f64, f64) = (0.8, 0.98);
    /// By bytes of overdue garbage a byte that lives: writers settle where compactions keep up with them.
    pub const GARBAGE: (f64, f64) = (1.0, 4.0);
}

/// The delay of a group before it is written. Zero when nothing is behind; the longest of the delays; it
/// never decreases in any of the measures, and has no jumps.
pub fn delay(pressure: &Pressure) -> Duration {
    let behind = climb(pressure.pool_fill, ramp::POOL).max(climb(pressure.garbage, ramp::GARBAGE));
    let seconds_a_byte = behind / SLOWEST_BYTES_PER_SEC;
    let seconds = (seconds_a_byte * pressure.group_bytes as f64).max(beside_a_flush(pressure));
    Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64()))
}

/// Seconds: at most a multiple of the flush's time for as much as the group has.
fn beside_a_flush(pressure: &Pressure) -> f64 {
    let slowest = pressure.flush_seconds / SLOWEST_BESIDE_A_FLUSH;
    climb(lead(pressure), ramp::MEMTABLE) * slowest * pressure.group_fill
}

/// Writers' lead over the flush, as a part of the flush's remaining way: without a lead they fill the active
/// memtable as fast as the previous one is emptied, and a delay in proportion to the lead makes them settle
/// there.
pub fn lead(pressure: &Pressure) -> f64 {
    match pressure.flushed {
        Some(flushed) if flushed < 1.0 => (pressure.memtable_fill - flushed) / (1.0 - flushed),
        _ => 0.0,
    }
}

/// The square of the position of `value` between the beginning of the ramp and its end.
pub(super) fn climb(value: f64, (from, to): (f64, f64)) -> f64 {
    let part = ((value - from) / (to - from)).clamp(0.0, 1.0);
    // A measure that is not a number is ignored.
    if part.is_nan() { 0.0 } else { part * part }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that take ten milliseconds at the slowest, and one at the pace of the flush.
    const GROUP: Pressure = Pressure {
        flushed: None,
        flush_seconds: 1.0,
        memtable_fill: 0.0,
        group_fill: 0.001,
        pool_fill: 0.0,
        garbage: 0.0,
        group_bytes: (4 << 20) / 100,
    };
    const SLOWEST: Duration = Duration::from_millis(10);
    const PACE: Duration = Duration::from_millis(1);

    /// Within a microsecond of each other.
    fn close(a: Duration, b: Duration) -> bool {
        a.abs_diff(b) < Duration::from_micros(1)
    }

    #[test]
    fn nothing_behind_nothing_delayed() {
        assert_eq!(delay(&GROUP), Duration::ZERO);
        let full = Pressure { memtable_fill: 1.0, ..GROUP };
        assert_eq!(delay(&full), Duration::ZERO, "it can be switched at once");
        let odd = Pressure { pool_fill: f64::NAN, ..GROUP };
        assert_eq!(delay(&odd), Duration::ZERO);
    }

    #[test]
    fn each_measure_alone_reaches_the_slowest_rate() {
        let pending = Pressure { flushed: Some(0.9), memtable_fill: 1.0, ..GROUP };
        let pool = Pressure { pool_fill: 1.0, ..GROUP };
        let garbage = Pressure { garbage: 4.0, ..GROUP };
        for (pressure, slowest) in [(pending, PACE * 5), (pool, SLOWEST), (garbage, SLOWEST)] {
            assert!(close(delay(&pressure), slowest));
        }
        let half = Pressure { flushed: Some(0.0), memtable_fill: 0.55, ..GROUP };
        assert!(close(delay(&half), PACE * 5 / 4));
        assert_eq!(delay(&Pressure { flush_seconds: 0.0, ..half }), Duration::ZERO);
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

    /// Writers that are one to twenty times as fast as the flush hardly fill their memtable before it is
    /// done.
    #[test]
    fn writers_settle_at_the_pace_of_the_flush() {
        for alone in [0.05, 0.3, 0.9] {
            let (mut seconds, mut pressure) = (0.0, GROUP);
            while seconds < GROUP.flush_seconds {
                pressure.flushed = Some(seconds / GROUP.flush_seconds);
                seconds += alone * GROUP.group_fill + delay(&pressure).as_secs_f64();
                pressure.memtable_fill += GROUP.group_fill;
            }
            assert!((0.9..1.01).contains(&pressure.memtable_fill), "{alone}: {}", pressure.memtable_fill);
        }
    }

    proptest! {
        #[test]
        fn more_pressure_never_shortens_the_delay(
            flushed in proptest::option::of(0.0..1.0f64), a in 0.0..1.2f64, b in 0.0..1.2f64, more in 0.0..0.5f64, which in 0..6,
        ) {
            let base = Pressure { flushed, memtable_fill: a, pool_fill: b, garbage: 4.0 * a, ..GROUP };
            let mut worse = base;
            match which {
                0 => worse.memtable_fill += more,
                1 => worse.pool_fill += more,
                2 => worse.flush_seconds += more,
                3 => worse.group_fill += more,
                4 => worse.garbage += more,
                _ => worse.group_bytes += 1,
            }
            prop_assert!(delay(&worse) >= delay(&base));
            prop_assert!(delay(&worse) <= LONGEST);
        }

        #[test]
        fn a_small_step_is_a_small_delay(fill in 0.0..1.0f64) {
            let at = |step: f64| delay(&Pressure {
                flushed: Some(0.5),
                memtable_fill: fill + step,
                pool_fill: fill + step,
                ..GROUP
            });
            prop_assert!(at(0.001) - at(0.0) <= SLOWEST / 50);
        }
    }
}
