//! Locks of files, held against other processes and against others in this one.
//!
//! 1. `HELD` lists what this process has locked, each once for each lock: an entry comes after the lock was got and
//!    goes before it is let go of. So a refused lock that is listed is this process's own.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use terrace_base::{Error, Result};

use super::retry;
use crate::fs::FileLock;

/// A file by the system's numbers, and the process that has locked it: a forked child does not hold the lock.
type Holding = (u64, u64, u32);

static HELD: Mutex<Vec<Holding>> = Mutex::new(Vec::new());

/// Locks the file that `open` gives as `how` says; `path` must name it then.
pub(super) fn lock_file(
    path: &Path,
    how: FlockOperation,
    open: impl Fn() -> Result<File>,
) -> Result<Box<dyn FileLock>> {
    loop {
        let file = open()?;
        match retry(|| rustix::fs::flock(&file, how)) {
            Ok(()) if is_at(&file, path)? => return Ok(Box::new(RealLock::new(file))),
            // The former holder of the lock has removed the file meanwhile; the file that has the name now counts.
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::Locked { path: path.to_path_buf(), here: is_held_here(&file) });
            }
            Err(e) => return Err(Error::io(path, "lock", e.into())),
        }
    }
}

/// Whether this process is known to have `file` locked.
fn is_held_here(file: &File) -> bool {
    holding(file).is_some_and(|holding| HELD.lock().contains(&holding))
}

fn holding(file: &File) -> Option<Holding> {
    file.metadata().ok().map(|meta| (meta.dev(), meta.ino(), std::process::id()))
}

/// Whether `path` names `file`.
fn is_at(file: &File, path: &Path) -> Result<bool> {
    let stat = |e| Error::io(path, "stat", e);
    let own = file.metadata().map_err(stat)?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (own.dev(), own.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(stat(e)),
    }
}

/// A locked file, unlocked when this goes.
#[derive(Debug)]
struct RealLock {
    file: File,
    holding: Option<Holding>,
}

impl RealLock {
    fn new(file: File) -> RealLock {
        let holding = holding(&file);
        HELD.lock().extend(holding);
        RealLock { file, holding }
    }
}

impl FileLock for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        if let Some(holding) = self.holding {
            let mut held = HELD.lock();
            if let Some(at) = held.iter().position(|other| *other == holding) {
                held.swap_remove(at);
            }
        }
        // Closing is not enough: a process that another thread is just starting also has the descriptor until it runs
        // its own program.
        let _ = retry(|| rustix::fs::flock(&self.file, FlockOperation::Unlock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Fs;
    use crate::real::RealFs;

    #[test]
    fn readers_lock_beside_each_other_and_not_beside_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let readers =
            [RealFs.lock_to_read(&path).unwrap().unwrap(), RealFs.lock_to_read(&path).unwrap().unwrap()];
        assert!(matches!(RealFs.lock(&path), Err(Error::Locked { here: true, .. })));
        drop(readers);
        let writer = RealFs.lock(&path).unwrap();
        assert!(matches!(RealFs.lock_to_read(&path), Err(Error::Locked { here: true, .. })));
        drop(writer);
        drop(RealFs.lock_to_read(&path).unwrap());
    }

    #[test]
    fn a_descriptor_that_a_starting_process_has_holds_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let file = File::create(&path).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let inherited = file.try_clone().unwrap();
        // It is not on this process's list, just like another process's lock.
        assert!(matches!(RealFs.lock(&path), Err(Error::Locked { here: false, .. })));
        let lock = RealLock::new(file);
        assert!(matches!(RealFs.lock(&path), Err(Error::Locked { here: true, .. })));
        drop(lock);
        RealFs.lock(&path).unwrap();
        drop(inherited);
    }
}
