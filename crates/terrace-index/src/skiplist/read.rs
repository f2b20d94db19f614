//! Finding records: nodes, the descent through the levels, point reads.

use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::Result;
use terrace_pmem::POff;

use super::layout::{MAX_HEIGHT, NODE_BYTES, NodeHead, value_offset};
use super::{Inner, SkipList};

/// A node looked at in place.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub offset: u64,
    pub head: &'a NodeHead,
    pub key: &'a [u8],
}

/// For each level the last node before a place in the order and the first at or after it (0: none).
#[derive(Clone, Copy)]
pub(super) struct Splice {
    pub prev: [u64; MAX_HEIGHT],
    pub next: [u64; MAX_HEIGHT],
}

/// A record found by [`SkipList::get`].
#[derive(Clone, Copy)]
pub struct Found<'a> {
    list: &'a Inner,
    node: Node<'a>,
}

impl Inner {
    /// The node at `offset`, bounds-checked.
    pub fn node(&self, offset: u64) -> Result<Node<'_>> {
        let head = self.pool.get::<NodeHead>(POff::new(offset))?;
        // SAFETY: a linked node's key never changes (invariant 4), and the arena outlives `self`.
        let key = unsafe { self.pool.bytes(offset + NODE_BYTES, u64::from(head.klen))? };
        Ok(Node { offset, head, key })
    }

    /// The value of `node`.
    pub fn value<'a>(&'a self, node: &Node<'a>) -> Result<&'a [u8]> {
        let at = node.offset + value_offset(node.head.klen);
        self.pool.charge_read(at, u64::from(node.head.vlen));
        // SAFETY: a linked record's value never changes; in an index node, where it does, it is read as an
        // atomic instead.
        unsafe { self.pool.bytes(at, u64::from(node.head.vlen)) }
    }

    /// The link of `level` out of the node at `offset`, which has that level.
    pub fn link_word(&self, offset: u64, level: usize) -> &AtomicU64 {
        self.pool.atomic(link_at(offset, level))
    }

    /// The node after the one at `offset` on `level`.
    pub fn after(&self, offset: u64, level: usize) -> u64 {
        self.link_word(offset, level).load(Ordering::Acquire)
    }

    /// Fills `splice` for the place of (`key`, `seq`).
    pub fn find(&self, key: &[u8], seq: u64, splice: &mut Splice) -> Result<()> {
        let top = self.height.load(Ordering::Acquire) as usize;
        splice.prev[top..].fill(self.head);
        splice.next[top..].fill(0);
        let mut prev = self.head;
        let mut bound = 0;
        for level in (0..top).rev() {
            (prev, bound) = self.advance(prev, level, key, seq, bound)?;
            splice.prev[level] = prev;
            splice.next[level] = bound;
        }
        Ok(())
    }

    /// Walks `level` from `prev`, which is before the place of (`key`, `seq`), to the last such node; also
    /// the node after it. `bound`, if not 0, is known to be at or after the place.
    pub fn advance(
        &self,
        mut prev: u64,
        level: usize,
        key: &[u8],
        seq: u64,
        bound: u64,
    ) -> Result<(u64, u64)> {
        loop {
            let next = self.after(prev, level);
            if next == 0 || next == bound || !self.is_before(next, key, seq)? {
                return Ok((prev, next));
            }
            prev = next;
        }
    }

    fn is_before(&self, offset: u64, key: &[u8], seq: u64) -> Result<bool> {
        let node = self.node(offset)?;
        self.pool.charge_read(offset, NODE_BYTES + 8);
        Ok(compare(&node, key, seq) == Order::Less)
    }

    /// The first node at or after the place of (`key`, `seq`), 0 if none.
    pub fn first_from(&self, key: &[u8], seq: u64) -> Result<u64> {
        let mut place = (self.head, 0);
        for level in (0..self.height.load(Ordering::Acquire) as usize).rev() {
            place = self.advance(place.0, level, key, seq, place.1)?;
        }
        Ok(place.1)
    }

    /// The last node before the place of (`key`, `seq`), 0 if none.
    pub fn last_before(&self, key: &[u8], seq: u64) -> Result<u64> {
        let mut place = (self.head, 0);
        for level in (0..self.height.load(Ordering::Acquire) as usize).rev() {
            place = self.advance(place.0, level, key, seq, place.1)?;
        }
        Ok(if place.0 == self.head { 0 } else { place.0 })
    }

    /// The last node, 0 if none.
    pub fn last(&self) -> u64 {
        let mut prev = self.head;
        for level in (0..self.height.load(Ordering::Acquire) as usize).rev() {
            loop {
                match self.after(prev, level) {
                    0 => break,
                    next => prev = next,
                }
            }
        }
        if prev == self.head { 0 } else { prev }
    }

    /// Whether the node's checksum is right.
    pub fn is_sound(&self, node: &Node<'_>) -> Result<bool> {
        let covered: &[u8] = if node.head.kind == super::index::INDEX_KIND { &[] } else { self.value(node)? };
        Ok(node.head.fields().crc(self.id, node.offset, node.key, covered) == node.head.crc)
    }
}

/// Where the link of `level` lies: level 0 in the node, the others below it.
pub(super) fn link_at(offset: u64, level: usize) -> POff<u64> {
    POff::new(if level == 0 { offset } else { offset - 8 - 8 * level as u64 })
}

/// The order of the list: key ascending, then sequence number descending.
pub(super) fn compare(node: &Node<'_>, key: &[u8], seq: u64) -> Order {
    node.key.cmp(key).then_with(|| seq.cmp(&node.head.seq))
}

impl SkipList {
    /// The newest version of `key` with a sequence number of at most `max_seq`.
    pub fn get(&self, key: &[u8], max_seq: u64) -> Result<Option<Found<'_>>> {
        let inner = &*self.inner;
        let offset = inner.first_from(key, max_seq)?;
        if offset == 0 {
            return Ok(None);
        }
        let node = inner.node(offset)?;
        Ok((node.key == key).then_some(Found { list: inner, node }))
    }
}

impl<'a> Found<'a> {
    /// Sequence number.
    pub fn seq(&self) -> u64 {
        self.node.head.seq
    }

    /// The caller's byte.
    pub fn kind(&self) -> u8 {
        self.node.head.kind
    }

    /// The value, in place.
    pub fn value(&self) -> Result<&'a [u8]> {
        self.list.value(&self.node)
    }

    /// Bytes of the value, without reading it.
    pub fn value_len(&self) -> u64 {
        u64::from(self.node.head.vlen)
    }

    /// Reads the whole record and compares its checksum.
    pub fn verify(&self) -> Result<()> {
        self.list.verify(&self.node)
    }
}

impl Inner {
    /// An error unless the node's checksum is right.
    pub fn verify(&self, node: &Node<'_>) -> Result<()> {
        match self.is_sound(node)? {
            true => Ok(()),
            false => Err(self.damaged(node.offset, "a record with its checksum", "another checksum")),
        }
    }
}

impl std::fmt::Debug for Found<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found").field("seq", &self.seq()).field("kind", &self.kind()).finish()
    }
}
