//! A persistent skiplist in an arena: SLM-DB's Algorithm 1, grown to groups, batches and recovery.
//!
//! Records lie in whole extents that the list owns and frees together. Only the lowest level is in PM, a
//! chain of records; the levels above it, and the keys to compare, are kept in DRAM (`crate::btree`) and rebuilt
//! on open. A group of records is written with two drains, however many there are:
//!
//! ```text
//! stage a, b, c    copy each into the arena, its link already naming its successor; flush
//! drain            contents are durable, nothing points to them
//! link a, b, c     compare-and-swap each predecessor's link; flush
//! drain            the group is durable
//! ```
//!
//! Thread safety: every method may be called from any thread at any time. Readers take no locks and see a record as
//! soon as it is linked, which is *before* it is durable: callers that must not show records that a power cut can take
//! back pass a `max_seq` that covers drained groups alone.
//!
//! Invariants:
//!
//! 1. After a power cut, with any subset of the undrained links, the chain from the head reaches every record whose
//!    group had finished its second drain. For that, a record's contents *and its link's value* are durable before
//!    anything points to it: `stage` writes the successor found then, and `link` drains once more in the rare case that
//!    another one has come between.
//! 2. A record is linked only behind one whose own reachability is durable or becomes so with the same
//!    drain: a predecessor that another thread has linked and perhaps not drained is persisted first.
//! 3. The chain is strictly ascending by key, then descending by sequence number.
//! 4. Records never move and are never unlinked, except by recovery, which drops every record of a
//!    batch that is not wholly in the chain.
//! 5. A record enters the B-tree after it is in the chain, before the call that links it returns. So the B-tree may
//!    lack records that other threads are linking at this moment, and no others.
//! 6. The filter, if there is one, has the key of every record in the B-tree.

mod arena;
mod chain;
mod check;
mod cursor;
mod index;
mod layout;
mod merge;
mod read;
mod recover;
mod salvage;
mod write;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use terrace_base::checksum::hash64;
use terrace_base::key_filter::KeyFilter;
use terrace_base::{Error, Result};
use terrace_pmem::{Kind, Marks, Pool};

use crate::btree::BTree;
use arena::Arena;
pub use cursor::ListCursor;
pub use index::SkipIndex;
use layout::HEAD_NODE;
pub use read::Found;
use recover::Recovered;
pub use salvage::Missing;
pub use write::{Staged, Staging};

/// One record on its way into a list.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Up to 65,535 bytes.
    pub key: &'a [u8],
    /// Orders the versions of a key, newest first.
    pub seq: u64,
    /// The caller's byte: put, delete.
    pub kind: u8,
    /// Up to 4 GiB less one byte.
    pub value: &'a [u8],
    /// Names the batch within the list: the sequence number of its first record.
    pub batch_first: u64,
    /// Records of the batch in this list; recovery keeps all of them or none.
    pub batch_len: u32,
}

/// A persistent skiplist. Cloning is cheap and gives the same list.
#[derive(Clone)]
pub struct SkipList {
    inner: Arc<Inner>,
}

/// A weak reference to a list.
#[derive(Clone)]
pub struct WeakSkipList {
    inner: Weak<Inner>,
    gone: Arc<AtomicBool>,
}

impl WeakSkipList {
    /// The list, if any handle or cursor still keeps it.
    pub fn upgrade(&self) -> Option<SkipList> {
        self.inner.upgrade().map(|inner| SkipList { inner })
    }

    /// Whether the list is gone and its memory has been given back: dropping the last handle takes a while.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

impl fmt::Debug for WeakSkipList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakSkipList").field(&self.upgrade()).finish()
    }
}

struct Inner {
    pool: Pool,
    arena: Arena,
    /// Offset of the head node.
    head: u64,
    /// Seed of checksums.
    id: u64,
    upper: BTree,
    /// The keys in `upper`.
    filter: Option<KeyFilter>,
    entries: AtomicU64,
    min_seq: AtomicU64,
    max_seq: AtomicU64,
    /// Records below this sequence number are durable; the caller guarantees it.
    durable_below: AtomicU64,
    /// The extents go back to the pool when the last handle is gone.
    doomed: AtomicBool,
    /// Set last of all.
    gone: Arc<AtomicBool>,
}

impl SkipList {
    /// Makes an empty list whose first extent holds `arena_bytes`; durable, but nothing names it yet.
    ///
    /// The caller publishes [`head_offset`](Self::head_offset) in a root, or calls [`free`](Self::free).
    pub fn create(pool: &Pool, kind: Kind, arena_bytes: u64) -> Result<SkipList> {
        let (arena, id) = Arena::create(pool, kind, arena_bytes)?;
        Ok(Self::over(pool, arena, id))
    }

    /// The list with a filter for about `capacity` bytes, so that [`get`](Self::get) mostly ends there for a key that it
    /// lacks. One that has records, or another handle, stays as it is.
    pub fn with_filter(mut self, capacity: u64) -> SkipList {
        if let Some(inner) = Arc::get_mut(&mut self.inner)
            && *inner.entries.get_mut() == 0
        {
            inner.filter = Some(KeyFilter::new(capacity));
        }
        self
    }

