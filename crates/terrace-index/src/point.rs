//! The operations of every index: single keys, in any order, and the figures that a pool and a store need.

use std::fmt::Debug;
use std::num::NonZeroU64;

use terrace_base::{Error, Result};
use terrace_pmem::Marks;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = u16::MAX as usize;

/// How many keys ahead [`get_many`](PointIndex::get_many) loads into the caches.
const AHEAD: usize = 8;

/// The wish of a single-key operation once it knows the word: `None` for no change, or the new word; `Some(None)`
/// removes the key.
pub type Wish = Option<Option<NonZeroU64>>;

/// A persistent map from byte strings of up to 65,535 bytes to 8-byte words other than 0.
///
/// Thread safety: every method may be called from any thread at any time. Each of the single-key methods is
/// linearizable and durable when it returns; results of readers are durable too. A scan sees every key that is there
/// from its beginning to its end, and some of those that come and go.
pub trait PointIndex: Send + Sync + Debug {
    /// The word of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Starts loading the data that a [`get`](Self::get) of `key` reads first into the processor's caches, without
    /// waiting. A caller that knows some keys ahead saves most of the time that each of them would wait for memory.
    fn prefetch(&self, _key: &[u8]) {}

    /// Appends the words of `keys` to `words`, in their order. Each is read as by [`get`](Self::get), but many are
    /// loaded from memory at the same time.
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

    /// Changes the word of `key` as `wish` decides, which gets the present word and is called again whenever another
    /// thread was faster. Returns the former word. The other changes of a key are built on this one.
    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>>;

    /// Sets the word of `key`; returns the former word.
    fn insert(&self, key: &[u8], word: u64) -> Result<Option<u64>> {
        let word = admit_word(word)?;
        self.update(key, &mut |_| Some(Some(word)))
    }

    /// If the word of `key` is `expected` (`None`: the key is absent), makes it `new` (`None`: removes the key);
    /// otherwise the inner error is the present word.
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

    /// Removes `key`; returns the former word.
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

    /// Saves data that makes the next open faster, and gives back unlinked memory. Call it when writers are done,
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
