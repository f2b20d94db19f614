//! The frame around every block: a header that describes and checks the payload.
//!
//! ```text
//!  0  u16  magic
//!  2  u8   block kind
//!  3  u8   compression
//!  4  u32  table number
//!  8  u32  stored payload bytes
//! 12  u32  payload bytes after decompression
//! 16  u32  CRC-32C of the stored payload
//! 20  u32  CRC-32C of bytes 0..20, of the block's file offset as a u64, and of the table's origin as a u64
//! 24  payload, then zeros up to a multiple of 16
//! ```
//!
//! The header has a checksum of its own so that its lengths can be trusted before anything is
//! allocated, and so that a scan can step over a payload that is damaged. Number, offset and origin are
//! covered so that a stray copy of a block, also one from another database, is not taken for the block itself.

use std::path::Path;

use bytes::Bytes;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};

use crate::entry::{Kind, MAX_VALUE_BYTES};
use crate::options::{Compression, TableOptions};
use crate::position::BLOCK_ALIGN;

/// Bytes of a block's header.
pub(crate) const HEADER_BYTES: usize = 24;
/// No payload is longer: the largest block target and one largest entry.
pub(crate) const MAX_PAYLOAD_BYTES: usize = MAX_VALUE_BYTES + TableOptions::MAX_BLOCK_BYTES + (1 << 20);
/// LZ4 cannot expand a byte to more than this many.
const LZ4_MAX_RATIO: usize = 255;
const MAGIC: u16 = 0xb10c;

/// The sort of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockKind {
    Data = 1,
    /// Handles of data blocks.
    Index = 2,
    /// Handles of index blocks.
    Root = 3,
    Filter = 4,
    Meta = 5,
}

impl BlockKind {
    fn from_u8(byte: u8) -> Option<BlockKind> {
        use BlockKind::*;
        [Data, Index, Root, Filter, Meta].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// The table of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub number: u32,
    /// The table's origin, as its user defines it; 0 for not known.
    pub origin: u64,
}

/// Where a block lies and how long it is, header included and padding not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    pub offset: u64,
    pub len: u64,
}

impl Handle {
    /// Where the next block starts.
    pub fn end(self) -> u64 {
        (self.offset + self.len).next_multiple_of(BLOCK_ALIGN)
    }
}

/// Stored bytes that violate the format, at a place that the caller knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed {
    expected: &'static str,
    found: String,
    /// The bytes are sound, but of a kind that only a later version knows.
    later: Option<&'static str>,
}

impl Malformed {
    pub fn new(expected: &'static str, found: impl Into<String>) -> Self {
        Malformed { expected, found: found.into(), later: None }
    }

    /// An entry that holds `what`, which only a later version knows.
    pub fn of_later_version(what: &'static str) -> Self {
        Malformed { later: Some(what), ..Malformed::new("a put or a deletion", what) }
    }

