//! A file that is appended to through a mapping: an append is a copy, and no call of the system.
//!
//! Blocks are reserved ahead in pieces, each as large as the file is by then, within bounds. Part of the file is
//! mapped, and what is appended is copied there. The bytes are then in the system's page cache, as after a write, and
//! outlive the process; a sync is `fdatasync`, as for any file. If that is not possible, at once or later, the file
//! becomes a plain one, cut to the appended bytes. That happens
//!
//! - on file systems other than ext4, XFS and tmpfs. A file system that writes changed blocks elsewhere has not
//!   reserved room for them, and a store without room is a fault instead of an error; over a network, errors come late;
//! - where reserving, mapping or making pages ready is refused for any reason but a full disk.
//!
//! 1. While there is a window the file is `reserved` bytes long, all of which have blocks, and reads as zeros from
//!    `file.len` on. Without one it is `file.len` bytes long, and a byte more where it was cut and would else look as
//!    if it had room.
//! 2. If a disk has no room for a piece, only the bytes that the append needs are reserved. If even that fails, the
//!    append is refused and nothing has changed.
//! 3. A store that faults fails the file for good, as a write that failed half-way does.
//! 4. So does cutting the file shorter than `reserved`. Stores may not notice that, so the length is checked before the
//!    file is made longer or shorter and at each sync: otherwise it would be made as long as before, with a hole in
//!    place of appended bytes.
//!
//! A file that is dropped keeps its room: the process may be dying, and the file may belong to another one by now.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, StatxFlags};
use rustix::io::Errno;
use rustix::process::Resource;
use terrace_base::{Error, ErrorKind, Result};

use super::retry;
use super::window::Window;
use super::write::RealWriteFile;
use crate::fs::{ROOM_UNIT_BYTES, WriteFile};

/// Bytes that are reserved at a time, at least and at most.
const LEAST_PIECE_BYTES: u64 = 64 << 10;
const MOST_PIECE_BYTES: u64 = 8 << 20;

/// File systems on which a block that is reserved is there for every later store: ext4 (and those before it, which
/// refuse to reserve), XFS, tmpfs.
const STAYING_PUT: [u64; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];

/// Creates `path`, with room if that is possible.
pub(super) fn create(path: &Path) -> Result<Box<dyn WriteFile>> {
    let file = RealWriteFile::create(path)?;
    let stays_put = rustix::fs::fstatfs(&file.file).is_ok_and(|fs| STAYING_PUT.contains(&(fs.f_type as u64)));
    Ok(if stays_put { Box::new(ReservedFile::new(file)) } else { Box::new(file) })
}

#[derive(Debug)]
struct ReservedFile {
    file: RealWriteFile,
    reserved: u64,
    window: Option<Window>,
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
    fn new(file: RealWriteFile) -> Self {
        ReservedFile { file, reserved: 0, window: None, is_plain: false }
    }

