//! What every index must do, whatever it is made of: by capability, so that a hash index gets all but the order.

mod crash;
mod delays;
mod hard;
mod histories;
mod model;
mod reclaim;
mod subject;
mod threads;

use terrace_base::Result;
use terrace_index::spot_on::{Base, Merge, SpotOn, SpotOnOptions};
use terrace_index::{Cceh, FastFair, HashIndex, OrderedIndex, SkipIndex, TurboHash, TurboOptions};
use terrace_pmem::Pool;

pub use crash::{
    Op, StructureChange, crash_again, crash_in_each_event_of, inserts, removes, survives_crashes,
    try_each_event,
};
pub use delays::{bears_delays, bears_delays_after_a_crash};
pub use hard::bears_hard_keys;
pub use histories::is_linearizable;
pub use model::agrees_with_a_map;
pub use reclaim::reclaims_beside_writers;
pub use subject::{Case, Hashed, HashedSubject, Ordered, OrderedSubject, Subject};
pub use threads::{
    bears_many_threads, closes_beside_readers, counts_by_compare_exchange, loses_no_insert,
    marks_beside_writers, shows_what_is_always_there,
};

/// Seed of the hashes under test, so that every run is the same and keys can be made to collide.
pub const SEED: u64 = 0x7465_7272_6163_6521;

/// Key `i` of those that have one hash with [`SEED`].
pub fn colliding(i: u64) -> Vec<u8> {
    terrace_sim::colliding(SEED, i)
}

/// How an ordered index is made.
pub trait Constructor: Send + Sync + 'static {
    type Index: OrderedIndex;
    fn create(pool: &Pool) -> Result<Self::Index>;
    fn open(pool: &Pool) -> Result<Self::Index>;
}

/// How a hash index is made.
pub trait HashConstructor: Send + Sync + 'static {
    type Index: HashIndex;
    fn create(pool: &Pool) -> Result<Self::Index>;
    fn open(pool: &Pool) -> Result<Self::Index>;
}

pub struct Skip;

impl Constructor for Skip {
    type Index = SkipIndex;
    fn create(pool: &Pool) -> Result<SkipIndex> {
        SkipIndex::create(pool, "index")
    }
    fn open(pool: &Pool) -> Result<SkipIndex> {
        SkipIndex::open(pool, "index")
    }
}

pub struct Fair<const N: usize>;

impl<const N: usize> Constructor for Fair<N> {
    type Index = FastFair<N>;
    fn create(pool: &Pool) -> Result<FastFair<N>> {
        FastFair::create(pool, "index")
    }
    fn open(pool: &Pool) -> Result<FastFair<N>> {
        FastFair::open(pool, "index")
    }
}

/// A TurboHash table of so many shards, with so many buckets at first, and probes of so many buckets.
pub struct Turbo<const SHARDS: u32, const BUCKETS: u32, const SCOPE: u32>;

impl<const SHARDS: u32, const BUCKETS: u32, const SCOPE: u32> HashConstructor
    for Turbo<SHARDS, BUCKETS, SCOPE>
{
    type Index = TurboHash;
    fn create(pool: &Pool) -> Result<TurboHash> {
        let options =
            TurboOptions { shards: SHARDS, initial_buckets: BUCKETS, probing_scope: SCOPE, seed: Some(SEED) };
        TurboHash::create(pool, "index", &options)
    }
    fn open(pool: &Pool) -> Result<TurboHash> {
        TurboHash::open(pool, "index")
    }
}

pub struct Extendible<const B: usize, const P: usize>;

impl<const B: usize, const P: usize> HashConstructor for Extendible<B, P> {
    type Index = Cceh<B, P>;
    fn create(pool: &Pool) -> Result<Cceh<B, P>> {
        Cceh::create_seeded(pool, "index", 0, SEED)
    }
    fn open(pool: &Pool) -> Result<Cceh<B, P>> {
        Cceh::open(pool, "index")
    }
}

