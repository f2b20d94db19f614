//! The number of live entries of each table: a count in DRAM, made by a walk along the index after an
//! opening.
//!
//! 1. In a table made since the opening every entry is counted when its word is published, and subtracted
//!    when that word is replaced. The count is known from the start.
//! 2. In an earlier table those entries are counted that the walk has met. The walk takes a piece of the
//!    index while nobody writes; so an entry that dies behind the walk was counted, and one that dies ahead
//!    of it is never counted.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::manifest::State;

/// What is known of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub number: u64,
    pub entries: u64,
    pub live: u64,
    pub bytes: u64,
}

impl Run {
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
pub(super) struct Runs(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    /// Each with its live entries, its entries and its bytes.
    tables: BTreeMap<u64, (i64, u64, u64)>,
    census: Census,
    /// Tables from this one on were made since the opening.
    first_new: u64,
}

impl Runs {
    /// The tables of `state`, none of which is counted.
    pub fn new(state: &State) -> Runs {
        let of = |table: &crate::manifest::TableState| (0, table.meta.entries, table.meta.file_bytes);
        let tables = state.tables.iter().map(|(number, table)| (*number, of(table))).collect();
        Runs(Mutex::new(Counts { tables, census: Census::At(None), first_new: state.next_file }))
    }

    /// A table was made that no word leads to yet.
    pub fn add(&self, number: u64, entries: u64, bytes: u64) {
        self.0.lock().tables.insert(number, (0, entries, bytes));
    }

    /// A word leads to an entry of a table that was made since the opening.
    pub fn arrived(&self, number: u64) {
        if let Some((live, ..)) = self.0.lock().tables.get_mut(&number) {
            *live += 1;
        }
    }

    /// No word leads to the entry of `key` any more.
    pub fn died(&self, number: u64, key: &[u8]) {
        let mut counts = self.0.lock();
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

    /// The walk has met all keys up to `reached`; `found` has the numbers of named entries of each table that
    /// were not counted yet. Nobody writes meanwhile.
    pub fn counted(&self, reached: Option<&[u8]>, found: &BTreeMap<u64, u64>) {
        let mut counts = self.0.lock();
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
        self.0.lock().census = Census::Done;
    }

    /// Whether the walk has met a key.
    pub fn has_begun(&self) -> bool {
        !matches!(self.0.lock().census, Census::At(None))
    }

    /// Whether the counts are complete.
    pub fn are_counted(&self) -> bool {
        matches!(self.0.lock().census, Census::Done)
    }

    pub fn remove(&self, numbers: &[u64]) {
        let mut counts = self.0.lock();
        counts.tables.retain(|number, _| !numbers.contains(number));
    }

    /// Every table.
    pub fn all(&self) -> Vec<Run> {
        let counts = self.0.lock();
        let run = |(&number, &(live, entries, bytes)): (&u64, &(i64, u64, u64))| Run {
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

    fn two_tables() -> Runs {
        let meta = |number| TableMeta { number, entries: 10, file_bytes: 100, ..TableMeta::default() };
        let identity = Identity { engine: "split".into(), uuid: [7; 16], options: Default::default() };
        let state = Manifest::state_of(identity, &[(0, meta(1)), (0, meta(2))], 0).unwrap();
        Runs::new(&state)
    }

    fn live(runs: &Runs) -> Vec<u64> {
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
