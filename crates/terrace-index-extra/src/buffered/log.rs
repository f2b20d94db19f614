//! The log of buffered changes: two generations of logs in persistent memory, the older of which goes when
//! everything in it has been merged.
//!
//! ```text
//! header -> current set -> a log for each lane       header -> previous set, or none; checked words
//! entry   = sequence number, word (0: removed), key
//! ```
//!
//! 1. An entry is durable when `append` returns; the caller makes it visible after that.
//! 2. Threads append to lanes of their own. Two entries of one key are ordered by their sequence numbers, which
//!    the caller draws under that key's lock.
//! 3. Generations go in order, whole, by one publish. So as long as an entry is there, every later one of its key is:
//!    replaying entries in order of sequence numbers never restores an older word.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::RwLock;
use terrace_base::checksum::seal48;
use terrace_base::{Error, Result};
use terrace_index::kinds;
use terrace_index::point::MAX_KEY_BYTES;
use terrace_log::{LogPlaces, LogSet, MAX_SET_LOGS, SetKinds, SetWords};
use terrace_pmem::{Marks, POff, Pool};

/// `TSPOT`, version, zeros.
const MAGIC: u64 = u64::from_le_bytes(*b"TSPOT\x03\0\0");
/// The bits of the version in it.
const VERSION_SHIFT: u32 = 40;
/// Bytes of the header: magic, current, previous, reserved.
const HEADER_BYTES: u64 = 32;
const CURRENT_AT: u64 = 8;
const PREVIOUS_AT: u64 = 16;
const RESERVED_AT: u64 = 24;
const _: () = assert!(HEADER_BYTES == RESERVED_AT + 8);
const KINDS: SetKinds = SetKinds { set: kinds::SPOT_ON, log: kinds::SPOT_ON_LOG };
/// Bytes of an entry before its key.
const ENTRY_HEAD_BYTES: usize = 16;
/// Bytes of an entry with a short key, with what the log adds to it, about.
const TYPICAL_BYTES: u64 = 48;

struct Generations {
    /// The number of the current one, from 1.
    number: u64,
    current: LogSet,
    previous: Option<LogSet>,
}

impl Generations {
    fn all(&self) -> impl Iterator<Item = &LogSet> {
        self.previous.iter().chain([&self.current])
    }
}

/// Logs of buffered changes.
pub(super) struct WriteLog {
    pool: Pool,
    header: u64,
    words: SetWords,
    lanes: usize,
    /// Bytes that a generation has room for at first, and bytes of entries from which on it is old enough.
    room: u64,
    limit: AtomicU64,
    state: RwLock<Generations>,
    /// Bytes of the current generation, for callers that do not want to wait for `state`.
    bytes: AtomicU64,
    sequence: CachePadded<AtomicU64>,
}

/// The last word, or none, of each key that was changed.
pub(super) type Replayed = BTreeMap<Vec<u8>, Option<u64>>;

/// The number of the first generation that there is when a log is opened.
pub(super) const OPENED_GENERATION: u64 = 1;

impl WriteLog {
    /// An empty log, durable. The caller publishes [`header`](Self::header).
    pub fn create(pool: &Pool, lanes: usize, limit: u64) -> Result<Self> {
        let lanes = lanes.clamp(1, MAX_SET_LOGS);
        let slot = pool.reserve(kinds::SPOT_ON, HEADER_BYTES)?;
        let current = match LogSet::create(pool, KINDS, 1, lanes, limit / lanes as u64) {
            Ok(current) => current,
            Err(e) => {
                pool.cancel(slot);
                return Err(e);
            }
        };
        pool.write(slot.offset, &encode_header(slot.offset, current.offset()));
        pool.flush(slot.offset, HEADER_BYTES);
        pool.activate(&slot);
        pool.drain();
        Ok(Self::over(pool, slot.offset, (lanes, limit), current, None))
    }

