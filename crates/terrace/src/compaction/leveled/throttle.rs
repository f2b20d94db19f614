//! How much to throttle writers while flushes and compactions are behind.
//!
//! Like `backpressure` for its engine: nothing while all is well, then a delay in proportion to the bytes
//! written that grows with the square of the backlog, so that writers settle where the background work keeps
//! up. They stop only at a limit.

use std::time::Duration;

use crate::compaction::backpressure::climb;

/// The rate to which writers are throttled at the end of any one measure.
const SLOWEST_BYTES_PER_SEC: f64 = (1 << 20) as f64;

/// No group waits longer than this, however large.
const LONGEST: Duration = Duration::from_millis(50);

/// Where each measure begins to throttle writers, and where they stop.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Tables on level 0.
    pub l0_tables: (usize, usize),
    /// The backlog of compactions, in a unit of the engine's own.
    pub debt: (u64, u64),
    /// The share of the active memtable that is used while another waits for its flush; at 1 writers wait.
    pub memtable_fill: f64,
}

/// How far background work is behind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Tables on level 0.
    pub l0_tables: usize,
    /// The backlog of compactions, in the unit of the limits.
    pub debt: u64,
    /// Whether every memtable but the active one waits for its flush.
    pub memtables_full: bool,
    /// The share of the active memtable that is used, 0 to 1.
    pub memtable_fill: f64,
    /// Bytes of the group that is about to be written.
    pub group_bytes: u64,
}

/// The delay of a group before it is written; `None` if it must wait until the backlog is smaller.
pub fn delay(load: &Load, limits: &Limits) -> Option<Duration> {
    if load.l0_tables >= limits.l0_tables.1 || load.debt >= limits.debt.1 {
        return None;
    }
    let tables = climb(load.l0_tables as f64, (limits.l0_tables.0 as f64, limits.l0_tables.1 as f64));
    let debt = climb(load.debt as f64, (limits.debt.0 as f64, limits.debt.1 as f64));
    let fill = if load.memtables_full { climb(load.memtable_fill, (limits.memtable_fill, 1.0)) } else { 0.0 };
    let worst = tables.max(debt).max(fill);
    let seconds = worst * load.group_bytes as f64 / SLOWEST_BYTES_PER_SEC;
    Some(Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_slowed_smoothly_and_stop_at_the_limit() {
        let limits = Limits { l0_tables: (20, 36), debt: (64, 256), memtable_fill: 0.5 };
        let group = Load { group_bytes: (1 << 20) / 100, ..Load::default() };
        assert_eq!(delay(&group, &limits), Some(Duration::ZERO));
        assert_eq!(delay(&Load { l0_tables: 20, ..group }, &limits), Some(Duration::ZERO));
        let at = |l0_tables| delay(&Load { l0_tables, ..group }, &limits).unwrap_or(Duration::MAX);
        assert!((20..36).all(|tables| at(tables) < at(tables + 1)));
        assert!(at(28) < Duration::from_millis(3) && at(35) < Duration::from_millis(10));
        assert_eq!(delay(&Load { l0_tables: 36, ..group }, &limits), None);
        assert_eq!(delay(&Load { debt: 256, ..group }, &limits), None);
        let full = Load { memtables_full: true, memtable_fill: 1.0, ..group };
        assert!(delay(&full, &limits).is_some_and(|d| d > Duration::from_millis(9)));
        assert_eq!(delay(&Load { memtables_full: false, ..full }, &limits), Some(Duration::ZERO));
    }
}
