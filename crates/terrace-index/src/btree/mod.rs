//! A B+-tree in DRAM from keys to words, so that finding a place in a persistent structure touches
//! no PM. It is volatile, and rebuilt or refilled after an open.
//!
//! Readers take no lock: they note a node's version, look, and begin again at the root if it has moved on.
//! Writers exclude each other.
//!
//! 1. Nothing leaves the tree. Only the word of an entry ever changes; entries are written before a node leads to
//!    them (release) and read after following it (acquire).
//! 2. The first slot of a node is the smallest entry below it, for good; the first slot of the leftmost node on
//!    each level is the head, which is before every target. A target *belongs* to the node with the last first
//!    slot before it.
//! 3. A slot's *head* is the eight bytes of its key after those that all keys of the node, and every target that
//!    belongs to it, have in common. Only where heads are equal are entries looked at.
//! 4. A node's version is odd while it changes, and a node splits while it and its parent, or the root, are odd. So if
//!    a parent's version is unchanged after the version of a target's child was read, the target belongs to the child
//!    at that version.

mod arena;
mod entry;
mod node;
mod prefetch;
#[cfg(test)]
mod tests;
mod write;

use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::Result;

use arena::{Arena, HEAD};
pub(crate) use entry::{LookUp, Target, WHOLE_KEY_BYTES, words_of};
use node::{NodeRef, Version};

/// A volatile B+-tree of words of up to 48 bits, by key and sequence number.
pub(crate) struct BTree {
    arena: Arena,
    root: AtomicU64,
    /// Any entry; 0 while there is none.
    witness: AtomicU64,
    /// Bytes that all keys begin with, those of the witness. Changes while the root's version is odd.
    shared: AtomicU64,
    writer: Mutex<()>,
}

/// The place of a target at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trail {
    leaf: u64,
    version: Version,
    /// Slots of the leaf before the target; never 0.
    position: u32,
    /// The last entry before it.
    before: u64,
    /// The first entry at or after it, [`HEAD`] if there is none.
    after: u64,
    /// Whether that entry is at it.
    exact: bool,
    /// Whether that entry is under the same key.
    same_key: bool,
}

/// A target's place among the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The word of the last entry before it; 0 if there is none.
    pub prev: u64,
    /// The word of the first entry at or after it; 0 if there is none.
    pub next: u64,
    /// Whether that entry is at it.
    pub exact: bool,
}

/// How a target compares with the common beginning of all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// It has the same beginning.
    Within,
    /// It is before every entry.
    Before,
    /// It is after every entry.
    After,
}

impl BTree {
    pub fn new() -> BTree {
        let arena = Arena::new();
        let root = node::create(&arena, 0);
        NodeRef::at(&arena, root).push(0, HEAD, 0);
        BTree {
            arena,
            root: AtomicU64::new(root),
            witness: AtomicU64::new(HEAD),
            shared: AtomicU64::new(0),
            writer: Mutex::new(()),
        }
    }

    /// Bytes of DRAM taken.
    pub fn bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Finds the place of `target`.
    pub fn find(&self, target: Target<'_>, look_up: LookUp<'_>) -> Result<Trail> {
        let backoff = crossbeam_utils::Backoff::new();
        loop {
            if let Some(trail) = self.try_find(target, look_up)? {
                return Ok(trail);
            }
            backoff.snooze();
        }
    }

    /// The words around the target that `trail` was found for.
    pub fn place(&self, trail: &Trail) -> Place {
        Place { prev: self.prev(trail), next: self.next(trail), exact: trail.exact }
    }

    /// The word of the last entry before the target that `trail` was found for; 0 if there is none.
    pub fn prev(&self, trail: &Trail) -> u64 {
        entry::word(&self.arena, trail.before)
    }

    /// The word of the first entry at or after the target that `trail` was found for; 0 if there is none.
    pub fn next(&self, trail: &Trail) -> u64 {
        entry::word(&self.arena, trail.after)
    }

    /// The word of the first entry at or after the target that `trail` was found for, if it is under the same key.
    pub fn next_of_key(&self, trail: &Trail) -> Option<u64> {
        trail.same_key.then(|| self.next(trail))
    }

