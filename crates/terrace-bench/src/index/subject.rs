//! Every measured index behind one small trait.
//!
//! Calls are resolved at compile time, so that the harness adds nothing to what it measures: a [`Visitor`]
//! is instantiated for the subject whose name was given ([`list`](super::list)).

use std::marker::PhantomData;
use std::ops::Bound;

use terrace_base::Result;
use terrace_index::{ByteMap, HashIndex, OrderedIndex, PointIndex, ScanBatch};
use terrace_pmem::Pool;

use super::pairs::Pairs;

/// The setup of an index.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The shape of pairs.
    pub pairs: Pairs,
    /// Changes that a write buffer takes, where there are buffers; the structure's own figure if there is none.
    pub buffer: Option<usize>,
}

/// An index that can be measured. Values are words other than 0, or made of one.
pub trait Subject: Send + Sync + Sized + 'static {
    /// Whether it can scan.
    const SCANS: bool;

    /// Makes an empty index.
    fn create(pool: &Pool, setup: Setup) -> Result<Self>;

    /// Opens it again, also after a crash.
    fn open(pool: &Pool, setup: Setup) -> Result<Self>;

    /// Inserts a key that is not there.
    fn insert(&self, key: &[u8], word: u64) -> Result<()>;

    /// The word of a key.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Says that `key` will soon be read.
    fn prefetch(&self, _key: &[u8]) {}

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

    /// Merges buffered changes into the structure, where there are buffers.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Waits for the background work of opening.
    fn finish_opening(&self) -> Result<()> {
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

/// An action on the subject that was named.
pub trait Visitor {
    /// Its result.
    type Out;

    /// Does it.
    fn visit<S: Subject>(self) -> Self::Out;
}

/// An index that knows how it is made to be measured.
pub trait Make: Sized + Send + Sync + 'static {
    /// The index that is measured.
    type Index: PointIndex + 'static;
    /// Makes an empty one.
    fn make(pool: &Pool, setup: Setup) -> Result<Self::Index>;
    /// Opens it.
    fn reopen(pool: &Pool, setup: Setup) -> Result<Self::Index>;
    /// Merges buffered changes into the structure.
    fn flush(_: &Self::Index) -> Result<()> {
        Ok(())
    }
    /// Waits for the background work of opening.
    fn finish_opening(_: &Self::Index) -> Result<()> {
        Ok(())
    }
    /// Share of the slots in use.
    fn load_factor(_: &Self::Index) -> Option<f64> {
        None
    }
    /// The map from bytes to bytes that it also is.
    fn bytes(_: &Self::Index) -> Option<&dyn ByteMap> {
        None
    }
}

/// The operations of an index on several keys.
pub trait Sort<I>: Send + Sync + 'static {
    /// Whether it can scan.
    const SCANS: bool;

    /// Reads up to `limit` pairs from `from` on into `out`, which is empty.
    fn scan(_: &I, _from: &[u8], _limit: usize, _out: &mut ScanBatch) -> Result<()> {
        Ok(())
    }

    /// How many probes went how many buckets far for keys that are not there.
    fn misses(_: &I) -> Result<Option<Vec<u64>>> {
        Ok(None)
    }
}

/// Its keys have an order.
#[derive(Debug)]
pub struct ByKey;

impl<I: OrderedIndex> Sort<I> for ByKey {
    const SCANS: bool = true;

    fn scan(index: &I, from: &[u8], limit: usize, out: &mut ScanBatch) -> Result<()> {
        index.scan(Bound::Included(from), false, limit, out)
    }
}

/// Its keys lie by their hashes.
#[derive(Debug)]
pub struct ByHash;

impl<I: HashIndex> Sort<I> for ByHash {
    const SCANS: bool = false;

    fn misses(index: &I) -> Result<Option<Vec<u64>>> {
        Ok(Some(index.figures()?.misses))
    }
}

/// An index as a subject. If it takes byte strings, pairs of 15 and 15 bytes have values of 15 bytes.
#[derive(Debug)]
pub struct Measured<M: Make, S> {
    index: M::Index,
    wide: bool,
    sort: PhantomData<S>,
}

/// An [`OrderedIndex`] as a subject.
pub type Ordered<M> = Measured<M, ByKey>;
/// A [`HashIndex`] as a subject.
pub type Hashed<M> = Measured<M, ByHash>;

/// Bytes of a wide value.
pub(super) const WIDE_BYTES: usize = 15;

pub(super) fn widened(word: u64) -> [u8; WIDE_BYTES] {
    let mut value = [b'v'; WIDE_BYTES];
    value[..8].copy_from_slice(&word.to_le_bytes());
    value
}

impl<M: Make, S> Measured<M, S> {
    fn over(index: M::Index, pairs: Pairs) -> Self {
        let wide = pairs == Pairs::Fifteen && M::bytes(&index).is_some();
        Measured { index, wide, sort: PhantomData }
    }

    fn map(&self) -> Option<&dyn ByteMap> {
        if self.wide { M::bytes(&self.index) } else { None }
    }
}

thread_local!(static VALUE: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) });

/// The word of a wide value, if that is a whole one.
fn narrowed(map: &dyn ByteMap, key: &[u8]) -> Result<Option<u64>> {
    VALUE.with_borrow_mut(|value| {
        if !map.get(key, value)? {
            return Ok(None);
        }
        let word = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        Ok(word.filter(|word| value[..] == widened(*word)))
    })
}

impl<M: Make, S: Sort<M::Index>> Subject for Measured<M, S> {
    const SCANS: bool = S::SCANS;

    fn create(pool: &Pool, setup: Setup) -> Result<Self> {
        Ok(Self::over(M::make(pool, setup)?, setup.pairs))
    }

    fn open(pool: &Pool, setup: Setup) -> Result<Self> {
        Ok(Self::over(M::reopen(pool, setup)?, setup.pairs))
    }

    #[inline]
    fn insert(&self, key: &[u8], word: u64) -> Result<()> {
        match self.map() {
            None => self.index.insert(key, word).map(drop),
            Some(map) => map.put(key, &widened(word)).map(drop),
        }
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        match self.map() {
            None => self.index.get(key),
            Some(map) => narrowed(map, key),
        }
    }

    #[inline]
    fn prefetch(&self, key: &[u8]) {
        self.index.prefetch(key);
    }

    #[inline]
    fn remove(&self, key: &[u8]) -> Result<bool> {
        match self.map() {
            None => Ok(self.index.remove(key)?.is_some()),
            Some(map) => map.delete(key),
        }
    }

    fn scan(&self, from: &[u8], limit: usize, out: &mut ScanBatch) -> Result<()> {
        S::scan(&self.index, from, limit, out)
    }

    fn flush(&self) -> Result<()> {
        M::flush(&self.index)
    }

    fn finish_opening(&self) -> Result<()> {
        M::finish_opening(&self.index)
    }

    fn len(&self) -> u64 {
        self.index.len()
    }

    fn load_factor(&self) -> Option<f64> {
        M::load_factor(&self.index)
    }

    fn probe_histogram(&self) -> Result<Option<Vec<u64>>> {
        S::misses(&self.index)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.index.check()
    }

    fn dram_bytes(&self) -> u64 {
        self.index.dram_bytes()
    }

    fn pm_bytes(&self) -> u64 {
        self.index.pm_bytes()
    }
}
