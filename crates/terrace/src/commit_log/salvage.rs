//! A repair's part for logs: what it recovers from them, and how it ends.

use terrace_base::{Error, Result};
use terrace_log::PmLog;
use terrace_pmem::Opened as Condition;

use super::pool::refutes;
use super::{Gathered, LOG_ROOTS, Opened, PoolContents, number_of};
use crate::manifest::{Identity, Manifest, State};
use crate::pool::{self, StartState};
use crate::salvage::Salvage;

/// Reads the logs in the pool as far as possible.
pub(crate) fn gather_logs(
    base: &mut Salvage,
    identity: &Identity,
    known: Option<&State>,
) -> Result<Gathered> {
    let core = base.core.clone();
    let (path, media) = pool::request(&core, identity)?;
    if !core.env.pm.exists(&path)? {
        base.lost("the pool is missing: writes since the last flush");
        return Ok(Gathered::default());
    }
    let (options, owner) = (pool::pool_options(&core, media), base.sought(identity));
    let pool = match pool::open_to_repair(&core, &path, &options, owner)? {
        Ok(pool) => pool,
        Err(e) => {
            base.pool_aside = Some(e.to_string());
            base.lost(format!("{e}: writes since the last flush"));
            return Ok(Gathered::default());
        }
    };
    if pool.opened() == Condition::Torn {
        base.leave_torn_pool();
        base.lost("the pool, which may be torn: writes since the last flush");
        return Ok(Gathered::default());
    }
    let doubts = pool::take_as_it_is(&pool, known.and_then(|state| state.pool));
    doubts.into_iter().for_each(|doubt| base.lost(doubt));
    if let (Some(state), None) = (known, &base.left) {
        match refutes(&pool, state.log_number) {
            Ok(found) => base.found_lost_end = found,
            Err(e) => base.pool_aside = Some(e.to_string()),
        }
    }
    let (mut logs, mut lacks_some) = (Vec::new(), false);
    for root in LOG_ROOTS {
        let opened = pool.root(root).and_then(|head| head.map(|head| PmLog::open(&pool, head)).transpose());
        match opened.map(|log| log.map(|log| (number_of(&log), log))) {
            Ok(None) => {}
            Ok(Some((Some(number), log))) => logs.push((number, log)),
            Ok(Some((None, _))) => {
                let what = format!("{root}: a log that does not begin");
                base.lost(format!("{what}, if anything was in it"));
                lacks_some = true;
                base.pool_aside = Some(what);
            }
            Err(e) if e.is_of_another_version() => return Err(e),
            Err(e) => {
                base.pool_aside = Some(e.to_string());
                base.lost(format!("{e}: the writes of one memtable"));
                lacks_some = true;
            }
        }
    }
    let mut gathered = Gathered::from_pool(&pool, logs.iter().map(|(number, log)| (*number, log)));
    gathered.lacks_some = lacks_some;
    Ok(gathered)
}

/// Writes a new manifest with `state`, has `replay` turn the logs' contents into tables, and makes the pool
/// again that held the `gathered` logs, with what lay `beside` them. `replay` receives what is opened, and a
/// function that decides about damaged logs.
pub(crate) fn rebuild(
    mut base: Salvage,
    state: State,
    gathered: Option<&Gathered>,
    beside: PoolContents,
    replay: impl FnOnce(Opened, &mut dyn FnMut(Error) -> Result<()>) -> Result<()>,
) -> Result<Salvage> {
    let core = base.core.clone();
    let (identity, tables) = (state.identity.clone(), state.tables.size());
    let manifest = Manifest::rebuild(core.fs.clone(), &core.dir, state)?;
    let mut damaged = |damage: Error| {
        if damage.is_of_another_version() {
            return Err(damage);
        }
        if gathered.is_some() {
            base.pool_aside.get_or_insert(damage.to_string());
        }
        base.damaged_log(&damage);
        Ok(())
    };
    replay(Opened { manifest, pool: None, state: StartState::Crashed }, &mut damaged)?;
    base.did(format!("the manifest names {tables} tables; what logs held is in tables, too"));
    if gathered.is_some() {
        let (path, media) = pool::request(&core, &identity)?;
        core.env.pm.remove(&path)?;
        let pool = core.env.pm.create(&path, &pool::pool_options(&core, media))?;
        (beside.fill)(&pool)?;
        pool::set_owner(&pool, &identity)?;
        pool.close()?;
        base.did("made the pool anew");
    }
    Ok(base)
}