    /// Replaces the word of the entry at or after the target that `trail` was found for, if it is still `old`.
    pub fn replace(&self, trail: &Trail, old: u64, new: u64) -> bool {
        entry::replace(&self.arena, trail.after, old, new)
    }

    /// Keeps `words` beside the entries; returns their address, which is never 0.
    pub fn keep(&self, words: &[u64]) -> u64 {
        let at = self.arena.allocate(words.len() as u64);
        self.arena.words(at).iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        at
    }

    /// The words that [`keep`](Self::keep) has put at `at`, and those after them.
    pub fn kept(&self, at: u64) -> impl Iterator<Item = u64> {
        self.arena.words(at).iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// The last entry's word, 0 if there is none.
    pub fn last(&self) -> Result<u64> {
        let backoff = crossbeam_utils::Backoff::new();
        loop {
            if let Some((leaf, version)) = self.descend(|node| Ok(node.len()))? {
                let last = leaf.entry(leaf.len() - 1);
                if leaf.is_at(version) {
                    return Ok(entry::word(&self.arena, last));
                }
            }
            backoff.snooze();
        }
    }

    /// Finds the place of `target`, unless a node on the way is being changed.
    fn try_find(&self, target: Target<'_>, look_up: LookUp<'_>) -> Result<Option<Trail>> {
        let mut side = None;
        let mut position = |node: NodeRef<'_>| match *side.get_or_insert_with(|| self.side(target.key)) {
            Side::Before => Ok(1),
            Side::After => Ok(node.len()),
            Side::Within => node.position(target, look_up),
        };
        let Some((leaf, version)) = self.descend(&mut position)? else { return Ok(None) };
        let position = position(leaf)?;
        let before = leaf.entry(position - 1);
        let (after, alike) = match position < leaf.len() {
            true => (leaf.entry(position), leaf.head(position) == entry::head(target.key, leaf.skip())),
            false => (leaf.right().map_or(HEAD, |right| right.entry(0)), true),
        };
        // If the heads differ so do the keys, and the entry need not be read.
        let (same_key, seq) = match after != HEAD && alike && side == Some(Side::Within) {
            true => entry::compare_keys(&self.arena, after, target.key, look_up)?,
            false => (Order::Less, 0),
        };
        let same_key = same_key.is_eq();
        let exact = same_key && seq == target.seq;
        let position = position as u32;
        let trail = Trail { leaf: leaf.at, version, position, before, after, exact, same_key };
        Ok(leaf.is_at(version).then_some(trail))
    }

    /// Goes down to a leaf, in each node through the child before the slot that `position` returns. `None` if a node on
    /// the way is being changed.
    fn descend(
        &self,
        mut position: impl FnMut(NodeRef<'_>) -> Result<usize>,
    ) -> Result<Option<(NodeRef<'_>, Version)>> {
        let root = self.root.load(Ordering::Acquire);
        let mut node = NodeRef::at(&self.arena, root);
        let Some(mut version) = node.version() else { return Ok(None) };
        if self.root.load(Ordering::Acquire) != root {
            return Ok(None);
        }
        while node.level() > 0 {
            let at = position(node)?;
            let child = node.child(at - 1);
            // The words read may be of several moments, so the child may be invalid.
            if !node.is_at(version) {
                return Ok(None);
            }
            let child = NodeRef::at(&self.arena, child);
            child.prefetch();
            let Some(next) = child.version().filter(|_| node.is_at(version)) else { return Ok(None) };
            (node, version) = (child, next);
        }
        Ok(Some((node, version)))
    }

    fn side(&self, key: &[u8]) -> Side {
        let shared = self.shared.load(Ordering::Acquire) as usize;
        let witness = self.witness.load(Ordering::Acquire);
        if witness == HEAD {
            return Side::Before;
        }
        match entry::compare_beginning(&self.arena, witness, shared, key) {
            Order::Less => Side::After,
            Order::Equal => Side::Within,
            Order::Greater => Side::Before,
        }
    }
}

impl std::fmt::Debug for BTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BTree").field("bytes", &self.bytes()).finish()
    }
}
