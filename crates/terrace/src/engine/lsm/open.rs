//! Opening and creating: the manifest says which tables exist and where the log lies.

use std::sync::Arc;

use terrace_base::{Error, Result};

use super::Lsm;
use crate::commit_log::{Gathered, LogHome, Opened, PoolContents};
use crate::compaction::leveled::LeastOverlap;
use crate::core::Core;
use crate::core::engine::Engine;
use crate::leveled::logged::{self, LoggedMemtables};
use crate::leveled::{LeveledTree, Parts, policy, settings};
use crate::options::EngineKind;
use crate::pool;

/// The log's place.
pub(super) fn log_home(core: &Core) -> LogHome {
    let beside = PoolContents::NOTHING;
    LogHome { engine: EngineKind::Lsm, asked: core.options.lsm.log, first: Vec::new, beside }
}

/// Opens or creates the database in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    let home = log_home(&core);
    logged::open(core, &home, assemble, |_| {})
}

/// Assembles the engine from its opened parts, and brings it to rest. For a repair: with logs that lie
/// elsewhere, and with a function that decides about damaged ones.
pub(super) fn assemble(
    core: Arc<Core>,
    Opened { manifest, pool, state }: Opened,
    gathered: Option<&Gathered>,
    damaged: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Arc<Lsm>> {
    if let Some(pool) = &pool {
        pool::note(&manifest, pool);
    }
    let options = &core.options;
    let buffer = LoggedMemtables::open(&core, &manifest, pool.as_ref(), options.lsm.memtable_bytes, ())?;
    let (settings, policy) = (settings(options, &options.lsm), policy(&options.lsm, LeastOverlap));
    let lsm =
        LeveledTree::new(core.clone(), Parts { settings, policy, manifest, pool, buffer, lists: None })?;
    lsm.recover(state, gathered, damaged)?;
    Ok(lsm)
}
