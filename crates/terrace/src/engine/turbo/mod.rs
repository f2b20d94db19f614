//! The engine `turbo`: everything in persistent memory, behind a TurboHash table (Spot-On, chapter 3),
//! without key order.
//!
//! `engine/pm` has what it shares with other engines of its sort. `docs/engines/turbo.md` describes the
//! design, its parameters, its strengths and its weaknesses.

use std::ops::Bound;
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_index::{HashIndex, ScanBatch, ScanPosition, TurboHash, TurboHashOptions, kinds};
use terrace_pmem::{Kind as PmKind, Pool};

use super::pm::{KeyIndex, Nowhere, PmEngine};
use crate::core::Core;
use crate::manifest::{Identity, Manifest};
use crate::options::EngineKind;

/// The root of the table.
const ROOT: &str = "turbo.index";

/// The engine.
#[derive(Debug)]
pub(crate) struct Turbo;

impl PmEngine for Turbo {
    const KIND: EngineKind = EngineKind::Turbo;
    const ROOTS: &'static [&'static str] = &[ROOT];
    const HEADER_ROOT: &'static str = "turbo.records";
    type Index = TurboHash;
    type Home = Nowhere;

    fn create_home(_: &Core, _: &mut Identity) -> Result<()> {
        Ok(())
    }

    fn open_home(_: &Arc<Core>, _: &Arc<Manifest>, _: Option<&Pool>) -> Result<Nowhere> {
        Ok(Nowhere)
    }

    fn create(pool: &Pool, core: &Core) -> Result<()> {
        let asked = &core.options.turbo;
        let options = TurboHashOptions {
            shards: asked.shards,
            initial_buckets: asked.initial_buckets,
            probing_scope: asked.probing_scope,
            seed: core.env.hash_seed,
        };
        TurboHash::create(pool, ROOT, &options).map(drop)
    }

    fn open(pool: &Pool, _core: &Core) -> Result<TurboHash> {
        let mut table = TurboHash::open(pool, ROOT)?;
        table.drain_before_publishing();
        Ok(table)
    }
}

impl KeyIndex for TurboHash {
    const MOVES: &'static [PmKind] = &[kinds::TURBOHASH_PAIR];
    type Position = ScanPosition;

    fn drains_first(&self) -> bool {
        true
    }

    fn walk(&self, position: &mut ScanPosition, limit: usize, out: &mut ScanBatch) -> Result<bool> {
        self.scan_unordered(position, limit, out)?;
        Ok(!position.is_end())
    }

    fn scan(&self, _: Bound<&[u8]>, _: bool, _: usize, _: &mut ScanBatch) -> Result<()> {
        Err(Error::Unsupported { engine: Turbo::KIND.name(), operation: "iteration in the order of keys" })
    }

    unsafe fn move_slot(&self, _: PmKind, at: u64) -> Result<bool> {
        // SAFETY: the caller's promise; this engine's `MOVES` names only pairs.
        unsafe { self.move_record(at) }
    }

    fn drain(&self) -> bool {
        TurboHash::drain(self)
    }
}
