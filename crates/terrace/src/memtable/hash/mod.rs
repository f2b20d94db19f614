//! A memtable in DRAM that is a hash table (WipDB, section 2.3.3): versions of keys in no order, for engines that have
//! many memtables. An insertion into one of a thousand misses the caches for one line of the directory and
//! for the record's place; in a skiplist it would do so on every level.
//!
//! One thread at a time inserts, while any number read without locks, and nothing is ever removed: the whole
//! table is freed when its last reader releases it.
//!
//! Invariants:
//!
//! 1. The current directory leads to the newest version of every key, and that to all earlier ones.
//! 2. A record is complete before anything leads to it, and never changes. It lives as long as the table, and the table
//!    as long as any handle or cursor of it. So do lines and directories, including replaced ones.
//! 3. A reader finds whatever was inserted before it asks: `directory.rs` argues why, whatever is replaced
//!    meanwhile.
//! 4. Keys are sorted on request; once the table is frozen, once for all.
//!
//! Keys may come from an attacker. They are hashed with a seed that nobody outside the process knows. If
//! lines still form chains, which random keys do not, the table switches once to another function, SipHash
//! under a secret key.

mod cursor;
mod directory;
mod record;
mod sorted;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use terrace_base::rng::Rng;
use terrace_base::{Result, prefetch};
use terrace_table::Kind;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Version;
use super::arena::Arena;
use super::chunks::Chunks;
use super::node::Content;
use directory::{Current, Directory, SLOTS, Shape, SlotSearch};
use record::MemRecord;
use sorted::Sorted;

pub(crate) use cursor::HashCursor;

/// Average keys in a line when the directory grows: half of its slots.
const KEYS_PER_LINE: u64 = SLOTS as u64 / 2;

/// The growth of a directory: fourfold.
const LOG2_GROWTH: u32 = 2;

/// The initial number of lines, and the most.
const LOG2_FIRST_LINES: u32 = 2;
const LOG2_MAX_LINES: u32 = 30;
const _: () = assert!(LOG2_FIRST_LINES.is_multiple_of(LOG2_GROWTH));

/// Lines of a published table: 8,192. A table that freezes by the published rule grows to this many before it
/// does.
const LOG2_PUBLISHED_LINES: u32 = 13;

/// A chain of this many lines, which random keys would make for one in 10^40 lines, shows that somebody has
/// chosen them.
const CHOSEN_LINES: usize = 8;

/// The reaction to a full line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// It gets a further line.
    Chain,
    /// The published rule: the same, and the table reports that it has overflowed.
    Freeze,
}

/// A handle of a memtable; clones are handles of the same memtable.
#[derive(Debug, Clone)]
pub(crate) struct HashTable {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    current: Current,
    seed: u64,
    entries: AtomicU64,
    bytes: AtomicU64,
    min_seq: AtomicU64,
    max_seq: AtomicU64,
    held_bytes: AtomicU64,
    overflow: Overflow,
    overflowed: AtomicBool,
    frozen: AtomicBool,
    writer: Mutex<Writing>,
    /// The safe hash function, once it is needed.
    keyed: OnceLock<RandomState>,
    /// The order of what was inserted before the table was frozen.
    sorted: OnceLock<Arc<Sorted>>,
    /// Whether the fast hash function is the worst possible one.
    #[cfg(test)]
    all_collide: bool,
}

/// The state of the one writer. The arena is in here, so that only the holder of the lock takes from it.
#[derive(Debug)]
struct Writing {
    arena: Arena,
    keys: u64,
}

/// The right to insert.
pub(crate) struct HashWriter<'a> {
    table: &'a Inner,
    writing: MutexGuard<'a, Writing>,
}

impl HashTable {
    /// An empty table, which takes memory from `chunks` as versions arrive.
    pub fn new(chunks: &Arc<Chunks>, overflow: Overflow) -> HashTable {
        HashTable { inner: Arc::new(Inner::new(chunks, overflow)) }
    }

