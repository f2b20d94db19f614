//! Finding records: nodes, their places by B-tree and chain, point reads.

use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::{Kind, Result};
use terrace_pmem::POff;

use super::layout::{NODE_BYTES, NodeHead, value_offset};
use super::{Inner, SkipList};
use crate::btree::{Place, Target, Trail};

/// A node looked at in place.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub offset: u64,
    pub head: &'a NodeHead,
    pub key: &'a [u8],
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

    /// The value of `node`, which was read before.
    pub fn value<'a>(&'a self, node: &Node<'a>) -> Result<&'a [u8]> {
        let at = node.offset + value_offset(node.head.klen);
        self.pool.charge_rest(at, u64::from(node.head.vlen).max(1));
        // SAFETY: a linked record's value never changes; in an index node, where it does, it is read as an
        // atomic instead.
        unsafe { self.pool.bytes(at, u64::from(node.head.vlen)) }
    }

    /// The link out of the node at `offset`.
    pub fn link_word(&self, offset: u64) -> &AtomicU64 {
        self.pool.atomic(POff::new(offset))
    }

    /// The node after the one at `offset`.
    pub fn after(&self, offset: u64) -> u64 {
        self.link_word(offset).load(Ordering::Acquire)
    }

    /// The place of (`key`, `seq`) as far as the B-tree knows; `prev` is the head where there is no other.
    pub fn known_place(&self, key: &[u8], seq: u64) -> Result<(Trail, Place)> {
        let trail = self.upper.find(Target { key, seq }, &|at, key| self.compare_key(at, key))?;
        let place = self.upper.place(&trail);
        let prev = if place.prev == 0 { self.head } else { place.prev };
        Ok((trail, Place { prev, ..place }))
    }

    /// Compares the key of the node at `offset` with `key`.
    pub fn compare_key(&self, offset: u64, key: &[u8]) -> Result<Order> {
        let node = self.node(offset)?;
        self.pool.charge_read(offset, NODE_BYTES + node.key.len() as u64);
        Ok(node.key.cmp(key))
    }

    /// Walks from `place.prev`, which is before (`key`, `seq`), to the last such node. `place.next`, if
    /// not 0, is known to be at or after (`key`, `seq`), and at it if `place.exact`.
    pub fn advance(&self, place: Place, key: &[u8], seq: u64) -> Result<Place> {
        let mut prev = place.prev;
        loop {
            let next = self.after(prev);
            if next == 0 {
                return Ok(Place { prev, next, exact: false });
            }
            if next == place.next {
                return Ok(Place { prev, ..place });
            }
            self.pool.charge_read(next, NODE_BYTES + 8);
            match compare(&self.node(next)?, key, seq) {
                Order::Less => prev = next,
                order => return Ok(Place { prev, next, exact: order.is_eq() }),
            }
        }
    }

    /// The place of (`key`, `seq`) in the chain.
    pub fn place(&self, key: &[u8], seq: u64) -> Result<Place> {
        let (_, guess) = self.known_place(key, seq)?;
        self.pool.charge_read(guess.prev, 8);
        self.advance(guess, key, seq)
    }

    /// The first node at or after the place of (`key`, `seq`), 0 if none.
    pub fn first_from(&self, key: &[u8], seq: u64) -> Result<u64> {
        Ok(self.place(key, seq)?.next)
    }

    /// The last node before the place of (`key`, `seq`), 0 if none.
    pub fn last_before(&self, key: &[u8], seq: u64) -> Result<u64> {
        let prev = self.place(key, seq)?.prev;
        Ok(if prev == self.head { 0 } else { prev })
    }

    /// The last node, 0 if none.
    pub fn last(&self) -> Result<u64> {
        let mut last = self.upper.last()?;
        loop {
            match self.after(if last == 0 { self.head } else { last }) {
                0 => return Ok(last),
                next => last = next,
            }
        }
    }

    /// Whether the node's checksum is right.
    pub fn is_sound(&self, node: &Node<'_>) -> Result<bool> {
        let is_index = node.head.kind == super::index::INDEX_KIND;
        let covered: &[u8] = if is_index { &[] } else { self.value(node)? };
        let crc = node.head.fields().crc(self.id, node.offset, node.key, covered);
        Ok(crc == node.head.crc && (!is_index || node.head.fields == 0))
    }
}

/// The order of the list: key ascending, then sequence number descending.
pub(super) fn compare(node: &Node<'_>, key: &[u8], seq: u64) -> Order {
    node.key.cmp(key).then_with(|| seq.cmp(&node.head.seq))
}

impl SkipList {
    /// The newest version of `key` with a sequence number of at most `max_seq`, of the records whose linking
    /// has returned. Reads PM only where there is such a record.
    pub fn get(&self, key: &[u8], max_seq: u64) -> Result<Option<Found<'_>>> {
        let inner = &*self.inner;
        if !inner.may_contain(key) {
            return Ok(None);
        }
        let trail = inner.upper.find(Target { key, seq: max_seq }, &|at, key| inner.compare_key(at, key))?;
        let Some(offset) = inner.upper.next_of_key(&trail) else { return Ok(None) };
        let node = inner.node(offset)?;
        inner.pool.charge_read(offset, NODE_BYTES);
        Ok(Some(Found { list: inner, node }))
    }
}

impl Node<'_> {
    /// The kind of a version according to the caller's byte.
    pub fn version_kind(&self, list: &Inner) -> Result<Kind> {
        Kind::parse(Kind::byte(self.head.kind, self.head.fields), list.pool.path(), self.offset)
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

    /// The kind of a version according to that byte. A byte that is not a kind is damage.
    pub fn version_kind(&self) -> Result<Kind> {
        self.node.version_kind(self.list)
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
