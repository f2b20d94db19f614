//! The structures that write buffers are put on.

use terrace_base::Result;
use terrace_base::checksum::hash64;
use terrace_base::rng::Rng;
use terrace_pmem::Pool;

use terrace_index::{Change, FastFair, PointIndex, SkipIndex};

use crate::cceh::Cceh;

/// How buffered changes are merged into a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Merge {
    /// One after the other, each made durable in the node as it is.
    InPlace,
    /// All at once, into a node that takes the old one's place.
    #[default]
    OutOfPlace,
}

/// The beginning of a node, reported by a merge: the head of a place, and the key if it is the place of a key.
pub type Edge<'a> = dyn FnMut(u64, &[u8]) + 'a;

/// A persistent structure of nodes, each of which has the keys of one range of *places*. A key's place is its head,
/// and among equal heads its bytes.
pub trait Base: PointIndex + Sized + 'static {
    /// Changes that a node's buffer takes.
    const CAPACITY: usize;

    /// Makes an empty structure under a root. Hashes have the seed, if one is given.
    fn create(pool: &Pool, root_name: &str, seed: Option<u64>) -> Result<Self>;

    /// Opens it.
    fn open(pool: &Pool, root_name: &str) -> Result<Self>;

    /// The head of a key's place.
    fn head(&self, key: &[u8]) -> u64;

    /// Makes all `changes`, which ascend by place, durably, and reports the bounds of the changed nodes to `edge`. No
    /// other thread changes these keys meanwhile. After an error any of them may have been made.
    fn merge(&self, changes: &[Change<'_>], how: Merge, edge: &mut Edge<'_>) -> Result<()>;

    /// Keeps a copy of the inner part in DRAM, or none.
    fn cache_inner(&self, cached: bool);
}

/// The first eight bytes of a key as a number: a lesser key never has the greater number.
pub(super) fn head_of(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

impl<const N: usize> Base for FastFair<N> {
    /// Thrice as many as a leaf has entries: where keys are spread, a leaf is written for several of them.
    const CAPACITY: usize = 3 * N;

    fn create(pool: &Pool, root_name: &str, _: Option<u64>) -> Result<Self> {
        FastFair::create(pool, root_name)
    }

    fn open(pool: &Pool, root_name: &str) -> Result<Self> {
        FastFair::open(pool, root_name)
    }

    #[inline]
    fn head(&self, key: &[u8]) -> u64 {
        head_of(key)
    }

    fn merge(&self, changes: &[Change<'_>], how: Merge, edge: &mut Edge<'_>) -> Result<()> {
        let edge = &mut |fence: &[u8]| edge(head_of(fence), fence);
        match how {
            Merge::InPlace => self.merge_in_place(changes, edge),
            Merge::OutOfPlace => self.merge_out_of_place(changes, edge),
        }
    }

    /// The shortcuts, which lead past all inner nodes.
    fn cache_inner(&self, cached: bool) {
        self.set_shortcut_limit(if cached { u64::MAX } else { 0 });
    }
}

/// One in so many keys begins a range with a buffer of its own, as if only nodes of some height had one.
const SKIP_SHARE: u64 = 32;

impl Base for SkipIndex {
    /// Thrice as many as a range has keys on average.
    const CAPACITY: usize = 3 * SKIP_SHARE as usize;

    fn create(pool: &Pool, root_name: &str, _: Option<u64>) -> Result<Self> {
        SkipIndex::create(pool, root_name)
    }

    fn open(pool: &Pool, root_name: &str) -> Result<Self> {
        SkipIndex::open(pool, root_name)
    }

    #[inline]
    fn head(&self, key: &[u8]) -> u64 {
        head_of(key)
    }

    fn merge(&self, changes: &[Change<'_>], how: Merge, edge: &mut Edge<'_>) -> Result<()> {
        match how {
            Merge::InPlace => changes.iter().try_for_each(|change| match change.word {
                Some(word) => self.insert(change.key, word).map(drop),
                None => self.remove(change.key).map(drop),
            })?,
            Merge::OutOfPlace => self.merge_out_of_place(changes)?,
        }
        let begins = |key: &[u8]| hash64(key).is_multiple_of(SKIP_SHARE);
        changes.iter().filter(|c| begins(c.key)).for_each(|c| edge(c.head, c.key));
        Ok(())
    }

    /// The inner part is in DRAM anyway.
    fn cache_inner(&self, _: bool) {}
}

impl<const BUCKETS: usize, const PROBE: usize> Base for Cceh<BUCKETS, PROBE> {
    /// Three quarters of a segment. Merges out of place fill segments to four fifths, and each replaces one segment by
    /// two.
    const CAPACITY: usize = BUCKETS * 3;

    fn create(pool: &Pool, root_name: &str, seed: Option<u64>) -> Result<Self> {
        Cceh::create_seeded(pool, root_name, 0, seed.unwrap_or_else(Rng::secret_seed))
    }

    fn open(pool: &Pool, root_name: &str) -> Result<Self> {
        Cceh::open(pool, root_name)
    }

    #[inline]
    fn head(&self, key: &[u8]) -> u64 {
        self.hash_of(key)
    }

    fn merge(&self, changes: &[Change<'_>], how: Merge, edge: &mut Edge<'_>) -> Result<()> {
        let mut begin = |hash: Option<u64>| hash.into_iter().for_each(|hash| edge(hash, &[]));
        if how == Merge::OutOfPlace {
            return self.merge_out_of_place(changes, &mut begin);
        }
        let mut left = changes;
        while !left.is_empty() {
            left = self.merge_in_place(left, &mut begin)?;
        }
        Ok(())
    }

    /// The directory.
    fn cache_inner(&self, cached: bool) {
        self.cache_directory(cached);
    }
}
