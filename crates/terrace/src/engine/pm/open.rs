//! Opening and creating: the manifest names the pool's owner and place, and nothing more.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use terrace_base::checksum::unseal48;
use terrace_base::{Error, Result};
use terrace_index::limbo::Limbo;
use terrace_index::pins::Pins;
use terrace_pmem::{Granularity, POff, Pool};

use super::elsewhere::{Elsewhere, VersionRef, VersionRefOf};
use super::index::PmEngine;
use super::layout::{self, HEADER_BYTES, HEADER_KIND, MARK_AT};
use super::sparse::Sparse;
use super::{NO_GROUP, NUMBERS, PmStore, undo};
use crate::background::Background;
use crate::core::Core;
use crate::core::engine::Engine;
use crate::manifest::{self, Identity, Manifest};
use crate::pool::{self, MEDIA, StartState};

/// Opens or creates the database in `core.dir`; returns it and the last number in it.
pub(crate) fn open<E: PmEngine>(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    let store = open_store::<E>(core)?;
    let last = store.number();
    Ok((store, last))
}

pub(super) fn open_store<E: PmEngine>(core: Arc<Core>) -> Result<Arc<PmStore<E>>> {
    let (manifest, pool, state) = match manifest::locate(&*core.fs, &core.dir)? {
        Some(_) => open_existing::<E>(&core)?,
        None => create::<E>(&core)?,
    };
    let store = assemble::<E>(core, manifest, pool, Some(state))?;
    store.jobs.tidy_in_pieces(&store.me, |store, from| pool::verify(&store.pool, from));
    if !store.core.options.read_only {
        store.jobs.closed_unless(store.home.opened(&store))?;
    }
    Ok(store)
}

/// Creates a database: the pool, then the manifest, then the pool's contents, its owner and the first file
/// number. If it is cut short anywhere it starts again: nothing is in the database yet.
fn create<E: PmEngine>(core: &Core) -> Result<(Manifest, Pool, StartState)> {
    if !core.options.create_if_missing || core.options.read_only {
        return Err(Error::NotFound { dir: core.dir.clone() });
    }
    let mut identity = pool::new_identity(&core.dir, &core.options, E::KIND)?;
    let pool = fresh_pool::<E>(core, &identity)?;
    identity.options.insert(MEDIA.into(), pool::media_name(&pool).into());
    E::create_home(core, &mut identity)?;
    let manifest = Manifest::create(core.fs.clone(), &core.dir, identity)?;
    begin::<E>(core, manifest, pool)
}

/// An empty pool on persistent memory.
fn fresh_pool<E: PmEngine>(core: &Core, identity: &Identity) -> Result<Pool> {
    let mut roots = E::ROOTS.to_vec();
    roots.push(E::HEADER_ROOT);
    let pool = pool::fresh(core, identity, &roots)?;
    if pool.granularity() == Granularity::Page {
        drop(pool);
        let (path, _) = pool::request(core, identity)?;
        core.env.pm.remove(&path)?;
        return Err(no_memory::<E>());
    }
    Ok(pool)
}

fn no_memory<E: PmEngine>() -> Error {
    let operation = "a pool in an ordinary file; give it persistent memory, or an emulated pool";
    Error::Unsupported { engine: E::KIND.name(), operation }
}

fn begin<E: PmEngine>(core: &Core, manifest: Manifest, pool: Pool) -> Result<(Manifest, Pool, StartState)> {
    pool::note(&manifest, &pool);
    fill_pool::<E>(core, &pool, 0)?;
    pool::set_owner(&pool, &manifest.state().identity)?;
    // In a second file: a first one without its pointer would look like the remains of a creation.
    manifest.seal()?;
    manifest.take_numbers(1);
    manifest.apply(&[])?;
    Ok((manifest, pool, StartState::New))
}

/// Creates an empty index and a header; numbers continue after `number`.
pub(super) fn fill_pool<E: PmEngine>(core: &Core, pool: &Pool, number: u64) -> Result<()> {
    E::create(pool, core)?;
    let slot = pool.reserve(HEADER_KIND, HEADER_BYTES)?;
    pool.copy_flush(slot.offset, &layout::encode_header(pool.place(slot.offset), number));
    pool.activate(&slot);
    pool.drain();
    pool.set_root(E::HEADER_ROOT, slot.offset)
}

fn open_existing<E: PmEngine>(core: &Core) -> Result<(Manifest, Pool, StartState)> {
    let manifest = Manifest::open(core.fs.clone(), &core.dir)?;
    let identity = manifest.state().identity.clone();
    if identity.engine != E::KIND.name() {
        return Err(Error::invalid(format!("this database belongs to engine {}", identity.engine)));
    }
    let read_only = core.options.read_only;
    if manifest.state().is_being_created() {
        pool::refuse_used(core, &identity, has_numbers::<E>)?;
        if read_only {
            return Err(not_closed(core));
        }
        let pool = fresh_pool::<E>(core, &identity)?;
        E::create_home(core, &mut identity.clone())?;
        return begin::<E>(core, manifest, pool);
    }
    let (pool, state) = pool::open(core, &manifest)?.ok_or_else(no_memory::<E>)?;
    if read_only && state == StartState::Crashed {
        return Err(not_closed(core));
    }
    Ok((manifest, pool, state))
}

