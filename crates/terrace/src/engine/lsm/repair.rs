//! Bringing back all that is not itself damaged.
//!
//! [`leveled`](crate::leveled) says which runs there are and what the logs hold. Logs are replayed as far as they are whole,
//! and flushed; then the pool is made anew. Nothing old is removed before what replaces it is durable.

use terrace_base::Result;

use super::open;
use crate::commit_log::{Beside, gather_logs, rebuild};
use crate::core::engine::Engine;
use crate::leveled::{gather_runs, new_state, table_options};
use crate::options::EngineKind;
use crate::salvage::Salvage;

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(mut base: Salvage) -> Result<Salvage> {
    base.options = table_options(&base.core.options, &base.core.options.lsm);
    let (known, mut identity) = base.begin(EngineKind::Lsm)?;
    if known.is_none() {
        open::log_home(&base.core).note_found(&base.core, &mut identity)?;
    }
    let runs = gather_runs(&mut base, known.as_ref())?;
    let on_pm = open::log_home(&base.core).is_on_pm(&identity);
    let gathered = on_pm.then(|| gather_logs(&mut base, &identity, known.as_ref())).transpose()?;
    let state = new_state(&base, identity, runs, known)?;
    let core = base.core.clone();
    rebuild(base, state, gathered.as_ref(), Beside::NOTHING, |opened, damaged| {
        let lsm = open::assemble(core, opened, gathered.as_ref(), damaged)?;
        lsm.rotate()?;
        lsm.wait_until_flushed()?;
        lsm.forget_logs()?;
        lsm.close()
    })
}
