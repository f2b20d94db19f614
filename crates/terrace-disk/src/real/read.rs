//! Reading a real file, through the page cache or past it.
//!
//! A direct read must start and end on a block boundary, in memory and on the disk. Callers ask for any range; it is
//! widened here to whole blocks of [`ALIGN_BYTES`], read into an aligned buffer, and copied out. A file system that
//! refuses direct reads is read through the page cache.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags};
use terrace_base::{Error, Result};

use super::region::Region;
use crate::fs::{Access, ReadFile};
use crate::maps::Mapping;

/// The alignment of direct reads: a multiple of every sector size in use.
const ALIGN_BYTES: usize = 4096;

/// The largest direct read submitted at once, and the most that a thread keeps for them.
const BOUNCE_BYTES: usize = 256 << 10;

thread_local! {
    /// Reused between direct reads; grows as needed, to at most `BOUNCE_BYTES` and the skew.
    static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An immutable file being read.
#[derive(Debug)]
pub(super) struct RealReadFile {
    file: File,
    direct: Option<Direct>,
    path: PathBuf,
    len: u64,
}

/// A second descriptor that goes past the page cache, until it is refused.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) file: File,
    refused: AtomicBool,
}

impl Direct {
    /// Whether it was not refused yet.
    pub(super) fn is_usable(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// The file system refuses direct reads after all.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }
}

impl RealReadFile {
    pub(super) fn open(path: &Path, access: Access) -> Result<Self> {
        let file = super::open_to_read(path).map_err(|e| Error::io(path, "open", e))?;
        let stat = file.metadata().map_err(|e| Error::io(path, "stat", e))?;
        let advice = if access == Access::Sequential { Advice::Sequential } else { Advice::Random };
        // Advice only: a file system that has no use for it reads all the same.
        let _ = rustix::fs::fadvise(&file, 0, None, advice);
        let direct = if access == Access::Direct { open_direct(path, false)? } else { None };
        Ok(RealReadFile { file, direct, path: path.to_path_buf(), len: stat.len() })
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(self.too_short(offset, len, self.len)),
        }
    }

    fn too_short(&self, offset: u64, len: usize, found: u64) -> Error {
        Error::corruption(&self.path, offset, format!("{len} bytes"), format!("the file's end at {found}"))
    }

    fn read_buffered(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.too_short(offset, buf.len(), offset),
            _ => Error::io(&self.path, "read", e),
        })
    }

    /// Whether all of `buf` was read past the page cache; false if that is not possible.
    fn read_direct(&self, offset: u64, buf: &mut [u8]) -> Result<bool> {
        let Some(direct) = self.direct.as_ref().filter(|direct| direct.is_usable()) else {
            return Ok(false);
        };
        match BOUNCE.with_borrow_mut(|bounce| read_blocks(&direct.file, offset, buf, bounce)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                direct.refuse();
                Ok(false)
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.too_short(offset, buf.len(), offset))
            }
            Err(e) => Err(Error::io(&self.path, "read", e)),
        }
    }
}

impl ReadFile for RealReadFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(offset, buf.len())?;
        if self.read_direct(offset, buf)? { Ok(()) } else { self.read_buffered(offset, buf) }
    }

    /// Announces every range first, so that the disk works on all of them while the first is copied.
    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        if reads.len() > 1 && self.direct.is_none() {
            reads.iter().for_each(|(offset, buf)| self.will_need(*offset, buf.len() as u64));
        }
        reads.iter_mut().try_for_each(|(offset, buf)| self.read_at(*offset, buf))
    }

    /// Reads past the page cache have no use for what would be read into it.
    fn will_need(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len).filter(|_| self.direct.is_none()) {
            // Advice only: a file system that has no use for it reads all the same.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    /// The length is read anew: a load behind the end of a file that was cut meanwhile would fault.
    fn map(&self) -> Option<Mapping> {
        let is_whole = self.file.metadata().is_ok_and(|stat| stat.len() == self.len);
        is_whole.then(|| Region::of_file(&self.file, self.len)).flatten().map(Mapping::of_region)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens the file at `path` to go past the page cache, to write, too, if it `is_written`; `None` if the file system has
/// no such way.
pub(super) fn open_direct(path: &Path, is_written: bool) -> Result<Option<Direct>> {
    let flags = OFlags::DIRECT.bits() as i32;
    match File::options().read(true).write(is_written).custom_flags(flags).open(path) {
        Ok(file) => Ok(Some(Direct { file, refused: AtomicBool::new(false) })),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(e) => Err(Error::io(path, "open", e)),
    }
}

/// Fills `buf` from `offset` by reads of whole blocks.
fn read_blocks(file: &File, mut offset: u64, mut buf: &mut [u8], bounce: &mut Vec<u8>) -> io::Result<()> {
    while !buf.is_empty() {
        let skip = (offset % ALIGN_BYTES as u64) as usize;
        let span = (skip + buf.len()).next_multiple_of(ALIGN_BYTES).min(BOUNCE_BYTES);
        let take = buf.len().min(span - skip);
        let block = aligned(bounce, span);
        fill(file, block, offset - skip as u64, skip + take)?;
        let (head, rest) = buf.split_at_mut(take);
        head.copy_from_slice(&block[skip..skip + take]);
        buf = rest;
        offset += take as u64;
    }
    Ok(())
}

/// Reads into `block` from `offset` until its first `need` bytes are there; the file may end within it.
fn fill(file: &File, block: &mut [u8], offset: u64, need: usize) -> io::Result<()> {
    let mut got = 0;
    while got < need {
        match file.read_at(&mut block[got..], offset + got as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // A short read is resumed at a block boundary; otherwise it would be refused.
            Ok(n) if got + n >= need => return Ok(()),
            Ok(n) if n < ALIGN_BYTES => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n - n % ALIGN_BYTES,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// `span` bytes of `bounce` that start on a block boundary in memory.
fn aligned(bounce: &mut Vec<u8>, span: usize) -> &mut [u8] {
    if bounce.len() < span + ALIGN_BYTES {
        bounce.resize(span + ALIGN_BYTES, 0);
    }
    let skew = bounce.as_ptr().align_offset(ALIGN_BYTES);
    &mut bounce[skew..skew + span]
}
