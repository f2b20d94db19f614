//! What logs say, sorted, and doing that to the leaves of a tree that is opened without buffers.
//!
//! Of the entries about a key the one with the highest number counts.

use std::num::NonZeroU64;

use terrace_base::Result;
use terrace_log::LogSet;

use super::Core;
use super::key::{INLINE_BYTES, word_of};

/// What logs say about one key.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The first bytes of the key, so that most comparisons need no more.
    prefix: u64,
    /// Where the key lies among all, and its length.
    at: usize,
    len: usize,
    number: u64,
    /// 0: it was removed.
    word: u64,
    /// The number of the set it is in.
    set: u64,
}

/// What logs say.
#[derive(Default)]
pub(super) struct Said {
    entries: Vec<Entry>,
    keys: Vec<u8>,
}

impl Said {
    pub fn add(&mut self, number: u64, word: u64, key: &[u8], set: u64) {
        let prefix = word_of(&key[..key.len().min(INLINE_BYTES)]);
        self.entries.push(Entry { prefix, at: self.keys.len(), len: key.len(), number, word, set });
        self.keys.extend_from_slice(key);
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.keys[entry.at..entry.at + entry.len]
    }

    /// The last entry about each key, in the order of the keys.
    pub fn settle(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by(|a, b| {
            let by_key = || self.key(a).cmp(self.key(b));
            a.prefix.cmp(&b.prefix).then_with(by_key).then(a.number.cmp(&b.number))
        });
        entries.dedup_by(|next, kept| {
            let same = next.prefix == kept.prefix && self.key(next) == self.key(kept);
            if same {
                *kept = *next;
            }
            same
        });
        self.entries = entries;
    }

    /// How many keys something is said about, once that is settled.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Where what is said about `key` is, once everything is settled.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let prefix = word_of(&key[..key.len().min(INLINE_BYTES)]);
        let order = |e: &Entry| e.prefix.cmp(&prefix).then_with(|| self.key(e).cmp(key));
        self.entries.binary_search_by(order).ok()
    }

    /// Key, word and set of the entry at `i`.
    pub fn entry(&self, i: usize) -> (&[u8], u64, u64) {
        let entry = &self.entries[i];
        (self.key(entry), entry.word, entry.set)
    }
}

impl Core {
    /// Does to the leaves what the sets say; the number of the last entry.
    pub(super) fn replay(&self, sets: &[LogSet]) -> Result<u64> {
        let (mut said, mut last) = (Said::default(), 0);
        for set in sets {
            self.visit_set(set, &mut |set, number, word, key| {
                last = last.max(number);
                said.add(number, word, key, set);
            })?;
        }
        said.settle();
        for i in 0..said.len() {
            let (key, word, _) = said.entry(i);
            let new = NonZeroU64::new(word);
            self.apply_to_leaf(key, &mut |now| (now != new.map(NonZeroU64::get)).then_some(new))?;
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_about_each_key_counts() {
        let mut said = Said::default();
        let entries: [(u64, u64, &[u8]); 7] = [
            (5, 50, b"b"),
            (2, 20, b"a longer key"),
            (9, 0, b"b"),
            (1, 10, b""),
            (7, 70, b"a longer kez"),
            (3, 30, b"a longer key"),
            (4, 40, b"b\0"),
        ];
        entries.into_iter().for_each(|(number, word, key)| said.add(number, word, key, 1));
        said.settle();
        let found: Vec<_> = said.entries.iter().map(|e| (said.key(e), e.word)).collect();
        let wanted: [(&[u8], u64); 5] =
            [(b"", 10), (b"a longer key", 30), (b"a longer kez", 70), (b"b", 0), (b"b\0", 40)];
        assert_eq!(found, wanted);
        assert_eq!(said.find(b"b").map(|i| said.entry(i).1), Some(0));
        assert_eq!(said.find(b"a longer"), None);
    }
}