    /// The log at `header`, with its entries; `reset` empties it when they have been merged.
    pub fn open(pool: &Pool, header: u64, lanes: usize, limit: u64) -> Result<(Self, Replayed)> {
        check_magic(pool, header, pool.atomic_checked(POff::new(header))?.load(Ordering::Acquire))?;
        let words = words(pool, header);
        let named = words.named()?;
        // A killed process may have stored these words and no more.
        pool.persist(header, HEADER_BYTES);
        let mut sets: Vec<LogSet> =
            named.into_iter().map(|set| LogSet::open(pool, KINDS, set)).collect::<Result<_>>()?;
        let current = sets
            .pop()
            .ok_or_else(|| pool.corruption(header + CURRENT_AT, "the place of a set of logs", "none"))?;
        let previous = sets.pop();
        if previous.is_none() {
            // A rotation may have been begun, behind which nothing was appended.
            words.cut();
        }
        let last = last_changes(pool, previous.iter().chain([&current]))?;
        let next = last.values().map(|(sequence, _)| sequence + 1).max().unwrap_or(1);
        let replayed = last.into_iter().map(|(key, (_, word))| (key, word)).collect();
        let log = Self::over(pool, header, (lanes.clamp(1, MAX_SET_LOGS), limit), current, previous);
        log.sequence.store(next, Ordering::Relaxed);
        Ok((log, replayed))
    }

    fn over(
        pool: &Pool,
        header: u64,
        (lanes, limit): (usize, u64),
        current: LogSet,
        previous: Option<LogSet>,
    ) -> Self {
        WriteLog {
            pool: pool.clone(),
            header,
            words: words(pool, header),
            lanes,
            room: limit,
            limit: AtomicU64::new(limit),
            bytes: AtomicU64::new(current.bytes()),
            state: RwLock::new(Generations {
                number: OPENED_GENERATION + u64::from(previous.is_some()),
                current,
                previous,
            }),
            sequence: CachePadded::new(AtomicU64::new(1)),
        }
    }

    /// The offset under which the log is opened again.
    pub fn header(&self) -> u64 {
        self.header
    }

    /// A corruption of the structure that the log belongs to.
    #[cold]
    pub fn damaged(&self, expected: &str, found: &str) -> Error {
        self.pool.corruption(self.header, expected, found)
    }

    /// Appends a change, durably, and calls `note` with the number of the generation while that is the current one. The
    /// caller holds the key's lock.
    pub fn append(&self, key: &[u8], word: Option<u64>, note: impl FnOnce(u64)) -> Result<()> {
        let mut entry = [0u8; 64];
        let len = ENTRY_HEAD_BYTES + key.len();
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        entry[..8].copy_from_slice(&sequence.to_le_bytes());
        entry[8..16].copy_from_slice(&word.unwrap_or(0).to_le_bytes());
        let state = self.state.read();
        let lane = lane() % state.current.count();
        if len <= entry.len() {
            entry[ENTRY_HEAD_BYTES..len].copy_from_slice(key);
            state.current.append(lane, &entry[..len])?;
        } else {
            state.current.append(lane, &[&entry[..ENTRY_HEAD_BYTES], key].concat())?;
        }
        self.bytes.store(state.current.bytes(), Ordering::Relaxed);
        note(state.number);
        Ok(())
    }

    /// Whether it is time to [`rotate`](Self::rotate).
    #[inline]
    pub fn is_due(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }

