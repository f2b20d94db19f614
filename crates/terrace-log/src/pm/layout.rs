//! The line at the front of every extent of a log on PM (`docs/formats/log.md`).

use terrace_base::checksum::{crc32c, crc32c_append, seal48, unseal48};
use terrace_base::codec::Reader;

/// Bytes of the header, one cache line.
pub(crate) const EXTENT_HEADER_BYTES: u64 = 64;

/// Where the word lies that links the next extent.
pub(crate) const NEXT_AT: u64 = 56;

/// The first bytes of every extent.
const MAGIC: [u8; 8] = *b"TERRAPML";

/// The version of the format written here, and the only one read.
pub(crate) const VERSION: u32 = 1;

/// The constant part of an extent's header while it belongs to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentHeader {
    /// The log's id, the same in all its extents.
    pub(crate) id: u64,
    /// The extent's own offset.
    pub(crate) offset: u64,
    /// Its length, this header included.
    pub(crate) bytes: u64,
    /// Its place in the chain, from 0.
    pub(crate) index: u32,
    /// Its kind in the pool.
    pub(crate) kind: u8,
}

impl ExtentHeader {
    /// The header's bytes, with nothing linked.
    pub(crate) fn encode(&self) -> [u8; EXTENT_HEADER_BYTES as usize] {
        let mut out = [0; EXTENT_HEADER_BYTES as usize];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..32].copy_from_slice(&self.offset.to_le_bytes());
        out[32..40].copy_from_slice(&self.bytes.to_le_bytes());
        out[40..44].copy_from_slice(&self.index.to_le_bytes());
        out[44] = self.kind;
        let check = check_of(&out);
        out[12..16].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// The version and the header in `front`, which may end before the link, if its check is right.
    pub(crate) fn decode(front: &[u8]) -> Option<(u32, ExtentHeader)> {
        let front = front.get(..NEXT_AT as usize)?;
        let mut fields = Reader::new(front);
        let (magic, version, check) = (fields.take(8)?, fields.u32()?, fields.u32()?);
        let header = ExtentHeader {
            id: fields.u64()?,
            offset: fields.u64()?,
            bytes: fields.u64()?,
            index: fields.u32()?,
            kind: fields.u8()?,
        };
        (magic == MAGIC && check == check_of(front)).then_some((version, header))
    }
}

/// The check covers everything but itself and the link.
fn check_of(front: &[u8]) -> u32 {
    crc32c_append(crc32c(&front[..12]), &front[16..NEXT_AT as usize])
}

/// The word that links `offset` from an extent of the log `id`: never 0, which links nothing.
pub(crate) fn link_word(id: u64, offset: u64) -> u64 {
    seal48(id, offset)
}

/// The offset that `word` links: `Ok(None)` for nothing, `Err` if the word is damaged.
pub(crate) fn linked(id: u64, word: u64) -> Result<Option<u64>, ()> {
    match (word, unseal48(id, word)) {
        (0, _) => Ok(None),
        (_, Some(offset)) if offset != 0 => Ok(Some(offset)),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: ExtentHeader = ExtentHeader { id: 7, offset: 0x2_0000, bytes: 0x1_0000, index: 3, kind: 9 };

    #[test]
    fn golden_extent_header() {
        let bytes = HEADER.encode();
        assert_eq!(&bytes[..12], b"TERRAPML\x01\0\0\0");
        assert_eq!(bytes[12..16], [0x52, 0x25, 0x24, 0xfe]);
        assert_eq!(&bytes[16..32], b"\x07\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0");
        assert_eq!(&bytes[32..48], b"\0\0\x01\0\0\0\0\0\x03\0\0\0\x09\0\0\0");
        assert_eq!(bytes[48..], [0; 16]);
        assert_eq!(ExtentHeader::decode(&bytes), Some((VERSION, HEADER)));
        assert_eq!(link_word(7, 0x2_0000), 0xba31_0000_0002_0000);
    }

    #[test]
    fn every_flipped_bit_of_the_header_is_found() {
        for bit in 0..NEXT_AT as usize * 8 {
            let mut bytes = HEADER.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ExtentHeader::decode(&bytes), None, "bit {bit}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_link_is_found() {
        let word = link_word(7, 0x2_0000);
        assert_eq!(linked(7, word), Ok(Some(0x2_0000)));
        assert_eq!(linked(7, 0), Ok(None));
        assert_eq!(linked(8, word), Err(()));
        for bit in 0..64 {
            assert_eq!(linked(7, word ^ 1 << bit), Err(()), "bit {bit}");
        }
    }
}
