//! The indexes of this crate as the suite sees them.

use terrace_base::Result;
use terrace_index::{FastFair, SkipIndex, SpTree, TurboHash, TurboHashOptions};
use terrace_pmem::Pool;

use crate::conformance::{Case, SEED, Sort, Subject};

impl<const N: usize> Subject for FastFair<N> {
    fn sort(&self) -> Sort<'_> {
        Sort::Ordered(self)
    }
}

impl Subject for SkipIndex {
    fn sort(&self) -> Sort<'_> {
        Sort::Ordered(self)
    }
}

impl Subject for SpTree {
    fn sort(&self) -> Sort<'_> {
        Sort::Ordered(self)
    }

    fn shrink(&self) -> Result<()> {
        SpTree::shrink(self)
    }
}

impl Subject for TurboHash {
    fn sort(&self) -> Sort<'_> {
        Sort::Hashed(self)
    }
}

pub struct Skip;

impl Case for Skip {
    type Index = SkipIndex;
    fn create(pool: &Pool) -> Result<SkipIndex> {
        SkipIndex::create(pool, "index")
    }
    fn open(pool: &Pool) -> Result<SkipIndex> {
        SkipIndex::open(pool, "index")
    }
}

pub struct Fair<const N: usize>;

impl<const N: usize> Case for Fair<N> {
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

impl<const SHARDS: u32, const BUCKETS: u32, const SCOPE: u32> Case for Turbo<SHARDS, BUCKETS, SCOPE> {
    type Index = TurboHash;
    fn create(pool: &Pool) -> Result<TurboHash> {
        let options = TurboHashOptions {
            shards: SHARDS,
            initial_buckets: BUCKETS,
            probing_scope: SCOPE,
            seed: Some(SEED),
        };
        TurboHash::create(pool, "index", &options)
    }
    fn open(pool: &Pool) -> Result<TurboHash> {
        TurboHash::open(pool, "index")
    }
}
