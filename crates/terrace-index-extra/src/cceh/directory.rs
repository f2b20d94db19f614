//! The directory: from the first bits of a hash to a segment, and how it changes.
//!
//! A segment of depth `d` has the `2^(depth - d)` entries whose first `d` bits are its own. To split it, the *first
//! entry of its right half* is published: from then on the split has happened. The other entries follow, while the
//! segment is locked and both halves of it can still be found in it whole. A crash leaves at most one such unfinished
//! split for each writer; opening finishes them, from left to right.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_index::kinds;
use terrace_pmem::POff;

use super::layout::{DIRECTORY_AT, DIRECTORY_MIN_BYTES, Entry, HEADER_INDEX, MAX_DEPTH, prefix};
use super::{Cceh, Garbage};

/// The route from a hash to its segment, at the moment of the lookup.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    /// The segment.
    pub entry: Entry,
    /// The word of the directory that this was, and the entry's place and word.
    directory: u64,
    at: POff<u64>,
    word: u64,
    /// The entry's index, if it was looked up in the mirror of a directory of this depth.
    mirrored: Option<(u32, u64)>,
}

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// The directory that counts now. The caller is present in limbo.
    #[inline]
    pub(super) fn directory(&self) -> Result<Entry> {
        self.directory_of(self.directory.load(Ordering::Acquire))
    }

    #[inline]
    fn directory_of(&self, word: u64) -> Result<Entry> {
        match Entry::decode(word, HEADER_INDEX) {
            Some(directory) => Ok(directory),
            None => Err(self.damaged(self.header_off + DIRECTORY_AT, "a directory's word", "another word")),
        }
    }

    /// Where `hash` leads. The caller is present in limbo.
    #[inline]
    pub(super) fn route(&self, hash: u64) -> Result<Route> {
        let directory = self.directory.load(Ordering::Acquire);
        let Entry { offset, depth } = self.directory_of(directory)?;
        let index = prefix(hash, depth);
        let at = POff::new(offset + index * 8);
        if let Some(word) = self.mirror.word(depth, index) {
            let entry = self.entry_of(at.get(), word, index)?;
            return Ok(Route { entry, directory, at, word, mirrored: Some((depth, index)) });
        }
        self.pool.charge_read(at.get(), 8);
        let word = self.pool.atomic_checked(at)?.load(Ordering::Acquire);
        Ok(Route { entry: self.entry_of(at.get(), word, index)?, directory, at, word, mirrored: None })
    }

    /// Whether a route still leads where it led. Asked after the segment's lock word was read, or taken.
    #[inline]
    pub(super) fn still(&self, route: &Route) -> bool {
        let now = match route.mirrored {
            Some((depth, index)) => self.mirror.word(depth, index),
            None => Some(self.pool.atomic(route.at).load(Ordering::Acquire)),
        };
        self.directory.load(Ordering::Acquire) == route.directory && now == Some(route.word)
    }

    #[inline]
    fn entry_of(&self, at: u64, word: u64, index: u64) -> Result<Entry> {
        match Entry::decode(word, index) {
            Some(entry) if self.locks.cover(entry.offset) => Ok(entry),
            _ => Err(self.damaged(at, "a directory entry with its check", "another word")),
        }
    }

    /// The entry at `index` of `directory`.
    pub(super) fn entry_at(&self, directory: Entry, index: u64) -> Result<Entry> {
        let at = POff::new(directory.offset + index * 8);
        self.entry_of(at.get(), self.pool.atomic_checked(at)?.load(Ordering::Acquire), index)
    }

    fn set_entries(&self, directory: Entry, indexes: std::ops::Range<u64>, entry: Entry) {
        for index in indexes.clone() {
            let at = POff::new(directory.offset + index * 8);
            self.pool.atomic(at).store(entry.encode(index), Ordering::Release);
            self.mirror.set(index, entry.encode(index));
        }
        self.pool.flush(directory.offset + indexes.start * 8, (indexes.end - indexes.start) * 8);
    }

    /// Lets the right half of `old`'s hashes lead to `new`, durably: `new` has a copy of that half. Both are locked;
    /// `hash` leads to `old`.
    pub(super) fn publish_split(&self, hash: u64, old: Entry, new: u64) -> Result<()> {
        self.publish_halves(hash, old, [old.offset, new])
    }

    /// Lets the two halves of `old`'s hashes lead to `new`, durably: these have copies of them, and changes that a log
    /// has too. All are locked; `hash` leads to `old`.
    ///
    /// A crash may leave the left half with `old` and the right one with its new segment.
    pub(super) fn publish_halves(&self, hash: u64, old: Entry, new: [u64; 2]) -> Result<()> {
        let _alone = self.structure.lock();
        let mut directory = self.directory()?;
        if directory.depth == old.depth {
            directory = self.double(directory)?;
        }
        let unused = self.unused(directory, old)?;
        let first = prefix(hash, old.depth) << unused;
        let half = 1 << (unused - 1);
        let depth = old.depth + 1;
        let middle = first + half;
        let [left, right] = new.map(|offset| Entry { offset, depth });
        self.pool.publish(POff::new(directory.offset + middle * 8), right.encode(middle));
        self.mirror.set(middle, right.encode(middle));
        self.set_entries(directory, first..middle, left);
        self.set_entries(directory, middle + 1..middle + half, right);
        self.pool.drain();
        Ok(())
    }

    /// Lets the hashes of `old`, which all begin like `hash`, lead to `new`, durably: `new` has a copy of it. Both are
    /// locked.
    pub(super) fn publish_moved(&self, hash: u64, old: Entry, new: u64) -> Result<()> {
        let _alone = self.structure.lock();
        let directory = self.directory()?;
        let unused = self.unused(directory, old)?;
        let (first, count) = (prefix(hash, old.depth) << unused, 1 << unused);
        let moved = Entry { offset: new, depth: old.depth };
        // The first entry decides, as the middle one does for a split.
        self.pool.publish(POff::new(directory.offset + first * 8), moved.encode(first));
        self.mirror.set(first, moved.encode(first));
        self.set_entries(directory, first + 1..first + count, moved);
        self.pool.drain();
        Ok(())
    }

    /// Bits of the directory's indexes that do not matter to a segment.
    fn unused(&self, directory: Entry, segment: Entry) -> Result<u32> {
        let unused = directory.depth.checked_sub(segment.depth);
        unused.ok_or_else(|| self.damaged(directory.offset, "a depth in the directory's", "more"))
    }

    /// A directory with each entry of `old` twice, published.
    fn double(&self, old: Entry) -> Result<Entry> {
        let depth = old.depth + 1;
        let mut image = Vec::with_capacity(8 << depth);
        for index in 0..1u64 << depth {
            image.extend(self.entry_at(old, index / 2)?.encode(index).to_le_bytes());
        }
        image.resize(image.len().max(DIRECTORY_MIN_BYTES as usize), 0);
        let slot = self.pool.reserve(kinds::CCEH, image.len() as u64)?;
        self.pool.copy_flush(slot.offset, &image);
        self.pool.activate(&slot);
        self.pool.drain();
        let directory = Entry { offset: slot.offset, depth };
        let word = directory.encode(HEADER_INDEX);
        self.pool.publish(POff::new(self.header_off + DIRECTORY_AT), word);
        self.mirror.hide();
        self.directory.store(word, Ordering::Release);
        if self.mirrors.load(Ordering::Relaxed) {
            // If this fails the mirror stays blind.
            let _ = self.fill_mirror(directory);
        }
        self.limbo.retire(Garbage::Directory(old.offset));
        Ok(directory)
    }

    /// Finishes splits that a crash has interrupted, and takes over the segments that the directory names. No other
    /// thread has the table yet.
    pub(super) fn recover(&self) -> Result<()> {
        let directory = self.directory()?;
        let extents = self.pool.extents(kinds::CCEH).iter().map(|e| (e.offset, e.bytes)).collect();
        let mut used = BTreeSet::new();
        let mut first = 0;
        while first < 1 << directory.depth {
            let entry = self.entry_at(directory, first)?;
            let count = 1 << self.unused(directory, entry)?;
            let aligned = first.is_multiple_of(count);
            if !aligned || !self.space.admits(entry.offset, &extents) || !used.insert(entry.offset) {
                return Err(self.damaged(directory.offset + first * 8, "a segment of its own", "another's"));
            }
            first += self.agree(directory, first, entry, count)?;
        }
        self.pool.drain();
        self.space.adopt(&used);
        Ok(())
    }

    /// Makes the `count` entries of a segment agree, from the one at `first` on; how many turned out to be its own.
    fn agree(&self, directory: Entry, first: u64, entry: Entry, count: u64) -> Result<u64> {
        let middle = first + count / 2;
        if count > 1 {
            let right = self.entry_at(directory, middle)?;
            if right.offset != entry.offset && right.depth == entry.depth + 1 {
                // Split: this was its left half, and the right one comes next.
                let left = Entry { depth: entry.depth + 1, ..entry };
                self.set_entries(directory, first..middle, left);
                return Ok(count / 2);
            }
        }
        for index in first + 1..first + count {
            if self.entry_at(directory, index)? != entry {
                self.set_entries(directory, index..index + 1, entry);
            }
        }
        Ok(count)
    }

    /// Every segment with the index of its first entry, as the directory is now. Ends at the first error.
    pub(super) fn for_each_segment(&self, visit: &mut dyn FnMut(u64, Entry) -> Result<()>) -> Result<()> {
        let directory = self.directory()?;
        let mut index = 0;
        while index < 1 << directory.depth {
            let entry = self.entry_at(directory, index)?;
            let unused = self.unused(directory, entry)?;
            visit(index, entry)?;
            index = ((index >> unused) + 1) << unused;
        }
        Ok(())
    }

    /// Bytes of a directory of this depth.
    pub(super) fn directory_bytes(depth: u32) -> u64 {
        (8u64 << depth).max(DIRECTORY_MIN_BYTES)
    }

    /// Whether a segment of this depth can be split.
    pub(super) fn splits(depth: u32) -> bool {
        depth < MAX_DEPTH
    }
}
