//! The indexes of this crate as the suite sees them.

use std::marker::PhantomData;

use terrace_base::Result;
use terrace_index::{FastFair, SkipIndex};
use terrace_index_extra::Cceh;
use terrace_index_extra::buffered::{Base, BufferOptions, BufferedIndex, Merge};
use terrace_pmem::Pool;

use crate::conformance::{Case, SEED, Sort, Subject};

impl<const B: usize, const P: usize> Subject for Cceh<B, P> {
    fn sort(&self) -> Sort<'_> {
        Sort::Hashed(self)
    }
}

impl<const B: usize, const P: usize> Subject for BufferedIndex<Cceh<B, P>> {
    fn sort(&self) -> Sort<'_> {
        Sort::Hashed(self)
    }
}

impl<const N: usize> Subject for BufferedIndex<FastFair<N>> {
    fn sort(&self) -> Sort<'_> {
        Sort::Ordered(self)
    }
}

impl Subject for BufferedIndex<SkipIndex> {
    fn sort(&self) -> Sort<'_> {
        Sort::Ordered(self)
    }
}

/// A CCEH table of segments of `B` buckets and windows of `P`.
pub struct Extendible<const B: usize, const P: usize>;

impl<const B: usize, const P: usize> Case for Extendible<B, P> {
    type Index = Cceh<B, P>;
    fn create(pool: &Pool) -> Result<Cceh<B, P>> {
        Cceh::create_seeded(pool, "index", 0, SEED)
    }
    fn open(pool: &Pool) -> Result<Cceh<B, P>> {
        Cceh::open(pool, "index")
    }
}

/// Write buffers so small, and a log so short, that merges, cuts and rotations come up at every few changes.
pub fn tight(merge: Merge, cache: bool) -> BufferOptions {
    BufferOptions { merge, cache, capacity: Some(3), log_bytes: 300, lanes: 2, seed: Some(SEED) }
}

/// Write buffers over `B`, merged out of place if `OUT`, with the inner part cached if `CACHE`.
pub struct Tight<B, const OUT: bool, const CACHE: bool>(PhantomData<B>);

/// Merging in place.
pub type Buffered<B> = Tight<B, false, false>;
/// Merging out of place.
pub type Uncached<B> = Tight<B, true, false>;
/// Merging out of place, with the inner part cached.
pub type Replaced<B> = Tight<B, true, true>;

impl<B: Base, const OUT: bool, const CACHE: bool> Tight<B, OUT, CACHE> {
    fn options() -> BufferOptions {
        tight(if OUT { Merge::OutOfPlace } else { Merge::InPlace }, CACHE)
    }
}

impl<B: Base, const OUT: bool, const CACHE: bool> Case for Tight<B, OUT, CACHE>
where
    BufferedIndex<B>: Subject,
{
    type Index = BufferedIndex<B>;
    fn create(pool: &Pool) -> Result<BufferedIndex<B>> {
        BufferedIndex::create(pool, "index", &Self::options())
    }
    fn open(pool: &Pool) -> Result<BufferedIndex<B>> {
        BufferedIndex::open(pool, "index", &Self::options())
    }
}
