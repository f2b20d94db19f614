//! The index of an engine with one word for every key: the newest version's location, or the chain of
//! versions that snapshots still see. It also has the jobs that move keys from one place to the next, with
//! correct counts after a crash.
//!
//! | file | what it does |
//! |---|---|
//! | `chain.rs` | the word and what it names: a location, or a chain of versions in the pool |
//! | `moves.rs` | deciding and publishing the change of a key's word when versions arrive, move or are dropped |
//! | `jobs.rs` | a job: chunks of moves, each in the job's log before it is published, and the end in the manifest |
//! | `job_log.rs` | the bytes of that log, and what they tell of a job that a crash cut short |
//! | `read.rs` | point reads: a word, and the block that it names |
//! | `collapse.rs` | drops versions that no snapshot needs any more |
//! | `recover.rs` | ends the jobs that a crash cut short; marks what the words and the logs hold of the pool |
//!
//! A location is a block of a table ([`Position`]), and the counts are of live versions in each table. The
//! top two bits of a word give the meaning of the rest (`docs/formats/slm.md`).
//!
//! Chains and the versions of `engine/pm/versions.rs` are two schemes, and both stay. There a version *is* its record
//! in the pool: a link from record to record costs one word, and older versions are freed one at a time. Here versions
//! lie in tables, which do not change, so the list is separate, and is rewritten as a whole when a version is
//! dropped.
//!
//! Only `slm` stands on this part. `split` has one word for every key, too, and tables beside the pool, but stands on
//! `engine/pm/`, because words change differently there. In `slm` only jobs change them: a flush or a compaction moves
//! keys in chunks, holds `writer` for a chunk, and logs it before it is published, which makes the counts of live
//! versions exact after a crash. Readers find newer versions in memtables meanwhile. `split` has no memtables. Each
//! put changes its word itself, beside other writers and without a lock, by an exchange; a logged chunk under a lock
//! would cost more than the put. So its migration is one writer among others: it replaces a word only if that is
//! still the word of the version that it has copied. It needs no log for that, and the live entries of its tables are
//! counted in DRAM, by a walk after an opening (`engine/split/runs.rs`). The two share the choice of what to merge
//! (`compaction/selective/`).
//!
//! Invariants:
//!
//! 1. Every word names a location in a table of the manifest, or a chain of such locations.
//! 2. Words and chains change only under `writer`; readers take no lock, and enter `limbo` before they follow
//!    a word.
//! 3. Lock order: `collapsing`, `writer`, `endings`, `counting`, then the parts' own locks.

mod chain;
mod collapse;
mod job_log;
mod jobs;
mod moves;
mod read;
mod recover;

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use terrace_base::{Error, Result};
use terrace_index::limbo::Limbo;
use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch};
use terrace_pmem::Pool;
use terrace_table::Position;

use crate::core::Core;
use crate::manifest::Manifest;
use crate::tables::TableStore;

pub(crate) use chain::{CHAIN_KIND, Chain, Location, Version};
pub(crate) use job_log::read_compaction_record;
pub(crate) use jobs::{Committed, Job, JobRun, count_edits};
pub(crate) use moves::{CHUNK_KEYS, Origin, Relocation};

/// The index over all keys.
pub(crate) type LocationIndex = FastFair;

/// Index entries examined in one go.
const SCAN_KEYS: usize = 512;

/// The roots of jobs' logs, one for each job that may run beside the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobRoots {
    pub flush: &'static str,
    /// That of the job that collapses chains.
    pub collapse: &'static str,
    pub compactions: &'static [&'static str],
}

impl JobRoots {
    fn all(self) -> impl Iterator<Item = &'static str> {
        [self.flush, self.collapse].into_iter().chain(self.compactions.iter().copied())
    }
}

/// The parts that the index depends on and belongs to.
pub(crate) struct Foundation {
    pub core: Arc<Core>,
    pub manifest: Arc<Manifest>,
    pub tables: Arc<TableStore>,
    pub pool: Pool,
    pub roots: JobRoots,
    /// Bytes by which a job's log grows before a new one replaces it.
    pub log_growth: u64,
}

/// The index, its chains and its jobs.
#[derive(Debug)]
pub(crate) struct Located {
    core: Arc<Core>,
    manifest: Arc<Manifest>,
    tables: Arc<TableStore>,
    pool: Pool,
    roots: JobRoots,
    log_growth: u64,
    index: LocationIndex,
    /// Chains taken out of the index, by offset, until their readers have left.
    limbo: Limbo<u64>,
    /// Chains in the index; at first after a crash also the unreachable ones.
    chains: AtomicI64,
    /// Held while words or chains change.
    writer: Mutex<()>,
    /// Held by the one job that collapses chains.
    collapsing: Mutex<()>,
    /// Held while a job's counts and end go into the manifest.
    counting: Mutex<()>,
    /// Jobs that are done and whose end is not in the manifest.
    endings: Mutex<Vec<jobs::EndedJob>>,
}

