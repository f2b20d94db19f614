//! Walks over all live keys of a snapshot, in one direction.
//!
//! Two sources are merged by key. The memtables' cursors are pinned for the walk's life; they supply the
//! newest version that the snapshot sees. The index is copied a stretch of leaves at a time; a word copied
//! some time ago may be stale when its turn comes, and is then looked up again: the version that the snapshot
//! sees stays reachable for as long as it is held. If both have a key, the memtables win: their version is
//! not older than that of the index.
//!
//! Values are read ahead once a walk has continued for a few keys: those that lie together in a table,
//! together.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use terrace_base::Result;
use terrace_index::{ListCursor, OrderedIndex, ScanBatch};
use terrace_table::{Entry, Kind, Position, ReadBuffers};

use super::Slm;
use super::compact::file_of;
use super::memtable::MemSet;

use crate::compaction::selective::RangeScan;
use crate::core::engine::{Direction, EngineIter, no_operands};
use crate::located::Location;

/// Index entries copied at first, and at most, in one go.
const FIRST_STRETCH: usize = 8;
const LONGEST_STRETCH: usize = 512;

/// Most bytes that returned keys share: a caller that keeps one keeps all.
const SHARED_KEYS_BYTES: usize = 16 << 10;

/// Entries read one by one: a walk that reads more is likely to continue.
const UNSUSPECTED: usize = 2;

/// Values read ahead in one go: as many as were taken, and at least this many.
const SHORTEST_WINDOW: usize = 24;

/// Versions of a key that a walk passes one by one before it searches for their end.
const WALKED_VERSIONS: usize = 8;

/// Deleted keys that one walk passes in the memtables before it requests their flush, which removes them. A
/// queue's reader looking for its first record would otherwise pass everything that it has taken since the
/// last flush.
pub(super) const DELETED_PASSED: usize = 250;

/// A walk; see the head of the module.
pub(super) struct SlmIter {
    slm: Arc<Slm>,
    at: u64,
    direction: Direction,
    memory: MemorySide,
    index: IndexSide,
    scan: Option<RangeScan>,
    /// Deleted keys passed in the memtables since a request for their flush.
    deleted: usize,
    /// Keys of which the snapshot saw nothing.
    passed: u64,
}

impl SlmIter {
    pub fn new(slm: Arc<Slm>, at: u64, direction: Direction) -> Self {
        // The memtables are pinned first: what a flush moves out of them later is in both.
        let memory = MemorySide::new(&slm.mem.load(), at, direction);
        let scan = Some(RangeScan::new(&slm.compaction_options()));
        SlmIter { memory, index: IndexSide::new(direction), scan, deleted: 0, passed: 0, slm, at, direction }
    }
}

impl EngineIter for SlmIter {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        self.memory.seek(bound)?;
        self.index.seek(bound);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            self.index.fill(&self.slm)?;
            let memory_leads = match (self.memory.key(), self.index.key()) {
                (None, None) => return Ok(None),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some(m), Some(i)) if m == i => {
                    self.index.advance();
                    true
                }
                (Some(m), Some(i)) => (m < i) == (self.direction == Direction::Forward),
            };
            let found = if memory_leads { self.memory.take()? } else { self.take_indexed()? };
            if found.is_some() {
                return Ok(found);
            }
            self.passed += 1;
            if memory_leads {
                self.note_deleted();
            }
        }
    }

    fn passed(&self) -> u64 {
        self.passed
    }
}

impl SlmIter {
    fn note_deleted(&mut self) {
        self.deleted += 1;
        if self.deleted == DELETED_PASSED {
            self.deleted = 0;
            self.slm.rotate_soon.store(true, Ordering::Relaxed);
        }
    }

    fn take_indexed(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let ahead = self.index.take_ahead(&self.slm, self.at);
        let Some(key) = self.index.key() else { return Ok(None) };
        let word = self.index.word();
        let value = match ahead {
            Some(value) => value,
            None => self.slm.located.get_at_word(key, word, self.at)?,
        };
        let found = value.map(|value| (self.index.key_to_give(), value));
        if let Some(scan) = &mut self.scan {
            scan.feed(file_of(word));
        }
        self.index.advance();
        Ok(found)
    }
}

impl Drop for SlmIter {
    fn drop(&mut self) {
        if let Some(scan) = self.scan.take().filter(|scan| !scan.is_empty()) {
            self.slm.range_was_read.store(true, Ordering::Relaxed);
            self.slm.note_scattered(scan.finish());
        }
    }
}

/// The index's keys, a copied stretch at a time.
struct IndexSide {
    direction: Direction,
    batch: ScanBatch,
    /// The batch's keys, shared by the returned ones; none if they are long.
    keys: Bytes,
    next: usize,
    /// Where the next stretch starts; `None` after the last.
    from: Option<Bound<Vec<u8>>>,
    stretch: usize,
    /// What was read ahead of the batch's entries from `ahead_from` on.
    ahead: Vec<Option<Entry>>,
    ahead_from: usize,
    buffers: ReadBuffers,
    /// Entries taken since the last seek.
    taken: usize,
}

