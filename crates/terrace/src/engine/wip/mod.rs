//! WipDB (Zhao's dissertation, chapter 2): keys are written in place.
//!
//! ```text
//!   write ──▶ commit log (PM, or files), one for all
//!         └─▶ the bucket of the key:  memtable ──flush──▶ level 0 ──▶ level 1 ──▶ level 2
//!                                     a hash table        sublevels that overlap; all of a level become one of the next
//! ```
//!
//! The keys are divided into buckets, each with its own memtables and tables. A full bucket is merged as a
//! whole and split at existing keys; neighbours that have shrunk are joined.
//!
//! | file | what it does |
//! |---|---|
//! | `mod.rs` | the engine, and what changes together |
//! | `bucket.rs`, `memtable.rs` | a bucket and what it holds; all buckets in order |
//! | `engine.rs`, `read.rs`, `iter.rs` | the operations of the store; lookups; walks from bucket to bucket |
//! | `write.rs`, `room.rs`, `logging.rs` | groups; the choice of memtables to flush, and throttling of writers; the log |
//! | `flush.rs` | memtables, oldest first, out of memory |
//! | `compact.rs`, `merge.rs` | compaction jobs and the merges that they do |
//! | `whole.rs`, `reshape.rs` | merging a whole bucket; splitting and joining |
//! | `ingest.rs`, `divide.rs` | tables of sorted streams; dividing buckets that get many of them |
//! | `change.rs` | a change of tables: into the manifest, and before readers |
//! | `open.rs`, `recover.rs`, `repair.rs`, `check.rs` | opening; bringing back; proving everything |
//!
//! [`compaction::buckets`](crate::compaction::buckets) decides about compactions.
//!
//! Threads: one leader writes at a time, any number read without locks, one flush and several compactions run in the
//! background. Invariants:
//!
//! 1. Every acknowledged write is in the log or in tables of the manifest. Buckets are flushed in any order;
//!    a flushed write is in the log durably before the manifest names its table, so that a power cut leaves a
//!    prefix of the history.
//! 2. The manifest records for each bucket the sequence number up to which its writes are in tables, and the
//!    first log that some bucket still needs. Both are recorded in one group with the tables.
//! 3. A table lies within one bucket. While a whole bucket is merged, every table written for it ends at the
//!    keys where it may be split; when it is split, no flush and no other job of it is running.
//! 4. A reader loads the buckets, and one bucket's readable set, before it asks what is visible; a snapshot
//!    is registered before. No version visible to it is then missing: merges drop no version that was the
//!    newest when it loaded them.
//! 5. Lock order: `flushes`, `changing`, `writing`, `planning`, then the parts' own locks. Tables of a bucket
//!    and all buckets change under `changing`; memtables of a bucket and all buckets under `writing`.

mod bucket;
mod buckets;
mod change;
mod check;
mod compact;
mod divide;
mod engine;
mod flush;
mod ingest;
mod iter;
mod logging;
mod memtable;
mod merge;
mod open;
mod range_reads;
mod read;
mod recover;
mod repair;
mod reshape;
mod room;
#[cfg(test)]
mod tests;
mod whole;
mod write;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_base::Result;
use terrace_pmem::Pool;
use terrace_table::TableOptions;

use crate::background::{Background, Flushes};
use crate::commit_log::CommitLog;
use crate::compaction::buckets::BucketOptions;
use crate::core::Core;
use crate::levels::hidden::Undecided;
use crate::levels::run::Runs;
use crate::manifest::Manifest;
use crate::memtable::hash::Overflow;
use crate::options::{BucketMemtableKind, Options};
use crate::pool;
use crate::tables::WriterOptions;

use bucket::Bucket;
use buckets::Buckets;
use logging::LogSpan;
use memtable::{BucketMemtable, Memory};
use write::Touched;

pub(crate) use open::open;
pub(crate) use repair::repair;

