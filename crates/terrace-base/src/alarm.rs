//! An alarm that is set to a time and rings when somebody looks who knows what time it is.
//!
//! Nobody waits for an alarm: operations that have read the clock for a reason of their own look at it, which costs
//! them the load of a word.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Set to no time.
const NEVER: u64 = u64::MAX;

/// An alarm, at first set to no time.
pub struct Alarm {
    /// In milliseconds.
    due: AtomicU64,
    ring: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Alarm {
    /// What it does when it rings, on the thread that looks: something short that waits for nothing. Only the first
    /// call counts.
    pub fn on_ring(&self, ring: impl Fn() + Send + Sync + 'static) {
        let _ = self.ring.set(Box::new(ring));
    }

    /// Rings once when somebody looks at `time` or later.
    pub fn set(&self, time: Duration) {
        self.due.store(millis(time), Ordering::Release);
    }

    /// Rings if it is set and `now` is not before its time. Then it is set to none.
    #[inline]
    pub fn look(&self, now: Duration) {
        let due = self.due.load(Ordering::Relaxed);
        if due != NEVER && millis(now) >= due {
            self.ring_once(due);
        }
    }

    #[cold]
    fn ring_once(&self, due: u64) {
        let is_first = self.due.compare_exchange(due, NEVER, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if let (true, Some(ring)) = (is_first, self.ring.get()) {
            ring();
        }
    }
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm { due: AtomicU64::new(NEVER), ring: OnceLock::new() }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("due", &self.due).finish_non_exhaustive()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER - 1).min(NEVER - 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn it_rings_once_for_each_time_it_is_set_to() {
        let (alarm, rung) = (Alarm::default(), Arc::new(AtomicU64::new(0)));
        let rings = rung.clone();
        alarm.on_ring(move || _ = rings.fetch_add(1, Ordering::Relaxed));
        let looks = |second: u64| {
            alarm.look(Duration::from_secs(second));
            rung.load(Ordering::Relaxed)
        };
        assert_eq!(looks(u64::MAX), 0, "it is set to no time");
        alarm.set(Duration::from_secs(5));
        assert_eq!([4, 5, 6].map(looks), [0, 1, 1]);
        alarm.set(Duration::MAX);
        assert_eq!([7, u64::MAX].map(looks), [1, 2]);
    }
}
