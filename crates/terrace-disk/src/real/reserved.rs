//! A file with room behind what was appended.
//!
//! Blocks are reserved ahead in pieces, each as large as the file is by then, within bounds. A sync is `fdatasync`, as
//! for any file, and seldom has to write the inode, too, since the file seldom becomes longer.
//!
//! With [`Room::Mapped`] part of the file is mapped, and what is appended is copied there, without a call of the system.
//! The bytes are then in the system's page cache, as after a write, and outlive the process. With [`Room::Called`] they
//! are written as to any file, and blocks are reserved from the second sync on: the first one makes the file's beginning
//! durable, and whoever then syncs once and is done has no use for room.
//!
//! A mapped file that is long and has not been synced for a while gets large pages. Each sync would write the page that
//! is being filled as a whole, so after the next one it is written by calls: then the system knows which blocks of a page
//! have changed. Syncs of the same file by others are not known here, and write as much.
//!
//! If that is not possible, at once or later, the file becomes a plain one, cut to the appended bytes. That happens
//!
//! - on file systems other than ext4, XFS and tmpfs. A file system that writes changed blocks elsewhere has not
//!   reserved room for them, and a store without room is a fault instead of an error; over a network, errors come late;
//! - where reserving, mapping or making pages ready is refused for any reason but a full disk.
//!
//! 1. Until it is a plain one the file is `reserved` bytes long, all of which have blocks, and reads as zeros from
//!    `file.len` on. A plain one is `file.len` bytes long, and a byte more where it was cut and would else look as if
//!    it had room.
//! 2. If a disk has no room for a piece, only the bytes that the append needs are reserved. If even that fails, the
//!    append is refused and nothing has changed.
//! 3. A store that faults fails the file for good, as a write that failed half-way does.
//! 4. So does cutting the file shorter than `reserved`. Stores and writes may not notice that, so the length is checked before the
//!    file is made longer or shorter and at each sync: otherwise it would be made as long as before, with a hole in
//!    place of appended bytes. The last byte of room is never written by a call, which would make the file as long.
//!
//! A file that is dropped keeps its room: the process may be dying, and the file may belong to another one by now.

use std::io;
use std::ops::Range;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::process::Resource;
use terrace_base::{Error, ErrorKind, Result};

use super::retry;
use super::window::{LARGE_BYTES, Large, Window};
use super::write::{RealWriteFile, len_of};
use crate::fs::{ROOM_UNIT_BYTES, Room, SYNCS_BEFORE_ROOM, WriteFile};

/// Bytes that are reserved at a time, at least and at most.
const LEAST_PIECE_BYTES: u64 = 64 << 10;
const MOST_PIECE_BYTES: u64 = 8 << 20;

/// A file of which so much is not synced is seldom synced, as far as one can tell.
const UNSYNCED_BYTES: u64 = LARGE_BYTES as u64 / 2;

/// File systems on which a block that is reserved is there for every later store: ext4 (and those before it, which
/// refuse to reserve), XFS, tmpfs.
const STAYING_PUT: [u64; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];

/// Creates `path`, with room if that is possible.
pub(super) fn create(path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
    let file = RealWriteFile::create(path)?;
    let stays_put = rustix::fs::fstatfs(&file.file).is_ok_and(|fs| STAYING_PUT.contains(&(fs.f_type as u64)));
    Ok(if stays_put { Box::new(ReservedFile::new(file, room)) } else { Box::new(file) })
}

#[derive(Debug)]
struct ReservedFile {
    file: RealWriteFile,
    room: Room,
    reserved: u64,
    window: Option<Window>,
    /// Writes do not go behind the file's end.
    writes_in_place: bool,
    syncs: u32,
    /// Its length at the last sync.
    synced: u64,
    /// The file was made a plain one.
    is_plain: bool,
}

/// The reason why there is no room in a window.
enum NoRoom {
    /// The disk is full, or the file has failed.
    Refused(Error),
    /// The file cannot be mapped.
    Unmapped,
}

impl ReservedFile {
    fn new(file: RealWriteFile, room: Room) -> Self {
        ReservedFile {
            file,
            room,
            reserved: 0,
            window: None,
            writes_in_place: false,
            syncs: 0,
            synced: 0,
            is_plain: false,
        }
    }

