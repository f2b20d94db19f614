//! Pools during a repair: a new one lies beside the old one, which is opened as a private copy and never
//! changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_pmem::{Pool, PoolOptions};

use super::stop::Stop;
use crate::env::PmSpace;

/// The suffix added to the name of a pool's place.
pub(super) const POOL_SUFFIX: &str = ".repair";

/// Where a repair makes a pool that belongs at `path`.
pub(super) fn pool_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(POOL_SUFFIX);
    PathBuf::from(name)
}

/// Which pool lies in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolNow {
    /// The previous one, or none.
    AsBefore,
    /// None: the previous one is to be removed.
    Removed,
    /// A new one, which lies beside.
    New,
}

/// Pools, one of which is being replaced.
#[derive(Debug)]
pub(super) struct BesidePm {
    pub pm: Arc<dyn PmSpace>,
    pub stop: Stop,
    /// The place of the pool, and what lies there.
    pub now: Mutex<Option<(PathBuf, PoolNow)>>,
}

impl BesidePm {
    /// The place of the pool that was made or removed, and what lies there now.
    pub fn change(&self) -> Option<(PathBuf, PoolNow)> {
        self.now.lock().clone()
    }

    fn now(&self, path: &Path) -> PoolNow {
        let now = self.now.lock();
        now.as_ref().filter(|(place, _)| place == path).map_or(PoolNow::AsBefore, |(_, now)| *now)
    }

    fn set(&self, path: &Path, now: PoolNow) {
        *self.now.lock() = Some((path.to_path_buf(), now));
    }

    fn refuse_device(&self, path: &Path) -> Result<()> {
        match self.pm.is_device(path) {
            true => Err(Error::invalid(format!(
                "{} is a device, beside which there is no room for another pool; name a file for that",
                path.display()
            ))),
            false => Ok(()),
        }
    }
}

impl PmSpace for BesidePm {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        self.stop.look(path)?;
        self.refuse_device(path)?;
        if self.exists(path)? {
            return Err(Error::invalid(format!("{} is there already", path.display())));
        }
        let beside = pool_beside(path);
        if self.pm.exists(&beside)? {
            return Err(Error::invalid(format!(
                "{} lies where a repair makes the new pool, and is none of its own: move it away",
                beside.display()
            )));
        }
        let pool = self.pm.create(&beside, options)?;
        self.set(path, PoolNow::New);
        Ok(pool)
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        self.stop.look(path)?;
        match self.now(path) {
            PoolNow::New => self.pm.open(&pool_beside(path), options),
            PoolNow::Removed => Err(Error::io(path, "open", std::io::ErrorKind::NotFound.into())),
            PoolNow::AsBefore => {
                // Read-only access is as safe as a copy, and works for a device.
                let private = !options.read_only;
                self.pm.open(path, &PoolOptions { private, ..options.clone() })
            }
        }
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match self.now(path) {
            PoolNow::AsBefore => self.pm.exists(path),
            PoolNow::Removed => Ok(false),
            PoolNow::New => Ok(true),
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.refuse_device(path)?;
        match self.now(path) {
            PoolNow::New => self.pm.remove(&pool_beside(path))?,
            PoolNow::AsBefore if !self.pm.exists(path)? => return Ok(()),
            PoolNow::AsBefore | PoolNow::Removed => {}
        }
        self.set(path, PoolNow::Removed);
        Ok(())
    }

    fn is_device(&self, path: &Path) -> bool {
        self.pm.is_device(path)
    }

    fn home(&self, path: &Path) -> Option<PathBuf> {
        self.pm.home(path)
    }
}
