//! Handles of simulated files.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use terrace_base::{Error, ErrorKind, Result};

use super::content::Content;
use super::fault::FsEvent;
use super::state::FileId;
use super::{Disk, Shared};
use crate::fs::{FileLock, ROOM_UNIT_BYTES, ReadFile, Room, SYNCS_BEFORE_ROOM, WriteFile};
use crate::maps::{Mapping, Trial};
use crate::real::region::Region;

/// The most room that is made at a time. It is small, so that small files in tests reach its end often.
const MOST_ROOM_BYTES: u64 = 16 << 10;

/// One in so many times that room is made, the file becomes a plain one, as if it could not be mapped.
const PLAIN_ONE_IN: u64 = 16;

/// About a page: a failing read of several pages fails in one of them.
const PAGE_BYTES: usize = 4099;

/// What a call writes at once, whatever happens to its process.
const KERNEL_PAGE_BYTES: u64 = 4096;

/// Observers see one in so many appends half done.
const HALF_DONE_ONE_IN: u64 = 4;

/// A file being appended to. After a failed sync, and after an append that left a part of itself
/// behind, `failed` refuses everything.
pub(super) struct SimWriteFile {
    shared: Arc<Shared>,
    id: FileId,
    path: PathBuf,
    len: u64,
    failed: Option<Error>,
    /// Whether room is made behind the appended bytes.
    has_room: bool,
    had_room: bool,
    is_mapped: bool,
    /// Syncs until it is.
    syncs_before_room: u32,
}

impl SimWriteFile {
    pub(super) fn new(shared: Arc<Shared>, id: FileId, path: &Path, room: Option<Room>) -> Self {
        SimWriteFile {
            shared,
            id,
            path: path.to_path_buf(),
            len: 0,
            failed: None,
            has_room: room.is_some(),
            had_room: room.is_some(),
            is_mapped: room == Some(Room::Mapped),
            syncs_before_room: if room == Some(Room::Called) { SYNCS_BEFORE_ROOM } else { 0 },
        }
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
        self.make_room(disk, data.len() as u64)
    }

    /// Makes room for `bytes` more, or makes the file that much longer.
    fn make_room(&mut self, disk: &mut Disk, bytes: u64) -> Result<()> {
        let free = disk.free();
        let Some(inode) = disk.state.inode_mut(self.id) else { return Ok(()) };
        let missing = bytes.saturating_sub(inode.room);
        if missing == 0 {
            return Ok(());
        }
        if missing > free {
            return Err(Error::NoSpace { path: self.path.clone() });
        }
        if !self.has_room || self.syncs_before_room > 0 {
            return Ok(());
        }
        let (len, needed) = (inode.len(), (inode.len() + missing).next_multiple_of(ROOM_UNIT_BYTES));
        let ample = needed + len.min(MOST_ROOM_BYTES) / ROOM_UNIT_BYTES * ROOM_UNIT_BYTES;
        let fits = |end: &u64| end - len <= free;
        let end = Some(ample).filter(fits).or(Some(needed).filter(fits));
        match end.filter(|_| !draw(self.id, self.len, PLAIN_ONE_IN)) {
            Some(end) => inode.set_room(end - inode.content.len()),
            None => (self.has_room, inode.room) = (false, 0),
        }
        Ok(())
    }

    fn extend(&mut self, disk: &mut Disk, data: &[u8]) {
        if let Some(inode) = disk.state.inode_mut(self.id) {
            inode.append(data);
            self.len = inode.content.len();
        }
    }

    /// The number of bytes that are stored before an observer may look, since stores in place take effect one after the
    /// other, and a call that writes several pages is cut off between two of them when its process is killed.
    fn first_part(&self, bytes: usize) -> usize {
        if !draw(self.id, self.len, HALF_DONE_ONE_IN) {
            return 0;
        }
        let first = terrace_base::checksum::hash64(&self.len.to_le_bytes()) as usize % bytes;
        let end = self.len + first as u64;
        if self.has_room { first } else { (end - end % KERNEL_PAGE_BYTES).saturating_sub(self.len) as usize }
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
        let first = self.first_part(data.len());
        {
            let mut disk = shared.disk.lock();
            self.try_append(&mut disk, data, refused)?;
            self.extend(&mut disk, &data[..first]);
        }
        if first > 0 {
            shared.announce(FsEvent::Write { path: &self.path, bytes: (data.len() - first) as u64 });
        }
        let mut disk = shared.disk.lock();
        if first > 0 {
            // Stores before the faulting one have taken effect.
            let stored = disk.faults.step(&self.path, "write", true);
            self.failed = stored.as_ref().err().cloned();
            stored?;
        }
        self.extend(&mut disk, &data[first..]);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.usable()?;
        let synced = self.shared.sync(&self.path, true, |_| Ok(self.id));
        self.failed = synced.as_ref().err().cloned();
        self.syncs_before_room = self.syncs_before_room.saturating_sub(1);
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
                    // Otherwise the file would look as if it had room.
                    inode.set_room(u64::from(self.had_room && len.is_multiple_of(ROOM_UNIT_BYTES)));
                }
                Ok(())
            },
        )?;
        self.len = len;
        self.has_room = false;
        Ok(())
    }

    fn trim(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.has_room) {
            return Ok(());
        }
        let event = FsEvent::Write { path: &self.path, bytes: 0 };
        self.shared.change(event, &self.path, "truncate", |disk| {
            if let Some(inode) = disk.state.inode_mut(self.id) {
                inode.room = 0;
            }
            Ok(())
        })
    }

    fn is_mapped(&self) -> bool {
        self.is_mapped && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.has_room
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A decision that is true once in `one_in` times; the same for the same two numbers.
pub(super) fn draw(one: u64, other: u64, one_in: u64) -> bool {
    terrace_base::checksum::hash64(&[one.to_le_bytes(), other.to_le_bytes()].concat()).is_multiple_of(one_in)
}

impl Drop for SimWriteFile {
    fn drop(&mut self) {
        self.shared.disk.lock().let_go(self.id);
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

    /// A copy. A read through it that is made to fail sees a page of zeros.
    fn map(&self) -> Option<Mapping> {
        let mut disk = self.shared.disk.lock();
        if disk.state.without_maps || self.content.len() == 0 {
            return None;
        }
        let fill = |bytes: &mut [u8]| {
            let _ = self.content.read(0, bytes);
        };
        let mapping = Mapping::of_region(Region::of_bytes(self.content.len() as usize, fill)?);
        disk.hold_map(&mapping);
        let trial = MapTrial { shared: Arc::downgrade(&self.shared), path: self.path.clone() };
        Some(mapping.with_trial(Arc::new(trial)))
    }

    fn len(&self) -> u64 {
        self.content.len()
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// Lets reads through a mapping fail as those by calls do.
struct MapTrial {
    shared: Weak<Shared>,
    path: PathBuf,
}

impl Trial for MapTrial {
    fn fails_at(&self, range: Range<usize>) -> Option<usize> {
        let shared = self.shared.upgrade()?;
        let failed = shared.look(&self.path, "read", |_| Ok(())).is_err();
        // One page of the range that was to be read; always the same one for the same operation.
        let operations = shared.disk.lock().faults.operations as usize;
        failed.then(|| range.start + operations * PAGE_BYTES % range.len().max(1))
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
