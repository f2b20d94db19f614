//! The value tree: the newest versions of keys that are written again and again, in the pool.
//!
//! ```text
//!   FAST&FAIR tree: key ─▶ word ─▶ record: sequence number, key, value
//!                          └─▶ "below": what the levels have is newer than what was here
//! ```
//!
//! One thread at a time changes it, under `work`; any number reads it without locks. What always holds:
//!
//! 1. A word names a record of its key that was durable before the word was, or says "below". A record is freed after nothing
//!    names it and all who may see it have left (`limbo`).
//! 2. A key's record has the newest version of all that are flushed, and no older version of it lies above level 0. Where
//!    its word says "below", or there is none, the newest flushed version is on the levels.
//! 3. Of a key only newer versions replace older ones. What a snapshot needs of an older one is on level 0, and readable there,
//!    before.
//! 4. A key leaves when a run of level 0 that the manifest names holds its version.
//! 5. Everything here has been in the log of a memtable, and the log stays until what is here is durable.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_base::{Error, Result};
use terrace_index::limbo::Limbo;
use terrace_index::pins::Pins;
use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch};
use terrace_pmem::{Marks, Pool};
use terrace_table::{Entry, Kind};

use super::clock::Touched;
use super::layout::{Place, VALUES_ROOT};
use super::sketch::Sketch;
use crate::core::Core;
use crate::core::report::CheckReport;
use crate::options::LabOptions;
use crate::stats::{Stats, ValueStats};
use crate::versions::{RECORD_KIND, Record, RecordRef};

/// Keys that are looked at together.
pub(super) const CHUNK: usize = 256;

/// Bytes of the index for each key, beside the key: its share of nodes, and the record of its word.
const INDEX_BYTES: u64 = 64;

/// Bytes of an entry for which there is one bit that says whether it was asked for.
const BYTES_A_BIT: u64 = 64;

/// DRAM of the sketch.
const SKETCH_BYTES: usize = 1 << 20;

/// The share of the pool that the tree takes at most: the rest is the log's.
const POOL_SHARE: u64 = 4;

/// The value tree of an open database.
#[derive(Debug)]
pub(super) struct ValueTree {
    pub pool: Pool,
    pub index: FastFair,
    /// Records that nothing names any more, until their readers have left.
    pub limbo: Limbo<RecordRef, Pins>,
    pub touched: Touched,
    /// Held by whoever changes the tree, or wants it not to change.
    pub work: Mutex<Work>,
    pub figures: Figures,
    seed: u64,
    sketch_bytes: u64,
    /// What the options say of its size: bytes, or none and a share of the data.
    bytes: u64,
    share: f64,
}

/// What is known to who changes the tree.
#[derive(Debug)]
pub(super) struct Work {
    pub sketch: Sketch,
    /// A key is let in whose estimate is at least this.
    pub threshold: u8,
    /// The key from which on the next victims are looked for.
    pub hand: Vec<u8>,
    /// Keys whose words the running flush has made say "below".
    pub below: Vec<Vec<u8>>,
}

/// What has happened since the opening.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub admitted: AtomicU64,
    pub updated: AtomicU64,
    pub evicted: AtomicU64,
    /// What it may hold, as was last reckoned.
    pub bound: AtomicU64,
}

/// A key is let in at first when this is its estimate: it was written before.
pub(super) const LEAST_THRESHOLD: u8 = 2;

impl ValueTree {
    /// Makes an empty tree in a new pool.
    pub fn create(pool: &Pool) -> Result<()> {
        FastFair::<{ terrace_index::fastfair::FANOUT }>::create(pool, VALUES_ROOT).map(drop)
    }

    /// Attaches to the tree in `pool`.
    pub fn open(core: &Core, pool: &Pool, options: &LabOptions) -> Result<Arc<ValueTree>> {
        let index = FastFair::open(pool, VALUES_ROOT)?;
        let free = pool.clone();
        // What cannot be freed is unreachable, and found by the pool's check.
        let limbo =
            Limbo::with(Pins::default(), move |word: RecordRef| drop(free.free(word.offset(), word.kind())));
        let sketch_bytes = SKETCH_BYTES.min((core.options.memory_budget / 16) as usize);
        let work = Work {
            sketch: Sketch::new(sketch_bytes),
            threshold: LEAST_THRESHOLD,
            hand: Vec::new(),
            below: Vec::new(),
        };
        let most = pool.max_size() / POOL_SHARE;
        let expected = if options.value_tree_bytes > 0 { options.value_tree_bytes } else { most }.min(most);
        Ok(Arc::new(ValueTree {
            touched: Touched::new((expected / BYTES_A_BIT).min(core.options.memory_budget)),
            pool: pool.clone(),
            index,
            limbo,
            work: Mutex::new(work),
            figures: Figures::default(),
            seed: core.env.hash_seed.unwrap_or_else(Rng::fresh_seed),
            sketch_bytes: sketch_bytes as u64,
            bytes: options.value_tree_bytes,
            share: options.value_tree_share,
        }))
    }

    /// A hash of `key` that nobody outside can foresee.
    pub fn hash(&self, key: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(key, self.seed)
    }

    /// What it may hold beside `data` bytes of tables.
    pub fn bound(&self, data: u64) -> u64 {
        let asked = if self.bytes > 0 { self.bytes } else { (data as f64 * self.share) as u64 };
        let bound = asked.min(self.pool.max_size() / POOL_SHARE);
        self.figures.bound.store(bound, Ordering::Relaxed);
        bound
    }

