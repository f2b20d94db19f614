//! Opening and creating: the manifest says which tables there are and where the log lies.

use std::sync::Arc;

use arc_swap::ArcSwap;
use terrace_base::{Error, Result};
use terrace_pmem::{Granularity, Pool};

use super::{Lsm, MemTable, Readable};
use crate::background::Background;
use crate::commit_log::{CommitLog, Gathered, LOG_ROOTS, Policy};
use crate::core::Core;
use crate::core::engine::Engine;
use crate::levels::Levels;
use crate::levels::run::Runs;
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
    let (manifest, pool, how) = match manifest::locate(&*core.fs, &core.dir)? {
        Some(_) => open_existing(&core)?,
        None => create(&core)?,
    };
    let lsm = assemble_around(core, manifest, pool, how, None, &mut Err)?;
    lsm.verify_pool(0);
    let last = lsm.last_seq();
    Ok((lsm, last))
}

/// How the database was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    New,
    Closed,
    Crashed,
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

/// More than this is flushed, and not copied to another log.
const COPY_BYTES: u64 = 4 << 20;

/// Memtables lie in DRAM, so everything is handed to the system at once; what a flush writes is shown when all of it is
/// there.
fn log_policy(memtable_bytes: u64) -> Policy {
    Policy { buffer_bytes: 0, each_complete: false, copy_bytes: COPY_BYTES.min(memtable_bytes / 2) }
}

/// Wires the engine around what has been opened, and brings it to rest. For a repair: with logs that lie elsewhere,
/// and with a say in what becomes of damaged ones.
pub(super) fn assemble_around(
    core: Arc<Core>,
    manifest: Manifest,
    pool: Option<Pool>,
    found: Found,
    gathered: Option<&Gathered>,
    damaged: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Arc<Lsm>> {
    if let Some(pool) = &pool {
        pool::note(&manifest, pool);
    }
    let state = manifest.state();
    let runs = Runs::new(&core, &manifest)?;
    let levels = Levels::new(&state, |number| runs.get(number))?;
    let emulated = match &pool {
        Some(_) => pool::emulated(&core, &manifest.state().identity)?,
        None => None,
    };
    let memtable_bytes = core.options.lsm.memtable_bytes;
    // A log is a little shorter than the memtable's nodes, but must not take most of a small pool.
    let most = pool.as_ref().map_or(0, |pool| pool.max_size() / 8);
    let log_bytes = (memtable_bytes + memtable_bytes / 16 + 4096).min(most);
    let in_pool = pool.as_ref().map(|pool| (pool, log_bytes));
    let log = CommitLog::new(core.clone(), &manifest, in_pool, log_policy(memtable_bytes));
    log.open_in_pool()?;
    let readable = Readable { memtables: vec![MemTable::new(memtable_bytes)], levels: Arc::new(levels) };
    let slots = core.options.background_threads.saturating_sub(1).max(1);
    let jobs = Background::new(core.clone(), slots);
    let wired = Lsm {
        me: std::sync::Weak::new(),
        policy: super::policy(&core.options.lsm),
        core,
        pool,
        manifest,
        runs,
        readable: ArcSwap::from_pointee(readable),
        changing: Default::default(),
        log,
        applied: Default::default(),
        flushing: Default::default(),
        choosing: Default::default(),
        l0_tables: Default::default(),
        debt_bytes: Default::default(),
        holds_garbage: Default::default(),
        room: Default::default(),
        jobs,
        opened: Default::default(),
        emulated,
    };
    let lsm = Arc::new_cyclic(|me| Lsm { me: me.clone(), ..wired });
    lsm.note_load(&lsm.readable().levels.clone());
    lsm.settle_memory();
    let replayed = lsm.recover(found, gathered, damaged)?;
    let _ = lsm.opened.set(match found {
        Found::New => "created a new database".into(),
        found => {
            let how = if found == Found::Closed { "a clean shutdown" } else { "a crash" };
            format!("after {how} replayed {} groups of {} logs", replayed.groups, replayed.logs)
        }
    });
    Ok(lsm)
}