/// Whether something may have been written: numbers are set aside only after the first file number was taken, which
/// ends the creation.
pub(super) fn has_numbers<E: PmEngine>(pool: &Pool) -> Result<bool> {
    Ok(pool.root(E::HEADER_ROOT)?.is_some() && read_header::<E>(pool)?.1 > 0)
}

fn not_closed(core: &Core) -> Error {
    Error::NotClosed { path: core.dir.clone() }
}

/// The header's place, and the highest number that it has set aside.
pub(super) fn read_header<E: PmEngine>(pool: &Pool) -> Result<(u64, u64)> {
    let root = E::HEADER_ROOT;
    let at = pool.root(root)?.ok_or_else(|| pool.corruption(0, format!("a root {root}"), "none"))?;
    let damaged = || pool.corruption(at, "the header of an engine's records", "something else");
    // SAFETY: the front of a header never changes.
    let front = unsafe { pool.bytes(at, MARK_AT)? };
    match layout::header_version(at, pool.place(at), front) {
        Some(layout::VERSION) => {}
        Some(version) => {
            return Err(Error::other_version(
                pool.path(),
                format!("records version {version}"),
                format!("records version {}", layout::VERSION),
            ));
        }
        None => return Err(damaged()),
    }
    let word = pool.atomic_checked(POff::new(at + MARK_AT))?.load(Ordering::Acquire);
    Ok((at, unseal48(pool.place(at + MARK_AT), word).ok_or_else(damaged)?))
}

/// Assembles the engine from its opened parts, takes back a group that was cut short, and reclaims what a
/// crash left in the background. Without a state, which is how a repair does it, nothing is reclaimed before it has
/// been proved.
pub(super) fn assemble<E: PmEngine>(
    core: Arc<Core>,
    manifest: Manifest,
    pool: Pool,
    state: Option<StartState>,
) -> Result<Arc<PmStore<E>>> {
    pool::note(&manifest, &pool);
    let (header, inherited) = read_header::<E>(&pool)?;
    if core.options.read_only && undo::is_armed(&pool, header)? {
        return Err(not_closed(&core));
    }
    let index = E::open(&pool, &core)?;
    let undone = if core.options.read_only { 0 } else { undo::take_back(&pool, header, &index)? };
    let emulated = pool::emulated(&core, &manifest.state().identity)?;
    let manifest = Arc::new(manifest);
    let home = Arc::new(E::open_home(&core, &manifest, Some(&pool))?);
    let freed = Arc::new(AtomicU64::new(0));
    let limbo = {
        let (pool, home, freed) = (pool.clone(), home.clone(), freed.clone());
        Limbo::with(Pins::default(), move |word: VersionRefOf<E>| match word {
            VersionRef::Record(record) => {
                // A record that cannot be freed is unreachable, and the pool's check finds it.
                drop(pool.free(record.offset(), record.kind()));
                freed.fetch_add(1, Ordering::Relaxed);
            }
            VersionRef::Place(place) => home.free(place),
        })
    };
    let jobs = Background::new(core.clone(), 1);
    // For deletions, and for taking a group back.
    let kept = pool::kept_back(&pool);
    pool.keep_back(kept, kept);
    let read_only = core.options.read_only;
    let store = Arc::new_cyclic(|me| PmStore {
        me: me.clone(),
        core,
        pool,
        index,
        limbo,
        manifest,
        home,
        header,
        gate: Default::default(),
        placing: Default::default(),
        now: AtomicU64::new(inherited),
        mark: AtomicU64::new(inherited),
        marking: Default::default(),
        inherited,
        pending: AtomicU64::new(NO_GROUP),
        taken_back: AtomicU64::new(0),
        group: ArcSwapOption::empty(),
        kept: Default::default(),
        drops: Default::default(),
        sparse: Sparse::counting(freed),
        jobs,
        dropping: Default::default(),
        closed: Default::default(),
        opened: OnceLock::new(),
        emulated,
    });
    let _ = store.opened.set(describe(state, undone));
    if !read_only {
        store.set_mark(inherited + NUMBERS);
        store.next_number();
        store.recover(state);
        store.look_at_slabs();
    }
    store.fit_cache();
    Ok(store)
}

fn describe(state: Option<StartState>, undone: u64) -> String {
    match (state, undone) {
        (Some(StartState::New), _) => "created a new database".into(),
        (Some(StartState::Closed), 0) => "attached the pool of a clean shutdown".into(),
        (_, 0) => "attached the pool after a crash; nothing had to be taken back".into(),
        (_, keys) => format!("attached the pool after a crash; took back a group of {keys} keys"),
    }
}
