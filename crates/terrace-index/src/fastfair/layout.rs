//! The bytes of a tree: its header, nodes, key records and key objects (`docs/formats/fastfair.md`).

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

use terrace_base::checksum::{crc32c, crc32c_append, crc32c_words};
use terrace_pmem::pm_layout;

use crate::key_object::encode_key_head;

/// The beginning of [`MAGIC`] in every version.
const NAME: [u8; 6] = *b"TFASTF";
/// The version of the format that this build writes and reads.
pub(super) const VERSION: u8 = 2;
/// First word of a tree's header: `TFASTF` and the version.
pub(super) const MAGIC: u64 = {
    let [a, b, c, d, e, f] = NAME;
    u64::from_le_bytes([a, b, c, d, e, f, VERSION, 0])
};

/// The version that the tree header at a place of the pool is of, if it is a sound one of another.
pub(super) fn other_version(head: &TreeHeader, place: u64) -> Option<u8> {
    let bytes = head.magic.to_le_bytes();
    let is_other = bytes[..6] == NAME && bytes[6] != VERSION && bytes[7] == 0;
    // Version 1 was not bound to a place.
    let first = crc32c_append(crc32c(&bytes), &head.fanout.to_le_bytes());
    let is_sound = head.crc == first || head.crc == header_crc(head.magic, place, head.fanout);
    (is_other && is_sound).then_some(bytes[6])
}

/// Where a tree begins; named by a root of the pool.
#[repr(C)]
#[derive(Debug)]
pub(super) struct TreeHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// The root node.
    pub root: AtomicU64,
    /// Entries of a node.
    pub fanout: u32,
    /// CRC-32C of magic, fanout and the header's place.
    pub crc: u32,
    /// Keys at the last close.
    pub keys: AtomicU64,
    /// Bytes held at the last close.
    pub bytes: AtomicU64,
    /// Checksum of the two with the generation that wrote them.
    pub totals_crc: AtomicU32,
    /// Zero.
    pub reserved: u32,
    /// Generation of the last open after an unclean end: nodes that were last locked before it may need repair.
    pub unclean: AtomicU64,
    /// Zero.
    pub reserved2: u64,
}

/// Bytes of the tree header.
pub(super) const TREE_HEADER_BYTES: u64 = 64;

/// One entry of a node.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Entry {
    /// Eight key bytes after the node's skip, big-endian, zeros past the key's end.
    pub slice: AtomicU64,
    /// [Sealed](seal): leaf: the key record; inner: the child; 0: no entry here nor after.
    pub ptr: AtomicU64,
}

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: u64 = 16;

/// A node of `N` entries. The first four words never change.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Node<const N: usize> {
    /// CRC-32C of level, skip, low, high, prefix and the node's place.
    pub crc: u32,
    /// Leading key bytes that entries need not tell apart.
    pub skip: u16,
    /// 0 in leaves.
    pub level: u8,
    /// [`NODE_TAG`].
    pub tag: u8,
    /// Key object: the least key that belongs here. 0: no bound.
    pub low: u64,
    /// Key object: the least key that belongs to the right. 0: no bound.
    pub high: u64,
    /// Key object of `skip` bytes that all entries share, where the fences alone do not say so; else 0.
    pub prefix: u64,
    /// Right sibling, 0 in the last.
    pub next: AtomicU64,
    /// The node that has replaced this one, and [`NOT_DURABLE`]; 0 while this one lives.
    pub forward: AtomicU64,
    /// The left sibling that this node is being merged with; 0 mostly.
    pub merge: AtomicU64,
    /// Volatile: generation, counter, direction, locked (`lock`).
    pub lock: AtomicU64,
    /// Ascending; ends at the first `ptr` of 0.
    pub entries: [Entry; N],
}

/// Bytes of a node before its entries.
pub(super) const NODE_HEADER_BYTES: u64 = 64;
/// Set in `forward` until the link is known to be durable.
pub(super) const NOT_DURABLE: u64 = 1;
/// Last byte of a node's first word.
pub(super) const NODE_TAG: u8 = 0xF1;

/// The fixed part of a key record: the word cell, then the key. The word and the checksum are in one line of the
/// cache, since slots are aligned to 16 bytes: a line from elsewhere never brings a word without its checksum.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RecordHead {
    /// The key's word; 0: the key is absent.
    pub word: AtomicU64,
    /// The key's checksum at the record's place (`key_object`).
    pub crc: u32,
    /// Bytes of the key.
    pub klen: u16,
    /// Zero.
    pub reserved: u16,
    /// Volatile: changes in flight (`word_cell`).
    pub state: AtomicU64,
}

