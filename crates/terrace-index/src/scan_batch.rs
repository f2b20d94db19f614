//! How scans hand their results over.

use std::ops::Range;

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

#[cfg(test)]
mod tests {
    use super::*;

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
