//! The number of live entries of each table: a count in DRAM, made by a walk along the index after an
//! opening.
//!
//! 1. In a table made since the opening every entry is counted when its word is published, and subtracted
//!    when that word is replaced. The count is known from the start.
//! 2. In an earlier table those entries are counted that the walk has met. The walk takes a piece of the
//!    index while nobody writes; so an entry that dies behind the walk was counted, and one that dies ahead
//!    of it is never counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::manifest::State;

/// What is known of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableCount {
    pub number: u64,
    pub entries: u64,
    pub live: u64,
    pub bytes: u64,
}

impl TableCount {
    /// Bytes of dead entries.
    pub fn dead_bytes(&self) -> u64 {
        let dead = self.entries.saturating_sub(self.live);
        (u128::from(self.bytes) * u128::from(dead) / u128::from(self.entries.max(1))) as u64
    }
}

#[derive(Debug)]
enum Census {
    /// The walk has met all keys up to this one; `None`: none yet.
    At(Option<Vec<u8>>),
    Done,
}

/// The tables and their counts.
#[derive(Debug)]
pub(super) struct TableCounts {
    counts: Mutex<Counts>,
    /// Entries that have died since the last look for tables that are worth rewriting, and how many are worth
    /// one.
    died: AtomicU64,
    worth_a_look: AtomicU64,
}

/// The part of all entries that dies between two looks, and the least entries that do.
const LOOKS: u64 = 32;
const LEAST_DIED: u64 = 16;

#[derive(Debug)]
struct Counts {
    /// Each with its live entries, its entries and its bytes.
    tables: BTreeMap<u64, (i64, u64, u64)>,
    census: Census,
    /// Tables from this one on were made since the opening.
    first_new: u64,
}

impl TableCounts {
    /// The tables of `state`, none of which is counted.
    pub fn new(state: &State) -> TableCounts {
        let of = |table: &crate::manifest::TableState| (0, table.meta.entries, table.meta.file_bytes);
        let tables = state.tables.iter().map(|(number, table)| (*number, of(table))).collect();
        TableCounts {
            counts: Mutex::new(Counts { tables, census: Census::At(None), first_new: state.next_file }),
            died: AtomicU64::new(0),
            worth_a_look: AtomicU64::new(LEAST_DIED),
        }
    }

    /// A table was made that no word leads to yet.
    pub fn add(&self, number: u64, entries: u64, bytes: u64) {
        self.counts.lock().tables.insert(number, (0, entries, bytes));
    }

    /// A word leads to an entry of a table that was made since the opening.
    pub fn arrived(&self, number: u64) {
        if let Some((live, ..)) = self.counts.lock().tables.get_mut(&number) {
            *live += 1;
        }
    }

    /// No word leads to the entry of `key` any more.
    pub fn died(&self, number: u64, key: &[u8]) {
        self.died.fetch_add(1, Ordering::Relaxed);
        let mut counts = self.counts.lock();
        let counted = match &counts.census {
            Census::Done => true,
            Census::At(reached) => {
                number >= counts.first_new || reached.as_deref().is_some_and(|reached| key <= reached)
            }
        };
        if counted && let Some((live, ..)) = counts.tables.get_mut(&number) {
            *live -= 1;
        }
    }

    /// Whether so many entries have died since this was true that some tables may be worth rewriting.
    pub fn is_due(&self) -> bool {
        let least = self.worth_a_look.load(Ordering::Relaxed);
        // Another thread may look between the two.
        if self.died.load(Ordering::Relaxed) < least || self.died.swap(0, Ordering::Relaxed) < least {
            return false;
        }
        let entries: u64 = self.counts.lock().tables.values().map(|(_, entries, _)| entries).sum();
        self.worth_a_look.store((entries / LOOKS).max(LEAST_DIED), Ordering::Relaxed);
        true
    }

    /// The walk has met all keys up to `reached`; `found` has the numbers of named entries of each table that
    /// were not counted yet. Nobody writes meanwhile.
    pub fn counted(&self, reached: Option<&[u8]>, found: &BTreeMap<u64, u64>) {
        let mut counts = self.counts.lock();
        let first_new = counts.first_new;
        for (number, more) in found.range(..first_new) {
            if let Some((live, ..)) = counts.tables.get_mut(number) {
                *live += *more as i64;
            }
        }
        if let Some(reached) = reached {
            counts.census = Census::At(Some(reached.to_vec()));
        }
    }

    /// The walk is over.
    pub fn all_counted(&self) {
        self.counts.lock().census = Census::Done;
    }

    /// Whether the walk has met a key.
    pub fn has_begun(&self) -> bool {
        !matches!(self.counts.lock().census, Census::At(None))
    }

    /// Whether the counts are complete.
    pub fn are_counted(&self) -> bool {
        matches!(self.counts.lock().census, Census::Done)
    }

    pub fn remove(&self, numbers: &[u64]) {
        let mut counts = self.counts.lock();
        counts.tables.retain(|number, _| !numbers.contains(number));
    }

    /// Every table.
    pub fn all(&self) -> Vec<TableCount> {
        let counts = self.counts.lock();
        let run = |(&number, &(live, entries, bytes)): (&u64, &(i64, u64, u64))| TableCount {
            number,
            entries,
            live: live.max(0) as u64,
            bytes,
        };
        counts.tables.iter().map(run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Identity, Manifest};
    use terrace_table::TableMeta;

    fn two_tables() -> TableCounts {
        let meta = |number| TableMeta { number, entries: 10, file_bytes: 100, ..TableMeta::default() };
        let identity = Identity { engine: "split".into(), uuid: [7; 16], options: Default::default() };
        let state = Manifest::state_of(identity, &[(0, meta(1)), (0, meta(2))], 0).unwrap();
        TableCounts::new(&state)
    }

    fn live(runs: &TableCounts) -> Vec<u64> {
        runs.all().iter().map(|run| run.live).collect()
    }

    #[test]
    fn what_dies_before_the_walk_has_come_is_not_counted_out() {
        let runs = two_tables();
        runs.died(1, b"a");
        runs.counted(Some(b"m"), &BTreeMap::from([(1, 3), (2, 2)]));
        runs.died(1, b"k");
        runs.died(2, b"z");
        assert_eq!(live(&runs), [2, 2]);
        runs.counted(Some(b"z"), &BTreeMap::from([(1, 1)]));
        runs.all_counted();
        runs.died(2, b"zz");
        assert_eq!((live(&runs), runs.are_counted()), (vec![3, 1], true));
    }

    #[test]
    fn a_look_is_due_when_many_have_died() {
        let runs = two_tables();
        (0..LEAST_DIED - 1).for_each(|_| runs.died(1, b"a"));
        assert!(!runs.is_due());
        runs.died(1, b"a");
        runs.add(9, 100 * LOOKS, 80);
        assert!(runs.is_due() && !runs.is_due());
        (0..99).for_each(|_| runs.died(1, b"a"));
        assert!(!runs.is_due());
        (0..100).for_each(|_| runs.died(1, b"a"));
        assert!(runs.is_due());
    }

    #[test]
    fn new_tables_are_counted_from_the_start() {
        let runs = two_tables();
        runs.add(9, 4, 80);
        (0..3).for_each(|_| runs.arrived(9));
        runs.died(9, b"z");
        runs.counted(Some(b"zz"), &BTreeMap::from([(9, 2)]));
        assert_eq!((live(&runs), runs.all()[2].dead_bytes()), (vec![0, 0, 2], 40));
        runs.remove(&[9]);
        assert_eq!(runs.all().len(), 2);
    }
}
