//! Garbage that compactions would have removed by now, had they kept up with writers.

use super::SelectiveOptions;
use crate::manifest::{State, TableState};

/// Bytes of garbage in the tables of `state` that are due to be compacted, beyond what `garbage_share`
/// leaves alone, for each byte that lives. `spare` bytes count as living, so that a store that is smaller
/// than its memtables is not taken for one that is full of garbage.
///
/// Tombstones do not count: nobody can tell at a glance which of them are droppable. Nor do tables that a
/// job is writing: the index does not point at them before its end.
pub fn overdue_garbage(state: &State, options: &SelectiveOptions, spare: u64) -> f64 {
    let finished = state.tables.values().filter(|table| !state.jobs.contains_key(&table.job));
    let (mut living, mut due) = (0.0, 0.0);
    for table in finished {
        let shares = Shares::of(table);
        living += shares.living;
        if shares.is_due(options) {
            due += shares.dead;
        }
    }
    let share = options.garbage_share.clamp(0.0, 1.0);
    let left_alone = living * share / (1.0 - share);
    ((due - left_alone) / (living + spare as f64).max(1.0)).max(0.0)
}

/// Bytes of a table by what has become of its entries.
struct Shares {
    all: f64,
    living: f64,
    dead: f64,
}

impl Shares {
    fn of(table: &TableState) -> Shares {
        let (meta, live) = (&*table.meta, table.live());
        let dead = meta.entries.saturating_sub(live).saturating_sub(meta.deletes);
        let bytes_an_entry = meta.file_bytes as f64 / meta.entries.max(1) as f64;
        let bytes = |entries: u64| entries as f64 * bytes_an_entry;
        Shares { all: bytes(meta.entries), living: bytes(live), dead: bytes(dead) }
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
        overdue_garbage(&state(tables), &options, spare)
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
    }
}
