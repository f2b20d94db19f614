//! Where a database's commit log lies: on persistent memory or in files, as was determined at its creation;
//! and the opening and creating of what that takes, for every engine whose writes a commit log makes durable.

use terrace_base::{Error, Result};
use terrace_pmem::{Granularity, Pool};

use super::LOG_ROOTS;
use super::pool::NEEDED_ROOT;
use crate::core::Core;
use crate::manifest::{self, Edit, Identity, Manifest};
use crate::options::{EngineKind, LogPlace, PoolChoice};
use crate::pool::{self, MEDIA, MEMORY, StartState};
use crate::tables::refuse_missing;

/// A log's place, as identities name it.
const ON_PM: &str = "pm";
const IN_FILES: &str = "ssd";

/// What was opened or made.
#[derive(Debug)]
pub(crate) struct Opened {
    pub manifest: Manifest,
    /// The pool of the log; none if the log lies in files.
    pub pool: Option<Pool>,
    pub state: StartState,
}

/// What an engine defines about its log's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogHome {
    pub engine: EngineKind,
    /// The log's place according to the options.
    pub asked: LogPlace,
    /// The first edits of a new database's manifest.
    pub first: fn() -> Vec<Edit>,
    /// The rest of the pool.
    pub beside: PoolContents,
}

/// What an engine keeps in the pool beside logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolContents {
    /// Whether the engine needs a pool on persistent memory, with the log in it.
    pub is_needed: bool,
    /// Its roots.
    pub roots: &'static [&'static str],
    /// Puts it into a new pool.
    pub fill: fn(&Pool) -> Result<()>,
    /// Whether a pool holds more of it than that.
    pub is_used: fn(&Pool) -> bool,
}

impl PoolContents {
    /// Nothing but logs.
    pub const NOTHING: PoolContents =
        PoolContents { is_needed: false, roots: &[], fill: |_| Ok(()), is_used: |_| false };
}

impl LogHome {
    /// The identity's name for the log's place.
    fn option(&self) -> String {
        format!("{}.log", self.engine.name())
    }

    /// Opens the database in `core.dir`, or creates it.
    pub fn open(&self, core: &Core) -> Result<Opened> {
        match manifest::locate(&*core.fs, &core.dir)? {
            Some(_) => self.open_existing(core),
            None => self.create(core),
        }
    }

    /// Creates a database: the pool, if there is to be one, then the manifest, then the pool's owner and the
    /// first file number. If it is cut short anywhere it starts again: nothing is in the database yet.
    fn create(&self, core: &Core) -> Result<Opened> {
        if !core.options.create_if_missing || core.options.read_only {
            return Err(Error::NotFound { dir: core.dir.clone() });
        }
        let mut identity = pool::new_identity(&core.dir, &core.options, self.engine)?;
        let pool = self.choose(core, &mut identity)?;
        let manifest = Manifest::create(core.fs.clone(), &core.dir, identity)?;
        self.begin(manifest, pool)
    }

    /// Decides where the log lies, and makes the pool if it lies there.
    fn choose(&self, core: &Core, identity: &mut Identity) -> Result<Option<Pool>> {
        let files = self.asked == LogPlace::Ssd;
        let pool = if files { None } else { Some(self.fresh(core, identity)?) };
        if let Some(pool) = pool {
            if pool.granularity() != Granularity::Page {
                (self.beside.fill)(&pool)?;
                self.note(identity, true);
                return Ok(Some(pool));
            }
            drop(pool);
            // A pool in an ordinary file is no place for a log: log files are better.
            let (path, _) = pool::request(core, identity)?;
            core.env.pm.remove(&path)?;
            if self.beside.is_needed {
                let operation = "a pool in an ordinary file; give it persistent memory, or an emulated pool";
                return Err(Error::Unsupported { engine: self.engine.name(), operation });
            }
            if self.asked == LogPlace::Pm {
                return Err(Error::invalid(format!("{} is not on persistent memory", path.display())));
            }
        }
        self.note(identity, false);
        Ok(None)
    }

    /// An empty pool.
    fn fresh(&self, core: &Core, identity: &Identity) -> Result<Pool> {
        pool::fresh(core, identity, &self.roots())
    }