impl Located {
    /// Opens the index at `root`.
    pub fn open(foundation: Foundation, root: &str) -> Result<Self> {
        let Foundation { core, manifest, tables, pool, roots, log_growth } = foundation;
        let index = LocationIndex::open(&pool, root)?;
        index.set_shortcut_limit(core.options.memory_budget / 16);
        let limbo = {
            let pool = pool.clone();
            // A chain that cannot be freed stays unreachable, which `check` reports.
            Limbo::new(move |offset| drop(pool.free(offset, CHAIN_KIND)))
        };
        let chains = AtomicI64::new(pool.slots(CHAIN_KIND).count() as i64);
        Ok(Located {
            core,
            manifest,
            tables,
            pool,
            roots,
            log_growth,
            index,
            limbo,
            chains,
            writer: Default::default(),
            collapsing: Default::default(),
            counting: Default::default(),
            endings: Default::default(),
        })
    }

    /// The index itself, for reading.
    pub fn index(&self) -> &LocationIndex {
        &self.index
    }

    /// Whether there may be a chain.
    pub fn has_chains(&self) -> bool {
        self.chains.load(Ordering::Acquire) > 0
    }

    /// No word and no chain changes while this is held.
    pub fn hold_still(&self) -> MutexGuard<'_, ()> {
        self.writer.lock()
    }

    /// No job collapses chains while this is held.
    pub fn hold_collapsing(&self) -> MutexGuard<'_, ()> {
        self.collapsing.lock()
    }

    /// No job ends while this is held.
    pub fn hold_counts(&self) -> MutexGuard<'_, ()> {
        self.counting.lock()
    }

    /// Frees what can be freed; returns whether nothing unlinked still waits for its readers.
    pub fn drain(&self) -> bool {
        self.limbo.drain();
        self.index.drain() && self.limbo.is_empty()
    }

    /// Decodes an index word.
    fn decode_word(&self, word: u64) -> Result<Location> {
        Location::decode(word)
            .ok_or_else(|| Error::corruption(self.pool.path(), 0, "an index word", format!("{word:#018x}")))
    }

    /// The versions behind an index word; zero is none.
    fn versions_of(&self, word: u64) -> Result<Vec<Version>> {
        if word == 0 {
            return Ok(Vec::new());
        }
        Ok(match self.decode_word(word)? {
            Location::Position(position) => {
                vec![Version { seq: u64::MAX >> 2, exact: false, position: Some(position) }]
            }
            Location::Chain(offset) => Chain::load(&self.pool, offset)?.versions,
        })
    }

    /// Whether the index holds the version of `key` that is `seq` in a table. All versions of a key that
    /// are in one table got there together, so a plain word can only mean the newest of them.
    pub fn holds(&self, key: &[u8], seq: u64, from: Origin) -> Result<bool> {
        Ok(self.held_position(key, seq, from)?.is_some())
    }

    /// The version's location in the index, if the index [`holds`](Self::holds) it.
    pub fn held_position(&self, key: &[u8], seq: u64, from: Origin) -> Result<Option<Position>> {
        let _here = self.limbo.enter();
        let Some(word) = self.index.get(key)? else { return Ok(None) };
        Ok(match self.decode_word(word)? {
            Location::Position(position) => from.is_behind(position).then_some(position),
            Location::Chain(offset) => {
                let chain = Chain::load(&self.pool, offset)?;
                chain.find(seq, from).and_then(|index| chain.versions[index].position)
            }
        })
    }

    /// Calls `each` with every key and word of the index, in order.
    pub fn each_word(&self, each: impl FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        each_word_of(&self.index, each)
    }

    fn count_chain(&self, word: u64, by: i64) {
        if matches!(Location::decode(word), Some(Location::Chain(_))) {
            self.chains.fetch_add(by, Ordering::AcqRel);
        }
    }
}

/// Calls `each` with every key and word of `index`, in order.
pub(crate) fn each_word_of(
    index: &LocationIndex,
    mut each: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut from: Bound<Vec<u8>> = Bound::Unbounded;
    let mut batch = ScanBatch::default();
    loop {
        batch.clear();
        index.scan(from.as_ref().map(Vec::as_slice), false, SCAN_KEYS, &mut batch)?;
        for i in 0..batch.len() {
            each(batch.key(i), batch.word(i))?;
        }
        match batch.len() {
            SCAN_KEYS => from = Bound::Excluded(batch.key(SCAN_KEYS - 1).to_vec()),
            _ => return Ok(()),
        }
    }
}
