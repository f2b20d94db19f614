//! When a store is at rest: its process does nothing any more.

use std::time::Duration;

use terrace_base::clock::{Clock, SystemClock};

use crate::compare::machine::Counters;
use crate::store::{Store, StoreResult};

/// Between two looks, and how many in a row must have seen nothing.
const LOOK: Duration = Duration::from_millis(500);
const LOOKS: u32 = 4;

/// Seconds of processor time a second that count as idle.
const IDLE: f64 = 0.05;

/// After this long the store is taken for one that does not come to rest.
const LONGEST: Duration = Duration::from_secs(1800);

/// Makes the system write out dirty pages. Then waits until, for a while, this process has neither computed nor read
/// nor written, and `store` has ended no flush and no compaction. Returns how long that took.
///
/// # Errors
/// If that takes half an hour.
pub fn wait(store: &dyn Store) -> StoreResult<Duration> {
    let clock = SystemClock::new();
    rustix::fs::sync();
    let look = || {
        let stats = store.stats();
        (Counters::now(None), clock.now(), [stats.flushes, stats.compactions, stats.ssd_bytes_written])
    };
    let (mut before, mut idle) = (look(), 0);
    while idle < LOOKS {
        clock.sleep(LOOK);
        let now = look();
        let (did, took) = (now.0.since(&before.0), now.1.saturating_sub(before.1));
        let is_idle = did.cpu_seconds < IDLE * took.as_secs_f64()
            && did.read_bytes + did.written_bytes == 0
            && now.2 == before.2;
        idle = if is_idle { idle + 1 } else { 0 };
        if now.1 > LONGEST {
            return Err(format!("the store is not at rest after {} s", LONGEST.as_secs()).into());
        }
        before = now;
    }
    Ok(clock.now())
}
