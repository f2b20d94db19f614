//! A leveled LSM-tree in the manner of LevelDB and RocksDB: the baseline to measure the other designs by, and the
//! ground that some of them stand on.
//!
//! ```text
//!   write ──▶ commit log (PM, or a file)
//!         └─▶ memtable (skiplist in DRAM) ──flush──▶ level 0 ──compaction──▶ level 1 .. the last
//! ```
//!
//! Threads: one leader writes at a time, any number read without locks, one flush and several compactions run in
//! the background. What always holds:
//!
//! 1. What is acknowledged is in the log, or in tables of the manifest. A log is kept until everything in it is.
//! 2. `readable` shows every version that some reader may ask for: those of tables and those of memtables, which
//!    leave in the same step in which their tables come.
//! 3. A reader takes `readable` before it asks what is visible. Of what it then may see nothing is missing: merges
//!    drop no version that was the newest when it took it.
//! 4. Lock order: `flushing`, `choosing`, the log's, `changing`, then what the parts lock.
//!
//! `docs/engines/lsm.md` tells the design, its parameters and what it is good and bad at.

mod check;
mod compact;
mod flush;
mod open;
mod read;
mod recover;
mod repair;
mod write;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::Result;
use terrace_base::exec::Lane;
use terrace_pmem::Pool;
use terrace_table::TableMeta;

use crate::background::{Background, Room};
use crate::commit_log::CommitLog;
use crate::compaction::leveled::{LeastOverlap, LevelPolicy, LeveledOptions, LeveledPolicy};
use crate::core::Core;
use crate::core::engine::{Direction, Engine, Walk};
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::levels::Levels;
use crate::levels::output::Written;
use crate::levels::run::{Run, Runs};
use crate::manifest::{Edit, Manifest};
use crate::memtable::MemList;
use crate::options::LsmOptions;
use crate::pool;
use crate::stats::Stats;
use crate::tables::{MadeFile, WriterOptions};

pub(crate) use open::open;
pub(crate) use repair::repair;

/// An open database of the `lsm` engine.
#[derive(Debug)]
pub(crate) struct Lsm {
    me: Weak<Lsm>,
    core: Arc<Core>,
    /// Decides what is compacted.
    policy: Box<dyn LevelPolicy>,
    /// Where the log lies, if it is on persistent memory.
    pool: Option<Pool>,
    manifest: Manifest,
    runs: Runs,
    readable: ArcSwap<Readable>,
    /// Held while `readable` and the manifest change together.
    changing: Mutex<()>,
    log: CommitLog,
    /// The last sequence number in a memtable or table.
    applied: AtomicU64,
    /// Held by the one flush.
    flushing: Mutex<()>,
    /// Tables that running compactions read.
    choosing: Mutex<BTreeSet<u64>>,
    /// What writers are slowed down by: tables on level 0, and bytes to be compacted.
    l0_tables: AtomicUsize,
    debt_bytes: AtomicU64,
    /// Tables hold versions or tombstones that only snapshots keep.
    holds_garbage: AtomicBool,
    /// Where writers wait for a flush.
    room: Room,
    jobs: Arc<Background>,
    /// What opening had to do, in a line.
    opened: OnceLock<String>,
    /// The medium that an emulated pool stands for.
    emulated: Option<String>,
}

/// One memtable, and where it is logged.
#[derive(Debug)]
struct MemTable {
    list: MemList,
    /// The first log that holds writes of this memtable; zero before there is one.
    first_log: AtomicU64,
}

impl MemTable {
    fn new(bytes: u64) -> Arc<MemTable> {
        Arc::new(MemTable { list: MemList::new(bytes), first_log: AtomicU64::new(0) })
    }

    fn first_log(&self) -> u64 {
        self.first_log.load(Ordering::Acquire)
    }

    /// Notes the first log that this memtable's writes go to.
    fn logged_from(&self, number: u64) {
        if self.first_log() != 0 {
            return;
        }
        let _ = self.first_log.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Notes that log `number` stands for all this memtable's logs before it.
    fn relogged(&self, number: u64) {
        self.first_log.store(number, Ordering::Release);
    }
}

/// A change of the tables.
#[derive(Debug, Default)]
struct Change {
    edits: Vec<Edit>,
    /// Tables among those added that hold versions which only snapshots keep.
    noted: Vec<u64>,
    /// The files of those added.
    made: Vec<MadeFile>,
}

impl Change {
    /// Adds what a flush or a compaction has written to `level`.
    fn add(&mut self, level: usize, tables: Vec<Written>) {
        for table in tables {
            self.noted.extend(table.keeps_old.then_some(table.meta.number));
            self.edits.push(Edit::AddTable { level: level as u32, job: 0, meta: table.meta });
            self.made.push(table.file);
        }
    }

