//! A memtable in DRAM: versions of keys in order, for engines whose write buffer is made durable by a log.
//!
//! A skiplist (Pugh, 1990) whose nodes lie in an arena. One thread at a time inserts, while any number read
//! without locks, and nothing is ever removed: the whole list is freed when its last reader releases it.
//! `hash/` is another memtable, for engines that have many.
//!
//! Invariants:
//!
//! 1. The nodes reachable on a level are in order: keys ascending, each key's newest version first.
//! 2. Whatever is reachable on a level is reachable on the level below.
//! 3. A node is complete before it is linked: links are stored with release and loaded with acquire, from the
//!    lowest level up.
//! 4. A node lives as long as the list, and the list as long as any handle or cursor of it.

mod arena;
pub(crate) mod chunks;
mod cursor;
pub(crate) mod hash;
mod node;
mod set;

use std::cmp::Ordering as Order;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use terrace_base::Result;
use terrace_base::rng::Rng;
use terrace_table::{Cursor, Entry, Kind};

use crate::core::lent::Lent;
use arena::Arena;
use node::{Content, MAX_HEIGHT, Node, NodeRef, Sought};

pub(crate) use cursor::MemCursor;
pub(crate) use set::Memtables;

/// The size of the pieces taken from the system; an eighth of the memtable's size if that is less.
const CHUNK_BYTES: u64 = 1 << 20;

/// Average bytes that a node takes beside its key and value.
pub(crate) const NODE_OVERHEAD_BYTES: u64 = 48;

/// A handle of a memtable; clones are handles of the same memtable.
#[derive(Debug, Clone)]
pub(crate) struct MemList {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The first link of each level.
    first: [AtomicPtr<Node>; MAX_HEIGHT],
    /// Levels in use.
    height: AtomicUsize,
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
    rng: Rng,
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
    /// An empty list for about `capacity` bytes.
    pub fn new(capacity: u64) -> MemList {
        let chunk = CHUNK_BYTES.min(capacity / 8).max(1024) as usize;
        let writing = Writing { arena: Arena::new(chunk), rng: Rng::new(0x6c73_6d21) };
        let inner = Inner {
            first: Default::default(),
            height: AtomicUsize::new(1),
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

    /// Bytes of keys and values with the overhead of their nodes.
    pub fn bytes_used(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of DRAM held.
    pub fn dram_bytes(&self) -> u64 {
        self.inner.held_bytes.load(Ordering::Relaxed)
    }

    /// The greatest sequence number in the list; 0 if it is empty.
    pub fn max_seq(&self) -> u64 {
        self.inner.max_seq.load(Ordering::Acquire)
    }

    /// Checks every node; returns what is wrong.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut below: Option<Vec<NonNull<Node>>> = None;
        for level in 0..self.inner.height.load(Ordering::Acquire) {
            let nodes: Vec<NodeRef<'_>> =
                std::iter::successors(self.inner.first(level), |n| self.inner.after(*n, level)).collect();
            let ordered = |pair: &[NodeRef<'_>]| {
                pair[0].order(&Sought::new(pair[1].key(), pair[1].seq())) == Order::Less
            };
            if !nodes.windows(2).all(ordered) {
                problems.push(format!("the nodes of level {level} are not in order"));
            }
            let here: Vec<NonNull<Node>> = nodes.iter().map(|n| n.pointer()).collect();
            if let Some(below) = &below {
                let mut rest = below.iter();
                if !here.iter().all(|node| rest.any(|other| other == node)) {
                    problems.push(format!("level {level} has a node that the level below lacks"));
                }
            }
            below = Some(here);
        }
        problems
    }
}

impl Writer<'_> {
    /// Inserts a version. The list must have no version of `key` with this sequence number.
    pub fn insert(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) {
        let list = self.list;
        let height = self.height();
        let sought = Sought::new(key, seq);
        let mut before = [None; MAX_HEIGHT];
        list.around(&sought, &mut before);
        let Writing { arena, .. } = &mut *self.writing;
        let created = node::create(arena, Content { key, seq, kind, value }, height);
        list.held_bytes.store(arena.held_bytes(), Ordering::Relaxed);
        // SAFETY: just created in this list's arena.
        let node = unsafe { NodeRef::new(created) };
        for (level, before) in before.iter().enumerate().take(height) {
            let link = before.map_or(&list.first[level], |before: NodeRef<'_>| before.link(level));
            node.link(level).store(link.load(Ordering::Relaxed), Ordering::Relaxed);
            link.store(created.as_ptr(), Ordering::Release);
        }
        list.height.fetch_max(height, Ordering::Release);
        list.entries.fetch_add(1, Ordering::Release);
        list.max_seq.fetch_max(seq, Ordering::AcqRel);
        let bytes = NODE_OVERHEAD_BYTES + (key.len() + value.len()) as u64;
        list.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A random height: each level holds a quarter of the one below.
    fn height(&mut self) -> usize {
        let random = self.writing.rng.next_u64();
        1 + (random.trailing_zeros() as usize / 2).min(MAX_HEIGHT - 1)
    }
}

impl Inner {
    fn follow(&self, link: &AtomicPtr<Node>) -> Option<NodeRef<'_>> {
        // SAFETY: links lead to nodes of this list's arena, complete before they were stored.
        NonNull::new(link.load(Ordering::Acquire)).map(|node| unsafe { NodeRef::new(node) })
    }

    fn first(&self, level: usize) -> Option<NodeRef<'_>> {
        self.follow(&self.first[level])
    }

    fn after<'a>(&'a self, node: NodeRef<'a>, level: usize) -> Option<NodeRef<'a>> {
        self.follow(node.link(level))
    }

    /// The last node on each level that comes before `sought`. Returns the lowest of them and the first node that
    /// does not come before `sought`, which were neighbours at one moment: following the link again could
    /// meet a node inserted since, on the wrong side.
    fn around<'a>(
        &'a self,
        sought: &Sought<'_>,
        before: &mut [Option<NodeRef<'a>>; MAX_HEIGHT],
    ) -> (Option<NodeRef<'a>>, Option<NodeRef<'a>>) {
        let mut last: Option<NodeRef<'a>> = None;
        let mut next: Option<NodeRef<'a>> = None;
        for level in (0..self.height.load(Ordering::Acquire)).rev() {
            let too_far = next.map(NodeRef::pointer);
            loop {
                next = self.follow(last.map_or(&self.first[level], |n| n.link(level)));
                let Some(node) = next else { break };
                // A node that was too far on the level above is too far here.
                if Some(node.pointer()) == too_far || node.order(sought) != Order::Less {
                    break;
                }
                last = next;
            }
            before[level] = last;
        }
        (last, next)
    }

    /// The last node that comes before `sought`.
    fn before(&self, sought: &Sought<'_>) -> Option<NodeRef<'_>> {
        self.around(sought, &mut [None; MAX_HEIGHT]).0
    }

    /// The first node that does not come before `sought`.
    fn at_or_after(&self, sought: &Sought<'_>) -> Option<NodeRef<'_>> {
        self.around(sought, &mut [None; MAX_HEIGHT]).1
    }

    fn last(&self) -> Option<NodeRef<'_>> {
        let mut last: Option<NodeRef<'_>> = None;
        for level in (0..self.height.load(Ordering::Acquire)).rev() {
            while let Some(node) = self.follow(last.map_or(&self.first[level], |n| n.link(level))) {
                last = Some(node);
            }
        }
        last
    }
}

#[cfg(test)]
mod tests;
