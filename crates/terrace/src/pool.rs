//! A database's pool: its place, its owner, its creation, and its state at an opening. Its contents are the
//! engine's.
//!
//! 1. A pool in use has a root `ENGINE.store` that names its database; a pool without one was left by a
//!    creation or rebuilding that was cut short.
//! 2. A creation replaces nothing but what one that was cut short has left: an empty pool of nobody or of this database. An
//!    opening or a repair replaces a pool only if it is nobody's or this database's. One that may be somebody's, as it
//!    does not lie under the pool's name in the database's directory itself, is not replaced either.
//! 3. The manifest knows the pool by its identity and the number of its last session that changed it. A session's
//!    number is in the manifest before the pool is closed, and the pool is closed before the manifest is sealed: so
//!    each reveals an older copy of the other.
//! 4. The identity names the kind of media on which the pool lies, and so whether there is a log of what a
//!    power cut could take from it. A pool on another kind of media is not written to.

mod begin;
mod beyond;
mod create;
mod debt;
mod guard;
mod place;
mod salvage;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use terrace_base::rng::Rng;
use terrace_base::{Error, ErrorKind, Result};
use terrace_pmem::{Granularity, Known, MediaRequest, Opened, Pool, PoolOptions, Profile};

use crate::core::Core;
use crate::manifest::{Identity, KnownPool, Manifest};
pub(crate) use crate::options::POOL_NAME;
use crate::options::{EngineKind, Options, PoolChoice};
use crate::stats::Stats;

use beyond::may_be_ahead;
use guard::is_own_place;
use place::record_path;

pub(crate) use begin::pool_options;
pub(crate) use beyond::{Beyond, beyond_logs};
pub(crate) use create::{fresh, keep_or_remove, remove_leftover};
pub(crate) use debt::{is_reclaim_due, may_reclaim, pay_before_check, reclaim};
pub(crate) use guard::{
    inside, is_directly_in, is_in_folder_of_repair, is_under_a_repairs, real_path, refuse_headless,
    refuse_place_of_another_file, refuse_used,
};
pub(crate) use place::{forget_place, keep_beside, record_place, recorded_path};
pub(crate) use salvage::{Sought, is_another_databases, look_at, open_to_repair, whose_new_pool};

/// The identity's name for the pool's medium.
pub(crate) const MEDIA: &str = "pool.media";

/// The value of [`MEDIA`] for an ordinary file.
const PAGE: &str = "page";

/// The value of [`MEDIA`] for persistent memory, real or emulated.
pub(crate) const MEMORY: &str = "memory";

/// Describes a link in the pool's place whose target does not exist.
pub(crate) const LEADS_NOWHERE: &str = "a link that leads nowhere: the medium with the pool may not be there; where it is gone for good, remove the link";

/// The share of a pool that is kept back for operations that make room, and its bounds.
const KEPT_SHARE: u64 = 64;
const FEWEST_KEPT_EXTENTS: u64 = 4;
const MOST_KEPT_BYTES: u64 = 2 << 20;

/// A new database's identity, without the pool's medium.
///
/// # Errors
///
/// `InvalidArgument` if the pool's path is no text: it could not be found again by what is recorded.
pub(crate) fn new_identity(dir: &Path, options: &Options, engine: EngineKind) -> Result<Identity> {
    let mut rng = Rng::new(Rng::fresh_seed());
    let mut uuid = [0; 16];
    rng.fill(&mut uuid);
    let mut fixed = BTreeMap::new();
    if let PoolChoice::Emulated { profile, .. } = &options.pool {
        fixed.insert("pool.emulated".into(), figures(profile));
    }
    let mut identity = Identity { uuid, engine: engine.name().into(), options: fixed };
    if let Some(path) = options.pool.path() {
        record_path(&mut identity, dir, path)?;
    }
    Ok(identity)
}

/// A profile in the form that [`Profile::parse`] reads.
fn figures(profile: &Profile) -> String {
    if Profile::ALL.contains(profile) {
        return profile.name.into();
    }
    let bandwidth = profile.write_bytes_per_sec.map_or(String::new(), |rate| format!(",bw={rate}"));
    format!("read={},drain={}{bandwidth}", profile.read_ns, profile.write_ns)
}

