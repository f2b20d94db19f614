//! Every measured index behind one small trait, and the list of them by name.
//!
//! Calls are resolved at compile time, so that the harness adds nothing to what it measures: a [`Visitor`]
//! is instantiated for the subject whose name was given.

use std::ops::Bound;

use terrace_base::Result;
use terrace_index::spot_on::{Base, Merge, SpotOn, SpotOnOptions};
use terrace_index::{
    ByteMap, Cceh, FastFair, HashIndex, OrderedIndex, ScanBatch, SkipIndex, SpOptions, SpTree, TurboHash,
    TurboOptions,
};
use terrace_pmem::Pool;

use super::pairs::Pairs;
use super::store::{SPTREE, Store, TURBO};

/// The pool root that a measured index lies under.
pub(super) const ROOT: &str = "bench";

/// What an index is made for.
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

/// A measured index.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
}

/// The indexes there are.
pub const INDEXES: &[Entry] = &[
    Entry { name: "fastfair", about: "FAST&FAIR B+-tree, with shortcuts to leaves in 32 MiB of DRAM" },
    Entry { name: "fastfair-plain", about: "FAST&FAIR B+-tree without anything in DRAM" },
    Entry { name: "fastfair-b", about: "the same with write buffers, merged in place" },
    Entry { name: "fastfair-bo", about: "merged out of place" },
    Entry { name: "fastfair-boc", about: "and with shortcuts to all leaves in DRAM" },
    Entry { name: "skiplist", about: "persistent skiplist, with its guide in DRAM" },
    Entry { name: "skiplist-b", about: "the same with write buffers, merged one by one" },
    Entry { name: "skiplist-bo", about: "merged a buffer at a time; its guide is the cache of a -boc" },
    Entry { name: "sptree", about: "SPTree: inner nodes and filters in DRAM over unsorted leaves" },
    Entry { name: "sptree-b", about: "the same with its own write buffers and logs" },
    Entry { name: "turbohash", about: "TurboHash, shards of 256-byte buckets that grow by themselves" },
    Entry { name: "cceh", about: "CCEH, extendible hashing with segments of 16 KiB" },
    Entry { name: "cceh-b", about: "the same with write buffers, merged in place" },
    Entry { name: "cceh-bo", about: "merged out of place" },
    Entry { name: "cceh-boc", about: "and with the directory in DRAM" },
    Entry {
        name: "store-turbo",
        about: "a database of the engine turbo: what it costs beside the bare table",
    },
    Entry {
        name: "store-sptree",
        about: "a database of the engine sptree: what it costs beside the bare tree",
    },
];

/// Calls `visitor` for the subject of that name; `None` if there is none.
pub fn with_subject<V: Visitor>(name: &str, visitor: V) -> Option<V::Out> {
    Some(match name {
        "fastfair" => visitor.visit::<Ordered<FastFair>>(),
        "fastfair-plain" => visitor.visit::<Ordered<Plain>>(),
        "fastfair-b" => visitor.visit::<Ordered<Spot<FastFair, IN_PLACE>>>(),
        "fastfair-bo" => visitor.visit::<Ordered<Spot<FastFair, OUT_OF_PLACE>>>(),
        "fastfair-boc" => visitor.visit::<Ordered<Spot<FastFair, CACHED>>>(),
        "skiplist" => visitor.visit::<Ordered<SkipIndex>>(),
        "skiplist-b" => visitor.visit::<Ordered<Spot<SkipIndex, IN_PLACE>>>(),
        "skiplist-bo" => visitor.visit::<Ordered<Spot<SkipIndex, OUT_OF_PLACE>>>(),
        "sptree" => visitor.visit::<Ordered<Sp<false>>>(),
        "sptree-b" => visitor.visit::<Ordered<Sp<true>>>(),
        "turbohash" => visitor.visit::<Hashed<TurboHash>>(),
        "cceh" => visitor.visit::<Hashed<Cceh>>(),
        "cceh-b" => visitor.visit::<Hashed<Spot<Cceh, IN_PLACE>>>(),
        "cceh-bo" => visitor.visit::<Hashed<Spot<Cceh, OUT_OF_PLACE>>>(),
        "cceh-boc" => visitor.visit::<Hashed<Spot<Cceh, CACHED>>>(),
        "store-turbo" => visitor.visit::<Store<TURBO>>(),
        "store-sptree" => visitor.visit::<Store<SPTREE>>(),
        _ => return None,
    })
}

