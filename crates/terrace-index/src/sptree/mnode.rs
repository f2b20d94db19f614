//! Middle nodes: the data about each leaf in DRAM, with which a search touches PM only at the key's slot.
//!
//! Thread safety: the holder of the lock writes. Readers take no locks: they read the version before and after, and
//! their results count only if it has not changed. The lock does not keep readers out; only while fields change,
//! between [`Mnode::begin`] and [`Mnode::end`], do they wait, and then nothing is persisted. So readers always see
//! durable state: writers persist first and change the fields afterwards.
//!
//! Invariants:
//!
//! 1. The low bound of a node never changes while it lives, and its leaf only if that is moved (`moves`). Its high
//!    bound is the low one of the node to the right, or none in the last.
//! 2. The bitmap says which slots of the leaf count. The tags of those slots, and the filter, are those of their keys.
//! 3. A node that is dead is in no tree and never comes back as itself; its memory is used again only after
//!    everybody present has left.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use terrace_base::prefetch;

use super::arena::Shape;
use super::bound::{Bound, Bytes, UNBOUNDED, cmp_bound, copy_bound, keep};
use super::key::{INLINE_BYTES, Probe};
use crossbeam_utils::Backoff;

/// Held by a writer.
const LOCKED: u64 = 1;
/// Fields are changing.
const CHANGING: u64 = 2;
/// The node is no longer part of the tree.
const DEAD: u64 = 4;
/// The order in the leaf is that of its keys.
const SORTED: u64 = 8;
/// The top layer in PM names the leaf.
const IN_TOP: u64 = 16;
/// The number of the oldest log set with an entry of this buffer is odd.
const OLDEST_ODD: u64 = 32;
const COUNTER: u64 = 64;
/// The bits that may change without affecting readers.
const IGNORED: u64 = LOCKED | IN_TOP | OLDEST_ODD;

/// A middle node. Behind it lie as many words as the [`Arena`] was made for.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Mnode {
    lock: AtomicU64,
    leaf: AtomicU64,
    pub bitmap: AtomicU64,
    /// Word of the low bound, or the address of its bytes.
    pub low: AtomicU64,
    /// The same for the high bound.
    pub high: AtomicU64,
    /// Lengths of the bounds: the low one's in the low half.
    pub lens: AtomicU64,
    /// The node to the right, if it is known.
    pub next: AtomicPtr<Mnode>,
    /// First word of the filter; the others lie behind the node.
    filter: AtomicU64,
    tags: [AtomicU64; 8],
}

/// Bytes of a node without what lies behind it.
pub(super) const MNODE_BYTES: usize = 128;

const _: () = assert!(size_of::<Mnode>() == MNODE_BYTES && align_of::<Mnode>() == 64);

/// A version of a node, without the bits that do not affect readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Version {
    pub fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    pub fn is_sorted(self) -> bool {
        self.0 & SORTED != 0
    }
}

/// A lock on a node; unlocks when dropped.
#[derive(Debug)]
pub(super) struct Locked<'t>(pub &'t Mnode);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Nobody else stores to the word of a locked node.
        let word = self.0.lock.load(Ordering::Relaxed);
        self.0.lock.store(word & !LOCKED, Ordering::Release);
    }
}

impl Locked<'_> {
    /// Changes fields while readers wait. `sorted`: whether the leaf's order is right afterwards.
    pub fn change<T>(&self, sorted: bool, fields: impl FnOnce(&Mnode) -> T) -> T {
        let node = self.0;
        let before = node.lock.load(Ordering::Relaxed);
        node.lock.store(before | CHANGING, Ordering::Relaxed);
        fence(Ordering::Release);
        let out = fields(node);
        let flags = if sorted { before | SORTED } else { before & !SORTED };
        node.lock.store((flags & !CHANGING).wrapping_add(COUNTER), Ordering::Release);
        out
    }

    /// Marks the node dead.
    pub fn kill(&self) {
        self.change(false, |_| {});
        self.set(DEAD, true);
    }

    /// Notes whether the top layer names the leaf.
    pub fn set_in_top(&self, is: bool) {
        self.set(IN_TOP, is);
    }

    /// Notes whether the number of the oldest log set that holds an entry of the buffer is odd.
    pub fn set_oldest_odd(&self, is: bool) {
        self.set(OLDEST_ODD, is);
    }

    fn set(&self, flag: u64, is: bool) {
        let word = self.0.lock.load(Ordering::Relaxed);
        self.0.lock.store(if is { word | flag } else { word & !flag }, Ordering::Release);
    }
}

