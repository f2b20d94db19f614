//! Every measured index behind one small trait, and the list of them by name.
//!
//! Calls are resolved at compile time, so that the harness adds nothing to what it measures: a [`Visitor`]
//! is instantiated for the subject whose name was given.

use std::ops::Bound;

use terrace_base::Result;
use terrace_index::{FastFair, OrderedIndex, ScanBatch, SkipIndex};
use terrace_pmem::Pool;

use super::pairs::Pairs;

/// The pool root that a measured index lies under.
pub(super) const ROOT: &str = "bench";

/// An index that can be measured. Values are words other than 0, or made of one.
pub trait Subject: Send + Sync + Sized + 'static {
    /// Whether it can scan.
    const SCANS: bool;

    /// Makes an empty index for pairs of a shape.
    fn create(pool: &Pool, pairs: Pairs) -> Result<Self>;

    /// Opens it again, also after a crash.
    fn open(pool: &Pool, pairs: Pairs) -> Result<Self>;

    /// Inserts a key that is not there.
    fn insert(&self, key: &[u8], word: u64) -> Result<()>;

    /// The word of a key.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Gives a key that is there another word.
    fn update(&self, key: &[u8], word: u64) -> Result<()> {
        self.insert(key, word)
    }

    /// Removes a key; whether it was there.
    fn remove(&self, key: &[u8]) -> Result<bool>;

    /// Reads up to `limit` pairs from `from` on into `out`, which is empty.
    fn scan(&self, _from: &[u8], _limit: usize, _out: &mut ScanBatch) -> Result<()> {
        Ok(())
    }

    /// Makes what is buffered part of the structure, where there are buffers.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Waits until what opening does in the background is done.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Pairs in it.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Share of the slots that hold a pair, where an index has slots.
    fn load_factor(&self) -> Option<f64> {
        None
    }

    /// How many probes went how many buckets far for keys that are not there; entry `i` is distance `i + 1`.
    fn probe_histogram(&self) -> Result<Option<Vec<u64>>> {
        Ok(None)
    }

    /// Findings against its invariants.
    fn check(&self) -> Result<Vec<String>>;

    /// Bytes of DRAM held.
    fn dram_bytes(&self) -> u64;

    /// Bytes of the pool held.
    fn pm_bytes(&self) -> u64;
}

/// What is done with whichever subject was named.
pub trait Visitor {
    /// What comes out.
    type Out;

    /// Does it.
    fn visit<S: Subject>(self) -> Self::Out;
}

/// A measured index: its name, what it is, and whether it takes pairs of a shape.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
}

/// The indexes there are.
pub const INDEXES: &[Entry] = &[
    Entry { name: "fastfair", about: "FAST&FAIR B+-tree" },
    Entry { name: "skiplist", about: "persistent skiplist" },
];

/// Calls `visitor` for the subject of that name; `None` if there is none.
pub fn with_subject<V: Visitor>(name: &str, visitor: V) -> Option<V::Out> {
    Some(match name {
        "fastfair" => visitor.visit::<Ordered<FastFair>>(),
        "skiplist" => visitor.visit::<Ordered<SkipIndex>>(),
        _ => return None,
    })
}

/// How an ordered index is made.
pub trait MakeOrdered: OrderedIndex + Sized + 'static {
    /// Makes an empty one.
    fn make(pool: &Pool) -> Result<Self>;
    /// Opens it.
    fn reopen(pool: &Pool) -> Result<Self>;
}

impl MakeOrdered for FastFair {
    fn make(pool: &Pool) -> Result<Self> {
        FastFair::create(pool, ROOT)
    }
    fn reopen(pool: &Pool) -> Result<Self> {
        FastFair::open(pool, ROOT)
    }
}

impl MakeOrdered for SkipIndex {
    fn make(pool: &Pool) -> Result<Self> {
        SkipIndex::create(pool, ROOT)
    }
    fn reopen(pool: &Pool) -> Result<Self> {
        SkipIndex::open(pool, ROOT)
    }
}

/// An [`OrderedIndex`] as a subject.
#[derive(Debug)]
pub struct Ordered<I>(I);

impl<I: MakeOrdered> Subject for Ordered<I> {
    const SCANS: bool = true;

    fn create(pool: &Pool, _: Pairs) -> Result<Self> {
        Ok(Ordered(I::make(pool)?))
    }

    fn open(pool: &Pool, _: Pairs) -> Result<Self> {
        Ok(Ordered(I::reopen(pool)?))
    }

    #[inline]
    fn insert(&self, key: &[u8], word: u64) -> Result<()> {
        self.0.insert(key, word).map(drop)
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        self.0.get(key)
    }

    #[inline]
    fn remove(&self, key: &[u8]) -> Result<bool> {
        Ok(self.0.remove(key)?.is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, out: &mut ScanBatch) -> Result<()> {
        self.0.scan(Bound::Included(from), false, limit, out)
    }

    fn len(&self) -> u64 {
        self.0.len()
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
}