/// Bytes of a record before its key.
pub(super) const RECORD_HEAD_BYTES: u64 = 24;

/// Bytes of a record with a short key.
pub(super) const RECORD_LINE: u64 = 64;

const _: () = {
    assert!(size_of::<TreeHeader>() == TREE_HEADER_BYTES as usize);
    assert!(size_of::<Entry>() == ENTRY_BYTES as usize);
    assert!(size_of::<Node<28>>() == 512 && size_of::<Node<4>>() == 128);
    assert!(offset_of!(Node<28>, entries) == NODE_HEADER_BYTES as usize);
    assert!(size_of::<RecordHead>() == RECORD_HEAD_BYTES as usize);
};

// SAFETY: fields that change while they are shared are atomic.
pm_layout! {
    unsafe TreeHeader: 64 {
        magic @ 0,
        root @ 8 as pub(super) ROOT_AT,
        fanout @ 16,
        crc @ 20,
        keys @ 24,
        bytes @ 32,
        totals_crc @ 40,
        reserved @ 44,
        unclean @ 48 as pub(super) UNCLEAN_AT,
        reserved2 @ 56,
    }
    unsafe Entry: 16 { slice @ 0, ptr @ 8 }
    unsafe RecordHead: 24 { word @ 0, crc @ 8, klen @ 12, reserved @ 14, state @ 16 }
}

// SAFETY: as above.
pm_layout! {
    unsafe Node<const N: usize>: 64 + 16 * N, {
        crc @ 0,
        skip @ 4,
        level @ 6,
        tag @ 7,
        low @ 8,
        high @ 16,
        prefix @ 24,
        next @ 32 as pub(super) NEXT_AT,
        forward @ 40 as pub(super) FORWARD_AT,
        merge @ 48 as pub(super) MERGE_AT,
        lock @ 56,
        entries @ 64,
    }
}

/// Bytes of a node of `n` entries.
pub(super) const fn node_bytes(n: usize) -> u64 {
    NODE_HEADER_BYTES + n as u64 * ENTRY_BYTES
}

/// Bits of a sealed word that are its value: pools are smaller.
const VALUE_BITS: u32 = 48;
/// The value of a sealed word that was written elsewhere: it leads nowhere, and does not end a node.
pub(super) const STRAY: u64 = u64::MAX;

/// Sixteen bits that bind `value` to a place.
#[inline]
fn check_bits(place: u64, value: u64) -> u64 {
    let mixed = (value ^ place.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> VALUE_BITS
}

/// The word of an entry at a place of the pool that leads to `ptr`, or nowhere if that is 0.
#[inline]
pub(super) fn seal(place: u64, ptr: u64) -> u64 {
    ptr | check_bits(place, ptr) << VALUE_BITS
}

/// The value of an entry's word that is known to belong to its place.
#[inline]
pub(super) fn value_of(word: u64) -> u64 {
    word & ((1 << VALUE_BITS) - 1)
}

/// Where an entry's word, read from a place of the pool, leads; [`STRAY`] if it was written elsewhere.
#[inline]
pub(super) fn unseal(place: u64, word: u64) -> u64 {
    let value = value_of(word);
    if word >> VALUE_BITS == check_bits(place, value) { value } else { STRAY }
}

/// The bytes of a tree header at a place of the pool.
pub(super) fn encode_header(place: u64, root: u64, fanout: u32) -> [u8; TREE_HEADER_BYTES as usize] {
    let mut out = [0; TREE_HEADER_BYTES as usize];
    out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..16].copy_from_slice(&root.to_le_bytes());
    out[16..20].copy_from_slice(&fanout.to_le_bytes());
    out[20..24].copy_from_slice(&header_crc(MAGIC, place, fanout).to_le_bytes());
    out
}

/// The checksum in a tree header at a place of the pool.
pub(super) fn header_crc(magic: u64, place: u64, fanout: u32) -> u32 {
    let crc = crc32c_append(crc32c(&magic.to_le_bytes()), &fanout.to_le_bytes());
    crc32c_append(crc, &place.to_le_bytes())
}

/// The place of entry `i` of a node at a place.
#[inline]
pub(super) fn entry_place(place: u64, i: usize) -> u64 {
    place.wrapping_add(NODE_HEADER_BYTES + i as u64 * ENTRY_BYTES)
}

/// The fields of a node besides its entries and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeFields {
    pub level: u8,
    pub skip: u16,
    pub low: u64,
    pub high: u64,
    pub prefix: u64,
}