    /// Maps `bytes` more of the file and makes them ready to be stored to.
    fn prepare(&mut self, bytes: u64) -> Result<(), NoRoom> {
        let end = self.file.len + bytes;
        if let Some(window) = &mut self.window
            && window.prepare(end)?
        {
            return Ok(());
        }
        self.reserve(end)?;
        // The former window stays until this one is ready, so a failure changes nothing.
        let mut window = Window::map(&self.file.file, self.file.len..self.reserved)?;
        window.prepare(end)?;
        self.window = Some(window);
        Ok(())
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
        let ample = Some(needed.max(self.reserved + piece)).filter(|&ample| ample <= limit).unwrap_or(needed);
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
                let back = retry(|| rustix::fs::ftruncate(file, start));
                match Error::io(&self.file.path, "reserve", e.into()) {
                    error if error.kind() == ErrorKind::NoSpace && back.is_ok() => {
                        Err(NoRoom::Refused(error))
                    }
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
        self.shorten()
    }

    /// Makes a plain file end with the appended bytes.
    fn shorten(&mut self) -> Result<()> {
        if self.is_plain && self.reserved > self.file.len {
            self.truncate(self.file.len)?;
        }
        Ok(())
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
        let why = io::Error::other(
            "the file could not be written through its mapping: an I/O error, or it was cut",
        );
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
        let Some(window) = &mut self.window else { return Ok(()) };
        if !window.store(self.file.len, data) {
            return Err(self.fail());
        }
        self.file.len += data.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.file.usable()?;
        if !self.is_plain {
            self.check()?;
        }
        self.file.sync()
    }

    /// A mapping that has faulted cannot be used, so the bytes that are taken back are cut off.
    fn cut(&mut self, len: u64) -> Result<()> {
        if self.has_failed() {
            self.fail();
        }
        (self.window, self.is_plain) = (None, true);
        let found = len_of(&self.file.file).map_err(|e| Error::io(&self.file.path, "stat", e))?;
        // If somebody has cut the file shorter, it must not be filled with zeros.
        let len = len.min(self.file.len);
        if len < found {
            self.truncate(len)?;
            if len.is_multiple_of(ROOM_UNIT_BYTES) {
                self.truncate(len + 1)?;
            }
        }
        self.file.len = len;
        Ok(())
    }

    fn trim(&mut self) -> Result<()> {
        if self.is_plain { Ok(()) } else { self.make_plain() }
    }

    fn has_room(&self) -> bool {
        !self.is_plain
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

/// The length of `file`, and nothing else of it: since Linux 6.13 whoever asks for times has the next store set new ones,
/// and then the next `fdatasync` may write the inode, too, which makes it half as long again.
fn len_of(file: &File) -> io::Result<u64> {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE) {
        Ok(stat) => Ok(stat.stx_size),
        Err(_) => file.metadata().map(|found| found.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    use super::*;

    /// A file with room in a directory of its own; `None` where there are none.
    fn file() -> Option<(tempfile::TempDir, PathBuf, Box<dyn WriteFile>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut file = create(&path).unwrap();
        file.append(b"first ").unwrap();
        file.has_room().then_some((dir, path, file))
    }

    fn assert_holds(path: &Path, bytes: &[u8]) {
        let found = std::fs::read(path).unwrap();
        assert_eq!(&found[..bytes.len()], bytes);
        assert!(found[bytes.len()..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn what_is_appended_is_there_over_all_borders() {
        let Some((_dir, path, mut file)) = file() else { return };
        let mut all = b"first ".to_vec();
        for i in 0..400usize {
            let data = vec![i as u8 | 1; (i * 37) % 5000 + if i % 50 == 7 { 300_000 } else { 0 }];
            file.append(&data).unwrap();
            all.extend_from_slice(&data);
            assert_eq!(file.len(), all.len() as u64);
            if i % 40 == 0 {
                file.sync().unwrap();
                assert_holds(&path, &all);
            }
        }
        let room = std::fs::metadata(&path).unwrap().len() - file.len();
        assert!(room <= MOST_PIECE_BYTES, "{room}");
        file.trim().unwrap();
        assert!(!file.has_room());
        assert_eq!(std::fs::read(&path).unwrap(), all);
        file.append(b", and on").unwrap();
        file.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [&all[..], b", and on"].concat());
    }

    #[test]
    fn a_small_file_takes_little_room() {
        let Some((_dir, path, _file)) = file() else { return };
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LEAST_PIECE_BYTES);
    }

    #[test]
    fn what_is_cut_is_gone() {
        let Some((_dir, path, mut file)) = file() else { return };
        file.append(b"refused").unwrap();
        file.cut(6).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first ");
        file.append(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first second");
    }

    #[test]
    fn by_its_length_a_file_that_was_cut_has_no_room() {
        let Some((_dir, path, mut file)) = file() else { return };
        file.append(&[1; 5000]).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len().is_multiple_of(ROOM_UNIT_BYTES));
        file.cut(ROOM_UNIT_BYTES).unwrap();
        assert_eq!(
            (std::fs::metadata(&path).unwrap().len(), file.len()),
            (ROOM_UNIT_BYTES + 1, ROOM_UNIT_BYTES)
        );
        file.append(b"and on").unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found[ROOM_UNIT_BYTES as usize..], *b"and on");
    }

    /// Somebody cuts the file under its mapping. The store faults, the process lives, and the file takes nothing more.
    #[test]
    fn a_file_that_is_cut_under_its_mapping_fails() {
        let Some((_dir, path, mut file)) = file() else { return };
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        let error = file.append(b"into nothing").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("through its mapping"), "{error}");
        assert_eq!(file.append(b"again").unwrap_err().to_string(), error.to_string());
        assert_eq!(file.sync().unwrap_err().to_string(), error.to_string());
        assert!(file.trim().is_err());
        file.cut(6).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "it is not made longer");
        assert!(file.append(b"again").is_err() && file.sync().is_err());
    }

    /// Several files fault at the same time, and each reports only its own failure.
    #[test]
    fn only_the_file_that_faulted_fails() {
        std::thread::scope(|scope| {
            for t in 0..4 {
                scope.spawn(move || {
                    for i in 0..50 {
                        let Some((_dir, path, mut file)) = file() else { return };
                        let is_cut = (t + i) % 3 == 0;
                        if is_cut {
                            OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
                        }
                        assert_eq!(file.append(b"second").is_err(), is_cut);
                        if !is_cut {
                            assert_holds(&path, b"first second");
                        }
                    }
                });
            }
        });
    }

    /// Somebody cuts the file so that the next store meets nothing of it: what is appended then needs more room than is
    /// ready, or than there is, or is as large as what was cut off. None of it is acknowledged.
    #[test]
    fn a_file_that_is_cut_fails_where_no_store_meets_it() {
        let ready = 6 + LEAST_PIECE_BYTES as usize;
        for (before, cut_to, then) in [(0, 0, ready), (200_000, 0, 300_000), (200_000, 70_000, 60_000)] {
            let Some((_dir, path, mut file)) = file() else { return };
            file.append(&vec![1; before]).unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
            let error = file.append(&vec![2; then]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("it was cut"), "{error}");
            assert!(file.append(b"again").is_err() && file.sync().is_err() && file.trim().is_err());
            assert_eq!(std::fs::metadata(&path).unwrap().len(), cut_to, "it is not made longer");
        }
    }

    /// The page with the file's end stays mapped, and takes bytes that nobody finds again.
    #[test]
    fn a_file_that_is_cut_within_a_page_fails_at_its_sync_or_end() {
        for cut_to in [3, 4096] {
            let Some((_dir, path, mut file)) = file() else { return };
            OpenOptions::new().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
            file.append(b"nowhere").unwrap();
            assert!(file.trim().is_err() && file.sync().is_err() && file.append(b"again").is_err());
            let Some((_dir, path, mut file)) = self::file() else { return };
            OpenOptions::new().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
            assert!(file.sync().is_err() && file.trim().is_err());
        }
    }

    #[test]
    fn a_page_that_is_gone_behind_the_first_is_found_too() {
        let Some((_dir, path, mut file)) = file() else { return };
        file.append(&[7; 3000]).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(file.append(&[8; 3000]).is_err());
        file.cut(3006).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [&b"first "[..], &[7; 3000]].concat());
    }
}