/// The identity's name for the medium of `pool`.
pub(crate) fn media_name(pool: &Pool) -> &'static str {
    if pool.granularity() == Granularity::Page { PAGE } else { MEMORY }
}

/// The pool's real place and how it is mapped: as requested, or else as the database was created. If the
/// place is a link, the pool lies at its target, and stays there when it is made again.
pub(crate) fn request(core: &Core, identity: &Identity) -> Result<(PathBuf, MediaRequest)> {
    let emulated = identity.options.get("pool.emulated");
    let asked = core.options.pool.path().map(Path::to_path_buf);
    let path =
        asked.or_else(|| recorded_path(identity, &core.dir)).unwrap_or_else(|| core.dir.join(POOL_NAME));
    let path = core.env.pm.home(&path).unwrap_or(path);
    refuse_place_of_another_file(&path, &core.dir)?;
    match (&core.options.pool, emulated) {
        (PoolChoice::Auto | PoolChoice::Path(_), None) => Ok((path, MediaRequest::Auto)),
        (PoolChoice::Auto, Some(profile)) => Ok((path, MediaRequest::Emulated(Profile::parse(profile)?))),
        (PoolChoice::Emulated { profile, .. }, Some(_)) => Ok((path, MediaRequest::Emulated(*profile))),
        (PoolChoice::Path(_), Some(_)) => {
            Err(Error::invalid("this database was created with an emulated pool; open it with one"))
        }
        (PoolChoice::Emulated { .. }, None) => {
            Err(Error::invalid("this database was not created with an emulated pool; open it without one"))
        }
    }
}

/// The emulated medium's name, if the pool is emulated.
pub(crate) fn emulated(core: &Core, identity: &Identity) -> Result<Option<String>> {
    Ok(match request(core, identity)?.1 {
        MediaRequest::Emulated(profile) => Some(profile.to_string()),
        _ => None,
    })
}

/// The state in which an opening finds a database. The pool decides, or the manifest if there is no pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartState {
    /// It has just been made.
    New,
    /// It was closed: pool and logs hold everything that was stored, and nothing was running.
    Closed,
    /// Pool and logs hold everything that was durable when the process or the power failed.
    Crashed,
    /// Nothing in the pool could be trusted. Tables and logs hold its contents as well, and it is made again.
    Lost,
}

/// Opens the pool of the database that `manifest` describes; `None` if it is [lost](StartState::Lost). If it is
/// another database's, or lies on other media, that is an error.
pub(crate) fn open(core: &Core, manifest: &Manifest) -> Result<Option<(Pool, StartState)>> {
    let state = manifest.state();
    let identity = &state.identity;
    let (path, media) = request(core, identity)?;
    if core.env.pm.home(&path).is_none() {
        return Err(Error::corruption(&path, 0, "the database's pool", LEADS_NOWHERE));
    }
    let closed = manifest.is_sealed();
    if state.pool == Some(KnownPool::BEING_MADE) && may_replace(core, identity) {
        salvage::admit_replacing(core, &path, &pool_options(core, media), identity)?;
        return Ok(None);
    }
    let known = state.pool.map(|KnownPool { uuid, generation }| Known { uuid, generation, closed });
    let options = PoolOptions { known, ..pool_options(core, media) };
    let pool = match attach(core, &path, &options, identity) {
        Err(e) if may_replace(core, identity) && is_unusable(&e) && !e.is_of_another_version() => {
            salvage::admit_replacing(core, &path, &pool_options(core, media), identity)?;
            // An ordinary file holds nothing beyond tables and log, once it was closed or power has failed.
            if may_be_ahead(core, &state, manifest.is_sealed()) {
                return Err(damaged(&path, e));
            }
            tracing::warn!(error = %e, "the pool is unusable and is made anew");
            return Ok(None);
        }
        attached => attached?,
    };
    match pool.opened() {
        Opened::Clean | Opened::Created => Ok(Some((pool, StartState::Closed))),
        Opened::SameBoot | Opened::Crashed => Ok(Some((pool, StartState::Crashed))),
        Opened::Torn if may_replace(core, identity) => Ok(None),
        Opened::Torn => {
            let found = "one of which the system may not have written back everything (try `repair`)";
            Err(Error::corruption(&path, 0, "a pool that nothing can have torn", found))
        }
    }
}

