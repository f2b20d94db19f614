//! TurboHash: a persistent hash table of 256-byte buckets in shards that grow by themselves.
//!
//! ```text
//! hash     [ shard | ... | bucket | tag ]           upper bits, bits from 8 on, low byte
//! mirror   one word a shard, DRAM                   address, size, lock
//! shard    2^n buckets of 256 bytes, contiguous     one allocation
//! bucket   meta | tags, kinds | checks | 14 slots   meta: valid, deleted, sequence, check
//!                                                   checks: of slots, and the path filter
//! slot     8-byte key and value, or hash and record
//! ```
//!
//! A search begins in the key's home bucket and goes on, bucket by bucket, until it finds the key, comes by a
//! bucket with two empty slots or one whose path filter says that no key with its tag is further on, or has seen the
//! probing scope. In a bucket it compares a byte of the hash with
//! fourteen tags at once (`simd`) and looks only at slots that match.
//!
//! Everything that a write changes for readers is published by one 8-byte store of the bucket's meta word: a new slot
//! becomes live, an updated key's old slot becomes empty, a deleted key's slot is marked. Every write raises its
//! sequence, so that readers, which take no locks, know whether they saw the bucket in the state of one moment. A shard
//! without a place for a key is rehashed into twice as many buckets (`rehash`), by itself, under its own lock; the
//! directory never changes its size. A key goes to the overflow if no reasonable number of buckets would make a place
//! for it, because too many keys have similar hashes, or if it frees room and the pool has none for more buckets.
//!
//! Thread safety: every method may be called from any thread at any time. Readers take no locks and make no fences
//! (`pins`). Writers hold one shard; the lock is a bit in DRAM and dies with the process.
//!
//! Invariants:
//!
//! 1. A slot is written only while it is empty or deleted, and the meta word that makes it live is stored when
//!    its words are durable, or in the same cache line after them.
//! 2. At least one slot of each bucket is empty: updates stay in their bucket, and a key has one slot.
//! 3. A bucket that does not end paths never begins to, until its shard is rehashed: a deleted key's slot
//!    becomes empty only in a bucket that ends paths anyway.
//! 4. So no key lies behind a bucket that ends paths, as seen from its home; and every bucket between has a path filter
//!    that leads on to it, durably before the key is there.
//! 5. A shard's buckets are what the set in force of its descriptor names; they are durable before it names them,
//!    and it names them durably before the mirror does.
//! 6. While the mirror says that a shard is free, everything published in it is durable.
//! 7. A key is in its shard or in the overflow (`overflow`), and in the overflow only if there was no place for it when
//!    it was inserted. It is put there, changed and removed under its shard's lock, and never moved.
//! 8. The checks in the meta word cover it, the tags and kinds of live slots, and the bucket's place; each live slot
//!    has a check, and each record and descriptor a checksum that covers its place: so bytes are accepted only if they
//!    were written, and written there.

mod blocks;
mod check;
mod checks;
mod directory;
mod layout;
mod maps;
mod meta;
mod options;
mod probe;
mod read;
mod rehash;
mod scan;
mod simd;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use terrace_base::rng::Rng;
use terrace_base::{Error, Result};
use terrace_pmem::{POff, Pool};

use crate::hashed::KeyHash;
use crate::kinds;
use crate::limbo::Limbo;
use crate::overflow::{self, Overflow, Unlinked};
use crate::pair::{NewPair, Pair, word_of};
use crate::pins::Pins;
use crate::reserved::Reserved;

use blocks::Blocks;
use directory::{Content, Counts, View};
use layout::{
    DESCRIPTOR_BYTES, Descriptor, HEADER_SLOT_BYTES, INITIAL_BITS_MAX, MAGIC, OVERFLOW_AT, SCOPE_MAX,
    SHARD_BITS_MAX, TableHeader,
};
use meta::Places;
pub use options::TurboHashOptions;
use probe::Sought;
pub use scan::Visit;
use simd::Level;
use write::{New, When};

/// Something unlinked.
#[derive(Debug, Clone, Copy)]
enum Garbage {
    /// A record.
    Record(u64),
    /// The buckets of a shard.
    Shard { offset: u64, bytes: u64 },
    /// A page of the overflow.
    Page(u64),
}

/// A TurboHash table.
pub struct TurboHash {
    pool: Pool,
    /// The mirror of the directory.
    views: Box<[AtomicU64]>,
    header: TableHeader,
    hash: KeyHash,
    level: Level,
    /// Whether reads cost something on the pool's medium.
    charges_reads: bool,
    /// Whether reads may be tried the short way first (`read`).
    has_fast_path: bool,
    /// Whether each write drains before it publishes, even where the slot that it writes shares the header's line.
    drains_first: bool,
    /// The address of the pool's offset 0.
    base: u64,
    places: Places,
    header_at: u64,
    counts: Box<[Counts]>,
    blocks: Arc<Blocks>,
    /// Keys for which no number of buckets would make a place.
    overflow: Overflow,
    limbo: Limbo<Garbage, Pins>,
}