    #[cold]
    pub fn at(self, path: &Path, offset: u64) -> Error {
        match self.later {
            Some(what) => Kind::later(what, path),
            None => Error::corruption(path, offset, self.expected, self.found),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: BlockKind,
    pub compression: Compression,
    pub number: u32,
    pub stored: u32,
    pub raw: u32,
    pub payload_crc: u32,
}

fn header_crc(fields: &[u8], offset: u64, origin: u64) -> u32 {
    crc32c_append(crc32c_append(crc32c(fields), &offset.to_le_bytes()), &origin.to_le_bytes())
}

impl Header {
    /// The bytes of the header at `offset` of a table of `origin`.
    pub fn encode(&self, offset: u64, origin: u64) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        out[2] = self.kind as u8;
        out[3] = self.compression as u8;
        out[4..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..12].copy_from_slice(&self.stored.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw.to_le_bytes());
        out[16..20].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = header_crc(&out[..20], offset, origin);
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The first eight bytes of a header, as a number.
    #[inline]
    pub fn first_word(kind: BlockKind, compression: Compression, number: u32) -> u64 {
        u64::from(MAGIC) | (kind as u64) << 16 | (compression as u64) << 24 | u64::from(number) << 32
    }

    /// The first eight bytes of the header `head`.
    #[inline]
    pub fn word_of(head: &[u8; HEADER_BYTES]) -> u64 {
        head.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
    }

    /// Bytes of the stored payload according to `head`.
    #[inline]
    pub fn stored_of(head: &[u8; HEADER_BYTES]) -> usize {
        u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize
    }

    /// Whether `data` may start with a header; a quick test for searches.
    pub fn starts_at(data: &[u8]) -> bool {
        data.starts_with(&MAGIC.to_le_bytes())
    }

    /// The header at the front of `data`, which was read from `offset` of a table of `origin`.
    pub fn decode(data: &[u8], offset: u64, origin: u64) -> Result<Header, Malformed> {
        let fields = data.get(..20).ok_or_else(|| Malformed::new("a block header", "too few bytes"))?;
        let mut r = Reader::new(data);
        let short = || Malformed::new("a block header", "too few bytes");
        let magic = r.u16().ok_or_else(short)?;
        let (kind, compression) = (r.u8().ok_or_else(short)?, r.u8().ok_or_else(short)?);
        let (number, stored) = (r.u32().ok_or_else(short)?, r.u32().ok_or_else(short)?);
        let (raw, payload_crc) = (r.u32().ok_or_else(short)?, r.u32().ok_or_else(short)?);
        let crc = r.u32().ok_or_else(short)?;
        if magic != MAGIC || crc != header_crc(fields, offset, origin) {
            return Err(Malformed::new(
                "a block header of this table and place with its checksum",
                format!("{:02x?}", &data[..HEADER_BYTES]),
            ));
        }
        let kind = BlockKind::from_u8(kind)
            .ok_or_else(|| Malformed::new("a block kind of 1 to 5", kind.to_string()))?;
        let compression = Compression::from_u8(compression)
            .ok_or_else(|| Malformed::new("a compression of 0 or 1", compression.to_string()))?;
        let header = Header { kind, compression, number, stored, raw, payload_crc };
        if header.lengths_agree() {
            Ok(header)
        } else {
            Err(Malformed::new("payload lengths that agree", format!("{stored} stored, {raw} raw")))
        }
    }

    fn lengths_agree(&self) -> bool {
        let (stored, raw) = (self.stored as usize, self.raw as usize);
        let consistent = match self.compression {
            Compression::None => stored == raw,
            Compression::Lz4 => stored < raw && raw / LZ4_MAX_RATIO <= stored,
        };
        consistent && raw <= MAX_PAYLOAD_BYTES
    }

    /// The block's length, header included and padding not.
    pub fn block_len(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.stored)
    }

    /// Checks and decompresses the payload of `block`, which starts with this header. An uncompressed
    /// payload is returned as a share of `block`.
    pub fn open_payload(&self, block: &Bytes) -> Result<Bytes, Malformed> {
        let stored = block.get(HEADER_BYTES..HEADER_BYTES + self.stored as usize).ok_or_else(|| {
            Malformed::new("a whole block", format!("{} bytes of {}", block.len(), self.block_len()))
        })?;
        let crc = crc32c(stored);
        if crc != self.payload_crc {
            return Err(Malformed::new(
                "a payload with its checksum",
                format!("checksum {crc:#010x} instead of {:#010x}", self.payload_crc),
            ));
        }
        match self.compression {
            Compression::None => Ok(block.slice(HEADER_BYTES..HEADER_BYTES + stored.len())),
            Compression::Lz4 => self.decompress(stored),
        }
    }

    fn decompress(&self, stored: &[u8]) -> Result<Bytes, Malformed> {
        let mut raw = vec![0; self.raw as usize];
        match lz4_flex::block::decompress_into(stored, &mut raw) {
            Ok(len) if len == raw.len() => Ok(Bytes::from(raw)),
            Ok(len) => {
                Err(Malformed::new("a payload of its full length", format!("{len} bytes of {}", raw.len())))
            }
            Err(e) => Err(Malformed::new("an LZ4 payload", e.to_string())),
        }
    }
}

/// The zeros between the end of a block and the next multiple of 16.
pub(crate) fn pad(out: &mut Vec<u8>, end: u64) {
    let zeros = end.next_multiple_of(BLOCK_ALIGN) - end;
    out.resize(out.len() + zeros as usize, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: u64 = 0x0102_0304_0506_0708;

    fn header() -> Header {
        Header {
            kind: BlockKind::Data,
            compression: Compression::None,
            number: 7,
            stored: 3,
            raw: 3,
            payload_crc: crc32c(b"abc"),
        }
    }

    #[test]
    fn golden_header() {
        let bytes = header().encode(16, ORIGIN);
        assert_eq!(bytes[..16], [0x0c, 0xb1, 1, 0, 7, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[16..20], 0x364b_3fb7u32.to_le_bytes());
        assert_eq!(Header::decode(&bytes, 16, ORIGIN), Ok(header()));
        let word = Header::first_word(BlockKind::Data, Compression::None, 7);
        assert_eq!((Header::word_of(&bytes), Header::stored_of(&bytes)), (word, 3));
    }

    #[test]
    fn every_flip_another_offset_and_anotherorigin_are_noticed() {
        let bytes = header().encode(16, ORIGIN);
        assert!(Header::decode(&bytes, 32, ORIGIN).is_err());
        assert!(Header::decode(&bytes, 16, ORIGIN + 1).is_err());
        for bit in 0..8 * HEADER_BYTES {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged, 16, ORIGIN).is_err(), "bit {bit}");
        }
        for len in 0..HEADER_BYTES {
            assert!(Header::decode(&bytes[..len], 16, ORIGIN).is_err());
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        for (compression, stored, raw) in [
            (Compression::None, 3, 4),
            (Compression::None, u32::MAX, u32::MAX),
            (Compression::Lz4, 3, 3),
            (Compression::Lz4, 10, 1 << 30),
        ] {
            let bytes = Header { compression, stored, raw, ..header() }.encode(16, ORIGIN);
            assert!(Header::decode(&bytes, 16, ORIGIN).is_err());
        }
    }
}
