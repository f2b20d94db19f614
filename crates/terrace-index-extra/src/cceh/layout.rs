//! The persistent structures of a table. `docs/formats/cceh.md` explains them.

use std::sync::atomic::{AtomicU32, AtomicU64};

use terrace_base::checksum::crc32c;
use terrace_index::parts::empty_head;
use terrace_pmem::pm_layout;

/// `TCCEH`, version 3, zeros.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TCCEH\x03\0\0");

/// Bytes of a bucket, a cache line.
pub(super) const BUCKET_BYTES: u64 = 64;
/// Slots of a bucket.
pub(super) const BUCKET_SLOTS: usize = 4;
/// Bytes of a slot: a key word and a value word.
pub(super) const SLOT_BYTES: u64 = 16;

/// Bytes of the smallest directory: entries lie where cache lines begin.
pub(super) const DIRECTORY_MIN_BYTES: u64 = 64;

/// Most bits of a hash that a directory tells apart. Below them lie the bits that choose the bucket.
pub(super) const MAX_DEPTH: u32 = 40;
/// Where the bits begin that choose the bucket.
pub(super) const BUCKET_SHIFT: u32 = 16;

/// The low bits of a key word that names a record.
const RECORD_BITS: u64 = 0xffff;

/// The head of a table: never changed but for what is atomic.
#[repr(C)]
pub(super) struct Header {
    pub magic: u64,
    pub buckets: u32,
    pub probe: u32,
    pub seed: u64,
    /// CRC-32C of the fields before it.
    pub crc: u32,
    pub totals_crc: AtomicU32,
    /// The directory: an [`Entry`] of index [`HEADER_INDEX`].
    pub directory: AtomicU64,
    /// At the last close.
    pub keys: AtomicU64,
    pub pair_bytes: AtomicU64,
    /// Head of the overflow (`overflow`).
    pub overflow: AtomicU64,
}

pub(super) const HEADER_BYTES: u64 = 64;

// SAFETY: fields that change while they are shared are atomic.
pm_layout! {
    unsafe Header: 64 {
        magic @ 0,
        buckets @ 8,
        probe @ 12,
        seed @ 16,
        crc @ 24,
        totals_crc @ 28,
        directory @ 32 as pub(super) DIRECTORY_AT,
        keys @ 40,
        pair_bytes @ 48,
        overflow @ 56 as pub(super) OVERFLOW_AT,
    }
}

const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);

/// A bucket: key and value words of its slots, one after the other.
pub(super) type Bucket = [AtomicU64; 2 * BUCKET_SLOTS];

const _: () = assert!(size_of::<Bucket>() as u64 == BUCKET_BYTES);

/// The index that the header's word is made for.
pub(super) const HEADER_INDEX: u64 = u64::MAX;

/// Where a segment (or the directory) lies and how many bits of the hash lead to it: a checked word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// A multiple of 64.
    pub offset: u64,
    pub depth: u32,
}

/// Bits of an offset, in lines.
const LINE_BITS: u32 = 42;
const DEPTH_BITS: u32 = 6;
const VALUE_BITS: u32 = LINE_BITS + DEPTH_BITS;

impl Entry {
    /// The word for this entry at place `index` of a directory.
    #[inline]
    pub fn encode(self, index: u64) -> u64 {
        let value = (self.offset / BUCKET_BYTES) | (u64::from(self.depth) << LINE_BITS);
        value | check(value, index) << VALUE_BITS
    }

    /// The entry in a word at place `index`, if it is a valid one.
    #[inline]
    pub fn decode(word: u64, index: u64) -> Option<Entry> {
        let value = word & ((1 << VALUE_BITS) - 1);
        let entry = Entry {
            offset: (value & ((1 << LINE_BITS) - 1)) * BUCKET_BYTES,
            depth: (value >> LINE_BITS) as u32,
        };
        (word >> VALUE_BITS == check(value, index) && entry.offset != 0 && entry.depth <= MAX_DEPTH)
            .then_some(entry)
    }
}

