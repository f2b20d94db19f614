//! What every index does: single keys, whatever their order, and the accounts that a pool and a store ask for.

use std::fmt::Debug;
use std::num::NonZeroU64;

use terrace_base::{Error, Result};
use terrace_pmem::Marks;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = u16::MAX as usize;

/// Keys that [`get_many`](PointIndex::get_many) is ahead with what it has brought into the caches.
const AHEAD: usize = 8;

/// What a single-key operation wants once it knows the word: nothing, or the new word, where `Some(None)` removes the key.
pub type Wish = Option<Option<NonZeroU64>>;

/// A persistent map from byte strings of up to 65,535 bytes to 8-byte words other than 0.
///
/// Thread safety: every method may be called from any thread at any time. Each of the single-key methods is
/// linearizable and durable when it returns; what a reader returns is durable too. A scan sees every key
/// that is there from its beginning to its end, and of those that come and go some.
pub trait PointIndex: Send + Sync + Debug {
    /// The word of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Has what a [`get`](Self::get) of `key` looks at first brought into the processor's caches, without waiting for
    /// it. Whoever knows some keys ahead saves most of the time that each of them would wait for memory.
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

    /// Changes the word of `key` as `wish` says, which is told the word and asked again whenever somebody else was
    /// faster; the word before. The other changes of a key are made of this one.
    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>>;

    /// Sets the word of `key`; the word it had.
    fn insert(&self, key: &[u8], word: u64) -> Result<Option<u64>> {
        let word = admit_word(word)?;
        self.update(key, &mut |_| Some(Some(word)))
    }

    /// If the word of `key` is `expected` (`None`: the key is absent), makes it `new` (`None`: removes the key);
    /// else the inner error is what the word is.
    fn compare_exchange(
        &self,
        key: &[u8],
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<std::result::Result<(), Option<u64>>> {
        let wanted = new.map(admit_word).transpose()?;
        let wish = &mut |now| (now == expected && new != expected).then_some(wanted);
        let before = self.update(key, wish)?;
        Ok(if before == expected { Ok(()) } else { Err(before) })
    }

    /// Removes `key`; the word it had.
    fn remove(&self, key: &[u8]) -> Result<Option<u64>> {
        self.update(key, &mut |now| now.map(|_| None))
    }

    /// Keys in the index. Exact whenever writers are at rest.
    fn len(&self) -> u64;

    /// Whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

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

/// An error unless `key` may be stored.
pub fn admit_key(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        return Err(Error::invalid("a key is longer than 65,535 bytes"));
    }
    Ok(())
}

/// The word, if it may be stored.
pub fn admit_word(word: u64) -> Result<NonZeroU64> {
    NonZeroU64::new(word).ok_or_else(|| Error::invalid("an index cannot hold the word 0"))
}