    /// Becomes the writer, after the current one.
    pub fn writer(&self) -> HashWriter<'_> {
        HashWriter { table: &self.inner, writing: self.inner.writer.lock() }
    }

    /// The newest version of `key` up to sequence number `max_seq`.
    pub fn get(&self, key: &[u8], max_seq: u64) -> Option<Version<'_>> {
        let directory = self.inner.directory()?;
        let hash = self.inner.hash(directory.shape, key);
        let SlotSearch::Found(_, newest) = directory.search(hash, |record| record.key() == key) else {
            return None;
        };
        let record = newest.up_to(max_seq)?;
        Some(Version { seq: record.seq(), kind: record.kind(), value: record.value() })
    }

    /// Prefetches the line of memory that an insertion of `key` will read.
    pub fn prefetch(&self, key: &[u8]) {
        if let Some(directory) = self.inner.directory() {
            directory.prefetch(self.inner.hash(directory.shape, key));
        }
    }

    /// A cursor over all versions, not yet positioned.
    pub fn cursor(&self) -> HashCursor {
        HashCursor::new(self.inner.clone())
    }

    /// Ends insertions, after those of the current writer. A later insertion is a bug, and panics.
    pub fn freeze(&self) {
        let _writing = self.inner.writer.lock();
        self.inner.frozen.store(true, Ordering::Release);
    }

    /// Passes every version to `each` in order: keys ascending, each key's newest version first. Ends with
    /// its first error.
    pub fn visit(&self, mut each: impl FnMut(&[u8], u64, Kind, &[u8]) -> Result<()>) -> Result<()> {
        // SAFETY: the handle keeps the table.
        let sorted = unsafe { self.inner.sorted() };
        sorted.records().try_for_each(|r| each(r.key(), r.seq(), r.kind(), r.value()))
    }

    /// Versions in the table.
    #[cfg(test)]
    pub fn entries(&self) -> u64 {
        self.inner.entries.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Bytes of keys and values with the overhead of their records and slots.
    pub fn bytes_used(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of DRAM held: those from the chunks, and once the table is frozen those of the order, which it has
    /// from its flush on.
    pub fn dram_bytes(&self) -> u64 {
        let is_frozen = self.inner.frozen.load(Ordering::Acquire);
        let entries = if is_frozen { self.inner.entries.load(Ordering::Acquire) } else { 0 };
        self.inner.held_bytes.load(Ordering::Relaxed) + entries * sorted::ENTRY_BYTES
    }

    /// The smallest sequence number in the table; `u64::MAX` if it is empty.
    #[cfg(test)]
    pub fn min_seq(&self) -> u64 {
        self.inner.min_seq.load(Ordering::Acquire)
    }

    /// The greatest sequence number in the table; 0 if it is empty.
    pub fn max_seq(&self) -> u64 {
        self.inner.max_seq.load(Ordering::Acquire)
    }

    /// Whether a line has overflowed that freezes the table.
    pub fn has_overflowed(&self) -> bool {
        self.inner.overflowed.load(Ordering::Acquire)
    }

    /// Checks every slot and record, while nobody inserts; returns what is wrong.
    pub fn check(&self) -> Vec<String> {
        let writing = self.inner.writer.lock();
        self.inner.check(writing.keys)
    }
}

impl HashWriter<'_> {
    /// Inserts a version that is newer than any of `key` in the table.
    pub fn insert(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) {
        let table = self.table;
        assert!(!table.frozen.load(Ordering::Relaxed), "nothing is inserted into a frozen table");
        let mut directory = table.directory().unwrap_or_else(|| self.replace(None, table.first_shape()));
        let mut hash = table.hash(directory.shape, key);
        directory.prefetch(hash);
        self.writing.arena.next_lines().for_each(prefetch::line);
        let mut place = directory.search(hash, |record| record.key() == key);
        while let Some(shape) = next_shape(directory.shape, self.writing.keys, &place, table.overflow) {
            directory = self.replace(Some(directory), shape);
            hash = table.hash(shape, key);
            place = directory.search(hash, |record| record.key() == key);
        }
        self.put(&Content { key, seq, kind, value }, hash, &place);
    }

    fn put(&mut self, content: &Content<'_>, hash: u64, place: &SlotSearch<'_>) {
        let (table, Writing { arena, keys }) = (self.table, &mut *self.writing);
        let prev = if let SlotSearch::Found(_, prev) = place { Some(*prev) } else { None };
        debug_assert!(prev.is_none_or(|prev| prev.seq() < content.seq), "versions of a key come in order");
        if table.overflow == Overflow::Freeze && matches!(place, SlotSearch::Full(..)) {
            table.overflowed.store(true, Ordering::Release);
        }
        // Before it can be found: a thread that knows of a version may cut the log up to the smallest number.
        lower(&table.min_seq, content.seq);
        let record = record::create(arena, content, prev);
        place.set(arena, hash, record);
        let slot = if prev.is_none() { size_of::<usize>() } else { 0 };
        let bytes = record::bytes_of(content, prev.is_some()).next_multiple_of(8) + slot;
        *keys += u64::from(prev.is_none());
        // There is one writer, so none of this has to be one step.
        table.entries.store(table.entries.load(Ordering::Relaxed) + 1, Ordering::Release);
        table.bytes.store(table.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
        if content.seq > table.max_seq.load(Ordering::Relaxed) {
            table.max_seq.store(content.seq, Ordering::Release);
        }
        table.held_bytes.store(arena.held_bytes(), Ordering::Relaxed);
    }

    /// Builds a directory of this shape, with all contents of the previous one, and replaces that.
    #[cold]
    fn replace<'d>(&mut self, before: Option<Directory<'d>>, shape: Shape) -> Directory<'d>
    where
        Self: 'd,
    {
        let (table, arena) = (self.table, &mut self.writing.arena);
        // SAFETY: the arena lives as long as the table, which this writer borrows.
        let directory = unsafe { Directory::new(arena, shape) };
        if let Some(before) = before {
            before.for_each(|record| {
                let hash = table.hash(shape, record.key());
                directory.search(hash, |_| false).set(arena, hash, record.pointer());
            });
        }
        table.current.store(directory);
        directory
    }
}

