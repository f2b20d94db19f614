//! Whoever takes part in a comparison: an engine of this build, or a peer.

use std::sync::Arc;

use terrace::{Db, EngineKind, Options, PoolChoice, Profile};

use crate::db::TerraceStore;
use crate::peers::{self, BACKGROUND_THREADS, Opened, Peer, Settings, Setup, WRITE_BUFFERS};
use crate::store::StoreResult;

/// A store by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrant {
    /// Terrace with this engine.
    Engine(EngineKind),
    /// A store of somebody else.
    Peer(Peer),
}

/// The store that others are measured by.
pub const BASELINE: &str = "rocksdb";

impl Entrant {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Entrant::Engine(kind) => kind.name(),
            Entrant::Peer(peer) => peer.name(),
        }
    }

    /// Whether it keeps keys in order.
    pub fn is_ordered(self) -> bool {
        match self {
            Entrant::Engine(kind) => kind.is_ordered(),
            Entrant::Peer(_) => true,
        }
    }

    /// The entrant called `name`.
    pub fn parse(name: &str) -> Result<Entrant, String> {
        if let Some(peer) = Peer::parse(name) {
            return Ok(Entrant::Peer(peer));
        }
        let engine = EngineKind::ALL.iter().copied().find(|e| e.name() == name);
        engine.map(Entrant::Engine).ok_or_else(|| {
            let engines = EngineKind::ALL.iter().map(|e| e.name());
            let known: Vec<_> = engines.chain(Peer::ALL.iter().map(|p| p.name())).collect();
            format!("there is no store {name:?}; there are: {}", known.join(", "))
        })
    }

    /// The engines in a list of names separated by commas.
    pub fn parse_engines(list: &str) -> Result<Vec<Entrant>, String> {
        Self::parse_kind(list, "engine", |e| matches!(e, Entrant::Engine(_)))
    }

    /// The peers in a list of names separated by commas.
    pub fn parse_peers(list: &str) -> Result<Vec<Entrant>, String> {
        Self::parse_kind(list, "peer", |e| matches!(e, Entrant::Peer(_)))
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
            Entrant::Engine(_) => true,
            Entrant::Peer(peer) => peer.is_built(),
        }
    }

    /// Opens it, making it if there is none.
    pub fn open(self, setup: &Setup, pm: &PmSetup) -> StoreResult<Opened> {
        match self {
            Entrant::Engine(kind) => open_engine(kind, setup, pm),
            Entrant::Peer(peer) => peers::open(peer, setup),
        }
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

fn open_engine(kind: EngineKind, setup: &Setup, pm: &PmSetup) -> StoreResult<Opened> {
    std::fs::create_dir_all(&setup.pm_dir)?;
    let mut options = Options {
        engine: kind,
        memory_budget: setup.memory,
        pm_bytes: pm.bytes,
        sync: setup.sync,
        background_threads: BACKGROUND_THREADS,
        pool: PoolChoice::Emulated {
            path: Some(setup.pm_dir.join("pool")),
            profile: Profile::parse(&pm.profile)?,
        },
        ..Options::default()
    };
    options.lsm.memtable_bytes = setup.write_buffer();
    options.lsm.memtables = WRITE_BUFFERS as usize;
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
    match options.engine {
        EngineKind::Lsm => {
            let lsm = &options.lsm;
            pairs.push(("memtable_bytes", format!("{} x {}", lsm.memtables, mib(lsm.memtable_bytes))));
            pairs.push(("filter", format!("Bloom, {} bits a key", lsm.filter_bits_per_key)));
            pairs.push(("block_bytes", lsm.block_bytes.to_string()));
        }
        EngineKind::Slm => {
            pairs.push(("memtable_bytes", format!("2 x {} (on PM)", mib(options.slm.memtable_bytes))));
            pairs.push(("filter", "none: its index holds every key".to_string()));
            pairs.push(("block_bytes", options.slm.block_bytes.to_string()));
        }
        _ => {}
    }
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_entrant() {
        for &kind in EngineKind::ALL {
            assert_eq!(Entrant::parse(kind.name()), Ok(Entrant::Engine(kind)));
        }
        for peer in Peer::ALL {
            assert_eq!(Entrant::parse(peer.name()), Ok(Entrant::Peer(peer)));
        }
        assert!(Entrant::parse("dbase").unwrap_err().contains("rocksdb-pm"));
    }

    #[test]
    fn lists_hold_one_kind_each_once() {
        let names =
            |list: Result<Vec<Entrant>, String>| list.map(|l| l.iter().map(|e| e.name()).collect::<Vec<_>>());
        assert_eq!(names(Entrant::parse_engines(" slm, lsm,slm,")), Ok(vec!["slm", "lsm"]));
        assert_eq!(names(Entrant::parse_peers("")), Ok(vec![]));
        assert_eq!(names(Entrant::parse_peers("redb,slm")), Err("slm is no peer".to_string()));
    }
}
