//! A database read without changing a byte of it: the effects of an unclean end are repaired only in memory.
//!
//! The engine opens it as for writing, in a world of its own: new files hide the existing ones, and the
//! pool's stores stay in this process. So a reader sees what the next opening for writing will find. Nothing
//! is compacted, and background work is done by the caller that waits for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::exec::Inline;
use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::ScratchFs;
use terrace_pmem::{Granularity, MediaRequest, MemMedia, Pool, PoolOptions};

use crate::core::Core;
use crate::core::engine::Engine;
use crate::engine;
use crate::env::{Env, PmSpace};
use crate::options::Options;

/// The result of opening: the shared state, the engine, and the last sequence number in it.
type Opened = (Arc<Core>, (Arc<dyn Engine>, u64));

/// Opens the database in `dir` for reading.
pub(crate) fn open_to_read(dir: &Path, options: &Options, env: &Env) -> Result<Opened> {
    let over = |env: &Env| Env { fs: Arc::new(ScratchFs::new(env.fs.clone())), ..env.clone() };
    let core = Core::new(dir.to_path_buf(), options.clone(), over(env))?;
    match engine::open(core.clone()) {
        Err(e) if is_for_recovery(&e) => {}
        opened => return Ok((core, opened?)),
    }
    drop(core);
    let pm = Arc::new(ScratchPm { below: env.pm.clone(), names: Mutex::default() });
    let env = Env { pm, executor: Arc::new(Inline::default()), ..over(env) };
    let options = Options { read_only: false, create_if_missing: false, ..options.clone() };
    let core = Core::scratch(dir.to_path_buf(), options, env)?;
    let opened = engine::open(core.clone())?;
    Ok((core, opened))
}

/// Whether opening for writing may be able to handle an error.
fn is_for_recovery(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotClosed | ErrorKind::Corruption | ErrorKind::InvalidFormat)
}

/// Pools whose changes stay in this process.
#[derive(Debug)]
struct ScratchPm {
    below: Arc<dyn PmSpace>,
    names: Mutex<Names>,
}

/// Changes made to pools here.
#[derive(Debug, Default)]
struct Names {
    made: BTreeSet<PathBuf>,
    removed: BTreeSet<PathBuf>,
}

impl PmSpace for ScratchPm {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let granularity = match options.media {
            MediaRequest::Emulated(_) => Granularity::CacheLine,
            MediaRequest::Force(granularity) => granularity,
            MediaRequest::Auto => Granularity::Page,
        };
        let media = MemMedia::new(options.size, options.max_size, granularity)?;
        let pool = Pool::create_on(Arc::new(media), path, options)?;
        self.names.lock().made.insert(path.to_path_buf());
        Ok(pool)
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        if self.names.lock().removed.contains(path) {
            return Err(Error::io(path, "open", std::io::ErrorKind::NotFound.into()));
        }
        self.below.open(path, &PoolOptions { private: true, ..options.clone() })
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let names = self.names.lock();
        Ok(names.made.contains(path) || !names.removed.contains(path) && self.below.exists(path)?)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut names = self.names.lock();
        names.made.remove(path);
        names.removed.insert(path.to_path_buf());
        Ok(())
    }

    fn home(&self, path: &Path) -> Option<PathBuf> {
        self.below.home(path)
    }
}
