//! The memtables: persistent skiplists, one being written and at most one being flushed.
//!
//! 1. Each memtable hangs from a root of its own (`slm.mem.0`, `slm.mem.1`), published before the
//!    first write goes into it and cleared after its flush is in the manifest.
//! 2. Rotation is one publish: the new memtable's root. Which memtable is newer follows from their
//!    sequence numbers; only the newest may be empty.
//! 3. The pool gets a flushed memtable's extents back when its last reader has released it.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_index::{SkipList, kinds};
use terrace_pmem::{Granularity, Kind as PmKind, Pool};

use crate::commit_log::FirstLog;
use crate::memtable::Memtables;

/// Extents of this kind hold memtables.
pub(super) const MEMTABLE_KIND: PmKind = kinds::SLM_MEMTABLE;

/// Size of the first memtable of a database in an ordinary file.
const FIRST_MEMTABLE_BYTES: u64 = 64 << 10;

/// Memtables at any time.
pub(super) const MEMTABLES: usize = 2;

/// Bytes of a node beside its key and value, at most and on average.
pub(super) const NODE_OVERHEAD_BYTES: u64 = 112;

/// Bytes of an entry in the index beside one and a half times its key, at most and on average: a record, its
/// place in a half full leaf, and its share of the nodes above.
const INDEX_OVERHEAD_BYTES: u64 = 128;

/// Bytes of an index's record beside its key, at most.
const RECORD_OVERHEAD_BYTES: u64 = 32;

/// The room that the index takes for keys.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IndexRoom {
    /// Bytes at most and on average.
    pub bytes: u64,
    /// Those of them in extents that a long key's record has of its own, side by side.
    pub own: u64,
    /// The most of these that one key has; zero if no key is long.
    pub longest: u64,
}

impl IndexRoom {
    /// The room for a key of `len` bytes.
    fn of_one(pool: &Pool, len: u64) -> IndexRoom {
        let longest = pool.own_extent_bytes(len + RECORD_OVERHEAD_BYTES);
        // Separators and prefixes are as long at most, and there is less than one for four keys.
        let own = longest + longest / 4;
        IndexRoom { bytes: (INDEX_OVERHEAD_BYTES + len + len / 2).max(own), own, longest }
    }

    /// The room for all of `keys`.
    pub fn of<'k>(pool: &Pool, keys: impl Iterator<Item = &'k [u8]>) -> IndexRoom {
        keys.fold(IndexRoom::default(), |sum, key| sum + IndexRoom::of_one(pool, key.len() as u64))
    }
}

impl Add for IndexRoom {
    type Output = IndexRoom;

    fn add(self, other: IndexRoom) -> IndexRoom {
        IndexRoom {
            bytes: self.bytes + other.bytes,
            own: self.own + other.own,
            longest: self.longest.max(other.longest),
        }
    }
}

/// The initial size of a memtable that may hold `most_bytes`, if the previous one reached `before` bytes. In
/// an ordinary file it grows with the writes, so that a small database is a small file. On persistent memory
/// it has its full size at once: growing costs drains.
pub(super) fn first_bytes(pool: &Pool, before: u64, most_bytes: u64) -> u64 {
    match pool.granularity() {
        Granularity::Page => before.max(FIRST_MEMTABLE_BYTES).min(most_bytes),
        _ => most_bytes,
    }
}

/// One memtable.
#[derive(Debug)]
pub(super) struct MemTable {
    list: SkipList,
    /// The room of its entries in the index once they are flushed.
    to_index: Mutex<IndexRoom>,
    slot: usize,
    /// The first commit log that holds writes of this memtable; zero before there is one.
    first_log: FirstLog,
    /// Whether it was made of room that is kept back, or may have been.
    pub is_by_claim: bool,
    /// The progress of its flush.
    pub flush: FlushProgress,
}

/// A flush's progress, for writers that are throttled to its pace.
#[derive(Debug, Default)]
pub(super) struct FlushProgress {
    /// Entries that have been examined.
    pub seen: AtomicU64,
    /// Entries that went into finished tables.
    pub written: AtomicU64,
    /// Those of them in the index.
    pub indexed: AtomicU64,
    /// When it began, in nanoseconds of the clock; 0 before.
    began: AtomicU64,
    /// Nanoseconds of earlier attempts.
    spent: AtomicU64,
}

impl FlushProgress {
    /// Starts at `now`, or continues.
    pub fn begin(&self, now: Duration) {
        self.began.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// It has failed at `now` and will continue later.
    pub fn pause(&self, now: Duration) {
        let before = self.began.swap(0, Ordering::Relaxed);
        self.spent.fetch_add((now.as_nanos() as u64).saturating_sub(before), Ordering::Relaxed);
    }

    /// Seconds since it began; none before.
    pub fn seconds(&self, now: Duration) -> f64 {
        match self.began.load(Ordering::Relaxed) {
            0 => 0.0,
            began => {
                let spent = self.spent.load(Ordering::Relaxed);
                ((now.as_nanos() as u64).saturating_sub(began) + spent) as f64 / 1e9
            }
        }
    }

    /// The part of the work on `entries` that is done: half of it is writing, half indexing, and a little at the end is
    /// publishing it.
    fn part(&self, entries: u64) -> f64 {
        let of = |done: &AtomicU64, all: u64| match all {
            0 => 0.0,
            all => (done.load(Ordering::Relaxed) as f64 / all as f64).min(1.0),
        };
        let moved =
            of(&self.seen, entries) * (1.0 + of(&self.indexed, self.written.load(Ordering::Relaxed))) / 2.0;
        moved * 0.95
    }
}

/// The duration of flushes.
#[derive(Debug, Default)]
pub(super) struct FlushPace {
    /// Nanoseconds for each entry of the last flush; 0 before the first.
    nanos_an_entry: AtomicU64,
}

impl FlushPace {
    /// The part of a flush that must be done before its own pace is known.
    const KNOWN: f64 = 0.1;

