//! The value tree: the newest versions of frequently written keys, in the pool.
//!
//! ```text
//!   FAST&FAIR tree: key ─▶ word ─▶ record: sequence number, key, value
//!                          └─▶ "below": what the levels have is newer than what was here
//! ```
//!
//! One thread at a time changes it, under `work`; any number read it without locks. Invariants:
//!
//! 1. A word names a record of its key that was durable before the word was, or says "below". A record is freed after
//!    nothing names it and all who may see it have left (`limbo`).
//! 2. A key's record has its newest flushed version, and no older version of it lies above level 0. If its
//!    word says "below", or there is none, the newest flushed version is on the levels.
//! 3. Only a newer version replaces an older one of its key. If a snapshot needs the older one, it is on
//!    level 0, and readable there, before.
//! 4. A key leaves when a run of level 0 that the manifest names holds its version.
//! 5. Everything here was in a memtable's log before, and that log stays until this is durable and the
//!    manifest says so.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_base::trail::{self, Touch};
use terrace_base::{Error, Result};
use terrace_index::limbo::Limbo;
use terrace_index::pins::Pins;
use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch};
use terrace_pmem::{Marks, Pool};
use terrace_table::{Entry, Kind};

use super::clock::Touched;
use super::filter::Filter;
use super::hints::Hints;
use super::layout::{VALUES_ROOT, ValueLocation};
use super::sketch::Sketch;
use super::witness::Witness;
use crate::core::Core;
use crate::manifest::State;
use crate::options::LabOptions;
use crate::stats::{HintStats, Stats, ValueStats};
use crate::versions::{NewRecord, RECORD_KIND, Record, RecordRef, Version};

/// Keys examined together.
pub(super) const CHUNK: usize = 256;

/// Bytes of an index for each key, beside the key: its share of nodes, and its word's record.
pub(super) const INDEX_BYTES: u64 = 64;

/// Bytes of entries for each bit that notes whether one was requested.
const BYTES_A_BIT: u64 = 64;

/// Most DRAM of the sketch: it covers a quarter as many writes.
const SKETCH_BYTES: usize = 4 << 20;

/// The largest share of the pool for the tree: the rest is the log's.
const POOL_SHARE: u64 = 4;

/// The largest shares of the memory budget for the sketch, the bits of the clock, the filter and shortcuts to
/// leaves, each.
const BUDGET_SHARE: u64 = 64;

/// The filter is made for this many times the existing keys.
const FILTER_ROOM: u64 = 2;

/// The number of keys that the smallest filter suits.
const LEAST_FILTER_KEYS: u64 = 1 << 10;

/// The value tree of an open database.
#[derive(Debug)]
pub(super) struct ValueTree {
    pub pool: Pool,
    pub index: FastFair,
    /// Records without a name, until their readers have left.
    pub limbo: Limbo<RecordRef, Pins>,
    pub touched: Touched,
    /// How often keys were written lately.
    pub sketch: Sketch,
    /// The keys that may be here; none until it is made.
    filter: ArcSwapOption<Filter>,
    /// The other tree.
    pub hints: Hints,
    /// Held while changing the tree, or to keep it unchanged.
    pub work: Mutex<Work>,
    pub figures: TreeFigures,
    seed: u64,
    /// Most bytes of the filter.
    most_filter_bytes: u64,
    /// Its size according to the options: bytes, or, if zero, a share of the data.
    bytes: u64,
    share: f64,
}

/// What the holder of the right to change the tree knows.
#[derive(Debug)]
pub(super) struct Work {
    /// A key is admitted if its estimate is at least this.
    pub threshold: u8,
    /// The key at which the next search for victims begins.
    pub hand: Vec<u8>,
    /// Keys whose words the running flush has set to "below".
    pub below: Vec<Vec<u8>>,
    /// Keys with hints that lead to older versions than the running flush has brought, with the hints' words.
    pub outdated: Vec<(Vec<u8>, u64)>,
    /// What the pool knows of the manifest.
    pub witness: Witness,
}

