//! Leaves in place: reading slots and key records, and storing to them.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_pmem::{POff, Slot};

use super::Core;
use super::key::{Probe, inline_bytes};
use super::layout::{
    self, BITMAP_AT, Item, KEY_HEAD_BYTES, KeyHead, LEAF_TAG, Leaf, NEXT_AT, OFFSET_BITS, OFFSET_MASK,
    PROOF_AT, Proven, RECORD, SLOTS, STATE_LINE_AT, State, meta_at, place, slot_at,
};
use super::mnode::{Bound, Mnode, Version, prefetch};
use crate::kinds;

/// The bytes of a key in a slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyRef<'t> {
    Inline([u8; 8], u8),
    Record(&'t [u8]),
}

impl KeyRef<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            KeyRef::Inline(bytes, len) => &bytes[..usize::from(*len)],
            KeyRef::Record(bytes) => bytes,
        }
    }
}

/// What is looked at in a leaf at once: the items of its slots, in the order of their keys.
pub(super) struct Page {
    pub items: [Item; PAGE],
    /// The slots that a leaf's items are from; of no meaning once a buffer's items are among them.
    pub slots: [u8; SLOTS],
    pub len: usize,
}

/// Most items of a page: those of a leaf and of a buffer.
const PAGE: usize = SLOTS + super::buffer::MAX_ENTRIES;

/// Which items of a page a scan wants: from a key on, upward or downward, at most so many.
pub(super) struct Part<'k> {
    pub probe: &'k Probe<'k>,
    pub including: bool,
    pub reverse: bool,
    pub limit: usize,
}

impl Part<'_> {
    /// Whether an item that compares so with the key lies left of where the part begins (or, downward, ends).
    fn is_before(&self, order: Order) -> bool {
        order.is_lt() || order.is_eq() && self.including == self.reverse
    }

    fn limit(&self, from: &mut usize, end: &mut usize) {
        let excess = (*end - *from).saturating_sub(self.limit);
        if self.reverse { *from += excess } else { *end -= excess }
    }
}

impl Page {
    pub fn new() -> Page {
        Page { items: [(0, 0, 0); PAGE], slots: [0; SLOTS], len: 0 }
    }

    pub fn items(&self) -> &[Item] {
        &self.items[..self.len]
    }

    /// Puts an item before the one at `at`.
    pub fn insert(&mut self, at: usize, item: Item) {
        self.items.copy_within(at..self.len, at + 1);
        self.items[at] = item;
        self.len += 1;
    }

    /// Takes out the item at `at`.
    pub fn remove(&mut self, at: usize) {
        self.items.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }
}

/// Item and meta of a slot as they are now.
fn load(leaf: &Leaf, slot: usize) -> (Item, u16) {
    let (block, i) = place(slot);
    let block = &leaf.blocks[block];
    let meta = block.metas[i].load(Ordering::Relaxed);
    let [key_word, word] = &block.slots[i];
    ((key_word.load(Ordering::Relaxed), word.load(Ordering::Relaxed), layout::kind_of(meta)), meta)
}

impl Core {
    pub(super) fn leaf(&self, off: u64) -> Result<&Leaf> {
        self.pool.get::<Leaf>(POff::new(off))
    }

    /// Starts loading what a write to slot `slot` of the leaf will touch.
    pub(super) fn prefetch_slot(&self, off: u64, slot: usize, state: bool) {
        if let Ok(leaf) = self.leaf(off) {
            let at = std::ptr::from_ref(leaf).cast::<i8>();
            prefetch(at.wrapping_add(slot_at(slot) as usize));
            prefetch(at.wrapping_add(meta_at(slot) as usize));
            if state {
                prefetch(at.wrapping_add(STATE_LINE_AT as usize));
            }
        }
    }

    /// Starts loading a whole leaf.
    pub(super) fn prefetch_leaf(&self, off: u64) {
        if let Ok(leaf) = self.leaf(off) {
            let at = std::ptr::from_ref(leaf).cast::<i8>();
            (0..size_of::<Leaf>()).step_by(64).for_each(|line| prefetch(at.wrapping_add(line)));
        }
    }

