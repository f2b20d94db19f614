//! Waiting for nanoseconds: too short to sleep, so the processor's time-stamp counter is watched.

use std::sync::OnceLock;
use std::time::Duration;

use terrace_base::clock::{Clock, SystemClock};

/// A counter that runs at a constant rate, calibrated once against the system's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticks {
    /// Ticks in 1024 nanoseconds.
    per_1024_ns: u64,
}

impl Ticks {
    /// The machine's counter; the first call takes two milliseconds to calibrate.
    pub(super) fn calibrated() -> Ticks {
        static RATE: OnceLock<u64> = OnceLock::new();
        Ticks { per_1024_ns: *RATE.get_or_init(calibrate) }
    }

    /// The counter now.
    #[inline]
    pub(super) fn now(self) -> u64 {
        read()
    }

    /// That many nanoseconds in ticks.
    #[inline]
    pub(super) fn of_ns(self, ns: u64) -> u64 {
        (ns * self.per_1024_ns) >> 10
    }

    /// Waits until the counter has reached `deadline`.
    #[inline]
    pub(super) fn wait_until(self, deadline: u64) {
        while read() < deadline {
            std::hint::spin_loop();
        }
    }
}

fn calibrate() -> u64 {
    let clock = SystemClock::new();
    let (from, ticks) = (clock.now(), read());
    let mut elapsed = Duration::ZERO;
    while elapsed < Duration::from_millis(2) {
        elapsed = clock.now() - from;
    }
    let ticks = read() - ticks;
    (u128::from(ticks) * 1024 / elapsed.as_nanos().max(1)).max(1) as u64
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read() -> u64 {
    // SAFETY: `rdtsc` is part of the x86-64 baseline and reads a register.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn read() -> u64 {
    static CLOCK: OnceLock<SystemClock> = OnceLock::new();
    CLOCK.get_or_init(SystemClock::new).now().as_nanos() as u64
}
