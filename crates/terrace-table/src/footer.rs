//! The two ends of a table file: a head that names it and a footer that finds its parts.
//!
//! ```text
//! head                                  footer, the last 64 bytes
//!  0  8 bytes  "TERRTBL\n"               0  u32  root block: offset / 16     4  u32  its length
//!  8  u32      format version            8  u32  filter block or 0          12  u32  its length or 0
//! 12  u32      table number             16  u32  meta block                 20  u32  its length
//!                                       24  u32  end of data blocks / 16    28  u32  table number
//!                                       32  u64  file length                40  u32  format version
//!                                       44  u64  origin                     52  u32  CRC-32C of bytes 0..52
//!                                       56  8 bytes  "\nLBTRRET"
//! ```

use std::path::Path;

use terrace_base::checksum::crc32c;
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};

use crate::frame::{HEADER_BYTES, Handle, Malformed, Owner};
use crate::position::BLOCK_ALIGN;

/// The version of the table format that this build writes and reads.
pub const FORMAT_VERSION: u32 = 4;

/// Bytes of the head; the first block follows.
pub(crate) const HEAD_BYTES: usize = 16;
/// Bytes of the footer.
pub(crate) const FOOTER_BYTES: usize = 64;
const HEAD_MAGIC: [u8; 8] = *b"TERRTBL\n";
const FOOT_MAGIC: [u8; 8] = *b"\nLBTRRET";
const CRC_AT: usize = 52;
const VERSION_AT: usize = 40;

/// The bytes that open table `number`.
pub(crate) fn encode_head(number: u32) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    out[..8].copy_from_slice(&HEAD_MAGIC);
    out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    out[12..].copy_from_slice(&number.to_le_bytes());
    out
}

/// Whether a file with this `head`, which may be cut short, was meant to be a table.
pub(crate) fn may_be_table(head: &[u8]) -> bool {
    HEAD_MAGIC.starts_with(&head[..head.len().min(HEAD_MAGIC.len())])
}

/// Where the parts of a table lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footer {
    pub root: Handle,
    pub filter: Option<Handle>,
    pub meta: Handle,
    pub data_end: u64,
    pub number: u32,
    pub file_bytes: u64,
    /// Its origin, as its user defines it; 0 for not known.
    pub origin: u64,
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    data.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl Footer {
    /// The identity that every block of the table is bound to.
    pub fn owner(&self) -> Owner {
        Owner { number: self.number, origin: self.origin }
    }

    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        let none = Handle { offset: 0, len: 0 };
        for handle in [self.root, self.filter.unwrap_or(none), self.meta] {
            out.extend_from_slice(&((handle.offset / BLOCK_ALIGN) as u32).to_le_bytes());
            out.extend_from_slice(&(handle.len as u32).to_le_bytes());
        }
        out.extend_from_slice(&((self.data_end / BLOCK_ALIGN) as u32).to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.file_bytes.to_le_bytes());
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.origin.to_le_bytes());
        out.extend_from_slice(&crc32c(&out).to_le_bytes());
        out.extend_from_slice(&FOOT_MAGIC);
        let mut footer = [0; FOOTER_BYTES];
        footer.copy_from_slice(&out);
        footer
    }

    /// Checks `head` and `foot`, the two ends of a file of `file_bytes`, against each other and reads the footer. The
    /// error depends on whether this is a table at all, and on its version.
    pub fn decode(path: &Path, head: &[u8], foot: &[u8], file_bytes: u64) -> Result<Footer> {
        check_kind(path, head, foot, file_bytes)?;
        let foot_at = file_bytes - FOOTER_BYTES as u64;
        let crc = crc32c(&foot[..CRC_AT]);
        if crc != u32_at(foot, CRC_AT) {
            let found = format!("checksum {crc:#010x} instead of {:#010x}", u32_at(foot, CRC_AT));
            return Err(Error::corruption(path, foot_at, "a footer with its checksum", found));
        }
        check_version(path, head, foot)?;
        let footer =
            parse(foot).ok_or_else(|| Error::corruption(path, foot_at, "a footer", "too few bytes"))?;
        footer.validate(file_bytes).map_err(|m| m.at(path, foot_at))?;
        if head[12..] != footer.number.to_le_bytes() {
            let found = format!("table {}", u32_at(head, 12));
            return Err(Error::corruption(path, 12, format!("table {}", footer.number), found));
        }
        Ok(footer)
    }

    fn validate(&self, file_bytes: u64) -> Result<(), Malformed> {
        if self.file_bytes != file_bytes {
            return Err(Malformed::new(
                "a footer that gives the file's length",
                format!("{} in a file of {file_bytes}", self.file_bytes),
            ));
        }
        let limit = file_bytes - FOOTER_BYTES as u64;
        let inside =
            |h: &Handle| h.offset >= self.data_end && h.len >= HEADER_BYTES as u64 && h.end() <= limit;
        let parts = [Some(&self.root), self.filter.as_ref(), Some(&self.meta)];
        if self.data_end < HEAD_BYTES as u64 || !parts.into_iter().flatten().all(inside) {
            return Err(Malformed::new("parts that lie within the file", format!("{self:?}")));
        }
        Ok(())
    }
}