/// An index that knows how it is made to be measured.
pub trait Make: Sized + Send + Sync + 'static {
    /// What is measured.
    type Index;
    /// Makes an empty one.
    fn make(pool: &Pool, setup: Setup) -> Result<Self::Index>;
    /// Opens it.
    fn reopen(pool: &Pool, setup: Setup) -> Result<Self::Index>;
    /// Makes what is buffered part of the structure.
    fn flush(_: &Self::Index) -> Result<()> {
        Ok(())
    }
    /// Waits until what opening does in the background is done.
    fn settle(_: &Self::Index) -> Result<()> {
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

macro_rules! make {
    ($made:ty, $index:ty $(, $more:item)*) => {
        impl Make for $made {
            type Index = $index;
            fn make(pool: &Pool, _: Setup) -> Result<$index> {
                <$index>::create(pool, ROOT)
            }
            fn reopen(pool: &Pool, _: Setup) -> Result<$index> {
                <$index>::open(pool, ROOT)
            }
            $($more)*
        }
    };
}
make!(FastFair, FastFair);
make!(SkipIndex, SkipIndex);
make!(
    Cceh,
    Cceh,
    fn load_factor(index: &Cceh) -> Option<f64> {
        Some(index.load_factor())
    },
    fn bytes(index: &Cceh) -> Option<&dyn ByteMap> {
        Some(index)
    }
);

/// An SPTree, with write buffers or without.
#[derive(Debug)]
pub struct Sp<const BUFFERED: bool>;

impl<const BUFFERED: bool> Sp<BUFFERED> {
    fn options() -> SpOptions {
        SpOptions { buffered: BUFFERED, ..SpOptions::default() }
    }
}

impl<const BUFFERED: bool> Make for Sp<BUFFERED> {
    type Index = SpTree;
    fn make(pool: &Pool, _: Setup) -> Result<SpTree> {
        SpTree::create(pool, ROOT, &Self::options())
    }
    fn reopen(pool: &Pool, _: Setup) -> Result<SpTree> {
        SpTree::open(pool, ROOT, &Self::options())
    }
    fn settle(index: &SpTree) -> Result<()> {
        index.rebuild()
    }
}

impl Make for TurboHash {
    type Index = TurboHash;
    fn make(pool: &Pool, _: Setup) -> Result<TurboHash> {
        TurboHash::create(pool, ROOT, &TurboOptions::default())
    }
    fn reopen(pool: &Pool, _: Setup) -> Result<TurboHash> {
        TurboHash::open(pool, ROOT)
    }
    fn load_factor(index: &TurboHash) -> Option<f64> {
        Some(index.load_factor())
    }
    fn bytes(index: &TurboHash) -> Option<&dyn ByteMap> {
        Some(index)
    }
}

/// FAST&FAIR without shortcuts.
#[derive(Debug)]
pub struct Plain;

impl Make for Plain {
    type Index = FastFair;
    fn make(pool: &Pool, _: Setup) -> Result<FastFair> {
        let tree = FastFair::create(pool, ROOT)?;
        tree.set_shortcut_limit(0);
        Ok(tree)
    }
    fn reopen(pool: &Pool, _: Setup) -> Result<FastFair> {
        let tree = FastFair::open(pool, ROOT)?;
        tree.set_shortcut_limit(0);
        Ok(tree)
    }
}

const IN_PLACE: u8 = 0;
const OUT_OF_PLACE: u8 = 1;
const CACHED: u8 = 2;

/// A structure behind write buffers, in one of the three variants above.
#[derive(Debug)]
pub struct Spot<B, const VARIANT: u8>(std::marker::PhantomData<B>);

impl<B, const VARIANT: u8> Spot<B, VARIANT> {
    fn options(setup: Setup) -> SpotOnOptions {
        let merge = if VARIANT == IN_PLACE { Merge::InPlace } else { Merge::OutOfPlace };
        let capacity = setup.buffer;
        SpotOnOptions { merge, cache: VARIANT == CACHED, capacity, ..SpotOnOptions::default() }
    }
}

impl<B: Base, const VARIANT: u8> Make for Spot<B, VARIANT> {
    type Index = SpotOn<B>;
    fn make(pool: &Pool, setup: Setup) -> Result<SpotOn<B>> {
        SpotOn::create(pool, ROOT, &Self::options(setup))
    }
    fn reopen(pool: &Pool, setup: Setup) -> Result<SpotOn<B>> {
        SpotOn::open(pool, ROOT, &Self::options(setup))
    }
    fn flush(index: &SpotOn<B>) -> Result<()> {
        index.flush()
    }
}

/// An [`OrderedIndex`] as a subject.
#[derive(Debug)]
pub struct Ordered<M: Make>(M::Index);

impl<M: Make<Index: OrderedIndex + 'static>> Subject for Ordered<M> {
    const SCANS: bool = true;

    fn create(pool: &Pool, setup: Setup) -> Result<Self> {
        Ok(Ordered(M::make(pool, setup)?))
    }

    fn open(pool: &Pool, setup: Setup) -> Result<Self> {
        Ok(Ordered(M::reopen(pool, setup)?))
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

    fn flush(&self) -> Result<()> {
        M::flush(&self.0)
    }

    fn settle(&self) -> Result<()> {
        M::settle(&self.0)
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

/// A [`HashIndex`] as a subject. If it takes bytes, pairs of 15 and 15 bytes are what they say.
#[derive(Debug)]
pub struct Hashed<M: Make> {
    index: M::Index,
    wide: bool,
}

/// Bytes of a wide value.
pub(super) const WIDE_BYTES: usize = 15;

pub(super) fn widened(word: u64) -> [u8; WIDE_BYTES] {
    let mut value = [b'v'; WIDE_BYTES];
    value[..8].copy_from_slice(&word.to_le_bytes());
    value
}

impl<M: Make<Index: HashIndex + 'static>> Hashed<M> {
    fn over(index: M::Index, pairs: Pairs) -> Self {
        let wide = pairs == Pairs::Fifteen && M::bytes(&index).is_some();
        Hashed { index, wide }
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

impl<M: Make<Index: HashIndex + 'static>> Subject for Hashed<M> {
    const SCANS: bool = false;

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

    fn flush(&self) -> Result<()> {
        M::flush(&self.index)
    }

    fn settle(&self) -> Result<()> {
        M::settle(&self.index)
    }

    fn len(&self) -> u64 {
        self.index.len()
    }

    fn load_factor(&self) -> Option<f64> {
        M::load_factor(&self.index)
    }

    fn probe_histogram(&self) -> Result<Option<Vec<u64>>> {
        Ok(Some(self.index.figures()?.misses))
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