/// Sixteen bits over value and place: a word that was damaged, or strayed, fails with all but 1 in 65,536.
#[inline]
fn check(value: u64, index: u64) -> u64 {
    let mixed = (value ^ index.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> VALUE_BITS
}

/// The checksum of a header's constant fields.
pub(super) fn header_crc(magic: u64, buckets: u32, probe: u32, seed: u64) -> u32 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&magic.to_le_bytes());
    bytes[8..12].copy_from_slice(&buckets.to_le_bytes());
    bytes[12..16].copy_from_slice(&probe.to_le_bytes());
    bytes[16..].copy_from_slice(&seed.to_le_bytes());
    crc32c(&bytes)
}

/// The bytes of a new table's header at a place of the pool.
pub(super) fn encode_header(place: u64, buckets: u32, probe: u32, seed: u64, directory: Entry) -> [u8; 64] {
    let mut out = [0; HEADER_BYTES as usize];
    out[..8].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..12].copy_from_slice(&buckets.to_le_bytes());
    out[12..16].copy_from_slice(&probe.to_le_bytes());
    out[16..24].copy_from_slice(&seed.to_le_bytes());
    out[24..28].copy_from_slice(&header_crc(MAGIC, buckets, probe, seed).to_le_bytes());
    out[32..40].copy_from_slice(&directory.encode(HEADER_INDEX).to_le_bytes());
    out[56..].copy_from_slice(&empty_head(place.wrapping_add(OVERFLOW_AT)).to_le_bytes());
    out
}

/// The first `depth` bits of a hash, or of a key word: both have the same.
#[inline]
pub(super) fn prefix(hash: u64, depth: u32) -> u64 {
    // Two steps, since a shift by 64 is none.
    (hash >> 1) >> (63 - depth)
}

/// The key word of a key of 8 bytes with this hash, which the hash alone gives back; `None` for the few hashes
/// that mean an empty slot or a record.
#[inline]
pub(super) fn inline_word(hash: u64) -> Option<u64> {
    (hash != 0 && hash & RECORD_BITS != RECORD_BITS).then_some(hash)
}

/// The key word of a slot whose value word leads to a record.
#[inline]
pub(super) fn record_word(hash: u64) -> u64 {
    hash | RECORD_BITS
}

/// Whether a key word says that the value word leads to a record.
#[inline]
pub(super) fn names_record(key_word: u64) -> bool {
    key_word & RECORD_BITS == RECORD_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_header() {
        let header = encode_header(0x1000, 256, 4, 7, Entry { offset: 0x4_0000, depth: 3 });
        let hex: String = header.iter().map(|b| format!("{b:02x}")).collect();
        let crc: String =
            header_crc(MAGIC, 256, 4, 7).to_le_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex[..48], *"544343454803000000010000040000000700000000000000");
        assert_eq!(hex[48..56], *crc);
        assert_eq!(hex[64..74], *"0010000000");
        assert_eq!(hex[80..112], *"0".repeat(32));
        assert_eq!(hex[112..], *"00000000000043bf");
    }

    #[test]
    fn entries_come_back_and_flipped_bits_are_noticed() {
        for (index, depth) in [(0u64, 0u32), (1, 1), (77, 12), (HEADER_INDEX, 40)] {
            let entry = Entry { offset: 0x12_3440 + index % 1000 * 64, depth };
            let word = entry.encode(index);
            assert_eq!(Entry::decode(word, index), Some(entry));
            for bit in 0..64 {
                assert_eq!(Entry::decode(word ^ 1 << bit, index), None, "bit {bit}");
            }
            assert_eq!(Entry::decode(word, index ^ 1), None);
        }
        assert_eq!(Entry::decode(0, 0), None);
    }

    #[test]
    fn prefixes_are_the_first_bits() {
        let hash = 0xABCD_0000_0000_0001;
        assert_eq!([0, 4, 16, 40].map(|d| prefix(hash, d)), [0, 0xA, 0xABCD, 0xAB_CD00_0000]);
    }

    #[test]
    fn key_words_are_told_apart() {
        assert_eq!(inline_word(0x12), Some(0x12));
        assert_eq!([inline_word(0), inline_word(0x1_ffff)], [None, None]);
        assert!(names_record(record_word(0)) && !names_record(0x12) && !names_record(0));
        assert_eq!(prefix(record_word(0xABCD_EF00_0000_0000), 40), 0xAB_CDEF_0000);
    }
}
