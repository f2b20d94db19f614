//! Splitting a leaf.
//!
//! 1. The right half is written to a new leaf whose next is the full leaf's next, and drained. A crash until here
//!    leaves a leaf that belongs to nobody.
//! 2. The search tree learns of the new leaf's node, which is locked: before the leaf is in the chain, where threads
//!    that rebuild the layers in DRAM would find it and make another node for it.
//! 3. The full leaf's next becomes the new leaf: from that store on the new leaf's range is its own, since a leaf's
//!    range ends where the next one's begins. In the same line, and so after it on the media too, follows the
//!    bitmap without the slots that have moved. A crash between leaves slots whose keys lie outside the
//!    leaf's range: its proof says so, and they are dropped when the leaf is next looked at.
//! 4. The old node follows; the new one stays locked until it knows its new bound. The top layer in
//!    PM learns of the new leaf in the background; until then it is found by walking right.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::Slot;

use super::bound::Bound;
use super::key::{INLINE_BYTES, Probe, separator, word_of};
use super::layout::{self, Item, LEAF_BYTES, RECORD};
use super::mnode::{Locked, Mnode};
use super::page::Page;
use super::{Core, Garbage};
use crate::kinds;

/// Reservations that are given back unless they are kept.
pub(super) struct Fresh<'c> {
    core: &'c Core,
    slots: Vec<Slot>,
}

impl<'c> Fresh<'c> {
    pub fn new(core: &'c Core) -> Self {
        Fresh { core, slots: Vec::new() }
    }

    /// A place for a leaf.
    pub fn leaf(&mut self) -> Result<u64> {
        let slot = self.core.pool.reserve(kinds::SPTREE_LEAF, LEAF_BYTES)?;
        self.slots.push(slot);
        Ok(slot.offset)
    }

    /// Word and sort of a leaf's low key, in a new record if it is long.
    pub fn low(&mut self, key: &[u8]) -> Result<(u64, u8)> {
        if key.len() <= INLINE_BYTES {
            return Ok((word_of(key), key.len() as u8));
        }
        Ok((self.record(key)?, RECORD))
    }

    /// A flushed key record.
    pub fn record(&mut self, key: &[u8]) -> Result<u64> {
        self.record_in(None, key)
    }

    /// A flushed key record, in a slot that is reserved if there is one.
    pub fn record_in(&mut self, reserved: Option<Slot>, key: &[u8]) -> Result<u64> {
        let slot = self.core.new_record_in(reserved, key)?;
        self.slots.push(slot);
        Ok(slot.offset)
    }

    /// Activates everything; durable, with what was flushed, at the caller's next drain.
    pub fn keep(mut self) {
        std::mem::take(&mut self.slots).iter().for_each(|slot| self.core.pool.activate(slot));
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.slots.drain(..).for_each(|slot| self.core.pool.cancel(slot));
    }
}

impl Core {
    /// Splits a full leaf, for `coming` perhaps.
    pub(super) fn split(&self, locked: Locked<'_>, coming: Option<&[u8]>) -> Result<()> {
        let node = locked.0;
        let version = node.version();
        let mut page = Page::new();
        // Locked: the version does not move on, except that this very call may sort.
        while self.page(node, node.version(), &mut page)?.is_none() {}
        let high = node.high(node.version()).unwrap_or(Bound::None);
        debug_assert!(!version.is_dead() && page.len >= 2, "what is split is full");
        let at = self.split_point(&page, coming, &high)?;
        let (left, right) = page.items().split_at(at);
        let last = self.key_of(left[at - 1])?;
        let first = self.key_of(right[0])?;
        let place = Probe::plain(separator(last.bytes(), first.bytes()));
        if last.bytes() >= first.bytes() || node.low().cmp_key(&place).is_le() || high.cmp_key(&place).is_ge()
        {
            return Err(self.pool.corruption(node.leaf(), "a leaf of keys of its range", "other keys"));
        }

        let low = Bound::new(place.key);
        let (stay, go) = self.part_buffer(node, &low)?;
        let old = (node.bitmap.load(Ordering::Relaxed), self.next_leaf(node.leaf())?);
        let leaf = self.write_leaf(place.key, old.1, right)?;
        let right = self.new_node(leaf, &low, &high, right);
        super::buffer::store(right.0, &self.arena.shape, &go);
        right.set_oldest_odd(node.oldest_odd());
        right.0.next.store(node.next.load(Ordering::Relaxed), Ordering::Release);
        self.enter(&low, right.0);

        let moved = page.slots[at..page.len].iter().fold(0u64, |moved, slot| moved | 1 << slot);
        let new = (old.0 & !moved, leaf);
        self.store_state(node.leaf(), old, (old.0, leaf), new);
        self.shrink(&locked, new.0, &low, right.0, (left, &stay));
        drop((right, locked));
        self.announce(low, leaf);
        Ok(())
    }

