//! A memtable in DRAM: versions of keys in order, for engines whose write buffer is made durable by a log.
//!
//! A linked list, and a B+-tree over its nodes as a guide (`guide/`), all in an arena. One thread at a time inserts,
//! while any number read without locks, and nothing is ever removed: the whole list is freed when its last reader releases
//! it. In a skiplist each step of a search would wait for another node to be loaded from memory. Of the guide the upper
//! pages stay in the processor's caches, and two nodes are loaded where eight bytes of a page's keys tell them apart; where
//! they do not, a few more in each page. Where a list has a filter, most lookups of keys that it lacks end there.
//! `hash/` is another memtable, for engines that have many.
//!
//! Invariants:
//!
//! 1. The nodes are in order: keys ascending, each key's newest version first.
//! 2. A node is complete before it is linked: links are stored with release and loaded with acquire.
//! 3. The guide has nodes of the list alone. Where it leads a search too far ahead, the list leads on from there.
//! 4. A key is in the filter, if there is one, before a node with it is linked.
//! 5. A node lives as long as the list, and the list as long as any handle or cursor of it.

mod arena;
pub(crate) mod chunks;
mod cursor;
mod guide;
pub(crate) mod hash;
mod node;
mod set;

use std::cmp::Ordering as Order;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use terrace_base::Result;
use terrace_base::key_filter::KeyFilter;
use terrace_table::{Cursor, Entry, Kind};

use crate::core::lent::Lent;
use arena::Arena;
use chunks::Chunks;
use guide::{Guide, Path};
use node::{Content, Node, NodeRef, Sought};

pub(crate) use cursor::MemCursor;
pub(crate) use set::Memtables;

/// Nodes of the shortest list that has a guide: a shorter one is as soon walked along, and takes little memory.
const LEAST_GUIDED: u64 = 16;

/// About the bytes that a node takes beside its key and value: its head, and its place in the guide.
pub(crate) const NODE_OVERHEAD_BYTES: u64 = 64;

/// A handle of a memtable; clones are handles of the same memtable.
#[derive(Debug, Clone)]
pub(crate) struct MemList {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    first: AtomicPtr<Node>,
    guide: Guide,
    filter: Option<KeyFilter>,
    entries: AtomicU64,
    bytes: AtomicU64,
    max_seq: AtomicU64,
    held_bytes: AtomicU64,
    writer: Mutex<Writing>,
}

/// The state of the one writer. The arena is in here, so that only the holder of the lock takes from it.
#[derive(Debug)]
struct Writing {
    arena: Arena,
}

// SAFETY: the nodes that the links lead to are shared as the module's head says: complete and immutable
// except for their atomic links before anybody can reach them, and freed with `Inner`, when nobody has it any
// more.
unsafe impl Send for Inner {}
// SAFETY: the same.
unsafe impl Sync for Inner {}

/// A version found by a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version<'a> {
    pub seq: u64,
    pub kind: Kind,
    pub value: &'a [u8],
}

impl<'a> Version<'a> {
    /// The value, unless it is a tombstone.
    pub fn put(&self) -> Option<&'a [u8]> {
        (self.kind == Kind::Put).then_some(self.value)
    }

    /// The version, to be kept.
    pub fn into_entry(self) -> Entry {
        Entry { seq: self.seq, kind: self.kind, value: Bytes::copy_from_slice(self.value) }
    }

    /// The value, to be shown.
    pub fn lent(&self) -> Option<Lent<'a>> {
        self.put().map(|value| Lent::in_place(self.seq, value))
    }
}

/// The right to insert.
pub(crate) struct Writer<'a> {
    list: &'a Inner,
    writing: MutexGuard<'a, Writing>,
}

impl MemList {
    /// An empty list with memory from `chunks`.
    pub fn new(chunks: &Arc<Chunks>) -> MemList {
        MemList::with(chunks, None)
    }

    /// An empty list for about `capacity` bytes with a filter, which takes a 64th of that more.
    pub fn with_filter(chunks: &Arc<Chunks>, capacity: u64) -> MemList {
        MemList::with(chunks, Some(KeyFilter::new(capacity)))
    }

    fn with(chunks: &Arc<Chunks>, filter: Option<KeyFilter>) -> MemList {
        let writing = Writing { arena: Arena::new(chunks.clone()) };
        let inner = Inner {
            first: AtomicPtr::default(),
            guide: Guide::default(),
            filter,
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            max_seq: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            writer: Mutex::new(writing),
        };
        MemList { inner: Arc::new(inner) }
    }

