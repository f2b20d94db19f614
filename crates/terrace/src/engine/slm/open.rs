//! Opening: the manifest says what there should be, the pool what there is.
//!
//! On persistent memory the pool is attached as it is. An ordinary file is attached if it was closed
//! cleanly or written under the same boot, since then it holds everything that was stored; otherwise a
//! power cut may have torn it, and it is made anew from tables and logs (`rebuild.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::Access;

use terrace_index::limbo::Limbo;
use terrace_pmem::{Granularity, MediaRequest, Opened, Pool, PoolOptions, Profile};
use terrace_table::Table;

use super::chain::CHAIN_KIND;
use super::memtable::{MEMTABLES, MemSet, MemTable};
use super::tables::{TableMap, Tables, table_path};
use super::{LocationIndex, NAME, Slm};
use crate::db::core::Core;
use crate::engine::Engine;
use crate::manifest::{self, Identity, Manifest};
use crate::options::{Options, PoolChoice};

/// The root of the index.
pub(super) const INDEX_ROOT: &str = "slm.index";

/// The root that says whose pool this is: the first six bytes of the store's identity.
const OWNER_ROOT: &str = "slm.store";

/// The identity's name for the pool's medium, and its value for ordinary files.
pub(super) const MEDIA: &str = "pool.media";
const PAGE: &str = "page";

/// Initial size of a pool file; it grows by itself.
const INITIAL_POOL_BYTES: u64 = 16 << 20;

/// Opens or creates the database in `core.dir`.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    let (manifest, pool, attached) = match manifest::locate(&*core.fs, &core.dir)? {
        Some(_) => open_existing(&core)?,
        None => create(&core)?,
    };
    let slm = assemble(core, manifest, pool, attached)?;
    let last = slm.recover(attached)?;
    if attached == Attached::Rebuild {
        // Only now: a pool without its owner's name is one whose rebuilding was cut short.
        set_owner(&slm.pool, &slm.manifest.state().identity)?;
    }
    Ok((slm, last))
}

/// How the pool came to be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attached {
    /// It is new, and so is the database.
    New,
    /// It holds everything that was stored; nothing was in flight.
    Clean,
    /// It holds everything that was durable when the process or the power failed.
    Crashed,
    /// It was not to be trusted and is made anew.
    Rebuild,
}

impl Attached {
    pub fn describe(self) -> &'static str {
        match self {
            Attached::New => "created a new database",
            Attached::Clean => "attached the pool of a clean shutdown",
            Attached::Crashed => "attached the pool after a crash; nothing had to be replayed",
            Attached::Rebuild => "the pool could not be trusted; rebuilt it from tables and log",
        }
    }
}

/// Makes a database: the pool, then the manifest, then the pool's owner and the first file number. Cut
/// short anywhere it is begun again: there is nothing in it yet.
fn create(core: &Core) -> Result<(Manifest, Pool, Attached)> {
    if !core.options.create_if_missing || core.options.read_only {
        return Err(Error::invalid(format!("there is no database in {}", core.dir.display())));
    }
    let mut identity = new_identity(&core.options);
    let pool = fresh_pool(core, &identity)?;
    identity.options.insert(MEDIA.into(), media_name(&pool).into());
    let manifest = Manifest::create(core.fs.clone(), &core.dir, identity)?;
    begin(manifest, pool)
}

fn begin(manifest: Manifest, pool: Pool) -> Result<(Manifest, Pool, Attached)> {
    set_owner(&pool, &manifest.state().identity)?;
    manifest.take_numbers(1);
    manifest.apply(&[])?;
    Ok((manifest, pool, Attached::New))
}

fn open_existing(core: &Core) -> Result<(Manifest, Pool, Attached)> {
    let manifest = Manifest::open(core.fs.clone(), &core.dir)?;
    let state = manifest.state();
    if state.identity.engine != NAME {
        return Err(Error::invalid(format!("this database belongs to engine {}", state.identity.engine)));
    }
    if state.next_file == 1 {
        let pool = fresh_pool(core, &state.identity)?;
        return begin(manifest, pool);
    }
    let (pool, attached) = open_pool(core, &state.identity)?;
    Ok((manifest, pool, attached))
}

/// A pool with nothing in it. What lies in the database's own directory under its name is the rest of a
/// creation that was cut off; elsewhere what is there may be somebody's.
fn fresh_pool(core: &Core, identity: &Identity) -> Result<Pool> {
    let (path, media) = pool_request(core, identity)?;
    let options = pool_options(core, media);
    let elsewhere = !path.starts_with(&core.dir);
    if elsewhere && core.env.pm.exists(&path)? && !is_leftover(core, &path, &options, identity)? {
        return Err(Error::invalid(format!("{} is the pool of another database", path.display())));
    }
    core.env.pm.remove(&path)?;
    create_pool(core, &path, &options)
}

