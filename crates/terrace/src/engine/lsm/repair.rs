//! Bringing back all that is not itself damaged.
//!
//! [`leveled`](crate::leveled) says which runs there are and what the logs hold. Logs are replayed as far as they are whole,
//! and flushed; then the pool is made anew. Nothing old is removed before what replaces it is durable.

use terrace_base::{Error, Result};

use super::open;
use crate::commit_log::{Found, Gathered, Opened, gather_logs};
use crate::core::engine::Engine;
use crate::leveled::{gather_runs, new_state};
use crate::manifest::{Identity, Manifest, State};
use crate::options::EngineKind;
use crate::pool;
use crate::salvage::Salvage;

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(mut base: Salvage) -> Result<Salvage> {
    base.options = super::table_options(&base.core.options);
    let (known, mut identity) = base.begin(EngineKind::Lsm)?;
    if known.is_none() {
        note_place(&base, &mut identity)?;
    }
    let runs = gather_runs(&mut base, known.as_ref())?;
    let on_pm = open::log_home(&base.core).is_on_pm(&identity);
    let gathered = on_pm.then(|| gather_logs(&mut base, &identity, known.as_ref())).transpose()?;
    let state = new_state(&base, identity, runs, known)?;
    finish(base, state, gathered)
}

/// Notes where the log of a database lies whose manifest tells nothing any more: in the pool, if there is one.
fn note_place(base: &Salvage, identity: &mut Identity) -> Result<()> {
    let core = &base.core;
    let (path, _) = pool::request(core, identity)?;
    open::log_home(core).note(identity, core.env.pm.exists(&path)?);
    Ok(())
}

/// Makes the new manifest, brings what logs hold into tables, and makes the pool anew.
fn finish(mut base: Salvage, state: State, gathered: Option<Gathered>) -> Result<Salvage> {
    let core = base.core.clone();
    let identity = state.identity.clone();
    let tables = state.tables.size();
    let manifest = Manifest::rebuild(core.fs.clone(), &core.dir, state)?;
    let in_pool = gathered.is_some();
    let mut damaged = |damage: Error| {
        if damage.is_of_another_version() {
            return Err(damage);
        }
        if in_pool {
            base.pool_aside.get_or_insert(damage.to_string());
        }
        base.damaged_log(&damage);
        Ok(())
    };
    let opened = Opened { manifest, pool: None, found: Found::Crashed };
    let lsm = open::assemble(core.clone(), opened, gathered.as_ref(), &mut damaged)?;
    lsm.rotate()?;
    lsm.wait_until_flushed()?;
    lsm.forget_logs()?;
    base.did(format!("the manifest names {tables} tables; what logs held is in tables, too"));
    lsm.close()?;
    if in_pool {
        let (path, media) = pool::request(&core, &identity)?;
        core.env.pm.remove(&path)?;
        let pool = core.env.pm.create(&path, &pool::pool_options(&core, media))?;
        pool::set_owner(&pool, &identity)?;
        pool.close()?;
        base.did("made the pool anew");
    }
    Ok(base)
}
