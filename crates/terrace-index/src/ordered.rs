//! What every ordered index of this crate does, and how scans hand their results over.

use std::fmt::Debug;
use std::ops::{Bound, Range};

use terrace_base::{Error, Result};
use terrace_pmem::Marks;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = u16::MAX as usize;

/// A persistent ordered map from byte strings of up to 65,535 bytes to 8-byte words other than 0.
///
/// Thread safety: every method may be called from any thread at any time. Each of the single-key methods is
/// linearizable and durable when it returns; what a reader returns is durable too. A scan sees every key
/// that is there from its beginning to its end, and of those that come and go some.
pub trait OrderedIndex: Send + Sync + Debug {
    /// The word of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<u64>>;

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

    /// Appends to `out` up to `limit` keys in order from `from` on, upward, or downward if `reverse`. Fewer
    /// come out only at the end of the index.
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()>;

    /// Keys in the index.
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

    /// Saves what makes the next open faster. Call it when writers are done, before the pool is closed.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Keys and words copied out by a scan, in scan order.
#[derive(Debug, Clone, Default)]
pub struct ScanBatch {
    arena: Vec<u8>,
    /// End of each key in the arena.
    ends: Vec<usize>,
    words: Vec<u64>,
}

impl ScanBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Entries in the batch.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether the batch holds nothing.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.ends.clear();
        self.words.clear();
    }

    /// Key `i`, below [`len`](Self::len).
    pub fn key(&self, i: usize) -> &[u8] {
        &self.arena[self.key_range(i)]
    }

    /// Where key `i` lies in [`keys`](Self::keys).
    pub fn key_range(&self, i: usize) -> Range<usize> {
        i.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[i]
    }

    /// All keys, one behind the other.
    pub fn keys(&self) -> &[u8] {
        &self.arena
    }

    /// Word `i`, below [`len`](Self::len).
    pub fn word(&self, i: usize) -> u64 {
        self.words[i]
    }

    /// All entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        (0..self.len()).map(|i| (self.key(i), self.word(i)))
    }

    /// Appends an entry.
    pub fn push(&mut self, key: &[u8], word: u64) {
        self.arena.extend_from_slice(key);
        self.ends.push(self.arena.len());
        self.words.push(word);
    }
}

/// Whether a scan from `from` on has led on: the last key of `out`, if more than `before` are there, is one that is to
/// come. One comparison a scan; where keys are damaged, who goes on from the last one comes to an end.
pub(crate) fn leads_on(from: Bound<&[u8]>, reverse: bool, before: usize, out: &ScanBatch) -> bool {
    let Some(last) = (out.len() > before).then(|| out.key(out.len() - 1)) else { return true };
    match (from, reverse) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(key), false) => last >= key,
        (Bound::Excluded(key), false) => last > key,
        (Bound::Included(key), true) => last <= key,
        (Bound::Excluded(key), true) => last < key,
    }
}

/// An error unless `key` and `word` may be stored.
pub(crate) fn admit(key: &[u8], word: Option<u64>) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        return Err(Error::invalid("a key is longer than 65,535 bytes"));
    }
    if word == Some(0) {
        return Err(Error::invalid("an index cannot hold the word 0"));
    }
    Ok(())
}

/// What a single-key operation wants once it knows the word: nothing, or the new word.
pub(crate) type Wish = Option<Option<u64>>;

/// Expresses the single-key writes of [`OrderedIndex`] by one primitive, `apply(key, wish)`: it calls `wish`
/// with the current word until a change that it asked for has happened, and returns the word before.
macro_rules! single_key_writes {
    () => {
        fn insert(&self, key: &[u8], word: u64) -> Result<Option<u64>> {
            $crate::ordered::admit(key, Some(word))?;
            self.apply(key, &mut |_| Some(Some(word)))
        }

        fn compare_exchange(
            &self,
            key: &[u8],
            expected: Option<u64>,
            new: Option<u64>,
        ) -> Result<std::result::Result<(), Option<u64>>> {
            $crate::ordered::admit(key, new)?;
            let wish = &mut |now| (now == expected && new != expected).then_some(new);
            let before = self.apply(key, wish)?;
            Ok(if before == expected { Ok(()) } else { Err(before) })
        }

        fn remove(&self, key: &[u8]) -> Result<Option<u64>> {
            $crate::ordered::admit(key, None)?;
            self.apply(key, &mut |now| now.map(|_| None))
        }
    };
}
pub(crate) use single_key_writes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scan_ends_with_lies_where_it_went() {
        let mut batch = ScanBatch::new();
        batch.push(b"m", 1);
        for (from, up, down) in [
            (Bound::Unbounded, true, true),
            (Bound::Included(&b"m"[..]), true, true),
            (Bound::Excluded(&b"m"[..]), false, false),
            (Bound::Excluded(&b"a"[..]), true, false),
            (Bound::Included(&b"z"[..]), false, true),
        ] {
            assert_eq!((leads_on(from, false, 0, &batch), leads_on(from, true, 0, &batch)), (up, down));
            assert!(leads_on(from, false, 1, &batch), "nothing has been added");
        }
    }

    #[test]
    fn a_batch_gives_back_what_was_pushed() {
        let mut batch = ScanBatch::new();
        batch.push(b"", 1);
        batch.push(b"abc", 2);
        assert_eq!(batch.iter().collect::<Vec<_>>(), [(&b""[..], 1), (&b"abc"[..], 2)]);
        batch.clear();
        assert!(batch.is_empty());
    }
}