/// Whether a pool is the rest of a creation that was cut off: nobody's or this database's, with nothing in it.
fn is_leftover(core: &Core, path: &Path, options: &PoolOptions, identity: &Identity) -> Result<bool> {
    let pool = core.env.pm.open(path, options)?;
    let ours = owner_of(identity);
    if pool.opened() == Opened::Torn {
        return Ok(torn_may_be_ours(&pool, identity));
    }
    Ok(pool.roots()?.iter().all(|(name, value)| match name.as_str() {
        OWNER_ROOT => *value == ours,
        name => name == INDEX_ROOT,
    }))
}

pub(super) fn media_name(pool: &Pool) -> &'static str {
    if pool.granularity() == Granularity::Page { PAGE } else { "memory" }
}

pub(super) fn new_identity(options: &Options) -> Identity {
    let mut rng = Rng::new(Rng::fresh_seed());
    let mut uuid = [0; 16];
    rng.fill(&mut uuid);
    let mut fixed = BTreeMap::new();
    let path = match &options.pool {
        PoolChoice::Auto => None,
        PoolChoice::Path(path) => Some(path),
        PoolChoice::Emulated { path, profile } => {
            fixed.insert("pool.emulated".into(), figures(profile));
            path.as_ref()
        }
    };
    if let Some(path) = path {
        fixed.insert("pool.path".into(), path.display().to_string());
    }
    Identity { uuid, engine: NAME.into(), options: fixed }
}

/// The pool's path and how it is mapped: what is asked for, else what the database was created with.
pub(super) fn pool_request(core: &Core, identity: &Identity) -> Result<(PathBuf, MediaRequest)> {
    let recorded = |name: &str| identity.options.get(name);
    let emulated = recorded("pool.emulated");
    let path = |asked: &Option<PathBuf>| {
        let recorded = recorded("pool.path").map(PathBuf::from);
        asked.clone().or(recorded).unwrap_or_else(|| core.dir.join("pool"))
    };
    match (&core.options.pool, emulated) {
        (PoolChoice::Auto, None) => Ok((path(&None), MediaRequest::Auto)),
        (PoolChoice::Auto, Some(profile)) => {
            Ok((path(&None), MediaRequest::Emulated(Profile::parse(profile)?)))
        }
        (PoolChoice::Path(asked), None) => Ok((path(&Some(asked.clone())), MediaRequest::Auto)),
        (PoolChoice::Emulated { path: asked, profile }, Some(_)) => {
            Ok((path(asked), MediaRequest::Emulated(*profile)))
        }
        (PoolChoice::Path(_), Some(_)) => {
            Err(Error::invalid("this database was created with an emulated pool; open it with one"))
        }
        (PoolChoice::Emulated { .. }, None) => {
            Err(Error::invalid("this database was not created with an emulated pool; open it without one"))
        }
    }
}

/// A profile in the form that [`Profile::parse`] reads.
fn figures(profile: &Profile) -> String {
    if Profile::ALL.contains(profile) {
        return profile.name.into();
    }
    let bandwidth = profile.write_bytes_per_sec.map_or(String::new(), |rate| format!(",bw={rate}"));
    format!("read={},drain={}{bandwidth}", profile.read_ns, profile.write_ns)
}

pub(super) fn pool_options(core: &Core, media: MediaRequest) -> PoolOptions {
    let max_size = core.options.pm_bytes;
    PoolOptions {
        size: INITIAL_POOL_BYTES.min(max_size),
        max_size,
        extent_bytes: core.options.pool_extent_bytes,
        media,
        ..PoolOptions::default()
    }
}

fn open_pool(core: &Core, identity: &Identity) -> Result<(Pool, Attached)> {
    let (path, media) = pool_request(core, identity)?;
    let options = pool_options(core, media);
    match attach_pool(core, &path, &options, identity) {
        Ok(pool) => match pool.opened() {
            Opened::Clean | Opened::Created => Ok((pool, Attached::Clean)),
            Opened::SameBoot | Opened::Crashed => Ok((pool, Attached::Crashed)),
            Opened::Torn => {
                drop(pool);
                replace_pool(core, &path, &options)
            }
        },
        // An ordinary file of our own holds nothing that tables and log do not.
        Err(e) if is_unusable(&e) && identity.options.get(MEDIA).is_some_and(|m| m == PAGE) => {
            tracing::warn!(error = %e, "the pool is unusable and is made anew");
            replace_pool(core, &path, &options)
        }
        Err(e) => Err(e),
    }
}

fn is_unusable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat)
}

