//! The hash of keys. Its values are persistent.
//!
//! The hash of a key of eight bytes is a bijection, so it stands for the key: a slot that keeps it keeps the
//! key. All other keys take XXH3.

use terrace_index::parts::hash_key;

/// The multipliers of splitmix64's finalizer, as Stafford has tuned it (variant 13).
const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;

/// The hash with a seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct CcehHash {
    seed: u64,
}

impl CcehHash {
    pub fn new(seed: u64) -> Self {
        CcehHash { seed }
    }

    /// The hash of a key.
    #[inline]
    pub fn of(&self, key: &[u8]) -> u64 {
        hash_key(key, self.seed, |word| self.of_word(word))
    }

    /// The hash of the key that consists of `word`, little-endian.
    #[inline]
    pub fn of_word(&self, word: u64) -> u64 {
        let h = word ^ self.seed;
        let h = (h ^ h >> 30).wrapping_mul(FIRST);
        let h = (h ^ h >> 27).wrapping_mul(SECOND);
        h ^ h >> 31
    }

    /// The word whose hash this is: each step of [`of_word`](Self::of_word), undone.
    #[inline]
    pub fn word_of(&self, hash: u64) -> u64 {
        const UNDO_FIRST: u64 = inverse(FIRST);
        const UNDO_SECOND: u64 = inverse(SECOND);
        let h = (hash ^ hash >> 31 ^ hash >> 62).wrapping_mul(UNDO_SECOND);
        let h = (h ^ h >> 27 ^ h >> 54).wrapping_mul(UNDO_FIRST);
        h ^ h >> 30 ^ h >> 60 ^ self.seed
    }
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut bits = 3;
    while bits < 64 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        bits *= 2;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_from_their_hashes() {
        for seed in [0, 1, 0x4345_4843, u64::MAX] {
            let hash = CcehHash::new(seed);
            for word in (0..1000u64).map(|i| i.wrapping_mul(0xD6E8_FEB8_6659_FD93)).chain([u64::MAX]) {
                assert_eq!(hash.word_of(hash.of_word(word)), word);
                assert_eq!(hash.of(&word.to_le_bytes()), hash.of_word(word));
            }
        }
    }

    #[test]
    fn golden_hashes() {
        let hash = CcehHash::new(7);
        assert_eq!(hash.of_word(0), 0x12AE_3023_7B17_DF14);
        assert_eq!(hash.of(b"a longer key than that"), 8751046285826717);
    }
}
