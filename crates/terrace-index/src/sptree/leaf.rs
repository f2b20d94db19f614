//! Leaves in place: reading slots and key records, and storing to them.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result, prefetch};
use terrace_pmem::{POff, Slot};

use super::Core;
use super::bound::Bound;
use super::key::{Probe, inline_bytes};
use super::layout::{
    self, BITMAP_AT, Item, LEAF_TAG, Leaf, NEXT_AT, OFFSET_BITS, OFFSET_MASK, PROOF_AT, Proven, RECORD,
    STATE_LINE_AT, State, meta_at, place, slot_at,
};
use super::mnode::{Mnode, Version};
use crate::key_object::{KEY_HEAD_BYTES, KeyHead, encode_key, key_at};
use crate::kinds;

/// Bytes of a record with a short key.
pub(super) const RECORD_LINE: u64 = 64;

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

/// Item and meta of a slot as they are now.
pub(super) fn load(leaf: &Leaf, slot: usize) -> (Item, u16) {
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

    /// Starts loading the lines that a write to slot `slot` of the leaf touches.
    pub(super) fn prefetch_slot(&self, off: u64, slot: usize, state: bool) {
        if let Ok(leaf) = self.leaf(off) {
            let at = std::ptr::from_ref(leaf).cast::<i8>();
            prefetch::line(at.wrapping_add(slot_at(slot) as usize));
            prefetch::line(at.wrapping_add(meta_at(slot) as usize));
            if state {
                prefetch::line(at.wrapping_add(STATE_LINE_AT as usize));
            }
        }
    }

    /// Starts loading a whole leaf.
    pub(super) fn prefetch_leaf(&self, off: u64) {
        if let Ok(leaf) = self.leaf(off) {
            let at = std::ptr::from_ref(leaf).cast::<i8>();
            prefetch::lines(at, size_of::<Leaf>());
        }
    }

    /// The slot of `probe` and its contents, as of this version; `None` if it has moved on.
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

    /// The key in a slot whose record has been loaded.
    pub(super) fn loaded_key_of(&self, item: Item) -> Result<KeyRef<'_>> {
        match item.2 {
            RECORD => Ok(KeyRef::Record(self.loaded_key(item.0 & OFFSET_MASK)?)),
            _ => self.key_of(item),
        }
    }

    /// Loads the key records of items: they come at once instead of one after the other.
    pub(super) fn load_records(&self, items: &[Item]) {
        let records = items.iter().filter(|item| item.2 == RECORD);
        let ranges = records.map(|item| (item.0 & OFFSET_MASK, RECORD_LINE));
        ranges.clone().for_each(|(off, len)| self.pool.prefetch(off, len));
        self.pool.charge_reads(ranges);
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
        self.pool.charge_read(off, KEY_HEAD_BYTES + u64::from(head.klen));
        self.loaded_key(off)
    }

    /// The key of the record at `off`, which has been loaded, checked.
    fn loaded_key(&self, off: u64) -> Result<&[u8]> {
        // SAFETY: the caller's presence keeps the record from being freed.
        unsafe { key_at(&self.pool, off) }
    }

    pub(super) fn verify(&self, off: u64, slot: usize, item: Item, meta: u16) -> Result<()> {
        if layout::meta(self.pool.place(off), slot, item.0, item.1, item.2) == meta && item.2 <= RECORD {
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
        let crc = layout::low_crc(self.pool.place(off), low, kind);
        if first.tag != LEAF_TAG || kind > RECORD || crc != first.crc {
            return Err(self.pool.corruption(off, "a leaf with its checksum", "other bytes"));
        }
        if kind == RECORD {
            return Ok((Bound::Long(self.record_key(low)?.to_vec()), low));
        }
        Ok((Bound::Inline(low, kind), 0))
    }

    /// Bitmap and next leaf of the leaf at `off`, and the verdict of its proof.
    pub(super) fn leaf_state(&self, off: u64) -> Result<(State, Proven)> {
        let first = &self.leaf(off)?.blocks[0];
        let state = (first.words[1].load(Ordering::Acquire), first.slots[12][0].load(Ordering::Acquire));
        Ok((state, layout::prove(self.pool.place(off), first.words[0].load(Ordering::Acquire), state)))
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
        let sealed = layout::meta(self.pool.place(off), slot, item.0, item.1, item.2);
        block.slots[i][0].store(item.0, Ordering::Relaxed);
        block.slots[i][1].store(item.1, Ordering::Relaxed);
        block.metas[i].store(sealed, Ordering::Relaxed);
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
    /// Everything that the new state makes reachable has been drained.
    pub(super) fn store_state(&self, off: u64, old: State, middle: State, new: State) {
        let pool = &self.pool;
        pool.store_ordered(POff::new(off + PROOF_AT), layout::proof(pool.place(off), old, middle, new));
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
        self.new_record_in(None, key)
    }

    /// [`new_record`](Self::new_record) in a slot that is reserved, if there is one.
    pub(super) fn new_record_in(&self, reserved: Option<Slot>, key: &[u8]) -> Result<Slot> {
        let slot = match reserved {
            Some(slot) => slot,
            None => self.pool.reserve(kinds::SPTREE_KEY, KEY_HEAD_BYTES + key.len() as u64)?,
        };
        let image = encode_key(self.pool.place(slot.offset), key);
        self.pool.write(slot.offset, &image);
        self.pool.flush(slot.offset, image.len() as u64);
        Ok(slot)
    }
}
