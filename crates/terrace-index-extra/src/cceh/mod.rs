//! Extendible hashing in persistent memory: CCEH (Nam et al., FAST '19), with byte-string keys, lock-free
//! reads and a recovery that loses nothing.
//!
//! ```text
//! header -> directory, 2^depth entries -> segments of 256 buckets -> 4 slots of (key word, value word)
//! ```
//!
//! The first bits of a key's hash choose the directory's entry, others its home bucket in the segment; a key lies
//! in that bucket or one of the three that follow, cyclically. The hash of a key of 8 bytes with a value of 8 is
//! itself the key word: hashing 8 bytes is a bijection, so it stands for the key. For all others the key word holds
//! 48 bits of the hash and the value word leads to a record (`pair`). Inserting stores the value word and then
//! the key word, which lie in one cache line, in that order, and flushes the line once.
//!
//! A full window splits its segment in place: a new segment takes the slots of the upper half, at the places they had,
//! and one published directory entry makes it so (`directory`). Their old slots stay as they are: they are void, since
//! their hash belongs to another segment (the lazy deletion of the paper). A directory that is too small for a split is
//! copied to one of twice its size. A key goes to the overflow if no reasonable directory would make a place for it,
//! because too many keys have similar hashes.
//!
//! Thread safety: every method may be called from any thread at any time. Readers take no locks; writers lock one
//! segment, and to split also the new one, which no other thread knows, then `structure`.
//!
//! Invariants:
//!
//! 1. A key lies at most [`PROBE`](Cceh) - 1 buckets behind its home, in the segment that its hash leads to. It
//!    has one slot there; or two while it turns from 8 and 8 bytes into a record, and then the inline one counts.
//! 2. A slot changes while its segment is locked, and each time in one visible step: a store to the value word of a
//!    living slot, or to a key word. A segment is unlocked when its changes are durable. A reader that sees it locked
//!    makes its result durable before returning it.
//! 3. A route that was right after the segment's lock word was read is right as long as that word does not change.
//! 4. The directory entries of a segment agree, except during a split, as described in `directory`.
//! 5. A slot whose key word does not begin like its segment is void. So is one whose key word is 0.
//! 6. A key is in its segment or in the overflow (`overflow`), where it is changed under its segment's lock; or in both
//!    while it turns from 8 and 8 bytes into a record, and then the slot counts.

mod check;
mod directory;
mod hash;
mod layout;
mod lock;
mod merge;
mod mirror;
mod overflowed;
mod probe;
mod scan;
mod space;
mod split;
#[cfg(test)]
mod tests;
mod totals;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_base::{Error, Result};
use terrace_index::limbo::Limbo;
use terrace_index::parts::{Overflow, Reserved, Totals, admit_key, admit_pair};
use terrace_index::{ByteMap, HashFigures, HashIndex, PointIndex, ScanBatch, ScanPosition, Wish, kinds};
use terrace_pmem::{Marks, POff, Pool};

use hash::CcehHash;
use layout::{BUCKET_BYTES, BUCKET_SLOTS, Bucket, Entry, HEADER_BYTES, HEADER_INDEX, Header, OVERFLOW_AT};
use lock::Locks;
use mirror::Mirror;
use space::Space;

/// Buckets of a segment by default: 16 KiB.
pub const SEGMENT_BUCKETS: usize = 256;

/// Buckets of a window by default.
pub const PROBE_BUCKETS: usize = 4;

/// Something unlinked.
#[derive(Debug, Clone, Copy)]
enum Garbage {
    Directory(u64),
    Segment(u64),
    Pair(u64),
    /// An object of the overflow.
    Page(u64),
}

