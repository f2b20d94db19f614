//! The bytes of a list: extent headers and nodes (`docs/formats/skiplist.md`).

use std::sync::atomic::AtomicU64;

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_pmem::pm_layout;

/// The beginning of [`MAGIC`] in every version.
const NAME: [u8; 6] = *b"TSKIPL";
/// The version of the format that this build writes and reads.
pub(super) const VERSION: u8 = 2;
/// First word of every extent of a list: `TSKIPL` and the version.
pub(super) const MAGIC: u64 = {
    let [a, b, c, d, e, f] = NAME;
    u64::from_le_bytes([a, b, c, d, e, f, VERSION, 0])
};

/// Header at the start of every extent.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ExtentHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// Identity of the list; checksums are seeded with it.
    pub list: u64,
    /// The next extent of the list, 0 in the last.
    pub next: AtomicU64,
    /// Bytes of this extent, header included.
    pub bytes: u64,
    /// Regular size of further extents (the same in every header).
    pub step: u64,
    /// Position in the chain, from 0.
    pub index: u32,
    /// CRC-32C of the extent's place and of the fields above but `next`.
    pub crc: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Bytes of an extent header.
pub(super) const EXTENT_HEADER_BYTES: u64 = 64;

/// Bytes of the volatile word below a node: its owner.
pub(super) const OWNER_BYTES: u64 = 8;

/// Where the head node lies in the first extent.
pub(super) const HEAD_NODE: u64 = EXTENT_HEADER_BYTES + OWNER_BYTES;

/// First byte for nodes in the first extent.
pub(super) const FIRST_DATA: u64 = HEAD_NODE + NODE_BYTES;

/// The fixed part of a node. The key follows it, then, 8-aligned, the value.
///
/// Below it lies a volatile word, cleared on open: the owner.
#[repr(C)]
#[derive(Debug)]
pub(super) struct NodeHead {
    /// The next node.
    pub next: AtomicU64,
    /// Sequence number.
    pub seq: u64,
    /// Sequence number of the first record of the batch this one belongs to.
    pub batch_first: u64,
    /// Records in the batch.
    pub batch_len: u32,
    /// CRC-32C of everything but the link (and, in an index node, but the value).
    pub crc: u32,
    /// Bytes of the value.
    pub vlen: u32,
    /// Bytes of the key.
    pub klen: u16,
    /// The kind of the record; the caller's byte.
    pub kind: u8,
    /// Which fields follow, of a version: zero, none.
    pub fields: u8,
}

/// Bytes of the fixed part of a node.
pub(super) const NODE_BYTES: u64 = 40;

const _: () = {
    assert!(size_of::<ExtentHeader>() == EXTENT_HEADER_BYTES as usize);
    assert!(size_of::<NodeHead>() == NODE_BYTES as usize);
};

// SAFETY: fields that change while they are shared are atomic.
pm_layout! {
    unsafe ExtentHeader: 64 {
        magic @ 0, list @ 8, next @ 16 as pub(super) NEXT_AT, bytes @ 24, step @ 32, index @ 40, crc @ 44, reserved @ 48
    }
    unsafe NodeHead: 40 {
        next @ 0,
        seq @ 8,
        batch_first @ 16,
        batch_len @ 24,
        crc @ 28,
        vlen @ 32,
        klen @ 36,
        kind @ 38,
        fields @ 39,
    }
}

impl ExtentHeader {
    /// The header's bytes as they are written at a place of the pool.
    pub fn encode(
        place: u64,
        list: u64,
        bytes: u64,
        step: u64,
        index: u32,
    ) -> [u8; EXTENT_HEADER_BYTES as usize] {
        let mut out = [0; EXTENT_HEADER_BYTES as usize];
        out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&list.to_le_bytes());
        out[24..32].copy_from_slice(&bytes.to_le_bytes());
        out[32..40].copy_from_slice(&step.to_le_bytes());
        out[40..44].copy_from_slice(&index.to_le_bytes());
        let crc = header_crc(place, &out);
        out[44..48].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Whether the checksum is right at this place of the pool.
    pub fn is_sound(&self, place: u64) -> bool {
        let image = Self::encode(place, self.list, self.bytes, self.step, self.index);
        self.magic == MAGIC && header_crc(place, &image) == self.crc
    }

