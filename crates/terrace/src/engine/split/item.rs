//! An item in slots: a version of a key with its number, recognizable by itself as this database's.
//! `docs/formats/split.md` describes the bytes.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::{Error, Kind, Result};
use terrace_disk::{BlockBuf, LEAST_SECTOR_BYTES};

use crate::batch::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::engine::pm::{Item, Loaded};

/// Bytes before the key, or before the mask of an item that has one.
pub(super) const HEAD_BYTES: usize = 32;

/// Its last byte is the version.
const MAGIC: [u8; 8] = *b"TERSLOT1";

/// The version of an item that lies masked.
const MASKED: u8 = b'2';

/// Greater versions are reserved for items of other kinds and with further fields, such as an expiry or a
/// keyspace's number. Their heads have the same length, and lengths, origin and checksum stay in their places.
const LAST_VERSION: u8 = b'9';

/// The first bytes of everything that begins in a file of slots. No sector within an item begins with them: a
/// value may hold items, and without this nobody could tell them from real ones once the head of the item
/// around them was overwritten.
const BEGINNING: [u8; MASK_BYTES] = *b"TERS";

const MASK_BYTES: usize = 4;

/// Bits of a number; the rest of its word is the length of the key.
const NUMBER_BITS: u32 = 48;

const _: () =
    assert!(MAX_KEY_BYTES <= u16::MAX as usize && MAX_VALUE_BYTES + MASK_BYTES <= u32::MAX as usize);

