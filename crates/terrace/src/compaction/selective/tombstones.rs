//! Which tombstones a running compaction may drop.

use super::view::{TableView, View};
use crate::compaction::overlap::overlaps;

/// The tables outside a compaction that may hold something for its tombstones to hide.
///
/// Made when the job starts. It stays right while the job runs: a later table is either newer than every
/// tombstone in the inputs, or made from tables that are listed here and holds nothing that they did not.
#[derive(Debug, Clone, Default)]
pub struct Tombstones {
    others: Vec<Other>,
}

#[derive(Debug, Clone)]
struct Other {
    smallest: Vec<u8>,
    largest: Vec<u8>,
    min_seq: u64,
}

impl Tombstones {
    /// For a compaction of the tables numbered `inputs`.
    pub fn new(view: &View<'_>, inputs: &[u64]) -> Self {
        let (inside, outside): (Vec<&TableView<'_>>, Vec<_>) =
            view.tables.iter().partition(|table| inputs.contains(&table.number));
        let meets = |t: &TableView<'_>| {
            inside.iter().any(|i| t.min_seq < i.max_seq && overlaps(i.range(), t.range()))
        };
        let others = outside.into_iter().filter(|table| meets(table)).map(|table| Other {
            smallest: table.smallest.to_vec(),
            largest: table.largest.to_vec(),
            min_seq: table.min_seq,
        });
        Tombstones { others: others.collect() }
    }

    /// Whether the tombstone of `key` at `seq` hides nothing in any other table.
    ///
    /// Even then it must stay while an older version of the key stays in the outputs.
    pub fn droppable(&self, key: &[u8], seq: u64) -> bool {
        !self.others.iter().any(|t| t.min_seq < seq && *t.smallest <= *key && key <= &*t.largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(number: u64, range: (&'static str, &'static str), seqs: (u64, u64)) -> TableView<'static> {
        TableView {
            number,
            entries: 4,
            deletes: 1,
            live: 3,
            pinned: 0,
            smallest: range.0.as_bytes(),
            largest: range.1.as_bytes(),
            min_seq: seqs.0,
            max_seq: seqs.1,
        }
    }

    #[test]
    fn a_tombstone_goes_when_nothing_older_is_outside() {
        let view = View {
            tables: vec![
                table(1, ("c", "m"), (10, 20)),
                table(2, ("k", "z"), (30, 40)),
                table(3, ("b", "q"), (35, 50)),
            ],
            ..View::default()
        };
        let rule = Tombstones::new(&view, &[3]);
        assert!(rule.droppable(b"b", 45));
        assert!(!rule.droppable(b"d", 45), "table 1 may hold an older d");
        assert!(!rule.droppable(b"p", 45), "table 2 may hold an older p");
        assert!(rule.droppable(b"p", 30), "table 2 holds nothing older than 30");
        assert!(Tombstones::new(&view, &[1, 2, 3]).droppable(b"d", 45));
        assert!(Tombstones::new(&view, &[1]).droppable(b"d", 15), "newer tables do not matter");
    }
}