/// Counts since the opening.
#[derive(Debug, Default)]
pub(super) struct TreeFigures {
    pub admitted: AtomicU64,
    pub updated: AtomicU64,
    pub evicted: AtomicU64,
    /// Its bound, as last computed.
    pub bound: AtomicU64,
}

/// The initial threshold for admitting a key: it was written before.
pub(super) const LEAST_THRESHOLD: u8 = 2;

impl ValueTree {
    /// Makes both trees, empty, in a new pool.
    pub fn create(pool: &Pool) -> Result<()> {
        FastFair::<{ terrace_index::fastfair::FANOUT }>::create(pool, VALUES_ROOT)?;
        Hints::create(pool)
    }

    /// Attaches to both trees in `pool`.
    pub fn open(core: &Core, pool: &Pool, options: &LabOptions) -> Result<Arc<ValueTree>> {
        let index = FastFair::open(pool, VALUES_ROOT)?;
        index.set_shortcut_limit(core.options.memory_budget / BUDGET_SHARE);
        let free = pool.clone();
        // A record that cannot be freed is unreachable, and the pool's check finds it.
        let limbo =
            Limbo::with(Pins::default(), move |word: RecordRef| drop(free.free(word.offset(), word.kind())));
        let share = core.options.memory_budget / BUDGET_SHARE;
        let work = Work {
            threshold: LEAST_THRESHOLD,
            hand: Vec::new(),
            below: Vec::new(),
            outdated: Vec::new(),
            witness: Witness::read(pool)?,
        };
        let most = pool.max_size() / POOL_SHARE;
        let expected = if options.value_tree_bytes > 0 { options.value_tree_bytes } else { most }.min(most);
        let has_values = options.trees.has_values();
        Ok(Arc::new(ValueTree {
            touched: Touched::new((expected / BYTES_A_BIT).min(8 * share)),
            sketch: Sketch::new(SKETCH_BYTES.min(share as usize)),
            filter: ArcSwapOption::default(),
            hints: Hints::open(pool, options)?,
            pool: pool.clone(),
            index,
            limbo,
            work: Mutex::new(work),
            figures: TreeFigures::default(),
            seed: core.env.hash_seed.unwrap_or_else(Rng::fresh_seed),
            most_filter_bytes: share,
            bytes: if has_values { options.value_tree_bytes } else { 0 },
            share: if has_values { options.value_tree_share } else { 0.0 },
        }))
    }

    /// A hash of `key` that nobody outside can predict.
    pub fn hash(&self, key: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(key, self.seed)
    }

    /// Its bound beside `data` bytes of tables.
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

    /// Bytes that a record of `bytes` under `key` takes, including its place in the index if it `is_new`.
    pub fn cost(bytes: u64, key: &[u8], is_new: bool) -> u64 {
        // Slots are up to a fifth larger than their contents.
        bytes + bytes / 8 + if is_new { key.len() as u64 + INDEX_BYTES } else { 0 }
    }

    /// What the index says of `key`.
    pub fn place(&self, key: &[u8]) -> Result<Option<ValueLocation>> {
        self.index.get(key)?.map(|bits| self.decode(bits)).transpose()
    }

    /// Decodes the word `bits` of the index.
    pub fn decode(&self, bits: u64) -> Result<ValueLocation> {
        ValueLocation::decode(bits).ok_or_else(|| {
            self.pool.corruption(0, "the word of a key in the value tree", format!("{bits:#018x}"))
        })
    }

