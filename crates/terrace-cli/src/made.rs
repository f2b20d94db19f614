//! A database that a command is about to make. If the command fails and nothing is in the database, it is removed
//! again.

use std::path::{Path, PathBuf};

use terrace::manifest::FileName;
use terrace::{Options, PoolChoice};

/// Names of the pool in a database's own directory, whole or being made.
const POOL_NAMES: [&str; 2] = ["pool", "pool.new"];

/// The directories and files that were not there before.
#[derive(Debug)]
pub struct Made {
    dir: PathBuf,
    /// Directories, the innermost first.
    dirs: Vec<PathBuf>,
    /// A pool's file elsewhere.
    pool: Option<PathBuf>,
}

impl Made {
    /// Notes the state before a database is made in `dir`; `None` if `dir` is not empty.
    pub fn about_to(dir: &Path, options: &Options) -> Option<Made> {
        match std::fs::read_dir(dir) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return None;
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let dirs = dir.ancestors().take_while(missing).map(Path::to_path_buf).collect();
        let pool = match &options.pool {
            PoolChoice::Path(path) | PoolChoice::Emulated { path: Some(path), .. } => Some(path.clone()),
            PoolChoice::Auto | PoolChoice::Emulated { path: None, .. } => None,
        };
        Some(Made { dir: dir.to_path_buf(), dirs, pool: pool.filter(|pool| !pool.exists()) })
    }

    /// Removes the database: its files, and the directories that were made for them. Other files stay. The caller has
    /// closed it, and still holds its lock.
    pub fn remove(self) {
        // Files that cannot be removed stay: the command's own failure matters more.
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_pool = POOL_NAMES.iter().any(|name| entry.file_name() == *name);
            if is_pool || FileName::parse(&path).is_some() {
                let _ = std::fs::remove_file(&path);
            }
        }
        if let Some(pool) = self.pool.filter(|pool| pool.is_file()) {
            let _ = std::fs::remove_file(pool);
        }
        let _ = self.dirs.iter().try_for_each(std::fs::remove_dir);
    }
}
