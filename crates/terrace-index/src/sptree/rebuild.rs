//! Rebuilds the layers in DRAM after an open, while the tree is in use.
//!
//! An open reads only headers. A search for a key whose leaf has no node yet finds the leaf through the top layer in PM
//! and makes its node. Meanwhile jobs go through the top layer piece by piece, walk the chain of leaves under each
//! piece, and make the nodes of all.
//!
//! 1. A leaf without a node does not change: a writer changes a leaf only after locking its node. Two threads may make
//!    a node for the same leaf; one of them enters it, locked. The other's data may be stale by then: that thread
//!    stores nothing to the leaf and drops its node.
//! 2. Nothing is merged until every leaf has its node and no thread is making one any more. So a leaf that has a node
//!    keeps it, and no node is made for a leaf that is gone.
//! 3. A leaf's low key never changes; its high one is the next leaf's low key.
//! 4. A leaf that a crash left with items outside its range is cleaned, durably, by the thread whose node was entered,
//!    before it unlocks the node. The node never shows the items that are to be removed.
//!
//! A damaged leaf stays without a node: lookups of its keys are errors, and nothing is merged until the tree is opened
//! again.

use std::collections::HashSet;
use std::ops::Bound as RangeBound;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_utils::Backoff;
use parking_lot::Mutex;
use terrace_base::{Error, Result};

use super::Core;
use super::bound::Bound;
use super::key::Probe;
use super::layout::{self, Item, Proven, STATE_LINE_AT};
use super::mnode::Mnode;
use crate::ordered::OrderedIndex;
use crate::scan_batch::ScanBatch;

/// Leaves in a piece of work, for each entry of a leaf: 256 by default.
const PIECE: usize = 4;

/// Leaves ahead of the walk that are being loaded.
const AHEAD: usize = 4;

/// How far the layers in DRAM are.
pub(super) struct Rebuild {
    /// Every leaf has a node.
    whole: AtomicBool,
    /// The rebuilding has ended.
    over: AtomicBool,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// Low key and offset of the first leaf of the next piece.
    rest: Option<(Vec<u8>, u64)>,
    /// Threads that are making nodes: for a piece, or for one leaf of a search.
    busy: usize,
    failure: Option<Error>,
}

/// A thread that makes nodes. While it exists the tree does not count as whole.
struct Reviver<'r>(&'r Rebuild);

impl Drop for Reviver<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.busy -= 1;
        if progress.busy == 0 && progress.rest.is_none() {
            self.0.whole.store(progress.failure.is_none(), Ordering::Release);
            self.0.over.store(true, Ordering::Release);
        }
    }
}

/// Leaves in the order of their keys, as far as the top layer names them, and the leaf after the last of them
/// (0: all that follow are part of the piece).
struct Piece<'r> {
    leaves: Vec<u64>,
    end: u64,
    _reviver: Reviver<'r>,
}

impl Rebuild {
    /// Everything from `first` on is to be done.
    pub fn from(first: u64) -> Rebuild {
        let progress = Mutex::new(Progress { rest: Some((Vec::new(), first)), ..Progress::default() });
        Rebuild { whole: AtomicBool::new(false), over: AtomicBool::new(false), progress }
    }

    /// Whether every leaf has a node.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Counts the caller as making nodes, unless all nodes exist.
    fn join(&self) -> Option<Reviver<'_>> {
        let mut progress = self.progress.lock();
        if self.is_whole() {
            return None;
        }
        progress.busy += 1;
        Some(Reviver(self))
    }

    /// The first error.
    pub fn failure(&self) -> Option<Error> {
        self.progress.lock().failure.clone()
    }
}

impl Core {
    /// Does the rest of the rebuilding, or waits for the threads that do.
    pub(super) fn finish_rebuild(&self) {
        let backoff = Backoff::new();
        while !self.rebuild.over.load(Ordering::Acquire) {
            if !self.rebuild_piece() {
                backoff.snooze();
            }
        }
    }

    /// Works on the rebuilding until there is nothing left to take, or the tree is closed.
    pub(super) fn work_on_rebuild(&self) {
        while !self.jobs.is_closed() && self.rebuild_piece() {}
    }

    /// Does one piece; false if none is left.
    fn rebuild_piece(&self) -> bool {
        let Some(piece) = self.take_piece() else { return false };
        if let Err(e) = self.revive_piece(&piece) {
            self.rebuild.progress.lock().failure.get_or_insert(e);
        }
        true
    }