    /// The record of `key` that `word` names. The caller has been present since before it loaded the word, or holds
    /// `work`.
    pub fn record(&self, word: RecordRef, key: &[u8]) -> Result<Record<'_>> {
        // SAFETY: nothing that the index named then is freed as long as the caller is present; a thread
        // that frees holds `work`.
        unsafe { Record::load(&self.pool, word)? }.of(&self.pool, key)
    }

    /// The newest version of `key` here up to sequence number `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        let hash = self.hash(key);
        let may = self.may_hold(hash);
        trail::note(|| Touch::Filter { number: None, may });
        if !may {
            return Ok(None);
        }
        let _here = self.limbo.enter();
        let place = self.place(key)?;
        trail::note(|| Touch::Index { found: place.is_some() });
        let Some(ValueLocation::Here(word)) = place else { return Ok(None) };
        let record = self.record(word, key)?;
        trail::note(|| Touch::Record { bytes: (key.len() + record.value.len()) as u64 });
        if record.number > at {
            return Ok(None);
        }
        self.touched.touch(hash);
        Ok(Some(Entry { seq: record.number, kind: kind(word), value: Bytes::copy_from_slice(record.value) }))
    }

    /// Whether the index may have the key with `hash`.
    pub fn may_hold(&self, hash: u64) -> bool {
        self.filter.load().as_ref().is_none_or(|filter| filter.may_hold(hash))
    }

    /// Sets `place` of `key` in the index, where the key `is_new` or not. It is durable on return. The caller
    /// holds `work`.
    pub fn set(&self, key: &[u8], place: ValueLocation, is_new: bool) -> Result<()> {
        if is_new {
            // Before anybody can find the key in the index. If it does not get there, it is searched for in
            // vain.
            self.filter.load().iter().for_each(|filter| filter.add(self.hash(key)));
        }
        self.index.insert(key, place.bits()).map(drop)
    }

    /// Keeps a version of a key; it replaces `before` in the index. It is durable on return; on an error
    /// nothing has changed. The caller holds `work`.
    pub fn keep(&self, version: &Version<'_>, before: Option<ValueLocation>) -> Result<()> {
        debug_assert!(self.is_newer(version, before), "a newer version replaces an older one");
        let record = NewRecord::write(&self.pool, version)?;
        self.pool.drain();
        self.set(version.key, ValueLocation::Here(record.word()), before.is_none())?;
        record.keep();
        self.retire(before);
        Ok(())
    }

    /// Whether nothing that can be read speaks against `version` being newer than the one at `before`.
    fn is_newer(&self, version: &Version<'_>, before: Option<ValueLocation>) -> bool {
        let Some(ValueLocation::Here(word)) = before else { return true };
        // SAFETY: the caller holds `work`, and so does a thread that frees records.
        unsafe { Record::peek(&self.pool, word) }.map_or(true, |older| older.number < version.number)
    }

    /// Retires what a key's word named.
    pub fn retire(&self, before: Option<ValueLocation>) {
        if let Some(ValueLocation::Here(word)) = before {
            self.limbo.retire(word);
        }
    }

    /// Removes `key`, if its place in the index still is `place`. The caller holds `work`.
    pub fn leave(&self, key: &[u8], place: ValueLocation) -> Result<()> {
        if self.index.compare_exchange(key, Some(place.bits()), None)?.is_ok() {
            self.filter.load().iter().for_each(|filter| filter.remove(self.hash(key)));
            self.retire(Some(place));
        }
        Ok(())
    }

    /// Builds the filter, if there is none or it is too small for the existing keys. If the index is damaged
    /// there is none: a reader that meets the damage reports it.
    pub fn fit_filter(&self) {
        if let Err(error) = self.try_to_fit_filter() {
            tracing::warn!(%error, "the value tree has no filter");
        }
    }

    fn try_to_fit_filter(&self) -> Result<()> {
        let _still = self.work.lock();
        let keys = self.index.len();
        let is_enough =
            |filter: &Filter| keys <= filter.capacity() || filter.is_as_large_as(self.most_filter_bytes);
        if self.filter.load().as_ref().is_some_and(|filter| is_enough(filter)) {
            return Ok(());
        }
        let filter = Filter::new((FILTER_ROOM * keys).max(LEAST_FILTER_KEYS), self.most_filter_bytes);
        self.each_place(&mut |key, _| {
            filter.add(self.hash(key));
            Ok(())
        })?;
        self.filter.store(Some(Arc::new(filter)));
        Ok(())
    }

    /// Calls `each` with every key and its place in the index. Nothing changes meanwhile.
    pub fn each_place(&self, each: &mut dyn FnMut(&[u8], ValueLocation) -> Result<()>) -> Result<()> {
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

    /// Frees what nobody sees any more; returns whether that is everything.
    pub fn drain(&self) -> bool {
        self.limbo.drain();
        let is_all = self.index.drain() && self.limbo.is_empty();
        self.hints.drain() && is_all
    }

    /// Proves that a manifest with `state` has not lost anything the tree depends on. `logged` tells how far
    /// logs continue after a write.
    ///
    /// # Errors
    /// `Corruption` if it has: only a repair recovers from that.
    pub fn prove(&self, state: &State, logged: impl FnOnce(u64) -> Option<u64>) -> Result<()> {
        match self.work.lock().witness.refutes(state, logged) {
            Some(found) => {
                let expected = "a manifest that knows what the value tree rests on";
                Err(self.pool.corruption(
                    0,
                    expected,
                    format!("one that has lost its end: {found}; run repair"),
                ))
            }
            None => Ok(()),
        }
    }

    /// Waits until everything unlinked is freed: readers look for a moment, and leave. The caller holds
    /// `work`.
    fn drain_all(&self) {
        while !self.drain() {
            std::thread::yield_now();
        }
    }

    /// Marks its memory in the pool; nothing of that is freed, and nothing added, before `then` has returned.
    pub fn with_marked<T>(&self, mut marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        let (_still, _hints_still) = (self.work.lock(), self.hints.still());
        self.drain_all();
        self.index.mark(&mut marks)?;
        self.hints.mark(&mut marks)?;
        self.each_place(&mut |_, place| match place {
            ValueLocation::Here(word) => marks.slot(word.offset()),
            ValueLocation::Below => Ok(()),
        })?;
        then(marks)
    }

    pub fn fill_stats(&self, stats: &mut Stats) {
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        stats.pm.index = self.index.pm_bytes() + self.hints.used();
        stats.counts.index_keys = self.index.len() + self.hints.len();
        stats.dram.index = self.dram_bytes();
        stats.dram.allocator = self.pool.dram_bytes();
        stats.values = ValueStats {
            keys: self.index.len(),
            bytes: self.used(),
            bound: figure(&self.figures.bound),
            admitted: figure(&self.figures.admitted),
            updated: figure(&self.figures.updated),
            evicted: figure(&self.figures.evicted),
        };
        let hints = &self.hints;
        stats.hints = HintStats {
            keys: hints.len(),
            bytes: hints.used(),
            bound: figure(&hints.figures.bound),
            stale_bytes: hints.stale().values().sum(),
            outdated: figure(&hints.figures.outdated),
            passed_blocks: figure(&hints.figures.passed),
        };
    }

    /// Bytes of DRAM held.
    pub fn dram_bytes(&self) -> u64 {
        let filter = self.filter.load().as_ref().map_or(0, |filter| filter.dram_bytes());
        let indexes = self.index.dram_bytes() + self.hints.dram_bytes();
        indexes + filter + self.touched.dram_bytes() + self.sketch.dram_bytes()
    }

    /// Saves what makes the next opening faster.
    pub fn close(&self) -> Result<()> {
        if !self.drain() {
            // What readers keep stays until they release it, and is unreachable if the process ends before.
            self.pool.leave_unreclaimed();
        }
        self.index.close()?;
        self.hints.close()
    }
}

/// Whether a word's version sets or deletes.
pub(super) fn kind(word: RecordRef) -> Kind {
    if word.is_tombstone() { Kind::Delete } else { Kind::Put }
}

/// Whether an error means that the pool has no room: then a version goes to level 0.
pub(super) fn is_full(error: &Error) -> bool {
    error.is_out_of_space()
}
