//! Walks over the keys of a snapshot, a batch at a time.
//!
//! A batch of keys and words is asked of the index, and their versions are read while the words are certain to lead to
//! what they named. Where that would be too many bytes at once, the rest of the batch is read later, by asking the
//! index again. What is there for the snapshot is in the index as long as the snapshot is held.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_index::ScanBatch;

use super::PmStore;
use super::index::KeyIndex;
use crate::engine::{Direction, Walk};

/// Keys of the first batch, and of later ones.
const FIRST_KEYS: usize = 32;
const MOST_KEYS: usize = 256;

/// Bytes of values after which a batch is left for later.
const BATCH_BYTES: usize = 1 << 20;

/// Keys asked for at a time by a walk without an order: a scan of a hash index begins each time with a whole shard.
const WALK_KEYS: usize = 8192;

/// What was read and not asked for yet, and the rest of a batch.
#[derive(Debug, Default)]
struct Found {
    entries: VecDeque<(Bytes, Bytes)>,
    batch: ScanBatch,
    /// What of the batch was read.
    done: usize,
}

impl Found {
    fn rest_is_empty(&self) -> bool {
        self.done == self.batch.len()
    }

    /// Reads what is left of a batch whose words may have become stale. `fresh`: they have not, as the caller has been
    /// present since they were loaded.
    fn read<I: KeyIndex>(&mut self, store: &PmStore<I>, at: u64, fresh: bool) -> Result<()> {
        let mut bytes = 0;
        while self.done < self.batch.len() && bytes < BATCH_BYTES {
            let key = self.batch.key(self.done);
            let bits = if fresh { Some(self.batch.word(self.done)) } else { store.index.get(key)? };
            if let Some(word) = store.decode_some(bits)?
                && let Some(value) = store.value_at(word, key, at)?
            {
                bytes += value.len();
                self.entries.push_back((Bytes::copy_from_slice(key), value));
            }
            self.done += 1;
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.done = 0;
    }
}

/// A walk in the order of keys, or against it.
#[derive(Debug)]
pub(super) struct OrderedWalk<I: KeyIndex> {
    store: Arc<PmStore<I>>,
    at: u64,
    reverse: bool,
    /// Where the next batch begins.
    from: Bound<Vec<u8>>,
    keys: usize,
    over: bool,
    found: Found,
}

impl<I: KeyIndex> OrderedWalk<I> {
    pub fn new(store: Arc<PmStore<I>>, at: u64, direction: Direction) -> Self {
        let reverse = direction == Direction::Backward;
        let found = Found::default();
        OrderedWalk { store, at, reverse, from: Bound::Unbounded, keys: FIRST_KEYS, over: false, found }
    }

    fn fill(&mut self) -> Result<()> {
        let store = self.store.clone();
        let _here = store.limbo.enter();
        if !self.found.rest_is_empty() {
            return self.found.read(&store, self.at, false);
        }
        self.found.clear();
        let from = self.from.as_ref().map(Vec::as_slice);
        store.index.scan(from, self.reverse, self.keys, &mut self.found.batch)?;
        let got = self.found.batch.len();
        self.over = got < self.keys;
        if let Some(last) = got.checked_sub(1) {
            self.from = Bound::Excluded(self.found.batch.key(last).to_vec());
        }
        self.keys = (self.keys * 2).min(MOST_KEYS);
        self.found.read(&store, self.at, true)
    }
}

impl<I: KeyIndex> Walk for OrderedWalk<I> {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        self.from = bound.map(<[u8]>::to_vec);
        (self.keys, self.over, self.found) = (FIRST_KEYS, false, Found::default());
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        while self.found.entries.is_empty() && !(self.over && self.found.rest_is_empty()) {
            self.fill()?;
        }
        Ok(self.found.entries.pop_front())
    }
}

/// A walk over everything, in whatever order the index has it.
#[derive(Debug)]
pub(super) struct FullWalk<I: KeyIndex> {
    store: Arc<PmStore<I>>,
    at: u64,
    cursor: I::Cursor,
    over: bool,
    found: Found,
}

impl<I: KeyIndex> FullWalk<I> {
    pub fn new(store: Arc<PmStore<I>>, at: u64) -> Self {
        FullWalk { store, at, cursor: I::Cursor::default(), over: false, found: Found::default() }
    }

    fn fill(&mut self) -> Result<()> {
        let store = self.store.clone();
        let _here = store.limbo.enter();
        if !self.found.rest_is_empty() {
            return self.found.read(&store, self.at, false);
        }
        self.found.clear();
        self.over = !store.index.walk(&mut self.cursor, WALK_KEYS, &mut self.found.batch)?;
        self.found.read(&store, self.at, true)
    }
}

impl<I: KeyIndex> Walk for FullWalk<I> {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        match bound {
            Bound::Unbounded => {
                (self.cursor, self.over, self.found) = (I::Cursor::default(), false, Found::default());
                Ok(())
            }
            _ => Err(Error::Unsupported { engine: I::KIND.name(), operation: "ranges of keys" }),
        }
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        while self.found.entries.is_empty() && !(self.over && self.found.rest_is_empty()) {
            self.fill()?;
        }
        Ok(self.found.entries.pop_front())
    }
}
