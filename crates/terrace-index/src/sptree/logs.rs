//! The logs of write buffers' entries.
//!
//! A log set is a few logs, each with the keys whose hash leads to it. Entries go to the current set; the set before
//! it, if there is one, still has entries that are in buffers alone.
//!
//! 1. An entry is durable in the current set before it is in a buffer.
//! 2. Sets are begun and freed in order, so the entry about a key with the highest number is its last change, unless
//!    all entries about it are gone: then its leaf has it.
//! 3. The old set is freed when every buffer with an entry in it has been flushed. A node notes which of the
//!    two sets the oldest entry of its buffer is in.
//! 4. An open continues with the sets it finds: their entries come back into the buffers (`pending`). A log is not
//!    appended to before it has been read.
//! 5. Where the pool has no room for logs there are none, and no buffer has an entry: writes go to leaves, as
//!    in a tree without buffers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use terrace_base::checksum::hash64;
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};
use terrace_log::{LogPlaces, LogSet, SetKinds, SetWords};
use terrace_pmem::{Marks, Pool};

use super::key::Probe;
use super::layout::{LOGS_AT, OLD_LOGS_AT, TREE_HEADER_BYTES};
use super::{Core, SpOptions, SpTree};
use crate::kinds;
use crate::point::MAX_KEY_BYTES;

/// Most logs of a set.
pub(super) const MAX_LOGS: usize = 32;

/// Logs of a set by default: with more, the media would have too many places at a time to combine writes.
pub(super) const LOGS: usize = 16;

const KINDS: SetKinds = SetKinds { set: kinds::SPTREE_HEADER, log: kinds::SPTREE_LOG };

/// Writes without buffers after which it is looked whether there is room for logs again.
const WRITES_TO_RESUME: u64 = 256;

/// So many times what a new set takes must be free before logs are begun again.
const ROOM_TO_RESUME: u64 = 4;

/// Bytes of an entry before its key: its number and the word.
const ENTRY_BYTES: usize = 16;

/// Bytes that an entry with a short key takes in a log, about.
const TYPICAL_BYTES: u64 = 48;

/// The logs of a buffered tree.
pub(super) struct Logs {
    pub buffer_entries: usize,
    /// Logs of a set.
    pub count: usize,
    limit: u64,
    /// The number of the next entry.
    pub next: AtomicU64,
    /// Whether there are sets, so that writes go to buffers. Looked at under a node's lock.
    on: AtomicBool,
    /// Writes made without buffers.
    plain_writes: AtomicU64,
    sets: RwLock<Option<Sets>>,
    /// Held to change sets.
    rotating: Mutex<()>,
}

struct Sets {
    current: LogSet,
    old: Option<LogSet>,
    /// The sets are about to be given up: nothing is logged meanwhile.
    closing: bool,
}

impl Sets {
    fn all(&self) -> impl Iterator<Item = &LogSet> {
        self.old.iter().chain(std::iter::once(&self.current))
    }
}

/// Is called with each entry: number of the set, number of the entry, word and key.
pub(super) type VisitEntry<'v> = dyn FnMut(u64, u64, u64, &[u8]) + 'v;

impl Logs {
    pub fn new(options: &SpOptions) -> Logs {
        Logs {
            buffer_entries: options.buffer_entries,
            count: options.logs,
            limit: options.log_bytes,
            next: AtomicU64::new(1),
            on: AtomicBool::new(false),
            plain_writes: AtomicU64::new(0),
            sets: RwLock::new(None),
            rotating: Mutex::new(()),
        }
    }

    /// Whether writes go to buffers.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// The number of the current set, 0 if there is none.
    pub fn current(&self) -> u64 {
        self.sets.read().as_ref().map_or(0, |sets| sets.current.number())
    }

    /// Waits until sets that are being given up are gone. The caller has no node locked.
    pub fn wait(&self) {
        drop(self.rotating.lock());
    }
}

/// The log of a set of `count` that entries about `key` go to.
pub(super) fn log_of(key: &[u8], count: usize) -> usize {
    // Other bits than those of the key's place in its leaf.
    (hash64(key) >> 8) as usize % count.max(1)
}