impl IndexSide {
    fn new(direction: Direction) -> Self {
        IndexSide {
            direction,
            batch: ScanBatch::default(),
            keys: Bytes::new(),
            next: 0,
            from: None,
            stretch: FIRST_STRETCH,
            ahead: Vec::new(),
            ahead_from: 0,
            buffers: ReadBuffers::default(),
            taken: 0,
        }
    }

    fn seek(&mut self, bound: Bound<&[u8]>) {
        self.from = Some(bound.map(<[u8]>::to_vec));
        self.batch.clear();
        self.ahead.clear();
        (self.next, self.stretch, self.taken) = (0, FIRST_STRETCH, 0);
    }

    fn fill(&mut self, slm: &Slm) -> Result<()> {
        if self.next < self.batch.len() {
            return Ok(());
        }
        let Some(from) = self.from.take() else {
            self.buffers = ReadBuffers::default();
            return Ok(());
        };
        let reverse = self.direction == Direction::Backward;
        self.batch.clear();
        let scanned = slm.located.index().scan(
            from.as_ref().map(Vec::as_slice),
            reverse,
            self.stretch,
            &mut self.batch,
        );
        if scanned.is_err() {
            self.batch.clear();
        }
        scanned?;
        let shared = self.batch.keys().len() <= SHARED_KEYS_BYTES;
        self.keys = if shared { Bytes::copy_from_slice(self.batch.keys()) } else { Bytes::new() };
        self.next = 0;
        self.ahead.clear();
        if self.batch.len() == self.stretch {
            self.from = Some(Bound::Excluded(self.batch.key(self.stretch - 1).to_vec()));
        }
        self.stretch = (self.stretch * 3).min(LONGEST_STRETCH);
        Ok(())
    }

    fn key(&self) -> Option<&[u8]> {
        (self.next < self.batch.len()).then(|| self.batch.key(self.next))
    }

    fn key_to_give(&self) -> Bytes {
        match self.keys.is_empty() {
            true => Bytes::copy_from_slice(self.batch.key(self.next)),
            false => self.keys.slice(self.batch.key_range(self.next)),
        }
    }

    fn word(&self) -> u64 {
        self.batch.word(self.next)
    }

    /// The value read ahead of the current entry, if there is one that a reader at `at` sees.
    fn take_ahead(&mut self, slm: &Slm, at: u64) -> Option<Option<Bytes>> {
        self.taken += 1;
        let passed = self.ahead.is_empty() || self.next >= self.ahead_from + self.ahead.len();
        if self.taken > UNSUSPECTED && passed {
            let window = self.taken.max(SHORTEST_WINDOW).min(self.batch.len() - self.next);
            // Cleared first: the buffers that they share may then be reused.
            self.ahead.clear();
            self.ahead = read_ahead(slm, &self.batch, self.next..self.next + window, &mut self.buffers);
            self.ahead_from = self.next;
        }
        let entry = self.ahead.get_mut(self.next.checked_sub(self.ahead_from)?)?.take()?;
        (entry.seq <= at).then(|| entry.into_value())
    }

    fn advance(&mut self) {
        self.next += 1;
    }
}

/// Reads what the words of `batch` within `window` name, table by table. It leaves out what has moved
/// meanwhile or is in a chain.
fn read_ahead(
    slm: &Slm,
    batch: &ScanBatch,
    window: Range<usize>,
    buffers: &mut ReadBuffers,
) -> Vec<Option<Entry>> {
    let mut out = vec![None; window.len()];
    let first = window.start;
    let mut places: Vec<(Position, usize)> = window
        .filter_map(|i| match Location::decode(batch.word(i)) {
            Some(Location::Position(position)) => Some((position, i)),
            _ => None,
        })
        .collect();
    places.sort_unstable();
    let tables = slm.tables.load();
    let requests: Vec<(Position, &[u8])> = places.iter().map(|&(at, i)| (at, batch.key(i))).collect();
    let of_tables = || {
        let runs = requests.chunk_by(|a, b| a.0.number() == b.0.number());
        runs.map(|run| (tables.get(&run[0].0.number()), run))
    };
    if requests.first().map(|first| first.0.number()) != requests.last().map(|last| last.0.number()) {
        of_tables().for_each(|(table, run)| table.into_iter().for_each(|table| table.announce_ahead(run)));
    }
    let mut places = places.iter();
    for (table, run) in of_tables() {
        let found = table.map(|table| table.get_ahead(run, u64::MAX, buffers)).unwrap_or_default();
        let found = found.into_iter().chain(std::iter::repeat(None));
        for (&(_, i), entry) in places.by_ref().take(run.len()).zip(found) {
            out[i - first] = entry;
        }
    }
    out
}