    /// Attaches to the list at `head`, after a crash as after a clean close: checks every record, drops
    /// the batches that are not wholly there and rebuilds the B-tree.
    pub fn open(pool: &Pool, kind: Kind, head: u64) -> Result<SkipList> {
        Self::open_with(pool, kind, head, &mut |_| {})
    }

    /// The same, and calls `visit` with the key of each record that it finds, dropped batches included.
    pub fn open_with(pool: &Pool, kind: Kind, head: u64, visit: &mut dyn FnMut(&[u8])) -> Result<SkipList> {
        loop {
            let (arena, id) = Arena::open(pool, kind, head)?;
            let list = Self::over(pool, arena, id);
            if list.inner.recover(true, visit)? == Recovered::Ready {
                return Ok(list);
            }
        }
    }

    fn over(pool: &Pool, arena: Arena, id: u64) -> SkipList {
        let head = arena.first() + HEAD_NODE;
        let inner = Inner {
            pool: pool.clone(),
            arena,
            head,
            id,
            upper: BTree::new(),
            filter: None,
            entries: AtomicU64::new(0),
            min_seq: AtomicU64::new(u64::MAX),
            max_seq: AtomicU64::new(0),
            durable_below: AtomicU64::new(0),
            doomed: AtomicBool::new(false),
            gone: Arc::default(),
        };
        SkipList { inner: Arc::new(inner) }
    }

    /// A weak handle, to find out later whether the list still exists.
    pub fn downgrade(&self) -> WeakSkipList {
        WeakSkipList { inner: Arc::downgrade(&self.inner), gone: self.inner.gone.clone() }
    }

    /// The offset that a root stores to find the list again.
    pub fn head_offset(&self) -> u64 {
        self.inner.arena.first()
    }

    /// The pool the list lies in.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Records linked.
    pub fn entries(&self) -> u64 {
        self.inner.entries.load(Ordering::Relaxed)
    }

    /// Bytes taken by records, linked or only staged, with their links.
    pub fn bytes_used(&self) -> u64 {
        self.inner.arena.used()
    }

    /// Bytes of the extents the list owns.
    pub fn extents_bytes(&self) -> u64 {
        self.inner.arena.extents_bytes()
    }

    /// Bytes of DRAM that finding records takes.
    pub fn dram_bytes(&self) -> u64 {
        self.inner.upper.bytes() + self.inner.filter.as_ref().map_or(0, KeyFilter::bytes)
    }

    /// Highest sequence number linked; 0 when empty.
    pub fn max_seq(&self) -> u64 {
        self.inner.max_seq.load(Ordering::Relaxed)
    }

    /// Lowest sequence number linked; `u64::MAX` when empty.
    pub fn min_seq(&self) -> u64 {
        self.inner.min_seq.load(Ordering::Relaxed)
    }

    /// Marks the extents the list owns.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.inner.arena.extents()?.iter().try_for_each(|e| marks.extent(e.offset))
    }

    /// Gives the extents back to the pool: at once if this is the last handle, else when the last handle or
    /// cursor is dropped. Nothing durable may name the list any more.
    pub fn free(self) -> Result<()> {
        self.inner.doomed.store(true, Ordering::Release);
        match Arc::into_inner(self.inner) {
            Some(inner) => {
                inner.doomed.store(false, Ordering::Release);
                inner.arena.free()
            }
            None => Ok(()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if *self.doomed.get_mut() {
            // Memory that cannot be given back stays unreachable and is reclaimed by marks after the next open.
            let _ = self.arena.free();
        }
        self.gone.store(true, Ordering::Release);
    }
}

impl fmt::Debug for SkipList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkipList")
            .field("head", &self.head_offset())
            .field("entries", &self.entries())
            .finish()
    }
}

impl Inner {
    /// Whether there may be a record of `key`.
    fn may_contain(&self, key: &[u8]) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(key))
    }

    /// A corruption at `offset` of the pool.
    fn damaged(&self, offset: u64, expected: &str, found: impl fmt::Display) -> Error {
        Error::corruption(self.pool.path(), offset, expected, found.to_string())
    }
}

/// An identity that no earlier list at the same place had, nor one in another pool: two processes may make their lists
/// at the same offset, in the same generation, in the same turn.
pub(crate) fn identity(pool: &Pool, offset: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    identity_of(pool.place(offset), pool.generation(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn identity_of(place: u64, generation: u64, turn: u64) -> u64 {
    hash64(&[place, generation, turn].map(u64::to_le_bytes).concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_two_pools_are_never_the_same() {
        assert_ne!(identity_of(0x100, 1, 0), identity_of(0x140, 1, 0));
        assert_ne!(identity_of(0x100, 1, 0), identity_of(0x100, 2, 0));
        assert_ne!(identity_of(0x100, 1, 0), identity_of(0x100, 1, 1));
    }
}
