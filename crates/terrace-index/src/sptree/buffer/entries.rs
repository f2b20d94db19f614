//! The words of a node's write buffer, and the keys in it that are boxes.
//!
//! ```text
//! word 0       entries (8 bits), then the sort of each entry's key (4 bits each)
//! words 1, 2   tags
//! words 3 ..   key word and word of each entry; word 0: the key is to be removed
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_pmem::Slot;

use crate::kinds;
use crate::sptree::arena::Shape;
use crate::sptree::key::{INLINE_BYTES, Probe};
use crate::sptree::layout::Item;
use crate::sptree::leaf::KeyRef;
use crate::sptree::mnode::Mnode;

/// Most entries of a buffer.
pub(in crate::sptree) const MAX_ENTRIES: usize = 14;

/// Words of a buffer: with those of its node six cache lines.
pub(in crate::sptree) const WORDS: usize = 32;

/// Sort of a key in a buffer that is a box: its word is the box's address.
pub(in crate::sptree) const BOXED: u8 = 10;

pub(super) const TAGS_AT: usize = 1;
pub(super) const ENTRIES_AT: usize = 3;

const _: () = assert!(ENTRIES_AT + 2 * MAX_ENTRIES <= WORDS && 8 + 4 * MAX_ENTRIES <= 64);

/// A boxed key: its own box is what a word can point to.
struct Boxed {
    key: Box<[u8]>,
    /// The slot that is reserved for its record; 0 if there is none. Taken under the node's lock.
    reserved: AtomicU64,
}

/// The entries of a buffer, copied out.
pub(in crate::sptree) type Entries = Vec<Item>;

/// The sort of a buffer's entry `i`, by its head.
pub(super) fn kind_at(head: u64, i: usize) -> u8 {
    (head >> (8 + 4 * i) & 15) as u8
}

/// How many entries a buffer with this head has.
pub(super) fn count_of(head: u64) -> usize {
    ((head & 0xff) as usize).min(MAX_ENTRIES)
}

/// The bytes of a boxed key.
///
/// # Safety
///
/// The entry is one of its buffer's, or was when the caller, who is still present, looked.
pub(in crate::sptree) unsafe fn boxed<'t>(key_word: u64) -> &'t [u8] {
    // SAFETY: by the caller's promise.
    &unsafe { boxed_whole(key_word) }.key
}

/// # Safety
///
/// As for [`boxed`].
unsafe fn boxed_whole<'t>(key_word: u64) -> &'t Boxed {
    // SAFETY: `keep_key` has made it; it is freed when nobody who was present then is any more.
    unsafe { &*(key_word as *const Boxed) }
}

/// Frees a boxed key.
///
/// # Safety
///
/// It has left its buffer and is not read any more.
pub(in crate::sptree) unsafe fn free_key(key_word: usize) {
    // SAFETY: `keep_key` has made it, and by the caller's promise it is not in use.
    drop(unsafe { Box::from_raw(key_word as *mut Boxed) });
}

/// Key word and sort of a key in a buffer, with the slot that is reserved for its record.
pub(super) fn keep_key(probe: &Probe<'_>, reserved: Option<Slot>) -> (u64, u8) {
    if probe.key.len() <= INLINE_BYTES {
        return (probe.word, probe.kind());
    }
    let reserved = AtomicU64::new(reserved.map_or(0, |slot| slot.offset));
    (Box::into_raw(Box::new(Boxed { key: probe.key.into(), reserved })) as u64, BOXED)
}

/// Takes the slot that is reserved for the record of an entry's key.
pub(super) fn take_reserved((key_word, _, kind): Item) -> Option<Slot> {
    if kind != BOXED {
        return None;
    }
    // SAFETY: the caller has the entry's node locked, or is the last one to have the entry.
    let offset = unsafe { boxed_whole(key_word) }.reserved.swap(0, Ordering::Relaxed);
    // A slot is identified without its length.
    (offset != 0).then_some(Slot { offset, bytes: 0, kind: kinds::SPTREE_KEY })
}

/// Frees the keys of a buffer that is no longer in use.
pub(in crate::sptree) fn free_keys(node: &Mnode, shape: &Shape) {
    for (key_word, _, kind) in entries(node, shape) {
        if kind == BOXED {
            // SAFETY: the node is not in use, so neither are its keys.
            unsafe { free_key(key_word as usize) };
        }
    }
    store(node, shape, &[]);
}

/// The entries of a node that does not change meanwhile, or of which the caller makes sure afterwards that it has not.
pub(in crate::sptree) fn entries(node: &Mnode, shape: &Shape) -> Entries {
    let Some(words) = node.buffer(shape).first_chunk::<WORDS>() else { return Entries::new() };
    let head = words[0].load(Ordering::Relaxed);
    let entry = |i: usize| {
        let at = ENTRIES_AT + 2 * i;
        (words[at].load(Ordering::Relaxed), words[at + 1].load(Ordering::Relaxed), kind_at(head, i))
    };
    (0..count_of(head)).map(entry).collect()
}

/// Makes `entries` those of the node, within a change.
pub(in crate::sptree) fn store(node: &Mnode, shape: &Shape, entries: &[Item]) {
    let Some(words) = node.buffer(shape).first_chunk::<WORDS>() else { return };
    let mut head = entries.len() as u64;
    let mut tags = [0u64; 2];
    for (i, (key_word, word, kind)) in entries.iter().enumerate() {
        words[ENTRIES_AT + 2 * i].store(*key_word, Ordering::Relaxed);
        words[ENTRIES_AT + 2 * i + 1].store(*word, Ordering::Relaxed);
        head |= u64::from(*kind) << (8 + 4 * i);
        tags[i / 8] |= u64::from(tag_of(*key_word, *kind)) << (i % 8 * 8);
    }
    words[0].store(head, Ordering::Relaxed);
    (0..2).for_each(|i| words[TAGS_AT + i].store(tags[i], Ordering::Relaxed));
}

pub(super) fn tag_of(key_word: u64, kind: u8) -> u8 {
    if kind != BOXED {
        return crate::sptree::key::hash_inline(key_word, kind) as u8;
    }
    // SAFETY: the caller has the node locked, so the entry stays.
    Probe::new(unsafe { boxed(key_word) }).hash as u8
}

/// The bytes among sixteen that equal `tag`.
pub(super) fn tagged(tags: [u64; 2], tag: u8) -> u64 {
    let ones = 0x0101_0101_0101_0101u64;
    let mut out = 0;
    for (i, word) in tags.into_iter().enumerate() {
        let differs = word ^ (ones * u64::from(tag));
        // Per byte: its high bit is set if any of its bits is.
        let any = (differs & !(ones << 7)).wrapping_add(!(ones << 7)) | differs;
        let equal = !any & ones << 7;
        // The eight high bits, packed.
        out |= (equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56 << (8 * i);
    }
    out
}

/// The key of a buffer's entry that is a box.
pub(in crate::sptree) fn boxed_key<'t>(key_word: u64) -> KeyRef<'t> {
    // SAFETY: entries are copied out under a version that is checked before their keys are looked at, or under the
    // node's lock, by those present.
    KeyRef::Record(unsafe { boxed(key_word) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_matched_as_bytes() {
        let tags = [0x00ff_8001_7f00_0180, 0x0102_0304_0506_0708];
        let bytes: Vec<u8> = tags.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        for tag in 0..=255 {
            let want = (0..16).filter(|i| bytes[*i] == tag).fold(0u64, |m, i| m | 1 << i);
            assert_eq!(tagged(tags, tag), want, "{tag}");
        }
    }
}
