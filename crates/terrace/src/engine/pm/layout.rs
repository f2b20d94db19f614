//! What lies in the pool beside the index: one header, a record for each version, and the undo list of a group that is
//! being applied. `docs/formats/versions.md` tells it byte by byte.

use terrace_base::checksum::{crc32c, crc32c_append, seal48};
use terrace_index::kinds;
use terrace_pmem::Kind as PmKind;

/// The slot of the header.
pub(crate) const HEADER_KIND: PmKind = kinds::VERSION_HEADER;
/// Slots of records that name no older version.
pub(crate) const RECORD_KIND: PmKind = kinds::VERSION;
/// Slots of records with a link to an older version.
pub(crate) const LINKED_KIND: PmKind = kinds::VERSION_LINKED;
/// The slot of an undo list.
pub(crate) const UNDO_KIND: PmKind = kinds::VERSION_UNDO;

/// Bytes of the header, one cache line.
pub(super) const HEADER_BYTES: u64 = 64;
/// Where the header has the highest number that a record may have.
pub(super) const MARK_AT: u64 = 16;
/// Where it has the undo list of the group that is being applied; 0 for none.
pub(super) const UNDO_AT: u64 = 24;

/// Bytes of a record before its link or key.
pub(super) const HEAD_BYTES: u64 = 16;
/// Bytes of a record's link, if it has one.
pub(super) const LINK_BYTES: u64 = 8;

/// Bytes of an undo list before its changes, and of each change.
pub(super) const UNDO_HEAD_BYTES: u64 = 16;
pub(super) const CHANGE_BYTES: u64 = 16;

const MAGIC: [u8; 8] = *b"TERRAVER";
pub(super) const VERSION: u32 = 2;

/// Bits of a word that are an offset or a number; the rest check or describe it.
const VALUE_BITS: u32 = 48;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

/// In an index word: the version is a deletion; the record has a link.
const TOMBSTONE: u64 = 1 << 48;
const LINKED: u64 = 1 << 49;

/// In a record's length of its value: the same.
const LEN_BITS: u32 = 31;
const HEAD_TOMBSTONE: u32 = 1 << LEN_BITS;

/// Slots begin at multiples of this.
const ALIGN: u64 = 16;

const _: () = {
    assert!(MARK_AT.is_multiple_of(8) && UNDO_AT.is_multiple_of(8) && UNDO_AT + 8 <= HEADER_BYTES);
    assert!(HEAD_BYTES.is_multiple_of(8) && LINK_BYTES == size_of::<u64>() as u64);
    assert!(CHANGE_BYTES == 2 * size_of::<u64>() as u64 && UNDO_HEAD_BYTES.is_multiple_of(8));
    assert!(
        crate::batch::MAX_VALUE_BYTES < 1 << LEN_BITS && crate::batch::MAX_KEY_BYTES <= u16::MAX as usize
    );
};

/// What the index has for a key: where the record of its newest version is, and what kind of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordRef(u64);

impl RecordRef {
    pub fn new(offset: u64, tombstone: bool, linked: bool) -> RecordRef {
        debug_assert!(offset != 0 && offset & !VALUE_MASK == 0 && offset.is_multiple_of(ALIGN));
        RecordRef(offset | if tombstone { TOMBSTONE } else { 0 } | if linked { LINKED } else { 0 })
    }