    /// Notes a finished flush.
    pub fn note(&self, seconds: f64, entries: u64) {
        self.nanos_an_entry.store((seconds * 1e9 / entries.max(1) as f64) as u64, Ordering::Relaxed);
    }

    /// Estimated seconds for the memtable's whole flush: the less of it is done, the more it follows the last
    /// flush. 0 if nothing is known.
    pub fn seconds(&self, memtable: &MemTable, now: Duration) -> f64 {
        let last =
            self.nanos_an_entry.load(Ordering::Relaxed) as f64 / 1e9 * memtable.list().entries() as f64;
        let done = memtable.flushed();
        if done < Self::KNOWN {
            return last;
        }
        let by_itself = memtable.flush.seconds(now) / done;
        if last > 0.0 { last + (by_itself - last) * done } else { by_itself }
    }
}

impl MemTable {
    /// A new memtable that may come to have `capacity` bytes, published in the empty root of `slot`. Its first extent
    /// has `bytes`.
    pub fn create(pool: &Pool, slot: usize, bytes: u64, capacity: u64) -> Result<MemTable> {
        debug_assert!(pool.root(root(slot)).is_ok_and(|r| r.is_none()), "a memtable's root is taken over");
        let list = SkipList::create(pool, MEMTABLE_KIND, bytes)?;
        pool.drain();
        if let Err(e) = pool.set_root(root(slot), list.head_offset()) {
            list.free()?;
            return Err(e);
        }
        Ok(MemTable::around(list.with_filter(capacity), slot, IndexRoom::default()))
    }

    /// The same, with a first extent of `most_bytes`, or of as much as the pool has.
    pub fn create_within(pool: &Pool, slot: usize, most_bytes: u64, capacity: u64) -> Result<MemTable> {
        let mut bytes = most_bytes;
        loop {
            match MemTable::create(pool, slot, bytes, capacity) {
                Err(e) if e.is_out_of_space() && bytes > pool.extent_bytes() => bytes /= 2,
                outcome => return outcome,
            }
        }
    }

    /// Recovers the memtable in `slot`.
    pub fn open(pool: &Pool, slot: usize, capacity: u64) -> Result<Option<MemTable>> {
        let Some(head) = pool.root(root(slot))? else { return Ok(None) };
        let mut to_index = IndexRoom::default();
        let mut count = |key: &[u8]| {
            to_index = to_index + IndexRoom::of_one(pool, key.len() as u64);
        };
        let list = SkipList::open_with(pool, MEMTABLE_KIND, head, &mut count)?.with_filter(capacity);
        // What it was made of is not known any more.
        Ok(Some(MemTable { is_by_claim: true, ..MemTable::around(list, slot, to_index) }))
    }

    fn around(list: SkipList, slot: usize, to_index: IndexRoom) -> MemTable {
        let to_index = Mutex::new(to_index);
        let (first_log, flush) = (FirstLog::default(), FlushProgress::default());
        MemTable { list, to_index, slot, first_log, is_by_claim: false, flush }
    }

    /// The skiplist.
    pub fn list(&self) -> &SkipList {
        &self.list
    }

    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Where its writes begin in the logs.
    pub fn first_log(&self) -> &FirstLog {
        &self.first_log
    }

    /// The room of its entries in the index once they are flushed, at most.
    pub fn to_index(&self) -> IndexRoom {
        *self.to_index.lock()
    }

    /// Notes new entries that take `room` of the index.
    pub fn will_index(&self, room: IndexRoom) {
        let mut to_index = self.to_index.lock();
        *to_index = *to_index + room;
    }

    /// Unlinks the flushed memtable durably. It must be the one that its slot's root names.
    pub fn unlink(&self, pool: &Pool) -> Result<()> {
        pool.clear_root(root(self.slot))
    }

    /// Gives the unlinked memtable's extents back when the last reader releases them.
    pub fn free(&self) -> Result<()> {
        self.list.clone().free()
    }

    pub fn is_empty(&self) -> bool {
        self.list().entries() == 0
    }

    /// The part of it that has been flushed, 0 to 1.
    pub fn flushed(&self) -> f64 {
        self.flush.part(self.list().entries())
    }
}

/// The root of memtable `slot`.
pub(super) fn root(slot: usize) -> &'static str {
    ["slm.mem.0", "slm.mem.1"][slot]
}

/// The memtables at one moment.
pub(super) type MemSet = Memtables<MemTable>;

/// A slot that no memtable of `mem` uses.
pub(super) fn free_slot(mem: &MemSet) -> Option<usize> {
    (0..MEMTABLES).find(|slot| mem.iter().all(|t| t.slot() != *slot))
}