    /// How many items stay: half; more if keys are being appended to the last leaf.
    fn split_point(&self, page: &Page, coming: Option<&[u8]>, high: &Bound) -> Result<usize> {
        let last = self.key_of(page.items[page.len - 1])?;
        let appending = *high == Bound::None && coming.is_some_and(|key| key > last.bytes());
        let stay = if appending { page.len - page.len / 8 } else { page.len / 2 };
        Ok(stay.clamp(1, page.len - 1))
    }

    /// A new leaf, durable and linked to nothing.
    pub(super) fn write_leaf(&self, low: &[u8], next: u64, items: &[Item]) -> Result<u64> {
        let mut fresh = Fresh::new(self);
        let leaf = fresh.leaf()?;
        let (low, kind) = fresh.low(low)?;
        let image = layout::encode_leaf(self.pool.place(leaf), low, kind, next, items);
        self.pool.write(leaf, &image);
        self.pool.flush(leaf, LEAF_BYTES);
        fresh.keep();
        self.pool.drain();
        Ok(leaf)
    }

    /// A locked node for a leaf whose first slots hold `items`.
    pub(super) fn new_node(&self, leaf: u64, low: &Bound, high: &Bound, items: &[Item]) -> Locked<'_> {
        let node = self.arena.take();
        let locked = node.set_up(leaf, low, high);
        let shape = &self.arena.shape;
        node.clear_filter(shape);
        self.empty_buffer(node);
        items.iter().enumerate().for_each(|(slot, item)| node.note(shape, slot, Core::hash_of(*item)));
        node.bitmap.store(layout::low_bits(items.len()), Ordering::Relaxed);
        locked
    }

    /// Enters a node into the search tree; false if there is one with this bound already.
    pub(super) fn enter(&self, low: &Bound, node: &Mnode) -> bool {
        let mut old = Vec::new();
        let mut inline = [0; 8];
        let key = low.bytes(&mut inline).unwrap_or_default();
        let entered = self.art.insert(key, std::ptr::from_ref(node) as usize, &mut old).is_ok();
        old.into_iter().for_each(|node| self.limbo.retire(Garbage::Art(node)));
        entered
    }

    /// Lets the node end at `high`, with the items that have stayed.
    fn shrink(
        &self,
        locked: &Locked<'_>,
        bitmap: u64,
        high: &Bound,
        next: &Mnode,
        (stayed, buffered): (&[Item], &[Item]),
    ) {
        let shape = &self.arena.shape;
        let old = locked.change(false, |node| {
            node.bitmap.store(bitmap, Ordering::Relaxed);
            node.clear_filter(shape);
            super::buffer::store(node, shape, buffered);
            stayed.iter().for_each(|item| node.note_filter(shape, Core::hash_of(*item)));
            node.next.store(std::ptr::from_ref(next).cast_mut(), Ordering::Release);
            node.set_high(high)
        });
        if let Some(bytes) = old {
            self.limbo.retire(Garbage::Bytes(bytes));
        }
    }
}
