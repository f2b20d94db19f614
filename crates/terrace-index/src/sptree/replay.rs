//! Doing to the leaves what logs say, at an open.
//!
//! Of the entries about a key the one with the highest number counts. They are sorted by their keys, so that what
//! belongs to one leaf comes together: it goes into the buffer of the leaf's node and from there to the leaf, with two
//! drains for all of it. Two threads have half of the keys each.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::Core;
use super::buffer::{Entries, keep_key, store};
use super::key::{INLINE_BYTES, Probe, word_of};
use super::logs::Set;

/// Entries from which on the nodes of all leaves are made first, one leaf after the other by all threads, which takes less
/// time than looking for each leaf.
const MANY: usize = 1 << 14;

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
}

/// What logs say.
#[derive(Default)]
struct Said {
    entries: Vec<Entry>,
    keys: Vec<u8>,
}

impl Said {
    fn add(&mut self, number: u64, word: u64, key: &[u8]) {
        let prefix = word_of(&key[..key.len().min(INLINE_BYTES)]);
        self.entries.push(Entry { prefix, at: self.keys.len(), len: key.len(), number, word });
        self.keys.extend_from_slice(key);
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.keys[entry.at..entry.at + entry.len]
    }

    /// The last entry about each key, in the order of the keys.
    fn settle(&mut self) {
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
}

impl Core {
    /// Does to the leaves what the sets say; the number of the last entry.
    pub(super) fn replay(&self, sets: &[Set]) -> Result<u64> {
        let (mut said, mut last) = (Said::default(), 0);
        for set in sets {
            set.visit(&mut |number, word, key| {
                last = last.max(number);
                said.add(number, word, key);
            })?;
        }
        said.settle();
        if said.entries.len() >= MANY {
            self.executor.join(&mut || self.work_on_rebuild(), &mut || self.work_on_rebuild());
            self.finish_rebuild();
        }
        let (left, right) = said.entries.split_at(said.entries.len() / 2);
        let (mut first, mut second) = (Ok(()), Ok(()));
        self.executor.join(&mut || first = self.replay_part(&said, left), &mut || {
            second = self.replay_part(&said, right);
        });
        first.and(second)?;
        Ok(last)
    }

    fn replay_part(&self, said: &Said, mut rest: &[Entry]) -> Result<()> {
        let _here = self.limbo.enter();
        while let Some(first) = rest.first() {
            let done = if self.is_buffered() {
                self.replay_leaf(said, rest)?
            } else {
                let new = (first.word != 0).then_some(first.word);
                self.apply_to_leaf(said.key(first), &mut |now| (now != new).then_some(new))?;
                1
            };
            rest = &rest[done..];
        }
        Ok(())
    }

    /// Brings the first entries to their leaf, by way of its node's buffer; how many. None if the leaf has been
    /// split, or is somewhere else by now.
    fn replay_leaf(&self, said: &Said, rest: &[Entry]) -> Result<usize> {
        let probe = Probe::new(said.key(&rest[0]));
        let (node, _) = self.locate(&probe)?;
        let locked = node.lock();
        let version = node.version();
        let mut items = Entries::new();
        for entry in rest.iter().take(self.buffer_entries()) {
            let probe = Probe::new(said.key(entry));
            if version.is_dead() || node.covers(&probe, version) != Some(true) {
                break;
            }
            let (key_word, kind) = keep_key(&probe);
            items.push((key_word, entry.word, kind));
        }
        if items.is_empty() {
            return Ok(0);
        }
        let shape = &self.arena.shape;
        let keys = || i64::from(node.bitmap.load(Ordering::Relaxed).count_ones());
        let before = keys();
        locked.change(version.is_sorted(), |node| store(node, shape, &items));
        let flushed = self.flush_buffer(&locked);
        if matches!(flushed, Ok(true)) {
            self.keys.fetch_add(keys() - before, Ordering::Relaxed);
            return Ok(items.len());
        }
        locked.change(node.version().is_sorted(), |node| store(node, shape, &[]));
        self.retire_keys(&items);
        if !flushed? {
            self.split(locked, None)?;
        }
        Ok(0)
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
        entries.into_iter().for_each(|(number, word, key)| said.add(number, word, key));
        said.settle();
        let found: Vec<_> = said.entries.iter().map(|e| (said.key(e), e.word)).collect();
        let wanted: [(&[u8], u64); 5] =
            [(b"", 10), (b"a longer key", 30), (b"a longer kez", 70), (b"b", 0), (b"b\0", 40)];
        assert_eq!(found, wanted);
    }
}
