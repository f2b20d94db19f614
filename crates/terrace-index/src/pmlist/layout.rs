//! The bytes of buffers and lists (`docs/formats/pmlist.md`).

use std::sync::atomic::AtomicU64;

use terrace_base::checksum::{crc32c, crc32c_append, crc32c_words};
use terrace_pmem::pm_layout;

/// First word of every buffer: `TPBUFF` and the version.
pub(super) const BUFFER_MAGIC: u64 = u64::from_le_bytes(*b"TPBUFF\x01\0");
/// First word of every list: `TPLIST` and the version.
pub(super) const LIST_MAGIC: u64 = u64::from_le_bytes(*b"TPLIST\x01\0");

/// The bytes of a magic word before the version.
const NAME_BITS: u32 = 48;

/// Header of a buffer, at the start of its extent.
#[repr(C)]
#[derive(Debug)]
pub(super) struct BufferHead {
    /// [`BUFFER_MAGIC`].
    pub magic: u64,
    /// Identity of the buffer; checksums of its records are seeded with it.
    pub id: u64,
    /// Bytes of the extent.
    pub bytes: u64,
    /// Bytes of it that are filled, this header included.
    pub end: u64,
    /// CRC-32C of the extent's place and of the fields above.
    pub crc: u32,
    /// Zero.
    pub reserved: [u32; 7],
}

pub(super) const BUFFER_HEAD_BYTES: u64 = 64;

/// The fixed part of a record; the key follows it, then the value. The next record begins at a multiple of eight.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RecordHead {
    /// CRC-32C of the buffer's id, the record's offset, the fields below and the key.
    pub crc: u32,
    /// CRC-32C of the value.
    pub value_crc: u32,
    /// Sequence number.
    pub seq: u64,
    /// Bytes of the value.
    pub vlen: u32,
    /// Bytes of the key.
    pub klen: u16,
    /// The kind of the version.
    pub kind: u8,
    /// Which fields follow: zero, none.
    pub fields: u8,
}

pub(super) const RECORD_HEAD_BYTES: u64 = 24;

/// Header of a list, at the start of its extent.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ListHead {
    /// [`LIST_MAGIC`].
    pub magic: u64,
    /// Identity of the list; checksums of its parts are seeded with it.
    pub id: u64,
    /// Bytes of the extent.
    pub bytes: u64,
    /// Records.
    pub entries: u64,
    /// Tombstones among them.
    pub deletes: u64,
    /// The smallest sequence number.
    pub min_seq: u64,
    /// The largest.
    pub max_seq: u64,
    /// Bytes of all keys and values.
    pub raw_bytes: u64,
    /// Bytes of all records.
    pub record_bytes: u64,
    /// Bytes that all keys begin with alike.
    pub common: u32,
    /// Bytes of the filter.
    pub filter_bytes: u32,
    /// Bytes of the part that follows this header.
    pub about_bytes: u32,
    /// CRC-32C of the list's id and of that part.
    pub about_crc: u32,
    /// CRC-32C of the list's id and of towers and filter.
    pub tail_crc: u32,
    /// CRC-32C of the extent's place and of the fields above.
    pub crc: u32,
    /// Zero.
    pub reserved: [u64; 3],
    /// The number of records, sealed with the id, once everything is durable; zero before.
    pub end: AtomicU64,
}

pub(super) const LIST_HEAD_BYTES: u64 = 128;
/// Where the word lies that says the list is whole.
pub(super) const END_AT: u64 = 120;

/// Where a record is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The record's offset in the pool.
    pub record: u64,
    /// The eight bytes of its key after those that all keys of the list begin with.
    pub head: u64,
}

/// Nodes of a block.
pub(super) const BLOCK_NODES: usize = 15;

/// Nodes side by side: one block of the media.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub nodes: [Node; BLOCK_NODES],
    /// CRC-32C of the list's id, the block's number and the nodes.
    pub crc: u32,
    /// Nodes in use.
    pub count: u32,
    /// Zero.
    pub reserved: u64,
}

pub(super) const BLOCK_BYTES: u64 = 256;

