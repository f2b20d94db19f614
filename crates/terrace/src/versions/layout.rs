//! A record in a pool, and the word that names one. `docs/formats/versions.md` describes the bytes.

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_index::kinds;
use terrace_pmem::Kind as PmKind;

/// Slots of records that name no older version.
pub(crate) const RECORD_KIND: PmKind = kinds::VERSION;
/// Slots of records with a link to an older version.
pub(crate) const LINKED_KIND: PmKind = kinds::VERSION_LINKED;
/// Bytes of a record before its link or key.
pub(crate) const HEAD_BYTES: u64 = 16;
/// Bytes of a record's link, if it has one.
pub(crate) const LINK_BYTES: u64 = 8;

/// Bits of a word that are an offset or a number; the rest check or describe it.
const VALUE_BITS: u32 = 48;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

/// The bits of the number in the second word of a head.
pub(crate) const NUMBER_MASK: u64 = VALUE_MASK;

/// In an index word: the version is a deletion; the record has a link.
const TOMBSTONE: u64 = 1 << 48;
const LINKED: u64 = 1 << 49;
/// The record has the word of the value's place instead of the value.
const REMOTE: u64 = 1 << 53;

/// In the length of a record's value: the bits of the length, and the flag of a deletion.
const LEN_BITS: u32 = 31;
const HEAD_TOMBSTONE: u32 = 1 << LEN_BITS;

/// The length that marks a record with the word of the value's place instead.
pub(crate) const REMOTE_LEN: u32 = (1 << LEN_BITS) - 1;
/// Bytes of that word.
pub(crate) const REMOTE_BYTES: u64 = 8;

/// Slots begin at multiples of this.
const ALIGN: u64 = 16;

const _: () = {
    assert!(HEAD_BYTES.is_multiple_of(8) && LINK_BYTES == size_of::<u64>() as u64);
    assert!(
        crate::batch::MAX_VALUE_BYTES < REMOTE_LEN as usize
            && crate::batch::MAX_KEY_BYTES <= u16::MAX as usize
    );
};

/// The index's word for a key: where the record of its newest version lies, and of which kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordRef(u64);

impl RecordRef {
    pub fn new(offset: u64, tombstone: bool, linked: bool) -> RecordRef {
        debug_assert!(offset != 0 && offset & !VALUE_MASK == 0 && offset.is_multiple_of(ALIGN));
        RecordRef(offset | if tombstone { TOMBSTONE } else { 0 } | if linked { LINKED } else { 0 })
    }

    /// Like [`new`](Self::new), for a record with the place of its value.
    pub fn remote(offset: u64, linked: bool) -> RecordRef {
        RecordRef(RecordRef::new(offset, false, linked).0 | REMOTE)
    }

    /// Decodes a word; `None` if the bits are none.
    pub fn decode(bits: u64) -> Option<RecordRef> {
        let offset = bits & VALUE_MASK;
        let flags = TOMBSTONE | LINKED | REMOTE;
        let right = offset != 0
            && offset.is_multiple_of(ALIGN)
            && bits & !(VALUE_MASK | flags) == 0
            && bits & (TOMBSTONE | REMOTE) != TOMBSTONE | REMOTE;
        right.then_some(RecordRef(bits))
    }

    pub fn bits(self) -> u64 {
        self.0
    }

    pub fn offset(self) -> u64 {
        self.0 & VALUE_MASK
    }

    pub fn is_tombstone(self) -> bool {
        self.0 & TOMBSTONE != 0
    }

    pub fn is_linked(self) -> bool {
        self.0 & LINKED != 0
    }

    /// Whether its record has the place of the value instead of the value.
    pub fn is_remote(self) -> bool {
        self.0 & REMOTE != 0
    }

    /// The kind of its record's slot.
    pub fn kind(self) -> PmKind {
        if self.is_linked() { LINKED_KIND } else { RECORD_KIND }
    }

    /// Bytes of the record before its key.
    pub fn before_key(self) -> u64 {
        HEAD_BYTES + if self.is_linked() { LINK_BYTES } else { 0 }
    }
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub crc: u32,
    pub value_len: u32,
    pub tombstone: bool,
    pub key_len: u16,
    /// The number under which the version was written.
    pub number: u64,
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD_BYTES as usize] {
        let mut out = [0; HEAD_BYTES as usize];
        let len = self.value_len | if self.tombstone { HEAD_TOMBSTONE } else { 0 };
        out[..4].copy_from_slice(&self.crc.to_le_bytes());
        out[4..8].copy_from_slice(&len.to_le_bytes());
        let rest = self.number & VALUE_MASK | u64::from(self.key_len) << VALUE_BITS;
        out[8..].copy_from_slice(&rest.to_le_bytes());
        out
    }

    /// Bytes after the key: the value, or the word of its place.
    pub fn body_bytes(&self) -> u64 {
        if self.is_remote() { REMOTE_BYTES } else { u64::from(self.value_len) }
    }

    /// Whether the word of the value's place follows the key.
    pub fn is_remote(&self) -> bool {
        self.value_len == REMOTE_LEN
    }

    pub fn decode(bytes: &[u8; HEAD_BYTES as usize]) -> Head {
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let rest = u64::from(half(8)) | u64::from(half(12)) << 32;
        Head {
            crc: half(0),
            value_len: half(4) & !HEAD_TOMBSTONE,
            tombstone: half(4) & HEAD_TOMBSTONE != 0,
            key_len: (rest >> VALUE_BITS) as u16,
            number: rest & VALUE_MASK,
        }
    }
}

/// The checksum of a record: over its place in the pool, its head after the checksum, key and value.
pub(crate) fn record_crc(place: u64, head: &[u8; HEAD_BYTES as usize], key: &[u8], value: &[u8]) -> u32 {
    let mut first = [0; 20];
    first[..8].copy_from_slice(&place.to_le_bytes());
    first[8..].copy_from_slice(&head[4..]);
    crc32c_append(crc32c_append(crc32c(&first), key), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn words_tell_what_they_are() {
        let word = RecordRef::new(0x40, true, false);
        assert_eq!((word.bits(), word.offset(), word.is_tombstone()), (0x1_0000_0000_0040, 0x40, true));
        assert_eq!(RecordRef::decode(word.bits()), Some(word));
        assert_eq!((RecordRef::new(0x40, false, true).kind(), word.kind()), (LINKED_KIND, RECORD_KIND));
        let remote = RecordRef::remote(0x40, true);
        assert!(remote.is_remote() && remote.is_linked() && !remote.is_tombstone());
        assert_eq!(RecordRef::decode(remote.bits()), Some(remote));
        for wrong in [0, 8, 1 << 48, 0x40 | 1 << 50, 0x40 | 1 << 53 | 1 << 48, 0x41] {
            assert_eq!(RecordRef::decode(wrong), None, "{wrong:#x}");
        }
    }

    #[test]
    fn golden_record() {
        let mut head = Head { crc: 0, value_len: 5, tombstone: false, key_len: 3, number: 0x0102_0304 };
        head.crc = record_crc(0x1000, &head.encode(), b"key", b"value");
        let bytes = head.encode();
        assert_eq!(hex(&bytes), GOLDEN_HEAD);
        assert_eq!(Head::decode(&bytes), head);
        let gone = Head { tombstone: true, value_len: 0, ..head };
        assert_eq!(Head::decode(&gone.encode()), gone);
    }

    const GOLDEN_HEAD: &str = "c4914426050000000403020100000300";
}