    /// Bytes of the pool that it takes.
    pub fn used(&self) -> u64 {
        let records: u64 = self.pool.slots(RECORD_KIND).map(|(_, bytes)| bytes).sum();
        records + self.index.pm_bytes()
    }

    /// Bytes that a record of `bytes` under `key` takes, its place in the index included if it `is_new`.
    pub fn cost(bytes: u64, key: &[u8], is_new: bool) -> u64 {
        // Slots are up to a fifth larger than what is in them.
        bytes + bytes / 8 + if is_new { key.len() as u64 + INDEX_BYTES } else { 0 }
    }

    /// What the index says of `key`.
    pub fn place(&self, key: &[u8]) -> Result<Option<Place>> {
        self.index.get(key)?.map(|bits| self.decode(bits)).transpose()
    }

    /// The word `bits` of the index.
    pub fn decode(&self, bits: u64) -> Result<Place> {
        Place::decode(bits).ok_or_else(|| {
            self.pool.corruption(0, "the word of a key in the value tree", format!("{bits:#018x}"))
        })
    }

    /// The record of `key` that `word` names. The caller has been present since before it loaded the word, or holds `work`.
    pub fn record(&self, word: RecordRef, key: &[u8]) -> Result<Record<'_>> {
        // SAFETY: nothing that the index named then is freed as long as the caller is present; who frees holds `work`.
        unsafe { Record::load(&self.pool, word)? }.of(&self.pool, key)
    }

    /// The newest version of `key` here up to sequence number `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        let _here = self.limbo.enter();
        let Some(Place::Here(word)) = self.place(key)? else { return Ok(None) };
        let record = self.record(word, key)?;
        if record.number > at {
            return Ok(None);
        }
        self.touched.touch(self.hash(key));
        Ok(Some(Entry { seq: record.number, kind: kind(word), value: Bytes::copy_from_slice(record.value) }))
    }

    /// Calls `each` with every key and what the index says of it. Nothing is changed meanwhile.
    pub fn each_place(&self, each: &mut dyn FnMut(&[u8], Place) -> Result<()>) -> Result<()> {
        let (mut batch, mut from) = (ScanBatch::new(), Bound::Unbounded);
        loop {
            batch.clear();
            self.index.scan(from.as_ref().map(Vec::as_slice), false, CHUNK, &mut batch)?;
            for (key, bits) in batch.iter() {
                each(key, self.decode(bits)?)?;
            }
            if batch.len() < CHUNK {
                return Ok(());
            }
            from = Bound::Excluded(batch.key(batch.len() - 1).to_vec());
        }
    }

    /// Frees what nobody sees any more; says whether that is everything.
    pub fn drain(&self) -> bool {
        self.limbo.drain();
        self.index.drain() && self.limbo.is_empty()
    }

    /// Waits until everything that was unlinked is freed: readers look for a moment, and leave. The caller holds `work`.
    fn drain_all(&self) {
        while !self.drain() {
            std::thread::yield_now();
        }
    }

    /// Marks what it has in the pool; nothing of that is freed, and nothing added, before `then` has returned.
    pub fn with_marked<T>(&self, mut marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        let _still = self.work.lock();
        self.drain_all();
        self.index.mark(&mut marks)?;
        self.each_place(&mut |_, place| match place {
            Place::Here(word) => marks.slot(word.offset()),
            Place::Below => Ok(()),
        })?;
        then(marks)
    }

    /// Proves index and records; `last` is the last sequence number that was written.
    pub fn check(&self, last: u64, report: &mut CheckReport) -> Result<()> {
        let _still = self.work.lock();
        let (mut keys, mut problems) = (0, Vec::new());
        let walked = self.each_place(&mut |key, place| {
            keys += 1;
            let Place::Here(word) = place else { return Ok(()) };
            match self.record(word, key) {
                Ok(record) if record.number > last => {
                    let number = record.number;
                    problems
                        .push(format!("value tree: {} has number {number} after {last}", key.escape_ascii()));
                }
                Ok(_) => {}
                Err(e) => problems.push(format!("value tree: {}", crate::core::report::problem(e)?)),
            }
            Ok(())
        });
        report.note(walked)?;
        if keys != self.index.len() {
            problems.push(format!("value tree: {keys} keys are found, {} were counted", self.index.len()));
        }
        report.problems.extend(problems);
        report.problems.extend(self.index.check()?.into_iter().map(|p| format!("value tree: {p}")));
        Ok(())
    }

    pub fn fill_stats(&self, stats: &mut Stats) {
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        stats.pm.index = self.index.pm_bytes();
        stats.counts.index_keys = self.index.len();
        stats.dram.index = self.index.dram_bytes() + self.touched.dram_bytes() + self.sketch_bytes;
        stats.dram.allocator = self.pool.dram_bytes();
        stats.values = ValueStats {
            keys: self.index.len(),
            bytes: self.used(),
            bound: figure(&self.figures.bound),
            admitted: figure(&self.figures.admitted),
            updated: figure(&self.figures.updated),
            evicted: figure(&self.figures.evicted),
        };
    }

    /// Saves what makes the next opening faster.
    pub fn close(&self) -> Result<()> {
        if !self.drain() {
            // What readers keep is theirs until they let go, and nobody's if the process ends before.
            self.pool.leave_unreclaimed();
        }
        self.index.close()
    }
}

/// Whether a word's version sets or deletes.
pub(super) fn kind(word: RecordRef) -> Kind {
    if word.is_tombstone() { Kind::Delete } else { Kind::Put }
}

/// Whether an error says that there is no room in the pool: then a version goes to level 0.
pub(super) fn is_full(error: &Error) -> bool {
    error.is_out_of_space()
}