// SAFETY: fields that change while they are shared are atomic.
pm_layout! {
    unsafe BufferHead: 64 { magic @ 0, id @ 8, bytes @ 16, end @ 24, crc @ 32, reserved @ 36 }
    unsafe RecordHead: 24 { crc @ 0, value_crc @ 4, seq @ 8, vlen @ 16, klen @ 20, kind @ 22, fields @ 23 }
    unsafe ListHead: 128 {
        magic @ 0, id @ 8, bytes @ 16, entries @ 24, deletes @ 32, min_seq @ 40, max_seq @ 48, raw_bytes @ 56,
        record_bytes @ 64, common @ 72, filter_bytes @ 76, about_bytes @ 80, about_crc @ 84, tail_crc @ 88, crc @ 92,
        reserved @ 96, end @ 120,
    }
    unsafe Node: 16 { record @ 0, head @ 8 }
    unsafe Block: 256 { nodes @ 0, crc @ 240, count @ 244, reserved @ 248 }
}

/// The version of `found`, if it is `expected` in another version.
fn other_version(found: u64, expected: u64) -> Option<u64> {
    let name = |word: u64| word & ((1 << NAME_BITS) - 1);
    (name(found) == name(expected) && found != expected).then_some(found >> NAME_BITS)
}

impl BufferHead {
    /// The header's bytes as they are written at a place of the pool.
    pub fn encode(place: u64, id: u64, bytes: u64, end: u64) -> [u8; BUFFER_HEAD_BYTES as usize] {
        Self { magic: BUFFER_MAGIC, id, bytes, end, crc: 0, reserved: [0; 7] }.image(place)
    }