/// The largest size at which a table is cut: a merge may end with the largest possible value.
const MOST_TABLE_BYTES: u64 = 1 << 30;

/// The part of what memtables may hold that is kept for the next ones: a fourth.
const SPARE_SHARE: u64 = 4;

/// An open database of the `wip` engine.
#[derive(Debug)]
pub(crate) struct Wip {
    me: Weak<Wip>,
    core: Arc<Core>,
    log: CommitLog,
    /// The log's pool, if the log is on persistent memory.
    pool: Option<Pool>,
    /// The medium that an emulated pool stands for.
    emulated: Option<String>,
    manifest: Manifest,
    runs: Runs,
    memory: Arc<Memory>,
    buckets: ArcSwap<Buckets>,
    /// Held while tables and the manifest change together.
    changing: Mutex<()>,
    /// Held while memtables change: on an insertion, and when buckets are replaced.
    writing: Mutex<()>,
    /// The last sequence number in a memtable or table.
    applied: AtomicU64,
    /// Memtables that wait for their flush, oldest first.
    frozen: Mutex<VecDeque<Arc<BucketMemtable>>>,
    /// Their bytes.
    frozen_bytes: AtomicU64,
    /// Also claimed by whatever must not run beside a flush.
    flushes: Flushes,
    /// A job is to flush, or flushes, and looks for more before it ends.
    is_flushing: AtomicBool,
    /// What running jobs have claimed.
    planning: Mutex<Plan>,
    /// The leader's notes on the buckets of its last group.
    touched: Mutex<Touched>,
    /// The existing logs, as far as they are known here.
    span: Mutex<LogSpan>,
    /// The log being written; zero if there is none.
    current_log: AtomicU64,
    /// The log is being read back.
    replaying: AtomicBool,
    /// Average bytes written by recent flushes of one memtable.
    flush_bytes: AtomicU64,
    reshaped: Reshaped,
    undecided: Undecided,
    jobs: Arc<Background>,
    /// A line about the work of opening.
    opened: OnceLock<String>,
}

/// What is claimed.
#[derive(Debug, Default)]
struct Plan {
    /// Tables that running jobs read.
    busy: BTreeSet<u64>,
    /// Those of them that merges of whole buckets read.
    read_whole: BTreeSet<u64>,
    /// Lower bounds of buckets that are being merged as a whole, or replaced.
    whole: BTreeSet<Vec<u8>>,
    /// Those of them in which no other job may begin.
    ending: BTreeSet<Vec<u8>>,
}

impl Plan {
    /// Whether some job reads tables of `bucket` other than `own`.
    fn has_busy(&self, bucket: &Bucket, own: &[u64]) -> bool {
        let readable = bucket.readable.load();
        let mut numbers = readable.tables.iter().map(|table| table.run.number());
        numbers.any(|number| self.busy.contains(&number) && !own.contains(&number))
    }
}

/// How often buckets were replaced since the opening.
#[derive(Debug, Default)]
struct Reshaped {
    splits: AtomicU64,
    joins: AtomicU64,
}

/// The parts of an engine.
struct Parts {
    manifest: Manifest,
    pool: Option<Pool>,
    log: CommitLog,
}