    /// The tables added.
    fn metas(&self) -> impl Iterator<Item = &TableMeta> {
        self.edits.iter().filter_map(|edit| match edit {
            Edit::AddTable { meta, .. } => Some(meta),
            _ => None,
        })
    }
}

/// What the options say of compactions.
fn policy(lsm: &LsmOptions) -> Box<dyn LevelPolicy> {
    let options = LeveledOptions {
        levels: lsm.levels,
        l0_trigger: lsm.l0_tables,
        base_bytes: lsm.base_level_bytes,
        multiplier: lsm.level_multiplier,
        max_merge_bytes: lsm.table_bytes.saturating_mul(25),
    };
    Box::new(LeveledPolicy::new(options, lsm.table_bytes, LeastOverlap))
}

/// Everything that may be read at one moment.
#[derive(Debug, Clone)]
struct Readable {
    /// Newest first; the first is the one being written.
    memtables: Vec<Arc<MemTable>>,
    levels: Arc<Levels>,
}

impl Readable {
    fn active(&self) -> &Arc<MemTable> {
        &self.memtables[0]
    }

    /// The oldest memtable that waits for its flush.
    fn oldest_immutable(&self) -> Option<&Arc<MemTable>> {
        if self.memtables.len() > 1 { self.memtables.last() } else { None }
    }

    fn has(&self, memtable: &Arc<MemTable>) -> bool {
        self.memtables.iter().any(|m| Arc::ptr_eq(m, memtable))
    }
}

impl Lsm {
    fn readable(&self) -> Arc<Readable> {
        self.readable.load_full()
    }

    fn output_options(&self, table_bytes: u64) -> WriterOptions {
        let lsm = &self.core.options.lsm;
        let table = terrace_table::TableOptions {
            block_bytes: lsm.block_bytes,
            compression: self.core.options.compression,
            filter_bits_per_key: lsm.filter_bits_per_key,
            origin: self.manifest.state().identity.origin(),
            ..Default::default()
        };
        WriterOptions { table_bytes, table }
    }

    /// A file number that no file has.
    fn new_file_number(&self) -> u64 {
        self.manifest.take_numbers(1).start
    }

    /// Applies `change` and shows its tables to readers; `leaves` is the memtable whose contents they are. The new
    /// tables, which are whole and durable, are looked at first, so that nothing fails once they are in the manifest.
    fn install(&self, mut change: Change, leaves: Option<&Arc<MemTable>>) -> Result<()> {
        let made: Vec<Run> = change.metas().map(|m| self.runs.made(m)).collect::<Result<_>>()?;
        let _alone = self.changing.lock();
        let files = std::mem::take(&mut change.made);
        let levels = self.levels_after(&change, &made)?;
        if let Err(e) = self.manifest.apply(&self.with_candidates(&change)) {
            // Whether they are in it a crash would decide: they stay until that is settled.
            files.into_iter().for_each(MadeFile::keep_until_decided);
            return Err(e);
        }
        files.into_iter().for_each(MadeFile::keep);
        self.runs.insert(made);
        let levels = Arc::new(levels);
        self.note_load(&levels);
        self.readable.rcu(|now| {
            let mut next = Readable { memtables: now.memtables.clone(), levels: levels.clone() };
            next.memtables.retain(|m| leaves.is_none_or(|gone| !Arc::ptr_eq(m, gone)));
            next
        });
        self.settle_memory();
        self.jobs.progressed();
        Ok(())
    }

    /// The tables on their levels once `change` has been made; `made` are those that it adds.
    fn levels_after(&self, change: &Change, made: &[Run]) -> Result<Levels> {
        let state = self.manifest.state();
        let mut levels = (*self.readable().levels).clone();
        let level = |number| state.tables.get(number).map_or(0, |table| table.level as usize);
        // In this order: what leaves a level makes room for what comes.
        for edit in &change.edits {
            if let Edit::RemoveTable { number } | Edit::MoveTable { number, .. } = edit {
                levels.remove(level(number), &self.runs.get(*number)?);
            }
        }
        for edit in &change.edits {
            if let Edit::MoveTable { number, level } = edit {
                levels.insert(*level as usize, self.runs.get(*number)?);
            }
        }
        let added = change.edits.iter().filter_map(|edit| match edit {
            Edit::AddTable { level, .. } => Some(*level as usize),
            _ => None,
        });
        added.zip(made).for_each(|(level, run)| levels.insert(level, run.clone()));
        Ok(levels)
    }

