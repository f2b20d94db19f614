//! The engine `sptree`: everything in persistent memory, behind an SPTree (Spot-On, chapter 4), with ranges.
//!
//! `engine/pm` has what it shares with other engines of its sort. `docs/engines/sptree.md` describes the
//! design, its parameters, its strengths and its weaknesses.

use std::ops::Bound;
use std::sync::Arc;

use terrace_base::Result;
use terrace_index::{OrderedIndex, ScanBatch, SpOptions, SpTree, Still};
use terrace_pmem::{Kind as PmKind, Pool};

use super::pm::{KeyIndex, Nowhere};
use crate::core::Core;
use crate::manifest::{Identity, Manifest};
use crate::options::EngineKind;

/// The root of the tree; its top layer has its own, with `.top` appended.
const ROOT: &str = "sptree.index";

/// The position of a walk: after this key, or at the end.
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

impl KeyIndex for SpTree {
    const KIND: EngineKind = EngineKind::Sptree;
    const ROOTS: &'static [&'static str] = &[ROOT, "sptree.index.top"];
    const HEADER_ROOT: &'static str = "sptree.records";
    const MOVES: &'static [PmKind] = SpTree::MOVES;
    type Home = Nowhere;
    type Cursor = Cursor;

    fn create_home(_: &Core, _: &mut Identity) -> Result<()> {
        Ok(())
    }

    fn open_home(_: &Arc<Core>, _: &Arc<Manifest>, _: Option<&Pool>) -> Result<Nowhere> {
        Ok(Nowhere)
    }

    fn create(pool: &Pool, core: &Core) -> Result<()> {
        // Not closed: what a close saves is for the next session.
        SpTree::create(pool, ROOT, &options(core)).map(drop)
    }

    fn open(pool: &Pool, core: &Core) -> Result<Self> {
        SpTree::open(pool, ROOT, &options(core))
    }

    /// The logs' contents return into buffers as large as they can be, so nothing has to be allocated in the
    /// pool.
    fn open_to_salvage(pool: &Pool, core: &Core) -> Result<Self> {
        let leaf_entries = SpOptions::default().leaf_entries;
        SpTree::open(pool, ROOT, &SpOptions { buffered: true, leaf_entries, ..options(core) })
    }

    /// A leaf's slot is drained before the bitmap that makes it valid. A write buffer's entry is durable with
    /// the log's record, and nothing is drained before that.
    fn drains_first(&self) -> bool {
        !self.is_buffered()
    }

    fn walk(&self, cursor: &mut Cursor, limit: usize, out: &mut ScanBatch) -> Result<bool> {
        let from = cursor.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        OrderedIndex::scan(self, from, false, limit, out)?;
        if let Some(last) = out.len().checked_sub(1) {
            cursor.after = Some(out.key(last).to_vec());
        }
        Ok(out.len() == limit)
    }

    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        OrderedIndex::scan(self, from, reverse, limit, out)
    }

    unsafe fn move_slot(&self, kind: PmKind, at: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        unsafe { SpTree::move_slot(self, kind, at) }
    }

    fn drain(&self) -> bool {
        SpTree::drain(self)
    }

    fn still(&self) -> Option<Still<'_>> {
        Some(SpTree::still(self))
    }

    fn rest(&self, core: &Core) -> Result<()> {
        if core.options.read_only { self.rebuild() } else { SpTree::rest(self) }
    }
}