/// Write buffers so small, and a log so short, that merges, cuts and turns come up at every few changes.
pub fn tight(merge: Merge, cache: bool) -> SpotOnOptions {
    SpotOnOptions { merge, cache, capacity: Some(3), log_bytes: 300, lanes: 2, seed: Some(SEED) }
}

/// Merging in place.
pub struct Buffered<B>(std::marker::PhantomData<B>);
/// Merging out of place.
pub struct Uncached<B>(std::marker::PhantomData<B>);
/// Merging out of place, with the inner part cached.
pub struct Replaced<B>(std::marker::PhantomData<B>);

macro_rules! spot_on_constructor {
    ($variant:ident, $merge:expr, $cache:expr) => {
        impl<B: Base + OrderedIndex> Constructor for $variant<B> {
            type Index = SpotOn<B>;
            fn create(pool: &Pool) -> Result<SpotOn<B>> {
                SpotOn::create(pool, "index", &tight($merge, $cache))
            }
            fn open(pool: &Pool) -> Result<SpotOn<B>> {
                SpotOn::open(pool, "index", &tight($merge, $cache))
            }
        }

        impl<B: Base + HashIndex> HashConstructor for $variant<B> {
            type Index = SpotOn<B>;
            fn create(pool: &Pool) -> Result<SpotOn<B>> {
                SpotOn::create(pool, "index", &tight($merge, $cache))
            }
            fn open(pool: &Pool) -> Result<SpotOn<B>> {
                SpotOn::open(pool, "index", &tight($merge, $cache))
            }
        }
    };
}
spot_on_constructor!(Buffered, Merge::InPlace, false);
spot_on_constructor!(Uncached, Merge::OutOfPlace, false);
spot_on_constructor!(Replaced, Merge::OutOfPlace, true);

/// The suite for an ordered index.
macro_rules! conformance {
    ($name:ident, $constructor:ty) => {
        crate::conformance::suite!($name, crate::conformance::Ordered<$constructor>);
    };
}
pub(crate) use conformance;

/// The suite for a hash index.
macro_rules! hash_conformance {
    ($name:ident, $constructor:ty) => {
        crate::conformance::suite!($name, crate::conformance::Hashed<$constructor>);
    };
}
pub(crate) use hash_conformance;

macro_rules! suite {
    ($name:ident, $case:ty) => {
        mod $name {
            type Case = $case;

            #[test]
            fn agrees_with_a_map() {
                crate::conformance::agrees_with_a_map::<Case>();
            }

            #[test]
            fn survives_crashes() {
                crate::conformance::survives_crashes::<Case>();
            }

            #[test]
            fn loses_no_insert() {
                crate::conformance::loses_no_insert::<Case>();
            }

            #[test]
            fn shows_what_is_always_there() {
                crate::conformance::shows_what_is_always_there::<Case>();
            }

            #[test]
            fn counts_by_compare_exchange() {
                crate::conformance::counts_by_compare_exchange::<Case>();
            }

            #[test]
            fn is_linearizable() {
                crate::conformance::is_linearizable::<Case>();
            }

            #[test]
            fn marks_beside_writers() {
                crate::conformance::marks_beside_writers::<Case>();
            }

            #[test]
            fn bears_many_threads() {
                crate::conformance::bears_many_threads::<Case>();
            }

            #[test]
            fn closes_beside_readers() {
                crate::conformance::closes_beside_readers::<Case>();
            }

            #[test]
            fn bears_delays() {
                crate::conformance::bears_delays::<Case>();
            }

            #[test]
            fn bears_delays_after_a_crash() {
                crate::conformance::bears_delays_after_a_crash::<Case>();
            }

            #[test]
            fn bears_hard_keys() {
                crate::conformance::bears_hard_keys::<Case>();
            }

            #[test]
            fn reclaims_beside_writers() {
                crate::conformance::reclaims_beside_writers::<Case>(400);
            }
        }
    };
}
pub(crate) use suite;