    /// The edits of `change` with the list of tables that hold what only snapshots keep.
    fn with_candidates(&self, change: &Change) -> Vec<Edit> {
        let mut edits = change.edits.clone();
        if !change.noted.is_empty() {
            let mut noted = (*self.manifest.state().candidates).clone();
            noted.extend(&change.noted);
            for edit in &change.edits {
                if let Edit::RemoveTable { number } = edit {
                    noted.remove(number);
                }
            }
            edits.push(Edit::Candidates(noted.into_iter().collect()));
        }
        edits
    }

    /// Removes what could not be removed before.
    fn sweep(&self) {
        self.core.files.sweep(&self.manifest);
    }

    /// Gives the cache what memtables, each at its full size, and tables leave of the budget.
    fn settle_memory(&self) {
        let readable = self.readable();
        let memtable = |m: &Arc<MemTable>| m.list.dram_bytes().max(self.core.options.lsm.memtable_bytes);
        let memtables: u64 = readable.memtables.iter().map(memtable).sum();
        self.core.memory.settle(self.core.cache().table_bytes() + memtables);
    }

    /// Notes what writers are slowed down by.
    fn note_load(&self, levels: &Levels) {
        let (sizes, l0_tables) = (levels.sizes(self.policy.levels()), levels.level(0).len());
        self.l0_tables.store(l0_tables, Ordering::Relaxed);
        self.debt_bytes.store(self.policy.debt(&sizes, l0_tables), Ordering::Relaxed);
        self.holds_garbage.store(self.has_garbage(levels, sizes.len() - 1), Ordering::Relaxed);
    }

    /// Whether a table of the `last` level has tombstones, or is known to hold versions that only snapshots keep.
    fn has_garbage(&self, levels: &Levels, last: usize) -> bool {
        let state = self.manifest.state();
        let is_there = |number| state.tables.get(number).is_some_and(|table| table.level as usize == last);
        levels.level(last).has_deletes() || state.candidates.iter().any(is_there)
    }

    /// Has what the pool was closed with verified in the background, a piece at a time.
    fn verify_pool(&self, from: u64) {
        if self.pool.is_some() {
            self.spawn(Lane::Tidying, move |lsm| {
                if let Some(next) = lsm.pool.as_ref().and_then(|pool| pool::verify(pool, from)) {
                    lsm.verify_pool(next);
                }
            });
        }
    }

    fn spawn(&self, lane: Lane, job: impl FnOnce(&Lsm) + Send + 'static) -> bool {
        self.jobs.spawn(lane, &self.me, job)
    }
}

impl Engine for Lsm {
    fn apply(&self, group: Group<'_>) -> Result<()> {
        self.apply_group(group)
    }

    fn rotate(&self) -> Result<()> {
        if self.readable().active().list.is_empty() {
            return Ok(());
        }
        self.log.mend(self)?;
        while self.readable().memtables.len() >= self.core.options.lsm.memtables {
            self.wait_for_flush()?;
        }
        self.rotate_memtable()
    }

    fn settle(&self) -> Result<()> {
        let has_immutable = || self.readable().oldest_immutable().is_some();
        match self.jobs.hold_open() {
            Ok(_open) => {
                while has_immutable() {
                    self.wait_for_flush()?;
                }
                Ok(())
            }
            Err(e) if has_immutable() => Err(e),
            Err(_) => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        self.log.mend(self)?;
        self.log.sync().inspect_err(|_| self.log.try_to_mend(self))
    }

    fn get(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        self.get_value(key, at)
    }

    fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.get_value(key, None)?.is_some())
    }

    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn Walk>> {
        Ok(self.merged_walk(at, direction))
    }

    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        let _open = self.jobs.hold_open()?;
        self.compact_range(from, to)
    }

    fn released(&self) {
        if self.holds_garbage.load(Ordering::Relaxed) {
            self.spawn_compaction();
        }
    }

    fn fill_stats(&self, stats: &mut Stats) {
        check::fill_stats(self, stats);
    }

    fn check(&self) -> Result<CheckReport> {
        check::check(self)
    }

    fn intact(&self) -> Result<()> {
        self.pool.as_ref().map_or(Ok(()), Pool::intact)
    }

    fn close(&self) -> Result<()> {
        if !self.jobs.close() {
            return Ok(());
        }
        if !self.core.options.read_only {
            self.log.close(self)?;
            self.sweep();
        }
        match &self.pool {
            Some(pool) => pool::close(&self.manifest, pool),
            None if self.core.options.read_only => Ok(()),
            None => self.manifest.seal(),
        }
    }
}
