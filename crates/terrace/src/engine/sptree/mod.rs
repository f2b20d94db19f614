//! The engine `sptree`: everything in persistent memory, behind an SPTree (Spot-On, chapter 4), with ranges.
//!
//! What it has in common with other engines of its sort is in `engine/pm`. `docs/engines/sptree.md` tells the design, its
//! parameters and what it is good and bad at.

use std::ops::Bound;

use terrace_base::Result;
use terrace_index::{OrderedIndex, ScanBatch, SpOptions, SpTree, Still};
use terrace_pmem::{Kind as PmKind, Marks, Pool};

use super::pm::KeyIndex;
use crate::core::Core;
use crate::options::EngineKind;

/// The root of the tree; its top layer has another, with `.top` behind.
const ROOT: &str = "sptree.index";

/// An SPTree as the index of an engine.
#[derive(Debug)]
pub(crate) struct SptreeIndex {
    tree: SpTree,
    buffered: bool,
    read_only: bool,
}

/// Where a walk stands: behind this key, or at the end.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    after: Option<Vec<u8>>,
}

fn options(core: &Core) -> SpOptions {
    let asked = &core.options.sptree;
    SpOptions {
        buffered: asked.buffered && !core.options.read_only,
        filter_bits: asked.filter_bits,
        log_bytes: asked.log_bytes,
        leaf_entries: asked.leaf_entries,
        executor: Some(core.env.executor.clone()),
        ..SpOptions::default()
    }
}

impl KeyIndex for SptreeIndex {
    const KIND: EngineKind = EngineKind::Sptree;
    const ROOTS: &'static [&'static str] = &[ROOT, "sptree.index.top"];
    const HEADER_ROOT: &'static str = "sptree.records";
    const MOVES: &'static [PmKind] = SpTree::MOVES;
    type Cursor = Cursor;

    fn create(pool: &Pool, core: &Core) -> Result<()> {
        // Not closed: what a close saves is for the next session.
        SpTree::create(pool, ROOT, &options(core)).map(drop)
    }

    fn open(pool: &Pool, core: &Core) -> Result<Self> {
        let options = options(core);
        let read_only = core.options.read_only;
        Ok(SptreeIndex { buffered: options.buffered, read_only, tree: SpTree::open(pool, ROOT, &options)? })
    }

    /// What is in logs comes back into buffers as large as they can be, so nothing has to be put anywhere in the pool.
    fn open_to_salvage(pool: &Pool, core: &Core) -> Result<Self> {
        let leaf_entries = SpOptions::default().leaf_entries;
        let options = SpOptions { buffered: true, leaf_entries, ..options(core) };
        Ok(SptreeIndex { buffered: true, read_only: false, tree: SpTree::open(pool, ROOT, &options)? })
    }

    /// A leaf's slot is drained before the bitmap that makes it count. A write buffer's entry is durable with the log's
    /// record, before which nothing is drained.
    fn drains_first(&self) -> bool {
        !self.buffered
    }

    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        self.tree.get(key)
    }

    fn swap(&self, key: &[u8], word: u64) -> Result<Option<u64>> {
        self.tree.insert(key, word)
    }

    fn compare_exchange(
        &self,
        key: &[u8],
        old: Option<u64>,
        new: Option<u64>,
    ) -> Result<std::result::Result<(), Option<u64>>> {
        self.tree.compare_exchange(key, old, new)
    }

    fn remove(&self, key: &[u8]) -> Result<Option<u64>> {
        self.tree.remove(key)
    }

    fn walk(&self, cursor: &mut Cursor, limit: usize, out: &mut ScanBatch) -> Result<bool> {
        let from = cursor.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.tree.scan(from, false, limit, out)?;
        if let Some(last) = out.len().checked_sub(1) {
            cursor.after = Some(out.key(last).to_vec());
        }
        Ok(out.len() == limit)
    }

    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        self.tree.scan(from, reverse, limit, out)
    }

    fn len(&self) -> u64 {
        self.tree.len()
    }

    unsafe fn move_slot(&self, kind: PmKind, at: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        unsafe { self.tree.move_slot(kind, at) }
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.tree.mark(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.tree.check()
    }

    fn dram_bytes(&self) -> u64 {
        self.tree.dram_bytes()
    }

    fn pm_bytes(&self) -> u64 {
        self.tree.pm_bytes()
    }

    fn drain(&self) -> bool {
        self.tree.drain()
    }

    fn still(&self) -> Option<Still<'_>> {
        Some(self.tree.still())
    }

    fn rest(&self) -> Result<()> {
        if self.read_only { self.tree.rebuild() } else { self.tree.rest() }
    }

    fn close(&self) -> Result<()> {
        self.tree.close()
    }
}
