//! A disk that reports when a file is made or synced, and has as much room as a test sets.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_disk::{Access, BlockFile, FileLock, Fs, ReadFile, WriteFile};
use terrace_sim::World;

/// The action for when a file of the named kind has just been made, or synced by its name.
pub(super) type Hook = (&'static str, Box<dyn FnOnce() + Send>);

/// A disk that reports the next such file.
pub(super) struct Telling {
    fs: Arc<dyn Fs>,
    hook: Arc<Mutex<Option<Hook>>>,
    /// The most bytes that are free.
    pub free: AtomicU64,
}

impl Telling {
    pub fn new(world: &World) -> (Arc<Telling>, Arc<Mutex<Option<Hook>>>) {
        let hook = Arc::new(Mutex::new(None));
        let (fs, free) = (Arc::new(world.fs()), AtomicU64::new(u64::MAX));
        (Arc::new(Telling { fs, hook: hook.clone(), free }), hook)
    }

    fn tell(&self, path: &Path) {
        let hook = self.hook.lock().take_if(|(kind, _)| path.extension().is_some_and(|other| other == *kind));
        if let Some((_, hook)) = hook {
            hook();
        }
    }
}

impl std::fmt::Debug for Telling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fs.fmt(f)
    }
}

impl Fs for Telling {
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        let file = self.fs.create(path)?;
        self.tell(path);
        Ok(file)
    }

    fn create_reserved(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        let file = self.fs.create_reserved(path)?;
        self.tell(path);
        Ok(file)
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        self.fs.open_blocks(path, is_new)
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>> {
        self.fs.open(path, access)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.fs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.fs.remove(path)
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.fs.sync_file(path)?;
        self.tell(path);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.fs.sync_dir(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.fs.list(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.fs.exists(path)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.fs.create_dir_all(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.fs.lock(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        Ok(self.fs.free_bytes(path)?.min(self.free.load(Ordering::Relaxed)))
    }

    fn epoch(&self, dir: &Path) -> u64 {
        self.fs.epoch(dir)
    }

    fn available_memory(&self) -> Option<u64> {
        self.fs.available_memory()
    }
}
