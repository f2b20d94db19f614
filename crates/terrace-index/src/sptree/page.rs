//! Pages: the items of a leaf in the order of their keys, or the part of them that a scan wants.
//!
//! A leaf is unsorted. A scan that sorts its items leaves their order in it for the next scan. The node's version tells
//! whether that order still holds, so a session uses only an order that it has left itself, and checks it against
//! bitmap and keys.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::Core;
use super::key::Probe;
use super::layout::Leaf;
use super::layout::{self, Item, RECORD, SLOTS};
use super::leaf::load;
use super::mnode::{Mnode, Version};
use super::order;

/// A view of a leaf: the items of its slots, in the order of their keys.
pub(super) struct Page {
    pub items: [Item; PAGE],
    /// The slots that a leaf's items are from; of no meaning once a buffer's items are among them.
    pub slots: [u8; SLOTS],
    pub len: usize,
    /// Whether the records of its items are loaded, or on their way.
    loaded: bool,
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
        Page { items: [(0, 0, 0); PAGE], slots: [0; SLOTS], len: 0, loaded: false }
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

impl Core {
    /// All items, in the order of their keys, as of this version; `None` if it has moved on.
    pub(super) fn page(&self, node: &Mnode, version: Version, page: &mut Page) -> Result<Option<()>> {
        let off = node.leaf();
        let leaf = self.leaf(off)?;
        self.prefetch_leaf(off);
        self.pool.charge_read(off, layout::LEAF_BYTES);
        let bitmap = node.bitmap.load(Ordering::Relaxed);
        let mut metas = [0; SLOTS];
        page.loaded = false;
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

    /// The items of [`page`](Self::page) that are part of a scan. It reads only these if the leaf's order is known.
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
        // A binary search: items below `low` are before the bound, items from `high` on are not. A scan that comes from
        // the leaf beside this one wants all of it.
        let (mut low, mut high) = match (part.including, part.reverse) {
            (true, false) if node.is_low(part.probe) => (0, 0),
            _ => (0, page.len),
        };
        let mut metas = [0; SLOTS];
        page.loaded = false;
        // One record after the other would be waited for: they are loaded together.
        let records = low < high && is_record(leaf, page.slots[0]);
        if records {
            load_items(leaf, page, &mut metas);
            if !node.is_still(version) {
                return Ok(None);
            }
            self.load_page(page);
        }
        while low < high {
            let mid = (low + high) / 2;
            let slot = usize::from(page.slots[mid]);
            let (item, meta) = load(leaf, slot);
            if !node.is_still(version) {
                return Ok(None);
            }
            self.verify(off, slot, item, meta)?;
            let order = match records {
                true => self.loaded_key_of(item)?.bytes().cmp(part.probe.key),
                false => self.cmp_item(item, part.probe)?,
            };
            if part.is_before(order) { low = mid + 1 } else { high = mid }
        }
        let (mut from, mut end) = if part.reverse { (0, low) } else { (low, page.len) };
        part.limit(&mut from, &mut end);
        page.slots.copy_within(from..end, 0);
        page.len = end - from;
        load_items(leaf, page, &mut metas);
        if !node.is_still(version) {
            return Ok(None);
        }
        self.verify_items(off, page, &metas)?;
        Ok(Some(ascends(page.items())))
    }

    /// Loads the records of a page's items, together.
    pub(super) fn load_page(&self, page: &mut Page) {
        if !std::mem::replace(&mut page.loaded, true) {
            self.load_records(page.items());
        }
    }

    fn verify_items(&self, off: u64, page: &Page, metas: &[u16; SLOTS]) -> Result<()> {
        let slots = page.slots.iter().zip(metas).take(page.len);
        page.items()
            .iter()
            .zip(slots)
            .try_for_each(|(item, (slot, meta))| self.verify(off, usize::from(*slot), *item, *meta))
    }

    fn sort(&self, page: &mut Page) -> Result<()> {
        let (items, slots, len) = (page.items, page.slots, page.len);
        let put = |page: &mut Page, order: &mut dyn Iterator<Item = usize>| {
            for (i, at) in order.enumerate() {
                (page.items[i], page.slots[i]) = (items[at], slots[at]);
            }
        };
        if page.items().iter().all(|item| item.2 != RECORD) {
            let mut words = [u64::MAX; SLOTS];
            words.iter_mut().zip(page.items()).for_each(|(word, item)| *word = item.0);
            if let Some(order) = order::ascending(&words, len) {
                put(page, &mut order[..len].iter().map(|place| usize::from(*place)));
                return Ok(());
            }
            // Keys that differ in zeros at their ends alone.
        }
        self.load_page(page);
        let keys = page.items().iter().map(|item| self.loaded_key_of(*item)).collect::<Result<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_unstable_by(|a, b| keys[*a].bytes().cmp(keys[*b].bytes()));
        put(page, &mut order.into_iter());
        Ok(())
    }

    /// Leaves the order of a page's slots in the leaf for later scans, unless somebody is changing it. It is never
    /// flushed, and a later open does not use it.
    fn keep_order(&self, node: &Mnode, version: Version, page: &Page) {
        let Some(_touching) = self.pool.touching(node.leaf(), layout::LEAF_BYTES) else { return };
        let Some(locked) = node.try_lock() else { return };
        let (true, Ok(leaf)) = (node.is_still(version), self.leaf(node.leaf())) else { return };
        locked.change(true, |_| {
            for (i, slots) in page.slots.chunks_exact(8).enumerate() {
                let word = slots.iter().rev().fold(0, |word, slot| word << 8 | u64::from(*slot));
                leaf.blocks[1 + i / 2].words[i % 2].store(word, Ordering::Relaxed);
            }
        });
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

fn is_record(leaf: &Leaf, slot: u8) -> bool {
    load(leaf, usize::from(slot)).0.2 == RECORD
}

/// Loads the items of a page's slots.
fn load_items(leaf: &Leaf, page: &mut Page, metas: &mut [u16; SLOTS]) {
    let places = page.items.iter_mut().zip(metas);
    for ((item, meta), slot) in places.zip(&page.slots).take(page.len) {
        (*item, *meta) = load(leaf, usize::from(*slot));
    }
}

/// Whether short keys ascend; of records nothing is said.
fn ascends(items: &[Item]) -> bool {
    items.windows(2).all(|pair| {
        pair.iter().any(|item| item.2 == RECORD) || (pair[0].0, pair[0].2) < (pair[1].0, pair[1].2)
    })
}
