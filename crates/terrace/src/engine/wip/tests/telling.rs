//! A disk that reports when a file is made or synced, and has as much room as a test sets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_disk::{Fs, Room, WriteFile, forward_fs};
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
    forward_fs! { self, self.fs;
        open_blocks open rename remove sync_dir list exists create_dir_all lock epoch available_memory
    }

    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        let file = self.fs.create(path)?;
        self.tell(path);
        Ok(file)
    }

    fn create_reserved(&self, path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
        let file = self.fs.create_reserved(path, room)?;
        self.tell(path);
        Ok(file)
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.fs.sync_file(path)?;
        self.tell(path);
        Ok(())
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        Ok(self.fs.free_bytes(path)?.min(self.free.load(Ordering::Relaxed)))
    }
}