    fn image(&self, place: u64) -> [u8; BUFFER_HEAD_BYTES as usize] {
        let mut out = [0; BUFFER_HEAD_BYTES as usize];
        for (at, word) in [self.magic, self.id, self.bytes, self.end].into_iter().enumerate() {
            out[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c_append(crc32c(&place.to_le_bytes()), &out[..32]);
        out[32..36].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn has_checksum(&self, place: u64) -> bool {
        self.image(place)[32..36] == self.crc.to_le_bytes()
    }

    /// Whether it is sound at this place.
    pub fn is_sound(&self, place: u64) -> bool {
        self.magic == BUFFER_MAGIC && self.has_checksum(place) && self.reserved == [0; 7]
    }

    /// The version that it is of, if it has its checksum at this place and is of another.
    pub fn other_version(&self, place: u64) -> Option<u64> {
        other_version(self.magic, BUFFER_MAGIC).filter(|_| self.has_checksum(place))
    }
}

/// The fields of a record besides its key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordFields {
    pub value_crc: u32,
    pub seq: u64,
    pub vlen: u32,
    pub klen: u16,
    pub kind: u8,
    pub fields: u8,
}

impl RecordFields {
    /// The bytes of the head, with `crc`.
    pub fn encode(&self, crc: u32) -> [u8; RECORD_HEAD_BYTES as usize] {
        let mut out = [0; RECORD_HEAD_BYTES as usize];
        out[0..4].copy_from_slice(&crc.to_le_bytes());
        out[4..8].copy_from_slice(&self.value_crc.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..20].copy_from_slice(&self.vlen.to_le_bytes());
        out[20..22].copy_from_slice(&self.klen.to_le_bytes());
        out[22] = self.kind;
        out[23] = self.fields;
        out
    }

    /// Bytes from the start of the record to that of the next.
    pub fn span(&self) -> u64 {
        record_span(usize::from(self.klen), self.vlen as usize)
    }
}

impl RecordHead {
    /// Its fields.
    pub fn fields(&self) -> RecordFields {
        let RecordHead { value_crc, seq, vlen, klen, kind, fields, .. } = *self;
        RecordFields { value_crc, seq, vlen, klen, kind, fields }
    }
}

/// Bytes that a record takes.
pub(super) fn record_span(klen: usize, vlen: usize) -> u64 {
    (RECORD_HEAD_BYTES + klen as u64 + vlen as u64).next_multiple_of(8)
}

/// Checksum of a record's head and key in buffer `id` at `offset`; `head` is its bytes.
pub(super) fn record_crc(id: u64, offset: u64, head: &[u8], key: &[u8]) -> u32 {
    let crc = crc32c_append(crc32c_words([id, offset]), &head[4..RECORD_HEAD_BYTES as usize]);
    crc32c_append(crc, key)
}

/// Checksum of a part of list `id`.
pub(super) fn part_crc(id: u64, part: &[u8]) -> u32 {
    crc32c_append(crc32c_words([id]), part)
}

/// Checksum of a block, of which `nodes` are the bytes, the `number`th of list `id`.
pub(super) fn block_crc(id: u64, number: u64, nodes: &[u8]) -> u32 {
    crc32c_append(crc32c_words([id, number]), nodes)
}

impl ListHead {
    /// The header's bytes as they are written at a place of the pool: not whole yet.
    pub fn encode(&self, place: u64) -> [u8; LIST_HEAD_BYTES as usize] {
        let mut out = [0; LIST_HEAD_BYTES as usize];
        let words = [self.magic, self.id, self.bytes, self.entries, self.deletes];
        let words = words.into_iter().chain([self.min_seq, self.max_seq, self.raw_bytes, self.record_bytes]);
        for (at, word) in words.enumerate() {
            out[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let halves = [self.common, self.filter_bytes, self.about_bytes, self.about_crc, self.tail_crc];
        for (at, half) in halves.into_iter().enumerate() {
            out[72 + 4 * at..76 + 4 * at].copy_from_slice(&half.to_le_bytes());
        }
        let crc = crc32c_append(crc32c(&place.to_le_bytes()), &out[..92]);
        out[92..96].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn has_checksum(&self, place: u64) -> bool {
        self.encode(place)[92..96] == self.crc.to_le_bytes()
    }

    /// Whether it is sound at this place.
    pub fn is_sound(&self, place: u64) -> bool {
        self.magic == LIST_MAGIC && self.has_checksum(place) && self.reserved == [0; 3]
    }

    /// The version that it is of, if it has its checksum at this place and is of another.
    pub fn other_version(&self, place: u64) -> Option<u64> {
        other_version(self.magic, LIST_MAGIC).filter(|_| self.has_checksum(place))
    }
}

#[cfg(test)]
mod tests {
    use terrace_base::Kind;

    use super::*;

    #[test]
    fn golden_buffer_and_record() {
        let image = BufferHead::encode(0x100, 7, 65536, 96);
        assert_eq!(&image[..16], b"TPBUFF\x01\0\x07\0\0\0\0\0\0\0");
        assert_eq!(&image[16..32], [0, 0, 1, 0, 0, 0, 0, 0, 96, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(image[36..], [0; 28]);
        assert_ne!(image[32..36], BufferHead::encode(0x140, 7, 65536, 96)[32..36], "bound to the place");
        let fields = RecordFields { value_crc: 9, seq: 5, vlen: 3, klen: 2, kind: 1, fields: 0 };
        let head = fields.encode(4);
        assert_eq!(head, [4, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 1, 0]);
        assert_eq!(fields.span(), 32);
        let operand = RecordFields { kind: Kind::Operand as u8, ..fields };
        assert_eq!(operand.encode(4)[..22], head[..22]);
        assert_eq!(operand.encode(4)[22..], [3, 0], "as the page says");
        assert_ne!(record_crc(7, 64, &operand.encode(4), b"ab"), record_crc(7, 64, &head, b"ab"));
        assert_ne!(record_crc(7, 64, &head, b"ab"), record_crc(7, 96, &head, b"ab"), "bound to the place");
        assert_ne!(record_crc(7, 64, &head, b"ab"), record_crc(8, 64, &head, b"ab"), "bound to the buffer");
    }

    #[test]
    fn golden_list_head() {
        let mut head = ListHead {
            magic: LIST_MAGIC,
            id: 7,
            bytes: 4096,
            entries: 3,
            deletes: 1,
            min_seq: 5,
            max_seq: 9,
            raw_bytes: 40,
            record_bytes: 120,
            common: 2,
            filter_bytes: 32,
            about_bytes: 50,
            about_crc: 11,
            tail_crc: 12,
            crc: 0,
            reserved: [0; 3],
            end: AtomicU64::new(0),
        };
        let image = head.encode(0x100);
        assert_eq!(&image[..8], b"TPLIST\x01\0");
        let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
        assert_eq!([8, 16, 24, 32, 40, 48, 56, 64].map(word), [7, 4096, 3, 1, 5, 9, 40, 120]);
        assert_eq!(&image[72..92], [2, 0, 0, 0, 32, 0, 0, 0, 50, 0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0]);
        assert_eq!(image[96..], [0; 32]);
        head.crc = u32::from_le_bytes(image[92..96].try_into().unwrap());
        assert!(head.is_sound(0x100) && !head.is_sound(0x140));
        assert_eq!(head.other_version(0x100), None);
    }
}