/// If a pool is known to have been in this place and none is there, that is damage, unless another version
/// wrote what is there.
fn damaged(path: &Path, error: Error) -> Error {
    match error {
        Error::InvalidFormat { ref found, .. } if !error.is_of_another_version() => {
            Error::corruption(path, 0, "the database's pool (try `repair`)", format!("none: {found}"))
        }
        error => error,
    }
}

/// Whether something lies in the pool's place. If the user has not named the place, it is no error that no
/// pool can lie there.
fn is_there(core: &Core, path: &Path) -> Result<bool> {
    let is_named = core.options.pool.path().is_some();
    match core.env.pm.exists(path) {
        Err(Error::InvalidArgument(why)) if !is_named => {
            Err(Error::io(path, "open", std::io::Error::new(std::io::ErrorKind::InvalidInput, why)))
        }
        found => found,
    }
}

/// Opens the database's pool, which must be this database's and lie in its recorded place.
fn attach(core: &Core, path: &Path, options: &PoolOptions, identity: &Identity) -> Result<Pool> {
    if !is_there(core, path)? {
        let found =
            if core.env.pm.home(path).is_some() { "no such file" } else { "a link that leads nowhere" };
        return Err(Error::corruption(path, 0, "the database's pool (try `repair`)", found));
    }
    let pool = core.env.pm.open(path, options)?;
    let ours = match pool.opened() {
        // Any of its roots may be missing; its contents are useless, but another database's pool is still
        // left alone.
        Opened::Torn => !is_anothers(&pool, identity),
        _ => pool.root(&owner_root(identity))? == Some(owner_of(identity)),
    };
    let placed = if core.options.read_only { Ok(()) } else { check_media(&pool, identity) };
    if (!ours || placed.is_err()) && pool.opened() == Opened::Clean {
        // As its owner left it.
        pool.close()?;
    }
    if !ours {
        return Err(anothers(path));
    }
    placed.map(|()| pool)
}

fn anothers(path: &Path) -> Error {
    Error::corruption(path, 0, "the pool of this database", "another database's pool")
}

/// An error unless a pool lies on the kind of media that the identity names.
pub(crate) fn check_media(pool: &Pool, identity: &Identity) -> Result<()> {
    let found = media_name(pool);
    match identity.options.get(MEDIA) {
        Some(named) if named != found => {
            let words = |name: &str| if name == PAGE { "an ordinary file" } else { "persistent memory" };
            Err(Error::invalid(format!(
                "{} lies on {}, and the pool of this database on {}; move it back, or export what it holds",
                pool.path().display(),
                words(found),
                words(named)
            )))
        }
        _ => Ok(()),
    }
}

/// Whether a useless pool may be made again: tables and logs hold everything that an ordinary file held.
fn may_replace(core: &Core, identity: &Identity) -> bool {
    !core.options.read_only && identity.options.get(MEDIA).is_some_and(|media| media == PAGE)
}

/// Replaces a useless or missing pool by an empty one.
pub(crate) fn replace(core: &Core, identity: &Identity) -> Result<Pool> {
    let (path, media) = request(core, identity)?;
    core.env.pm.remove(&path)?;
    let pool = core.env.pm.create(&path, &pool_options(core, media))?;
    // If it was missing, its medium has not been checked yet.
    check_media(&pool, identity)?;
    Ok(pool)
}

/// Bytes of `pool` that are kept back for operations that make room: deletions may use them when nothing else
/// is left.
pub(crate) fn kept_back(pool: &Pool) -> u64 {
    let fewest = FEWEST_KEPT_EXTENTS * pool.extent_bytes();
    (pool.max_size() / KEPT_SHARE).clamp(fewest, fewest.max(MOST_KEPT_BYTES))
}

