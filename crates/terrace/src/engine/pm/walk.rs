//! Walks over the keys of a snapshot, a batch at a time.
//!
//! The index returns a batch of keys and words, and their versions are read while the words certainly lead to
//! what they named. If that would be too many bytes at once, the rest of the batch is read later, by asking
//! the index again. A version that the snapshot sees stays in the index as long as the snapshot is held.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_index::ScanBatch;

use super::PmStore;
use super::elsewhere::{Elsewhere, VersionRefOf};
use super::index::KeyIndex;
use super::together::{Reader, TOGETHER, Wanted};
use crate::core::engine::{Direction, EngineIter};

/// Keys of the first batch, and of later ones.
const FIRST_KEYS: usize = 32;
const MOST_KEYS: usize = 256;

/// Bytes of values after which the rest of a batch is left for later.
const BATCH_BYTES: usize = 1 << 20;

/// Keys requested at a time by a walk without an order: a scan of a hash index begins each time with a whole
/// shard.
const WALK_KEYS: usize = 8192;

/// Entries that were read and not requested yet, and the rest of a batch.
#[derive(Debug, Default)]
struct Found {
    entries: VecDeque<(Bytes, Bytes)>,
    batch: ScanBatch,
    /// The part of the batch that was read.
    done: usize,
    /// Whether this is the last batch.
    over: bool,
}

impl Found {
    fn rest_is_empty(&self) -> bool {
        self.done == self.batch.len()
    }

    /// Reads the rest of a batch, whose words may be stale. `fresh`: they are not, since the caller has been
    /// present since they were loaded.
    fn read<I: KeyIndex>(&mut self, store: &PmStore<I>, at: u64, fresh: bool) -> Result<()> {
        let mut bytes = 0;
        while self.done < self.batch.len() && bytes < BATCH_BYTES {
            let end = self.batch.len().min(self.done + TOGETHER);
            let mut words = [None; TOGETHER];
            for (i, word) in (self.done..end).zip(&mut words) {
                let bits =
                    if fresh { Some(self.batch.word(i)) } else { store.index.get(self.batch.key(i))? };
                *word = store.decode_some(bits)?;
            }
            bytes += self.read_together(store, at, &words, end - self.done)?;
        }
        Ok(())
    }

    /// Reads the versions of the next `count` keys, whose newest are `words`, together instead of one after the
    /// other. If what lies elsewhere is more than a batch, it reads only the first of them, at least one.
    /// Returns the bytes of their values. The caller has been present since before the words were loaded.
    fn read_together<I: KeyIndex>(
        &mut self,
        store: &PmStore<I>,
        at: u64,
        words: &[Option<VersionRefOf<I>>; TOGETHER],
        count: usize,
    ) -> Result<usize> {
        let mut keys: [&[u8]; TOGETHER] = Default::default();
        (0..count).for_each(|i| keys[i] = self.batch.key(self.done + i));
        let keys = &keys[..count];
        let mut values: [Option<Bytes>; TOGETHER] = Default::default();
        let mut elsewhere = Vec::new();
        store.read_records(Reader { at, is_of_keys: false }, keys, words, &mut values, &mut elsewhere)?;
        let mut bytes_elsewhere = 0;
        let is_too_much = |wanted: &Wanted<I>| {
            let is_first = bytes_elsewhere == 0;
            bytes_elsewhere += store.home.bytes_at(wanted.1);
            bytes_elsewhere > BATCH_BYTES as u64 && !is_first
        };
        let most = elsewhere.iter().position(is_too_much).unwrap_or(elsewhere.len());
        let count = elsewhere.get(most).map_or(count, |wanted| wanted.0);
        store.read_elsewhere(at, keys, &elsewhere[..most], &mut values)?;
        let mut bytes = 0;
        for (key, value) in keys[..count].iter().zip(values) {
            if let Some(value) = value {
                bytes += value.len();
                self.entries.push_back((Bytes::copy_from_slice(key), value));
            }
        }
        self.done += count;
        Ok(bytes)
    }

    /// The next entry visible to the snapshot `at`. `more` appends the keys that follow to the empty batch it
    /// is given, and returns whether they are the last.
    fn next<I: KeyIndex>(
        &mut self,
        store: &PmStore<I>,
        at: u64,
        mut more: impl FnMut(&I, &mut ScanBatch) -> Result<bool>,
    ) -> Result<Option<(Bytes, Bytes)>> {
        while self.entries.is_empty() && !(self.over && self.rest_is_empty()) {
            let _here = store.limbo.enter();
            let fresh = self.rest_is_empty();
            if fresh {
                self.batch.clear();
                self.done = 0;
                self.over = more(&store.index, &mut self.batch)?;
            }
            self.read(store, at, fresh)?;
        }
        Ok(self.entries.pop_front())
    }
}

/// A walk in key order, or against it.
#[derive(Debug)]
pub(super) struct OrderedIter<I: KeyIndex> {
    store: Arc<PmStore<I>>,
    at: u64,
    reverse: bool,
    /// Where the next batch begins.
    from: Bound<Vec<u8>>,
    keys: usize,
    found: Found,
}

impl<I: KeyIndex> OrderedIter<I> {
    pub fn new(store: Arc<PmStore<I>>, at: u64, direction: Direction) -> Self {
        let reverse = direction == Direction::Backward;
        let found = Found::default();
        OrderedIter { store, at, reverse, from: Bound::Unbounded, keys: FIRST_KEYS, found }
    }
}

impl<I: KeyIndex> EngineIter for OrderedIter<I> {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        self.from = bound.map(<[u8]>::to_vec);
        (self.keys, self.found) = (FIRST_KEYS, Found::default());
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let OrderedIter { store, at, reverse, from, keys, found } = self;
        found.next(store, *at, |index, batch| {
            index.scan(from.as_ref().map(Vec::as_slice), *reverse, *keys, batch)?;
            let over = batch.len() < *keys;
            if let Some(last) = batch.len().checked_sub(1) {
                *from = Bound::Excluded(batch.key(last).to_vec());
            }
            *keys = (*keys * 2).min(MOST_KEYS);
            Ok(over)
        })
    }
}

/// A walk over everything in the index's own order.
#[derive(Debug)]
pub(super) struct FullIter<I: KeyIndex> {
    store: Arc<PmStore<I>>,
    at: u64,
    cursor: I::Cursor,
    found: Found,
}

impl<I: KeyIndex> FullIter<I> {
    pub fn new(store: Arc<PmStore<I>>, at: u64) -> Self {
        FullIter { store, at, cursor: I::Cursor::default(), found: Found::default() }
    }
}

impl<I: KeyIndex> EngineIter for FullIter<I> {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        match bound {
            Bound::Unbounded => {
                (self.cursor, self.found) = (I::Cursor::default(), Found::default());
                Ok(())
            }
            _ => Err(Error::Unsupported { engine: I::KIND.name(), operation: "ranges of keys" }),
        }
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let FullIter { store, at, cursor, found } = self;
        found.next(store, *at, |index, batch| index.walk(cursor, WALK_KEYS, batch).map(|more| !more))
    }
}
