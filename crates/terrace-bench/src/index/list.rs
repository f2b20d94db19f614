//! The measured indexes by name, and how each is made.

use terrace_base::Result;
use terrace_index::{ByteMap, FastFair, SkipIndex, SpOptions, SpTree, TurboHash, TurboHashOptions};
use terrace_index_extra::Cceh;
use terrace_index_extra::buffered::{Base, BufferOptions, BufferedIndex, Merge};
use terrace_pmem::Pool;

use super::store::Store;
use super::subject::{Hashed, Make, Ordered, Setup, Visitor};

/// The pool root that a measured index lies under.
const ROOT: &str = "bench";

/// A measured index.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The name.
    pub name: &'static str,
    /// A description.
    pub about: &'static str,
}

/// The indexes there are.
pub const INDEXES: &[Entry] = &[
    Entry { name: "fastfair", about: "FAST&FAIR B+-tree, with shortcuts to leaves in 32 MiB of DRAM" },
    Entry { name: "fastfair-plain", about: "FAST&FAIR B+-tree without anything in DRAM" },
    Entry { name: "fastfair-b", about: "the same with write buffers, merged in place" },
    Entry { name: "fastfair-bo", about: "merged out of place" },
    Entry { name: "fastfair-boc", about: "and with shortcuts to all leaves in DRAM" },
    Entry { name: "skiplist", about: "persistent skiplist, with a B-tree over it in DRAM" },
    Entry { name: "skiplist-b", about: "the same with write buffers, merged one by one" },
    Entry { name: "skiplist-bo", about: "merged a buffer at a time; its B-tree is the cache of a -boc" },
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
        "fastfair-b" => visitor.visit::<Ordered<Buffered<FastFair, IN_PLACE>>>(),
        "fastfair-bo" => visitor.visit::<Ordered<Buffered<FastFair, OUT_OF_PLACE>>>(),
        "fastfair-boc" => visitor.visit::<Ordered<Buffered<FastFair, CACHED>>>(),
        "skiplist" => visitor.visit::<Ordered<SkipIndex>>(),
        "skiplist-b" => visitor.visit::<Ordered<Buffered<SkipIndex, IN_PLACE>>>(),
        "skiplist-bo" => visitor.visit::<Ordered<Buffered<SkipIndex, OUT_OF_PLACE>>>(),
        "sptree" => visitor.visit::<Ordered<Sp<false>>>(),
        "sptree-b" => visitor.visit::<Ordered<Sp<true>>>(),
        "turbohash" => visitor.visit::<Hashed<TurboHash>>(),
        "cceh" => visitor.visit::<Hashed<Cceh>>(),
        "cceh-b" => visitor.visit::<Hashed<Buffered<Cceh, IN_PLACE>>>(),
        "cceh-bo" => visitor.visit::<Hashed<Buffered<Cceh, OUT_OF_PLACE>>>(),
        "cceh-boc" => visitor.visit::<Hashed<Buffered<Cceh, CACHED>>>(),
        "store-turbo" => visitor.visit::<Store<false>>(),
        "store-sptree" => visitor.visit::<Store<true>>(),
        _ => return None,
    })
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
    fn finish_opening(index: &SpTree) -> Result<()> {
        index.rebuild()
    }
}

impl Make for TurboHash {
    type Index = TurboHash;
    fn make(pool: &Pool, _: Setup) -> Result<TurboHash> {
        TurboHash::create(pool, ROOT, &TurboHashOptions::default())
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
pub struct Buffered<B, const VARIANT: u8>(std::marker::PhantomData<B>);

impl<B, const VARIANT: u8> Buffered<B, VARIANT> {
    fn options(setup: Setup) -> BufferOptions {
        let merge = if VARIANT == IN_PLACE { Merge::InPlace } else { Merge::OutOfPlace };
        let capacity = setup.buffer;
        BufferOptions { merge, cache: VARIANT == CACHED, capacity, ..BufferOptions::default() }
    }
}

impl<B: Base, const VARIANT: u8> Make for Buffered<B, VARIANT> {
    type Index = BufferedIndex<B>;
    fn make(pool: &Pool, setup: Setup) -> Result<BufferedIndex<B>> {
        BufferedIndex::create(pool, ROOT, &Self::options(setup))
    }
    fn reopen(pool: &Pool, setup: Setup) -> Result<BufferedIndex<B>> {
        BufferedIndex::open(pool, ROOT, &Self::options(setup))
    }
    fn flush(index: &BufferedIndex<B>) -> Result<()> {
        index.flush()
    }
}
