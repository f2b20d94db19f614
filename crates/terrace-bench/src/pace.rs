//! Keeps a thread to so many operations a second.

use std::time::Duration;

/// A thread waits only when it is this far ahead: shorter waits would keep a core busy.
const AHEAD: Duration = Duration::from_millis(1);

/// The longest delay that a thread makes up for.
const BEHIND: Duration = Duration::from_millis(100);

/// A thread's rate.
#[derive(Debug)]
pub(crate) struct Pace {
    each: Duration,
    /// When the next operation may begin.
    due: Duration,
}

impl Pace {
    /// `rate` operations a second from `now` on.
    pub fn new(rate: f64, now: Duration) -> Pace {
        Pace { each: Duration::from_secs_f64(1.0 / rate.max(1e-3)), due: now }
    }

    /// How long to wait at `now`, when so many more operations have ended.
    pub fn wait(&mut self, operations: u64, now: Duration) -> Option<Duration> {
        let took = self.each.saturating_mul(u32::try_from(operations).unwrap_or(u32::MAX));
        self.due = (self.due + took).max(now.saturating_sub(BEHIND));
        self.due.checked_sub(now).filter(|ahead| *ahead >= AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations in ten seconds of which each takes `micros`, but for one that takes `hold_up`.
    fn done(rate: f64, micros: u64, hold_up: Duration) -> u64 {
        let (mut now, mut operations) = (Duration::from_secs(5), 0);
        let (mut pace, end) = (Pace::new(rate, now), now + Duration::from_secs(10));
        while now < end {
            now += if operations == 1000 { hold_up } else { Duration::from_micros(micros) };
            operations += 1;
            now += pace.wait(1, now).unwrap_or_default();
        }
        operations
    }

    #[test]
    fn a_rate_is_kept_and_not_exceeded() {
        let none = Duration::from_micros(5);
        assert!((49_900..=50_100).contains(&(done(50_000.0, 5, none) / 10)));
        assert!((9_900..=10_100).contains(&(done(50_000.0, 100, none) / 10)));
        // A tenth of a second's delay is made up for.
        let held_up = done(50_000.0, 5, Duration::from_secs(1));
        assert!((454_000..=456_000).contains(&held_up), "{held_up}");
    }
}
