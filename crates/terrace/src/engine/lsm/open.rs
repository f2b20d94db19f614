//! Opening and creating: the manifest says which tables there are and where the log lies.

use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_pmem::{Granularity, Pool};

use super::Lsm;
use crate::commit_log::{Gathered, LOG_ROOTS};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::leveled::logged::LoggedMemtables;
use crate::leveled::{Found, LeveledTree, Parts};
use crate::manifest::{self, Identity, Manifest};
use crate::options::{EngineKind, LogPlace, PoolChoice};
use crate::pool::{self, MEDIA, MEMORY};
use crate::tables::refuse_missing;

/// The identity's name for where the log lies, and the values.
const LOG: &str = "lsm.log";
const ON_PM: &str = "pm";
const IN_FILES: &str = "ssd";

/// Opens or creates the database in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    let opened = match manifest::locate(&*core.fs, &core.dir)? {
        Some(_) => open_existing(&core)?,
        None => create(&core)?,
    };
    let lsm = assemble(core, opened, None, &mut Err)?;
    lsm.verify_pool(0);
    let last = lsm.last_seq();
    Ok((lsm, last))
}

/// Makes a database: the pool, where there is to be one, then the manifest, then the pool's owner and the first file
/// number. Cut short anywhere it is begun again: there is nothing in it yet.
fn create(core: &Core) -> Result<(Manifest, Option<Pool>, Found)> {
    if !core.options.create_if_missing || core.options.read_only {
        return Err(Error::invalid(format!("there is no database in {}", core.dir.display())));
    }
    let mut identity = pool::new_identity(&core.options, EngineKind::Lsm);
    let pool = place_log(core, &mut identity)?;
    let manifest = Manifest::create(core.fs.clone(), &core.dir, identity)?;
    begin(manifest, pool)
}

/// Finds out where the log is to lie and makes the pool for it, if that is where.
pub(super) fn place_log(core: &Core, identity: &mut Identity) -> Result<Option<Pool>> {
    let asked = core.options.lsm.log;
    let pool = if asked == LogPlace::Ssd { None } else { Some(pool::fresh(core, identity, &LOG_ROOTS)?) };
    if let Some(pool) = pool {
        if pool.granularity() != Granularity::Page {
            note_place(identity, true);
            return Ok(Some(pool));
        }
        drop(pool);
        // An ordinary file is no place for a log: files are.
        let (path, _) = pool::request(core, identity)?;
        core.env.pm.remove(&path)?;
        if asked == LogPlace::Pm {
            return Err(Error::invalid(format!("{} is not on persistent memory", path.display())));
        }
    }
    note_place(identity, false);
    Ok(None)
}

/// Writes down whether the log lies in the pool; where it does not, there is none.
pub(super) fn note_place(identity: &mut Identity, on_pm: bool) {
    if on_pm {
        identity.options.insert(MEDIA.into(), MEMORY.into());
    } else {
        identity.options.remove("pool.path");
        identity.options.remove("pool.emulated");
    }
    identity.options.insert(LOG.into(), if on_pm { ON_PM } else { IN_FILES }.into());
}

fn begin(manifest: Manifest, pool: Option<Pool>) -> Result<(Manifest, Option<Pool>, Found)> {
    if let Some(pool) = &pool {
        pool::note(&manifest, pool);
        pool::set_owner(pool, &manifest.state().identity)?;
    }
    manifest.take_numbers(1);
    manifest.apply(&[])?;
    Ok((manifest, pool, Found::New))
}

/// Whether the log of the database `identity` lies in its pool.
pub(super) fn is_on_pm(identity: &Identity) -> bool {
    identity.options.get(LOG).is_some_and(|place| place == ON_PM)
}

fn open_existing(core: &Core) -> Result<(Manifest, Option<Pool>, Found)> {
    let manifest = Manifest::open(core.fs.clone(), &core.dir)?;
    let identity = manifest.state().identity.clone();
    if identity.engine != EngineKind::Lsm.name() {
        return Err(Error::invalid(format!("this database belongs to engine {}", identity.engine)));
    }
    if core.options.read_only && !manifest.is_sealed() {
        return Err(Error::NotClosed { path: core.dir.clone() });
    }
    let on_pm = is_on_pm(&identity);
    match (core.options.lsm.log, on_pm) {
        (LogPlace::Pm, false) => {
            return Err(Error::invalid("this database was created with its log in files"));
        }
        (LogPlace::Ssd, true) => return Err(Error::invalid("this database was created with its log on PM")),
        _ => {}
    }
    if manifest.state().next_file == 1 {
        let pool = if on_pm { Some(pool::fresh(core, &identity, &LOG_ROOTS)?) } else { None };
        return begin(manifest, pool);
    }
    refuse_missing(core, &manifest)?;
    let closed = if manifest.is_sealed() { Found::Closed } else { Found::Crashed };
    if !on_pm {
        remove_leftover_pool(core)?;
        return Ok((manifest, None, closed));
    }
    match pool::open(core, &manifest)? {
        pool::Found::Closed(pool) => Ok((manifest, Some(pool), closed)),
        pool::Found::Crashed(pool) => Ok((manifest, Some(pool), Found::Crashed)),
        pool::Found::Lost => {
            Err(Error::invalid("a database with its log on PM has no pool in an ordinary file"))
        }
    }
}

/// A pool in the database's own directory that no log lies in is the rest of a creation that was cut off.
fn remove_leftover_pool(core: &Core) -> Result<()> {
    let path = core.dir.join(pool::POOL_NAME);
    let mine = core.options.pool == PoolChoice::Auto && !core.options.read_only;
    if mine && core.env.pm.exists(&path)? { core.env.pm.remove(&path) } else { Ok(()) }
}

/// Wires the engine around what has been opened, and brings it to rest. For a repair: with logs that lie elsewhere,
/// and with a say in what becomes of damaged ones.
pub(super) fn assemble(
    core: Arc<Core>,
    (manifest, pool, found): (Manifest, Option<Pool>, Found),
    gathered: Option<&Gathered>,
    damaged: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Arc<Lsm>> {
    if let Some(pool) = &pool {
        pool::note(&manifest, pool);
    }
    let options = &core.options;
    let buffer = LoggedMemtables::open(&core, &manifest, pool.as_ref(), options.lsm.memtable_bytes, ())?;
    let (settings, policy) = (super::settings(options), super::policy(&options.lsm));
    let lsm = LeveledTree::new(core.clone(), Parts { settings, policy, manifest, pool, buffer })?;
    lsm.recover(found, gathered, damaged)?;
    Ok(lsm)
}
