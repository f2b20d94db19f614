//! The index of the engine `split`: an SPTree like that of the engine `sptree`, with its surroundings.

use std::ops::Bound;
use std::sync::Arc;

use terrace_base::Result;
use terrace_index::{OrderedIndex, PointIndex, ScanBatch, SpOptions, SpTree, Still, Wish};
use terrace_pmem::{Kind as PmKind, Marks, Pool};

use super::home::{self, Ssd};
use crate::core::Core;
use crate::engine::pm::KeyIndex;
use crate::manifest::{Identity, Manifest};
use crate::options::EngineKind;

/// The root of the tree; its top layer has its own, with `.top` appended.
const ROOT: &str = "split.index";

/// The tree.
#[derive(Debug)]
pub(crate) struct SplitTree(SpTree);

/// The position of a walk: after this key, or at the beginning.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    pub after: Option<Vec<u8>>,
}

fn options(core: &Core) -> SpOptions {
    SpOptions {
        leaf_entries: core.options.split.leaf_entries,
        executor: Some(core.env.executor.clone()),
        ..SpOptions::default()
    }
}

impl PointIndex for SplitTree {
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        self.0.get(key)
    }

    fn update(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        self.0.update(key, wish)
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.0.mark(marks)
    }

    fn check(&self) -> Result<Vec<String>> {
        self.0.check()
    }

    fn dram_bytes(&self) -> u64 {
        self.0.dram_bytes()
    }

    fn pm_bytes(&self) -> u64 {
        self.0.pm_bytes()
    }

    fn close(&self) -> Result<()> {
        self.0.close()
    }
}

impl KeyIndex for SplitTree {
    const KIND: EngineKind = EngineKind::Split;
    const ROOTS: &'static [&'static str] = &[ROOT, "split.index.top"];
    const HEADER_ROOT: &'static str = "split.records";
    const MOVES: &'static [PmKind] = SpTree::MOVES;
    type Home = Ssd;
    type Cursor = Cursor;

    fn create_home(core: &Core, identity: &mut Identity) -> Result<()> {
        home::create(core.fs(), &core.dir, identity)
    }

    fn open_home(core: &Arc<Core>, manifest: &Arc<Manifest>, pool: Option<&Pool>) -> Result<Ssd> {
        Ssd::open(core, manifest, pool)
    }

    fn create(pool: &Pool, core: &Core) -> Result<()> {
        // Not closed: what a close saves is for the next session.
        SpTree::create(pool, ROOT, &options(core)).map(drop)
    }

    fn open(pool: &Pool, core: &Core) -> Result<Self> {
        SpTree::open(pool, ROOT, &options(core)).map(SplitTree)
    }

    fn drains_first(&self) -> bool {
        true
    }

    fn walk(&self, cursor: &mut Cursor, limit: usize, out: &mut ScanBatch) -> Result<bool> {
        let from = cursor.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        OrderedIndex::scan(&self.0, from, false, limit, out)?;
        if let Some(last) = out.len().checked_sub(1) {
            cursor.after = Some(out.key(last).to_vec());
        }
        Ok(out.len() == limit)
    }

    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        OrderedIndex::scan(&self.0, from, reverse, limit, out)
    }

    unsafe fn move_slot(&self, kind: PmKind, at: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        unsafe { self.0.move_slot(kind, at) }
    }

    fn drain(&self) -> bool {
        self.0.drain()
    }

    fn still(&self) -> Option<Still<'_>> {
        Some(self.0.still())
    }

    fn rest(&self, core: &Core) -> Result<()> {
        if core.options.read_only { self.0.rebuild() } else { self.0.rest() }
    }
}