impl Mnode {
    pub fn leaf(&self) -> u64 {
        self.leaf.load(Ordering::Relaxed)
    }

    /// The version, once no fields are changing.
    pub fn version(&self) -> Version {
        let backoff = Backoff::new();
        loop {
            let word = self.lock.load(Ordering::Acquire);
            if word & CHANGING == 0 {
                return Version(word & !IGNORED);
            }
            backoff.snooze();
        }
    }

    /// Whether everything read since `version` was taken belongs together.
    pub fn is_still(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.lock.load(Ordering::Relaxed) & !IGNORED == version.0
    }

    pub fn is_dead(&self) -> bool {
        self.lock.load(Ordering::Acquire) & DEAD != 0
    }

    pub fn in_top(&self) -> bool {
        self.lock.load(Ordering::Relaxed) & IN_TOP != 0
    }

    pub fn oldest_odd(&self) -> bool {
        self.lock.load(Ordering::Relaxed) & OLDEST_ODD != 0
    }

    pub fn lock(&self) -> Locked<'_> {
        let backoff = Backoff::new();
        loop {
            match self.try_lock() {
                Some(locked) => return locked,
                None => backoff.snooze(),
            }
        }
    }

    pub fn try_lock(&self) -> Option<Locked<'_>> {
        let word = self.lock.load(Ordering::Relaxed);
        let free = word & LOCKED == 0
            && self.lock.compare_exchange(word, word | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Lazily: a lock that was not taken must not be dropped.
        free.then(|| Locked(self))
    }

    /// Initialises a node, which no other thread can reach yet, for `leaf`; it is locked.
    pub fn set_up(&self, leaf: u64, low: &Bound, high: &Bound) -> Locked<'_> {
        // The counter continues, so that a reader that remembers the node from an earlier life sees the change.
        let counter = (self.lock.load(Ordering::Relaxed) & !(COUNTER - 1)).wrapping_add(COUNTER);
        self.lock.store(counter | LOCKED, Ordering::Relaxed);
        self.leaf.store(leaf, Ordering::Relaxed);
        self.bitmap.store(0, Ordering::Relaxed);
        self.next.store(std::ptr::null_mut(), Ordering::Relaxed);
        let (low, low_len) = keep(low);
        let (high, high_len) = keep(high);
        self.low.store(low, Ordering::Relaxed);
        self.high.store(high, Ordering::Relaxed);
        self.lens.store(u64::from(high_len) << 32 | u64::from(low_len), Ordering::Relaxed);
        Locked(self)
    }

    /// Makes another leaf with the same items the node's, within a change.
    pub fn move_to(&self, leaf: u64) {
        self.leaf.store(leaf, Ordering::Relaxed);
    }

    /// The low bound.
    pub fn low(&self) -> Bound {
        let len = self.lens.load(Ordering::Relaxed) as u32;
        // SAFETY: the low bound never changes while the node lives, and the caller is present.
        unsafe { copy_bound(self.low.load(Ordering::Relaxed), len) }
    }

    /// Whether the low bound is `probe`'s key.
    pub fn is_low(&self, probe: &Probe<'_>) -> bool {
        let len = self.lens.load(Ordering::Relaxed) as u32;
        // SAFETY: as in `low`.
        unsafe { cmp_bound(probe, self.low.load(Ordering::Relaxed), len) }.is_eq()
    }

    /// The high bound, of this version; `None` if it has moved on.
    pub fn high(&self, version: Version) -> Option<Bound> {
        let (word, len) =
            (self.high.load(Ordering::Relaxed), (self.lens.load(Ordering::Relaxed) >> 32) as u32);
        // SAFETY: word and length belong together if the version has not moved on, and the caller is present.
        self.is_still(version).then(|| unsafe { copy_bound(word, len) })
    }

    /// Whether `probe` belongs here, as of this version; `None` if it has moved on.
    pub fn covers(&self, probe: &Probe<'_>, version: Version) -> Option<bool> {
        let lens = self.lens.load(Ordering::Relaxed);
        let (low, high) = (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed));
        if !self.is_still(version) {
            return None;
        }
        // SAFETY: words and lengths belong together, and the caller is present.
        let above = |word, len| unsafe { cmp_bound(probe, word, len) };
        Some(above(low, lens as u32).is_ge() && above(high, (lens >> 32) as u32).is_lt())
    }

    /// Whether the keys just below `probe` belong here, as of this version; `None` if it has moved on.
    pub fn covers_below(&self, probe: &Probe<'_>, version: Version) -> Option<bool> {
        let lens = self.lens.load(Ordering::Relaxed);
        let (low, high) = (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed));
        if !self.is_still(version) {
            return None;
        }
        // SAFETY: as in `covers`.
        let above = |word, len| unsafe { cmp_bound(probe, word, len) };
        Some(above(low, lens as u32).is_gt() && above(high, (lens >> 32) as u32).is_le())
    }

    /// Replaces the high bound, within a change. The bytes of the one before are handed out, to be retired.
    pub fn set_high(&self, high: &Bound) -> Option<Bytes> {
        let lens = self.lens.load(Ordering::Relaxed);
        let old = Bytes::of(self.high.load(Ordering::Relaxed), (lens >> 32) as u32);
        let (word, len) = keep(high);
        self.high.store(word, Ordering::Relaxed);
        self.lens.store(u64::from(len) << 32 | lens & 0xffff_ffff, Ordering::Relaxed);
        old
    }

    /// Bytes of DRAM that the bounds take beside the node.
    pub fn bound_bytes(&self) -> u64 {
        let lens = self.lens.load(Ordering::Relaxed);
        let of =
            |len: u32| if len == UNBOUNDED || len as usize <= INLINE_BYTES { 0 } else { u64::from(len) + 16 };
        of(lens as u32) + of((lens >> 32) as u32)
    }

    /// Starts loading the node's two lines.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::line(std::ptr::from_ref(self));
        prefetch::line(&raw const self.tags[7]);
    }

    /// Notes a key with this hash in slot `slot`, within a change.
    pub fn note(&self, shape: &Shape, slot: usize, hash: u16) {
        let (word, shift) = (&self.tags[slot / 8], (slot % 8) * 8);
        let others = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(others | u64::from(hash & 0xff) << shift, Ordering::Relaxed);
        self.note_filter(shape, hash);
    }

    /// Notes a key with this hash in the filter, within a change.
    pub fn note_filter(&self, shape: &Shape, hash: u16) {
        let (filter, bit) = self.filter_word(shape, hash);
        filter.store(filter.load(Ordering::Relaxed) | 1 << bit, Ordering::Relaxed);
    }

    /// Empties the filter, within a change.
    pub fn clear_filter(&self, shape: &Shape) {
        self.filter.store(0, Ordering::Relaxed);
        self.tail(shape)[..shape.filter_words - 1].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The slots whose keys may be one with this hash.
    #[inline]
    pub fn candidates(&self, shape: &Shape, hash: u16) -> u64 {
        let (filter, bit) = self.filter_word(shape, hash);
        if filter.load(Ordering::Relaxed) >> bit & 1 == 0 {
            return 0;
        }
        self.tagged(hash as u8) & self.bitmap.load(Ordering::Relaxed)
    }

    /// The slots with this tag.
    #[inline]
    fn tagged(&self, tag: u8) -> u64 {
        match_bytes(std::array::from_fn(|i| self.tags[i].load(Ordering::Relaxed)), tag)
    }

    fn filter_word(&self, shape: &Shape, hash: u16) -> (&AtomicU64, u32) {
        let at = u32::from(hash >> 8);
        let word = (at >> 6) as usize & (shape.filter_words - 1);
        let filter = if word == 0 { &self.filter } else { &self.tail(shape)[word - 1] };
        (filter, at & 63)
    }

    /// The words of the write buffer.
    pub fn buffer(&self, shape: &Shape) -> &[AtomicU64] {
        &self.tail(shape)[shape.filter_words - 1..]
    }

    fn tail(&self, shape: &Shape) -> &[AtomicU64] {
        // SAFETY: nodes come from an arena of this shape alone, which leaves this many words behind each; they are
        // atomic, zero at first, and live as long as the node.
        unsafe {
            let at = std::ptr::from_ref(self).cast::<u8>().add(MNODE_BYTES).cast::<AtomicU64>();
            std::slice::from_raw_parts(at, shape.tail_words())
        }
    }
}

