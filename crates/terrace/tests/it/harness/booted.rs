//! Real files, as a machine finds them that was booted anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace::env::RealPm;
use terrace::{Env, Result};
use terrace_base::checksum::hash64;
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_disk::{Access, BlockFile, FileLock, Fs, ReadFile, RealFs, WriteFile};

/// The files as a machine finds them that was booted anew, whatever the boot is called.
#[derive(Debug)]
struct Booted(&'static str);

impl Fs for Booted {
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        RealFs.create(path)
    }

    fn create_reserved(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        RealFs.create_reserved(path)
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        RealFs.open_blocks(path, is_new)
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>> {
        RealFs.open(path, access)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        RealFs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        RealFs.remove(path)
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        RealFs.sync_file(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        RealFs.sync_dir(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        RealFs.list(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        RealFs.exists(path)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        RealFs.create_dir_all(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        RealFs.remove_dir(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        RealFs.lock(path)
    }

    fn lock_to_read(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        RealFs.lock_to_read(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        RealFs.free_bytes(path)
    }

    fn epoch(&self, _dir: &Path) -> u64 {
        hash64(self.0.as_bytes()).max(1)
    }
}

/// The environment of a process in that boot.
pub fn booted(boot: &'static str) -> Env {
    Env {
        fs: Arc::new(Booted(boot)),
        pm: Arc::new(RealPm { boot_id: Some(boot.into()) }),
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: None,
    }
}