/// Hands the entries of log `log` of a set to `visit`.
fn visit(pool: &Pool, set: &LogSet, log: usize, visit: &mut VisitEntry<'_>) -> Result<()> {
    set.visit(log, &mut |head, entry| {
        let (number, word, key) =
            entry_of(entry).ok_or_else(|| pool.corruption(head, "entries of a write buffer", "another"))?;
        visit(set.number(), number, word, key);
        Ok(())
    })
}

impl SpTree {
    /// Brings what is in write buffers to the leaves, so that their logs go, beside readers and writers; returns
    /// whether there were any.
    pub fn give_up_buffers(&self) -> Result<bool> {
        let had_logs = self.core.has_logs();
        if had_logs {
            let _here = self.core.limbo.enter();
            self.core.shed_logs()?;
        }
        Ok(had_logs)
    }
}

impl Core {
    /// Continues with the sets that are there, or begins one; a tree without buffers replays and frees them.
    pub(super) fn open_logs(&self) -> Result<()> {
        let _here = self.limbo.enter();
        // Stored by a process that was killed, perhaps not durable yet.
        self.pool.persist(self.header_off, TREE_HEADER_BYTES);
        let mut sets = self.named_sets()?;
        if self.read_only {
            // This check stores nothing.
            let mut entry =
                |_, _: &[u8]| Err(Error::invalid("an SPTree that was not closed, for reading only"));
            return sets.iter().try_for_each(|set| set.visit_all(&mut entry));
        }
        if let Some(logs) = &self.logs
            && sets.iter().all(|set| set.count() == logs.count)
            && let Some(current) = sets.pop()
        {
            *logs.sets.write() = Some(Sets { current, old: sets.pop(), closing: false });
            self.pending.begin();
            logs.on.store(true, Ordering::Release);
            return Ok(());
        }
        let last = self.replay(&sets)?;
        self.set_words().clear();
        let number = sets.last().map_or(1, |set| set.number().wrapping_add(1));
        sets.into_iter().try_for_each(LogSet::free)?;
        if let Some(logs) = &self.logs {
            logs.next.store(last + 1, Ordering::Relaxed);
            self.begin_logs(number)?;
        }
        Ok(())
    }

    /// The words of the header that name sets.
    fn set_words(&self) -> SetWords {
        let at = |at| self.header_off + at;
        SetWords::new(&self.pool, (at(LOGS_AT), at(OLD_LOGS_AT)), false)
    }

    /// The sets that the header names, the old one first.
    fn named_sets(&self) -> Result<Vec<LogSet>> {
        self.set_words().named()?.into_iter().map(|set| LogSet::open(&self.pool, KINDS, set)).collect()
    }

    /// An empty set, named by nobody.
    fn make_set(&self, number: u64, count: usize) -> Result<LogSet> {
        LogSet::create(&self.pool, KINDS, number, count, self.pool.extent_bytes() / 2)
    }

