//! The tree of hints: where on the levels the newest copy of a hot key lies, and so which part of a run is
//! stale.
//!
//! ```text
//!   FAST&FAIR tree: key ─▶ word: run, block, entries of the block, whether the copy there is stale
//! ```
//!
//! Every writer of a run notes the places of keys that were often written lately (`placed`). Once a flush has
//! brought a newer version of such a key, its copy is stale (`outdate`), and counts as stale bytes of its
//! run. What a merge writes is not stale before the next newer version. Reads change nothing here.
//!
//! None of this must be exact. A hint may be missing, and if one is wrong about staleness, a run is merged
//! too early or too late. Before a merge leaves something out because of hints, it has checked the value tree
//! (`passed.rs`). A failure here affects nothing else; a damaged tree is not used again until the next
//! opening.
//!
//! 1. A hint names a block that holds the key, if the manifest names its run. It is set only after the
//!    manifest names the run, and file numbers are not used again.
//! 2. A thread that changes the tree, or needs it unchanged, holds `work`. Any number read without it.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use terrace_base::Result;
use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch};
use terrace_pmem::{Marks, Pool};

use super::layout::{HINTS_ROOT, Hint};
use super::tree::{CHUNK, INDEX_BYTES};
use crate::leveled::Relocations;
use crate::levels::Stale;
use crate::options::LabOptions;

/// The largest share of the pool for hints.
const POOL_SHARE: u64 = 16;

/// Trimming begins when hints exceed the larger of these parts of their bound, and goes down to the smaller.
const FULL: (u64, u64) = (7, 8);
const ENOUGH: (u64, u64) = (3, 4);

/// The hints of an open database.
#[derive(Debug)]
pub(super) struct Hints {
    index: FastFair,
    /// The key at which the next trimming begins.
    work: Mutex<Vec<u8>>,
    /// Bytes of runs that are known to be stale.
    stale: ArcSwap<Stale>,
    /// Whether hints are wanted, and nothing has failed.
    is_on: AtomicBool,
    bytes: u64,
    share: f64,
    most: u64,
    pub figures: HintFigures,
}

/// Counts since the opening.
#[derive(Debug, Default)]
pub(super) struct HintFigures {
    pub bound: AtomicU64,
    /// Copies that have become stale in their places.
    pub outdated: AtomicU64,
    /// Blocks that merges have left out.
    pub passed: AtomicU64,
}

impl Hints {
    /// Makes an empty tree.
    pub fn create(pool: &Pool) -> Result<()> {
        FastFair::<{ terrace_index::fastfair::FANOUT }>::create(pool, HINTS_ROOT).map(drop)
    }

    /// Attaches to the tree in `pool`.
    pub fn open(pool: &Pool, options: &LabOptions) -> Result<Hints> {
        if pool.root(HINTS_ROOT)?.is_none() {
            // The pool was made before there were hints.
            Hints::create(pool)?;
        }
        let index = FastFair::open(pool, HINTS_ROOT)?;
        // Single keys are seldom looked up.
        index.set_shortcut_limit(0);
        Ok(Hints {
            index,
            work: Mutex::default(),
            stale: ArcSwap::default(),
            is_on: AtomicBool::new(options.trees.has_hints()),
            bytes: options.hint_tree_bytes,
            share: options.hint_tree_share,
            most: pool.max_size() / POOL_SHARE,
            figures: HintFigures::default(),
        })
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The bound of their bytes beside `data` bytes of tables.
    fn bound(&self, data: u64) -> u64 {
        let asked = if self.bytes > 0 { self.bytes } else { (data as f64 * self.share) as u64 };
        let bound = if self.is_on() { asked.min(self.most) } else { 0 };
        self.figures.bound.store(bound, Ordering::Relaxed);
        bound
    }

    /// Bytes of the pool that they take.
    pub fn used(&self) -> u64 {
        self.index.pm_bytes()
    }

    pub fn len(&self) -> u64 {
        self.index.len()
    }

    pub fn dram_bytes(&self) -> u64 {
        self.index.dram_bytes()
    }

    pub fn stale(&self) -> Arc<Stale> {
        self.stale.load_full()
    }

    /// Contains a failure: afterwards there are no hints any more, unless it was a lack of room, which may
    /// pass.
    pub fn soft<T>(&self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(done) => Some(done),
            Err(error) => {
                if !error.is_out_of_space() {
                    tracing::warn!(%error, "the tree of hints is not used any more");
                    self.is_on.store(false, Ordering::Relaxed);
                    self.stale.store(Arc::default());
                }
                None
            }
        }
    }