/// The memtables' keys, each with the version that the snapshot sees.
struct MemorySide {
    cursors: Vec<ListCursor>,
    at: u64,
    direction: Direction,
    /// The current key, and its value unless it is deleted.
    current: Option<Vec<u8>>,
    version: Option<Bytes>,
}

impl MemorySide {
    fn new(mem: &MemSet, at: u64, direction: Direction) -> Self {
        let cursors = mem.iter().map(|m| m.list().cursor()).collect();
        MemorySide { cursors, at, direction, current: None, version: None }
    }

    fn key(&self) -> Option<&[u8]> {
        self.current.as_deref()
    }

    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        for cursor in &mut self.cursors {
            match (self.direction, bound) {
                (Direction::Forward, Bound::Unbounded) => cursor.seek_first()?,
                (Direction::Forward, Bound::Included(key)) => cursor.seek(key, u64::MAX)?,
                (Direction::Forward, Bound::Excluded(key)) => {
                    // The last position of a key is that of the lowest sequence number.
                    cursor.seek(key, 0)?;
                    pass(cursor, key, 0, self.direction)?;
                }
                (Direction::Backward, Bound::Unbounded) => cursor.seek_last()?,
                (Direction::Backward, Bound::Included(key)) => cursor.seek_back(key, 0)?,
                (Direction::Backward, Bound::Excluded(key)) => {
                    cursor.seek_back(key, u64::MAX)?;
                    pass(cursor, key, 0, self.direction)?;
                }
            }
        }
        self.find_next()
    }

    /// Takes the current key; `None` if the snapshot sees it deleted or not at all.
    fn take(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let key = self.current.take().map(Bytes::from);
        let value = self.version.take();
        self.find_next()?;
        Ok(key.zip(value))
    }

    /// Finds the next key at which any cursor is and of which the snapshot sees a version here, and moves
    /// every cursor past it. A deleted key becomes the current one, too: it hides the index's.
    fn find_next(&mut self) -> Result<()> {
        loop {
            let keys = self.cursors.iter().filter(|c| c.valid()).map(ListCursor::key);
            let next = match self.direction {
                Direction::Forward => keys.min(),
                Direction::Backward => keys.max(),
            };
            let Some(key) = next.map(<[u8]>::to_vec) else {
                self.current = None;
                return Ok(());
            };
            let mut newest: Option<(u64, Option<Bytes>)> = None;
            for cursor in &mut self.cursors {
                if let Some((seq, value)) = pass(cursor, &key, self.at, self.direction)?
                    && newest.as_ref().is_none_or(|(other, _)| seq > *other)
                {
                    newest = Some((seq, value));
                }
            }
            if let Some((_, value)) = newest {
                (self.current, self.version) = (Some(key), value);
                return Ok(());
            }
        }
    }
}

/// Moves `cursor` past every version of `key`, if it stands at one, and returns the newest that `at`
/// sees.
fn pass(
    cursor: &mut ListCursor,
    key: &[u8],
    at: u64,
    direction: Direction,
) -> Result<Option<(u64, Option<Bytes>)>> {
    let mut newest = None;
    let mut passed = 0;
    while cursor.valid() && cursor.key() == key {
        // A key that is written all the time has thousands.
        if passed == WALKED_VERSIONS {
            return leap(cursor, key, at, direction, newest);
        }
        // Going forward the first visible version is the newest, going backward the last.
        if cursor.seq() <= at && (newest.is_none() || direction == Direction::Backward) {
            newest = Some(version(cursor)?);
        }
        match direction {
            Direction::Forward => cursor.next()?,
            Direction::Backward => cursor.prev()?,
        }
        passed += 1;
    }
    Ok(newest)
}

/// The rest of [`pass`] by searches: for the newest version that `at` sees, unless going forward has met it,
/// and for the first position that is not the key's.
fn leap(
    cursor: &mut ListCursor,
    key: &[u8],
    at: u64,
    direction: Direction,
    met: Option<(u64, Option<Bytes>)>,
) -> Result<Option<(u64, Option<Bytes>)>> {
    let mut newest = met;
    if newest.is_none() || direction == Direction::Backward {
        cursor.seek(key, at)?;
        if cursor.valid() && cursor.key() == key {
            newest = Some(version(cursor)?);
        }
    }
    match direction {
        Direction::Forward => cursor.seek(key, 0)?,
        Direction::Backward => cursor.seek_back(key, u64::MAX)?,
    }
    while cursor.valid() && cursor.key() == key {
        match direction {
            Direction::Forward => cursor.next()?,
            Direction::Backward => cursor.prev()?,
        }
    }
    Ok(newest)
}

/// The version at `cursor`, `None` for a deletion.
fn version(cursor: &ListCursor) -> Result<(u64, Option<Bytes>)> {
    let value = match cursor.version_kind()? {
        Kind::Put => Some(Bytes::copy_from_slice(cursor.value()?)),
        Kind::Delete => None,
        Kind::Operand => return Err(no_operands()),
    };
    Ok((cursor.seq(), value))
}
