//! What an opening makes before it is known whether there will be a database: directories, the file of the
//! lock, and what a creation has made before it failed, perhaps for want of room. If there is no database
//! after all, these are removed again.
//!
//! Only what this opening made is removed, even if other files lie beside it. The lock's file is removed
//! while it is held: a waiter then finds it gone (`Fs::lock`).

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use terrace_base::{Error, Result};
use terrace_disk::Fs;

use crate::env::Env;
use crate::manifest::FileName;
use crate::options::Options;
use crate::pool::POOL_NAME;

/// What one opening has made.
#[derive(Debug)]
pub(super) struct Traces {
    /// The file of the lock, if it did not exist.
    lock: Option<PathBuf>,
    /// Directories, the innermost first.
    dirs: Vec<PathBuf>,
    /// The directory was empty: files of ours that are in it now are a creation's.
    was_empty: bool,
}

impl Traces {
    /// Creates directory `dir`, unless it exists, and notes whether the file `lock` in it does.
    pub fn make(fs: &dyn Fs, dir: &Path, lock: &Path, options: &Options) -> Result<Traces> {
        if fs.exists(dir)? {
            let lock = (!fs.exists(lock)?).then(|| lock.to_path_buf());
            let was_empty = fs.list(dir)?.is_empty();
            return Ok(Traces { lock, dirs: Vec::new(), was_empty });
        }
        if !options.create_if_missing || options.read_only {
            return Err(Error::NotFound { dir: dir.to_path_buf() });
        }
        let mut dirs = Vec::new();
        for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
            if fs.exists(dir)? {
                break;
            }
            dirs.push(dir.to_path_buf());
        }
        fs.create_dir_all(dir)?;
        Ok(Traces { lock: Some(lock.to_path_buf()), dirs, was_empty: true })
    }

    /// There is no database: removes what was made. The caller holds the lock.
    pub fn remove(self, env: &Env) {
        let fs = &*env.fs;
        let Some((lock, dir)) = self.lock.as_deref().and_then(|lock| Some((lock, lock.parent()?))) else {
            return;
        };
        // What cannot be removed stays: the opening's own error is the one to report.
        if self.was_empty {
            remove_beginnings(env, dir);
        }
        if fs.remove(lock).is_ok() {
            // A directory that is not empty stays.
            let _ = self.dirs.iter().try_for_each(|dir| fs.remove_dir(dir));
        }
    }
}

/// Removes what a creation in `dir` has made, in an order that means the same to the next opening wherever
/// this is cut short: what a manifest may name before the manifest, the first manifest, which alone is a
/// creation cut short, after the others, and the pool last. If something cannot be removed, the rest stays.
///
/// Once `CURRENT` exists, everything stays: it is an empty database, which the next opening uses. Removals
/// reach the disk in any order, and a power cut could leave a pointer whose manifest has gone, or a pool
/// whose pointer has.
fn remove_beginnings(env: &Env, dir: &Path) {
    let Ok(paths) = env.fs.list(dir) else { return };
    let mut made: Vec<_> = paths.iter().filter_map(|path| Some((FileName::parse(path)?, path))).collect();
    if made.iter().any(|(name, _)| *name == FileName::Current) {
        return;
    }
    made.retain(|(name, _)| *name != FileName::Lock);
    made.sort_by_key(|(name, _)| match name {
        FileName::Manifest(number) => (1, Reverse(*number)),
        _ => (0, Reverse(0)),
    });
    if made.iter().all(|(_, path)| env.fs.remove(path).is_ok()) {
        let _ = env.pm.remove(&dir.join(POOL_NAME));
    }
}
