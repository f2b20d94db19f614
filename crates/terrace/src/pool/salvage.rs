//! How a repair treats the pool's place.

use std::path::{Path, PathBuf};

use terrace_base::{Error, ErrorKind, Result};
use terrace_pmem::{MediaRequest, Pool, PoolOptions, Profile};

use super::{POOL_NAME, anothers, is_anothers, is_own_place, is_unusable, recorded_path};
use crate::core::Core;
use crate::env::Env;
use crate::manifest::{Identity, Manifest};

/// The database whose pool is sought.
#[derive(Debug, Clone)]
pub(crate) struct Sought<'a> {
    pub identity: &'a Identity,
    /// Something other than the pool says which database this is.
    pub is_known: bool,
    /// A manifest records what the pool was created on.
    pub is_recorded: bool,
    /// Where a manifest says that its pool lies, if it is to say something else from now on.
    pub left_place: Option<PathBuf>,
}

/// Opens the pool in its place for a repair, which will replace it if it is unusable: that is the inner
/// error. The outer error says that the pool is not this database's to replace. If the identity is not known,
/// the pool is taken for this database's.
pub(crate) fn open_to_repair(
    core: &Core,
    path: &Path,
    options: &PoolOptions,
    sought: Sought<'_>,
) -> Result<Result<Pool>> {
    let Sought { identity, is_known, is_recorded, left_place } = sought;
    let elsewhere = !is_own_place(path, &core.dir);
    if is_known && is_anothers_at(core, path, options, identity).unwrap_or(false) {
        return match elsewhere {
            true => Err(Error::invalid(format!(
                "{} is another database's pool: name that of this one, or a place for a new one",
                path.display()
            ))),
            false => Ok(Err(anothers(path))),
        };
    }
    let recorded = left_place.or_else(|| recorded_path(identity, &core.dir));
    let known = recorded.unwrap_or_else(|| core.dir.join(POOL_NAME));
    let is_in_its_place = known == path || core.env.pm.home(&known).as_deref() == Some(path);
    match core.env.pm.open(path, options) {
        // An emulated pool looks like one on the wrong medium, whichever file names its owner.
        Err(e @ Error::InvalidArgument(_)) if !is_recorded => Err(Error::invalid(format!(
            "{e}; or, if it stood for persistent memory, name it so, as emulated:dram@{}",
            path.display()
        ))),
        Err(e) if !is_unusable(&e) || e.is_of_another_version() => Err(e),
        Err(e @ Error::InvalidFormat { .. }) if elsewhere && !is_in_its_place => Err(Error::invalid(
            format!("{e}; name the pool of this database, or move that away to go on without one"),
        )),
        opened => Ok(opened),
    }
}

/// An error if the pool in this place, which is useless to this database, may belong to somebody else.
pub(crate) fn admit_replacing(
    core: &Core,
    path: &Path,
    options: &PoolOptions,
    identity: &Identity,
) -> Result<()> {
    if !core.env.pm.exists(path)? {
        return Ok(());
    }
    if is_own_place(path, &core.dir) {
        return if is_anothers_at(core, path, options, identity)? { Err(anothers(path)) } else { Ok(()) };
    }
    open_to_repair(
        core,
        path,
        options,
        Sought { identity, is_known: true, is_recorded: true, left_place: None },
    )
    .map(drop)
}

/// Whether the pool `path` names another database than that in `dir` as its owner, as far as that one is known.
///
/// # Errors
///
/// `Locked` if it is in use.
pub(crate) fn is_another_databases(env: &Env, dir: &Path, path: &Path) -> Result<bool> {
    let Some(salvaged) = Manifest::salvage(&*env.fs, dir)? else { return Ok(false) };
    Ok(looked_at(env, path)?.is_some_and(|pool| is_anothers(&pool, &salvaged.state.identity)))
}

/// Whether the pool in the place of a repair's new one is that of a repair of the database in `dir`; `None`: it may be.
/// A new pool gets its name once it is whole, and its owner after that.
///
/// # Errors
///
/// `Locked` if it is in use.
pub(crate) fn whose_new_pool(env: &Env, dir: &Path, path: &Path) -> Result<Option<bool>> {
    if matches!(env.pm.exists(path), Ok(false)) {
        return Ok(Some(true));
    }
    let salvaged = Manifest::salvage(&*env.fs, dir)?;
    Ok(match (looked_at(env, path)?, salvaged) {
        (Some(pool), Some(known)) => Some(!is_anothers(&pool, &known.state.identity)),
        // Nothing but the note says whose it is.
        (Some(_), None) => Some(true),
        (None, _) => None,
    })
}

/// Opens the pool `path` to look at it: it stays as its owner left it, and no session begins. It is locked meanwhile.
pub(crate) fn look_at(env: &Env, path: &Path, media: MediaRequest) -> Result<Pool> {
    env.pm.open(path, &PoolOptions { media, salvage: true, prefault: false, ..PoolOptions::default() })
}

/// The pool `path` as it is, if it is one, on whatever medium it was made.
fn looked_at(env: &Env, path: &Path) -> Result<Option<Pool>> {
    if !matches!(env.pm.exists(path), Ok(true)) {
        return Ok(None);
    }
    for media in [MediaRequest::Auto, MediaRequest::Emulated(Profile::DRAM)] {
        match look_at(env, path, media) {
            Ok(pool) => return Ok(Some(pool)),
            Err(e) if e.kind() == ErrorKind::Locked => return Err(e),
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Whether the pool in this place names another database as its owner. Opening to salvage begins no session: such a
/// pool stays as it was closed. It is locked only for that time.
fn is_anothers_at(core: &Core, path: &Path, options: &PoolOptions, identity: &Identity) -> Result<bool> {
    match core.env.pm.open(path, &PoolOptions { salvage: true, ..options.clone() }) {
        Err(e) if is_unusable(&e) && !e.is_of_another_version() => Ok(false),
        looked_at => looked_at.map(|pool| is_anothers(&pool, identity)),
    }
}
