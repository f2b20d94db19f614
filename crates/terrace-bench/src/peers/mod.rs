//! The stores that people use today, behind the same trait as Terrace.
//!
//! Their names are known to every build; the stores themselves only to one with the feature `peers` (all) or their own,
//! which needs a C++ compiler, libclang and LevelDB's headers (`scripts/make-peers.sh`). One file each. All of them get
//! the same [`Setup`]. Each states the settings that this became in [`Opened::settings`], which a report prints.
//!
//! Settings that are equal by design: half of the memory for write buffers (two of them), half for caches; Bloom
//! filters of ten bits a key where there are filters; blocks of 4 KiB where there are blocks; no compression; two
//! background threads; a write waits for the medium only with `sync`.

use std::path::PathBuf;
use std::sync::Arc;

use crate::store::{Store, StoreResult};

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "leveldb")]
mod leveldb;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;

/// Write buffers that a store with such has.
pub const WRITE_BUFFERS: u64 = 2;
/// Bits of filter a key.
pub const FILTER_BITS: u32 = 10;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Threads for flush and compaction.
pub const BACKGROUND_THREADS: usize = 2;

/// A store that is not Terrace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// RocksDB.
    RocksDb,
    /// RocksDB with its log on persistent memory.
    RocksDbPm,
    /// LevelDB, as the system's library.
    LevelDb,
    /// LevelDB with its files on tmpfs, which charges nothing.
    LevelDbNvm,
    /// LMDB.
    Lmdb,
    /// fjall.
    Fjall,
    /// redb.
    Redb,
}

impl Peer {
    /// All of them.
    pub const ALL: [Peer; 7] = [
        Peer::RocksDb,
        Peer::RocksDbPm,
        Peer::LevelDb,
        Peer::LevelDbNvm,
        Peer::Lmdb,
        Peer::Fjall,
        Peer::Redb,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Peer::RocksDb => "rocksdb",
            Peer::RocksDbPm => "rocksdb-pm",
            Peer::LevelDb => "leveldb",
            Peer::LevelDbNvm => "leveldb-nvm",
            Peer::Lmdb => "lmdb",
            Peer::Fjall => "fjall",
            Peer::Redb => "redb",
        }
    }

    /// Whether this build has it.
    pub fn is_built(self) -> bool {
        match self {
            Peer::RocksDb | Peer::RocksDbPm => cfg!(feature = "rocksdb"),
            Peer::LevelDb | Peer::LevelDbNvm => cfg!(feature = "leveldb"),
            Peer::Lmdb => cfg!(feature = "lmdb"),
            Peer::Fjall => cfg!(feature = "fjall"),
            Peer::Redb => cfg!(feature = "redb"),
        }
    }

    /// The peer called `name`.
    pub fn parse(name: &str) -> Option<Peer> {
        Peer::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// The setup that every store of a comparison gets.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its directory, on the SSD.
    pub dir: PathBuf,
    /// Its directory on (emulated) persistent memory; left empty by most.
    pub pm_dir: PathBuf,
    /// DRAM for write buffers and caches together, in bytes.
    pub memory: u64,
    /// Bytes of a write buffer, where they are not to follow from that.
    pub buffer: Option<u64>,
    /// Whether every write waits for the medium.
    pub sync: bool,
    /// Options of Terrace's engines that differ from the default.
    pub options: Vec<(String, String)>,
}

impl Setup {
    /// Bytes of one write buffer.
    pub fn write_buffer(&self) -> u64 {
        self.buffer.unwrap_or(self.memory / 2 / WRITE_BUFFERS)
    }

    /// Bytes of caches.
    pub fn cache(&self) -> u64 {
        self.memory.saturating_sub(WRITE_BUFFERS * self.write_buffer())
    }
}

/// The settings of a store, in its own words.
pub type Settings = Vec<(String, String)>;

/// An open store.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its version, durability and settings, for people.
    pub settings: Settings,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Opens `peer`, making it if there is none.
///
/// # Errors
/// Those of the store, and one if this build does not have it.
pub fn open(peer: Peer, setup: &Setup) -> StoreResult<Opened> {
    std::fs::create_dir_all(&setup.dir)?;
    match peer {
        #[cfg(feature = "rocksdb")]
        Peer::RocksDb => rocksdb::open(setup, None),
        #[cfg(feature = "rocksdb")]
        Peer::RocksDbPm => rocksdb::open(setup, Some(&setup.pm_dir)),
        #[cfg(feature = "leveldb")]
        Peer::LevelDb => leveldb::open(setup),
        #[cfg(feature = "leveldb")]
        Peer::LevelDbNvm => {
            std::fs::create_dir_all(&setup.pm_dir)?;
            leveldb::open(&Setup { dir: setup.pm_dir.clone(), ..setup.clone() })
        }
        #[cfg(feature = "lmdb")]
        Peer::Lmdb => lmdb::open(setup),
        #[cfg(feature = "fjall")]
        Peer::Fjall => fjall::open(setup),
        #[cfg(feature = "redb")]
        Peer::Redb => redb::open(setup),
        #[allow(unreachable_patterns, reason = "a build with all peers has none that is missing")]
        missing => {
            let name = missing.name();
            Err(format!("{name} is not in this build: scripts/make-peers.sh makes one that has it").into())
        }
    }
}

/// Settings that the figures of the store's users depend on, and the beginnings of their right values.
const HONEST: [(&str, &str); 2] = [("fast CRC32", "Supported"), ("statistics", "off")];

/// Refuses a store whose settings differ from those of its users.
///
/// # Errors
/// The setting that is wrong, and what to do.
pub fn honest(name: &str, settings: &Settings) -> Result<(), String> {
    for (setting, must) in HONEST {
        let is = settings.iter().find(|(name, _)| name == setting).map(|(_, is)| is);
        if let Some(is) = is.filter(|is| !is.starts_with(must)) {
            return Err(format!(
                "{name} is not as its users have it: {setting} is {is:?}; scripts/make-peers.sh builds it as they do"
            ));
        }
    }
    Ok(())
}

#[allow(dead_code, reason = "a build without peers describes none")]
fn settings(pairs: &[(&str, String)]) -> Settings {
    pairs.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
}

#[allow(dead_code, reason = "a build without peers describes none")]
fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// The durability of a write where the log goes through the page cache.
#[allow(dead_code, reason = "a build without peers describes none")]
fn page_cache_durability(sync: bool) -> String {
    if sync { "each write survives a power cut" } else { "each write survives a crash of the process" }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_built_badly_is_refused() {
        let fast = |is: &str| settings(&[("version", "1".into()), ("fast CRC32", is.into())]);
        assert_eq!(honest("rocksdb", &fast("Supported on x86")), Ok(()));
        for bad in ["Not supported on x86", "unknown", ""] {
            let error = honest("rocksdb", &fast(bad)).unwrap_err();
            assert!(error.contains("fast CRC32") && error.contains("make-peers"), "{error}");
        }
        assert!(honest("rocksdb", &settings(&[("statistics", "on".into())])).is_err());
        assert_eq!(honest("lmdb", &settings(&[])), Ok(()));
    }
}