impl TurboHash {
    /// Makes an empty table under the root `root_name`.
    pub fn create(pool: &Pool, root_name: &str, options: &TurboHashOptions) -> Result<Self> {
        let bits = |n: u32| n.max(1).next_power_of_two().trailing_zeros();
        let shard_bits = bits(options.shards.clamp(2, 1 << SHARD_BITS_MAX));
        let mut reserved = Reserved::new(pool);
        let header_at = reserved.take(kinds::TURBOHASH, HEADER_SLOT_BYTES)?;
        let directory_at = reserved.take(kinds::TURBOHASH, DESCRIPTOR_BYTES << shard_bits)?;
        let mut header = TableHeader {
            magic: MAGIC,
            seed: options.seed.unwrap_or_else(Rng::secret_seed),
            directory: directory_at,
            shard_bits,
            initial_bits: bits(options.initial_buckets.min(1 << INITIAL_BITS_MAX)),
            scope: options.probing_scope.clamp(1, SCOPE_MAX),
            crc: 0,
        };
        let encoded = header.encode(pool.place(header_at));
        header.crc = u32::from_le_bytes([encoded[36], encoded[37], encoded[38], encoded[39]]);
        let directory = layout::encode_directory(pool.place(directory_at), 1 << shard_bits);
        pool.copy_flush(directory_at, &directory);
        let head = overflow::empty_head(pool.place(header_at + OVERFLOW_AT)).to_le_bytes();
        pool.copy_flush(header_at, &[&encoded[..], &head].concat());
        reserved.activate();
        let table = Self::over(pool, header_at, header, true)?;
        reserved.name(root_name, header_at)?;
        reserved.keep();
        Ok(table)
    }

    /// Attaches to the table under the root `root_name`, after a crash as after a clean close. Reads the directory;
    /// shards are counted when they are first written to, or when totals are requested.
    pub fn open(pool: &Pool, root_name: &str) -> Result<Self> {
        let at = pool
            .root(root_name)?
            .ok_or_else(|| Error::corruption(pool.path(), 0, format!("a root {root_name}"), "none"))?;
        let header = *pool.get::<TableHeader>(POff::new(at))?;
        if let Some(version) = header.other_version(pool.place(at)) {
            return Err(Error::other_version(
                pool.path(),
                format!("TurboHash version {version}"),
                format!("TurboHash version {}", MAGIC.to_le_bytes()[6]),
            ));
        }
        if header.magic != MAGIC || !header.is_sound(pool.place(at)) || !header.is_admissible() {
            return Err(pool.corruption(at, "a TurboHash table's header", "other bytes"));
        }
        let last = ((1 << header.shard_bits) - 1) * DESCRIPTOR_BYTES;
        pool.get::<Descriptor>(POff::new(header.directory.saturating_add(last)))?;
        Self::over(pool, at, header, false)
    }

    fn over(pool: &Pool, header_at: u64, header: TableHeader, is_new: bool) -> Result<Self> {
        let shards = 1usize << header.shard_bits;
        let base = pool.media().base().addr() as u64;
        let blocks = Arc::new(Blocks::new(pool));
        let (free, free_block) = (pool.clone(), blocks.clone());
        let content = is_new.then(Content::default);
        let mut table = TurboHash {
            pool: pool.clone(),
            views: Box::default(),
            header,
            hash: KeyHash::new(header.seed),
            level: Level::detect(),
            charges_reads: pool.charges_reads(),
            has_fast_path: false,
            drains_first: false,
            base,
            places: Places::new(header.seed, base),
            header_at,
            counts: (0..shards).map(|_| Counts::new(content)).collect(),
            // Memory that cannot be freed is unreachable, and the pool's check finds it.
            limbo: Limbo::with(Pins::default(), move |garbage| {
                drop(match garbage {
                    Garbage::Record(at) => free.free(at, kinds::TURBOHASH_PAIR),
                    Garbage::Shard { offset, bytes } => free_block.free(offset, bytes),
                    Garbage::Page(at) => free.free(at, kinds::TURBOHASH),
                });
            }),
            blocks,
            overflow: Overflow::new(pool, header_at + OVERFLOW_AT, kinds::TURBOHASH),
        };
        table.overflow.load(|key| table.hash.of(key))?;
        table.views = (0..shards)
            .map(|shard| Ok(AtomicU64::new(table.mirror(shard)?.to_word())))
            .collect::<Result<_>>()?;
        table.has_fast_path = !table.charges_reads && table.limbo.readers().has_quick_pins();
        Ok(table)
    }