    /// The slot of `probe` and what it holds, as of this version; `None` if it has moved on.
    #[inline]
    pub(super) fn find(
        &self,
        node: &Mnode,
        probe: &Probe<'_>,
        version: Version,
    ) -> Result<Option<Option<(usize, Item)>>> {
        let mut left = node.candidates(&self.arena.shape, probe.hash);
        let off = node.leaf();
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            let leaf = self.leaf(off)?;
            self.prefetch_slot(off, slot, false);
            self.pool.charge_read(off + slot_at(slot), meta_at(slot) + 2 - slot_at(slot));
            let (item, meta) = load(leaf, slot);
            if !node.is_still(version) {
                return Ok(None);
            }
            self.verify(off, slot, item, meta)?;
            if self.is_key(item, probe)? {
                return Ok(Some(Some((slot, item))));
            }
        }
        Ok(node.is_still(version).then_some(None))
    }

    /// All items, in the order of their keys, as of this version; `None` if it has moved on.
    pub(super) fn page(&self, node: &Mnode, version: Version, page: &mut Page) -> Result<Option<()>> {
        let off = node.leaf();
        let leaf = self.leaf(off)?;
        self.prefetch_leaf(off);
        self.pool.charge_read(off, layout::LEAF_BYTES);
        let bitmap = node.bitmap.load(Ordering::Relaxed);
        let mut metas = [0; SLOTS];
        let sorted = version.is_sorted() && read_order(leaf, bitmap, page);
        if !sorted {
            page.len = 0;
            let mut left = bitmap;
            while left != 0 {
                page.slots[page.len] = left.trailing_zeros() as u8;
                page.len += 1;
                left &= left - 1;
            }
        }
        load_items(leaf, page, &mut metas);
        if !node.is_still(version) {
            return Ok(None);
        }
        self.verify_items(off, page, &metas)?;
        if !sorted || !ascends(page.items()) {
            self.sort(page)?;
            self.keep_order(node, version, page);
        }
        Ok(Some(()))
    }

    /// The items of [`page`](Self::page) that are part of a scan. Of a leaf whose order is known it looks at these
    /// alone.
    pub(super) fn part(
        &self,
        node: &Mnode,
        version: Version,
        part: &Part<'_>,
        page: &mut Page,
    ) -> Result<Option<()>> {
        if !self.is_buffered() && version.is_sorted() {
            match self.sorted_part(node, version, part, page)? {
                Some(true) => return Ok(Some(())),
                Some(false) => {}
                None => return Ok(None),
            }
        }
        let Some(()) = self.read_page(node, version, page)? else { return Ok(None) };
        let (mut from, mut end) = (0, page.len);
        let bound = |page: &Page| -> Result<usize> {
            let mut at = 0;
            while at < page.len && part.is_before(self.cmp_item(page.items[at], part.probe)?) {
                at += 1;
            }
            Ok(at)
        };
        if part.reverse {
            end = bound(page)?
        } else {
            from = bound(page)?
        }
        part.limit(&mut from, &mut end);
        page.items.copy_within(from..end, 0);
        page.len = end - from;
        Ok(Some(()))
    }

    /// [`part`](Self::part) of a leaf whose order is known; false if it has to be looked at as a whole.
    fn sorted_part(
        &self,
        node: &Mnode,
        version: Version,
        part: &Part<'_>,
        page: &mut Page,
    ) -> Result<Option<bool>> {
        let off = node.leaf();
        let leaf = self.leaf(off)?;
        self.prefetch_leaf(off);
        let bitmap = node.bitmap.load(Ordering::Relaxed);
        self.pool.charge_read(off, layout::LEAF_BYTES);
        if !read_order(leaf, bitmap, page) {
            return Ok(node.is_still(version).then_some(false));
        }
        // By halves: what lies below `low` is before the bound, what lies from `high` on is not.
        let (mut low, mut high) = (0, page.len);
        while low < high {
            let mid = (low + high) / 2;
            let slot = usize::from(page.slots[mid]);
            let (item, meta) = load(leaf, slot);
            if !node.is_still(version) {
                return Ok(None);
            }
            self.verify(off, slot, item, meta)?;
            if part.is_before(self.cmp_item(item, part.probe)?) { low = mid + 1 } else { high = mid }
        }
        let (mut from, mut end) = if part.reverse { (0, low) } else { (low, page.len) };
        part.limit(&mut from, &mut end);
        page.slots.copy_within(from..end, 0);
        page.len = end - from;
        let mut metas = [0; SLOTS];
        load_items(leaf, page, &mut metas);
        if !node.is_still(version) {
            return Ok(None);
        }
        self.verify_items(off, page, &metas)?;
        Ok(Some(ascends(page.items())))
    }

    fn verify_items(&self, off: u64, page: &Page, metas: &[u16; SLOTS]) -> Result<()> {
        let slots = page.slots.iter().zip(metas).take(page.len);
        page.items()
            .iter()
            .zip(slots)
            .try_for_each(|(item, (slot, meta))| self.verify(off, usize::from(*slot), *item, *meta))
    }

    fn sort(&self, page: &mut Page) -> Result<()> {
        let len = page.len;
        let mut entries: Vec<(Item, u8)> = page.items().iter().copied().zip(page.slots).take(len).collect();
        if page.items().iter().all(|item| item.2 != RECORD) {
            entries.sort_unstable_by_key(|((key_word, _, kind), _)| (*key_word, *kind));
        } else {
            let mut keyed = Vec::with_capacity(len);
            for entry in entries {
                keyed.push((self.key_of(entry.0)?, entry));
            }
            keyed.sort_by(|a, b| a.0.bytes().cmp(b.0.bytes()));
            entries = keyed.into_iter().map(|(_, entry)| entry).collect();
        }
        for (i, (item, slot)) in entries.into_iter().enumerate() {
            (page.items[i], page.slots[i]) = (item, slot);
        }
        Ok(())
    }

    /// Leaves the order of a page's slots in the leaf for later scans, unless somebody is changing it. It is
    /// never flushed nor believed after this session.
    fn keep_order(&self, node: &Mnode, version: Version, page: &Page) {
        let Some(locked) = node.try_lock() else { return };
        let (true, Ok(leaf)) = (node.is_still(version), self.leaf(node.leaf())) else { return };
        locked.change(true, |_| {
            for (i, slots) in page.slots.chunks_exact(8).enumerate() {
                let word = slots.iter().rev().fold(0, |word, slot| word << 8 | u64::from(*slot));
                leaf.blocks[1 + i / 2].words[i % 2].store(word, Ordering::Relaxed);
            }
        });
    }

    /// The key in a slot.
    pub(super) fn key_of(&self, (key_word, _, kind): Item) -> Result<KeyRef<'_>> {
        if kind == RECORD {
            return Ok(KeyRef::Record(self.record_key(key_word & OFFSET_MASK)?));
        }
        if kind == super::buffer::BOXED {
            return Ok(super::buffer::boxed_key(key_word));
        }
        Ok(KeyRef::Inline(inline_bytes(key_word), kind.min(8)))
    }

    /// The hash of the key in a slot.
    pub(super) fn hash_of((key_word, _, kind): Item) -> u16 {
        if kind == RECORD {
            (key_word >> OFFSET_BITS) as u16
        } else {
            super::key::hash_inline(key_word, kind)
        }
    }

    /// Whether the key in a slot is this one.
    #[inline]
    fn is_key(&self, (key_word, _, kind): Item, probe: &Probe<'_>) -> Result<bool> {
        if kind != probe.kind() {
            return Ok(false);
        }
        if kind != RECORD {
            return Ok(key_word == probe.word);
        }
        Ok((key_word >> OFFSET_BITS) as u16 == probe.hash
            && self.record_key(key_word & OFFSET_MASK)? == probe.key)
    }

    /// How the key in a slot compares with `probe`.
    #[inline]
    pub(super) fn cmp_item(&self, item: Item, probe: &Probe<'_>) -> Result<Order> {
        if item.2 < RECORD {
            return Ok(super::key::cmp_inline(item.0, usize::from(item.2), probe.word, probe.key.len()));
        }
        Ok(self.key_of(item)?.bytes().cmp(probe.key))
    }

    /// The key of the record at `off`, checked.
    pub(super) fn record_key(&self, off: u64) -> Result<&[u8]> {
        let head = self.pool.get::<KeyHead>(POff::new(off))?;
        let len = u64::from(head.klen);
        self.pool.charge_read(off, KEY_HEAD_BYTES + len);
        // SAFETY: a record never changes, and the caller's presence keeps it from being freed.
        let key = unsafe { self.pool.bytes(off + KEY_HEAD_BYTES, len)? };
        if layout::key_crc(key) != head.crc {
            return Err(self.pool.corruption(off, "a key record with its checksum", "another checksum"));
        }
        Ok(key)
    }

    fn verify(&self, off: u64, slot: usize, item: Item, meta: u16) -> Result<()> {
        if layout::meta(off, slot, item.0, item.1, item.2) == meta && item.2 <= RECORD {
            return Ok(());
        }
        Err(self.damaged_slot(off, slot))
    }

    #[cold]
    fn damaged_slot(&self, off: u64, slot: usize) -> Error {
        self.pool.corruption(
            off + slot_at(slot),
            format!("slot {slot} of a leaf with its check"),
            "another check",
        )
    }

    /// The low bound of the leaf at `off`, and the offset of the record that it is, or 0.
    pub(super) fn leaf_low(&self, off: u64) -> Result<(Bound, u64)> {
        let first = &self.leaf(off)?.blocks[0];
        let low = first.slots[12][1].load(Ordering::Relaxed);
        let kind = first.low_kind;
        if first.tag != LEAF_TAG || kind > RECORD || layout::low_crc(off, low, kind) != first.crc {
            return Err(self.pool.corruption(off, "a leaf with its checksum", "other bytes"));
        }
        if kind == RECORD {
            return Ok((Bound::Long(self.record_key(low)?.to_vec()), low));
        }
        Ok((Bound::Inline(low, kind), 0))
    }

    /// Bitmap and next leaf of the leaf at `off`, and what its proof says of them.
    pub(super) fn leaf_state(&self, off: u64) -> Result<(State, Proven)> {
        let first = &self.leaf(off)?.blocks[0];
        let state = (first.words[1].load(Ordering::Acquire), first.slots[12][0].load(Ordering::Acquire));
        Ok((state, layout::prove(off, first.words[0].load(Ordering::Acquire), state)))
    }

    /// The leaf after the one at `off`; 0 if it is the last.
    pub(super) fn next_leaf(&self, off: u64) -> Result<u64> {
        Ok(self.leaf(off)?.blocks[0].slots[12][0].load(Ordering::Acquire))
    }

    /// The item in slot `slot` of the leaf at `off`, checked; nobody changes it meanwhile.
    pub(super) fn item(&self, off: u64, slot: usize) -> Result<Item> {
        let (item, meta) = load(self.leaf(off)?, slot);
        self.verify(off, slot, item, meta)?;
        Ok(item)
    }

    /// Stores an item to a slot that does not count, and flushes it.
    pub(super) fn store_item(&self, off: u64, slot: usize, item: Item) -> Result<()> {
        let leaf = self.leaf(off)?;
        let (block, i) = place(slot);
        let block = &leaf.blocks[block];
        block.slots[i][0].store(item.0, Ordering::Relaxed);
        block.slots[i][1].store(item.1, Ordering::Relaxed);
        block.metas[i].store(layout::meta(off, slot, item.0, item.1, item.2), Ordering::Relaxed);
        let (at, meta) = (off + slot_at(slot), off + meta_at(slot));
        if at / 64 == meta / 64 {
            self.pool.flush(at, meta + 2 - at);
        } else {
            self.pool.flush(at, 16);
            self.pool.flush(meta, 2);
        }
        Ok(())
    }

    /// Takes a leaf's state from `old` to `new` by way of `middle`, durably: a crash leaves one of the three.
    /// All that the new state makes reachable has been drained.
    pub(super) fn store_state(&self, off: u64, old: State, middle: State, new: State) {
        let pool = &self.pool;
        pool.store_ordered(POff::new(off + PROOF_AT), layout::proof(off, old, middle, new));
        for (before, after) in [(old, middle), (middle, new)] {
            if before.1 != after.1 {
                pool.store_ordered(POff::new(off + NEXT_AT), after.1);
            }
            if before.0 != after.0 {
                pool.store_ordered(POff::new(off + BITMAP_AT), after.0);
            }
        }
        pool.persist(off + STATE_LINE_AT, 64);
    }

    /// A reserved and flushed key record. It becomes active with `activate`.
    pub(super) fn new_record(&self, key: &[u8]) -> Result<Slot> {
        let image = layout::encode_key(key);
        let slot = self.pool.reserve(kinds::SPTREE_KEY, image.len() as u64)?;
        self.pool.write(slot.offset, &image);
        self.pool.flush(slot.offset, image.len() as u64);
        Ok(slot)
    }
}

/// Loads the slots of a page in the order that the leaf says; false if they are not those of the bitmap.
fn read_order(leaf: &Leaf, bitmap: u64, page: &mut Page) -> bool {
    let count = bitmap.count_ones() as usize;
    let mut seen = 0u64;
    for (i, slots) in page.slots.chunks_exact_mut(8).enumerate().take(count.div_ceil(8)) {
        let word = leaf.blocks[1 + i / 2].words[i % 2].load(Ordering::Relaxed);
        slots.copy_from_slice(&(word & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes());
        slots.iter().take(count - i * 8).for_each(|slot| seen |= 1 << slot);
    }
    page.len = count;
    seen == bitmap
}

/// Loads the items of a page's slots.
fn load_items(leaf: &Leaf, page: &mut Page, metas: &mut [u16; SLOTS]) {
    for i in 0..page.len.min(SLOTS) {
        (page.items[i], metas[i]) = load(leaf, usize::from(page.slots[i]));
    }
}

/// Whether short keys ascend; of records nothing is said.
fn ascends(items: &[Item]) -> bool {
    items.windows(2).all(|pair| {
        pair.iter().any(|item| item.2 == RECORD) || (pair[0].0, pair[0].2) < (pair[1].0, pair[1].2)
    })
}
