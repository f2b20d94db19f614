//! The stores that take part in a comparison: engines of this build, and peers.
//!
//! An engine that can work without persistent memory takes part twice: under its own name with its pool in an ordinary
//! file, as it is installed, and as `NAME-pm` with emulated persistent memory. One that cannot has its name for that.
//! Asked for by name, one whose pool holds logs alone is `NAME-nvm`, too: without a pool, and with all of its files on
//! the same emulated medium, through a file system that charges what the medium costs.

use std::sync::Arc;

use terrace::{BufferPlace, Db, EngineKind, Env, Options, PoolChoice, Profile};

use super::nvm;
use crate::db::TerraceStore;
use crate::peers::{self, BACKGROUND_THREADS, Opened, Peer, Settings, Setup, WRITE_BUFFERS, honest};
use crate::store::StoreResult;

/// Where an engine has its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// On the SSD, its pool an ordinary file there.
    Ssd,
    /// Pool and log in persistent memory, tables on the SSD.
    Pool,
    /// Tables and log in files on persistent memory.
    Files,
}

/// A store by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrant {
    /// Terrace with this engine.
    Engine {
        /// The engine.
        kind: EngineKind,
        /// Where its data are; in the pool where it needs one.
        home: Home,
    },
    /// A store of somebody else.
    Peer(Peer),
}

/// The store that others are measured by.
pub const BASELINE: &str = "rocksdb";

impl Entrant {
    /// All engines of this build: first those without persistent memory.
    pub fn engines() -> Vec<Entrant> {
        let of = |home| move |&kind: &EngineKind| Entrant::Engine { kind, home };
        let ordinary = EngineKind::ALL.iter().filter(|kind| !kind.needs_memory()).map(of(Home::Ssd));
        ordinary.chain(EngineKind::ALL.iter().map(of(Home::Pool))).collect()
    }

    /// The peers of this build that are compared where none is named.
    pub fn peers() -> Vec<Entrant> {
        let usual = |peer: &Peer| peer.is_built() && *peer != Peer::LevelDbNvm;
        Peer::ALL.into_iter().filter(usual).map(Entrant::Peer).collect()
    }

    /// All entrants that have a name.
    pub fn all() -> Vec<Entrant> {
        let no_pool =
            |kind: &&EngineKind| matches!(kind.buffer_place(), BufferPlace::Dram | BufferPlace::DramShare);
        let in_files = EngineKind::ALL.iter().filter(|kind| !kind.needs_memory()).filter(no_pool);
        let in_files = in_files.map(|&kind| Entrant::Engine { kind, home: Home::Files });
        Entrant::engines().into_iter().chain(in_files).chain(Peer::ALL.map(Entrant::Peer)).collect()
    }

    /// Its name in reports.
    pub fn name(self) -> String {
        match self {
            Entrant::Engine { kind, home: Home::Pool } if !kind.needs_memory() => {
                format!("{}-pm", kind.name())
            }
            Entrant::Engine { kind, home: Home::Files } => format!("{}-nvm", kind.name()),
            Entrant::Engine { kind, .. } => kind.name().into(),
            Entrant::Peer(peer) => peer.name().into(),
        }
    }

    /// Whether it is one of Terrace's engines.
    pub fn is_ours(self) -> bool {
        matches!(self, Entrant::Engine { .. })
    }

    /// Whether it has persistent memory.
    pub fn is_on_pm(self) -> bool {
        match self {
            Entrant::Engine { home, .. } => home != Home::Ssd,
            Entrant::Peer(peer) => matches!(peer, Peer::RocksDbPm | Peer::LevelDbNvm),
        }
    }

    /// Whether it keeps keys in order.
    pub fn is_ordered(self) -> bool {
        match self {
            Entrant::Engine { kind, .. } => kind.is_ordered(),
            Entrant::Peer(_) => true,
        }
    }

    /// The entrant called `name`.
    pub fn parse(name: &str) -> Result<Entrant, String> {
        Entrant::all().into_iter().find(|entrant| entrant.name() == name).ok_or_else(|| {
            let known: Vec<_> = Entrant::all().into_iter().map(Entrant::name).collect();
            format!("there is no store {name:?}; there are: {}", known.join(", "))
        })
    }

