//! Whole databases among the measured indexes: they show the overhead of an engine that keeps everything in PM over its
//! bare index, with the same pairs in the same run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace::{Db, EngineKind, Env, Options, PmSpace, PoolChoice, Profile};
use terrace_base::{Error, Result};
use terrace_index::ScanBatch;
use terrace_pmem::{Pool, PoolOptions};

use super::pairs::Pairs;
use super::subject::{Setup, Subject, WIDE_BYTES, widened};

/// Background threads of a measured database.
const THREADS: usize = 2;

/// A database of the engine that keeps everything in persistent memory, with its keys in order or not.
#[derive(Debug)]
pub struct Store<const ORDERED: bool> {
    db: Db,
    /// Whether values are of [`WIDE_BYTES`].
    wide: bool,
}

impl<const ORDERED: bool> Store<ORDERED> {
    fn kind() -> Result<EngineKind> {
        let mut kinds = EngineKind::ALL.iter().filter(|kind| kind.keeps_all_in_memory());
        let found = kinds.find(|kind| kind.is_ordered() == ORDERED).copied();
        found.ok_or_else(|| Error::invalid("no engine keeps everything in persistent memory"))
    }

    fn over(pool: &Pool, setup: Setup) -> Result<Self> {
        // The harness gives the pool, so the path and profile here do not matter.
        let emulated = PoolChoice::Emulated { path: Some(pool.path().into()), profile: Profile::ALL[0] };
        let options = Options { engine: Self::kind()?, pool: emulated, ..Options::default() };
        let env = Env { pm: Arc::new(GivenPool(pool.clone())), ..Env::real(THREADS) };
        let db = Db::open_in(env, directory(pool.path()), options)?;
        Ok(Store { db, wide: !ORDERED && setup.pairs == Pairs::Fifteen })
    }
}

/// The database directory that belongs to the pool at `pool`.
pub fn directory(pool: &Path) -> PathBuf {
    let mut path = pool.as_os_str().to_owned();
    path.push(".db");
    path.into()
}

/// The pool that the harness has made, in place of any other.
#[derive(Debug)]
struct GivenPool(Pool);

impl PmSpace for GivenPool {
    fn create(&self, _: &Path, _: &PoolOptions) -> Result<Pool> {
        Ok(self.0.clone())
    }

    fn open(&self, _: &Path, _: &PoolOptions) -> Result<Pool> {
        Ok(self.0.clone())
    }

    fn exists(&self, _: &Path) -> Result<bool> {
        // As made, a pool has one root: its limbo's.
        Ok(self.0.roots()?.len() > 1)
    }

    fn remove(&self, _: &Path) -> Result<()> {
        Ok(())
    }
}

impl<const ORDERED: bool> Subject for Store<ORDERED> {
    const SCANS: bool = ORDERED;

    fn create(pool: &Pool, setup: Setup) -> Result<Self> {
        let dir = directory(pool.path());
        // An earlier run may have left it.
        let _ = std::fs::remove_dir_all(dir);
        Self::over(pool, setup)
    }

    fn open(pool: &Pool, setup: Setup) -> Result<Self> {
        Self::over(pool, setup)
    }

    #[inline]
    fn insert(&self, key: &[u8], word: u64) -> Result<()> {
        match self.wide {
            false => self.db.put(key, &word.to_le_bytes()),
            true => self.db.put(key, &widened(word)),
        }
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<u64>> {
        let value = self.db.get(key)?;
        let len = if self.wide { WIDE_BYTES } else { 8 };
        Ok(value.filter(|value| value.len() == len).and_then(|value| {
            let word = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
            (!self.wide || value[..] == widened(word)).then_some(word)
        }))
    }

    #[inline]
    fn remove(&self, key: &[u8]) -> Result<bool> {
        // The store does not say whether the key was there; the harness only removes those that are.
        self.db.delete(key).map(|()| true)
    }

    fn scan(&self, from: &[u8], limit: usize, out: &mut ScanBatch) -> Result<()> {
        for entry in self.db.range(from..)?.take(limit) {
            let (key, value) = entry?;
            out.push(&key, value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.db.stats().counts.index_keys
    }

    fn check(&self) -> Result<Vec<String>> {
        Ok(self.db.check()?.problems)
    }

    fn dram_bytes(&self) -> u64 {
        self.db.stats().dram.total()
    }

    fn pm_bytes(&self) -> u64 {
        self.db.stats().pm.used
    }
}