/// A CCEH table of segments of `BUCKETS` buckets, a power of two, whose keys lie in windows of `PROBE` buckets.
pub struct Cceh<const BUCKETS: usize = SEGMENT_BUCKETS, const PROBE: usize = PROBE_BUCKETS> {
    pool: Pool,
    header_off: u64,
    hash: CcehHash,
    /// The header's word for the directory.
    directory: AtomicU64,
    locks: Locks,
    mirror: Mirror,
    /// Whether the mirror is wanted.
    mirrors: AtomicBool,
    /// Held to change the directory.
    structure: Mutex<()>,
    space: Arc<Space>,
    /// Keys for which no number of segments would make a place.
    overflow: Overflow,
    limbo: Limbo<Garbage>,
    totals: Totals,
}

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Bytes of a segment.
    const SEGMENT_BYTES: u64 = BUCKETS as u64 * BUCKET_BYTES;

    /// Makes an empty table under the root `root_name`.
    pub fn create(pool: &Pool, root_name: &str) -> Result<Self> {
        Self::create_for(pool, root_name, 0)
    }

    /// Makes an empty table with segments for about `keys` keys.
    pub fn create_for(pool: &Pool, root_name: &str, keys: u64) -> Result<Self> {
        Self::create_seeded(pool, root_name, keys, Rng::secret_seed())
    }

    /// Makes a table whose hashes have this seed. Someone who knows it can choose keys that collide; the table then
    /// works, but slowly.
    pub fn create_seeded(pool: &Pool, root_name: &str, keys: u64, seed: u64) -> Result<Self> {
        const { assert!(BUCKETS.is_power_of_two() && PROBE >= 1 && PROBE <= BUCKETS) };
        let wanted = keys.div_ceil((BUCKETS * BUCKET_SLOTS) as u64).max(1);
        let depth = wanted.ilog2();
        let mut reserved = Reserved::new(pool);
        let header = reserved.take(kinds::CCEH, HEADER_BYTES)?;
        let directory = reserved.take(kinds::CCEH, Self::directory_bytes(depth))?;
        let directory = Entry { offset: directory, depth };
        let table = Self::over(pool, header, seed, directory, Space::new(pool, Self::SEGMENT_BYTES));
        let named = table.fill_directory(directory).and_then(|()| {
            let head =
                layout::encode_header(pool.place(header), BUCKETS as u32, PROBE as u32, seed, directory);
            pool.write(header, &head);
            pool.flush(header, HEADER_BYTES);
            reserved.activate();
            reserved.name(root_name, header)
        });
        if let Err(e) = named {
            table.space.give_all();
            return Err(e);
        }
        reserved.keep();
        table.totals.set(0, 0);
        Ok(table)
    }

    /// Writes and flushes a new directory with an empty segment for each entry.
    fn fill_directory(&self, directory: Entry) -> Result<()> {
        let (pool, depth) = (&self.pool, directory.depth);
        let mut image = vec![0; Self::directory_bytes(depth) as usize];
        let empty = vec![0; Self::SEGMENT_BYTES as usize];
        for (index, word) in image.chunks_exact_mut(8).take(1 << depth).enumerate() {
            let segment = self.space.take()?;
            pool.copy_flush(segment, &empty);
            word.copy_from_slice(&Entry { offset: segment, depth }.encode(index as u64).to_le_bytes());
        }
        pool.copy_flush(directory.offset, &image);
        Ok(())
    }

    /// Attaches to the table under the root `root_name`, after a crash as after a clean close. Walks the
    /// directory, 8 bytes for several hundred keys, and finishes the splits that a crash has interrupted.
    pub fn open(pool: &Pool, root_name: &str) -> Result<Self> {
        let header = pool
            .root(root_name)?
            .ok_or_else(|| Error::corruption(pool.path(), 0, format!("a root {root_name}"), "none"))?;
        let head = pool.get::<Header>(POff::new(header))?;
        let (magic, own) = (head.magic.to_le_bytes(), layout::MAGIC.to_le_bytes());
        let is_sound = head.crc == layout::header_crc(head.magic, head.buckets, head.probe, head.seed);
        if is_sound && magic != own && magic[..5] == own[..5] && magic[6..] == own[6..] {
            return Err(Error::other_version(
                pool.path(),
                format!("CCEH version {}", magic[5]),
                format!("CCEH version {}", own[5]),
            ));
        }
        if head.magic != layout::MAGIC || !is_sound {
            return Err(pool.corruption(header, "a CCEH table's header", "other bytes"));
        }
        if (head.buckets as usize, head.probe as usize) != (BUCKETS, PROBE) {
            return Err(Error::foreign(
                pool.path(),
                format!("segments of {} buckets, windows of {}", head.buckets, head.probe),
                format!("{BUCKETS} and {PROBE}"),
            ));
        }
        let word = head.directory.load(Ordering::Acquire);
        let directory = Entry::decode(word, HEADER_INDEX)
            .ok_or_else(|| pool.corruption(header, "a directory's word", "another word"))?;
        let space = Space::new(pool, Self::SEGMENT_BYTES);
        let table = Self::over(pool, header, head.seed, directory, space);
        table.recover()?;
        table.totals.load(&table.pool, &table.saved_totals()?);
        table.load_overflow()?;
        Ok(table)
    }

    fn over(pool: &Pool, header_off: u64, seed: u64, directory: Entry, space: Space) -> Self {
        let space = Arc::new(space);
        let (free, segments) = (pool.clone(), space.clone());
        Cceh {
            pool: pool.clone(),
            header_off,
            hash: CcehHash::new(seed),
            directory: AtomicU64::new(directory.encode(HEADER_INDEX)),
            locks: Locks::new(pool.max_size(), Self::SEGMENT_BYTES.min(pool.extent_bytes())),
            mirror: Mirror::default(),
            mirrors: AtomicBool::new(false),
            structure: Mutex::new(()),
            space,
            overflow: Overflow::new(pool, header_off + OVERFLOW_AT, kinds::CCEH),
            // Memory that cannot be freed is unreachable, and the pool's check finds it.
            limbo: Limbo::new(move |garbage| match garbage {
                Garbage::Directory(at) => drop(free.free(at, kinds::CCEH)),
                Garbage::Pair(at) => drop(free.free(at, kinds::CCEH_PAIR)),
                Garbage::Segment(at) => segments.give(at),
                Garbage::Page(at) => drop(free.free(at, kinds::CCEH)),
            }),
            totals: Totals::default(),
        }
    }

    /// The hash of a key.
    #[inline]
    pub(crate) fn hash_of(&self, key: &[u8]) -> u64 {
        self.hash.of(key)
    }

    fn header(&self) -> Result<&Header> {
        self.pool.get::<Header>(POff::new(self.header_off))
    }

    /// The buckets of the segment at `offset`.
    #[inline]
    fn segment(&self, offset: u64) -> Result<&[Bucket; BUCKETS]> {
        self.pool.get::<[Bucket; BUCKETS]>(POff::new(offset))
    }

    /// Share of all slots that hold a key, without a walk where the number of keys is known.
    pub fn load_factor(&self) -> f64 {
        let slots = self.space.bytes() / layout::SLOT_BYTES + self.overflow.places();
        self.len() as f64 / slots.max(1) as f64
    }

    #[cold]
    fn damaged(&self, offset: u64, expected: &str, found: &str) -> Error {
        self.pool.corruption(offset, expected, found)
    }
}