    /// Makes room for `bytes` more.
    fn prepare(&mut self, bytes: u64) -> Result<(), NoRoom> {
        let end = self.file.len + bytes;
        match self.room {
            Room::Mapped => self.prepare_window(end),
            Room::Called if self.syncs < SYNCS_BEFORE_ROOM => Ok(()),
            Room::Called => {
                self.reserve(end + 1)?;
                self.write_in_place(true)
            }
        }
    }

    /// Has writes go where they are told to, in front of the file's end, or behind it again.
    fn write_in_place(&mut self, is_wanted: bool) -> Result<(), NoRoom> {
        if self.room == Room::Called && is_wanted != self.writes_in_place {
            let flags = if is_wanted { OFlags::empty() } else { OFlags::APPEND };
            rustix::fs::fcntl_setfl(&self.file.file, flags)?;
            self.writes_in_place = is_wanted;
        }
        Ok(())
    }

    /// Maps the file up to byte `end` and makes it ready to be stored to.
    fn prepare_window(&mut self, end: u64) -> Result<(), NoRoom> {
        if let Some(window) = &mut self.window
            && window.prepare(end)?
        {
            return Ok(());
        }
        self.reserve(end)?;
        // The former window stays until this one is ready, so a failure changes nothing.
        let large = self.large_pages();
        let mut window = Window::map(&self.file.file, self.file.len..self.reserved, large)?;
        window.prepare(end)?;
        self.window = Some(window);
        Ok(())
    }

    /// Whether the next window has large pages.
    fn large_pages(&self) -> Large {
        let unsynced = self.file.len.saturating_sub(self.synced);
        match self.window.as_ref().map(Window::large) {
            Some(large @ (Large::Refused | Large::There)) => large,
            _ if unsynced >= UNSYNCED_BYTES => Large::Wanted,
            _ => Large::Unwanted,
        }
    }

    /// Has what follows a sync written by calls, if the system would write large pages for it else.
    fn leave_large_pages(&mut self) {
        match self.window.as_ref().map_or(Large::Unwanted, Window::large) {
            Large::There => {
                (self.window, self.room) = (None, Room::Called);
                self.syncs = self.syncs.max(SYNCS_BEFORE_ROOM);
            }
            Large::Wanted => self.window = None,
            Large::Unwanted | Large::Refused => {}
        }
    }

    /// Reserves blocks for the file's first `end` bytes, and for a further piece if the disk has room.
    fn reserve(&mut self, end: u64) -> Result<(), NoRoom> {
        if end <= self.reserved {
            return Ok(());
        }
        self.check().map_err(NoRoom::Refused)?;
        let piece = self.reserved.clamp(LEAST_PIECE_BYTES, MOST_PIECE_BYTES);
        let page = (rustix::param::page_size() as u64).max(ROOM_UNIT_BYTES);
        let needed = end.next_multiple_of(page);
        let limit = length_limit();
        if needed > limit {
            return Err(NoRoom::Unmapped);
        }
        let ample = needed.max((self.reserved + piece) / page * page);
        let ample = Some(ample).filter(|&ample| ample <= limit).unwrap_or(needed);
        match self.allocate(ample) {
            Err(NoRoom::Refused(_)) if needed < ample => self.allocate(needed),
            outcome => outcome,
        }
    }

    fn allocate(&mut self, end: u64) -> Result<(), NoRoom> {
        let Range { start, end } = self.reserved..end;
        let file = &self.file.file;
        match retry(|| rustix::fs::fallocate(file, FallocateFlags::empty(), start, end - start)) {
            Ok(()) => {
                self.reserved = end;
                Ok(())
            }
            Err(e) => {
                // A part of it may have been done.
                if retry(|| rustix::fs::ftruncate(file, start)).is_err() {
                    return Err(NoRoom::Refused(self.fail()));
                }
                match Error::io(&self.file.path, "reserve", e.into()) {
                    error if error.kind() == ErrorKind::NoSpace => Err(NoRoom::Refused(error)),
                    _ => Err(NoRoom::Unmapped),
                }
            }
        }
    }

    /// Makes the file a plain one that ends with the appended bytes.
    fn make_plain(&mut self) -> Result<()> {
        self.check()?;
        self.window = None;
        self.is_plain = true;
        let _ = self.write_in_place(false);
        self.shorten()
    }