    /// The version that the header is of, if it is a sound one of another.
    pub fn other_version(&self, place: u64) -> Option<u8> {
        let magic = self.magic.to_le_bytes();
        let is_other = magic[..6] == NAME && magic[6] != VERSION && magic[7] == 0;
        let mut image = Self::encode(place, self.list, self.bytes, self.step, self.index);
        image[..8].copy_from_slice(&magic);
        // Version 1 was not bound to a place.
        let first = crc32c_append(crc32c(&image[0..16]), &image[24..44]);
        (is_other && [first, header_crc(place, &image)].contains(&self.crc)).then_some(magic[6])
    }
}

fn header_crc(place: u64, image: &[u8; EXTENT_HEADER_BYTES as usize]) -> u32 {
    let crc = crc32c_append(crc32c(&place.to_le_bytes()), &image[0..16]);
    crc32c_append(crc, &image[24..44])
}

/// The fields of a node besides links and payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeFields {
    pub seq: u64,
    pub batch_first: u64,
    pub batch_len: u32,
    pub vlen: u32,
    pub klen: u16,
    pub kind: u8,
    pub fields: u8,
}

impl NodeFields {
    /// The fixed part's bytes, with `next` as the link.
    pub fn encode(&self, next: u64, crc: u32) -> [u8; NODE_BYTES as usize] {
        let mut out = [0; NODE_BYTES as usize];
        out[0..8].copy_from_slice(&next.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.batch_first.to_le_bytes());
        out[24..28].copy_from_slice(&self.batch_len.to_le_bytes());
        out[28..32].copy_from_slice(&crc.to_le_bytes());
        out[32..36].copy_from_slice(&self.vlen.to_le_bytes());
        out[36..38].copy_from_slice(&self.klen.to_le_bytes());
        out[38] = self.kind;
        out[39] = self.fields;
        out
    }

    /// Checksum of a node of list `list` at `offset`; a node copied elsewhere does not pass.
    pub fn crc(&self, list: u64, offset: u64, key: &[u8], value: &[u8]) -> u32 {
        let image = self.encode(0, 0);
        let mut crc = crc32c(&list.to_le_bytes());
        crc = crc32c_append(crc, &offset.to_le_bytes());
        crc = crc32c_append(crc, &image[8..]);
        crc = crc32c_append(crc, key);
        crc32c_append(crc, value)
    }

    /// Bytes from the node's fixed part to the end of its value.
    pub fn above(&self) -> u64 {
        value_offset(self.klen) + u64::from(self.vlen)
    }
}

impl NodeHead {
    /// The fields apart from link and checksum.
    pub fn fields(&self) -> NodeFields {
        NodeFields {
            seq: self.seq,
            batch_first: self.batch_first,
            batch_len: self.batch_len,
            vlen: self.vlen,
            klen: self.klen,
            kind: self.kind,
            fields: self.fields,
        }
    }
}

/// Where the value lies, from the node's fixed part.
pub(super) fn value_offset(klen: u16) -> u64 {
    NODE_BYTES + u64::from(klen).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_extent_header() {
        let image = ExtentHeader::encode(0x100, 0x1122_3344_5566_7788, 65536, 16384, 2);
        assert_eq!(&image[..8], b"TSKIPL\x02\0");
        assert_eq!(&image[8..16], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(&image[16..24], [0; 8], "the chain word starts empty");
        assert_eq!(&image[24..44], [0, 0, 1, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(u32::from_le_bytes(image[44..48].try_into().unwrap()), header_crc(0x100, &image));
        assert_ne!(header_crc(0x100, &image), header_crc(0x140, &image), "bound to the place");
        assert_eq!(&image[48..], [0; 16]);
    }

    #[test]
    fn golden_node() {
        let fields =
            NodeFields { seq: 7, batch_first: 6, batch_len: 2, vlen: 5, klen: 3, kind: 1, fields: 0 };
        let crc = fields.crc(1, 192, b"key", b"value");
        let image = fields.encode(0x100, crc);
        assert_eq!(&image[..8], [0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&image[8..24], [7, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&image[24..28], [2, 0, 0, 0]);
        assert_eq!(&image[32..], [5, 0, 0, 0, 3, 0, 1, 0]);
        assert_ne!(crc, fields.crc(2, 192, b"key", b"value"), "seeded by the list");
        assert_ne!(crc, fields.crc(1, 200, b"key", b"value"), "seeded by the place");
        assert_eq!(fields.above(), 40 + 8 + 5);
    }
}
