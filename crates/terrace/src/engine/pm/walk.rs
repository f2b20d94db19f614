//! Walks over the keys of a snapshot, a batch at a time.
//!
//! The index returns a batch of keys and words, and their records are read while the words certainly lead to
//! what they named. If that would be too many bytes at once, the rest of the batch is read later, by asking
//! the index again. A version that the snapshot sees stays in the index as long as the snapshot is held.
//!
//! What lies elsewhere is read a *window* of keys at a time. When half of a window has been given out the
//! next one is begun, if the device can read it in the background. A walk that is idle keeps nobody from
//! using space again. If any place was freed since such a window was begun, all of it is read again.
//!
//! Memory: two windows, or one version that is larger and a window. A version that is larger than a window is
//! not begun before it is asked for.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_index::{PointIndex, ScanBatch};
use terrace_table::ReadBuffers;

use super::PmStore;
use super::elsewhere::{Elsewhere, Place, PlaceOf, VersionRef};
use super::index::{KeyIndex, PmEngine, PositionOf};
use super::together::{Reader, TOGETHER, Wanted};
use crate::compaction::selective::RangeScan;
use crate::core::engine::{Direction, EngineIter};
use crate::core::lent::to_keep;
use crate::core::memory::Loan;

/// Keys of the first batch, and of later ones.
const FIRST_KEYS: usize = 32;
const MOST_KEYS: usize = 256;

/// Bytes of values after which a window ends; in the first one also those of what lies elsewhere.
const BATCH_BYTES: u64 = 1 << 20;

/// Bytes of what lies elsewhere in a later window.
const AHEAD_BYTES: usize = 4 << 20;

/// Keys requested at a time by a walk without an order: a scan of a hash index begins each time with a whole
/// shard.
const WALK_KEYS: usize = 8192;

/// A key that was met, and its version.
#[derive(Debug)]
struct Met {
    key: Bytes,
    /// `None`: the snapshot sees nothing, or it is still to be read.
    value: Option<Bytes>,
    /// The table that holds the newest version.
    table: Option<u64>,
}

impl Met {
    fn entry(self) -> Option<(Bytes, Bytes)> {
        Some((self.key, self.value?))
    }
}

/// The next keys of a batch, while what lies elsewhere is read for them.
#[derive(Debug)]
struct Window<E: PmEngine> {
    keys: Vec<Met>,
    wanted: Vec<Wanted<E>>,
    /// Bytes of values, and of what lies elsewhere.
    bytes: u64,
    bytes_elsewhere: u64,
    coming: Option<<E::Home as Elsewhere>::Coming>,
    /// Places that had been freed when it was begun; `None` if the reader has been present since.
    freed: Option<u64>,
    _loan: Option<Loan>,
}

/// How much a window may have.
#[derive(Debug, Clone, Copy)]
struct Room {
    keys: usize,
    bytes_elsewhere: u64,
    /// Whether the walk waits for it: then it has one version, however large.
    is_asked_for: bool,
}

/// Entries that were read and not requested yet, and the rest of a batch.
#[derive(Debug)]
struct ReadAhead<E: PmEngine> {
    entries: VecDeque<Met>,
    batch: ScanBatch,
    /// The part of the batch that was read, or is being read.
    done: usize,
    /// Whether this is the last batch.
    over: bool,
    /// The window behind `entries`, begun.
    coming: Option<Window<E>>,
    /// The next window is begun when no more entries than this are left; `None` if it is not begun before it
    /// is asked for.
    begins_at: Option<usize>,
    /// Keys of the next window, at most.
    keys: usize,
    buffers: ReadBuffers,
}

impl<E: PmEngine> Default for ReadAhead<E> {
    fn default() -> Self {
        ReadAhead {
            entries: VecDeque::new(),
            batch: ScanBatch::default(),
            done: 0,
            over: false,
            coming: None,
            begins_at: None,
            keys: TOGETHER,
            buffers: ReadBuffers::default(),
        }
    }
}

impl<E: PmEngine> ReadAhead<E> {
    fn rest_is_empty(&self) -> bool {
        self.done == self.batch.len()
    }