    /// Makes a plain file end with the appended bytes.
    fn shorten(&mut self) -> Result<()> {
        if self.is_plain && self.reserved > self.file.len {
            self.truncate(self.file.len)?;
        }
        Ok(())
    }

    /// Appends `data`, for which there is room.
    fn store(&mut self, data: &[u8]) -> Result<()> {
        let Some(window) = &mut self.window else { return self.write(data) };
        if !window.store(self.file.len, data) {
            return Err(self.fail());
        }
        self.file.len += data.len() as u64;
        Ok(())
    }

    /// As `store`, by calls.
    fn write(&mut self, data: &[u8]) -> Result<()> {
        let outcome = self.file.append(data);
        match &outcome {
            Ok(()) => self.reserved = self.reserved.max(self.file.len),
            // What was written of it was taken back, with the room; or the file has failed.
            Err(_) => self.cut(self.file.len)?,
        }
        outcome
    }

    fn truncate(&mut self, len: u64) -> Result<()> {
        retry(|| rustix::fs::ftruncate(&self.file.file, len))
            .map_err(|e| Error::io(&self.file.path, "truncate", e.into()))?;
        self.reserved = len;
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.window.as_ref().is_some_and(Window::has_failed)
    }

    /// Fails the file if a store has faulted, or if the file is shorter than it was made.
    fn check(&mut self) -> Result<()> {
        let is_whole = |len: u64| len >= self.reserved;
        if self.has_failed() || !len_of(&self.file.file).is_ok_and(is_whole) {
            return Err(self.fail());
        }
        Ok(())
    }

    /// Refuses all further appends, since a store has faulted or the file was cut.
    fn fail(&mut self) -> Error {
        let why = io::Error::other("the file was cut, or could not be written through its mapping");
        self.file.failed.get_or_insert(Error::io(&self.file.path, "write", why)).clone()
    }
}

impl WriteFile for ReservedFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.file.usable()?;
        if self.is_plain || data.is_empty() {
            self.shorten()?;
            return self.file.append(data);
        }
        match self.prepare(data.len() as u64) {
            Ok(()) => {}
            Err(NoRoom::Refused(error)) => return Err(error),
            Err(NoRoom::Unmapped) => {
                self.make_plain()?;
                return self.file.append(data);
            }
        }
        self.store(data)
    }

    fn sync(&mut self) -> Result<()> {
        self.file.usable()?;
        if !self.is_plain {
            self.check()?;
        }
        self.file.sync()?;
        self.syncs = self.syncs.saturating_add(1);
        self.synced = self.file.len;
        self.leave_large_pages();
        Ok(())
    }

    /// Large pages are left alone: they would be written as a whole, and again when they are full.
    fn start_sync(&mut self) {
        if self.large_pages() != Large::There {
            self.file.start_sync();
        }
    }

    /// A mapping that has faulted cannot be used, so the bytes that are taken back are cut off.
    fn cut(&mut self, len: u64) -> Result<()> {
        if self.has_failed() {
            self.fail();
        }
        (self.window, self.is_plain) = (None, true);
        // Where that is refused writes go on to be told their place.
        let _ = self.write_in_place(false);
        let found = len_of(&self.file.file).map_err(|e| Error::io(&self.file.path, "stat", e))?;
        let len = len.min(self.file.len);
        if found < len {
            // Somebody has cut the file shorter. It must not be filled with zeros.
            self.fail();
            return Ok(());
        }
        self.truncate(len)?;
        self.file.len = len;
        if len.is_multiple_of(ROOM_UNIT_BYTES) {
            self.truncate(len + 1)?;
        }
        Ok(())
    }

    fn trim(&mut self) -> Result<()> {
        if self.is_plain { Ok(()) } else { self.make_plain() }
    }

    fn has_room(&self) -> bool {
        !self.is_plain
    }

    fn is_mapped(&self) -> bool {
        !self.is_plain && self.room == Room::Mapped
    }

    fn len(&self) -> u64 {
        self.file.len
    }

    fn path(&self) -> &Path {
        &self.file.path
    }
}

impl From<Errno> for NoRoom {
    fn from(_: Errno) -> NoRoom {
        NoRoom::Unmapped
    }
}

/// The longest file that this process may have: asking for more is answered by a signal.
pub(super) fn length_limit() -> u64 {
    rustix::process::getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