    /// The roots that a creation sets before the pool has an owner.
    fn roots(&self) -> Vec<&'static str> {
        [&LOG_ROOTS[..], self.beside.roots].concat()
    }

    /// Records whether the log lies in the pool; if not, there is none.
    fn note(&self, identity: &mut Identity, on_pm: bool) {
        if on_pm {
            identity.options.insert(MEDIA.into(), MEMORY.into());
        } else {
            pool::forget_place(identity);
        }
        identity.options.insert(self.option(), if on_pm { ON_PM } else { IN_FILES }.into());
    }

    /// Records where the log of a database lies whose manifest can no longer be read: in the pool, if there
    /// is one on persistent memory. A creation makes one to see what it lies on, and may have been cut short.
    pub fn note_found(&self, core: &Core, identity: &mut Identity) -> Result<()> {
        let (path, media) = pool::request(core, identity)?;
        let has_pool = core.env.pm.exists(&path)?
            && match pool::look_at(&core.env, &path, media) {
                Err(e @ Error::Locked { .. }) => return Err(e),
                looked => !looked.is_ok_and(|pool| pool.was_made_in_file()),
            };
        self.note(identity, self.beside.is_needed || has_pool);
        Ok(())
    }

    fn begin(&self, manifest: Manifest, pool: Option<Pool>) -> Result<Opened> {
        if let Some(pool) = &pool {
            pool::note(&manifest, pool);
            pool::set_owner(pool, &manifest.state().identity)?;
        }
        manifest.take_numbers(1);
        manifest.apply(&(self.first)())?;
        Ok(Opened { manifest, pool, state: StartState::New })
    }

    /// Whether the log of the database `identity` lies in its pool.
    pub fn is_on_pm(&self, identity: &Identity) -> bool {
        identity.options.get(&self.option()).is_some_and(|place| place == ON_PM)
    }

    fn open_existing(&self, core: &Core) -> Result<Opened> {
        let manifest = Manifest::open(core.fs.clone(), &core.dir)?;
        let identity = manifest.state().identity.clone();
        if identity.engine != self.engine.name() {
            return Err(Error::invalid(format!("this database belongs to engine {}", identity.engine)));
        }
        if core.options.read_only && !manifest.is_sealed() {
            return Err(Error::NotClosed { path: core.dir.clone() });
        }
        let on_pm = self.is_on_pm(&identity);
        self.refuse_another_place(on_pm)?;
        if manifest.state().is_being_created() {
            // There is a log, or was one, only after the first file number was taken.
            let is_used = |pool: &Pool| {
                let is_beside = (self.beside.is_used)(pool);
                let mut roots = LOG_ROOTS.iter().chain([&NEEDED_ROOT]);
                roots.try_fold(is_beside, |found, root| Ok(found || pool.root(root)?.is_some()))
            };
            if on_pm {
                pool::refuse_used(core, &identity, is_used)?;
            }
            let pool = if on_pm { Some(self.fresh(core, &identity)?) } else { None };
            pool.as_ref().map_or(Ok(()), self.beside.fill)?;
            return self.begin(manifest, pool);
        }
        refuse_missing(core, &manifest)?;
        let closed = if manifest.is_sealed() { StartState::Closed } else { StartState::Crashed };
        if !on_pm {
            if core.options.pool == PoolChoice::Auto && !core.options.read_only {
                pool::remove_leftover(core, &identity, &self.roots())?;
            }
            return Ok(Opened { manifest, pool: None, state: closed });
        }
        let lost = || Error::invalid("a database with its log on PM has no pool in an ordinary file");
        let (pool, of_pool) = pool::open(core, &manifest)?.ok_or_else(lost)?;
        let state = if of_pool == StartState::Closed { closed } else { of_pool };
        Ok(Opened { manifest, pool: Some(pool), state })
    }

    fn refuse_another_place(&self, on_pm: bool) -> Result<()> {
        match (self.asked, on_pm) {
            (LogPlace::Pm, false) => Err(Error::invalid("this database was created with its log in files")),
            (LogPlace::Ssd, true) => Err(Error::invalid("this database was created with its log on PM")),
            _ => Ok(()),
        }
    }
}

/// Whether acknowledged writes survive a power cut, in plain words.
pub(crate) fn durability(on_pm: bool, sync: bool) -> &'static str {
    match (on_pm, sync) {
        (true, _) => "an acknowledged write survives a power cut",
        (false, true) => {
            "an acknowledged write survives a power cut (each group of writes waits for fdatasync)"
        }
        (false, false) => {
            "an acknowledged write survives a killed process; after a power cut a consistent prefix \
             with every synced write is there"
        }
    }
}
