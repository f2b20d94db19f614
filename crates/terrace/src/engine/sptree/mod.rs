//! The engine `sptree`: everything in persistent memory, behind an SPTree (Spot-On, chapter 4), with ranges.
//!
//! `engine/pm` has what it shares with other engines of its sort. `docs/engines/sptree.md` describes the
//! design, its parameters, its strengths and its weaknesses.

use std::sync::Arc;

use terrace_base::Result;
use terrace_index::{SpOptions, SpTree};
use terrace_pmem::Pool;

use super::pm::{Nowhere, PmEngine};
use crate::core::Core;
use crate::manifest::{Identity, Manifest};
use crate::options::EngineKind;

/// The root of the tree; its top layer has its own, with `.top` appended.
const ROOT: &str = "sptree.index";

/// The engine.
#[derive(Debug)]
pub(crate) struct Sptree;

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

impl PmEngine for Sptree {
    const KIND: EngineKind = EngineKind::Sptree;
    const ROOTS: &'static [&'static str] = &[ROOT, "sptree.index.top"];
    const HEADER_ROOT: &'static str = "sptree.records";
    type Index = SpTree;
    type Home = Nowhere;

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

    fn open(pool: &Pool, core: &Core) -> Result<SpTree> {
        SpTree::open(pool, ROOT, &options(core))
    }

    /// The logs' contents return into buffers as large as they can be, so nothing has to be allocated in the
    /// pool.
    fn open_to_salvage(pool: &Pool, core: &Core) -> Result<SpTree> {
        let leaf_entries = SpOptions::default().leaf_entries;
        SpTree::open(pool, ROOT, &SpOptions { buffered: true, leaf_entries, ..options(core) })
    }
}
