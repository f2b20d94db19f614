//! Repairing a database of levels under logged memtables: its runs, and what engines keep in the pool beside
//! them.
//!
//! The whole parts of logs are replayed over that and flushed; then the pool is made again. Nothing old is
//! removed before its replacement is durable.

use std::sync::Arc;

use terrace_base::{Error, Result};

use super::LoggedMemtables;
use crate::commit_log::{Gathered, LogHome, Opened, gather_logs, rebuild};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::leveled::repair::{PlacedRun, gather_runs, new_state};
use crate::leveled::{LeveledTree, Stage, table_options};
use crate::manifest::{Identity, State};
use crate::options::LsmOptions;
use crate::salvage::Salvage;

/// Repairs the database in the view that `base` works in. `gather` writes what runs and logs do not hold into
/// tables, beside the logs and runs that it receives; `assemble` then assembles the engine from its opened
/// parts.
pub(crate) fn repair<S: Stage>(
    mut base: Salvage,
    home: LogHome,
    levels: &LsmOptions,
    gather: impl FnOnce(
        &mut Salvage,
        &Identity,
        Option<&State>,
        Option<&Gathered>,
        &mut Vec<PlacedRun>,
    ) -> Result<()>,
    assemble: impl FnOnce(
        Arc<Core>,
        Opened,
        Option<&Gathered>,
        &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Arc<LeveledTree<LoggedMemtables<S>>>>,
) -> Result<Salvage> {
    base.options = table_options(&base.core.options, levels);
    let (known, mut identity) = base.begin(home.engine)?;
    if known.is_none() {
        home.note_found(&base.core, &mut identity)?;
    }
    let mut runs = gather_runs(&mut base, known.as_ref())?;
    let on_pm = home.is_on_pm(&identity);
    let gathered = on_pm.then(|| gather_logs(&mut base, &identity, known.as_ref())).transpose()?;
    gather(&mut base, &identity, known.as_ref(), gathered.as_ref(), &mut runs)?;
    let state = new_state(&base, identity, runs, known, gathered.as_ref())?;
    let core = base.core.clone();
    rebuild(base, state, gathered.as_ref(), home.beside, |opened, damaged| {
        let tree = assemble(core, opened, gathered.as_ref(), damaged)?;
        let flush = || tree.rotate().and_then(|()| tree.wait_until_flushed());
        tree.jobs.closed_unless(flush().and_then(|()| tree.forget_logs()))?;
        tree.close()
    })
}