/// Encodes an item of the database with this `origin`, in whole sectors.
pub(super) fn encode(origin: u64, item: &Item<'_>, sector_bytes: u32) -> BlockBuf {
    let (mut out, mut bytes) = laid_out(origin, item, sector_bytes, false);
    if words_within(&out[..bytes]).any(|word| word == u32::from_le_bytes(BEGINNING)) {
        (out, bytes) = laid_out(origin, item, sector_bytes, true);
        let mask = mask_for(&out[..bytes]);
        out[HEAD_BYTES..HEAD_BYTES + MASK_BYTES].copy_from_slice(&mask);
        change(mask, bytes, &mut out);
    }
    let crc = crc(&out[..bytes]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The item without its checksum, and how many bytes of the sectors it takes. If it `is_masked` it has room for
/// the mask.
fn laid_out(origin: u64, item: &Item<'_>, sector_bytes: u32, is_masked: bool) -> (BlockBuf, usize) {
    let mask_bytes = if is_masked { MASK_BYTES } else { 0 };
    let (from, rest) = (HEAD_BYTES + mask_bytes, mask_bytes + item.value.len());
    let bytes = HEAD_BYTES + item.key.len() + rest;
    let mut out = BlockBuf::zeroed(bytes.next_multiple_of(sector_bytes as usize));
    out[..8].copy_from_slice(&MAGIC);
    if is_masked {
        out[7] = MASKED;
    }
    out[12..16].copy_from_slice(&(rest as u32).to_le_bytes());
    let word = item.number & ((1 << NUMBER_BITS) - 1) | (item.key.len() as u64) << NUMBER_BITS;
    out[16..24].copy_from_slice(&word.to_le_bytes());
    out[24..32].copy_from_slice(&origin.to_le_bytes());
    out[from..from + item.key.len()].copy_from_slice(item.key);
    out[from + item.key.len()..bytes].copy_from_slice(item.value);
    (out, bytes)
}

/// Where sectors may begin within an item of so many bytes, if they begin with four bytes of it. Drives differ in
/// their sectors, and the smallest are looked for where the size is not known.
fn places_within(bytes: usize) -> impl Iterator<Item = usize> {
    let least = LEAST_SECTOR_BYTES as usize;
    (least..).step_by(least).take_while(move |at| at + MASK_BYTES <= bytes)
}

fn words_within(item: &[u8]) -> impl Iterator<Item = u32> {
    places_within(item.len())
        .map(|at| u32::from_le_bytes([item[at], item[at + 1], item[at + 2], item[at + 3]]))
}

/// The smallest mask that lets no sector within `item` begin as an item does.
fn mask_for(item: &[u8]) -> [u8; MASK_BYTES] {
    let unfit: BTreeSet<u32> = words_within(item).map(|word| word ^ u32::from_le_bytes(BEGINNING)).collect();
    let mask = (0..=u32::MAX).find(|mask| !unfit.contains(mask));
    mask.expect("an item has fewer sectors than there are masks").to_le_bytes()
}

/// Changes the first bytes of each sector within an item of `bytes`, of which `part` is the beginning; a second time
/// takes that back.
fn change(mask: [u8; MASK_BYTES], bytes: usize, part: &mut [u8]) {
    let len = part.len();
    for at in places_within(bytes).take_while(|at| *at < len) {
        part[at..].iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

/// The checksum of the magic and everything after the checksum; for an item's beginning, the value to extend
/// by the rest. It covers what lies in the file.
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
    /// A mask follows the head.
    pub is_masked: bool,
}

impl Head {
    /// The head of an item of that database, if `bytes` begin with one; says nothing about the rest of the
    /// item.
    pub fn of(origin: u64, bytes: &[u8]) -> Option<Head> {
        let front: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let word =
            |at: usize| front[at..at + 8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        let (rest, is_masked) = ((word(8) >> 32) as usize, front[7] == MASKED);
        let value_len = rest.checked_sub(if is_masked { MASK_BYTES } else { 0 })?;
        let is_one = front[..7] == MAGIC[..7] && (MAGIC[7]..=LAST_VERSION).contains(&front[7]);
        let is_one = is_one && word(24) == origin && value_len <= MAX_VALUE_BYTES;
        is_one.then(|| Head {
            key_len: (word(16) >> NUMBER_BITS) as usize,
            value_len,
            number: word(16) & ((1 << NUMBER_BITS) - 1),
            is_later: front[7] > MASKED,
            is_masked,
        })
    }

    /// Where the key begins.
    pub fn key_from(&self) -> usize {
        HEAD_BYTES + if self.is_masked { MASK_BYTES } else { 0 }
    }

    /// Where the value begins.
    pub fn value_from(&self) -> usize {
        self.key_from() + self.key_len
    }

    /// Size of the item.
    pub fn bytes(&self) -> usize {
        self.value_from() + self.value_len
    }

    /// Turns the bytes of the item, or of its beginning, from what lies in the file into key and value.
    pub fn unmask(&self, part: &mut [u8]) {
        let mask = part.get(HEAD_BYTES..).and_then(|rest| rest.first_chunk()).copied();
        if let Some(mask) = mask.filter(|_| self.is_masked) {
            change(mask, self.bytes(), part);
        }
    }
}

/// The head of the item of that database at the beginning of `bytes`, if there is one and it is sound. A later
/// version may have written it.
pub(super) fn decode(origin: u64, bytes: &[u8]) -> Option<Head> {
    let head = Head::of(origin, bytes)?;
    let item = bytes.get(..head.bytes())?;
    (item[8..12] == crc(item).to_le_bytes()).then_some(head)
}

/// The version of `key` in the item at `offset` of the file at `path`.
pub(super) fn load(origin: u64, key: &[u8], mut item: BlockBuf, path: &Path, offset: u64) -> Result<Loaded> {
    let head = match decode(origin, &item) {
        Some(head) if head.is_later => return Err(later(path)),
        Some(head) => head,
        None => return Err(wrong(path, offset, key, "other bytes")),
    };
    head.unmask(&mut item);
    if item[head.key_from()..head.value_from()] != *key {
        return Err(wrong(path, offset, key, "another key's"));
    }
    let value = Bytes::from_owner(item).slice(head.value_from()..head.bytes());
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
        for version in [b'3', b'9'] {
            let mut bytes = encode(7, &ITEM, 512);
            bytes[7] = version;
            assert!(decode(7, &bytes).is_none(), "its checksum covers the version");
            let crc = crc(&bytes[..40]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            let error = load(7, b"key", bytes, Path::new("slots"), 0).unwrap_err();
            assert!(error.is_of_another_version(), "{error}");
        }
    }

    fn is_round(item: &Item<'_>) -> BlockBuf {
        let bytes = encode(7, item, 512);
        let begins = |sector: &[u8]| sector.starts_with(&BEGINNING);
        assert!(bytes.chunks(512).skip(1).all(|sector| !begins(sector)), "an item may begin within an item");
        let loaded = load(7, item.key, bytes.clone(), Path::new("slots"), 0).unwrap();
        assert!((loaded.number, &loaded.value[..]) == (item.number, item.value));
        bytes
    }

    #[test]
    fn golden_masked_item() {
        let value = [&[0; 473][..], b"TERSTERS"].concat();
        let bytes = encode(0x1122_3344, &Item { key: b"key", value: &value, number: 0x0102_0304 }, 512);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!((bytes.len(), hex(&bytes[..40])), (1024, MASKED_FRONT.to_string()));
        assert_eq!(&bytes[512..521], b"UERSTERS\0");
        is_round(&Item { key: b"key", value: &value, number: 0x0102_0304 });
    }

    /// Must catch a sector of a key or a value that can be taken for the beginning of an item.
    #[test]
    fn no_sector_within_an_item_begins_as_one() {
        let inner = encode(7, &ITEM, 512);
        for len in 0..520 {
            let before = vec![1; len];
            for value in [[&before[..], &inner, b"TERS"].concat(), [&before[..], b"TERSTAMPTERS"].concat()] {
                is_round(&Item { key: b"key", value: &value, number: 9 });
                is_round(&Item { key: &value, value: b"", number: 9 });
                is_round(&Item { key: &value, value: &value, number: 9 });
            }
        }
        // Sectors that leave no room for the first masks.
        let words = (0..300u32).map(|mask| (u32::from_le_bytes(BEGINNING) ^ mask).to_le_bytes());
        let sectors: Vec<u8> = words.flat_map(|word| [&word[..], &BEGINNING, &[0; 504]].concat()).collect();
        let value = [&[0; 476][..], &sectors].concat();
        let bytes = is_round(&Item { key: b"", value: &value, number: 9 });
        assert_eq!((bytes[7], &bytes[32..36]), (b'2', &300u32.to_le_bytes()[..]));
        // With a few bytes less than a beginning behind the last border nothing is changed.
        let value = [&[0; 480][..], b"TER"].concat();
        assert_eq!(is_round(&Item { key: b"", value: &value, number: 9 })[7], b'1');
    }

    #[test]
    fn every_bit_of_a_masked_item_counts() {
        let value = [&[0; 476][..], b"TERSTERS"].concat();
        let bytes = encode(7, &Item { key: b"", value: &value, number: 9 }, 512);
        assert_eq!(bytes[HEAD_BYTES], 1, "the mask");
        for bit in 0..(HEAD_BYTES + MASK_BYTES + value.len()) * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(7, &damaged).is_none(), "bit {bit}");
        }
    }

    const MASKED_FRONT: &str =
        "544552534c4f54322a7e5054e501000004030201000003004433221100000000010000006b657900";

    const GOLDEN: &str = "544552534c4f5431576a72be05000000040302010000030044332211000000006b657976616c7565";
}