impl NodeFields {
    /// Checksum of the fields of a node at a place of the pool.
    #[inline]
    pub fn crc(&self, place: u64) -> u32 {
        let [a, b] = self.skip.to_le_bytes();
        let head = u64::from(u32::from_le_bytes([a, b, self.level, NODE_TAG]));
        crc32c_words([place, head, self.low, self.high, self.prefix])
    }

    /// The whole image of a node at a place of the pool, with room for `n` entries and the lock word `lock`.
    pub fn encode(&self, place: u64, next: u64, lock: u64, entries: &[(u64, u64)], n: usize) -> Vec<u8> {
        let mut out = vec![0; node_bytes(n) as usize];
        out[0..4].copy_from_slice(&self.crc(place).to_le_bytes());
        out[4..6].copy_from_slice(&self.skip.to_le_bytes());
        out[6] = self.level;
        out[7] = NODE_TAG;
        out[8..16].copy_from_slice(&self.low.to_le_bytes());
        out[16..24].copy_from_slice(&self.high.to_le_bytes());
        out[24..32].copy_from_slice(&self.prefix.to_le_bytes());
        out[32..40].copy_from_slice(&next.to_le_bytes());
        out[56..64].copy_from_slice(&lock.to_le_bytes());
        let slots = out[NODE_HEADER_BYTES as usize..].chunks_exact_mut(ENTRY_BYTES as usize);
        for (i, slot) in slots.enumerate() {
            let (slice, ptr) = entries.get(i).copied().unwrap_or((0, 0));
            slot[..8].copy_from_slice(&slice.to_le_bytes());
            slot[8..].copy_from_slice(&seal(entry_place(place, i), ptr).to_le_bytes());
        }
        out
    }
}

/// The bytes of a key record at a place of the pool whose link is in flight in `state`.
pub(super) fn encode_record(place: u64, key: &[u8], word: u64, state: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_HEAD_BYTES as usize + key.len());
    out.extend(word.to_le_bytes());
    out.extend(encode_key_head(place, key));
    out.extend(state.to_le_bytes());
    out.extend_from_slice(key);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_node() {
        let fields = NodeFields { level: 1, skip: 3, low: 0x10, high: 0x20, prefix: 0x30 };
        let image = fields.encode(512, 0x40, 3 << 32, &[(0x6162, 0x50), (0x6364, 0x60)], 4);
        assert_eq!(image.len(), 128);
        assert_eq!(image[0..4], [62, 31, 216, 56]);
        assert_eq!(&image[4..8], [3, 0, 1, 0xF1]);
        assert_eq!(
            &image[8..40],
            [
                0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0,
                0, 0, 0, 0, 0
            ]
        );
        assert_eq!(&image[40..60], [0; 20], "forward and merge start empty");
        assert_eq!(&image[60..64], [3, 0, 0, 0], "the lock word's generation");
        let words: Vec<u64> =
            image[64..].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let sealed = [
            0x6162,
            0x912b_0000_0000_0050,
            0x6364,
            0x4327_0000_0000_0060,
            0,
            0x26c6_0000_0000_0000,
            0,
            0xd84e_0000_0000_0000,
        ];
        assert_eq!(words, sealed);
        assert_ne!(fields.crc(512), fields.crc(1024), "bound to the place");
    }

    #[test]
    fn golden_record_and_header() {
        let record = encode_record(0x100, b"key", 9, state_of(2));
        assert_eq!(&record[..8], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&record[8..12], [55, 23, 217, 229]);
        assert_eq!(&record[12..], [3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, b'k', b'e', b'y']);
        let header = encode_header(0x300, 0x200, 28);
        assert_eq!(&header[..20], *b"TFASTF\x02\0\0\x02\0\0\0\0\0\0\x1c\0\0\0");
        assert_eq!(&header[20..24], [32, 221, 175, 206]);
        assert_eq!(&header[24..], [0; 40]);
        assert_ne!(header, encode_header(0x340, 0x200, 28), "bound to the place");
    }

    #[test]
    fn entries_lead_somewhere_only_where_they_were_written() {
        for ptr in [0, 16, 0x1234_5670, (1 << 48) - 16] {
            for place in [64, 80, 0xFEDC_BA98_7654_3210] {
                let word = seal(place, ptr);
                assert_eq!(unseal(place, word), ptr);
                (0..64).for_each(|bit| assert_eq!(unseal(place, word ^ 1 << bit), STRAY, "bit {bit}"));
                (1..64).for_each(|i| assert_eq!(unseal(place + 16 * i, word), STRAY, "{i} further"));
            }
        }
    }

    fn state_of(generation: u64) -> u64 {
        crate::word_cell::state_in_flight(generation)
    }
}
