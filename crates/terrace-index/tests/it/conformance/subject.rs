//! What the suite asks of an index besides its traits, and how it is made.

use std::collections::BTreeSet;
use std::ops::Bound;

use terrace_base::Result;
use terrace_index::{HashIndex, OrderedIndex, PointIndex, ScanBatch, ScanPosition};
use terrace_pmem::Pool;

use super::colliding;

/// What an index does beyond single keys.
pub enum Sort<'a> {
    Ordered(&'a dyn OrderedIndex),
    Hashed(&'a dyn HashIndex),
}

/// An index under test.
pub trait Subject: PointIndex + 'static {
    fn sort(&self) -> Sort<'_>;

    /// Makes it as small as its keys let it be.
    fn shrink(&self) -> Result<()> {
        Ok(())
    }

    /// The index, if it has an order.
    fn ordered(&self) -> Option<&dyn OrderedIndex> {
        match self.sort() {
            Sort::Ordered(index) => Some(index),
            Sort::Hashed(_) => None,
        }
    }

    /// Every key once, ascending; of a hash index by a scan in steps of about `step` keys.
    fn contents(&self, step: usize) -> Vec<(Vec<u8>, u64)> {
        match self.sort() {
            Sort::Ordered(index) => in_order(index),
            Sort::Hashed(index) => in_steps(index, step),
        }
    }

    /// What the index says of itself is what is there.
    fn check_figures(&self) {
        assert_eq!(self.is_empty(), self.len() == 0);
        let Sort::Hashed(index) = self.sort() else { return };
        let figures = index.figures().unwrap();
        assert_eq!(figures.keys, self.len());
        assert_eq!(figures.hits.iter().sum::<u64>(), figures.keys);
        assert!(figures.usable_slots <= figures.slots && figures.keys <= figures.slots);
        assert!((0.0..=1.0).contains(&figures.load_factor()));
    }
}

/// How a subject is made.
pub trait Case: Send + Sync + 'static {
    type Index: Subject;
    fn create(pool: &Pool) -> Result<Self::Index>;
    fn open(pool: &Pool) -> Result<Self::Index>;
}

fn in_order(index: &dyn OrderedIndex) -> Vec<(Vec<u8>, u64)> {
    let mut batch = ScanBatch::new();
    index.scan(Bound::Unbounded, false, usize::MAX, &mut batch).unwrap();
    let all: Vec<_> = batch.iter().map(|(k, w)| (k.to_vec(), w)).collect();
    assert!(all.is_sorted_by(|a, b| a.0 < b.0), "a scan in order");
    all
}

fn in_steps(index: &dyn HashIndex, step: usize) -> Vec<(Vec<u8>, u64)> {
    let (mut cursor, mut seen, mut all) = (ScanPosition::START, BTreeSet::new(), Vec::new());
    let mut batch = ScanBatch::new();
    while !cursor.is_end() {
        batch.clear();
        index.scan_unordered(&mut cursor, step, &mut batch).unwrap();
        assert!(!batch.is_empty() || cursor.is_end(), "a step that leads nowhere");
        // Keys of one hash come together.
        let others = batch.iter().filter(|(key, _)| !collides(key)).count();
        assert!(others <= step.max(1), "more than was asked for");
        for (key, word) in batch.iter() {
            assert!(seen.insert(key.to_vec()), "{key:?} comes twice");
            all.push((key.to_vec(), word));
        }
    }
    all.sort_unstable();
    all
}

/// Whether a key is one of those that have one hash.
fn collides(key: &[u8]) -> bool {
    key.len() == 32 && key[..8] == colliding(0)[..8]
}
