//! Merging two leaves.
//!
//! 1. The top layer forgets the right leaf: every leaf that it names is always in the chain.
//! 2. The right leaf's items are written to free slots of the left one, and drained.
//! 3. The left leaf's bitmap takes them in, and after it, in the same line, its next passes over the right leaf:
//!    with that store the left leaf's range grows. A crash between leaves slots outside the leaf's range, as in a
//!    split; they are dropped.
//! 4. The nodes in DRAM follow: the left one grows, then the right one dies and leaves the search tree. While both
//!    lead to the same items both are locked. The right leaf is retired.
//!
//! Nothing is merged before the tree is whole after an open, or while a walk marks reachable objects.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use terrace_base::Result;

use super::bound::Bound;
use super::key::Probe;
use super::layout::Item;
use super::mnode::{Locked, Mnode};
use super::page::Page;
use super::{Core, Garbage, SpTree};
use crate::kinds;

/// What merges wait for, and those that did not happen.
#[derive(Debug)]
pub(super) struct Merges {
    /// Held by a walk that marks reachable objects, and shared by merges.
    pub gate: RwLock<()>,
    /// A leaf could not be merged when its keys were removed.
    are_owed: AtomicBool,
}

impl Merges {
    /// Those of a tree that is opened: what was owed when it was closed is not known.
    pub fn new() -> Merges {
        Merges { gate: RwLock::new(()), are_owed: AtomicBool::new(true) }
    }
}

impl SpTree {
    /// Merges leaves that could not be merged when their keys were removed, beside readers and writers; returns whether
    /// there may have been any. It goes through the whole tree then.
    pub fn catch_up(&self) -> Result<bool> {
        let are_owed = &self.core.merges.are_owed;
        if !are_owed.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        self.shrink().inspect_err(|_| are_owed.store(true, Ordering::Release)).map(|()| true)
    }
}

impl Core {
    /// Merges the leaf that `probe` belongs to with a neighbour if they have room for each other; says whether it did.
    pub(super) fn merge_near(&self, probe: &Probe<'_>) -> Result<bool> {
        let gate = self.rebuild.is_whole().then(|| self.merges.gate.try_read()).flatten();
        let Some(_gate) = gate else {
            self.merges.are_owed.store(true, Ordering::Release);
            return Ok(false);
        };
        let (node, _) = self.locate(probe)?;
        if self.merge_right(node)? {
            return Ok(true);
        }
        let low = node.low().to_vec().unwrap_or_default();
        if !low.is_empty() {
            let (left, _) = self.locate_below(&Probe::new(&low))?;
            return self.merge_right(left);
        }
        Ok(false)
    }

    /// Merges all neighbours that have room for each other: those of which keys were removed when the tree was not
    /// whole yet, or when there was no room for it. It is whole.
    pub(super) fn merge_all(&self) -> Result<()> {
        let mut cursor = Vec::new();
        loop {
            let _here = self.limbo.enter();
            let _gate = self.merges.gate.read();
            let (node, _) = self.locate(&Probe::plain(&cursor))?;
            if self.merge_right(node)? {
                continue;
            }
            let Some(high) = node.high(node.version()) else { continue };
            match high.to_vec() {
                Some(high) => cursor = high,
                None => return Ok(()),
            }
        }
    }

    /// Merges the node's right neighbour into it; says whether it did.
    fn merge_right(&self, node: &Mnode) -> Result<bool> {
        let left = node.lock();
        let version = node.version();
        if version.is_dead() {
            return Ok(false);
        }
        let Some(high) = node.high(version).and_then(|high| high.to_vec()) else { return Ok(false) };
        // While the left one is locked, the right one stays where it is.
        let right = loop {
            let (right, _) = self.locate(&Probe::new(&high))?;
            let locked = right.lock();
            if !right.is_dead() {
                break locked;
            }
        };
        if right.0.low() != Bound::new(&high) {
            return Err(self.pool.corruption(right.0.leaf(), "leaves whose ranges meet", "a gap"));
        }
        let merged = self
            .fit(&left, &right)
            .and_then(|fit| if fit { self.merge(left, right).map(|()| true) } else { Ok(false) });
        match merged {
            // It was worth a try.
            Err(e) if e.is_out_of_space() => Ok(false),
            merged => merged,
        }
    }

    /// Whether two leaves are to be one: together half full at most, or one of them empty.
    fn fit(&self, left: &Locked<'_>, right: &Locked<'_>) -> Result<bool> {
        let fit = || {
            let count = |node: &Locked<'_>| node.0.bitmap.load(Ordering::Relaxed).count_ones() as usize;
            let (l, r) = (count(left), count(right));
            l + r <= self.capacity / 2 || l.min(r) == 0
        };
        // Buffers are flushed only for a merge that may come of it, and may make it impossible.
        Ok(fit() && self.flush_for_merge(left)? && self.flush_for_merge(right)? && fit())
    }

    fn merge(&self, left: Locked<'_>, right: Locked<'_>) -> Result<()> {
        let mut page = Page::new();
        while self.page(right.0, right.0.version(), &mut page)?.is_none() {}
        let low = right.0.low();
        self.forget(&right, &low)?;

        let next = self.next_leaf(right.0.leaf())?;
        let record = self.leaf_low(right.0.leaf())?.1;
        let taken = self.copy_items(&left, page.items())?;
        let old = (left.0.bitmap.load(Ordering::Relaxed), self.next_leaf(left.0.leaf())?);
        let bitmap = taken.iter().fold(old.0, |bitmap, (slot, _)| bitmap | 1 << slot);
        self.store_state(left.0.leaf(), old, (bitmap, old.1), (bitmap, next));

        self.grow(&left, bitmap, &taken, right.0);
        let mut old = Vec::new();
        self.art.remove(&low.to_vec().unwrap_or_default(), &mut old);
        right.kill();
        old.into_iter().for_each(|node| self.limbo.retire(Garbage::Art(node)));
        self.limbo.retire(Garbage::Slot(kinds::SPTREE_LEAF, right.0.leaf()));
        if record != 0 {
            self.limbo.retire(Garbage::Slot(kinds::SPTREE_KEY, record));
        }
        let dead = right.0;
        drop((left, right));
        self.retire_node(dead);
        Ok(())
    }

    /// Writes items to free slots, durably; the slots taken, with the hashes of the keys.
    fn copy_items(&self, left: &Locked<'_>, items: &[Item]) -> Result<Vec<(usize, u16)>> {
        let mut free = !left.0.bitmap.load(Ordering::Relaxed);
        let mut taken = Vec::with_capacity(items.len());
        for item in items {
            let slot = free.trailing_zeros() as usize;
            free &= free - 1;
            self.store_item(left.0.leaf(), slot, *item)?;
            taken.push((slot, Core::hash_of(*item)));
        }
        self.pool.drain();
        Ok(taken)
    }

    /// Lets the left node take over from the right one.
    fn grow(&self, left: &Locked<'_>, bitmap: u64, taken: &[(usize, u16)], right: &Mnode) {
        let shape = &self.arena.shape;
        let high = right.high(right.version()).unwrap_or(Bound::None);
        let old = left.change(false, |node| {
            node.bitmap.store(bitmap, Ordering::Relaxed);
            taken.iter().for_each(|(slot, hash)| node.note(shape, *slot, *hash));
            node.next.store(right.next.load(Ordering::Relaxed), Ordering::Release);
            node.set_high(&high)
        });
        if let Some(bytes) = old {
            self.limbo.retire(Garbage::Bytes(bytes));
        }
    }
}
