//! The contents of the pool beside the index: one header, a record for each version, and the undo list of a
//! group that is being applied. `docs/formats/versions.md` describes the bytes.

use terrace_base::checksum::{crc32c, crc32c_append, seal48};
use terrace_index::kinds;
use terrace_pmem::Kind as PmKind;

/// The slot of the header.
pub(crate) const HEADER_KIND: PmKind = kinds::VERSION_HEADER;
/// The slot of an undo list.
pub(crate) const UNDO_KIND: PmKind = kinds::VERSION_UNDO;

/// Bytes of the header, one cache line.
pub(super) const HEADER_BYTES: u64 = 64;
/// Where the header holds the highest number that a record may have.
pub(super) const MARK_AT: u64 = 16;
/// Where the header names the undo list of the group that is being applied; 0 for none.
pub(super) const UNDO_AT: u64 = 24;

/// In the count of an undo list: its changes are followed by their keys.
const WITH_KEYS: u32 = 1 << 31;

/// Bytes of an undo list before its changes, and of each change.
pub(super) const UNDO_HEAD_BYTES: u64 = 16;
pub(super) const CHANGE_BYTES: u64 = 16;

const MAGIC: [u8; 8] = *b"TERRAVER";
pub(super) const VERSION: u32 = 2;

const _: () = {
    assert!(MARK_AT.is_multiple_of(8) && UNDO_AT.is_multiple_of(8) && UNDO_AT + 8 <= HEADER_BYTES);
    assert!(CHANGE_BYTES == 2 * size_of::<u64>() as u64 && UNDO_HEAD_BYTES.is_multiple_of(8));
};

/// Encodes a header for a place in the pool, with numbers set aside up to `mark` and no group being applied.
pub(super) fn encode_header(place: u64, mark: u64) -> [u8; HEADER_BYTES as usize] {
    let mut out = [0; HEADER_BYTES as usize];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&header_crc(VERSION, place).to_le_bytes());
    out[MARK_AT as usize..MARK_AT as usize + 8]
        .copy_from_slice(&seal48(place.wrapping_add(MARK_AT), mark).to_le_bytes());
    out
}

/// The format version of the header that begins with `front`, if it is a header: version 1 covered `offset`,
/// later ones that place in the pool.
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
pub(super) struct WordChange {
    pub new: u64,
    pub old: u64,
}

/// Encodes an undo list for a place in the pool. It has `keys`, one for each change, where words do not lead
/// to keys.
pub(super) fn encode_undo(place: u64, changes: &[WordChange], keys: Option<&[&[u8]]>) -> Vec<u8> {
    let mut out = Vec::with_capacity((UNDO_HEAD_BYTES + CHANGE_BYTES * changes.len() as u64) as usize);
    out.extend([0; 4]);
    out.extend((changes.len() as u32 | if keys.is_some() { WITH_KEYS } else { 0 }).to_le_bytes());
    out.extend(place.to_le_bytes());
    for change in changes {
        out.extend(change.new.to_le_bytes());
        out.extend(change.old.to_le_bytes());
    }
    if let Some(keys) = keys {
        let bytes: usize = keys.iter().map(|key| 2 + key.len()).sum();
        out.extend((bytes as u64).to_le_bytes());
        for key in keys {
            out.extend((key.len() as u16).to_le_bytes());
            out.extend(*key);
        }
    }
    let crc = crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Size of the undo list that begins with `head`, without its keys, and whether it has keys: then the last
/// eight bytes are the keys' size.
pub(super) fn undo_bytes(head: &[u8]) -> Option<(u64, bool)> {
    let (count, has_keys) = undo_count(head)?;
    let keys = if has_keys { size_of::<u64>() as u64 } else { 0 };
    Some((UNDO_HEAD_BYTES + CHANGE_BYTES * count + keys, has_keys))
}

/// The number of changes in the undo list that begins with `head`, and whether it has their keys.
fn undo_count(head: &[u8]) -> Option<(u64, bool)> {
    let count = u32::from_le_bytes(head.get(4..8)?.try_into().ok()?);
    Some((u64::from(count & !WITH_KEYS), count & WITH_KEYS != 0))
}

/// A change, and its key if the list has that.
pub(super) type KeyedChange<'a> = (WordChange, Option<&'a [u8]>);

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Decodes the undo list at a place in the pool: its changes, each with its key if the list has keys; `None`
/// if `bytes` are no undo list.
pub(super) fn decode_undo(place: u64, bytes: &[u8]) -> Option<Vec<KeyedChange<'_>>> {
    let (front, has_keys) = undo_bytes(bytes)?;
    let (count, _) = undo_count(bytes)?;
    let keys = if has_keys { word_at(bytes, (front - 8) as usize)? } else { 0 };
    let right = bytes.len() as u64 == front.checked_add(keys)?
        && bytes[..4] == crc32c(&bytes[4..]).to_le_bytes()
        && word_at(bytes, 8)? == place;
    if !right {
        return None;
    }
    let mut rest = &bytes[front as usize..];
    let mut changes = Vec::with_capacity(count as usize);
    for i in 0..count as usize {
        let at = UNDO_HEAD_BYTES as usize + i * CHANGE_BYTES as usize;
        let change = WordChange { new: word_at(bytes, at)?, old: word_at(bytes, at + 8)? };
        let mut key = None;
        if has_keys {
            let (len, behind) = rest.split_first_chunk::<2>()?;
            let (own, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
            (key, rest) = (Some(own), behind);
        }
        changes.push((change, key));
    }
    rest.is_empty().then_some(changes)
}

#[cfg(test)]
mod tests {
    use terrace_base::checksum::unseal48;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
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
        let changes = [WordChange { new: 0x40, old: 0 }, WordChange { new: 0, old: 0x2_0000_0000_0050 }];
        let keys: [&[u8]; 2] = [b"a", b"key"];
        let plain = encode_undo(0x3000, &changes, None);
        let with_keys = encode_undo(0x3000, &changes, Some(&keys));
        assert_eq!((hex(&plain), hex(&with_keys)), (GOLDEN_UNDO.into(), GOLDEN_UNDO_WITH_KEYS.into()));
        let read = |bytes| decode_undo(0x3000, bytes);
        assert_eq!(read(&plain), Some(changes.map(|change| (change, None)).to_vec()));
        let both = changes.into_iter().zip(keys).map(|(change, key)| (change, Some(key))).collect();
        assert_eq!(read(&with_keys), Some(both));
        for bytes in [plain, with_keys] {
            assert_eq!(decode_undo(0x4000, &bytes), None);
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode_undo(0x3000, &damaged), None, "bit {bit}");
            }
        }
    }

    const GOLDEN_HEADER: &str = "544552524156455202000000d2bf00c10700000000003f1c";
    const GOLDEN_UNDO_WITH_KEYS: &str = concat!(
        "65d39a140200008000300000000000004000000000000000000000000000000000000000000000005000000000000200",
        "080000000000000001006103006b6579"
    );
    const GOLDEN_UNDO: &str =
        "d34ca1420200000000300000000000004000000000000000000000000000000000000000000000005000000000000200";
}
