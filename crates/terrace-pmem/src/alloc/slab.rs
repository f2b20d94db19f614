//! A slab: one extent of equal slots, with a bitmap of the active ones in the pool and one of the taken ones in
//! DRAM. Taken is active or reserved.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_base::checksum::crc32c;
use zerocopy::{FromBytes, IntoBytes};

use super::Kind;
use super::class::{Geometry, SLOTS_PER_WORD};
use crate::layout::{SLAB_MAGIC, SlabHeader};
use crate::offset::POff;
use crate::pool::Pool;
use crate::word::{self, Tag};

#[derive(Debug)]
pub(crate) struct Slab {
    pub(super) unit: u64,
    pub(super) offset: u64,
    pub(super) kind: Kind,
    pub(super) class: usize,
    pub(super) geometry: Geometry,
    /// The stripe whose list it is on or goes to.
    pub(super) stripe: AtomicU8,
    /// Its place on that list, under the list's lock.
    pub(super) place: AtomicUsize,
    pub(super) state: Mutex<SlabState>,
}

#[derive(Debug, Default)]
pub(super) struct SlabState {
    /// Bits of the slots taken, 48 a word.
    taken: Vec<u64>,
    /// Bits of the slots active at an unclean open and not accounted for since; empty if there are none.
    inherited: Vec<u64>,
    /// Bits of the slots whose bits in the pool reclaiming cleared, and which stay taken until they are freed or
    /// released; empty if there are none.
    reclaimed: Vec<u64>,
    pub free: u32,
    /// Word where the search for a free slot begins.
    hint: usize,
    /// On its stripe's list of slabs with free slots.
    pub listed: bool,
    /// Given back to the extents; it must not be used any more.
    pub retired: bool,
    /// Set aside: on no list, so that it can become empty.
    pub aside: bool,
    /// Held by a thread that empties it: it is set aside, and not given back.
    pub held: bool,
}

impl Slab {
    /// Writes and drains the head and bitmap of a new slab in a reserved extent.
    pub(super) fn format(pool: &Pool, unit: u64, kind: Kind, class: usize, geometry: Geometry) -> Slab {
        let offset = unit * pool.extent_bytes();
        let header = SlabHeader {
            magic: SLAB_MAGIC,
            kind: u32::from(kind.0),
            class_bytes: geometry.class_bytes,
            slots: geometry.slots,
            data_at: geometry.data_at,
            reserved: 0,
            offset,
            reserved2: [0; 28],
            crc: 0,
        }
        .sealed();
        let slab = Slab::with_state(unit, offset, kind, class, geometry);
        let mut bytes = header.as_bytes().to_vec();
        for word in 0..geometry.words() {
            bytes.extend(word::seal(Tag::Bitmap, slab.word_at(word).get(), 0).to_le_bytes());
        }
        pool.copy_persist(offset, &bytes);
        slab
    }

    fn with_state(unit: u64, offset: u64, kind: Kind, class: usize, geometry: Geometry) -> Slab {
        let state = SlabState {
            taken: vec![0; geometry.words() as usize],
            free: geometry.slots,
            ..SlabState::default()
        };
        let (stripe, place) = (AtomicU8::new(0), AtomicUsize::new(0));
        Slab { unit, offset, kind, class, geometry, stripe, place, state: Mutex::new(state) }
    }

    /// Reads the slab in `unit`.
    pub(super) fn load(pool: &Pool, unit: u64, inherit: bool) -> Result<Slab> {
        let offset = unit * pool.extent_bytes();
        let (header, geometry, class) = Self::read_header(pool, offset)?;
        let slab = Slab::with_state(unit, offset, Kind(header.kind as u8), class, geometry);
        {
            let mut state = slab.state.lock();
            for word in 0..geometry.words() {
                let active = slab.active(pool, word)?;
                state.taken[word as usize] = active;
                state.free -= active.count_ones();
            }
            if inherit {
                state.inherited = state.taken.clone();
            }
        }
        Ok(slab)
    }

    /// The verified head of the slab at `offset`.
    pub(super) fn read_header(pool: &Pool, offset: u64) -> Result<(SlabHeader, Geometry, usize)> {
        let header =
            SlabHeader::read_from_bytes(&pool.copy_out::<64>(offset)).expect("64 bytes are a header");
        let geometry = Geometry::from_header(&header, pool.extent_bytes());
        let class = super::class::class_of(header.class_bytes);
        match (geometry, class) {
            (Some(geometry), Some(class))
                if header.is_sound() && header.offset == offset && (1..256).contains(&header.kind) =>
            {
                Ok((header, geometry, class))
            }
            _ => {
                let crc = crc32c(&header.as_bytes()[..60]);
                Err(pool.corruption(
                    offset,
                    "a sound slab head",
                    format!("{header:?}, of which the CRC is {crc:#x}"),
                ))
            }
        }
    }

    /// Where bitmap word `word` is.
    pub(super) fn word_at(&self, word: u32) -> POff<u64> {
        POff::new(self.offset + size_of::<SlabHeader>() as u64 + u64::from(word) * 8)
    }

