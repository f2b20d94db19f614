//! Which tables hold entries that a compaction kept only for snapshots.
//!
//! Without this a table that is mostly garbage that a snapshot needs would be compacted into itself again and
//! again. It lives in DRAM: no snapshot outlives the process.

use std::collections::HashMap;

/// What compactions kept for snapshots, by output table.
#[derive(Debug, Clone, Default)]
pub struct PinnedEntries {
    tables: HashMap<u64, PinnedSpan>,
}

#[derive(Debug, Clone, Copy)]
struct PinnedSpan {
    entries: u64,
    /// The oldest snapshot at the time.
    horizon: u64,
}

impl PinnedEntries {
    /// Notes that a compaction kept `entries` entries in `table` only for snapshots, while the oldest one was
    /// at sequence number `oldest_snapshot`.
    pub fn note(&mut self, table: u64, entries: u64, oldest_snapshot: u64) {
        if entries > 0 {
            self.tables.insert(table, PinnedSpan { entries, horizon: oldest_snapshot });
        }
    }

    /// Entries of `table` that are known to be pinned. The knowledge expires once the oldest snapshot of that
    /// time is released: another compaction may now drop some.
    pub fn active(&self, table: u64, oldest_snapshot: Option<u64>) -> u64 {
        match (self.tables.get(&table), oldest_snapshot) {
            (Some(pin), Some(oldest)) if oldest <= pin.horizon => pin.entries,
            _ => 0,
        }
    }

    /// Forgets a removed table.
    pub fn forget(&mut self, table: u64) {
        self.tables.remove(&table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_hold_until_the_oldest_snapshot_goes() {
        let mut pins = PinnedEntries::default();
        pins.note(7, 3, 100);
        pins.note(8, 0, 100);
        assert_eq!(pins.active(7, Some(100)), 3);
        assert_eq!(pins.active(7, Some(101)), 0);
        assert_eq!(pins.active(7, None), 0);
        assert_eq!(pins.active(8, Some(100)), 0);
        pins.forget(7);
        assert_eq!(pins.active(7, Some(100)), 0);
    }
}
