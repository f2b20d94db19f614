//! The environment of a database: files, persistent memory, background threads and time.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::clock::{Clock, SystemClock};
use terrace_base::exec::{Executor, ThreadPool};
use terrace_base::{Error, Result};
use terrace_disk::{Fs, RealFs};
use terrace_pmem::{Pool, PoolOptions};

/// A source of pools.
pub trait PmSpace: Send + Sync + Debug {
    /// Creates the pool `path`, which must not exist.
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool>;

    /// Opens the pool `path`.
    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool>;

    /// Whether there is a pool at `path`, or something else where none can be created. A blank device does
    /// not count.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Removes the pool `path`, if it exists; a device becomes blank.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Renames the pool `from`, which nobody has open, to `to`, and replaces what lies there; it is durable
    /// on return. Both must lie on one file system; a device cannot be renamed. The default implementation
    /// refuses.
    fn rename(&self, from: &Path, _to: &Path) -> Result<()> {
        Err(Error::io(from, "rename", std::io::ErrorKind::Unsupported.into()))
    }

    /// Makes the name of the pool `path` durable. A process killed during a [`rename`](Self::rename) may not
    /// have done so.
    fn sync_name(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    /// Whether `path` is a device, beside which nothing can lie.
    fn is_device(&self, _path: &Path) -> bool {
        false
    }

    /// Whether the folder is there in which `path` lies.
    fn has_folder(&self, _path: &Path) -> bool {
        true
    }

    /// The real place of `path`: the target of a link. `None`: the link leads nowhere.
    fn home(&self, path: &Path) -> Option<PathBuf> {
        Some(path.to_path_buf())
    }
}

/// Pools in files and on devices of this machine.
#[derive(Debug, Default)]
pub struct RealPm {
    /// Replaces the machine's boot id and what distinguishes a file from its copy; for tests.
    pub boot_id: Option<String>,
}

impl RealPm {
    /// With the machine's real boot id, for pools whose copies count as themselves.
    pub fn with_copies() -> RealPm {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        RealPm { boot_id: boot_id.map(|id| id.trim().to_owned()) }
    }

    fn options(&self, options: &PoolOptions) -> PoolOptions {
        PoolOptions { boot_id: self.boot_id.clone().or_else(|| options.boot_id.clone()), ..options.clone() }
    }
}

impl PmSpace for RealPm {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        Pool::create(path, &self.options(options))
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        Pool::open(path, &self.options(options))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Pool::exists(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if Pool::exists(path)? {
            Pool::remove(path)?;
        }
        if self.is_device(path) { Ok(()) } else { Pool::remove_unfinished(path) }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        RealFs.rename(from, to)?;
        self.sync_name(to)?;
        self.sync_name(from)
    }

    fn sync_name(&self, path: &Path) -> Result<()> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        RealFs.sync_dir(dir.unwrap_or(Path::new(".")))
    }

    fn is_device(&self, path: &Path) -> bool {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_char_device())
    }

    fn has_folder(&self, path: &Path) -> bool {
        path.parent().is_none_or(Path::exists)
    }

    fn home(&self, path: &Path) -> Option<PathBuf> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.is_symlink() => path.canonicalize().ok(),
            _ => Some(path.to_path_buf()),
        }
    }
}

/// Everything outside a database on which it depends. Tests swap in a simulated one.
#[derive(Debug, Clone)]
pub struct Env {
    /// The SSD.
    pub fs: Arc<dyn Fs>,
    /// Persistent memory.
    pub pm: Arc<dyn PmSpace>,
    /// Background work.
    pub executor: Arc<dyn Executor>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Seed of databases' hash tables; `None`: each draws a secret one. Somebody who knows it can choose keys
    /// that make a table slow.
    pub hash_seed: Option<u64>,
}

impl Env {
    /// This machine, with `threads` background threads, which all callers in this process that ask for the
    /// same number share. They are started only when there is work.
    pub fn real(threads: usize) -> Self {
        Env {
            fs: Arc::new(RealFs),
            pm: Arc::new(RealPm::default()),
            executor: ThreadPool::shared(threads),
            clock: Arc::new(SystemClock::new()),
            hash_seed: None,
        }
    }
}