impl Wip {
    /// Assembles the engine from its opened parts, with empty memtables.
    fn new(core: Arc<Core>, parts: Parts) -> Result<Arc<Wip>> {
        let Parts { manifest, pool, log } = parts;
        let runs = Runs::new(&core, &manifest, None)?;
        let emulated = match &pool {
            Some(_) => pool::emulated(&core, &manifest.state().identity)?,
            None => None,
        };
        let freezes = core.options.wip.freeze_on_overflow;
        let overflow = if freezes { Overflow::Freeze } else { Overflow::Chain };
        let memory = Memory::new(overflow, memtables_budget(&core.options) / SPARE_SHARE);
        let buckets = open::buckets(&manifest.state(), &runs, &memory)?;
        let slots = core.options.background_threads.saturating_sub(1).max(1);
        let jobs = Background::new(core.clone(), slots);
        let wired = Wip {
            me: Weak::new(),
            core,
            log,
            pool,
            emulated,
            manifest,
            runs,
            memory,
            buckets: ArcSwap::from_pointee(buckets),
            changing: Mutex::default(),
            writing: Mutex::default(),
            applied: AtomicU64::default(),
            frozen: Mutex::default(),
            frozen_bytes: AtomicU64::default(),
            flushes: Flushes::default(),
            is_flushing: AtomicBool::default(),
            planning: Mutex::default(),
            touched: Mutex::default(),
            span: Mutex::default(),
            current_log: AtomicU64::default(),
            replaying: AtomicBool::default(),
            flush_bytes: AtomicU64::default(),
            reshaped: Reshaped::default(),
            undecided: Undecided::default(),
            jobs,
            opened: OnceLock::default(),
        };
        let wip = Arc::new_cyclic(|me| Wip { me: me.clone(), ..wired });
        let plan = wip.planning.lock();
        wip.buckets().iter().for_each(|bucket| wip.note_figures(&plan, bucket));
        drop(plan);
        wip.fit_cache();
        Ok(wip)
    }

    fn buckets(&self) -> Arc<Buckets> {
        self.buckets.load_full()
    }

    /// How tables are written.
    fn writer_options(&self) -> WriterOptions {
        let origin = self.manifest.state().identity.origin();
        let table = TableOptions { origin, ..table_options(&self.core.options) };
        let table_bytes = MOST_TABLE_BYTES.min(self.core.options.wip.bucket_bytes);
        WriterOptions { table_bytes, table }
    }

    /// The options for the choice of compactions.
    fn bucket_options(&self) -> BucketOptions {
        let wip = &self.core.options.wip;
        let flushed = self.flush_bytes.load(Ordering::Relaxed);
        BucketOptions {
            sublevels: wip.sublevels,
            min_sublevels: wip.min_sublevels,
            jitter: wip.jitter,
            capacity: wip.bucket_bytes,
            split_into: wip.split_into,
            read_weight: wip.read_weight,
            read_aware: wip.read_aware,
            memtable_bytes: if flushed == 0 { wip.memtable_bytes } else { flushed },
            room: u64::MAX,
        }
    }

    /// An empty memtable for a range of keys; an ordered one if ranges are read often.
    fn new_memtable(&self, range: (&[u8], Option<&[u8]>), ranges_come: bool) -> Arc<BucketMemtable> {
        let wip = &self.core.options.wip;
        let in_order = match wip.memtable {
            BucketMemtableKind::Hash => false,
            BucketMemtableKind::Skiplist => true,
            BucketMemtableKind::Adaptive => ranges_come,
        };
        BucketMemtable::new(&self.memory, range, in_order)
    }

    /// Removes what could not be removed before.
    fn sweep(&self) {
        self.core.files.sweep(&self.manifest);
        if pool::is_reclaim_due(self.pool.as_ref(), &self.manifest) {
            self.jobs.tidy(&self.me, Wip::reclaim_now);
        }
    }

    /// Bytes that all memtables may hold.
    fn memtables_budget(&self) -> u64 {
        memtables_budget(&self.core.options)
    }

    /// Gives the cache the rest of the budget after memtables and tables.
    fn fit_cache(&self) {
        let tables = self.core.cache().table_bytes();
        self.core.memory.fit_cache(tables + self.memory.held().max(self.memtables_budget()));
    }
}

/// Bytes that all memtables may hold.
fn memtables_budget(options: &Options) -> u64 {
    (options.memory_budget as f64 * options.wip.memtables_share) as u64
}

/// How tables are written.
fn table_options(options: &Options) -> TableOptions {
    TableOptions {
        block_bytes: options.wip.block_bytes,
        compression: options.compression,
        filter_bits_per_key: options.wip.filter_bits_per_key,
        ..TableOptions::default()
    }
}