/// The shape that a directory needs before a key is put into this place; `None` if it stays as it is.
fn next_shape(shape: Shape, keys: u64, place: &SlotSearch<'_>, overflow: Overflow) -> Option<Shape> {
    let Shape { log2_lines, keyed } = shape;
    let chained = match place {
        SlotSearch::Found(..) => return None,
        SlotSearch::Free(_) => 0,
        SlotSearch::Full(_, lines) => *lines,
    };
    if chained >= CHOSEN_LINES && !keyed {
        return Some(Shape { log2_lines, keyed: true });
    }
    let young = overflow == Overflow::Freeze && log2_lines < LOG2_PUBLISHED_LINES;
    let crowded = keys >= KEYS_PER_LINE << log2_lines;
    let grows = (crowded || young && chained > 0) && log2_lines < LOG2_MAX_LINES;
    grows.then_some(Shape { log2_lines: log2_lines + LOG2_GROWTH, keyed })
}

impl Inner {
    fn new(chunks: &Arc<Chunks>, overflow: Overflow) -> Inner {
        Inner {
            current: Current::default(),
            seed: Rng::secret_seed(),
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            min_seq: AtomicU64::new(u64::MAX),
            max_seq: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            overflow,
            overflowed: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            writer: Mutex::new(Writing { arena: Arena::new(chunks.clone()), keys: 0 }),
            keyed: OnceLock::new(),
            sorted: OnceLock::new(),
            #[cfg(test)]
            all_collide: false,
        }
    }

    #[inline]
    fn directory(&self) -> Option<Directory<'_>> {
        // SAFETY: directories lie in the table's arena.
        unsafe { self.current.load() }
    }

    /// A few lines. If the published size counts, a number that grows to exactly that.
    fn first_shape(&self) -> Shape {
        let log2_lines = match self.overflow {
            Overflow::Chain => LOG2_FIRST_LINES,
            Overflow::Freeze => LOG2_FIRST_LINES + LOG2_PUBLISHED_LINES % LOG2_GROWTH,
        };
        Shape { log2_lines, keyed: false }
    }

    #[inline]
    fn hash(&self, shape: Shape, key: &[u8]) -> u64 {
        if shape.keyed {
            return self.keyed.get_or_init(RandomState::new).hash_one(key);
        }
        #[cfg(test)]
        if self.all_collide {
            return 0;
        }
        xxh3_64_with_seed(key, self.seed)
    }

    /// All versions in order.
    ///
    /// # Safety
    /// The caller must keep the table as long as the result.
    unsafe fn sorted(&self) -> Arc<Sorted> {
        // SAFETY: the caller's promise; an order kept in the table is dropped with it.
        let gather =
            || Arc::new(self.directory().map_or_else(Sorted::default, |d| unsafe { Sorted::gather(d) }));
        match self.frozen.load(Ordering::Acquire) {
            true => self.sorted.get_or_init(gather).clone(),
            false => gather(),
        }
    }

    /// For a table into which nobody inserts now, with this many keys.
    fn check(&self, keys: u64) -> Vec<String> {
        let mut problems = Vec::new();
        let Some(directory) = self.directory() else { return problems };
        directory.check(|record| self.hash(directory.shape, record.key()), &mut problems);
        let mut newest: Vec<MemRecord<'_>> = Vec::new();
        directory.for_each(|record| newest.push(record));
        newest.sort_unstable_by_key(|record| record.key());
        if newest.windows(2).any(|pair| pair[0].key() == pair[1].key()) {
            problems.push("a key has two slots".to_string());
        }
        for record in &newest {
            let mut older = record.versions().skip(1);
            let sound = record.versions().all(|here| {
                older.next().map_or(here.depth() == 0, |older| {
                    older.key() == here.key() && older.seq() < here.seq() && older.depth() + 1 == here.depth()
                })
            });
            if !sound {
                problems.push(format!("the versions of {:?} are not in order", record.key()));
            }
        }
        let entries: u64 = newest.iter().map(|record| record.depth() + 1).sum();
        let (counted, count) = ((newest.len() as u64, entries), (keys, self.entries.load(Ordering::Acquire)));
        if counted != count {
            problems.push(format!("{counted:?} keys and versions are in the table, which says {count:?}"));
        }
        problems
    }
}

/// Lowers the value to `number` if that is less. There is one writer.
fn lower(value: &AtomicU64, number: u64) {
    if number < value.load(Ordering::Relaxed) {
        value.store(number, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
