//! Opening and creating: as for `lsm` with its log in the pool, where the lists lie, too.

use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_index::pmlist::{Lists, Style};
use terrace_pmem::Pool;

use super::Tlsm;
use crate::commit_log::{Gathered, LogHome, Opened, PoolContents};
use crate::compaction::leveled::{LeastOverlap, Tiering};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::leveled::logged::{self, LoggedMemtables};
use crate::leveled::{LeveledTree, Parts, policy, settings};
use crate::levels::lists::{ListOptions, ListStore};
use crate::options::{EngineKind, ListDesign, LogPlace, LsmOptions, TieringKind, TlsmOptions};
use crate::pool;

/// What lies in the pool beside logs: lists, which the manifest names.
const IN_POOL: PoolContents = PoolContents {
    is_needed: true,
    roots: &[],
    fill: |_| Ok(()),
    is_used: |pool| !Lists::new(pool, 0).heads().is_empty(),
};

/// The share of the pool that neither lists nor logs may use.
const SPARE_SHARE: u64 = 16;

/// The log's place: in the pool.
pub(super) fn log_home() -> LogHome {
    LogHome { engine: EngineKind::Tlsm, asked: LogPlace::Auto, first: Vec::new, beside: IN_POOL }
}

/// Opens or creates the database in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    logged::open(core, &log_home(), assemble, |_| {})
}

/// Assembles the engine from its opened parts, and brings it to rest. In a repair there is no pool: logs lie
/// elsewhere, and the lists' contents are in tables.
pub(super) fn assemble(
    core: Arc<Core>,
    Opened { manifest, pool, state }: Opened,
    gathered: Option<&Gathered>,
    damaged: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Arc<Tlsm>> {
    let options = &core.options;
    let levels = &options.tlsm.levels;
    // Before lists that the manifest does not name are freed: this refuses a manifest that has lost its end.
    let buffer = LoggedMemtables::open(&core, &manifest, pool.as_ref(), levels.memtable_bytes, ())?;
    let mut lists = None;
    if let Some(pool) = &pool {
        pool::note(&manifest, pool);
        let is_decided = core.options.read_only || manifest.try_decide()?;
        let store = lists_in(pool, &options.tlsm);
        lists = Some(ListStore::open(store, &manifest.state(), list_options(&options.tlsm), is_decided)?);
    }
    let (settings, policy) = (settings(options, levels), policy(levels, LeastOverlap));
    let parts = Parts { settings, policy, manifest, pool, buffer, lists };
    let tlsm = LeveledTree::new(core.clone(), parts)?;
    tlsm.recover(state, gathered, damaged)?;
    Ok(tlsm)
}

/// Lists in `pool`, with the room that they may take.
fn lists_in(pool: &Pool, options: &TlsmOptions) -> Lists {
    let (extent_bytes, levels) = (pool.extent_bytes(), options.levels.clone());
    let most = if options.list_bytes > 0 { options.list_bytes } else { u64::MAX };
    Lists::within(pool, move |bytes| list_room(bytes, extent_bytes, &levels).min(most))
}

fn list_options(options: &TlsmOptions) -> ListOptions {
    let style = match options.design {
        ListDesign::Ps => Style { each: true, copies: true },
        ListDesign::Bac => Style { each: true, copies: false },
        ListDesign::Seqcopy => Style { each: false, copies: false },
    };
    let tiering = match options.tiering {
        TieringKind::None => Tiering::None,
        TieringKind::Leveled => Tiering::Leveled(options.pm_levels),
        TieringKind::Lru => Tiering::Lru,
    };
    ListOptions { style, tiering, filter_bits: options.levels.filter_bits_per_key }
}

/// The bytes that lists may take in a pool of `bytes`: logs of all memtables, twice, fit beside them.
fn list_room(bytes: u64, extent_bytes: u64, levels: &LsmOptions) -> u64 {
    let log = levels.memtable_bytes + levels.memtable_bytes / 16 + 2 * extent_bytes;
    let logs = 2 * (levels.memtables as u64 + 1) * log;
    bytes - (bytes / SPARE_SHARE + logs).min(bytes / 2)
}
