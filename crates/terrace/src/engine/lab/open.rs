//! Opening and creating: as for `lsm` with its log in the pool, where the value tree lies, too.

use std::sync::Arc;

use terrace_base::{Error, Result};

use super::layout::ROOTS;
use super::tree::ValueTree;
use super::{Lab, Values, witness};
use crate::commit_log::{Gathered, LogHome, Opened, PoolContents};
use crate::compaction::leveled::LeastOverlap;
use crate::core::Core;
use crate::core::engine::Engine;
use crate::leveled::logged::{self, LoggedMemtables};
use crate::leveled::{LeveledTree, Parts, policy, settings};
use crate::options::{EngineKind, LogPlace};
use crate::pool;

/// What lies in the pool beside logs.
const IN_POOL: PoolContents =
    PoolContents { is_needed: true, roots: &ROOTS, fill: ValueTree::create, is_used: witness::is_used };

/// The log's place: in the pool.
pub(super) fn log_home() -> LogHome {
    LogHome { engine: EngineKind::Lab, asked: LogPlace::Auto, first: Vec::new, beside: IN_POOL }
}

/// Opens or creates the database in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    logged::open(core, &log_home(), assemble, prepare)
}

/// Builds what lies only in DRAM after the first answers: the filter, and the stale bytes of each run.
fn prepare(lab: &Lab) {
    lab.tidy(|lab| {
        let Some(values) = &lab.stage().0 else { return Ok(()) };
        values.fit_filter();
        if !lab.core().options.read_only {
            values.hints.gather(&|run| lab.entry_bytes(run));
        }
        Ok(())
    });
}

/// Assembles the engine from its opened parts, and brings it to rest. In a repair there is no pool: logs lie
/// elsewhere, and the tree's contents are in tables.
pub(super) fn assemble(
    core: Arc<Core>,
    Opened { manifest, pool, state }: Opened,
    gathered: Option<&Gathered>,
    damaged: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Arc<Lab>> {
    let options = &core.options;
    let mut values = None;
    if let Some(pool) = &pool {
        pool::note(&manifest, pool);
        values = Some(ValueTree::open(&core, pool, &options.lab)?);
    }
    let levels = &options.lab.levels;
    let buffer =
        LoggedMemtables::open(&core, &manifest, pool.as_ref(), levels.memtable_bytes, Values(values))?;
    let (settings, policy) = (settings(options, levels), policy(levels, LeastOverlap));
    let lab =
        LeveledTree::new(core.clone(), Parts { settings, policy, manifest, pool, buffer, lists: None })?;
    lab.recover(state, gathered, damaged)?;
    Ok(lab)
}