    /// The word that the bits are, if they are one.
    pub fn decode(bits: u64) -> Option<RecordRef> {
        let offset = bits & VALUE_MASK;
        let right =
            offset != 0 && offset.is_multiple_of(ALIGN) && bits & !(VALUE_MASK | TOMBSTONE | LINKED) == 0;
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

    /// What its record's slot is for.
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
pub(super) struct Head {
    pub crc: u32,
    pub value_len: u32,
    pub tombstone: bool,
    pub key_len: u16,
    /// The number that the version was written under.
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

/// The checksum of a record: of its place in the pool, of its head behind the checksum, of key and value.
pub(super) fn record_crc(place: u64, head: &[u8; HEAD_BYTES as usize], key: &[u8], value: &[u8]) -> u32 {
    let mut first = [0; 20];
    first[..8].copy_from_slice(&place.to_le_bytes());
    first[8..].copy_from_slice(&head[4..]);
    crc32c_append(crc32c_append(crc32c(&first), key), value)
}

/// A header at a place of the pool, which says that records have numbers up to `mark` and that no group is being applied.
pub(super) fn encode_header(place: u64, mark: u64) -> [u8; HEADER_BYTES as usize] {
    let mut out = [0; HEADER_BYTES as usize];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&header_crc(VERSION, place).to_le_bytes());
    out[MARK_AT as usize..MARK_AT as usize + 8]
        .copy_from_slice(&seal48(place.wrapping_add(MARK_AT), mark).to_le_bytes());
    out
}

/// The version of the format that the header with `front` is of, if it is one: at `offset`, which version 1 covered, and
/// that place in the pool.
pub(super) fn header_version(offset: u64, place: u64, front: &[u8]) -> Option<u32> {
    let (magic, rest) = front.split_first_chunk::<8>()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (crc, _) = rest.split_first_chunk::<4>()?;
    let version = u32::from_le_bytes(*version);
    let is_of = |place| *crc == header_crc(version, place).to_le_bytes();
    (*magic == MAGIC && (is_of(place) || version == 1 && is_of(offset))).then_some(version)
}

fn header_crc(version: u32, place: u64) -> u32 {
    crc32c_append(crc32c_append(crc32c(&MAGIC), &version.to_le_bytes()), &place.to_le_bytes())
}

/// One key's words before and after a group; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub new: u64,
    pub old: u64,
}

/// An undo list at a place of the pool.
pub(super) fn encode_undo(place: u64, changes: &[Change]) -> Vec<u8> {
    let mut out = Vec::with_capacity((UNDO_HEAD_BYTES + CHANGE_BYTES * changes.len() as u64) as usize);
    out.extend([0; 4]);
    out.extend((changes.len() as u32).to_le_bytes());
    out.extend(place.to_le_bytes());
    for change in changes {
        out.extend(change.new.to_le_bytes());
        out.extend(change.old.to_le_bytes());
    }
    let crc = crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Changes in the undo list that begins with `head`.
pub(super) fn undo_count(head: &[u8]) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(head.get(4..8)?.try_into().ok()?)))
}

/// The changes of the undo list at a place of the pool, if `bytes` are one.
pub(super) fn decode_undo(place: u64, bytes: &[u8]) -> Option<Vec<Change>> {
    let count = undo_count(bytes)?;
    let (head, rest) = bytes.split_at_checked(UNDO_HEAD_BYTES as usize)?;
    let right = rest.len() as u64 == count.checked_mul(CHANGE_BYTES)?
        && head[..4] == crc32c(&bytes[4..]).to_le_bytes()
        && head[8..16] == place.to_le_bytes();
    let word =
        |pair: &[u8], at: usize| pair[at..at + 8].iter().rev().fold(0u64, |w, b| w << 8 | u64::from(*b));
    let changes = rest.chunks_exact(CHANGE_BYTES as usize);
    right.then(|| changes.map(|pair| Change { new: word(pair, 0), old: word(pair, 8) }).collect())
}

#[cfg(test)]
mod tests {
    use terrace_base::checksum::unseal48;

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
        for wrong in [0, 8, 1 << 48, 0x40 | 1 << 50, 0x41] {
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

    #[test]
    fn golden_header() {
        let bytes = encode_header(0x2000, 7);
        assert_eq!(hex(&bytes[..24]), GOLDEN_HEADER);
        assert_eq!(header_version(0, 0x2000, &bytes), Some(2));
        assert_eq!(header_version(0x2000, 0x3000, &bytes), None);
        let mut first = bytes;
        first[8] = 1;
        first[12..16].copy_from_slice(&header_crc(1, 0x2000).to_le_bytes());
        assert_eq!(header_version(0x2000, 0x3000, &first), Some(1), "an earlier one says its number");
        assert_eq!(bytes[24..], [0; 40]);
        let mark = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        assert_eq!((unseal48(0x2010, mark), unseal48(0x2018, mark)), (Some(7), None));
        (0..64).for_each(|bit| assert_eq!(unseal48(0x2010, mark ^ 1 << bit), None));
    }

    #[test]
    fn golden_undo_list() {
        let changes = [Change { new: 0x40, old: 0 }, Change { new: 0, old: 0x2_0000_0000_0050 }];
        let bytes = encode_undo(0x3000, &changes);
        assert_eq!(hex(&bytes), GOLDEN_UNDO);
        assert_eq!(decode_undo(0x3000, &bytes), Some(changes.to_vec()));
        assert_eq!(decode_undo(0x4000, &bytes), None);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_undo(0x3000, &damaged), None, "bit {bit}");
        }
    }

    const GOLDEN_HEAD: &str = "c4914426050000000403020100000300";
    const GOLDEN_HEADER: &str = "544552524156455202000000d2bf00c10700000000003f1c";
    const GOLDEN_UNDO: &str =
        "d34ca1420200000000300000000000004000000000000000000000000000000000000000000000005000000000000200";
}