    /// A walk along ascending keys.
    pub fn walk(&self) -> HintCursor<'_> {
        HintCursor { hints: self, batch: ScanBatch::new(), at: 0, is_last: false }
    }

    /// Calls `each` with every hint in a range of keys, without its end, until that returns false.
    pub fn each(
        &self,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
        each: &mut dyn FnMut(&[u8], u64) -> Result<bool>,
    ) -> Result<()> {
        let mut batch = ScanBatch::new();
        let mut from = from.map_or(Bound::Unbounded, |from| Bound::Included(from.to_vec()));
        loop {
            batch.clear();
            self.index.scan(from.as_ref().map(Vec::as_slice), false, CHUNK, &mut batch)?;
            for (key, bits) in batch.iter() {
                if to.is_some_and(|to| key >= to) || !each(key, bits)? {
                    return Ok(());
                }
            }
            match batch.len().checked_sub(1) {
                Some(last) if batch.len() == CHUNK => from = Bound::Excluded(batch.key(last).to_vec()),
                _ => return Ok(()),
            }
        }
    }

    /// Notes the new places of keys, beside `data` bytes of tables. `entry_bytes` gives the length of an
    /// entry of a run, if the run exists.
    pub fn placed(&self, relocations: &Relocations, data: u64, entry_bytes: &dyn Fn(u64) -> Option<u64>) {
        if relocations.gone.is_empty() && relocations.hints.is_empty() {
            return;
        }
        let _alone = self.work.lock();
        if !self.is_on() {
            return;
        }
        let mut stale = (**self.stale.load()).clone();
        stale.retain(|run, _| !relocations.gone.contains(run));
        let placed = self.place(relocations, self.bound(data), &mut stale, entry_bytes);
        let moved = relocations.moved.iter().try_for_each(|key| self.forget(key, &relocations.gone));
        self.stale.store(Arc::new(stale));
        self.soft(placed.and(moved));
    }

    fn place(
        &self,
        relocations: &Relocations,
        bound: u64,
        stale: &mut Stale,
        entry_bytes: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<()> {
        for hint in &relocations.hints {
            let before = self.index.get(&hint.key)?;
            if before.is_none() && self.used() + INDEX_BYTES + hint.key.len() as u64 > bound {
                continue;
            }
            let before = before.and_then(|bits| Hint::decode(bits, &hint.key));
            if let Some(before) = before {
                let was_moved = relocations.gone.contains(&before.run);
                if !was_moved && !relocations.gone.is_empty() {
                    // A newer copy was written above while this one was merged.
                    continue;
                }
                // One that stays below another is stale from now on.
                if !was_moved
                    && !before.is_stale
                    && let Some(bytes) = entry_bytes(before.run)
                {
                    *stale.entry(before.run).or_default() += bytes;
                }
            }
            // Even if a stale copy has moved: the merge may have met a newer one, which the value tree is about to give
            // up, and keep that.
            self.index.insert(&hint.key, Hint::new(hint.block, hint.entries).bits(&hint.key))?;
        }
        Ok(())
    }

    /// Removes the hint of `key` if it names a removed run.
    fn forget(&self, key: &[u8], gone: &BTreeSet<u64>) -> Result<()> {
        let leads_nowhere = |bits| Hint::decode(bits, key).is_none_or(|hint| gone.contains(&hint.run));
        self.index.update(key, &mut |now| now.filter(|&bits| leads_nowhere(bits)).map(|_| None)).map(drop)
    }

    /// Notes newer versions of some keys, whose hints had named older copies. They are durable, and readers
    /// see them.
    pub fn outdate(&self, keys: &[(Vec<u8>, u64)], entry_bytes: &dyn Fn(u64) -> Option<u64>) {
        if keys.is_empty() {
            return;
        }
        let _alone = self.work.lock();
        if !self.is_on() {
            return;
        }
        let mut stale = (**self.stale.load()).clone();
        stale.retain(|run, _| entry_bytes(*run).is_some());
        let done = keys.iter().try_for_each(|(key, bits)| {
            let hint = Hint::decode(*bits, key).filter(|hint| !hint.is_stale);
            let Some(hint) = hint else { return Ok(()) };
            let now = Hint { is_stale: true, ..hint }.bits(key);
            let is_noted = self.index.compare_exchange(key, Some(*bits), Some(now))?.is_ok();
            if let (true, Some(bytes)) = (is_noted, entry_bytes(hint.run)) {
                *stale.entry(hint.run).or_default() += bytes;
                self.figures.outdated.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        self.stale.store(Arc::new(stale));
        self.soft(done);
    }

    /// Determines again what is stale, once after an opening, and drops hints that lead nowhere.
    pub fn gather(&self, entry_bytes: &dyn Fn(u64) -> Option<u64>) {
        let _alone = self.work.lock();
        if !self.is_on() {
            return;
        }
        let (mut stale, mut nowhere) = (Stale::new(), Vec::new());
        let walked = self.each(None, None, &mut |key, bits| {
            let hint = Hint::decode(bits, key);
            match hint.and_then(|hint| Some((hint, entry_bytes(hint.run)?))) {
                Some((hint, bytes)) if hint.is_stale => *stale.entry(hint.run).or_default() += bytes,
                Some(_) => {}
                None => nowhere.push(key.to_vec()),
            }
            Ok(true)
        });
        let dropped = walked.and_then(|()| nowhere.iter().try_for_each(|k| self.index.remove(k).map(drop)));
        self.stale.store(Arc::new(stale));
        self.soft(dropped);
    }

    /// Drops some if they take too much beside `data` bytes of tables: first those for which `keep` is false.
    /// If hints are not wanted, all are dropped.
    pub fn trim(&self, data: u64, keep: &dyn Fn(&[u8], Option<Hint>) -> bool) {
        let mut hand = self.work.lock();
        let bound = self.bound(data);
        if self.index.is_empty() || self.used() <= bound / FULL.1 * FULL.0 {
            return;
        }
        let dropped = self.drop_some(&mut hand, bound / ENOUGH.1 * ENOUGH.0, keep);
        self.soft(dropped);
    }

    fn drop_some(
        &self,
        hand: &mut Vec<u8>,
        enough: u64,
        keep: &dyn Fn(&[u8], Option<Hint>) -> bool,
    ) -> Result<()> {
        let (mut batch, mut ends) = (ScanBatch::new(), 0);
        while ends < 3 && !self.index.is_empty() && self.used() > enough {
            batch.clear();
            self.index.scan(Bound::Included(hand.as_slice()), false, CHUNK, &mut batch)?;
            for (key, bits) in batch.iter() {
                // From the second round on every hint is dropped.
                if ends > 1 || enough == 0 || !keep(key, Hint::decode(bits, key)) {
                    self.index.remove(key)?;
                }
            }
            self.index.drain();
            hand.clear();
            match batch.len().checked_sub(1) {
                Some(last) if batch.len() == CHUNK => {
                    hand.extend_from_slice(batch.key(last));
                    hand.push(0);
                }
                _ => ends += 1,
            }
        }
        Ok(())
    }

    /// While this is held, nothing is added to the tree and nothing of it is freed.
    pub fn still(&self) -> MutexGuard<'_, Vec<u8>> {
        self.work.lock()
    }

    /// Marks its memory in the pool. The caller holds it [`still`](Self::still), and everything unlinked is
    /// freed.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.index.mark(marks)
    }

    /// Frees what nobody sees any more; returns whether that is everything.
    pub fn drain(&self) -> bool {
        self.index.drain()
    }

    pub fn close(&self) -> Result<()> {
        self.index.close()
    }

    /// The problems of the index itself.
    pub fn problems(&self) -> Result<Vec<String>> {
        self.index.check()
    }
}

/// A position among hints that advances with ascending keys.
pub(super) struct HintCursor<'a> {
    hints: &'a Hints,
    batch: ScanBatch,
    at: usize,
    /// Whether nothing follows the batch.
    is_last: bool,
}

impl HintCursor<'_> {
    /// The hint of `key`, which must be after the keys requested before, and its word.
    pub fn find(&mut self, key: &[u8]) -> Option<(Hint, u64)> {
        if !self.hints.is_on() {
            return None;
        }
        while self.at < self.batch.len() && self.batch.key(self.at) < key {
            self.at += 1;
        }
        if self.at == self.batch.len() && !self.is_last {
            self.batch.clear();
            self.at = 0;
            let scanned = self.hints.index.scan(Bound::Included(key), false, CHUNK, &mut self.batch);
            self.is_last = self.hints.soft(scanned).is_none() || self.batch.len() < CHUNK;
        }
        if self.at == self.batch.len() || self.batch.key(self.at) != key {
            return None;
        }
        let bits = self.batch.word(self.at);
        Hint::decode(bits, key).map(|hint| (hint, bits))
    }
}
