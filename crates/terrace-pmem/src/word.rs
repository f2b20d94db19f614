//! Words that carry their own check: 48 bits of value and 16 bits of checksum, published by one 8-byte store.
//!
//! The checksum is seeded with the word's sort and place, so that a word copied elsewhere, or an all-zero one, is never
//! valid.

use terrace_base::checksum::crc16;

/// Bits of value in a checked word.
pub(crate) const VALUE_BITS: u32 = 48;

/// The largest value of a checked word.
pub(crate) const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;

/// The sort of a positional word; part of its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Tag {
    /// An entry of the extent table.
    Table = b'T',
    /// 48 slots of a slab.
    Bitmap = b'B',
    /// The pool's size in extents.
    Size = b'S',
}

/// The word for `value`, of sort `tag`, at pool offset `offset`.
#[inline]
pub(crate) fn seal(tag: Tag, offset: u64, value: u64) -> u64 {
    debug_assert!(value <= VALUE_MAX);
    value | u64::from(check(tag, offset, value)) << VALUE_BITS
}

/// The value of a word, or `None` if it is not one that [`seal`] makes for this tag and place.
#[inline]
pub(crate) fn unseal(tag: Tag, offset: u64, word: u64) -> Option<u64> {
    let value = word & VALUE_MAX;
    ((word >> VALUE_BITS) as u16 == check(tag, offset, value)).then_some(value)
}

#[inline]
fn check(tag: Tag, offset: u64, value: u64) -> u16 {
    let mut bytes = [0; 16];
    bytes[0] = tag as u8;
    bytes[1..9].copy_from_slice(&offset.to_le_bytes());
    bytes[9..15].copy_from_slice(&value.to_le_bytes()[..6]);
    crc16(&bytes)
}

/// The word for `value` under a name.
pub(crate) fn seal_named(name: &[u8], value: u64) -> u64 {
    debug_assert!(value <= VALUE_MAX);
    value | u64::from(check_named(name, value)) << VALUE_BITS
}

/// The value of a named word, or `None` if it does not belong to the name.
pub(crate) fn unseal_named(name: &[u8], word: u64) -> Option<u64> {
    let value = word & VALUE_MAX;
    ((word >> VALUE_BITS) as u16 == check_named(name, value)).then_some(value)
}

fn check_named(name: &[u8], value: u64) -> u16 {
    let mut bytes = name.to_vec();
    bytes.extend_from_slice(&value.to_le_bytes()[..6]);
    crc16(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed() {
        for value in [0, 1, 0x1234_5678_9abc, VALUE_MAX] {
            let word = seal(Tag::Table, 4096, value);
            assert_eq!(unseal(Tag::Table, 4096, word), Some(value));
            for bit in 0..64 {
                assert_eq!(unseal(Tag::Table, 4096, word ^ (1 << bit)), None);
            }
            assert_eq!(unseal(Tag::Bitmap, 4096, word), None);
            assert_eq!(unseal(Tag::Table, 4104, word), None);
        }
        assert_eq!(unseal(Tag::Table, 4096, 0), None);
    }

    #[test]
    fn golden_words() {
        assert_eq!(seal(Tag::Table, 0x10000, 1), 0x3af4000000000001);
        assert_eq!(seal(Tag::Bitmap, 0x30040, 0b101), 0xeafa000000000005);
        assert_eq!(seal(Tag::Size, 8704, 4096), 0xcb27000000001000);
        assert_eq!(seal_named(b"index", 0x30000), 0xcb1c000000030000);
    }

    #[test]
    fn a_named_word_belongs_to_its_name() {
        let word = seal_named(b"index", 42);
        assert_eq!(unseal_named(b"index", word), Some(42));
        assert_eq!(unseal_named(b"indey", word), None);
        assert_eq!(unseal_named(b"index", word ^ 1), None);
    }
}