    /// Whether this build has it.
    pub fn is_built(self) -> bool {
        match self {
            Entrant::Engine { .. } => true,
            Entrant::Peer(peer) => peer.is_built(),
        }
    }

    /// Opens it, making it if there is none.
    pub fn open(self, setup: &Setup, pm: &PmSetup) -> StoreResult<Opened> {
        match self {
            Entrant::Engine { kind, home: Home::Files } => {
                open_in_files(options(kind, setup, None)?, setup, pm)
            }
            Entrant::Engine { kind, home } => {
                let pm = (home == Home::Pool).then_some(pm);
                opened(options(kind, setup, pm)?, |options| Db::open(&setup.dir, options))
            }
            Entrant::Peer(peer) => peers::open(peer, setup),
        }
    }

    /// Opens it, unless it is not as its users have it.
    pub fn open_honest(self, setup: &Setup, pm: &PmSetup) -> StoreResult<Opened> {
        let opened = self.open(setup, pm)?;
        honest(&self.name(), &opened.settings)?;
        Ok(opened)
    }
}

/// The persistent memory of engines.
#[derive(Debug, Clone)]
pub struct PmSetup {
    /// The medium it stands for.
    pub profile: String,
    /// Bytes to which the pool may grow.
    pub bytes: u64,
}

/// The options that an engine is opened with, on persistent memory where `pm` is given.
fn options(kind: EngineKind, setup: &Setup, pm: Option<&PmSetup>) -> StoreResult<Options> {
    let mut options = Options {
        engine: kind,
        memory_budget: setup.memory,
        sync: setup.sync,
        background_threads: BACKGROUND_THREADS,
        ..Options::default()
    };
    if let Some(pm) = pm {
        std::fs::create_dir_all(&setup.pm_dir)?;
        let profile = Profile::parse(&pm.profile)?;
        options.pool = PoolChoice::Emulated { path: Some(setup.pm_dir.join("pool")), profile };
        options.pm_bytes = pm.bytes;
    }
    match kind.buffer_place() {
        BufferPlace::Dram => set_memtables(&mut options, setup.write_buffer())?,
        // The memtables lie in an ordinary file, whose pages are memory of the machine but not part of the budget. The
        // engine asks for this budget with memtables of this size.
        BufferPlace::Pool if pm.is_none() => {
            let memtable = setup.buffer.unwrap_or(setup.memory * 3 / 16);
            set_memtables(&mut options, memtable)?;
            options.memory_budget = setup.memory.saturating_sub(WRITE_BUFFERS * memtable);
        }
        // Half of the budget, as it is.
        BufferPlace::DramShare | BufferPlace::Pool | BufferPlace::None => {}
    }
    let mut own = setup.options.iter().filter(|(name, _)| has_option(kind, name));
    own.try_for_each(|(name, value)| options.set(name, value))?;
    Ok(options)
}

/// Whether an engine has the option `name` of its own.
pub fn has_option(kind: EngineKind, name: &str) -> bool {
    let options = Options { engine: kind, ..Options::default() };
    options.of_engine().iter().any(|(own, _)| *own == name)
}

/// An option of an engine, and a value that it takes: `NAME=VALUE`.
///
/// # Errors
/// A text that says what is wrong with it.
pub fn parse_option(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("an option is NAME=VALUE")?;
    if !EngineKind::ALL.iter().any(|kind| has_option(*kind, name)) {
        return Err(format!("no engine has an option {name:?}"));
    }
    Options::default().set(name, value).map_err(|e| e.to_string())?;
    Ok((name.to_string(), value.to_string()))
}

/// Gives the engine memtables of so many bytes, and as many as others have where that can be chosen.
fn set_memtables(options: &mut Options, bytes: u64) -> StoreResult<()> {
    for (field, value) in [("memtable_bytes", bytes), ("memtables", WRITE_BUFFERS)] {
        let wanted = format!("{}.{field}", options.engine.name());
        if options.of_engine().iter().any(|(name, _)| *name == wanted) {
            options.set(&wanted, &value.to_string())?;
        }
    }
    Ok(())
}

