//! Garbage that compactions would have removed by now, had they kept up with writers.

use super::{PinnedEntries, SelectiveOptions};
use crate::manifest::{State, TableState};

/// Bytes of garbage in the tables of `state` that are due to be compacted, beyond what `garbage_share`
/// leaves alone, for each byte that lives. Zero while [`choose`](super::choose) would leave all of it alone.
/// `spare` bytes count as living, so that a store that is smaller than its memtables is not taken for one
/// that is full of garbage. `pins` and `oldest_snapshot` are those of a [`View`](super::View).
///
/// Tombstones do not count: nobody can tell at a glance which of them are droppable. Nor do tables that a
/// job is writing: the index does not point at them before its end.
pub fn overdue_garbage(
    state: &State,
    (pins, oldest_snapshot): (&PinnedEntries, Option<u64>),
    options: &SelectiveOptions,
    spare: u64,
) -> f64 {
    let (mut entries, mut live) = (0, 0);
    let (mut living_bytes, mut due_bytes) = (0.0, 0.0);
    for (number, table) in &state.tables {
        entries += table.meta.entries;
        live += table.live();
        let shares = Shares::of(table, pins.active(*number, oldest_snapshot));
        living_bytes += shares.living;
        if shares.is_due(options) && !state.jobs.contains_key(&table.job) {
            due_bytes += shares.dead;
        }
    }
    due_bytes * beyond(options.garbage_share, entries, live) / (living_bytes + spare as f64).max(1.0)
}

/// The part of all garbage that is beyond what the share `left_alone` of all entries may be, 0 to 1.
fn beyond(left_alone: f64, entries: u64, live: u64) -> f64 {
    let garbage = entries.saturating_sub(live) as f64;
    let allowed = live as f64 * left_alone / (1.0 - left_alone);
    if garbage > allowed { (garbage - allowed) / garbage } else { 0.0 }
}

/// Bytes of a table by what has become of its entries.
struct Shares {
    all: f64,
    living: f64,
    dead: f64,
}

impl Shares {
    fn of(table: &TableState, pinned: u64) -> Shares {
        let (meta, live) = (&*table.meta, table.live());
        let kept = live.saturating_add(meta.deletes).saturating_add(pinned);
        let bytes_an_entry = meta.file_bytes as f64 / meta.entries.max(1) as f64;
        let bytes = |entries: u64| entries as f64 * bytes_an_entry;
        Shares {
            all: bytes(meta.entries),
            living: bytes(live),
            dead: bytes(meta.entries.saturating_sub(kept)),
        }
    }

    /// Whether so little must stay that the table is a candidate.
    fn is_due(&self, options: &SelectiveOptions) -> bool {
        self.all - self.dead < options.live_key_threshold.min(1.0) * self.all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrace_table::TableMeta;

    use super::*;
    use crate::manifest::{Edit, Identity, JobKind};

    /// A state with one table of 100 bytes an entry for each of (entries, tombstones, live, job).
    fn state(tables: &[(u64, u64, i64, u64)]) -> State {
        let identity = Identity { uuid: [0; 16], engine: "slm".into(), options: BTreeMap::new() };
        let mut state = State::new(identity);
        assert!(state.apply(&Edit::JobStarted { id: 9, kind: JobKind::Flush, inputs: Vec::new() }).unwrap());
        for (number, &(entries, deletes, live, job)) in (1..).zip(tables) {
            let meta =
                TableMeta { number, entries, deletes, file_bytes: entries * 100, ..TableMeta::default() };
            assert!(state.apply(&Edit::AddTable { level: 0, job, meta }).unwrap());
            let live_delta = live - (entries - deletes) as i64;
            state.apply(&Edit::Counts { number, live_delta }).unwrap();
        }
        state
    }

    fn overdue(tables: &[(u64, u64, i64, u64)], garbage_share: f64, spare: u64) -> f64 {
        let options = SelectiveOptions { garbage_share, ..SelectiveOptions::default() };
        overdue_garbage(&state(tables), (&PinnedEntries::default(), None), &options, spare)
    }

    #[test]
    fn garbage_counts_by_what_lives() {
        assert_eq!(overdue(&[], 0.2, 0), 0.0);
        assert_eq!(overdue(&[(100, 0, 100, 0)], 0.2, 0), 0.0);
        assert_eq!(overdue(&[(100, 0, 100, 0), (300, 0, 0, 0)], 0.0, 0), 3.0);
        assert_eq!(overdue(&[(100, 0, 100, 0), (300, 0, 0, 0)], 0.5, 0), 2.0, "a half is left alone");
        assert_eq!(overdue(&[(100, 0, 100, 0), (300, 0, 0, 0)], 0.0, 20_000), 1.0, "what is spare lives");
    }

    #[test]
    fn what_no_compaction_would_remove_is_not_overdue() {
        assert_eq!(overdue(&[(100, 0, 80, 0)], 0.0, 0), 0.0, "the table is live enough");
        assert_eq!(overdue(&[(100, 60, 20, 0)], 0.0, 0), 0.0, "tombstones may have to stay");
        assert_eq!(overdue(&[(100, 0, 100, 0), (300, 0, 0, 9)], 0.0, 0), 0.0, "a job is writing it");
        assert_eq!(overdue(&[(100, 0, 10, 0)], 1.0, 0), 0.0, "all garbage is left alone");
        let mut pins = PinnedEntries::default();
        pins.note(1, 70, 50);
        let options = SelectiveOptions::default();
        let pinned = |oldest| overdue_garbage(&state(&[(100, 0, 10, 0)]), (&pins, oldest), &options, 0);
        assert_eq!(pinned(Some(50)), 0.0, "a snapshot needs most of it");
        assert!(pinned(None) > 0.0);
    }

    #[test]
    fn whatever_compactions_leave_alone_slows_nobody() {
        // Few entries that died are large, and too few of all for a compaction.
        let small =
            |entries| TableMeta { number: 1, entries, file_bytes: entries * 30, ..TableMeta::default() };
        let large =
            |entries| TableMeta { number: 2, entries, file_bytes: entries * 9000, ..TableMeta::default() };
        let overdue = |dead: u64| {
            let mut state = state(&[]);
            for (meta, live_delta) in [(small(1000), 0), (large(dead), -(dead as i64))] {
                let number = meta.number;
                state.apply(&Edit::AddTable { level: 0, job: 0, meta }).unwrap();
                state.apply(&Edit::Counts { number, live_delta }).unwrap();
            }
            let options = SelectiveOptions { garbage_share: 0.2, ..SelectiveOptions::default() };
            overdue_garbage(&state, (&PinnedEntries::default(), None), &options, 0)
        };
        assert_eq!(overdue(250), 0.0);
        assert!(overdue(251) > 0.0 && overdue(251) < 1.0, "{}", overdue(251));
        assert!(overdue(500) > 10.0);
    }
}
