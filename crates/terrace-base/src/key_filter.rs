//! Which keys a memtable may have. Most lookups of others end here.
//!
//! A Bloom filter in which a key has its four bits in one word. Any number of threads add keys and ask, without locks. Who
//! can see a version finds its key if the key was added before the version was linked.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::checksum::hash64;

/// A bit for each so many bytes of the memtable: 16 for a record of 128 bytes.
const BYTES_A_BIT: u64 = 8;

/// Eight MiB. More keys share them.
const MOST_WORDS: u64 = 1 << 20;

/// A filter of the keys of a memtable.
///
/// ```
/// use terrace_base::key_filter::KeyFilter;
///
/// let filter = KeyFilter::new(1 << 20);
/// assert!(!filter.may_contain(b"key"));
/// filter.add(b"key");
/// assert!(filter.may_contain(b"key"));
/// ```
#[derive(Debug)]
pub struct KeyFilter {
    words: Box<[AtomicU64]>,
}

impl KeyFilter {
    /// Bytes of a filter for a memtable of about `capacity` bytes: a 64th of that.
    pub fn bytes_for(capacity: u64) -> u64 {
        8 * (capacity / BYTES_A_BIT / 64).clamp(1, MOST_WORDS)
    }

    /// For a memtable of about `capacity` bytes. The system provides memory when it is used.
    pub fn new(capacity: u64) -> KeyFilter {
        let words = KeyFilter::bytes_for(capacity) as usize / 8;
        // SAFETY: an atomic word may hold whatever bits a `u64` may, so zeros are a value of each.
        KeyFilter { words: unsafe { Box::new_zeroed_slice(words).assume_init() } }
    }

    /// Adds `key`.
    pub fn add(&self, key: &[u8]) {
        let hash = hash64(key);
        let word = self.word(hash);
        if word.load(Ordering::Relaxed) & bits(hash) != bits(hash) {
            word.fetch_or(bits(hash), Ordering::Relaxed);
        }
    }

    /// Whether `key` may have been added: if false, it was not.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        let hash = hash64(key);
        self.word(hash).load(Ordering::Relaxed) & bits(hash) == bits(hash)
    }

    /// Bytes of DRAM, if all of it is used.
    pub fn bytes(&self) -> u64 {
        8 * self.words.len() as u64
    }

    fn word(&self, hash: u64) -> &AtomicU64 {
        &self.words[((u128::from(hash) * self.words.len() as u128) >> 64) as usize]
    }
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
        let filter = KeyFilter::new(10_000 * 128);
        keys[..10_000].iter().for_each(|key| filter.add(key));
        assert!(keys[..10_000].iter().all(|key| filter.may_contain(key)));
        let passed = keys[10_000..].iter().filter(|key| filter.may_contain(*key)).count();
        assert!((1..2_000).contains(&passed), "{passed} of 100,000");
    }

    #[test]
    fn a_filter_of_any_size_keeps_what_was_added() {
        for capacity in [0, 1, 511, 512, 1 << 20, u64::MAX] {
            let filter = KeyFilter::new(capacity);
            assert!(!filter.may_contain(b"key"), "of {capacity}");
            filter.add(b"key");
            filter.add(b"");
            assert!(filter.may_contain(b"key") && filter.may_contain(b""), "of {capacity}");
            assert!(filter.bytes() == KeyFilter::bytes_for(capacity) && filter.bytes() <= 8 << 20);
        }
    }

    #[test]
    fn threads_that_add_to_one_word_lose_nothing() {
        let filter = KeyFilter::new(0);
        let keys = |thread: u8| (0..8u8).map(move |n| [thread, n]);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let filter = &filter;
                scope.spawn(move || keys(thread).for_each(|key| filter.add(&key)));
            }
        });
        assert!((0..2).flat_map(keys).all(|key| filter.may_contain(&key)));
    }
}
