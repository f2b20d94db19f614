//! Keys prepared for searches, and comparisons of keys.

use std::cmp::Ordering;

use terrace_base::checksum::hash64;

use super::layout::RECORD;

/// Longest key that is its own word.
pub(super) const INLINE_BYTES: usize = 8;

/// A key prepared for a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'k> {
    pub key: &'k [u8],
    /// Its first eight bytes, big-endian, zeros past its end.
    pub word: u64,
    /// 16 bits of its hash: tag in the low byte, place in the filter in the high one.
    pub hash: u16,
}

impl<'k> Probe<'k> {
    pub fn new(key: &'k [u8]) -> Probe<'k> {
        let word = word_of(key);
        let hash =
            if key.len() <= INLINE_BYTES { hash_inline(word, key.len() as u8) } else { hash_long(key) };
        Probe { key, word, hash }
    }

    /// A key for comparisons only, without its hash.
    pub fn plain(key: &'k [u8]) -> Probe<'k> {
        Probe { key, word: word_of(key), hash: 0 }
    }

    /// Its sort in a slot: the length of one that is its own word, else [`RECORD`].
    pub fn kind(&self) -> u8 {
        if self.key.len() <= INLINE_BYTES { self.key.len() as u8 } else { RECORD }
    }
}

/// The first eight bytes of `key`, big-endian, zeros past its end.
pub(super) fn word_of(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut padded = [0; 8];
            padded[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(padded)
        }
    }
}

/// The hash of a key that is its own word.
pub(super) fn hash_inline(word: u64, len: u8) -> u16 {
    let mut h = (word ^ u64::from(len) << 3).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    h = (h ^ h >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (h >> 48) as u16
}

fn hash_long(key: &[u8]) -> u16 {
    (hash64(key) >> 48) as u16
}

/// How a key compares with one of `len` bytes, at most eight, that is its own word.
#[inline]
pub(super) fn cmp_inline(word: u64, key_len: usize, other: u64, len: usize) -> Ordering {
    word.cmp(&other).then(key_len.cmp(&len))
}

/// The bytes of a key that is its own word.
#[inline]
pub(super) fn inline_bytes(word: u64) -> [u8; 8] {
    word.to_be_bytes()
}

/// Bytes that `a` and `b` begin with in common.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The shortest key greater than `left` and at most `right`, given `left < right`.
pub(super) fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    &right[..(common(left, right) + 1).min(right.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_lengths_order_as_short_keys_do() {
        let keys: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"a", b"a\0", b"ab", b"abcdefgh"];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(cmp_inline(word_of(a), a.len(), word_of(b), b.len()), i.cmp(&j));
            }
        }
    }

    #[test]
    fn separators_are_short_and_separate() {
        for (left, right, want) in
            [("abc", "abd", "abd"), ("a", "b", "b"), ("ab", "abc", "abc"), ("", "zz", "z")]
        {
            assert_eq!(separator(left.as_bytes(), right.as_bytes()), want.as_bytes());
        }
    }

    #[test]
    fn hashes_of_dense_keys_spread() {
        let mut tags = std::collections::HashSet::new();
        for i in 0..2000u64 {
            tags.insert(Probe::new(&i.to_be_bytes()).hash);
        }
        assert!(tags.len() > 1900);
    }
}
