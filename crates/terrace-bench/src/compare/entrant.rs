//! Whoever takes part in a comparison: an engine of this build, or a peer.
//!
//! An engine that can work without persistent memory takes part twice: under its own name with its pool in an ordinary
//! file, as it is installed, and as `NAME-pm` with emulated persistent memory. One that cannot has its name for that.

use std::sync::Arc;

use terrace::{BufferPlace, Db, EngineKind, Options, PoolChoice, Profile};

use crate::db::TerraceStore;
use crate::peers::{self, BACKGROUND_THREADS, Opened, Peer, Settings, Setup, WRITE_BUFFERS, honest};
use crate::store::StoreResult;

/// A store by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrant {
    /// Terrace with this engine.
    Engine {
        /// The engine.
        kind: EngineKind,
        /// Whether it is given persistent memory; always so where it needs it.
        on_pm: bool,
    },
    /// A store of somebody else.
    Peer(Peer),
}

/// The store that others are measured by.
pub const BASELINE: &str = "rocksdb";

impl Entrant {
    /// All engines of this build: first those without persistent memory.
    pub fn engines() -> Vec<Entrant> {
        let of = |on_pm| move |&kind: &EngineKind| Entrant::Engine { kind, on_pm };
        let ordinary = EngineKind::ALL.iter().filter(|kind| !kind.needs_memory()).map(of(false));
        ordinary.chain(EngineKind::ALL.iter().map(of(true))).collect()
    }

    /// Its name in reports.
    pub fn name(self) -> String {
        match self {
            Entrant::Engine { kind, on_pm: true } if !kind.needs_memory() => format!("{}-pm", kind.name()),
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
        matches!(self, Entrant::Engine { on_pm: true, .. } | Entrant::Peer(Peer::RocksDbPm))
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
        let all = || Entrant::engines().into_iter().chain(Peer::ALL.map(Entrant::Peer));
        all().find(|entrant| entrant.name() == name).ok_or_else(|| {
            let known: Vec<_> = all().map(Entrant::name).collect();
            format!("there is no store {name:?}; there are: {}", known.join(", "))
        })
    }

    /// The engines in a list of names separated by commas.
    pub fn parse_engines(list: &str) -> Result<Vec<Entrant>, String> {
        Self::parse_kind(list, "engine", |e| e.is_ours())
    }

    /// The peers in a list of names separated by commas.
    pub fn parse_peers(list: &str) -> Result<Vec<Entrant>, String> {
        Self::parse_kind(list, "peer", |e| !e.is_ours())
    }

    fn parse_kind(list: &str, kind: &str, is: fn(&Entrant) -> bool) -> Result<Vec<Entrant>, String> {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut found = Vec::new();
        for name in names {
            let entrant = Entrant::parse(name)?;
            if !is(&entrant) {
                return Err(format!("{name} is no {kind}"));
            }
            if !found.contains(&entrant) {
                found.push(entrant);
            }
        }
        Ok(found)
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
            Entrant::Engine { kind, on_pm } => open_engine(options(kind, setup, on_pm.then_some(pm))?, setup),
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

/// The persistent memory that engines are given.
#[derive(Debug, Clone)]
pub struct PmSetup {
    /// The medium it stands for.
    pub profile: String,
    /// Bytes to which the pool may grow.
    pub bytes: u64,
}

/// What an engine is opened with, on persistent memory where `pm` is given.
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
        // They lie in an ordinary file, whose pages are memory here and not in the budget. The engine wants that much of
        // a budget for memtables of this size.
        BufferPlace::Pool if pm.is_none() => {
            let memtable = setup.memory * 3 / 16;
            set_memtables(&mut options, memtable)?;
            options.memory_budget = setup.memory - WRITE_BUFFERS * memtable;
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
/// What is wrong with it.
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

fn open_engine(options: Options, setup: &Setup) -> StoreResult<Opened> {
    let db = Db::open(&setup.dir, options.clone())?;
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
        let engines = Entrant::engines();
        for entrant in &engines {
            assert_eq!(Entrant::parse(&entrant.name()), Ok(*entrant));
        }
        // Each engine is there with persistent memory, and without where it can be.
        for &kind in EngineKind::ALL {
            let places: Vec<bool> = (engines.iter())
                .filter_map(|e| {
                    if let Entrant::Engine { kind: k, on_pm } = e {
                        (*k == kind).then_some(*on_pm)
                    } else {
                        None
                    }
                })
                .collect();
            assert_eq!(places, if kind.needs_memory() { vec![true] } else { vec![false, true] }, "{kind:?}");
        }
        for peer in Peer::ALL {
            assert_eq!(Entrant::parse(peer.name()), Ok(Entrant::Peer(peer)));
        }
        assert!(Entrant::parse("dbase").unwrap_err().contains("rocksdb-pm"));
    }

    #[test]
    fn memory_is_divided_by_where_write_buffers_are() {
        let dir = tempfile::tempdir().unwrap();
        let (ssd, pm_dir) = (dir.path().join("ssd"), dir.path().join("pm"));
        let setup = Setup { dir: ssd, pm_dir, memory: 64 << 20, sync: false, options: Vec::new() };
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

    #[test]
    fn lists_hold_one_kind_each_once() {
        let names =
            |list: Result<Vec<Entrant>, String>| list.map(|l| l.iter().map(|e| e.name()).collect::<Vec<_>>());
        assert_eq!(names(Entrant::parse_engines(" slm, lsm,slm,")), Ok(vec!["slm".into(), "lsm".into()]));
        assert_eq!(names(Entrant::parse_peers("")), Ok(vec![]));
        assert_eq!(names(Entrant::parse_peers("redb,slm")), Err("slm is no peer".to_string()));
    }
}
