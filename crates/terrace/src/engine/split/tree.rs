//! The engine `split` as a sort of `engine/pm`: an SPTree over all keys, and versions on the SSD.

use std::sync::Arc;

use terrace_base::Result;
use terrace_index::{SpOptions, SpTree};
use terrace_pmem::Pool;

use super::home::{self, Ssd};
use crate::core::Core;
use crate::engine::pm::PmEngine;
use crate::manifest::{Identity, Manifest};
use crate::options::EngineKind;

/// The root of the tree; its top layer has its own, with `.top` appended.
const ROOT: &str = "split.index";

/// The engine.
#[derive(Debug)]
pub(crate) struct Split;

fn options(core: &Core) -> SpOptions {
    SpOptions {
        leaf_entries: core.options.split.leaf_entries,
        executor: Some(core.env.executor.clone()),
        ..SpOptions::default()
    }
}

impl PmEngine for Split {
    const KIND: EngineKind = EngineKind::Split;
    const ROOTS: &'static [&'static str] = &[ROOT, "split.index.top"];
    const HEADER_ROOT: &'static str = "split.records";
    type Index = SpTree;
    type Home = Ssd;

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

    fn open(pool: &Pool, core: &Core) -> Result<SpTree> {
        SpTree::open(pool, ROOT, &options(core))
    }
}
