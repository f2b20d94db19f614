//! The operations of a hash index beyond a [`PointIndex`], the hashing of keys, and positions of scans.

use std::fmt::Debug;

use terrace_base::{Error, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::point::{MAX_KEY_BYTES, PointIndex, admit_key};
use crate::scan_batch::ScanBatch;

/// Longest value in bytes: 1 GiB.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// A persistent unordered map from byte strings to words, whose keys lie by their hashes.
pub trait HashIndex: PointIndex {
    /// Appends keys to `out` from `cursor` on and moves it to where the scan goes on, or to its end. About `limit` keys
    /// at most, and at least one unless none is left: keys that share all 64 bits of their hash come together. Keys
    /// come in the order of their hashes, each once, even if entries are moved meanwhile.
    fn scan_unordered(&self, cursor: &mut ScanPosition, limit: usize, out: &mut ScanBatch) -> Result<()>;

    /// How full the index is and how far probes go, by a walk over all of it. Exact whenever writers are at
    /// rest.
    fn figures(&self) -> Result<HashFigures>;
}

/// A persistent unordered map from byte strings of up to 65,535 bytes to byte strings of up to 1 GiB.
///
/// A pair of 8 and 8 bytes lies in the table itself, any other in one checksummed record. Thread safety and
/// durability are those of [`PointIndex`]; a type that implements both sees one table, in which a word is
/// the value of 8 bytes, little-endian.
pub trait ByteMap: Send + Sync + Debug {
    /// Sets the value of `key`; returns whether it had one.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool>;

    /// Puts the value of `key` into `value`, replacing its content; returns whether there is one.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Removes `key`; returns whether it was there.
    fn delete(&self, key: &[u8]) -> Result<bool>;
}

/// The position of an unordered scan. A scan may be resumed in another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanPosition(Option<u64>);

impl ScanPosition {
    /// Before the first key.
    pub const START: ScanPosition = ScanPosition(Some(0));

    /// Past the last key.
    pub const END: ScanPosition = ScanPosition(None);

    /// Whether the scan is over.
    pub fn is_end(&self) -> bool {
        self.0.is_none()
    }

    /// The least hash that was not scanned yet.
    pub fn hash(&self) -> Option<u64> {
        self.0
    }

    /// The cursor after all keys of `hash`.
    pub fn after(hash: u64) -> ScanPosition {
        ScanPosition(hash.checked_add(1))
    }
}

impl Default for ScanPosition {
    fn default() -> Self {
        Self::START
    }
}

/// How full a hash index is, and how far its probes go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HashFigures {
    /// Keys.
    pub keys: u64,
    /// Slots of deleted keys that are not empty yet.
    pub deleted: u64,
    /// Buckets.
    pub buckets: u64,
    /// Slots of all buckets.
    pub slots: u64,
    /// Slots that may hold keys, without those that a design always keeps free.
    pub usable_slots: u64,
    /// Keys by the buckets that are probed to find them; element 0 counts those found in the first.
    pub hits: Vec<u64>,
    /// Home buckets by the buckets that are probed for a key that is not there; element 0 counts those where
    /// one is enough.
    pub misses: Vec<u64>,
}

impl HashFigures {
    /// Keys in a usable slot, on average.
    pub fn load_factor(&self) -> f64 {
        ratio(self.keys, self.usable_slots)
    }

    /// Counts one probe of `buckets` buckets, at least 1, in `histogram`.
    pub fn count(histogram: &mut Vec<u64>, buckets: usize) {
        histogram.resize(histogram.len().max(buckets), 0);
        histogram[buckets - 1] += 1;
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// An error unless `key` and `value` may be stored.
pub fn admit_pair(key: &[u8], value: &[u8]) -> Result<()> {
    admit_key(key)?;
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::invalid("a value is longer than 1 GiB"));
    }
    const { assert!(MAX_KEY_BYTES <= u16::MAX as usize && MAX_VALUE_BYTES <= u32::MAX as usize) };
    Ok(())
}

/// The hash of keys, 64 bits, with a seed. Its values are persistent.
///
/// Keys of eight bytes take two folded multiplications, as in wyhash; all others XXH3.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyHash {
    seed: u64,
}

impl KeyHash {
    /// The hash with this seed.
    pub fn new(seed: u64) -> Self {
        KeyHash { seed }
    }

    /// The hash of a key.
    #[inline]
    pub fn of(&self, key: &[u8]) -> u64 {
        hash_key(key, self.seed, |word| self.of_word(word))
    }

    /// The hash of the key that consists of `word`, little-endian.
    #[inline(always)]
    pub fn of_word(&self, word: u64) -> u64 {
        let once = fold(word ^ self.seed, 0xA076_1D64_78BD_642F);
        fold(once ^ 0xE703_7ED1_A0B4_28DB, 0x8EBC_6AF0_9C88_C6E3)
    }
}

/// The hash of a key with a seed: `of_word` of the word, little-endian, that a key of eight bytes is, and XXH3 of any
/// other key.
#[inline]
pub fn hash_key(key: &[u8], seed: u64, of_word: impl FnOnce(u64) -> u64) -> u64 {
    match <[u8; 8]>::try_from(key) {
        Ok(word) => of_word(u64::from_le_bytes(word)),
        Err(_) => xxh3_64_with_seed(key, seed),
    }
}

/// Both halves of a product in one.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that differ in few bits, anywhere, spread over every part of the hash as random ones would.
    #[test]
    fn regular_words_spread() {
        let hash = KeyHash::new(0x7465_7272_6163_6521);
        for shift in (0..56).step_by(4) {
            for part in [0, 8, 20, 48, 56] {
                let mut counts = [0u32; 256];
                (0..65_536u64).for_each(|i| {
                    counts[(hash.of_word(i.rotate_left(shift)) >> part & 0xff) as usize] += 1;
                });
                let chi: f64 = counts.iter().map(|&n| (f64::from(n) - 256.0).powi(2) / 256.0).sum();
                assert!(chi < 400.0, "words shifted by {shift}, bits from {part}: {chi}");
            }
        }
    }

    #[test]
    fn golden_hashes() {
        let hash = KeyHash::new(7);
        let found = [hash.of(b""), hash.of(b"12345678"), hash.of(b"a longer key than that")];
        assert_eq!(found, [10464923555624353464, 3080695227258633041, 8751046285826717]);
    }

    #[test]
    fn probes_are_counted_by_their_buckets() {
        let mut figures = HashFigures::default();
        [1, 1, 4].into_iter().for_each(|n| HashFigures::count(&mut figures.misses, n));
        assert_eq!((figures.misses.clone(), figures.load_factor()), (vec![2, 0, 0, 1], 0.0));
    }
}
