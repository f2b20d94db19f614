//! The entries of logs, sorted; and replaying them into the leaves of a tree that is opened without buffers.
//!
//! Of the entries about a key the one with the highest number counts.

use std::num::NonZeroU64;

use terrace_base::Result;
use terrace_log::LogSet;

use super::Core;
use super::key::{INLINE_BYTES, word_of};

/// The entry of one key in logs.
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

/// The entries of some logs.
#[derive(Default)]
pub(super) struct LogEntries {
    entries: Vec<Entry>,
    keys: Vec<u8>,
}

impl LogEntries {
    pub fn add(&mut self, number: u64, word: u64, key: &[u8], set: u64) {
        let prefix = word_of(&key[..key.len().min(INLINE_BYTES)]);
        self.entries.push(Entry { prefix, at: self.keys.len(), len: key.len(), number, word, set });
        self.keys.extend_from_slice(key);
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.keys[entry.at..entry.at + entry.len]
    }

    /// Keeps the last entry about each key, and sorts by key.
    pub fn keep_newest(&mut self) {
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

    /// How many keys there are entries about, once the newest alone are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Where the entry about `key` is, once the newest alone are kept.
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
    /// Replays the sets into the leaves; the number of the last entry.
    pub(super) fn replay(&self, sets: &[LogSet]) -> Result<u64> {
        let (mut logged, mut last) = (LogEntries::default(), 0);
        for set in sets {
            self.visit_set(set, &mut |set, number, word, key| {
                last = last.max(number);
                logged.add(number, word, key, set);
            })?;
        }
        logged.keep_newest();
        for i in 0..logged.len() {
            let (key, word, _) = logged.entry(i);
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
        let mut logged = LogEntries::default();
        let entries: [(u64, u64, &[u8]); 7] = [
            (5, 50, b"b"),
            (2, 20, b"a longer key"),
            (9, 0, b"b"),
            (1, 10, b""),
            (7, 70, b"a longer kez"),
            (3, 30, b"a longer key"),
            (4, 40, b"b\0"),
        ];
        entries.into_iter().for_each(|(number, word, key)| logged.add(number, word, key, 1));
        logged.keep_newest();
        let found: Vec<_> = logged.entries.iter().map(|e| (logged.key(e), e.word)).collect();
        let wanted: [(&[u8], u64); 5] =
            [(b"", 10), (b"a longer key", 30), (b"a longer kez", 70), (b"b", 0), (b"b\0", 40)];
        assert_eq!(found, wanted);
        assert_eq!(logged.find(b"b").map(|i| logged.entry(i).1), Some(0));
        assert_eq!(logged.find(b"a longer"), None);
    }
}
