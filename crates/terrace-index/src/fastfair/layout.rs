//! The bytes of a tree: its header, nodes, key records and key objects (`docs/formats/fastfair.md`).

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_pmem::PmSafe;

use crate::word_cell::CELL_BYTES;

/// First word of a tree's header: `TFASTF` and version 1.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TFASTF\x01\0");

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
    /// CRC-32C of magic and fanout.
    pub crc: u32,
    /// Keys at the last close.
    pub keys: AtomicU64,
    /// Bytes held at the last close.
    pub bytes: AtomicU64,
    /// Checksum of the two with the generation that wrote them.
    pub totals_crc: AtomicU32,
    /// Zero.
    pub reserved: u32,
    /// Generation of the last open after an unclean end: nodes last locked before it may need repair.
    pub unclean: AtomicU64,
    /// Zero.
    pub reserved2: u64,
}

/// Where `unclean` lies in the tree header.
pub(super) const UNCLEAN_AT: u64 = 48;

/// Bytes of the tree header.
pub(super) const TREE_HEADER_BYTES: u64 = 64;

/// Where the root pointer lies in the tree header.
pub(super) const ROOT_AT: u64 = 8;

/// One entry of a node.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Entry {
    /// Eight key bytes after the node's skip, big-endian, zeros past the key's end.
    pub slice: AtomicU64,
    /// Leaf: the key record. Inner: the child. 0: no entry here nor after.
    pub ptr: AtomicU64,
}

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: u64 = 16;

/// A node of `N` entries. The first four words never change.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Node<const N: usize> {
    /// CRC-32C of level, skip, low, high, prefix and the node's offset.
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
    /// The node that has replaced this one, and [`UNSETTLED`]; 0 while this one lives.
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
/// Where `next` lies in a node.
pub(super) const NEXT_AT: u64 = 32;
/// Where `forward` lies in a node.
pub(super) const FORWARD_AT: u64 = 40;
/// Where `merge` lies in a node.
pub(super) const MERGE_AT: u64 = 48;
/// Set in `forward` until the link is known to be durable.
pub(super) const UNSETTLED: u64 = 1;
/// Last byte of a node's first word.
pub(super) const NODE_TAG: u8 = 0xF1;

/// The fixed part of a key record: the word cell, then the key.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RecordHead {
    /// The key's word; 0: the key is absent.
    pub word: AtomicU64,
    /// Volatile: changes in flight (`word_cell`).
    pub state: AtomicU64,
    /// CRC-32C of length and key.
    pub crc: u32,
    /// Bytes of the key.
    pub klen: u16,
    /// Zero.
    pub reserved: u16,
}

/// Bytes of a record before its key.
pub(super) const RECORD_HEAD_BYTES: u64 = 24;

/// The fixed part of a key object: a separator or prefix, immutable.
#[repr(C)]
#[derive(Debug)]
pub(super) struct KeyHead {
    /// CRC-32C of length and key.
    pub crc: u32,
    /// Bytes of the key.
    pub klen: u16,
    /// Zero.
    pub reserved: u16,
}

/// Bytes of a key object before its key.
pub(super) const KEY_HEAD_BYTES: u64 = 8;

const _: () = {
    assert!(size_of::<TreeHeader>() == TREE_HEADER_BYTES as usize);
    assert!(offset_of!(TreeHeader, root) == ROOT_AT as usize);
    assert!(offset_of!(TreeHeader, unclean) == UNCLEAN_AT as usize);
    assert!(size_of::<Entry>() == ENTRY_BYTES as usize);
    assert!(size_of::<Node<28>>() == 512 && size_of::<Node<4>>() == 128);
    assert!(offset_of!(Node<28>, entries) == NODE_HEADER_BYTES as usize);
    assert!(offset_of!(Node<28>, next) == NEXT_AT as usize);
    assert!(offset_of!(Node<28>, forward) == FORWARD_AT as usize);
    assert!(offset_of!(Node<28>, merge) == MERGE_AT as usize);
    assert!(size_of::<RecordHead>() == RECORD_HEAD_BYTES as usize);
    assert!(offset_of!(RecordHead, crc) == CELL_BYTES as usize);
    assert!(size_of::<KeyHead>() == KEY_HEAD_BYTES as usize);
};

// SAFETY: repr(C), no padding (asserted by the sizes), integers only, what changes while shared is atomic.
unsafe impl PmSafe for TreeHeader {}
// SAFETY: as above.
unsafe impl<const N: usize> PmSafe for Node<N> {}
// SAFETY: as above.
unsafe impl PmSafe for RecordHead {}
// SAFETY: as above.
unsafe impl PmSafe for KeyHead {}

/// Bytes of a node of `n` entries.
pub(super) const fn node_bytes(n: usize) -> u64 {
    NODE_HEADER_BYTES + n as u64 * ENTRY_BYTES
}

