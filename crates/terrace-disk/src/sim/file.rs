//! Handles of simulated files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::{Error, ErrorKind, Result};

use super::content::Content;
use super::fault::FsEvent;
use super::state::FileId;
use super::{Disk, Shared};
use crate::fs::{FileLock, ReadFile, WriteFile};

/// A file being appended to. After a failed sync, and after an append that left a part of itself
/// behind, `failed` refuses everything.
pub(super) struct SimWriteFile {
    shared: Arc<Shared>,
    id: FileId,
    path: PathBuf,
    len: u64,
    failed: Option<Error>,
}

impl SimWriteFile {
    pub(super) fn new(shared: Arc<Shared>, id: FileId, path: &Path) -> Self {
        SimWriteFile { shared, id, path: path.to_path_buf(), len: 0, failed: None }
    }

    fn usable(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Appends, or fails in one of the two ways the contract allows, by turns: nothing is left, or
    /// half is and the file takes no more.
    fn try_append(&mut self, disk: &mut Disk, data: &[u8], refused: Result<()>) -> Result<()> {
        let planned = disk.faults.step(&self.path, "write", true).and(refused);
        if let Err(error) = &planned
            && error.kind() != ErrorKind::NoSpace
            && disk.faults.changes.is_multiple_of(2)
        {
            self.failed = Some(error.clone());
            self.extend(disk, &data[..data.len() / 2]);
        }
        planned?;
        let room = disk.state.capacity.map_or(u64::MAX, |c| c.saturating_sub(disk.state.used(&disk.open)));
        if data.len() as u64 > room {
            return Err(Error::NoSpace { path: self.path.clone() });
        }
        self.extend(disk, data);
        Ok(())
    }

    fn extend(&mut self, disk: &mut Disk, data: &[u8]) {
        if let Some(inode) = disk.state.inode_mut(self.id) {
            inode.content.append(data);
            self.len = inode.content.len();
        }
    }
}

impl WriteFile for SimWriteFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.usable()?;
        if data.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        shared.announce(FsEvent::Write { path: &self.path, bytes: data.len() as u64 });
        let refused = shared.refused(&self.path, "write");
        let mut disk = shared.disk.lock();
        self.try_append(&mut disk, data, refused)
    }

    fn sync(&mut self) -> Result<()> {
        self.usable()?;
        let synced = self.shared.sync(&self.path, true, |_| Ok(self.id));
        self.failed = synced.as_ref().err().cloned();
        synced
    }

    fn cut(&mut self, len: u64) -> Result<()> {
        let len = len.min(self.len);
        self.shared.change(
            FsEvent::Write { path: &self.path, bytes: 0 },
            &self.path,
            "truncate",
            |disk| {
                if let Some(inode) = disk.state.inode_mut(self.id) {
                    inode.cut(len);
                }
                Ok(())
            },
        )?;
        self.len = len;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SimWriteFile {
    fn drop(&mut self) {
        let mut disk = self.shared.disk.lock();
        disk.descriptors -= 1;
        if let Some(count) = disk.open.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                disk.open.remove(&self.id);
            }
        }
    }
}

impl fmt::Debug for SimWriteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimWriteFile")
            .field("path", &self.path)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A file as it was when it was opened.
pub(super) struct SimReadFile {
    shared: Arc<Shared>,
    path: PathBuf,
    content: Content,
}

impl SimReadFile {
    pub(super) fn new(shared: Arc<Shared>, path: &Path, content: Content) -> Self {
        SimReadFile { shared, path: path.to_path_buf(), content }
    }
}

impl ReadFile for SimReadFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.shared.look(&self.path, "read", |_| Ok(()))?;
        if self.content.read(offset, buf) == buf.len() {
            return Ok(());
        }
        let (expected, found) = (format!("{} bytes", buf.len()), self.content.len());
        Err(Error::corruption(&self.path, offset, expected, format!("the file's end at {found}")))
    }

    fn len(&self) -> u64 {
        self.content.len()
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SimReadFile {
    fn drop(&mut self) {
        self.shared.disk.lock().descriptors -= 1;
    }
}

impl fmt::Debug for SimReadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimReadFile")
            .field("path", &self.path)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Unlocks when dropped.
pub(super) struct SimLock {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl SimLock {
    pub(super) fn new(shared: Arc<Shared>, path: &Path) -> Self {
        SimLock { shared, path: path.to_path_buf() }
    }
}

impl FileLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.shared.disk.lock().locks.remove(&self.path);
    }
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLock").field("path", &self.path).finish_non_exhaustive()
    }
}