    /// Becomes the writer, after the current one.
    pub fn writer(&self) -> Writer<'_> {
        Writer { list: &self.inner, writing: self.inner.writer.lock() }
    }

    /// The newest version of `key` up to sequence number `max_seq`.
    pub fn get(&self, key: &[u8], max_seq: u64) -> Option<Version<'_>> {
        if !self.inner.may_contain(key) {
            return None;
        }
        let node = self.inner.at_or_after(&Sought::new(key, max_seq))?;
        (node.key() == key).then(|| Version { seq: node.seq(), kind: node.kind(), value: node.value() })
    }

    /// Visits all versions in order.
    pub fn visit(&self, mut each: impl FnMut(&[u8], u64, Kind, &[u8]) -> Result<()>) -> Result<()> {
        let mut cursor = self.cursor();
        cursor.seek_first()?;
        while cursor.valid() {
            each(cursor.key(), cursor.seq(), cursor.kind(), cursor.value_bytes())?;
            cursor.next()?;
        }
        Ok(())
    }

    /// A cursor over all versions, not yet positioned.
    pub fn cursor(&self) -> MemCursor {
        MemCursor::new(self.inner.clone())
    }

    /// Versions in the list.
    pub fn entries(&self) -> u64 {
        self.inner.entries.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Bytes of keys and values with the overhead of their nodes, and of pages of the guide that others have replaced.
    pub fn bytes_used(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed) + self.inner.guide.replaced_bytes()
    }

    /// Bytes of DRAM held.
    pub fn dram_bytes(&self) -> u64 {
        self.inner.held_bytes.load(Ordering::Relaxed) + self.inner.filter.as_ref().map_or(0, KeyFilter::bytes)
    }

    /// The greatest sequence number in the list; 0 if it is empty.
    pub fn max_seq(&self) -> u64 {
        self.inner.max_seq.load(Ordering::Acquire)
    }

    /// Checks every node; returns what is wrong.
    pub fn check(&self) -> Vec<String> {
        // Nobody inserts meanwhile.
        let _writer = self.inner.writer.lock();
        let nodes: Vec<NodeRef<'_>> = self.inner.nodes().collect();
        let are_ordered = |pair: &[NodeRef<'_>]| pair[0].order(&pair[1].sought()) == Order::Less;
        let mut problems = Vec::new();
        if !nodes.windows(2).all(are_ordered) {
            problems.push("the nodes are not in order".into());
        }
        let pointers: Vec<NonNull<Node>> = nodes.iter().map(|node| node.pointer()).collect();
        if self.entries() >= LEAST_GUIDED {
            problems.extend(self.inner.guide.check(&pointers));
        }
        if !nodes.iter().all(|node| self.inner.may_contain(node.key())) {
            problems.push("the filter lacks a key".into());
        }
        problems
    }
}

impl Writer<'_> {
    /// Inserts a version. The list must have no version of `key` with this sequence number. Nothing unwinds between the
    /// link and the guide: the next writer relies on it that every node is in both.
    pub fn insert(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) {
        let list = self.list;
        let sought = Sought::new(key, seq);
        let path = list.guide.path(&sought);
        let before = path.as_ref().map_or_else(|| list.around(&sought).0, Path::before);
        let link = before.map_or(&list.first, NodeRef::link);
        let Writing { arena } = &mut *self.writing;
        let next = link.load(Ordering::Relaxed);
        debug_assert!(
            before.is_none_or(|node| node.order(&sought) == Order::Less),
            "a node in front is before it"
        );
        debug_assert!(
            list.follow(link).is_none_or(|node| node.order(&sought) == Order::Greater),
            "and one behind"
        );
        if let Some(filter) = &list.filter {
            filter.add(key);
        }
        let created = node::create(arena, Content { key, seq, kind, value }, next);
        link.store(created.as_ptr(), Ordering::Release);
        // SAFETY: just created in this list's arena.
        let node = unsafe { NodeRef::new(created) };
        match path {
            Some(path) => list.guide.add(arena, node, path),
            None if list.entries.load(Ordering::Relaxed) + 1 == LEAST_GUIDED => {
                list.guide.build(arena, &list.nodes().collect::<Vec<_>>());
            }
            None => {}
        }
        list.held_bytes.store(arena.held_bytes(), Ordering::Relaxed);
        list.entries.fetch_add(1, Ordering::Release);
        list.max_seq.fetch_max(seq, Ordering::AcqRel);
        let bytes = NODE_OVERHEAD_BYTES + (key.len() + value.len()) as u64;
        list.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Inner {
    fn may_contain(&self, key: &[u8]) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(key))
    }

    fn follow(&self, link: &AtomicPtr<Node>) -> Option<NodeRef<'_>> {
        // SAFETY: links lead to nodes of this list's arena, complete before they were stored.
        NonNull::new(link.load(Ordering::Acquire)).map(|node| unsafe { NodeRef::new(node) })
    }

    fn first(&self) -> Option<NodeRef<'_>> {
        self.follow(&self.first)
    }

    fn after<'a>(&'a self, node: NodeRef<'a>) -> Option<NodeRef<'a>> {
        self.follow(node.link())
    }

    /// The last node before `sought` and the first that does not come before it, which were neighbours at one moment:
    /// following the link again could meet a node inserted since, on the wrong side.
    fn around<'a>(&'a self, sought: &Sought<'_>) -> (Option<NodeRef<'a>>, Option<NodeRef<'a>>) {
        let mut last = self.guide.before(sought);
        loop {
            let next = self.follow(last.map_or(&self.first, NodeRef::link));
            match next {
                Some(node) if node.order(sought) == Order::Less => last = next,
                _ => return (last, next),
            }
        }
    }

    /// The last node that comes before `sought`.
    fn before(&self, sought: &Sought<'_>) -> Option<NodeRef<'_>> {
        self.around(sought).0
    }

    /// The first node that does not come before `sought`.
    fn at_or_after(&self, sought: &Sought<'_>) -> Option<NodeRef<'_>> {
        self.around(sought).1
    }

    fn last(&self) -> Option<NodeRef<'_>> {
        self.nodes_from(self.guide.last().or_else(|| self.first())).last()
    }

    fn nodes(&self) -> impl Iterator<Item = NodeRef<'_>> {
        self.nodes_from(self.first())
    }

    fn nodes_from<'a>(&'a self, first: Option<NodeRef<'a>>) -> impl Iterator<Item = NodeRef<'a>> {
        std::iter::successors(first, |node| self.after(*node))
    }
}

#[cfg(test)]
mod tests;