    fn take_piece(&self) -> Option<Piece<'_>> {
        let mut progress = self.rebuild.progress.lock();
        let (low, first) = progress.rest.take()?;
        let mut batch = ScanBatch::new();
        // Without the top layer the chain is walked by one: slower, and as complete.
        let size = self.capacity * PIECE;
        let found = self.top.scan(RangeBound::Excluded(&low), false, size, &mut batch);
        let mut leaves = vec![first];
        leaves.extend(batch.iter().map(|(_, leaf)| leaf));
        let mut end = 0;
        if found.is_ok() && batch.len() == size {
            end = leaves.pop().unwrap_or(0);
            progress.rest = Some((batch.key(size - 1).to_vec(), end));
        }
        progress.busy += 1;
        Some(Piece { leaves, end, _reviver: Reviver(&self.rebuild) })
    }

    /// Makes the nodes of all leaves of a piece.
    fn revive_piece(&self, piece: &Piece<'_>) -> Result<()> {
        let _here = self.limbo.enter();
        let (mut failure, mut failed) = (None, HashSet::new());
        let mut named = piece.leaves.iter().copied().peekable();
        let mut leaf = named.next().unwrap_or(0);
        let (mut left, mut is_named) = (None, true);
        while leaf != 0 && leaf != piece.end {
            named.clone().take(AHEAD).for_each(|ahead| self.prefetch_leaf(ahead));
            let ascends = |node: &Mnode| left.is_none_or(|left: &Mnode| is_below(&left.low(), &node.low()));
            let next = match self.revive_leaf(leaf) {
                Ok((node, _)) if !ascends(node) => {
                    failure.get_or_insert(self.descending(leaf));
                    break;
                }
                Ok((node, next)) => {
                    self.place(node, left.replace(node), is_named);
                    next
                }
                Err(e) => {
                    failure.get_or_insert(e);
                    // Leaves that lead in circles do not all ascend.
                    if !failed.insert(leaf) {
                        break;
                    }
                    left = None;
                    // Continues by its link if that is sound, otherwise from the next known leaf.
                    match self.leaf_state(leaf) {
                        Ok(((_, next), proven)) if proven != Proven::Damaged => next,
                        _ => named.peek().copied().unwrap_or(piece.end),
                    }
                }
            };
            is_named = named.next_if_eq(&next).is_some();
            leaf = next;
        }
        let lost = named.next().or((leaf != piece.end).then_some(piece.end));
        match (failure, lost) {
            (Some(e), _) => Err(e),
            (None, Some(lost)) => {
                Err(self.pool.corruption(lost, "a leaf in the chain", "one that only the top layer names"))
            }
            (None, None) => Ok(()),
        }
    }

    /// Notes the walk's knowledge about a node: its left neighbour, and whether the top layer names it.
    fn place(&self, node: &Mnode, left: Option<&Mnode>, is_named: bool) {
        if let Some(left) = left {
            let node = std::ptr::from_ref(node).cast_mut();
            // A node that was split since already has the right values.
            let _ =
                left.next.compare_exchange(std::ptr::null_mut(), node, Ordering::AcqRel, Ordering::Relaxed);
        }
        let low = node.low();
        if low == Bound::Inline(0, 0) {
            return;
        }
        if is_named {
            node.lock().set_in_top(true);
        } else if !node.in_top() {
            self.announce(low, node.leaf());
        }
    }

    /// Makes the node that `probe`, or the keys just below it, belong to, unless every leaf has its node.
    pub(super) fn revive(&self, probe: &Probe<'_>, below: bool) -> Result<()> {
        let Some(_reviver) = self.rebuild.join() else { return Ok(()) };
        let from = if below { RangeBound::Excluded(probe.key) } else { RangeBound::Included(probe.key) };
        let mut batch = ScanBatch::new();
        let found = self.top.scan(from, true, 1, &mut batch);
        let mut leaf = if found.is_ok() && !batch.is_empty() { batch.word(0) } else { self.first };
        let is_past = |low: &Bound| {
            let order = low.cmp_key(probe);
            order.is_lt() || below && order.is_eq()
        };
        let mut low = self.leaf_low(leaf)?.0;
        if is_past(&low) {
            return Err(self.pool.corruption(leaf, "a leaf that begins where it is looked for", "another"));
        }
        loop {
            let next = self.next_leaf(leaf)?;
            if next == 0 {
                break;
            }
            let next_low = self.leaf_low(next)?.0;
            if is_past(&next_low) {
                break;
            }
            // So the walk ends.
            if !is_below(&low, &next_low) {
                return Err(self.descending(leaf));
            }
            (leaf, low) = (next, next_low);
        }
        self.revive_leaf(leaf).map(drop)
    }

    #[cold]
    fn descending(&self, leaf: u64) -> Error {
        self.pool.corruption(leaf, "leaves that ascend", "a leaf that begins after the next")
    }

    /// The node of a leaf, made if there is none yet, and the offset of the next leaf.
    fn revive_leaf(&self, leaf: u64) -> Result<(&Mnode, u64)> {
        let low = self.leaf_low(leaf)?.0;
        let mut inline = [0; 8];
        let key = low.bytes(&mut inline).unwrap_or_default();
        if let Some(node) = self.node_of(self.art.floor(key, false), &low, leaf) {
            return Ok((node, self.next_leaf(leaf)?));
        }
        let made = self.make_node(leaf, &low);
        // Another thread may have been first, and may have changed the leaf since: then the data read from it means
        // nothing.
        match (self.node_of(self.art.floor_at_rest(key), &low, leaf), made) {
            (Some(node), _) => Ok((node, self.next_leaf(leaf)?)),
            (None, Err(e)) => Err(e),
            (None, Ok(_)) => Err(self.pool.corruption(leaf, "a leaf of its own range", "another one's")),
        }
    }

    /// The node at `found`, if it is that of the leaf with this low bound.
    fn node_of(&self, found: Option<usize>, low: &Bound, leaf: u64) -> Option<&Mnode> {
        let node = self.node_at(found?);
        (node.leaf() == leaf && node.low() == *low).then_some(node)
    }

    /// Makes a node for a leaf that has none and enters it, unless another thread is first.
    fn make_node(&self, leaf: u64, low: &Bound) -> Result<()> {
        let (state, proven) = self.leaf_state(leaf)?;
        if proven == Proven::Damaged {
            return Err(self.pool.corruption(
                leaf + layout::PROOF_AT,
                "a leaf's state with its proof",
                "another",
            ));
        }
        let high = if state.1 == 0 { Bound::None } else { self.leaf_low(state.1)?.0 };
        if high != Bound::None && !is_below(low, &high) {
            return Err(self.descending(leaf));
        }
        let mut items = Vec::with_capacity(layout::SLOTS);
        let mut left = state.0;
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            items.push((slot, self.item(leaf, slot)?));
        }
        if proven == Proven::Overfull {
            self.keep_inside(low, &high, &mut items)?;
        }
        if self.unclean {
            // The last stores of a killed process are there, but may not have been written back.
            self.pool.persist(leaf + STATE_LINE_AT, 64);
        }
        self.enter_revived(leaf, low, &high, (state, proven), &items);
        Ok(())
    }

    /// Drops the items that lie outside the range.
    fn keep_inside(&self, low: &Bound, high: &Bound, items: &mut Vec<(usize, Item)>) -> Result<()> {
        let mut kept = Vec::with_capacity(items.len());
        for (slot, item) in items.drain(..) {
            let key = self.key_of(item)?;
            let probe = Probe::plain(key.bytes());
            if low.cmp_key(&probe).is_ge() && high.cmp_key(&probe).is_lt() {
                kept.push((slot, item));
            }
        }
        *items = kept;
        Ok(())
    }

    /// Enters a node for a leaf that was seen in a state and is to have `items` alone, unless there is one.
    fn enter_revived(
        &self,
        leaf: u64,
        low: &Bound,
        high: &Bound,
        ((bitmap, next), proven): (layout::State, Proven),
        items: &[(usize, Item)],
    ) {
        let locked = self.new_node(leaf, low, high, &[]);
        let (node, shape) = (locked.0, &self.arena.shape);
        items.iter().for_each(|(slot, item)| node.note(shape, *slot, Core::hash_of(*item)));
        let kept = items.iter().fold(0, |kept, (slot, _)| kept | 1 << slot);
        node.bitmap.store(kept, Ordering::Relaxed);
        if self.enter(low, node) {
            self.keys.fetch_add(items.len() as i64, Ordering::Relaxed);
            if proven == Proven::Overfull {
                // The node is still locked, so the data read is current.
                self.store_state(leaf, (bitmap, next), (bitmap, next), (kept, next));
            }
            return;
        }
        drop(locked);
        // SAFETY: no other thread has seen the node.
        unsafe { self.arena.give(std::ptr::from_ref(node).cast_mut()) };
    }
}

/// Whether one bound comes before another.
fn is_below(low: &Bound, high: &Bound) -> bool {
    let mut inline = [0; 8];
    low.bytes(&mut inline).is_some_and(|low| high.cmp_key(&Probe::plain(low)).is_lt())
}
