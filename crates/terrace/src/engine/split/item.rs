//! An item in slots: a version of a key with its number, recognizable by itself as this database's.
//! `docs/formats/split.md` describes the bytes.

use std::path::Path;

use bytes::Bytes;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::{Error, Kind, Result};
use terrace_disk::BlockBuf;

use crate::engine::pm::{Item, Loaded};

/// Bytes before the key.
pub(super) const HEAD_BYTES: usize = 32;

/// Its last byte is the version: greater ones are reserved for items of other kinds and with further fields,
/// such as an expiry or a keyspace's number. Their heads have the same length, and lengths, origin and
/// checksum stay in their places.
const MAGIC: [u8; 8] = *b"TERSLOT1";
const VERSIONS: std::ops::RangeInclusive<u8> = MAGIC[7]..=b'9';

/// Bits of a number; the rest of its word is the length of the key.
const NUMBER_BITS: u32 = 48;

const _: () = assert!(crate::batch::MAX_KEY_BYTES <= u16::MAX as usize);

/// Encodes an item of the database with this `origin`, in whole sectors.
pub(super) fn encode(origin: u64, item: &Item<'_>, sector_bytes: u32) -> BlockBuf {
    let bytes = HEAD_BYTES + item.key.len() + item.value.len();
    let mut out = BlockBuf::zeroed(bytes.next_multiple_of(sector_bytes as usize));
    out[..8].copy_from_slice(&MAGIC);
    out[12..16].copy_from_slice(&(item.value.len() as u32).to_le_bytes());
    let word = item.number & ((1 << NUMBER_BITS) - 1) | (item.key.len() as u64) << NUMBER_BITS;
    out[16..24].copy_from_slice(&word.to_le_bytes());
    out[24..32].copy_from_slice(&origin.to_le_bytes());
    out[HEAD_BYTES..HEAD_BYTES + item.key.len()].copy_from_slice(item.key);
    out[HEAD_BYTES + item.key.len()..bytes].copy_from_slice(item.value);
    let crc = crc(&out[..bytes]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The checksum of the magic and everything after the checksum; for an item's beginning, the value to extend
/// by the rest.
pub(super) fn crc(item: &[u8]) -> u32 {
    crc32c_append(crc32c(&item[..8]), &item[12..])
}

/// The head of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub key_len: usize,
    pub value_len: usize,
    pub number: u64,
    /// If the item is sound, a later version wrote it.
    pub is_later: bool,
}

impl Head {
    /// The head of an item of that database, if `bytes` begin with one; says nothing about the rest of the
    /// item.
    pub fn of(origin: u64, bytes: &[u8]) -> Option<Head> {
        let front: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let word =
            |at: usize| front[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        let value_len = u32::from_le_bytes([front[12], front[13], front[14], front[15]]) as usize;
        let is_one = front[..7] == MAGIC[..7] && VERSIONS.contains(&front[7]);
        let is_one = is_one && word(24) == origin && value_len <= crate::batch::MAX_VALUE_BYTES;
        is_one.then(|| Head {
            key_len: (word(16) >> NUMBER_BITS) as usize,
            value_len,
            number: word(16) & ((1 << NUMBER_BITS) - 1),
            is_later: front[7] != MAGIC[7],
        })
    }

    /// Size of the item.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.key_len + self.value_len
    }
}

/// A sound item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read<'a> {
    pub head: Head,
    pub key: &'a [u8],
}

/// The item of that database at the beginning of `bytes`, if there is one and it is sound. A later version
/// may have written it.
pub(super) fn decode(origin: u64, bytes: &[u8]) -> Option<Read<'_>> {
    let head = Head::of(origin, bytes)?;
    let item = bytes.get(..head.bytes())?;
    let is_sound = item[8..12] == crc(item).to_le_bytes();
    is_sound.then(|| Read { head, key: &item[HEAD_BYTES..HEAD_BYTES + head.key_len] })
}

/// The version of `key` in the item at `offset` of the file at `path`.
pub(super) fn load(origin: u64, key: &[u8], item: BlockBuf, path: &Path, offset: u64) -> Result<Loaded> {
    let head = match decode(origin, &item) {
        Some(read) if read.head.is_later => return Err(later(path)),
        Some(read) if read.key == key => read.head,
        Some(_) => return Err(wrong(path, offset, key, "another key's")),
        None => return Err(wrong(path, offset, key, "other bytes")),
    };
    let from = HEAD_BYTES + head.key_len;
    let value = Bytes::from_owner(item).slice(from..from + head.value_len);
    Ok(Loaded { number: head.number, value })
}

/// The error for a sound item that a later version wrote.
#[cold]
pub(super) fn later(path: &Path) -> Error {
    Kind::later("an item of another kind, or with further fields", path)
}

fn wrong(path: &Path, offset: u64, key: &[u8], found: &str) -> Error {
    Error::corruption(path, offset, format!("an item of the key {}", key.escape_ascii()), found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: Item<'_> = Item { key: b"key", value: b"value", number: 0x0102_0304 };

    #[test]
    fn golden_item() {
        let bytes = encode(0x1122_3344, &ITEM, 512);
        let shown: String = bytes[..40].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(shown, GOLDEN);
        assert_eq!((bytes.len(), &bytes[40..]), (512, &[0; 472][..]));
    }

    #[test]
    fn every_bit_of_an_item_counts() {
        let bytes = encode(7, &ITEM, 512);
        let found = load(7, b"key", bytes.clone(), Path::new("slots"), 0).unwrap();
        assert_eq!((found.number, &found.value[..]), (0x0102_0304, &b"value"[..]));
        assert!(load(7, b"kez", bytes.clone(), Path::new("slots"), 0).is_err());
        assert!(load(8, b"key", bytes.clone(), Path::new("slots"), 0).is_err(), "another database's");
        for bit in 0..40 * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(7, &damaged).is_none(), "bit {bit}");
        }
        assert!(decode(7, &bytes[..39]).is_none() && decode(7, &[]).is_none());
    }

    #[test]
    fn an_item_of_a_later_version_is_refused_by_name() {
        for version in [b'2', b'9'] {
            let mut bytes = encode(7, &ITEM, 512);
            bytes[7] = version;
            assert!(decode(7, &bytes).is_none(), "its checksum covers the version");
            let crc = crc(&bytes[..40]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            let error = load(7, b"key", bytes, Path::new("slots"), 0).unwrap_err();
            assert!(error.is_of_another_version(), "{error}");
        }
    }

    const GOLDEN: &str = "544552534c4f5431576a72be05000000040302010000030044332211000000006b657976616c7565";
}
