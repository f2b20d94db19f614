//! What an opening makes before anybody knows whether there will be a database: directories, and the file of the lock.
//! Where there is none after all, they go again.
//!
//! Only what this opening made goes, and only if nothing else is there. The lock's file goes while it is held: who
//! waits for it finds that it has gone (`Fs::lock`).

use std::path::{Path, PathBuf};

use terrace_base::{Error, Result};
use terrace_disk::Fs;

use crate::options::Options;

/// What one opening has made.
#[derive(Debug)]
pub(super) struct Traces {
    /// The file of the lock, if it was not there.
    lock: Option<PathBuf>,
    /// Directories, the innermost first.
    dirs: Vec<PathBuf>,
}

impl Traces {
    /// Makes directory `dir`, unless it is there, and notes whether the file `lock` in it is.
    pub fn make(fs: &dyn Fs, dir: &Path, lock: &Path, options: &Options) -> Result<Traces> {
        if fs.exists(dir)? {
            let lock = (!fs.exists(lock)?).then(|| lock.to_path_buf());
            return Ok(Traces { lock, dirs: Vec::new() });
        }
        if !options.create_if_missing || options.read_only {
            return Err(Error::invalid(format!("there is no database in {}", dir.display())));
        }
        let mut dirs = Vec::new();
        for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
            if fs.exists(dir)? {
                break;
            }
            dirs.push(dir.to_path_buf());
        }
        fs.create_dir_all(dir)?;
        Ok(Traces { lock: Some(lock.to_path_buf()), dirs })
    }

    /// There is no database: removes what was made, if there is nothing else. The caller holds the lock.
    pub fn remove(self, fs: &dyn Fs) {
        let Some((lock, dir)) = self.lock.as_deref().and_then(|lock| Some((lock, lock.parent()?))) else {
            return;
        };
        let alone = fs.list(dir).is_ok_and(|files| files.iter().all(|path| path == lock));
        // What cannot be removed stays: the opening's own error is the one to tell of.
        if alone && fs.remove(lock).is_ok() {
            let _ = self.dirs.iter().try_for_each(|dir| fs.remove_dir(dir));
        }
    }
}
