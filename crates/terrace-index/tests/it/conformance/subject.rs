//! One face for ordered and for hash indexes, so that one suite asks both.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::ops::Bound;

use terrace_base::Result;
use terrace_index::{HashCursor, HashIndex, OrderedIndex, ScanBatch};
use terrace_pmem::{Marks, Pool};

use super::{Constructor, HashConstructor, colliding};

/// An index under test.
pub trait Subject: Send + Sync + 'static {
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;
    fn insert(&self, key: &[u8], word: u64) -> Result<Option<u64>>;
    fn compare_exchange(
        &self,
        key: &[u8],
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<std::result::Result<(), Option<u64>>>;
    fn remove(&self, key: &[u8]) -> Result<Option<u64>>;
    fn len(&self) -> u64;
    fn mark(&self, marks: &mut Marks) -> Result<()>;
    fn check(&self) -> Result<Vec<String>>;
    fn dram_bytes(&self) -> u64;
    fn pm_bytes(&self) -> u64;
    fn close(&self) -> Result<()>;

    /// The index, if it has an order.
    fn ordered(&self) -> Option<&dyn OrderedIndex>;

    /// Every key once, ascending, by a scan in steps of about `step` keys.
    fn contents(&self, step: usize) -> Vec<(Vec<u8>, u64)>;

    /// What a hash index says of itself is what is there.
    fn check_figures(&self) {}
}

/// Whether a key is one of those that have one hash.
fn collides(key: &[u8]) -> bool {
    key.len() == 32 && key[..8] == colliding(0)[..8]
}

/// How a subject is made.
pub trait Case: Send + Sync + 'static {
    type Index: Subject;
    fn create(pool: &Pool) -> Result<Self::Index>;
    fn open(pool: &Pool) -> Result<Self::Index>;
}

pub struct Ordered<C>(PhantomData<C>);
pub struct Hashed<C>(PhantomData<C>);
pub struct OrderedSubject<I>(pub I);
pub struct HashedSubject<I>(pub I);

impl<C: Constructor> Case for Ordered<C> {
    type Index = OrderedSubject<C::Index>;
    fn create(pool: &Pool) -> Result<Self::Index> {
        C::create(pool).map(OrderedSubject)
    }
    fn open(pool: &Pool) -> Result<Self::Index> {
        C::open(pool).map(OrderedSubject)
    }
}

impl<C: HashConstructor> Case for Hashed<C> {
    type Index = HashedSubject<C::Index>;
    fn create(pool: &Pool) -> Result<Self::Index> {
        C::create(pool).map(HashedSubject)
    }
    fn open(pool: &Pool) -> Result<Self::Index> {
        C::open(pool).map(HashedSubject)
    }
}

macro_rules! common {
    () => {
        fn get(&self, key: &[u8]) -> Result<Option<u64>> {
            self.0.get(key)
        }
        fn insert(&self, key: &[u8], word: u64) -> Result<Option<u64>> {
            self.0.insert(key, word)
        }
        fn compare_exchange(
            &self,
            key: &[u8],
            expected: Option<u64>,
            new: Option<u64>,
        ) -> Result<std::result::Result<(), Option<u64>>> {
            self.0.compare_exchange(key, expected, new)
        }
        fn remove(&self, key: &[u8]) -> Result<Option<u64>> {
            self.0.remove(key)
        }
        fn len(&self) -> u64 {
            assert_eq!(self.0.is_empty(), self.0.len() == 0);
            self.0.len()
        }
        fn mark(&self, marks: &mut Marks) -> Result<()> {
            self.0.mark(marks)
        }
        fn check(&self) -> Result<Vec<String>> {
            self.0.check()
        }
        fn dram_bytes(&self) -> u64 {
            self.0.dram_bytes()
        }
        fn pm_bytes(&self) -> u64 {
            self.0.pm_bytes()
        }
        fn close(&self) -> Result<()> {
            self.0.close()
        }
    };
}

impl<I: OrderedIndex + 'static> Subject for OrderedSubject<I> {
    common!();

    fn ordered(&self) -> Option<&dyn OrderedIndex> {
        Some(&self.0)
    }

    fn contents(&self, _step: usize) -> Vec<(Vec<u8>, u64)> {
        let mut batch = ScanBatch::new();
        self.0.scan(Bound::Unbounded, false, usize::MAX, &mut batch).unwrap();
        let all: Vec<_> = batch.iter().map(|(k, w)| (k.to_vec(), w)).collect();
        assert!(all.is_sorted_by(|a, b| a.0 < b.0), "a scan in order");
        all
    }
}

impl<I: HashIndex + 'static> Subject for HashedSubject<I> {
    common!();

    fn ordered(&self) -> Option<&dyn OrderedIndex> {
        None
    }

    fn contents(&self, step: usize) -> Vec<(Vec<u8>, u64)> {
        let (mut cursor, mut seen, mut all) = (HashCursor::START, BTreeSet::new(), Vec::new());
        let mut batch = ScanBatch::new();
        while !cursor.is_end() {
            batch.clear();
            self.0.scan_unordered(&mut cursor, step, &mut batch).unwrap();
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

    fn check_figures(&self) {
        let figures = self.0.figures().unwrap();
        assert_eq!(figures.keys, self.0.len());
        assert_eq!(figures.hits.iter().sum::<u64>(), figures.keys);
        assert!(figures.usable_slots <= figures.slots && figures.keys <= figures.slots);
        assert!((0.0..=1.0).contains(&figures.load_factor()));
    }
}