/// The manifest will record the session of an open pool with the next change.
pub(crate) fn note(manifest: &Manifest, pool: &Pool) {
    if !pool.is_read_only() {
        manifest.note_pool(KnownPool { uuid: pool.uuid(), generation: pool.generation() });
    }
}

/// Closes the pool, if there is one, and the manifest cleanly (invariant 3).
pub(crate) fn close(core: &Core, manifest: &Manifest, pool: Option<&Pool>) -> Result<()> {
    if core.options.read_only {
        return pool.map_or(Ok(()), Pool::close);
    }
    if let Some(pool) = pool {
        close_unsealed(manifest, pool)?;
    }
    manifest.seal()
}

/// Closes the pool cleanly, and leaves open whether the manifest has lost its end.
pub(crate) fn close_unsealed(manifest: &Manifest, pool: &Pool) -> Result<()> {
    if pool.has_changed() {
        manifest.apply(&[])?;
    }
    pool.close()
}

/// Units of a pool that are verified in one job.
const VERIFIED_AT_ONCE: u64 = 1024;

/// Verifies a piece of the pool; returns the start of the next. Damage stays, for its readers and for `check`
/// to find.
pub(crate) fn verify(pool: &Pool, from: u64) -> Option<u64> {
    pool.verify_some(from, VERIFIED_AT_ONCE)
}

/// Uses a pool as it is found, for a repair; returns what may be lost by that.
pub(crate) fn take_as_it_is(pool: &Pool, known: Option<KnownPool>) -> Vec<String> {
    let mut doubts: Vec<String> = pool
        .altered()
        .into_iter()
        .map(|problem| format!("{}, {problem}: writes that went there", pool.path().display()))
        .collect();
    let older = known.is_some_and(|known| pool.uuid() != known.uuid || pool.generation() <= known.generation);
    if older && !pool.is_read_only() {
        doubts.push(format!("{} is an older copy: what was written since", pool.path().display()));
    }
    pool.use_as_it_is();
    doubts
}

/// Whether an error means that the pool's place holds no usable pool.
pub(crate) fn is_unusable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat)
}

/// Whether a pool names another database as its owner. Damage to some of its roots does not hide the others.
fn is_anothers(pool: &Pool, identity: &Identity) -> bool {
    EngineKind::ALL.iter().any(|engine| {
        let owner = pool.root(&owner_root_of(engine.name())).ok().flatten();
        owner.is_some_and(|owner| engine.name() != identity.engine || owner != owner_of(identity))
    })
}

/// The engine of a pool, and the first bytes of its database's identity, if it names them.
pub(crate) fn owner_in(pool: &Pool) -> Option<(EngineKind, u64)> {
    let owner = |engine: EngineKind| pool.root(&owner_root_of(engine.name())).ok().flatten();
    EngineKind::ALL.iter().find_map(|engine| owner(*engine).map(|owner| (*engine, owner)))
}

/// Records the owner in the pool.
pub(crate) fn set_owner(pool: &Pool, identity: &Identity) -> Result<()> {
    pool.set_root(&owner_root(identity), owner_of(identity))
}

/// Reports the pool's medium and how much of it is used.
pub(crate) fn fill_stats(pool: &Pool, stats: &mut Stats) {
    stats.media = pool.describe();
    stats.pm.is_memory = pool.granularity() != Granularity::Page;
    stats.pm.size = pool.size();
    stats.pm.max_size = pool.max_size();
    stats.pm.used = pool.used_bytes();
    stats.pm.traffic = pool.stats();
}

/// The root that names the pool's owner: the first six bytes of the store's identity.
fn owner_root(identity: &Identity) -> String {
    owner_root_of(&identity.engine)
}

fn owner_root_of(engine: &str) -> String {
    format!("{engine}.store")
}

fn owner_of(identity: &Identity) -> u64 {
    identity.owner()
}