    /// The next entry visible to the snapshot `at`. `more` appends the keys that follow to the empty batch it
    /// is given, and returns whether they are the last.
    fn next(
        &mut self,
        store: &PmStore<E>,
        at: u64,
        mut more: impl FnMut(&E::Index, &mut ScanBatch) -> Result<bool>,
    ) -> Result<Option<Met>> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                if self.begins_at.is_some_and(|left| self.entries.len() <= left) {
                    self.begins_at = None;
                    // An error comes again when the window is asked for.
                    self.coming = self.begin(store, at, self.room(store, false), &mut more).ok().flatten();
                }
                return Ok(Some(entry));
            }
            if let Some(window) = self.coming.take()
                && self.finish(store, at, window)?
            {
                continue;
            }
            // Nothing that a word names is freed before it is read.
            let _here = store.limbo.enter();
            let room = self.room(store, true);
            let Some(mut window) = self.begin(store, at, room, &mut more)? else { return Ok(None) };
            window.freed = None;
            self.finish(store, at, window)?;
        }
    }

    fn room(&self, store: &PmStore<E>, is_asked_for: bool) -> Room {
        // One window is used while the next one is read.
        let ahead = store.core.memory.buffer(2, AHEAD_BYTES) as u64;
        let is_first = self.keys == TOGETHER;
        let bytes_elsewhere = if is_first { ahead.min(BATCH_BYTES) } else { ahead };
        Room { keys: self.keys, bytes_elsewhere, is_asked_for }
    }

    /// Begins to read the next keys; `None` if there are none, or none for which there is room.
    fn begin(
        &mut self,
        store: &PmStore<E>,
        at: u64,
        room: Room,
        more: &mut impl FnMut(&E::Index, &mut ScanBatch) -> Result<bool>,
    ) -> Result<Option<Window<E>>> {
        let _here = store.limbo.enter();
        let freed = store.home.freed();
        // The words of an older batch may be stale.
        let mut fresh = false;
        while self.rest_is_empty() {
            if self.over {
                return Ok(None);
            }
            self.batch.clear();
            (self.done, fresh) = (0, true);
            match more(&store.index, &mut self.batch) {
                Ok(over) => self.over = over,
                Err(e) => {
                    self.batch.clear();
                    return Err(e);
                }
            }
        }
        let mut window = Window {
            keys: Vec::new(),
            wanted: Vec::new(),
            bytes: 0,
            bytes_elsewhere: 0,
            coming: None,
            freed: Some(freed),
            _loan: None,
        };
        let is_full = |window: &Window<E>| window.keys.len() >= room.keys || window.bytes >= BATCH_BYTES;
        while !self.rest_is_empty() && !is_full(&window) {
            match self.read_together(store, at, fresh, &room, &mut window) {
                Ok(true) => {}
                Ok(false) => break,
                // It comes again, after what was read before it.
                Err(_) if !window.keys.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        if window.keys.is_empty() {
            return Ok(None);
        }
        let places: Vec<PlaceOf<E>> = window.wanted.iter().map(|(_, place, _)| *place).collect();
        window.coming = if places.is_empty() { None } else { store.home.begin(&places) };
        window._loan =
            window.coming.is_some().then(|| store.core.memory.lend(window.bytes_elsewhere as usize));
        Ok(Some(window))
    }

    /// Reads the versions of the next keys that are in the pool, together instead of one after the other, and
    /// notes where the others are. If those have more bytes than there is room for, it takes only the first
    /// keys, and returns false. The caller has been present since before fresh words were loaded.
    fn read_together(
        &mut self,
        store: &PmStore<E>,
        at: u64,
        fresh: bool,
        room: &Room,
        window: &mut Window<E>,
    ) -> Result<bool> {
        let end = self.batch.len().min(self.done + TOGETHER);
        let mut words = [None; TOGETHER];
        for (i, word) in (self.done..end).zip(&mut words) {
            let bits = if fresh { Some(self.batch.word(i)) } else { store.index.get(self.batch.key(i))? };
            *word = store.decode_some(bits)?;
        }
        let count = end - self.done;
        let mut keys: [&[u8]; TOGETHER] = Default::default();
        (0..count).for_each(|i| keys[i] = self.batch.key(self.done + i));
        let mut values: [Option<Bytes>; TOGETHER] = Default::default();
        let mut elsewhere = Vec::new();
        store.read_records(
            Reader { at, is_of_keys: false },
            &keys[..count],
            &words,
            &mut values,
            &mut elsewhere,
        )?;
        let (mut bytes_elsewhere, mut taken) = (window.bytes_elsewhere, 0);
        for (_, place, _) in &elsewhere {
            let more = store.home.bytes_at(*place);
            let is_first = room.is_asked_for && window.wanted.is_empty() && taken == 0;
            if bytes_elsewhere + more > room.bytes_elsewhere && !is_first {
                break;
            }
            (bytes_elsewhere, taken) = (bytes_elsewhere + more, taken + 1);
        }
        let first = window.keys.len();
        let count = elsewhere.get(taken).map_or(count, |wanted| wanted.0);
        for ((key, word), value) in keys[..count].iter().zip(&words).zip(values) {
            window.bytes += value.as_ref().map_or(0, Bytes::len) as u64;
            let table = match word {
                Some(VersionRef::Place(place)) => place.table(),
                _ => None,
            };
            window.keys.push(Met { key: Bytes::copy_from_slice(key), value, table });
        }
        self.done += count;
        window.bytes_elsewhere = bytes_elsewhere;
        let wanted = elsewhere[..taken].iter().map(|(i, place, most)| (first + i, *place, *most));
        window.wanted.extend(wanted);
        Ok(taken == elsewhere.len())
    }

    /// Takes what was read for `window`, which is the last that was begun. Returns false, and leaves its keys to be
    /// read again, if something else may have been written where it was read.
    fn finish(&mut self, store: &PmStore<E>, at: u64, mut window: Window<E>) -> Result<bool> {
        let is_first = self.keys == TOGETHER;
        let reads_on = window.coming.is_some();
        if !window.wanted.is_empty() {
            let places: Vec<_> =
                window.wanted.iter().map(|(i, place, _)| (&*window.keys[*i].key, *place)).collect();
            let buffers = (!is_first).then_some(&mut self.buffers);
            let found = store.home.finish(window.coming.take(), &places, buffers);
            if window.freed.is_some_and(|freed| freed != store.home.freed()) {
                self.done -= window.keys.len();
                return Ok(false);
            }
            for ((i, _, most), found) in window.wanted.iter().zip(found) {
                let one = &mut window.keys[*i];
                one.value = match found.filter(|found| found.number <= *most) {
                    Some(found) => Some(found.value),
                    None => match store.get_at(&one.key, at, to_keep) {
                        Ok(value) => value,
                        Err(e) => {
                            // What is before it is given out; then it is read again.
                            self.done -= window.keys.len() - i;
                            window.keys.truncate(*i);
                            self.entries.extend(window.keys.into_iter().filter(|met| met.value.is_some()));
                            self.begins_at = None;
                            return if self.entries.is_empty() { Err(e) } else { Ok(true) };
                        }
                    },
                };
            }
        }
        self.entries.extend(window.keys.into_iter().filter(|met| met.value.is_some()));
        self.keys = (self.keys * 2).min(MOST_KEYS);
        self.begins_at = reads_on.then_some(self.entries.len() / 2);
        Ok(true)
    }
}

/// A walk in key order, or against it.
#[derive(Debug)]
pub(super) struct OrderedIter<E: PmEngine> {
    store: Arc<PmStore<E>>,
    at: u64,
    reverse: bool,
    /// Where the next batch begins.
    from: Bound<Vec<u8>>,
    keys: usize,
    found: ReadAhead<E>,
    /// Where it finds neighbouring keys.
    scan: Option<RangeScan>,
}

impl<E: PmEngine> OrderedIter<E> {
    pub fn new(store: Arc<PmStore<E>>, at: u64, direction: Direction) -> Self {
        let reverse = direction == Direction::Backward;
        let (found, scan) = (ReadAhead::default(), store.home.watch());
        OrderedIter { store, at, reverse, from: Bound::Unbounded, keys: FIRST_KEYS, found, scan }
    }
}

impl<E: PmEngine> EngineIter for OrderedIter<E> {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        self.from = bound.map(<[u8]>::to_vec);
        (self.keys, self.found) = (FIRST_KEYS, ReadAhead::default());
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let OrderedIter { store, at, reverse, from, keys, found, scan } = self;
        let met = found.next(store, *at, |index, batch| {
            index.scan(from.as_ref().map(Vec::as_slice), *reverse, *keys, batch)?;
            let over = batch.len() < *keys;
            if let Some(last) = batch.len().checked_sub(1) {
                *from = Bound::Excluded(batch.key(last).to_vec());
            }
            *keys = (*keys * 2).min(MOST_KEYS);
            Ok(over)
        })?;
        if let (Some(scan), Some(met)) = (scan, &met) {
            scan.feed(met.table);
        }
        Ok(met.and_then(Met::entry))
    }
}