    /// Begins the first set, if there is room for one; nobody else changes sets.
    fn begin_logs(&self, number: u64) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let current = match self.make_set(number, logs.count) {
            Ok(set) => set,
            Err(e) if e.is_out_of_space() => return Ok(()),
            Err(e) => return Err(e),
        };
        self.set_words().begin(&current);
        *logs.sets.write() = Some(Sets { current, old: None, closing: false });
        logs.on.store(true, Ordering::Release);
        Ok(())
    }

    /// Counts a write that was made without buffers for want of logs, and begins logs once there is room.
    pub(super) fn resume_logs(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        if logs.plain_writes.fetch_add(1, Ordering::Relaxed) % WRITES_TO_RESUME != WRITES_TO_RESUME - 1 {
            return Ok(());
        }
        let pool = &self.pool;
        let free = pool.free_bytes() + pool.max_size().saturating_sub(pool.size());
        let Some(_rotating) = logs.rotating.try_lock() else { return Ok(()) };
        if logs.is_on() || free < ROOM_TO_RESUME * logs.count as u64 * pool.extent_bytes() {
            return Ok(());
        }
        self.begin_logs(1)
    }

    /// Brings everything in buffers to the leaves and gives all logs back, so that a full pool has room
    /// for writes to leaves. The caller has no node locked.
    pub(super) fn shed_logs(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        self.replay_all()?;
        let _rotating = logs.rotating.lock();
        match &mut *logs.sets.write() {
            Some(sets) => sets.closing = true,
            None => return Ok(()),
        }
        // A writer that has logged an entry has put it into a buffer before unlocking the node.
        if let Err(e) = self.flush_buffers(None) {
            if let Some(sets) = &mut *logs.sets.write() {
                sets.closing = false;
            }
            return Err(e);
        }
        self.set_words().clear();
        logs.on.store(false, Ordering::Release);
        let Some(sets) = logs.sets.write().take() else { return Ok(()) };
        sets.old.into_iter().chain([sets.current]).try_for_each(LogSet::free)
    }

    /// Makes an entry durable in the current set, whose number is returned; `None` while the sets are being given up.
    pub(super) fn log(&self, key: &[u8], word: u64) -> Result<Option<u64>> {
        let Some(logs) = &self.logs else { return Ok(None) };
        let mut entry = Vec::with_capacity(ENTRY_BYTES + key.len());
        entry.extend(logs.next.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        entry.extend(word.to_le_bytes());
        entry.extend_from_slice(key);
        match &*logs.sets.read() {
            Some(sets) if !sets.closing => {
                sets.current.append(log_of(key, logs.count), &entry)?;
                Ok(Some(sets.current.number()))
            }
            _ => Ok(None),
        }
    }

    /// Hands every entry of log `log` of the sets to `visit`, the old set's first.
    pub(super) fn visit_log(&self, log: usize, visit: &mut VisitEntry<'_>) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let sets = logs.sets.read();
        sets.iter().flat_map(Sets::all).try_for_each(|set| self::visit(&self.pool, set, log, visit))
    }

    /// Hands every entry of a set to `visit`.
    pub(super) fn visit_set(&self, set: &LogSet, visit: &mut VisitEntry<'_>) -> Result<()> {
        (0..set.count()).try_for_each(|log| self::visit(&self.pool, set, log, visit))
    }

    /// [`try_keep_logs_short`](Self::try_keep_logs_short), after a write that has been made: an error must not make
    /// that write look failed. Later writes that need the room will meet the error.
    pub(super) fn keep_logs_short(&self) {
        if self.try_keep_logs_short().is_err_and(|e| e.is_out_of_space()) {
            let _ = self.shed_logs();
        }
    }

    /// Begins a new set when the current one is long, and has the old one's entries flushed.
    fn try_keep_logs_short(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let (bytes, has_old) = match &*logs.sets.read() {
            Some(sets) => (sets.current.bytes(), sets.old.is_some()),
            None => return Ok(()),
        };
        // Half of what all buffers hold: an entry lives for one to two such lengths, so few buffers are flushed before
        // they are nearly full, and no more than that has to be replayed after a crash.
        let limit = logs.limit.max(self.arena.live() * logs.buffer_entries as u64 * TYPICAL_BYTES / 2);
        if bytes < limit {
            return Ok(());
        }
        if !has_old {
            let Some(_rotating) = logs.rotating.try_lock() else { return Ok(()) };
            return self.rotate();
        }
        if bytes > 2 * limit {
            return self.flush_old();
        }
        let Some(rotating) = logs.rotating.try_lock() else { return Ok(()) };
        drop(rotating);
        if !self.flushing.swap(true, Ordering::AcqRel) {
            self.spawn(|core| {
                let _here = core.limbo.enter();
                // Entries that cannot be flushed now stay in buffers and logs; later writers meet the error.
                let _ = core.flush_old();
                core.flushing.store(false, Ordering::Release);
            });
        }
        Ok(())
    }

    /// Begins a new set, if there is no old one. The caller holds `rotating`.
    fn rotate(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let number = match &*logs.sets.read() {
            Some(sets) if sets.old.is_none() => sets.current.number().wrapping_add(1),
            _ => return Ok(()),
        };
        let next = self.make_set(number, logs.count)?;
        let mut sets = logs.sets.write();
        if let Some(sets) = &mut *sets {
            self.set_words().rotate(&sets.current, &next);
            sets.old = Some(std::mem::replace(&mut sets.current, next));
        }
        Ok(())
    }

    /// Flushes every buffer with an entry in the old set, and frees that.
    fn flush_old(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        // Entries of the old set's logs that were not replayed yet are in no buffer.
        self.replay_all()?;
        let _rotating = logs.rotating.lock();
        let old = match &*logs.sets.read() {
            Some(Sets { old: Some(old), .. }) => old.number(),
            _ => return Ok(()),
        };
        self.flush_buffers(Some(old & 1 == 1))?;
        let old = logs.sets.write().as_mut().and_then(|sets| sets.old.take());
        self.set_words().cut();
        old.map_or(Ok(()), LogSet::free)
    }

    /// Flushes every buffer whose oldest entry is in the set whose number is odd, or even; all of them if not said.
    fn flush_buffers(&self, odd: Option<bool>) -> Result<()> {
        let mut cursor = Vec::new();
        let mut merged = false;
        loop {
            let (node, _) = self.locate(&Probe::plain(&cursor))?;
            // Looked at under the lock: an entry on its way into the buffer is in it then.
            let locked = node.lock();
            let version = node.version();
            if version.is_dead() {
                continue;
            }
            let is_due = self.buffer_len(node) > 0 && odd.is_none_or(|odd| node.oldest_odd() == odd);
            if is_due && !self.flush_buffer(&locked, 0)? {
                self.split(locked, None)?;
                continue;
            }
            let high = node.high(node.version()).and_then(|high| high.to_vec());
            let left = node.bitmap.load(Ordering::Relaxed).count_ones() as usize;
            drop(locked);
            // A leaf that has taken in its neighbour may have room for the next one, too.
            merged =
                (is_due || merged) && left < self.capacity / 4 && self.merge_near(&Probe::new(&cursor))?;
            if merged {
                continue;
            }
            match high {
                Some(high) => cursor = high,
                None => return Ok(()),
            }
        }
    }

    /// Brings everything in buffers to the leaves. Entries that are made meanwhile may stay.
    pub(super) fn flush_all(&self) -> Result<()> {
        let Some(logs) = &self.logs else { return Ok(()) };
        let _here = self.limbo.enter();
        self.flush_old()?;
        let rotated = {
            let _rotating = logs.rotating.lock();
            self.rotate()
        };
        match rotated {
            Ok(()) => self.flush_old(),
            Err(e) if e.is_out_of_space() => self.shed_logs(),
            Err(e) => Err(e),
        }
    }

    pub(super) fn mark_logs(&self, marks: &mut Marks) -> Result<()> {
        self.log_places()?.iter().try_for_each(|set| set.mark(marks))
    }

    /// The memory that each set of logs owns.
    fn log_places(&self) -> Result<Vec<LogPlaces>> {
        if self.read_only {
            return self.named_sets()?.iter().map(LogSet::places).collect();
        }
        let Some(logs) = &self.logs else { return Ok(Vec::new()) };
        // A log that has not been read does not know its extents.
        self.replay_all()?;
        // Sets do not come and go meanwhile.
        let _rotating = logs.rotating.lock();
        let sets = logs.sets.read();
        sets.iter().flat_map(Sets::all).map(LogSet::places).collect()
    }

    /// Whether there are logs, so that writes go to buffers.
    pub(super) fn has_logs(&self) -> bool {
        self.logs.as_ref().is_some_and(Logs::is_on)
    }

    pub(super) fn log_bytes(&self) -> u64 {
        let Some(logs) = &self.logs else { return 0 };
        let sets = logs.sets.read();
        sets.iter().flat_map(Sets::all).map(LogSet::pm_bytes).sum()
    }
}

/// Number, word and key of a log's entry, if it is one. There is always a greater number.
fn entry_of(entry: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut fields = Reader::new(entry);
    let (number, word, key) = (fields.u64()?, fields.u64()?, &entry[ENTRY_BYTES..]);
    (number != u64::MAX && key.len() <= MAX_KEY_BYTES).then_some((number, word, key))
}
