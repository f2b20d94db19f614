//! A write buffer: memtables in DRAM, made durable by a commit log, on persistent memory or in files.
//!
//! 1. A group is in the log before any of it is in a memtable.
//! 2. A memtable knows the first log that has its writes. A flush tells the manifest the first log of later
//!    memtables; logs before that one are dropped.
//!
//! This module does not know the [`Stage`], which decides what a flush makes and what lies below the
//! memtables.

mod recover;
mod repair;
mod write;

use std::sync::Arc;

use terrace_base::Result;
use terrace_pmem::{Marks, Pool};
use terrace_table::Kind;

pub(crate) use recover::open;
pub(crate) use repair::repair;

use super::{LeveledTree, Memtable, Stage, WriteBuffer};
use crate::batch::Op;
use crate::commit_log::{CommitLog, FirstLog, Policy, durability};
use crate::core::Core;
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::manifest::{Edit, Manifest};
use crate::memtable::chunks::Chunks;
use crate::memtable::{MemCursor, MemList, NODE_OVERHEAD_BYTES, Version};
use crate::stats::Stats;

/// If memtables hold more, they are flushed, and not copied to another log.
const COPY_BYTES: u64 = 4 << 20;

/// Memtables in DRAM and their log.
#[derive(Debug)]
pub(crate) struct LoggedMemtables<S = ()> {
    log: CommitLog,
    stage: S,
    /// The memory of all memtables.
    chunks: Arc<Chunks>,
}

/// One memtable, and its first log.
#[derive(Debug)]
pub(crate) struct LoggedMemtable {
    list: MemList,
    first_log: FirstLog,
}

/// Memtables lie in DRAM, so everything is handed to the system at once; what a flush writes is shown when all of it is
/// there.
fn log_policy(memtable_bytes: u64) -> Policy {
    Policy { buffer_bytes: 0, each_complete: false, copy_bytes: COPY_BYTES.min(memtable_bytes / 2) }
}

impl<S: Stage> LoggedMemtables<S> {
    /// Opens the logs in `pool`; without a pool the logs lie in files.
    pub fn open(
        core: &Arc<Core>,
        manifest: &Manifest,
        pool: Option<&Pool>,
        memtable_bytes: u64,
        stage: S,
    ) -> Result<Self> {
        // A log is a little shorter than the memtable's nodes, but must not take most of a small pool.
        let most = pool.map_or(0, |pool| pool.max_size() / 8);
        let log_bytes = (memtable_bytes + memtable_bytes / 16 + 4096).min(most);
        let in_pool = pool.map(|pool| (pool, log_bytes));
        let log = CommitLog::new(core.clone(), manifest, in_pool, log_policy(memtable_bytes));
        log.open_in_pool(manifest)?;
        Ok(LoggedMemtables { log, stage, chunks: Chunks::keeping(memtable_bytes) })
    }
}

impl Memtable for LoggedMemtable {
    type Cursor = MemCursor;

    const ENTRY_BYTES: u64 = NODE_OVERHEAD_BYTES;

    fn insert<'a>(&self, ops: impl Iterator<Item = (Op<'a>, u64)>) {
        let mut writer = self.list.writer();
        ops.for_each(|(op, seq)| writer.insert(op.key, seq, op.kind, op.value));
    }

    fn get<T>(&self, key: &[u8], at: u64, take: impl FnOnce(Version<'_>) -> T) -> Option<T> {
        self.list.get(key, at).map(take)
    }

    fn cursor(&self) -> MemCursor {
        self.list.cursor()
    }

    fn visit(&self, each: impl FnMut(&[u8], u64, Kind, &[u8]) -> Result<()>) -> Result<()> {
        self.list.visit(each)
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn bytes_used(&self) -> u64 {
        self.list.bytes_used()
    }

    fn dram_bytes(&self) -> u64 {
        self.list.dram_bytes()
    }

    fn max_seq(&self) -> u64 {
        self.list.max_seq()
    }

    fn check(&self) -> Vec<String> {
        self.list.check()
    }
}

impl<S: Stage> WriteBuffer for LoggedMemtables<S> {
    type Memtable = LoggedMemtable;
    type Stage = S;

    fn memtable(&self, bytes: u64) -> LoggedMemtable {
        LoggedMemtable { list: MemList::with_filter(&self.chunks, bytes), first_log: FirstLog::default() }
    }

    fn held_bytes(&self) -> u64 {
        self.chunks.held_bytes()
    }

    fn stage(&self) -> &S {
        &self.stage
    }

    fn mend(tree: &LeveledTree<Self>) -> Result<()> {
        tree.buffer.log.mend(tree)
    }

    fn log(tree: &LeveledTree<Self>, group: &Group<'_>) -> Result<()> {
        tree.log_with_retry(group)
    }

    fn make_ready(&self, manifest: &Manifest) {
        self.log.make_ready(manifest);
    }

    fn rotate(&self) -> Result<()> {
        self.log.rotate()
    }

    fn sync(tree: &LeveledTree<Self>) -> Result<()> {
        let log = &tree.buffer.log;
        log.sync().inspect_err(|_| log.try_to_mend(tree))
    }

    fn forgotten(tree: &LeveledTree<Self>, memtable: &LoggedMemtable) -> Vec<Edit> {
        vec![Edit::LogNumber(tree.first_log_after(memtable))]
    }

    fn forget(&self, manifest: &Manifest) -> Result<()> {
        self.log.drop_old(manifest)
    }

    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(&Marks) -> Result<T>) -> Result<T> {
        self.log.with_marked(marks, then)
    }

    fn check(&self, manifest: &Manifest, report: &mut CheckReport) -> Result<()> {
        report.problems.extend(self.log.check(manifest)?.into_iter().map(|p| format!("log: {p}")));
        Ok(())
    }

    fn fill_stats(tree: &LeveledTree<Self>, stats: &mut Stats) {
        stats.durability = durability(tree.pool.is_some(), tree.core.options.sync).into();
        stats.log = tree.buffer.log.describe().into();
        if tree.pool.is_none() {
            stats.media = "no persistent memory; the log lies in files".into();
        }
    }

    fn close(tree: &LeveledTree<Self>) -> Result<()> {
        tree.buffer.log.close(tree)
    }
}
