//! The input of a choice.

use std::collections::BTreeSet;

use super::pins::PinnedEntries;
use crate::compaction::overlap::overlaps;
use crate::manifest::{State, TableState};

/// A table as a choice sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableView<'a> {
    /// Its file number.
    pub number: u64,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub deletes: u64,
    /// Entries that the index points at.
    pub live: u64,
    /// Entries known to be kept only for a snapshot.
    pub pinned: u64,
    /// Its smallest key.
    pub smallest: &'a [u8],
    /// Its largest key.
    pub largest: &'a [u8],
    /// The smallest sequence number in it.
    pub min_seq: u64,
    /// The largest.
    pub max_seq: u64,
}

impl<'a> TableView<'a> {
    /// A table of the manifest, with `pinned` entries known to be kept for a snapshot.
    pub fn new(table: &'a TableState, pinned: u64) -> Self {
        let meta = &*table.meta;
        TableView {
            number: meta.number,
            entries: meta.entries,
            deletes: meta.deletes,
            live: table.live(),
            pinned,
            smallest: &meta.smallest,
            largest: &meta.largest,
            min_seq: meta.min_seq,
            max_seq: meta.max_seq,
        }
    }

    /// Smallest and largest key.
    pub fn range(&self) -> (&'a [u8], &'a [u8]) {
        (self.smallest, self.largest)
    }
}

/// The tables of a store, which of them are candidates, and which are in use by a job.
#[derive(Debug, Clone, Default)]
pub struct View<'a> {
    /// All tables, by number.
    pub tables: Vec<TableView<'a>>,
    /// Tables that leaf scans, range queries or jobs cut short have made candidates.
    pub candidates: BTreeSet<u64>,
    /// Tables that a running job reads or has written.
    pub busy: BTreeSet<u64>,
}

impl<'a> View<'a> {
    /// The view of `state`. Busy are the inputs of its open jobs, and what those have written so far:
    /// the index may not point at that yet. `oldest_snapshot` is the sequence number of the oldest live
    /// snapshot.
    pub fn new(state: &'a State, pins: &PinnedEntries, oldest_snapshot: Option<u64>) -> Self {
        let inputs = state.jobs.values().flat_map(|job| job.inputs.iter().copied());
        let outputs =
            state.tables.iter().filter(|(_, t)| state.jobs.contains_key(&t.job)).map(|(number, _)| *number);
        View {
            tables: state
                .tables
                .iter()
                .map(|(number, table)| TableView::new(table, pins.active(*number, oldest_snapshot)))
                .collect(),
            candidates: state.candidates.iter().copied().collect(),
            busy: inputs.chain(outputs).collect(),
        }
    }

    /// The average number of live keys in a table, rounded up.
    pub fn average_keys(&self) -> u64 {
        let live: u64 = self.tables.iter().map(|t| t.live).sum();
        live.div_ceil((self.tables.len() as u64).max(1))
    }

    /// Entries in all tables that are not live: wasted space, apart from snapshots.
    pub fn garbage_entries(&self) -> u64 {
        self.tables.iter().map(|t| t.entries.saturating_sub(t.live)).sum()
    }

    /// Whether the tombstones of `table` have nothing left to hide: no other table that overlaps it
    /// holds an entry older than its newest.
    pub fn tombstones_droppable(&self, table: &TableView<'_>) -> bool {
        !self.tables.iter().any(|other| {
            other.number != table.number
                && other.min_seq < table.max_seq
                && overlaps(other.range(), table.range())
        })
    }

    /// Entries of `table` that a compaction would have to keep. Never too few: a tombstone that is
    /// also pinned counts twice.
    pub fn kept(&self, table: &TableView<'_>) -> u64 {
        let firm = table.live + table.pinned;
        let tombstones = match table.deletes {
            0 => 0,
            _ if self.tombstones_droppable(table) => 0,
            deletes => deletes,
        };
        (firm + tombstones).min(table.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrace_table::TableMeta;

    use super::*;
    use crate::manifest::{Edit, Identity, JobKind};

    fn table(number: u64, range: (&'static str, &'static str), seqs: (u64, u64)) -> TableView<'static> {
        TableView {
            number,
            entries: 10,
            deletes: 4,
            live: 5,
            pinned: 0,
            smallest: range.0.as_bytes(),
            largest: range.1.as_bytes(),
            min_seq: seqs.0,
            max_seq: seqs.1,
        }
    }

    fn view(tables: &[TableView<'static>]) -> View<'static> {
        View { tables: tables.to_vec(), ..View::default() }
    }

    #[test]
    fn tombstones_stay_while_something_older_overlaps() {
        let newer = table(2, ("c", "f"), (20, 30));
        for (older, droppable) in [
            (table(1, ("a", "c"), (1, 19)), false),
            (table(1, ("a", "b"), (1, 19)), true),
            (table(1, ("a", "z"), (29, 40)), false),
            (table(1, ("a", "z"), (31, 40)), true),
        ] {
            let view = view(&[older, newer]);
            assert_eq!(view.tombstones_droppable(&newer), droppable, "{older:?}");
            assert_eq!(view.kept(&newer), if droppable { 5 } else { 9 });
        }
    }

    #[test]
    fn what_an_open_job_reads_and_writes_is_busy() {
        let identity = Identity { uuid: [0; 16], engine: "slm".into(), options: BTreeMap::new() };
        let mut state = State::new(identity);
        let add = |number, job| {
            let meta = TableMeta { number, entries: 1, ..TableMeta::default() };
            Edit::AddTable { level: 0, job, meta }
        };
        let edits = [
            add(1, 0),
            add(2, 0),
            Edit::Candidates(vec![2]),
            Edit::JobStarted { id: 9, kind: JobKind::Compaction, inputs: vec![1] },
            add(3, 9),
            add(4, 8),
        ];
        edits.iter().for_each(|edit| assert!(state.apply(edit).unwrap()));
        let mut pins = PinnedEntries::default();
        pins.note(4, 1, 50);
        let view = View::new(&state, &pins, Some(50));
        assert_eq!(view.busy, [1, 3].into());
        assert_eq!(view.candidates, [2].into());
        let pinned: Vec<(u64, u64)> = view.tables.iter().map(|t| (t.number, t.pinned)).collect();
        assert_eq!(pinned, [(1, 0), (2, 0), (3, 0), (4, 1)]);
    }

    #[test]
    fn what_must_stay_is_capped_by_what_there_is() {
        let mut pinned = table(2, ("c", "f"), (20, 30));
        pinned.pinned = 4;
        let view = view(&[pinned, table(1, ("a", "z"), (1, 5))]);
        assert_eq!(view.kept(&pinned), 10);
        assert_eq!(view.average_keys(), 5);
        assert_eq!(view.garbage_entries(), 10);
    }
}
