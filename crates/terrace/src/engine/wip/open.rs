//! Opening and creating: the manifest says which buckets and tables exist and where the log lies.

use std::sync::Arc;

use terrace_base::{Error, Result};

use super::bucket::{Bucket, Placed, newest_first};
use super::buckets::Buckets;
use super::memtable::{BucketMemtable, Memory};
use super::recover::Replaying;
use super::{Parts, Wip, logging};
use crate::commit_log::{Gathered, LogHome, Opened, PoolContents};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::levels::run::Runs;
use crate::manifest::{Edit, State};
use crate::options::EngineKind;
use crate::pool;

/// The log's place.
pub(super) fn log_home(core: &Core) -> LogHome {
    let first = || vec![Edit::SetBucket { lower: Vec::new(), flushed: 0 }];
    LogHome { engine: EngineKind::Wip, asked: core.options.wip.log, first, beside: PoolContents::NOTHING }
}

/// Opens or creates the database in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    let opened = log_home(&core).open(&core)?;
    let wip = assemble(core, opened, Replaying::Known, None, &mut Err)?;
    if wip.pool.is_some() {
        wip.jobs.tidy_in_pieces(&wip.me, |wip, from| pool::verify(wip.pool.as_ref()?, from));
    }
    let last = wip.last_seq();
    Ok((wip, last))
}

/// Assembles the engine from its opened parts, and brings it to rest. For a repair: with logs that lie
/// elsewhere, and with a function that decides about damaged ones.
pub(super) fn assemble(
    core: Arc<Core>,
    Opened { manifest, pool, state }: Opened,
    replaying: Replaying,
    gathered: Option<&Gathered>,
    damaged: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Arc<Wip>> {
    if let Some(pool) = &pool {
        pool::note(&manifest, pool);
    }
    let log = logging::open(&core, &manifest, pool.as_ref())?;
    let wip = Wip::new(core, Parts { manifest, pool, log })?;
    wip.jobs.closed_unless(wip.recover(state, replaying, gathered, damaged))?;
    Ok(wip)
}

/// The buckets that `state` names, with the tables of each and an empty memtable.
pub(super) fn buckets(state: &State, runs: &Runs, memory: &Arc<Memory>) -> Result<Buckets> {
    let lowers: Vec<&Vec<u8>> = state.buckets.keys().collect();
    let mut tables: Vec<Vec<Placed>> = vec![Vec::new(); lowers.len()];
    for (number, named) in &state.tables {
        let place = lowers.partition_point(|lower| **lower <= named.meta.smallest);
        let own = place.checked_sub(1).and_then(|place| tables.get_mut(place)).ok_or_else(|| {
            Error::invalid("the manifest names no bucket that begins at the empty key (try `repair`)")
        })?;
        own.push(Placed { run: runs.get(*number)?, level: named.level as usize });
    }
    if lowers.first().is_none_or(|first| !first.is_empty()) {
        return Err(Error::invalid(
            "the manifest names no bucket that begins at the empty key (try `repair`)",
        ));
    }
    let mut all = Vec::with_capacity(lowers.len());
    for (at, tables) in tables.into_iter().enumerate() {
        let (lower, upper) = (lowers[at], lowers.get(at + 1).copied());
        let active = BucketMemtable::new(memory, (lower, upper.map(|upper| &**upper)), false);
        all.push(Bucket::new(lower.clone(), upper.cloned(), active.into(), newest_first(tables)));
    }
    Ok(Buckets::new(all))
}