/// The bytes of a tree header.
pub(super) fn encode_header(root: u64, fanout: u32) -> [u8; TREE_HEADER_BYTES as usize] {
    let mut out = [0; TREE_HEADER_BYTES as usize];
    out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..16].copy_from_slice(&root.to_le_bytes());
    out[16..20].copy_from_slice(&fanout.to_le_bytes());
    out[20..24].copy_from_slice(&header_crc(fanout).to_le_bytes());
    out
}

/// The checksum in a tree header.
pub(super) fn header_crc(fanout: u32) -> u32 {
    crc32c_append(crc32c(&MAGIC.to_le_bytes()), &fanout.to_le_bytes())
}

/// The checksum of the totals that a close in `generation` saved; never 0, which says "none".
pub(super) fn totals_crc(keys: u64, bytes: u64, generation: u64) -> u32 {
    let mut crc = crc32c(&keys.to_le_bytes());
    crc = crc32c_append(crc, &bytes.to_le_bytes());
    crc32c_append(crc, &generation.to_le_bytes()).max(1)
}

/// What a node is made of besides its entries and links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeFields {
    pub level: u8,
    pub skip: u16,
    pub low: u64,
    pub high: u64,
    pub prefix: u64,
}

impl NodeFields {
    /// Checksum of the fields of a node at `offset`.
    pub fn crc(&self, offset: u64) -> u32 {
        let mut crc = crc32c(&offset.to_le_bytes());
        crc = crc32c_append(crc, &self.skip.to_le_bytes());
        crc = crc32c_append(crc, &[self.level, NODE_TAG]);
        [self.low, self.high, self.prefix].iter().fold(crc, |crc, w| crc32c_append(crc, &w.to_le_bytes()))
    }

    /// The whole image of a node at `offset` with room for `n` entries and the lock word `lock`.
    pub fn encode(&self, offset: u64, next: u64, lock: u64, entries: &[(u64, u64)], n: usize) -> Vec<u8> {
        let mut out = vec![0; node_bytes(n) as usize];
        out[0..4].copy_from_slice(&self.crc(offset).to_le_bytes());
        out[4..6].copy_from_slice(&self.skip.to_le_bytes());
        out[6] = self.level;
        out[7] = NODE_TAG;
        out[8..16].copy_from_slice(&self.low.to_le_bytes());
        out[16..24].copy_from_slice(&self.high.to_le_bytes());
        out[24..32].copy_from_slice(&self.prefix.to_le_bytes());
        out[32..40].copy_from_slice(&next.to_le_bytes());
        out[56..64].copy_from_slice(&lock.to_le_bytes());
        let slots = out[NODE_HEADER_BYTES as usize..].chunks_exact_mut(ENTRY_BYTES as usize);
        for (slot, (slice, ptr)) in slots.zip(entries) {
            slot[..8].copy_from_slice(&slice.to_le_bytes());
            slot[8..].copy_from_slice(&ptr.to_le_bytes());
        }
        out
    }
}

/// The checksum of a key in a record or key object.
pub(super) fn key_crc(key: &[u8]) -> u32 {
    crc32c_append(crc32c(&(key.len() as u16).to_le_bytes()), key)
}

/// The bytes of a key record whose link is in flight in `state`.
pub(super) fn encode_record(key: &[u8], word: u64, state: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_HEAD_BYTES as usize + key.len());
    out.extend(word.to_le_bytes());
    out.extend(state.to_le_bytes());
    out.extend(encode_key(key));
    out
}

/// The bytes of a key object, which are also the end of a key record.
pub(super) fn encode_key(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(KEY_HEAD_BYTES as usize + key.len());
    out.extend(key_crc(key).to_le_bytes());
    out.extend((key.len() as u16).to_le_bytes());
    out.extend([0; 2]);
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
        assert_eq!(
            &image[64..96],
            [
                0x62, 0x61, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0, 0x64, 0x63, 0, 0, 0, 0, 0, 0, 0x60,
                0, 0, 0, 0, 0, 0, 0
            ]
        );
        assert_eq!(&image[96..], [0; 32]);
        assert_ne!(fields.crc(512), fields.crc(1024), "seeded by the place");
    }

    #[test]
    fn golden_record_and_header() {
        let record = encode_record(b"key", 9, state_of(2));
        assert_eq!(&record[..16], [9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&record[20..], [3, 0, 0, 0, b'k', b'e', b'y']);
        assert_eq!(u32::from_le_bytes(record[16..20].try_into().unwrap()), key_crc(b"key"));
        let header = encode_header(0x200, 28);
        assert_eq!(&header[..20], *b"TFASTF\x01\0\0\x02\0\0\0\0\0\0\x1c\0\0\0");
        assert_eq!(&header[24..], [0; 40]);
    }

    fn state_of(generation: u64) -> u64 {
        crate::word_cell::state_in_flight(generation)
    }
}
