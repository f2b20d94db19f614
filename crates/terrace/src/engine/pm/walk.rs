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
use super::read::value;
use crate::core::engine::{Direction, EngineIter};
use crate::versions::{Record, RecordRef};

/// Keys of the first batch, and of later ones.
const FIRST_KEYS: usize = 32;
const MOST_KEYS: usize = 256;

/// Records whose reading is begun together, and the bytes of each that are.
const TOGETHER: usize = 16;
const FRONT_BYTES: u64 = 128;

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
    /// Whether no batch follows.
    over: bool,
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
            let end = self.batch.len().min(self.done + TOGETHER);
            let mut words = [None; TOGETHER];
            for (i, word) in (self.done..end).zip(&mut words) {
                let bits =
                    if fresh { Some(self.batch.word(i)) } else { store.index.get(self.batch.key(i))? };
                *word = store.decode_some(bits)?;
            }
            bytes += self.read_together(store, at, &words[..end - self.done])?;
        }
        Ok(())
    }

    /// Reads the records of the next keys, whose newest versions are `words`: they come at once, instead of one after
    /// the other. The bytes of their values. The caller is present since before the words were loaded.
    fn read_together<I: KeyIndex>(
        &mut self,
        store: &PmStore<I>,
        at: u64,
        words: &[Option<RecordRef>],
    ) -> Result<usize> {
        words.iter().flatten().for_each(|word| store.pool.prefetch(word.offset(), FRONT_BYTES));
        let mut newest = [None; TOGETHER];
        for (i, (word, record)) in words.iter().zip(&mut newest).enumerate() {
            let Some(word) = *word else { continue };
            // SAFETY: the caller's presence.
            let found = unsafe { Record::peek(&store.pool, word)? };
            *record = Some(found.of(&store.pool, self.batch.key(self.done + i))?);
        }
        store.pool.charge_reads(newest.iter().flatten().map(Record::range));
        let mut bytes = 0;
        for record in &newest[..words.len()] {
            let key = self.batch.key(self.done);
            if let Some(record) = *record
                && let Some(value) = store.version_from(record, at)?.as_ref().and_then(value)
            {
                bytes += value.len();
                self.entries.push_back((Bytes::copy_from_slice(key), value));
            }
            self.done += 1;
        }
        Ok(bytes)
    }

    /// The next entry that the snapshot `at` sees. `more` appends the keys that follow to the empty batch it is given,
    /// and says whether they are the last.
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

/// A walk in the order of keys, or against it.
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

/// A walk over everything, in whatever order the index has it.
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