fn attach_pool(core: &Core, path: &Path, options: &PoolOptions, identity: &Identity) -> Result<Pool> {
    if !core.env.pm.exists(path)? {
        return Err(Error::corruption(path, 0, "the database's pool (try `repair`)", "no such file"));
    }
    let pool = core.env.pm.open(path, options)?;
    let ours = match pool.opened() {
        Opened::Torn => torn_may_be_ours(&pool, identity),
        _ => pool.root(OWNER_ROOT)? == Some(owner_of(identity)),
    };
    if !ours {
        return Err(Error::corruption(path, 0, "the pool of this database", "another database's pool"));
    }
    Ok(pool)
}

/// Whether a torn pool does not say that it is another database's. Of its roots any may be missing; nothing in it
/// is of use any more, but another's is left to it all the same.
fn torn_may_be_ours(pool: &Pool, identity: &Identity) -> bool {
    let owner = pool.root(OWNER_ROOT).ok().flatten();
    owner.is_none_or(|owner| owner == owner_of(identity))
}

/// Makes an empty pool with an empty index.
pub(super) fn create_pool(core: &Core, path: &Path, options: &PoolOptions) -> Result<Pool> {
    let pool = core.env.pm.create(path, options)?;
    LocationIndex::create(&pool, INDEX_ROOT)?;
    Ok(pool)
}

fn replace_pool(core: &Core, path: &Path, options: &PoolOptions) -> Result<(Pool, Attached)> {
    core.env.pm.remove(path)?;
    Ok((create_pool(core, path, options)?, Attached::Rebuild))
}

/// Says in the pool whose it is.
pub(super) fn set_owner(pool: &Pool, identity: &Identity) -> Result<()> {
    pool.set_root(OWNER_ROOT, owner_of(identity))
}

fn owner_of(identity: &Identity) -> u64 {
    identity.uuid[..6].iter().fold(1, |word, byte| (word << 8 | u64::from(*byte)) & 0xffff_ffff_ffff)
}

/// Wires the engine around what has been opened.
pub(super) fn assemble(
    core: Arc<Core>,
    manifest: Manifest,
    pool: Pool,
    attached: Attached,
) -> Result<Arc<Slm>> {
    let index = LocationIndex::open(&pool, INDEX_ROOT)?;
    index.set_shortcut_limit(core.options.memory_budget / 16);
    let tables = open_tables(&core, &manifest)?;
    let mem = open_memtables(&core, &pool)?;
    let emulated = match pool_request(&core, &manifest.state().identity)?.1 {
        MediaRequest::Emulated(profile) => Some(profile.to_string()),
        _ => None,
    };
    let limbo = {
        let pool = pool.clone();
        // A chain that cannot be freed stays unreachable, which `check` reports.
        Limbo::new(move |offset| drop(pool.free(offset, CHAIN_KIND)))
    };
    let chains = pool.slots(CHAIN_KIND).count() as i64;
    Ok(Arc::new_cyclic(|me| Slm {
        limbo,
        me: me.clone(),
        core,
        pool,
        index,
        manifest,
        tables: Tables::new(tables),
        mem: ArcSwap::from_pointee(mem),
        log: Mutex::new(None),
        log_broken: Default::default(),
        owed_nanos: Default::default(),
        room: Default::default(),
        flushing: Default::default(),
        choosing: Default::default(),
        noted: Default::default(),
        range_was_read: Default::default(),
        index_writer: Default::default(),
        collapsing: Default::default(),
        counting: Default::default(),
        endings: Default::default(),
        chains: AtomicI64::new(chains),
        retired: Default::default(),
        jobs: Default::default(),
        opened: attached.describe().into(),
        emulated,
    }))
}

fn open_tables(core: &Core, manifest: &Manifest) -> Result<TableMap> {
    let state = manifest.state();
    let open = |&number: &u64| {
        let path = table_path(&core.dir, number);
        let table = Table::open(core.fs(), &path, number, core.cache.clone(), Access::Random)?;
        Ok((number, table))
    };
    state.tables.keys().map(open).collect()
}

/// The memtables of the pool, newest first; a new one where there is none.
fn open_memtables(core: &Core, pool: &Pool) -> Result<MemSet> {
    let mut found = Vec::new();
    for slot in 0..MEMTABLES {
        found.extend(MemTable::open(pool, slot)?.map(Arc::new));
    }
    if found.is_empty() {
        found.push(Arc::new(MemTable::create(pool, 0, core.options.slm.memtable_bytes)?));
    }
    // Only the newest may be empty, and the empty one is the newest.
    found.sort_by_key(|m| std::cmp::Reverse(if m.is_empty() { u64::MAX } else { m.list().max_seq() }));
    Ok(MemSet::new(found))
}