    /// The verified bits of bitmap word `word`.
    pub(super) fn active(&self, pool: &Pool, word: u32) -> Result<u64> {
        let at = self.word_at(word);
        let stored = pool.atomic(at).load(Ordering::Acquire);
        word::unseal(Tag::Bitmap, at.get(), stored)
            .filter(|bits| bits & !self.geometry.mask(word) == 0)
            .ok_or_else(|| pool.corruption(at.get(), "a sound slab bitmap word", format!("{stored:#018x}")))
    }

    /// Stores and flushes bitmap word `word`. The slab's state is locked.
    pub(super) fn set_active(&self, pool: &Pool, word: u32, bits: u64) {
        let at = self.word_at(word);
        pool.store_flush(at, word::seal(Tag::Bitmap, at.get(), bits));
    }

    /// The slot that begins at `offset`.
    pub(super) fn slot_at(&self, offset: u64) -> Option<u32> {
        let into = offset.checked_sub(self.offset + u64::from(self.geometry.data_at))?;
        let class = u64::from(self.geometry.class_bytes);
        let slot = u32::try_from(into / class).ok()?;
        (into % class == 0 && slot < self.geometry.slots).then_some(slot)
    }

    /// Where a slot begins.
    pub(super) fn offset_of(&self, slot: u32) -> u64 {
        self.offset
            + u64::from(self.geometry.data_at)
            + u64::from(slot) * u64::from(self.geometry.class_bytes)
    }

    /// Bytes of DRAM that it takes: itself, its places on lists, and two bitmaps, one of which exists only after a
    /// crash.
    pub(super) fn dram_bytes(&self) -> i64 {
        let words = 2 * i64::from(self.geometry.words());
        (size_of::<Self>() + 3 * size_of::<usize>()) as i64 + 8 * words
    }

    pub(super) fn is_empty(&self, state: &SlabState) -> bool {
        state.free == self.geometry.slots
    }
}

/// A slot's word and its bit in it.
pub(super) fn bit(slot: u32) -> (u32, u64) {
    (slot / SLOTS_PER_WORD, 1 << (slot % SLOTS_PER_WORD))
}

impl SlabState {
    /// Takes a free slot.
    pub(super) fn take(&mut self, geometry: &Geometry) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let words = self.taken.len();
        for word in (self.hint..words).chain(0..self.hint) {
            let open = !self.taken[word] & geometry.mask(word as u32);
            if open != 0 {
                self.taken[word] |= open & open.wrapping_neg();
                self.hint = word;
                self.free -= 1;
                return Some(word as u32 * SLOTS_PER_WORD + open.trailing_zeros());
            }
        }
        None
    }

    pub(super) fn is_taken(&self, slot: u32) -> bool {
        let (word, bit) = bit(slot);
        self.taken[word as usize] & bit != 0
    }

    /// Bits of the slots taken in a word.
    pub(super) fn taken(&self, word: u32) -> u64 {
        self.taken[word as usize]
    }

    /// Gives a slot back.
    pub(super) fn give(&mut self, slot: u32) {
        let (word, bit) = bit(slot);
        debug_assert!(self.taken[word as usize] & bit != 0);
        self.taken[word as usize] &= !bit;
        self.free += 1;
        self.disinherit(slot);
    }

    fn disinherit(&mut self, slot: u32) {
        let (word, bit) = bit(slot);
        if let Some(bits) = self.inherited.get_mut(word as usize) {
            *bits &= !bit;
        }
    }

    /// The inherited slots that `marked` (48 bits a word, or nothing) does not hold.
    pub(super) fn orphans(&self, marked: Option<&[u64]>) -> Vec<u32> {
        let marked = |word: usize| marked.and_then(|m| m.get(word)).copied().unwrap_or(0);
        let of = |word: usize| self.inherited[word] & !marked(word);
        slots_in(self.inherited.len(), of)
    }

    pub(super) fn forget_inheritance(&mut self) {
        self.inherited = Vec::new();
    }

    /// The slots of bitmap word `word` that are still inherited.
    pub(super) fn inherited(&self, word: u32) -> u64 {
        self.inherited.get(word as usize).copied().unwrap_or(0)
    }

    /// Notes that the slot's bit in the pool was cleared.
    pub(super) fn reclaim(&mut self, slot: u32) {
        self.disinherit(slot);
        let (word, bit) = bit(slot);
        self.reclaimed.resize(self.taken.len(), 0);
        self.reclaimed[word as usize] |= bit;
    }

    /// Whether the slot was reclaimed; from now on it is not.
    pub(super) fn forget_reclaimed(&mut self, slot: u32) -> bool {
        let (word, bit) = bit(slot);
        let Some(bits) = self.reclaimed.get_mut(word as usize) else { return false };
        let was = *bits & bit != 0;
        *bits &= !bit;
        was
    }

    pub(super) fn all_reclaimed(&self) -> Vec<u32> {
        slots_in(self.reclaimed.len(), |word| self.reclaimed[word])
    }
}

/// The slots whose bits are set in `words` words.
pub(super) fn slots_in(words: usize, bits_of: impl Fn(usize) -> u64) -> Vec<u32> {
    let mut slots = Vec::new();
    for word in 0..words {
        let mut bits = bits_of(word);
        while bits != 0 {
            slots.push(word as u32 * SLOTS_PER_WORD + bits.trailing_zeros());
            bits &= bits - 1;
        }
    }
    slots
}