/// Which of 64 bytes equal `tag`.
#[inline]
fn match_bytes(words: [u64; 8], tag: u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
        let mut out = 0;
        for i in 0..4 {
            // SAFETY: SSE2 is part of every x86-64 processor.
            let mask = unsafe {
                let pair = _mm_set_epi64x(words[2 * i + 1] as i64, words[2 * i] as i64);
                _mm_movemask_epi8(_mm_cmpeq_epi8(pair, _mm_set1_epi8(tag as i8)))
            };
            out |= u64::from(mask as u32 & 0xffff) << (16 * i);
        }
        out
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut out = 0;
        for (i, byte) in words.iter().flat_map(|word| word.to_le_bytes()).enumerate() {
            out |= u64::from(byte == tag) << i;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::arena::Arena;
    use super::*;

    const SHAPE: Shape = Shape { filter_words: 4, buffer_words: 32 };

    #[test]
    fn bounds_of_every_length_are_kept_and_compared() {
        let arena = Arena::new(SHAPE);
        let keys: [&[u8]; 6] = [b"", b"a", b"abcdefgh", b"abcdefghi", b"b", b"a long bound that goes on"];
        for low in keys {
            let node = arena.take();
            let high = Bound::new(b"az");
            drop(node.set_up(64, &Bound::new(low), &high));
            let version = node.version();
            assert_eq!(node.low(), Bound::new(low));
            assert_eq!(node.high(version), Some(high));
            for key in keys {
                let inside = low <= key && key < &b"az"[..];
                assert_eq!(node.covers(&Probe::new(key), version), Some(inside), "{low:?} {key:?}");
                let below = low < key && key <= &b"az"[..];
                assert_eq!(node.covers_below(&Probe::new(key), version), Some(below));
            }
        }
    }

    #[test]
    fn a_key_that_was_noted_is_a_candidate_and_few_others_are() {
        let arena = Arena::new(SHAPE);
        let node = arena.take();
        let locked = node.set_up(64, &Bound::new(b""), &Bound::None);
        let probes: Vec<_> = (0..44u64).map(|i| (i * 77).to_be_bytes()).collect();
        locked.change(false, |node| {
            for (slot, key) in probes.iter().enumerate() {
                node.note(&SHAPE, slot, Probe::new(key).hash);
            }
            node.bitmap.store((1 << 44) - 1, Ordering::Relaxed);
        });
        for (slot, key) in probes.iter().enumerate() {
            assert!(node.candidates(&SHAPE, Probe::new(key).hash) >> slot & 1 == 1);
        }
        let strangers = 10_000..14_000u64;
        let hits =
            strangers.filter(|i| node.candidates(&SHAPE, Probe::new(&i.to_be_bytes()).hash) != 0).count();
        assert!(hits < 250, "{hits} of 4000");
    }

    #[test]
    fn a_version_moves_with_every_change_and_with_a_new_life() {
        let arena = Arena::new(Shape { filter_words: 1, buffer_words: 0 });
        let node = arena.take();
        let locked = node.set_up(64, &Bound::new(b"some longer low bound"), &Bound::None);
        let version = node.version();
        locked.change(true, |_| {});
        assert!(!node.is_still(version) && node.version().is_sorted());
        locked.kill();
        assert!(node.is_dead() && node.version().is_dead());
        drop(locked);
        let before = node.version();
        // SAFETY: the only node of this arena, and not used any more.
        unsafe { arena.give(std::ptr::from_ref(node).cast_mut()) };
        let again = arena.take();
        drop(again.set_up(128, &Bound::new(b""), &Bound::None));
        assert!(!again.is_still(before) && !again.is_dead());
    }

    #[test]
    fn bytes_are_matched_as_one_by_one() {
        let words: [u64; 8] = std::array::from_fn(|i| (i as u64 + 1).wrapping_mul(0x0123_4567_89AB_CDEF));
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        for tag in 0..=255 {
            let want = (0..64).filter(|i| bytes[*i] == tag).fold(0u64, |m, i| m | 1 << i);
            assert_eq!(match_bytes(words, tag), want);
        }
    }
}