impl<E: PmEngine> Drop for OrderedIter<E> {
    fn drop(&mut self) {
        if let Some(scan) = self.scan.take().filter(|scan| !scan.is_empty()) {
            self.store.home.range_was_read(&self.store, scan.finish());
        }
    }
}

/// A walk over everything in the index's own order.
#[derive(Debug)]
pub(super) struct FullIter<E: PmEngine> {
    store: Arc<PmStore<E>>,
    at: u64,
    cursor: PositionOf<E>,
    found: ReadAhead<E>,
}

impl<E: PmEngine> FullIter<E> {
    pub fn new(store: Arc<PmStore<E>>, at: u64) -> Self {
        FullIter { store, at, cursor: PositionOf::<E>::default(), found: ReadAhead::default() }
    }
}

impl<E: PmEngine> EngineIter for FullIter<E> {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        match bound {
            Bound::Unbounded => {
                (self.cursor, self.found) = (PositionOf::<E>::default(), ReadAhead::default());
                Ok(())
            }
            _ => Err(Error::Unsupported { engine: E::KIND.name(), operation: "ranges of keys" }),
        }
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let FullIter { store, at, cursor, found } = self;
        let met = found.next(store, *at, |index, batch| {
            let more = index.walk(cursor, WALK_KEYS, batch)?;
            Ok(!more)
        })?;
        Ok(met.and_then(Met::entry))
    }
}