/// Opens an engine without a pool, whose files lie where persistent memory does and are charged for.
fn open_in_files(options: Options, setup: &Setup, pm: &PmSetup) -> StoreResult<Opened> {
    std::fs::create_dir_all(&setup.dir)?;
    std::fs::create_dir_all(&setup.pm_dir)?;
    let profile = Profile::parse(&pm.profile)?;
    let env = Env { fs: nvm::charged(profile), ..Env::real(options.background_threads) };
    let mut opened = opened(options, |options| Db::open_in(env, setup.pm_dir.join("files"), options))?;
    opened.settings.push(("files".to_string(), format!("on emulated persistent memory, profile {profile}")));
    Ok(opened)
}

fn opened(options: Options, open: impl FnOnce(Options) -> terrace::Result<Db>) -> StoreResult<Opened> {
    let db = open(options.clone())?;
    let settings = describe(&db, &options);
    Ok(Opened { store: Arc::new(TerraceStore::new(db)), settings })
}

fn describe(db: &Db, options: &Options) -> Settings {
    let stats = db.stats();
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let mut pairs = vec![
        ("version", format!("Terrace {}, engine {}", env!("CARGO_PKG_VERSION"), stats.engine)),
        ("durability", stats.durability),
        ("pool", stats.media),
        ("pm_bytes", mib(options.pm_bytes)),
        ("memory_budget", mib(options.memory_budget)),
        ("compression", "none".to_string()),
        ("background_threads", options.background_threads.to_string()),
    ];
    let place = match options.engine.buffer_place() {
        BufferPlace::None => "none",
        BufferPlace::Dram => "DRAM",
        BufferPlace::DramShare => "DRAM, a share of the budget",
        BufferPlace::Pool => "the pool",
    };
    pairs.push(("write buffers in", place.to_string()));
    pairs.extend(options.of_engine());
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_entrant() {
        for entrant in Entrant::all() {
            assert_eq!(Entrant::parse(&entrant.name()), Ok(entrant));
        }
        // Each engine is there with persistent memory, and without where it can be.
        for &kind in EngineKind::ALL {
            let homes: Vec<Home> = (Entrant::engines().iter())
                .filter_map(|e| match e {
                    Entrant::Engine { kind: k, home } => (*k == kind).then_some(*home),
                    Entrant::Peer(_) => None,
                })
                .collect();
            let expected = if kind.needs_memory() { vec![Home::Pool] } else { vec![Home::Ssd, Home::Pool] };
            assert_eq!(homes, expected, "{kind:?}");
        }
        assert!(Entrant::parse("lsm-nvm").is_ok_and(Entrant::is_on_pm));
        assert!(Entrant::parse("slm-nvm").is_err() && Entrant::parse("tlsm-nvm").is_err());
        assert!(Entrant::parse("dbase").unwrap_err().contains("rocksdb-pm"));
    }

    #[test]
    fn memory_is_divided_by_where_write_buffers_are() {
        let dir = tempfile::tempdir().unwrap();
        let (ssd, pm_dir) = (dir.path().join("ssd"), dir.path().join("pm"));
        let setup =
            Setup { dir: ssd, pm_dir, memory: 64 << 20, buffer: None, sync: false, options: Vec::new() };
        let pm = PmSetup { profile: "dram".to_string(), bytes: 64 << 20 };
        for &kind in EngineKind::ALL {
            for pm in [None, Some(&pm)] {
                let options = options(kind, &setup, pm).unwrap();
                let own = options.of_engine();
                let field =
                    |name| own.iter().find(|(own, _)| own.ends_with(name)).map(|(_, value)| value.parse());
                let memtable = field(".memtable_bytes").map(Result::<u64, _>::unwrap);
                let budget = options.memory_budget;
                match (kind.buffer_place(), pm.is_some()) {
                    (BufferPlace::Dram, _) => assert_eq!((memtable, budget), (Some(16 << 20), 64 << 20)),
                    (BufferPlace::Pool, false) => assert_eq!(budget + 2 * memtable.unwrap(), 64 << 20),
                    _ => assert_eq!(budget, 64 << 20),
                }
            }
        }
    }
}