impl<const BUCKETS: usize, const PROBE: usize> PointIndex for Cceh<BUCKETS, PROBE> {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        admit_key(key)?;
        self.read(key, |value| value.word())
    }

    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        admit_key(key)?;
        self.apply(key, wish)
    }

    /// Exact whenever writers are at rest. After an unclean end the first call counts, while writers wait.
    fn len(&self) -> u64 {
        self.counted().0 + self.overflow.keys()
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.mark_all(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.check_all()
    }

    fn dram_bytes(&self) -> u64 {
        // The used pages of the locks, and about a word and an entry for each segment of the space.
        let segments = self.space.bytes() / Self::SEGMENT_BYTES;
        let limbo = self.limbo.len() * size_of::<(u64, Garbage)>();
        let depth =
            Entry::decode(self.directory.load(Ordering::Acquire), HEADER_INDEX).map_or(0, |d| d.depth);
        (size_of::<Self>() + limbo) as u64
            + segments * 16
            + self.mirror.bytes(depth)
            + self.overflow.dram_bytes()
    }

    fn pm_bytes(&self) -> u64 {
        let depth =
            Entry::decode(self.directory.load(Ordering::Acquire), HEADER_INDEX).map_or(0, |d| d.depth);
        let table = HEADER_BYTES + Self::directory_bytes(depth) + self.space.bytes();
        table + self.counted().1 + self.overflow.pm_bytes()
    }

    fn close(&self) -> Result<()> {
        self.limbo.drain();
        self.totals.save(&self.pool, &self.saved_totals()?);
        Ok(())
    }
}

impl<const BUCKETS: usize, const PROBE: usize> HashIndex for Cceh<BUCKETS, PROBE> {
    fn scan_unordered(&self, cursor: &mut ScanPosition, limit: usize, out: &mut ScanBatch) -> Result<()> {
        self.scan_from(cursor, limit, out)
    }

    fn figures(&self) -> Result<HashFigures> {
        self.figures_of_all()
    }
}

impl<const BUCKETS: usize, const PROBE: usize> ByteMap for Cceh<BUCKETS, PROBE> {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        admit_pair(key, value)?;
        self.put_bytes(key, value)
    }

    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        admit_key(key)?;
        let found = self.read(key, |found| {
            value.clear();
            found.append_to(value);
            Ok(())
        })?;
        Ok(found.is_some())
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        admit_key(key)?;
        Ok(self.remove_any(key)?.is_some())
    }
}

impl<const BUCKETS: usize, const PROBE: usize> fmt::Debug for Cceh<BUCKETS, PROBE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cceh").field("buckets", &BUCKETS).field("header", &self.header_off).finish()
    }
}