    /// Whether the partitions that the previous generation waits for should be merged now, so that it is gone in time.
    /// Most buffers have been merged by then because they were full.
    #[inline]
    pub fn is_soon_due(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed) / 4 * 3
    }

    /// Lets generations become as old as it takes for `entries` changes, but not younger than at first.
    pub fn make_room_for(&self, entries: usize) {
        let bytes = entries as u64 * TYPICAL_BYTES;
        self.limit.store(bytes.max(self.room), Ordering::Relaxed);
    }

    /// Begins a new generation if it is time and the previous one is gone; the number of the one that has become the
    /// previous one. `hand_over` is called with it while nothing is appended.
    pub fn rotate(&self, hand_over: impl FnOnce(u64)) -> Result<Option<u64>> {
        let mut state = self.state.write();
        if !self.is_due() || state.previous.is_some() {
            return Ok(None);
        }
        let next = self.next(&state)?;
        self.words.rotate(&state.current, &next);
        state.previous = Some(self.go_on(&mut state, next));
        hand_over(state.number - 1);
        Ok(Some(state.number - 1))
    }

    /// An empty generation that is to follow the current one.
    fn next(&self, state: &Generations) -> Result<LogSet> {
        let number = state.current.number().wrapping_add(1);
        LogSet::create(&self.pool, KINDS, number, self.lanes, self.room / self.lanes as u64)
    }

    /// Takes `next`, which is named the current generation, for it; the one before.
    fn go_on(&self, state: &mut Generations, next: LogSet) -> LogSet {
        state.number += 1;
        self.bytes.store(0, Ordering::Relaxed);
        std::mem::replace(&mut state.current, next)
    }

    /// Whether there is a previous generation.
    pub fn has_previous(&self) -> bool {
        self.state.read().previous.is_some()
    }

    /// Lets the previous generation go if it is `generation`: everything in it has been merged, durably.
    pub fn cut(&self, generation: u64) -> Result<()> {
        let mut state = self.state.write();
        match state.number == generation + 1 {
            true => self.free_previous(&mut state),
            false => Ok(()),
        }
    }

    fn free_previous(&self, state: &mut Generations) -> Result<()> {
        let Some(old) = state.previous.take() else { return Ok(()) };
        self.words.cut();
        old.free()
    }

    /// Lets everything go, if all of it has been merged, durably: `merged` decides that, while nothing is appended. In
    /// a pool without room for another generation the current one stays: replaying it once more changes nothing.
    pub fn reset(&self, merged: impl FnOnce() -> bool) -> Result<()> {
        let mut state = self.state.write();
        if !merged() {
            return Ok(());
        }
        self.free_previous(&mut state)?;
        if state.current.is_empty() {
            return Ok(());
        }
        match self.next(&state) {
            Ok(next) => {
                self.words.begin(&next);
                self.go_on(&mut state, next).free()
            }
            Err(e) if e.is_out_of_space() => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Gives everything back. The header was never published.
    pub fn free(self) -> Result<()> {
        let Generations { current, previous, .. } = self.state.into_inner();
        self.pool.free(self.header, kinds::SPOT_ON)?;
        previous.into_iter().chain([current]).try_for_each(LogSet::free)
    }

    /// Marks the log's memory.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        let places: Vec<LogPlaces> = self.state.read().all().map(LogSet::places).collect::<Result<_>>()?;
        marks.slot(self.header)?;
        places.iter().try_for_each(|set| set.mark(marks))
    }

    /// The last word, or none, of each key that has changed since the oldest entry.
    pub fn last_words(&self) -> Result<Replayed> {
        let state = self.state.read();
        let last = last_changes(&self.pool, state.all())?;
        Ok(last.into_iter().map(|(key, (_, word))| (key, word)).collect())
    }

    /// Problems of the logs.
    pub fn check(&self) -> Vec<String> {
        self.state.read().all().flat_map(LogSet::check).collect()
    }

    /// Bytes of the pool held.
    pub fn pm_bytes(&self) -> u64 {
        HEADER_BYTES + self.state.read().all().map(LogSet::pm_bytes).sum::<u64>()
    }
}

/// The words of a header that name sets.
fn words(pool: &Pool, header: u64) -> SetWords {
    SetWords::new(pool, (header + CURRENT_AT, header + PREVIOUS_AT), true)
}

fn encode_header(at: u64, current: u64) -> [u8; HEADER_BYTES as usize] {
    let mut image = [0; HEADER_BYTES as usize];
    let words = [MAGIC, seal48(at + CURRENT_AT, current), seal48(at + PREVIOUS_AT, 0), 0];
    image.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    image
}

