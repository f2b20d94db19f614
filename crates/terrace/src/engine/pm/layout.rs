//! What lies in the pool beside the index: one header, a record for each version, and the undo list of a group that is
//! being applied. `docs/formats/versions.md` tells it byte by byte.

use terrace_base::checksum::{crc32c, crc32c_append, seal48};
use terrace_index::kinds;
use terrace_pmem::Kind as PmKind;

/// The slot of the header.
pub(crate) const HEADER_KIND: PmKind = kinds::VERSION_HEADER;
/// The slot of an undo list.
pub(crate) const UNDO_KIND: PmKind = kinds::VERSION_UNDO;

/// Bytes of the header, one cache line.
pub(super) const HEADER_BYTES: u64 = 64;
/// Where the header has the highest number that a record may have.
pub(super) const MARK_AT: u64 = 16;
/// Where it has the undo list of the group that is being applied; 0 for none.
pub(super) const UNDO_AT: u64 = 24;

/// Bytes of an undo list before its changes, and of each change.
pub(super) const UNDO_HEAD_BYTES: u64 = 16;
pub(super) const CHANGE_BYTES: u64 = 16;

const MAGIC: [u8; 8] = *b"TERRAVER";
pub(super) const VERSION: u32 = 2;

const _: () = {
    assert!(MARK_AT.is_multiple_of(8) && UNDO_AT.is_multiple_of(8) && UNDO_AT + 8 <= HEADER_BYTES);
    assert!(CHANGE_BYTES == 2 * size_of::<u64>() as u64 && UNDO_HEAD_BYTES.is_multiple_of(8));
};

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

    const GOLDEN_HEADER: &str = "544552524156455202000000d2bf00c10700000000003f1c";
    const GOLDEN_UNDO: &str =
        "d34ca1420200000000300000000000004000000000000000000000000000000000000000000000005000000000000200";
}
