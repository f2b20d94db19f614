//! Looking at nodes, records and key objects in place.

use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_pmem::POff;

use super::layout::{
    ENTRY_BYTES, FORWARD_AT, NODE_HEADER_BYTES, NODE_TAG, NOT_DURABLE, Node, NodeFields, RECORD_HEAD_BYTES,
    RecordHead, STRAY, entry_place, node_bytes, seal, unseal, value_of,
};
use super::{FastFair, lock};
use crate::key_object::{key_at, proven};
use crate::word_cell::WordCell;

/// More replacements in a row than this mean damage; a reader that is overtaken may see a few.
const MAX_FORWARDS: usize = 10_000;

/// A node in place. Valid as long as the presence in the tree's limbo under which it was reached.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'t, const N: usize> {
    pub off: u64,
    pub n: &'t Node<N>,
    /// The number of its place in the pool.
    place: u64,
}

impl<'t, const N: usize> NodeRef<'t, N> {
    /// Entry `i` as it is now: slice, then pointer, [`STRAY`] if it was written elsewhere.
    pub fn entry(&self, i: usize) -> (u64, u64) {
        let (slice, word) = self.sealed_entry(i);
        (slice, self.unsealed(i, word))
    }

    /// Entry `i` as it lies there: slice, then word. The word is not checked against this place.
    #[inline]
    pub fn sealed_entry(&self, i: usize) -> (u64, u64) {
        let e = &self.n.entries[i];
        (e.slice.load(Ordering::Acquire), e.ptr.load(Ordering::Acquire))
    }

    /// Where `word`, read from entry `i`, leads; [`STRAY`] if it was written elsewhere.
    #[inline]
    pub fn unsealed(&self, i: usize, word: u64) -> u64 {
        unseal(entry_place(self.place, i), word)
    }

    /// The pointer of entry `i`, [`STRAY`] if it was written elsewhere; 0 past the last.
    pub fn ptr(&self, i: usize) -> u64 {
        self.n.entries.get(i).map_or(0, |e| self.unsealed(i, e.ptr.load(Ordering::Acquire)))
    }

    /// The word to store where entry `i` is to lead to `ptr`.
    pub fn sealed(&self, i: usize, ptr: u64) -> u64 {
        seal(entry_place(self.place, i), ptr)
    }

    /// Whether every entry was written where it lies. Each is one word, so this holds at every moment of a shift.
    pub fn has_own_entries(&self) -> bool {
        // All are checked at once: they hardly ever fail, and no check waits for another.
        (0..N).fold(true, |own, i| own & (self.unsealed(i, self.sealed_entry(i).1) != STRAY))
    }

    /// Where entry `i` lies in the pool.
    pub fn entry_at(&self, i: usize) -> u64 {
        self.off + NODE_HEADER_BYTES + i as u64 * ENTRY_BYTES
    }

    /// Entries, counted.
    pub fn count(&self) -> usize {
        (0..N).take_while(|&i| self.ptr(i) != 0).count()
    }

    /// [`entry`](Self::entry) of a node that has been locked: then all its entries were looked at.
    pub fn own_entry(&self, i: usize) -> (u64, u64) {
        let (slice, word) = self.sealed_entry(i);
        (slice, value_of(word))
    }

    /// [`count`](Self::count) of a node that has been locked.
    pub fn own_count(&self) -> usize {
        (0..N).take_while(|&i| self.own_entry(i).1 != 0).count()
    }

    pub fn level(&self) -> u8 {
        self.n.level
    }

    pub fn next(&self) -> u64 {
        self.n.next.load(Ordering::Acquire)
    }

    pub fn skip(&self) -> usize {
        usize::from(self.n.skip)
    }

    /// The lock word.
    pub fn version(&self) -> u64 {
        self.n.lock.load(Ordering::Acquire)
    }

    /// The fields that never change.
    pub fn fields(&self) -> NodeFields {
        let n = self.n;
        NodeFields { level: n.level, skip: n.skip, low: n.low, high: n.high, prefix: n.prefix }
    }

    /// Whether the fixed part's checksum is right.
    pub fn is_sound(&self) -> bool {
        self.n.tag == NODE_TAG && self.fields().crc(self.place) == self.n.crc
    }
}