fn check_magic(pool: &Pool, at: u64, magic: u64) -> Result<()> {
    let version = |magic: u64| (magic >> VERSION_SHIFT) as u8;
    if magic == MAGIC {
        return Ok(());
    }
    if magic ^ MAGIC == u64::from(version(magic ^ MAGIC)) << VERSION_SHIFT {
        // No checksum covers the header, so that damage to this byte looks the same.
        return Err(Error::foreign(
            pool.path(),
            format!("a log of buffered changes of version {}", version(magic)),
            format!("version {}", version(MAGIC)),
        ));
    }
    Err(pool.corruption(at, "the header of a log of buffered changes", "other bytes"))
}

/// The last change of each key, with its number.
type LastChanges = BTreeMap<Vec<u8>, (u64, Option<u64>)>;

fn last_changes<'g>(pool: &Pool, sets: impl Iterator<Item = &'g LogSet>) -> Result<LastChanges> {
    let mut last = BTreeMap::new();
    for set in sets {
        set.visit_all(&mut |head, entry| {
            let Some((sequence, word, key)) = change_of(entry) else {
                return Err(pool.corruption(head, "buffered changes", "another entry"));
            };
            let word = (word != 0).then_some(word);
            let found = last.entry(key.to_vec()).or_insert((sequence, word));
            if found.0 < sequence {
                *found = (sequence, word);
            }
            Ok(())
        })?;
    }
    Ok(last)
}

/// Sequence number, word and key of an entry.
fn change_of(entry: &[u8]) -> Option<(u64, u64, &[u8])> {
    let key = entry.get(ENTRY_HEAD_BYTES..).filter(|key| key.len() <= MAX_KEY_BYTES)?;
    Some((word_at(entry, 0)?, word_at(entry, 8)?, key))
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..at + 8)?.first_chunk()?))
}

/// A number that is unique to this thread.
fn lane() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
    MINE.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use terrace_pmem::{Granularity, MemMedia, PoolOptions};

    use super::*;

    #[test]
    fn golden_header() {
        let header = encode_header(0x2000, 0x1_0000);
        assert_eq!(header[..8], *b"TSPOT\x03\0\0");
        assert_eq!(header[8..14], [0, 0, 1, 0, 0, 0]);
        assert_eq!(header[16..22], [0; 6]);
        assert_eq!([header[14], header[15], header[22], header[23]], [16, 255, 98, 227], "checks");
        assert_eq!(header[24..], [0; 8]);
    }

    fn log() -> WriteLog {
        let media = MemMedia::new(1 << 20, 1 << 20, Granularity::CacheLine).unwrap();
        let options = PoolOptions { size: 1 << 20, prefault: false, ..PoolOptions::default() };
        let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap();
        WriteLog::create(&pool, 1, 100).unwrap()
    }

    fn fill(log: &WriteLog) {
        while !log.is_due() {
            log.append(b"some key", Some(1), |_| ()).unwrap();
        }
    }

    #[test]
    fn nobody_appends_or_resets_while_a_turn_is_handed_over() {
        let log = log();
        fill(&log);
        let mut alone = false;
        assert_eq!(log.rotate(|_| alone = log.state.try_read().is_none()).unwrap(), Some(1));
        assert!(alone);
    }

    #[test]
    fn a_late_cut_leaves_a_later_generation_alone() {
        let log = log();
        fill(&log);
        let old = log.rotate(|_| ()).unwrap().unwrap();
        log.reset(|| true).unwrap();
        fill(&log);
        let newer = log.rotate(|_| ()).unwrap().unwrap();
        log.cut(old).unwrap();
        assert_eq!(log.last_words().unwrap().len(), 1, "{newer} waits for nobody and is still there");
        log.cut(newer).unwrap();
        assert!(log.last_words().unwrap().is_empty());
    }
}
