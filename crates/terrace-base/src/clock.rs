//! Time, from one place: the system's clock in production, one that a test moves by hand elsewhere.

#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Time since an arbitrary fixed point.
    fn now(&self) -> Duration;

    /// Time since the beginning of 1970, UTC: of the calendar, so it goes back when somebody sets the machine's clock
    /// back.
    fn calendar(&self) -> Duration;

    /// Waits for `duration`; awake if it is shorter than going to sleep and waking up takes, and leaving the core to
    /// threads that have work. A manual clock moves ahead instead.
    fn sleep(&self, duration: Duration);
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that reads zero now.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
    pub fn new() -> Self {
        SystemClock { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
    fn calendar(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
    fn sleep(&self, duration: Duration) {
        if duration < SHORTEST_SLEEP {
            let start = self.now();
            while self.now() - start < duration {
                std::thread::yield_now();
            }
            return;
        }
        let _precise = (duration < COARSE).then(Precise::begin);
        std::thread::sleep(duration);
    }
}

/// The longest that halting a core and waking it up again takes: 55 microseconds in a virtual machine, a tenth of that
/// on bare metal. A sleep that is shorter than this would last several times as long as was asked for.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);

/// Sleeps of at least this long may end as late as the system likes.
const COARSE: Duration = Duration::from_millis(1);

/// While it lives, the system wakes this thread up as soon as it can, not when it suits: by default Linux
/// allows itself 50 microseconds, which is several times a short sleep.
struct Precise {
    #[cfg(target_os = "linux")]
    before: Option<NonZeroU64>,
}

impl Precise {
    #[cfg(target_os = "linux")]
    fn begin() -> Precise {
        let before = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
        // Without it a sleep is longer; nothing else changes.
        let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
        Precise { before }
    }

    #[cfg(not(target_os = "linux"))]
    fn begin() -> Precise {
        Precise {}
    }
}

#[cfg(target_os = "linux")]
impl Drop for Precise {
    fn drop(&mut self) {
        if self.before.is_some() {
            let _ = rustix::thread::set_current_timer_slack(self.before);
        }
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// Moves the clock ahead.
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    /// It began to stand still when 1970 did.
    fn calendar(&self) -> Duration {
        self.now()
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_wakes_up_before_the_time() {
        let clock = SystemClock::new();
        for duration in [Duration::ZERO, Duration::from_micros(5), SHORTEST_SLEEP, COARSE] {
            let start = clock.now();
            clock.sleep(duration);
            assert!(clock.now() - start >= duration, "{duration:?}");
        }
    }
}
