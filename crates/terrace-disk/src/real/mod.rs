//! The machine's own files.
//!
//! Nothing is kept in memory but open descriptors and mappings of files being written: every call goes to the system,
//! and every error says which file and which operation.
//!
//! | file | what it owns |
//! |---|---|
//! | `read.rs`, `write.rs` | files being read, and appended to by calls |
//! | `reserved.rs`, `window.rs` | files being appended to with room: through a mapping, or by calls |
//! | `blocks.rs` | files of sectors |
//! | `queue.rs`, `ring.rs` | many reads or writes of a file, one after the other and side by side |
//! | `device.rs` | properties that drives report |
//! | `region.rs` | mappings that whole files are read through |
//! | `bus.rs`, `signal.rs` | faults of mappings, and their signal handler |
//! | `lock.rs` | locks of files |
//! | `memory.rs` | how much memory is available for data read |
//! | `epoch.rs` | names of page caches |

mod begun;
mod blocks;
pub(crate) mod bus;
mod device;
mod epoch;
mod lock;
mod memory;
mod queue;
mod read;
pub(crate) mod region;
mod reserved;
mod ring;
mod signal;
mod window;
mod write;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use terrace_base::{Error, Result};

use crate::block::BlockFile;
use crate::fs::{Access, FileLock, Fs, ReadFile, Room, WriteFile};

/// The file system of the machine.
///
/// ```
/// use terrace_disk::{Fs, RealFs};
/// let dir = tempfile::tempdir().unwrap();
/// let path = dir.path().join("a");
/// let mut file = RealFs.create(&path)?;
/// file.append(b"bytes")?;
/// file.sync()?; // the bytes are durable,
/// RealFs.sync_dir(dir.path())?; // and now the name is too
/// assert_eq!(RealFs.read(&path)?, b"bytes");
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFs;

impl Fs for RealFs {
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        Ok(Box::new(write::RealWriteFile::create(path)?))
    }

    fn create_reserved(&self, path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
        reserved::create(path, room)
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        Ok(Arc::new(blocks::RealBlockFile::open(path, is_new)?))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>> {
        Ok(Arc::new(read::RealReadFile::open(path, access)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(|e| Error::io(from, "rename", e))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        fs::hard_link(from, to).map_err(|e| Error::io(from, "link", e))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|e| Error::io(path, "remove", e))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        let file = open_to_read(path).map_err(|e| Error::io(path, "open", e))?;
        retry(|| rustix::fs::fdatasync(&file)).map_err(|e| Error::io(path, "sync", e.into()))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let dir = open_dir(path).map_err(|e| Error::io(path, "open", e))?;
        match retry(|| rustix::fs::fsync(&dir)) {
            // Some file systems keep names durable by other means and have no such call.
            Err(Errno::INVAL | Errno::NOTSUP) | Ok(()) => Ok(()),
            Err(e) => Err(Error::io(path, "sync directory", e.into())),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(|e| Error::io(path, "list", e))? {
            let entry = entry.map_err(|e| Error::io(path, "list", e))?;
            let kind = entry.file_type().map_err(|e| Error::io(&entry.path(), "stat", e))?;
            if !kind.is_dir() {
                files.push(entry.path());
            }
        }
        files.sort();
        Ok(files)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match path.try_exists() {
            // A path below something that is not a directory does not exist.
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => Ok(false),
            found => found.map_err(|e| Error::io(path, "stat", e)),
        }
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        if let Some(parent) = parent_of(path)
            && !self.exists(parent)?
        {
            self.create_dir_all(parent)?;
        }
        match fs::create_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
                self.sync_existing_parent(path)
            }
            Err(e) => Err(Error::io(path, "create directory", e)),
            Ok(()) => self.sync_dir(parent_of(path).unwrap_or(Path::new("."))),
        }
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        fs::remove_dir(path).map_err(|e| Error::io(path, "remove directory", e))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let open = || make_or_open(path).map_err(|e| Error::io(path, "open", e));
        lock::lock_file(path, FlockOperation::NonBlockingLockExclusive, open)
    }

    fn lock_to_read(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        let open = || match open_to_read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_or_open(path).map_err(|e| Error::io(path, "make the file of the lock", e))
            }
            opened => opened.map_err(|e| Error::io(path, "open", e)),
        };
        match lock::lock_file(path, FlockOperation::NonBlockingLockShared, open) {
            Err(Error::Io { cause, .. }) if cause.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(None),
            locked => locked.map(Some),
        }
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        match rustix::fs::statvfs(path) {
            Ok(stat) => Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
            // For something that does not exist yet the parent gives the answer.
            Err(Errno::NOENT) if parent_of(path).is_some() => {
                self.free_bytes(parent_of(path).unwrap_or(Path::new(".")))
            }
            Err(e) => Err(Error::io(path, "statvfs", e.into())),
        }
    }

    fn epoch(&self, dir: &Path) -> u64 {
        epoch::of(dir)
    }

    fn available_memory(&self) -> Option<u64> {
        memory::available()
    }

    fn resident_memory(&self) -> Option<u64> {
        memory::resident()
    }
}

impl RealFs {
    /// Makes the name of an existing directory durable: its maker may have died before doing so. A parent that this
    /// user may not read was not made by this user either.
    fn sync_existing_parent(&self, path: &Path) -> Result<()> {
        match self.sync_dir(parent_of(path).unwrap_or(Path::new("."))) {
            Err(Error::Io { cause, .. }) if cause.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            other => other,
        }
    }
}

/// How many files this process may have open at a time; `None` if that is not limited.
pub fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

fn make_or_open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    regular(options.custom_flags(AT_ONCE).open(path)?)
}

/// Opening a pipe would wait for a writer, and there may be none.
const AT_ONCE: i32 = OFlags::NONBLOCK.bits() as i32;

/// Opens a file to read it. Anything but a file or a directory is refused at once.
fn open_to_read(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(AT_ONCE).open(path)?)
}

fn regular(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_dir() {
        true => Ok(file),
        false => Err(io::Error::other("it is a pipe, a socket or a device, and no file")),
    }
}

/// The directory that holds `path`'s name; the current one for a bare name, none for a root.
fn parent_of(path: &Path) -> Option<&Path> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

fn open_dir(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(retry(|| rustix::fs::open(path, flags, Mode::empty())).map(File::from)?)
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
