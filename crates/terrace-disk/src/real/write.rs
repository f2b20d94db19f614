//! Appending to a real file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};
use terrace_base::{Error, Result};

use super::retry;
use crate::fs::WriteFile;

/// A file being appended to. `len` bytes of it are whole appends; `failed` is the error after which
/// the file's contents are no longer known, and sticks.
#[derive(Debug)]
pub(super) struct RealWriteFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) len: u64,
    pub(super) failed: Option<Error>,
    /// Bytes that the system was asked to write to the medium.
    started: u64,
}

impl RealWriteFile {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            // A file that is mapped to be written must be open for reading, too.
            .read(true)
            .append(true)
            .create_new(true)
            .open(path)
            .map_err(|e| Error::io(path, "create", e))?;
        Ok(RealWriteFile { file, path: path.to_path_buf(), len: 0, failed: None, started: 0 })
    }

    pub(super) fn usable(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Takes back a part of a failed append. If even that fails the file ends in bytes that nobody appended, and if it is
    /// shorter than what was appended somebody has cut it: then it must take no more. It says why by itself: room on a
    /// full disk helps a file that can go on, and this one cannot.
    fn take_back(&mut self, error: Error) -> Error {
        let cut = || {
            let found = len_of(&self.file)?;
            if found < self.len {
                return Err(io::Error::other("the file was cut"));
            }
            Ok(retry(|| rustix::fs::ftruncate(&self.file, self.len))?)
        };
        if let Err(e) = cut() {
            self.failed = Some(Error::io(&self.path, "truncate", e));
        }
        error
    }
}

impl WriteFile for RealWriteFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.usable()?;
        match write_all(&mut Behind { file: &self.file, at: self.len }, data) {
            Ok(()) => {
                self.len += data.len() as u64;
                Ok(())
            }
            Err(e) => Err(self.take_back(Error::io(&self.path, "write", e))),
        }
    }

    fn sync(&mut self) -> Result<()> {
        self.usable()?;
        retry(|| rustix::fs::fdatasync(&self.file)).map_err(|e| {
            let error = Error::io(&self.path, "sync", e.into());
            self.failed = Some(error.clone());
            error
        })
    }

    /// The last page is left alone: what is appended to it next could have to wait for it. An error fails the file, since
    /// the next sync need not tell it again.
    fn start_sync(&mut self) {
        let page = rustix::param::page_size() as u64;
        let to = self.len / page * page;
        if to <= self.started || self.failed.is_some() {
            return;
        }
        if let Err(e) = begin_writing(&self.file, self.started, to - self.started) {
            self.failed = Some(Error::io(&self.path, "write", e));
        }
        self.started = to;
    }

    fn cut(&mut self, len: u64) -> Result<()> {
        let len = len.min(self.len);
        retry(|| rustix::fs::ftruncate(&self.file, len))
            .map_err(|e| Error::io(&self.path, "truncate", e.into()))?;
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

/// Writes to `file`, beginning at byte `at`. While the file is open to append, which is as it is created, the system writes
/// at its end instead: that is the same place unless somebody has cut the file, which is then noticed by its length.
struct Behind<'a> {
    file: &'a File,
    at: u64,
}

impl Write for Behind<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(data, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has the system begin to write the `len` bytes of `file` from `from` on to the medium, if it knows how.
#[cfg(target_os = "linux")]
fn begin_writing(file: &File, from: u64, len: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let (fd, from, len) = (file.as_raw_fd(), from as libc::off64_t, len as libc::off64_t);
    // SAFETY: a call with numbers alone, of which the descriptor is open for as long as the file is borrowed.
    if unsafe { libc::sync_file_range(fd, from, len, libc::SYNC_FILE_RANGE_WRITE) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EIO | libc::ENOSPC | libc::EDQUOT)) => Err(e),
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn begin_writing(_file: &File, _from: u64, _len: u64) -> io::Result<()> {
    Ok(())
}

/// The length of `file`, and nothing else of it: since Linux 6.13 whoever asks for times has the next store set new ones,
/// and then the next `fdatasync` may write the inode, too, which makes it half as long again.
pub(super) fn len_of(file: &File) -> io::Result<u64> {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE) {
        Ok(stat) => Ok(stat.stx_size),
        Err(_) => file.metadata().map(|found| found.len()),
    }
}

/// Writes all of `data`, through interruptions and short writes.
fn write_all(to: &mut impl Write, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match to.write(data) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => data = &data[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes at most three bytes at a time and is interrupted before each.
    #[derive(Default)]
    struct Grudging {
        taken: Vec<u8>,
        calls: usize,
        fails_at: Option<usize>,
    }

    impl Write for Grudging {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if Some(self.calls) == self.fails_at {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if self.calls % 2 == 1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let n = buf.len().min(3);
            self.taken.extend_from_slice(&buf[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn short_and_interrupted_writes_are_gone_on_with() {
        let mut to = Grudging::default();
        write_all(&mut to, b"abcdefgh").unwrap();
        assert_eq!(to.taken, b"abcdefgh");
    }

    #[test]
    fn a_full_disk_ends_the_write() {
        let mut to = Grudging { fails_at: Some(4), ..Grudging::default() };
        let error = write_all(&mut to, b"abcdefgh").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(to.taken, b"abc");
    }

    #[test]
    fn what_is_cut_is_gone_and_the_file_goes_on_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RealWriteFile::create(&dir.path().join("f")).unwrap();
        file.append(b"kept and refused").unwrap();
        file.cut(4).unwrap();
        file.cut(9).unwrap();
        assert_eq!((std::fs::read(file.path()).unwrap(), file.len()), (b"kept".to_vec(), 4));
        file.append(b", and on").unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"kept, and on");
    }

    #[test]
    fn a_started_sync_changes_nothing_that_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RealWriteFile::create(&dir.path().join("f")).unwrap();
        let mut all = Vec::new();
        for i in 0..20u8 {
            let data = vec![i; usize::from(i) * 1000];
            file.append(&data).unwrap();
            all.extend_from_slice(&data);
            file.start_sync();
            file.start_sync();
        }
        file.cut(50_000).unwrap();
        file.start_sync();
        file.append(b"and on").unwrap();
        file.sync().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), [&all[..50_000], b"and on"].concat());
    }

    #[test]
    fn a_failed_append_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RealWriteFile::create(&dir.path().join("f")).unwrap();
        file.append(b"kept").unwrap();
        write_all(&mut Behind { file: &file.file, at: 4 }, b"half of a lost append").unwrap();
        file.take_back(Error::io(Path::new("f"), "write", io::ErrorKind::StorageFull.into()));
        file.append(b", and on").unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"kept, and on");
        assert_eq!(file.len(), 12);
    }

    /// Must catch a file that takes no more and calls it a lack of room, which would be waited for.
    #[test]
    fn an_append_that_cannot_be_taken_back_is_no_lack_of_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = RealWriteFile::create(&dir.path().join("f")).unwrap();
        file.append(b"kept").unwrap();
        file.file.set_len(2).unwrap();
        let refused = file.take_back(Error::io(Path::new("f"), "write", io::ErrorKind::StorageFull.into()));
        assert!(refused.is_out_of_space());
        let (append, sync) = (file.append(b"more").unwrap_err(), file.sync().unwrap_err());
        assert!(!append.is_out_of_space() && !sync.is_out_of_space(), "{append}, {sync}");
        assert!(append.to_string().contains("the file was cut"), "{append}");
    }
}
