//! Which keys a memtable may have. Most lookups of others end here, after one load.
//!
//! A Bloom filter in which a key has its four bits in one word. It is made once the memtable has several times its bytes:
//! engines have many memtables that stay small. One thread at a time adds keys; any number ask without
//! locks. Who can see a version finds its key: bits are set before the version is linked.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::checksum::hash64;

/// A bit for each so many bytes of the memtable: 16 for a record of 128 bytes.
const BYTES_A_BIT: u64 = 8;

/// It is made for a memtable of so many times its bytes.
const TIMES_ITS_BYTES: u64 = 4;

/// Eight MiB. More keys share them.
const MOST_WORDS: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Filter {
    count: usize,
    words: OnceLock<Box<[AtomicU64]>>,
}

impl Filter {
    /// For a memtable of about `capacity` bytes.
    pub fn new(capacity: u64) -> Filter {
        let count = (capacity / BYTES_A_BIT / 64).clamp(1, MOST_WORDS) as usize;
        Filter { count, words: OnceLock::new() }
    }

    /// Whether it is to be made, for a memtable that has `bytes` bytes.
    pub fn is_due(&self, bytes: u64) -> bool {
        bytes >= TIMES_ITS_BYTES * 8 * self.count as u64 && self.words.get().is_none()
    }

    /// Makes it, of all keys that the memtable has. Nobody adds meanwhile.
    pub fn make<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        // SAFETY: an atomic word may hold whatever bits a `u64` may, so zeros are a value of each.
        let words: Box<[AtomicU64]> = unsafe { Box::new_zeroed_slice(self.count).assume_init() };
        keys.for_each(|key| add(&words, key));
        // Before, nobody asks it.
        self.words.get_or_init(|| words);
    }

    /// Adds `key`, if it is made. Nobody else adds meanwhile.
    pub fn add(&self, key: &[u8]) {
        if let Some(words) = self.words.get() {
            add(words, key);
        }
    }

    /// Whether the memtable may have `key`: if false, it does not.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        let Some(words) = self.words.get() else { return true };
        let hash = hash64(key);
        word(words, hash).load(Ordering::Relaxed) & bits(hash) == bits(hash)
    }

    /// Bytes of DRAM.
    pub fn bytes(&self) -> u64 {
        self.words.get().map_or(0, |words| 8 * words.len() as u64)
    }
}

fn add(words: &[AtomicU64], key: &[u8]) {
    let hash = hash64(key);
    let word = word(words, hash);
    word.store(word.load(Ordering::Relaxed) | bits(hash), Ordering::Relaxed);
}

fn word(words: &[AtomicU64], hash: u64) -> &AtomicU64 {
    &words[((u128::from(hash) * words.len() as u128) >> 64) as usize]
}

/// The bits of a key in its word, which the upper bits of its hash choose.
fn bits(hash: u64) -> u64 {
    (0..4).fold(0, |bits, i| bits | 1 << (hash >> (6 * i) & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_passes_and_little_else_does() {
        let keys: Vec<[u8; 8]> = (0u64..110_000).map(u64::to_be_bytes).collect();
        let filter = Filter::new(10_000 * 128);
        keys[..3000].iter().for_each(|key| filter.add(key));
        assert!(!filter.is_due(79_999) && filter.is_due(80_000));
        assert!(keys.iter().all(|key| filter.may_contain(key)), "it is not made");
        filter.make(keys[..3000].iter().map(|key| &key[..]));
        keys[3000..10_000].iter().for_each(|key| filter.add(key));
        assert!(!filter.is_due(u64::MAX) && filter.bytes() == 20_000);
        assert!(keys[..10_000].iter().all(|key| filter.may_contain(key)));
        let passed = keys[10_000..].iter().filter(|key| filter.may_contain(*key)).count();
        assert!((1..2_000).contains(&passed), "{passed} of 100,000");
    }

    #[test]
    fn a_filter_of_any_size_keeps_what_was_added() {
        for capacity in [0, 1, 511, 512, 1 << 20, u64::MAX] {
            let filter = Filter::new(capacity);
            filter.make([].into_iter());
            assert!(!filter.may_contain(b"key"), "of {capacity}");
            filter.add(b"key");
            filter.add(b"");
            assert!(filter.may_contain(b"key") && filter.may_contain(b""), "of {capacity}");
            assert!(filter.bytes() <= 8 << 20);
        }
    }
}
