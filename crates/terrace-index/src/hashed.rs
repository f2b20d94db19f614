//! What every hash index of this crate does, how its keys are hashed, and how it is scanned.

use std::fmt::Debug;

use terrace_base::{Error, Result};
use terrace_pmem::Marks;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::ordered::{MAX_KEY_BYTES, ScanBatch};

/// Longest value in bytes: 1 GiB.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Keys that [`get_many`](HashIndex::get_many) is ahead with what it has brought into the caches.
const AHEAD: usize = 8;

/// A persistent unordered map from byte strings of up to 65,535 bytes to 8-byte words other than 0.
///
/// Thread safety: every method may be called from any thread at any time. Each of the single-key methods is
/// linearizable and durable when it returns; what a reader returns is durable too. A scan sees every key
/// that is there from its beginning to its end, and of those that come and go some.
pub trait HashIndex: Send + Sync + Debug {
    /// The word of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Has what a [`get`](Self::get) of `key` looks at first brought into the processor's caches, without waiting for
    /// it. Who knows some keys ahead saves most of the time that each of them would wait for memory.
    fn prefetch(&self, _key: &[u8]) {}

    /// Appends the words of `keys` to `words`, in their order. Each is read as by [`get`](Self::get), but many at a
    /// time are on their way from memory.
    fn get_many(&self, keys: &[&[u8]], words: &mut Vec<Option<u64>>) -> Result<()> {
        words.reserve(keys.len());
        keys.iter().take(AHEAD).for_each(|key| self.prefetch(key));
        for (i, key) in keys.iter().enumerate() {
            if let Some(key) = keys.get(i + AHEAD) {
                self.prefetch(key);
            }
            words.push(self.get(key)?);
        }
        Ok(())
    }

    /// Sets the word of `key`; the word it had.
    fn insert(&self, key: &[u8], word: u64) -> Result<Option<u64>>;

    /// If the word of `key` is `expected` (`None`: the key is absent), makes it `new` (`None`: removes the key);
    /// else the inner error is what the word is.
    fn compare_exchange(
        &self,
        key: &[u8],
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<std::result::Result<(), Option<u64>>>;

    /// Removes `key`; the word it had.
    fn remove(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Appends keys to `out` from `cursor` on and moves it to where the scan goes on, or to its end. About
    /// `limit` keys at most, and at least one unless none is left: keys that share all 64 bits of their hash
    /// come together. Keys come in the order of their hashes, each once, whatever is moved meanwhile.
    fn scan_unordered(&self, cursor: &mut HashCursor, limit: usize, out: &mut ScanBatch) -> Result<()>;

    /// Keys in the index.
    fn len(&self) -> u64;

    /// Whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How full the index is and how far probes go, by a walk over all of it. Exact whenever writers are at
    /// rest.
    fn figures(&self) -> Result<HashFigures>;

    /// Marks everything in the pool that the index owns. Runs beside readers and writers.
    fn mark(&self, marks: &mut Marks) -> Result<()>;

    /// Every finding against the index's invariants; none for a healthy one. Writers must be at rest.
    fn check(&self) -> Result<Vec<String>>;

    /// Bytes of DRAM held.
    fn dram_bytes(&self) -> u64;

    /// Bytes of the pool held.
    fn pm_bytes(&self) -> u64;

    /// Saves what makes the next open faster and gives back what was unlinked. Call it when writers are done,
    /// before the pool is closed.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A persistent unordered map from byte strings of up to 65,535 bytes to byte strings of up to 1 GiB.
///
/// A pair of 8 and 8 bytes lies in the table itself, any other in one checksummed record. Thread safety and
/// durability are those of [`HashIndex`]; a type that implements both sees one table, in which a word is
/// the value of 8 bytes, little-endian.
pub trait ByteMap: Send + Sync + Debug {
    /// Sets the value of `key`; whether it had one.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool>;

    /// Puts the value of `key` into `value`, whose former content goes; whether there is one.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Removes `key`; whether it was there.
    fn delete(&self, key: &[u8]) -> Result<bool>;
}

/// Where an unordered scan stands. A scan may be resumed in another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashCursor(Option<u64>);

impl HashCursor {
    /// Before the first key.
    pub const START: HashCursor = HashCursor(Some(0));

    /// Past the last key.
    pub const END: HashCursor = HashCursor(None);

    /// Whether the scan is over.
    pub fn is_end(&self) -> bool {
        self.0.is_none()
    }

    /// The least hash that was not scanned yet.
    pub(crate) fn hash(&self) -> Option<u64> {
        self.0
    }

    /// The cursor after all keys of `hash`.
    pub(crate) fn after(hash: u64) -> HashCursor {
        HashCursor(hash.checked_add(1))
    }
}

impl Default for HashCursor {
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
    /// Slots that may hold keys: without those a design keeps free for good.
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

    /// Keys in a slot of any sort, on average.
    pub fn raw_load_factor(&self) -> f64 {
        ratio(self.keys, self.slots)
    }

    /// Buckets probed for a key that is there, on average over the keys.
    pub fn mean_hit(&self) -> f64 {
        mean(&self.hits)
    }

    /// Buckets probed for a key that is not there, on average over the home buckets.
    pub fn mean_miss(&self) -> f64 {
        mean(&self.misses)
    }

    /// Counts one probe of `buckets` buckets, at least 1, in `histogram`.
    pub(crate) fn count(histogram: &mut Vec<u64>, buckets: usize) {
        histogram.resize(histogram.len().max(buckets), 0);
        histogram[buckets - 1] += 1;
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn mean(histogram: &[u64]) -> f64 {
    let sum = histogram.iter().zip(1..).map(|(n, buckets): (&u64, u64)| n * buckets).sum();
    ratio(sum, histogram.iter().sum())
}

/// An error unless `key` and `value` may be stored.
pub(crate) fn admit_pair(key: &[u8], value: &[u8]) -> Result<()> {
    crate::ordered::admit(key, None)?;
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
        match key.first_chunk::<8>() {
            Some(word) if key.len() == 8 => self.of_word(u64::from_le_bytes(*word)),
            _ => xxh3_64_with_seed(key, self.seed),
        }
    }

    /// The hash of the key that consists of `word`, little-endian.
    #[inline(always)]
    pub fn of_word(&self, word: u64) -> u64 {
        let once = fold(word ^ self.seed, 0xA076_1D64_78BD_642F);
        fold(once ^ 0xE703_7ED1_A0B4_28DB, 0x8EBC_6AF0_9C88_C6E3)
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
    fn histograms_have_means() {
        let mut figures = HashFigures::default();
        [1, 1, 4].into_iter().for_each(|n| HashFigures::count(&mut figures.misses, n));
        assert_eq!((figures.misses.clone(), figures.mean_miss()), (vec![2, 0, 0, 1], 2.0));
        assert_eq!((figures.mean_hit(), figures.load_factor()), (0.0, 0.0));
    }
}
