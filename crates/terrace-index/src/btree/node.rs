//! Nodes: a few cache lines of heads to search, the entries they belong to, and in inner nodes the children.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use terrace_base::{Result, prefetch};

use super::arena::{Arena, HEAD};
use super::entry::{self, LookUp, Target};

/// Slots of a node.
pub(super) const SLOTS: usize = 32;

/// The words of a node.
mod at {
    use super::SLOTS;
    pub const VERSION: usize = 0;
    /// Slots in use, never 0.
    pub const LEN: usize = 1;
    /// 0 for leaves.
    pub const LEVEL: usize = 2;
    /// Bytes that all keys and targets of the node begin with.
    pub const SKIP: usize = 3;
    /// The entry that the next node of the level begins with; the head in the last.
    pub const HIGH: usize = 4;
    /// The next node of the level, 0 in the last.
    pub const RIGHT: usize = 5;
    pub const HEADS: usize = 8;
    pub const ENTRIES: usize = HEADS + SLOTS;
    pub const CHILDREN: usize = ENTRIES + SLOTS;
    pub const END: usize = CHILDREN + SLOTS;
}

/// The state of a node that nobody is changing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(u64);

/// A node looked at in place.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'a> {
    arena: &'a Arena,
    pub at: u64,
    words: &'a [AtomicU64],
}

/// Makes a node without slots; returns its address.
pub(super) fn create(arena: &Arena, level: u64) -> u64 {
    let words = if level == 0 { at::CHILDREN } else { at::END };
    let node = arena.allocate_lines(words as u64);
    arena.words(node)[at::LEVEL].store(level, Ordering::Relaxed);
    node
}

impl<'a> NodeRef<'a> {
    pub fn at(arena: &'a Arena, at: u64) -> Self {
        NodeRef { arena, at, words: arena.words(at) }
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Acquire)
    }

    fn set(&self, at: usize, value: u64) {
        self.words[at].store(value, Ordering::Release);
    }

    /// Starts loading the lines that a search reads: they come at once instead of one after the other.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::lines(self.words.as_ptr(), at::ENTRIES * size_of::<u64>());
    }

    /// The node's version, unless somebody is changing it.
    #[inline]
    pub fn version(&self) -> Option<Version> {
        let version = self.word(at::VERSION);
        version.is_multiple_of(2).then_some(Version(version))
    }

    /// Whether all reads since `version` was read are of one moment.
    #[inline]
    pub fn is_at(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.words[at::VERSION].load(Ordering::Relaxed) == version.0
    }

    /// Marks the node as being changed.
    pub fn begin(&self) {
        let version = self.words[at::VERSION].load(Ordering::Relaxed);
        debug_assert!(version.is_multiple_of(2), "writers exclude each other");
        self.words[at::VERSION].store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Ends a change of the node.
    pub fn end(&self) {
        let version = self.words[at::VERSION].load(Ordering::Relaxed);
        self.words[at::VERSION].store(version + 1, Ordering::Release);
    }

    /// Slots in use: at least 1, at most [`SLOTS`], even if the word is read during a change.
    #[inline]
    pub fn len(&self) -> usize {
        self.word(at::LEN) as usize
    }

    /// 0 for leaves.
    #[inline]
    pub fn level(&self) -> u64 {
        self.words[at::LEVEL].load(Ordering::Relaxed)
    }

    pub fn skip(&self) -> usize {
        self.word(at::SKIP) as usize
    }

    /// The entry that the next node of the level begins with; the head in the last.
    pub fn high(&self) -> u64 {
        self.word(at::HIGH)
    }

    /// Whether the node is the first or the last of its level.
    pub fn is_open(&self) -> bool {
        self.entry(0) == HEAD || self.high() == HEAD
    }

    /// The next node of the level.
    pub fn right(&self) -> Option<NodeRef<'a>> {
        let right = self.word(at::RIGHT);
        (right != 0).then(|| NodeRef::at(self.arena, right))
    }

    pub fn head(&self, slot: usize) -> u64 {
        self.word(at::HEADS + slot)
    }

    #[inline]
    pub fn entry(&self, slot: usize) -> u64 {
        self.word(at::ENTRIES + slot)
    }

    #[inline]
    pub fn child(&self, slot: usize) -> u64 {
        self.word(at::CHILDREN + slot)
    }

    /// How many slots are before `target`, which belongs here: at least the first.
    #[inline]
    pub fn position(&self, target: Target<'_>, look_up: LookUp<'_>) -> Result<usize> {
        let head = entry::head(target.key, self.skip());
        let len = self.len();
        let heads = &self.words[at::HEADS..][..SLOTS];
        let (mut from, mut left) = (1, len - 1);
        while left > 0 {
            let half = left / 2;
            let less = heads[from + half].load(Ordering::Relaxed) < head;
            from = if less { from + half + 1 } else { from };
            left = if less { left - half - 1 } else { half };
        }
        let mut to = from;
        while to < len && heads[to].load(Ordering::Relaxed) == head {
            to += 1;
        }
        while from < to {
            let middle = from.midpoint(to);
            match entry::compare(self.arena, self.entry(middle), target, look_up)?.is_lt() {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        Ok(from)
    }

    /// Appends a slot. Only for a node that is being made or changed and has room.
    pub fn push(&self, head: u64, entry: u64, child: u64) {
        let len = self.len();
        self.set_slot(len, head, entry, child);
        self.set(at::LEN, len as u64 + 1);
    }

    /// Puts a slot before slot `position`. Only for a node that is being changed and has room.
    pub fn insert(&self, position: usize, entry: u64, child: u64) {
        let len = self.len();
        for slot in (position..len).rev() {
            self.copy_slot(slot, self, slot + 1);
        }
        self.set_slot(position, entry::head_of(self.arena, entry, self.skip()), entry, child);
        self.set(at::LEN, len as u64 + 1);
    }

    /// Moves the slots from `from` on to `right`, a new node, which becomes the next of the level.
    pub fn move_slots(&self, from: usize, right: &NodeRef<'_>) {
        for slot in from..self.len() {
            self.copy_slot(slot, right, slot - from);
        }
        right.set(at::LEN, (self.len() - from) as u64);
        self.set(at::LEN, from as u64);
    }

    /// Makes `right`, whose first slot is set, the next node of the level.
    pub fn join(&self, right: &NodeRef<'_>) {
        right.set(at::HIGH, self.high());
        right.set(at::RIGHT, self.word(at::RIGHT));
        right.set(at::SKIP, self.word(at::SKIP));
        self.set(at::HIGH, right.entry(0));
        self.set(at::RIGHT, right.at);
    }

    /// Makes all heads those after `skip` bytes.
    pub fn set_skip(&self, skip: usize) {
        if skip != self.skip() {
            self.set(at::SKIP, skip as u64);
            for slot in 0..self.len() {
                self.set(at::HEADS + slot, entry::head_of(self.arena, self.entry(slot), skip));
            }
        }
    }

    fn copy_slot(&self, from: usize, node: &NodeRef<'_>, to: usize) {
        let child = if self.level() == 0 { 0 } else { self.child(from) };
        node.set_slot(to, self.head(from), self.entry(from), child);
    }

    fn set_slot(&self, slot: usize, head: u64, entry: u64, child: u64) {
        self.set(at::HEADS + slot, head);
        self.set(at::ENTRIES + slot, entry);
        if self.level() > 0 {
            self.set(at::CHILDREN + slot, child);
        }
    }
}