/// Tells a damaged table from a foreign file.
fn check_kind(path: &Path, head: &[u8], foot: &[u8], file_bytes: u64) -> Result<()> {
    let magic = &head[..head.len().min(HEAD_MAGIC.len())];
    let head_ours = may_be_table(head);
    let whole = head.len() == HEAD_BYTES && foot.len() == FOOTER_BYTES;
    let foot_ours = whole && foot[CRC_AT + 4..] == FOOT_MAGIC;
    if !head_ours && !foot_ours {
        return Err(Error::foreign(
            path,
            format!("magic {magic:02x?}"),
            format!("magic {HEAD_MAGIC:02x?}, version {FORMAT_VERSION}"),
        ));
    }
    if !head_ours {
        return Err(Error::corruption(path, 0, "a table's magic", format!("{magic:02x?}")));
    }
    if !whole || !foot_ours {
        let foot_at = file_bytes.saturating_sub(FOOTER_BYTES as u64);
        return Err(Error::corruption(
            path,
            foot_at,
            "a table's footer",
            "other bytes: cut short or overwritten",
        ));
    }
    Ok(())
}

/// Compares the versions at both ends. The checksum of `foot`, which is where it is in every version, holds.
fn check_version(path: &Path, head: &[u8], foot: &[u8]) -> Result<()> {
    let (first, last) = (u32_at(head, 8), u32_at(foot, VERSION_AT));
    if first == last && first != FORMAT_VERSION {
        return Err(Error::other_version(
            path,
            format!("version {first}"),
            format!("version {FORMAT_VERSION}"),
        ));
    }
    if first != FORMAT_VERSION {
        return Err(Error::corruption(
            path,
            8,
            format!("version {FORMAT_VERSION}"),
            format!("version {first}"),
        ));
    }
    Ok(())
}

fn parse(foot: &[u8]) -> Option<Footer> {
    let mut r = Reader::new(foot);
    let mut handle = || {
        let offset = u64::from(r.u32()?) * BLOCK_ALIGN;
        Some(Handle { offset, len: u64::from(r.u32()?) })
    };
    let (root, filter, meta) = (handle()?, handle()?, handle()?);
    let data_end = u64::from(r.u32()?) * BLOCK_ALIGN;
    let (number, file_bytes) = (r.u32()?, r.u64()?);
    let (_version, origin) = (r.u32()?, r.u64()?);
    let filter = (filter.len > 0).then_some(filter);
    Some(Footer { root, filter, meta, data_end, number, file_bytes, origin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_base::ErrorKind;

    const SIZE: u64 = 1024;

    fn footer() -> Footer {
        Footer {
            root: Handle { offset: 128, len: 100 },
            filter: None,
            meta: Handle { offset: 256, len: 50 },
            data_end: 128,
            number: 9,
            file_bytes: SIZE,
            origin: 0x0102_0304_0506_0708,
        }
    }

    fn decode(head: &[u8], foot: &[u8]) -> Result<Footer> {
        Footer::decode(Path::new("t"), head, foot, SIZE)
    }

    #[test]
    fn round_trip_and_every_flip() {
        let (head, foot) = (encode_head(9), footer().encode());
        assert_eq!(decode(&head, &foot).unwrap(), footer());
        for bit in 0..8 * (HEAD_BYTES + FOOTER_BYTES) {
            let (mut head, mut foot) = (head, foot);
            match bit / 8 {
                at if at < HEAD_BYTES => head[at] ^= 1 << (bit % 8),
                at => foot[at - HEAD_BYTES] ^= 1 << (bit % 8),
            }
            let e = decode(&head, &foot).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corruption, "bit {bit}: {e}");
        }
    }

    #[test]
    fn foreign_and_future_files_are_told_apart() {
        let (mut head, mut foot) = (encode_head(9), footer().encode());
        assert_eq!(decode(&[7; 16], &[7; 64]).unwrap_err().kind(), ErrorKind::InvalidFormat);
        for version in [FORMAT_VERSION as u8 - 1, FORMAT_VERSION as u8 + 1] {
            head[8] = version;
            foot[VERSION_AT] = version;
            assert_eq!(decode(&head, &foot).unwrap_err().kind(), ErrorKind::Corruption, "without a checksum");
            let crc = crc32c(&foot[..CRC_AT]);
            foot[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            let e = decode(&head, &foot).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidFormat);
            assert!(e.to_string().contains(&format!("version {version}")), "{e}");
        }
        assert_eq!(decode(b"", b"").unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(decode(b"hello", b"").unwrap_err().kind(), ErrorKind::InvalidFormat);
    }
}