    /// The view of a shard according to its descriptor; takes over the shard's memory.
    fn mirror(&self, shard: usize) -> Result<View> {
        match self.described(shard)? {
            Some((offset, bits)) => {
                let view = View::of(&self.pool, offset, bits)?;
                self.blocks.adopt(offset, view.bytes())?;
                Ok(view)
            }
            None => Ok(View::EMPTY),
        }
    }

    /// From now on each write drains its thread's flushes before it publishes a word: the object that the word names
    /// then needs no drain of its own.
    pub fn drain_before_publishing(&mut self) {
        self.drains_first = true;
    }

    /// Gives back unlinked memory, as far as present readers allow; returns whether that is everything.
    pub fn drain(&self) -> bool {
        self.limbo.drain();
        self.limbo.is_empty()
    }

    /// Share of the usable slots that hold a key, without a walk.
    pub fn load_factor(&self) -> f64 {
        let buckets: usize = (0..self.views.len()).map(|shard| self.view(shard).len()).sum();
        self.totals().live as f64 / (buckets * layout::USABLE_SLOTS).max(1) as f64
    }

    /// [`remove`](crate::PointIndex::remove) for the key that consists of the eight bytes of `key`, little-endian.
    #[inline]
    fn remove_u64(&self, key: u64) -> Result<Option<u64>> {
        if self.has_fast_path
            && let Some(word) = self.fast_remove(key)
        {
            return Ok(Some(word));
        }
        Ok(self.write(&self.sought_u64(key, &key.to_le_bytes()), When::Known, New::Nothing)?.before)
    }

    #[inline(always)]
    fn sought_u64<'k>(&self, word: u64, key: &'k [u8; 8]) -> Sought<'k> {
        Sought { hash: self.hash.of_word(word), word: Some(word), key }
    }

    /// The new content of `key` for the value `value`: a record is written and flushed if necessary.
    fn new_value(&self, key: &[u8], value: &[u8]) -> Result<New<'_>> {
        if key.len() == 8 && value.len() == 8 {
            return Ok(New::Word(word_of(value)?));
        }
        self.new_pair(key, value).map(New::Record)
    }

    /// A record, written and flushed.
    fn new_pair(&self, key: &[u8], value: &[u8]) -> Result<NewPair<'_>> {
        match NewPair::write(&self.pool, kinds::TURBOHASH_PAIR, key, value) {
            Err(e) if e.is_out_of_space() => {
                // Memory that waits for readers may be enough.
                self.limbo.drain();
                NewPair::write(&self.pool, kinds::TURBOHASH_PAIR, key, value)
            }
            other => other,
        }
    }

    /// Moves the pair in the record at `at`, if it belongs to a key, to another record; returns whether it did. The old
    /// one is given back when its readers have left.
    ///
    /// # Safety
    ///
    /// An active record of the kind [`TURBOHASH_PAIR`](kinds::TURBOHASH_PAIR) begins at `at`, and until this returns
    /// nothing is written there, even if it is freed: its slab is held ([`Pool::clear_slab`]).
    pub unsafe fn move_record(&self, at: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        let Ok(pair) = (unsafe { Pair::read(&self.pool, at) }) else {
            // A record without a key may have arbitrary contents; damage of a key's record is reported by lookups.
            return Ok(false);
        };
        let copy = NewPair::write(&self.pool, kinds::TURBOHASH_PAIR, pair.key, pair.value)?;
        let sought = Sought::key(self, pair.key);
        Ok(self.write(&sought, When::At(at), New::Record(copy))?.existed)
    }

    /// Retires an object that is no longer named; it is freed when its readers have left.
    fn retire(&self, unlinked: impl IntoIterator<Item = Unlinked>) {
        unlinked.into_iter().for_each(|thing| {
            self.limbo.retire(match thing {
                Unlinked::Pair(at) => Garbage::Record(at),
                Unlinked::Page(at) => Garbage::Page(at),
            });
        });
    }

    fn new_word(&self, key: &[u8], word: Option<u64>) -> Result<New<'_>> {
        match word {
            Some(word) if key.len() == 8 => Ok(New::Word(word)),
            Some(word) => self.new_value(key, &word.to_le_bytes()),
            None => Ok(New::Nothing),
        }
    }
}

impl fmt::Debug for TurboHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurboHash")
            .field("shards", &self.views.len())
            .field("header", &self.header_at)
            .finish()
    }
}