impl<const N: usize> FastFair<N> {
    /// The node at `off`, proven to be that one by its fixed part.
    pub(super) fn node(&self, off: u64) -> Result<NodeRef<'_, N>> {
        let n = self.pool.get::<Node<N>>(POff::new(off))?;
        let node = NodeRef { off, n, place: self.pool.place(off) };
        if !node.is_sound() {
            return Err(self.damaged(off, "a tree node with its checksum", "other bytes"));
        }
        Ok(node)
    }

    /// The error about an entry that was written elsewhere.
    #[cold]
    pub(super) fn stray(&self, node: NodeRef<'_, N>) -> Error {
        self.damaged(node.off, "a node with entries of its own", "others'")
    }

    /// The key of the record at `off`.
    #[inline]
    pub(super) fn record_key(&self, off: u64) -> Result<&[u8]> {
        self.key_behind(off, self.record_head(off)?)
    }

    /// The word cell of the record at `off`.
    #[inline]
    pub(super) fn cell(&self, off: u64) -> Result<WordCell<'_>> {
        Ok(self.cell_in(off, self.record_head(off)?))
    }

    /// Key and word cell of the record at `off`.
    #[inline]
    pub(super) fn record(&self, off: u64) -> Result<(&[u8], WordCell<'_>)> {
        let head = self.record_head(off)?;
        Ok((self.key_behind(off, head)?, self.cell_in(off, head)))
    }

    #[inline]
    fn record_head(&self, off: u64) -> Result<&RecordHead> {
        self.pool.get::<RecordHead>(POff::new(off))
    }

    #[inline]
    fn key_behind(&self, off: u64, head: &RecordHead) -> Result<&[u8]> {
        // SAFETY: a record's key never changes, and the caller's presence keeps it from being freed.
        let key = unsafe { self.pool.bytes(off + RECORD_HEAD_BYTES, u64::from(head.klen)) }?;
        proven(&self.pool, off, head.crc, key)
    }

    #[inline]
    fn cell_in<'t>(&'t self, off: u64, head: &'t RecordHead) -> WordCell<'t> {
        WordCell::of(&self.pool, self.generation, off, (&head.word, &head.state), RECORD_HEAD_BYTES)
    }

    /// The bytes of the key object at `off`.
    pub(super) fn key_bytes(&self, off: u64) -> Result<&[u8]> {
        // SAFETY: the caller's presence keeps the object from being freed.
        unsafe { key_at(&self.pool, off) }
    }

    /// The least key that belongs to `node`; `None`: no bound.
    pub(super) fn low_key(&self, node: NodeRef<'_, N>) -> Result<Option<&[u8]>> {
        self.fence(node.n.low)
    }

    /// The least key that belongs right of `node`; `None`: no bound.
    pub(super) fn high_key(&self, node: NodeRef<'_, N>) -> Result<Option<&[u8]>> {
        self.fence(node.n.high)
    }

    /// The bytes of a fence.
    pub(super) fn fence(&self, off: u64) -> Result<Option<&[u8]>> {
        if off == 0 { Ok(None) } else { self.key_bytes(off).map(Some) }
    }

    /// The node that has durably replaced `node`; 0 while it lives.
    pub(super) fn forward(&self, node: NodeRef<'_, N>) -> Result<u64> {
        let f = node.n.forward.load(Ordering::Acquire);
        if f != 0 {
            return Ok(self.durable_forward(node, f));
        }
        let hint = node.n.merge.load(Ordering::Acquire);
        if hint == 0 {
            return Ok(0);
        }
        // It was merged at the moment when its left sibling was: see `merge`.
        let left = self.node(hint)?;
        let f = left.n.forward.load(Ordering::Acquire);
        Ok(if f == 0 { 0 } else { self.durable_forward(left, f) })
    }

    /// Makes sure that `node`'s forward link `f` is durable before anybody relies on it.
    fn durable_forward(&self, node: NodeRef<'_, N>, f: u64) -> u64 {
        if f & NOT_DURABLE != 0 {
            self.pool.persist(node.off + FORWARD_AT, 8);
            let durable = f & !NOT_DURABLE;
            let _ = node.n.forward.compare_exchange(f, durable, Ordering::AcqRel, Ordering::Relaxed);
        }
        f & !NOT_DURABLE
    }

    /// The living node that stands for the one at `off`.
    pub(super) fn live(&self, off: u64) -> Result<NodeRef<'_, N>> {
        let mut node = self.node(off)?;
        for _ in 0..MAX_FORWARDS {
            match self.forward(node)? {
                0 => return Ok(node),
                next => node = self.node(next)?,
            }
        }
        Err(self.damaged(off, "a node, or one that leads to its replacement", "nodes that lead in circles"))
    }

    /// Whether a reader's view between two looks at the lock word is the state of one moment, without a writer and
    /// without traces of a crash.
    pub(super) fn is_steady(&self, before: u64, after: u64) -> bool {
        before == after && !lock::is_locked(before) && !self.may_need_repair(before)
    }

    /// Whether a node with this lock word has not been locked since the last unclean end.
    pub(super) fn may_need_repair(&self, lock_word: u64) -> bool {
        lock::generation(lock_word) < self.unclean & lock::GENERATION_MASK
    }

    /// Bytes of a node.
    pub(super) const NODE_BYTES: u64 = node_bytes(N);

    /// A corruption at `offset` of the pool.
    pub(super) fn damaged(&self, offset: u64, expected: &str, found: impl Into<String>) -> Error {
        Error::corruption(self.pool.path(), offset, expected, found)
    }
}
