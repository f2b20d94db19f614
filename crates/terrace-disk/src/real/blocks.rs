//! Real files of sectors.
//!
//! Reads and writes go past the page cache (`O_DIRECT`), several at a time, where file system and system allow that;
//! where they refuse that, at once or later, they go through the page cache.
//!
//! The cost of a `sync` depends on the drive. A drive with a write cache that a power cut empties is asked to flush it.
//! A drive that reports no such cache ([`device`]) has nothing to flush. However, the file system's note that a block
//! is now in use is not durable by itself. So the *allocated* blocks are tracked: those that were written and synced,
//! and not given back since. A write to allocated blocks alone is made durable by the write itself (`RWF_DSYNC`). That
//! costs such a drive nothing, unless file system or drive are not as they are believed to be. After any other write a
//! `sync` is `fdatasync`, and the blocks that it covers are then allocated.
//!
//! 1. Blocks in `allocated` are durably in use, or a write to them is durable all the same.
//! 2. A sync or a discard holds `syncing`, so the blocks that a sync covers are not given back meanwhile.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FallocateFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use terrace_base::{Error, Result};

use super::begun::BegunReads;
use super::queue::{Calls, Pieces, Way, drive};
use super::read::{Direct, open_direct};
use super::ring::{Ring, Rings};
use super::{device, retry};
use crate::block::{BlockBuf, BlockFile, BlockReads, BlockWrite, Geometry, LEAST_SECTOR_BYTES, read_later};
use crate::extents::Extents;

/// The flag that asks for the alignment of direct reads and writes (`STATX_DIOALIGN`, Linux 6.1).
const DIRECT_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);

/// The largest buffer through which unaligned memory is copied for one write or read.
const BOUNCE_BYTES: usize = 4 << 20;

/// The block size of most file systems, the unit in which space is given back; also the sector size where it is not
/// known.
const FILE_BLOCK_BYTES: u32 = 4096;

/// A file of sectors.
#[derive(Debug)]
pub(super) struct RealBlockFile {
    file: File,
    direct: Option<Direct>,
    path: PathBuf,
    geometry: Geometry,
    len: AtomicU64,
    growing: Mutex<()>,
    syncing: Mutex<()>,
    state: Mutex<Durability>,
    rings: Rings,
}

/// The durable part of a file on a drive without a volatile cache; not tracked on other drives.
#[derive(Debug, Default)]
struct Durability {
    allocated: Extents,
    /// The ranges outside of `allocated` that were written since the last sync.
    fresh: Extents,
    /// It was grown, or some of it given back, since the last sync.
    is_changed: bool,
}

impl RealBlockFile {
    pub(super) fn open(path: &Path, is_new: bool) -> Result<Self> {
        let operation = if is_new { "create" } else { "open" };
        let mut options = File::options();
        options.read(true).write(true).create_new(is_new).custom_flags(super::AT_ONCE);
        let file = options.open(path).and_then(super::regular).map_err(|e| Error::io(path, operation, e))?;
        let (geometry, can_be_direct) = geometry(path)?;
        let direct = if can_be_direct { open_direct(path, true)? } else { None };
        let len = file.metadata().map_err(|e| Error::io(path, "stat", e))?.len();
        let opened = RealBlockFile {
            direct,
            path: path.to_path_buf(),
            geometry,
            len: AtomicU64::new(len / u64::from(geometry.sector_bytes) * u64::from(geometry.sector_bytes)),
            growing: Mutex::default(),
            syncing: Mutex::default(),
            state: Mutex::default(),
            rings: Rings::default(),
            file,
        };
        if !geometry.is_volatile && len > 0 {
            opened.find_allocated()?;
        }
        Ok(opened)
    }

    /// Makes writes of earlier users of the file durable, and finds the ranges for which the file system has data.
    fn find_allocated(&self) -> Result<()> {
        let end = self.len();
        self.sync_file()?;
        let (mut at, mut allocated) = (0, Extents::default());
        while at < end {
            // A file system that cannot tell is taken to have data everywhere, or nowhere.
            let Ok(start) = rustix::fs::seek(&self.file, SeekFrom::Data(at)) else { break };
            let Ok(stop) = rustix::fs::seek(&self.file, SeekFrom::Hole(start)) else { break };
            allocated.insert(start..stop);
            at = stop.max(at + 1);
        }
        self.state.lock().allocated = allocated;
        Ok(())
    }

    fn error(&self, operation: &'static str, error: impl Into<io::Error>) -> Error {
        Error::io(&self.path, operation, error.into())
    }

    fn sync_file(&self) -> Result<()> {
        retry(|| rustix::fs::fdatasync(&self.file)).map_err(|e| self.error("sync", e))
    }

    /// Whether the drive can use memory at `data` directly.
    fn is_aligned(&self, data: &[u8]) -> bool {
        self.direct.is_none() || (data.as_ptr() as usize).is_multiple_of(self.geometry.sector_bytes as usize)
    }

    /// Calls `run` with the file; again, with another way to access it, if one turns out to be refused.
    fn transfer(&self, mut run: impl FnMut(&File) -> io::Result<()>) -> io::Result<()> {
        let had_rings = self.rings.are_usable();
        match self.transfer_once(&mut run) {
            Err(_) if had_rings && !self.rings.are_usable() => self.transfer_once(&mut run),
            done => done,
        }
    }

    /// Past the page cache, or through it where that is refused.
    fn transfer_once(&self, run: &mut impl FnMut(&File) -> io::Result<()>) -> io::Result<()> {
        let Some(direct) = self.direct.as_ref().filter(|direct| direct.is_usable()) else {
            return run(&self.file);
        };
        match run(&direct.file) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                direct.refuse();
                run(&self.file)
            }
            done => done,
        }
    }

    /// A ring is worth its while where there is more than one call.
    fn drive(&self, file: &File, way: Way, pieces: Pieces<'_>) -> io::Result<()> {
        let sector = self.geometry.sector_bytes as usize;
        match pieces.len() {
            0 | 1 => drive(&mut Calls::default(), file, way, pieces, sector),
            _ => self.rings.with(|queue| drive(queue, file, way, pieces, sector)),
        }
    }

    fn write_aligned(&self, way: Way, writes: &[BlockWrite<'_>]) -> io::Result<()> {
        self.transfer(|file| {
            let mut pieces = Pieces::default();
            writes.iter().for_each(|write| pieces.write(write.offset, &write.parts));
            self.drive(file, way, pieces)
        })
    }

    /// Writes parts of which some are not aligned, a copy at a time.
    fn write_copied(&self, way: Way, write: &BlockWrite<'_>) -> io::Result<()> {
        let (mut offset, mut left) = (write.offset, write.len() as usize);
        let mut copy = BlockBuf::zeroed(left.min(BOUNCE_BYTES));
        let (mut parts, mut part): (_, &[u8]) = (write.parts.iter(), &[]);
        while left > 0 {
            let take = left.min(copy.len());
            let mut to = &mut copy[..take];
            while !to.is_empty() {
                if part.is_empty() {
                    part = parts.next().copied().unwrap_or_default();
                    continue;
                }
                let (now, later) = to.split_at_mut(part.len().min(to.len()));
                now.copy_from_slice(&part[..now.len()]);
                (part, to) = (&part[now.len()..], later);
            }
            self.write_aligned(way, &[BlockWrite { offset, parts: vec![&copy[..take]] }])?;
            (offset, left) = (offset + take as u64, left - take);
        }
        Ok(())
    }

    fn read_aligned(&self, reads: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.transfer(|file| {
            let mut pieces = Pieces::default();
            reads.iter_mut().for_each(|(offset, buf)| pieces.read(*offset, buf));
            self.drive(file, Way::Read, pieces)
        })
    }

    /// Reads into memory that is not aligned, a copy at a time.
    fn read_copied(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut copy = BlockBuf::zeroed(buf.len().min(BOUNCE_BYTES));
        for (i, part) in buf.chunks_mut(BOUNCE_BYTES).enumerate() {
            let from = &mut copy[..part.len()];
            self.read_aligned(&mut [(offset + (i * BOUNCE_BYTES) as u64, from)])?;
            part.copy_from_slice(&copy[..part.len()]);
        }
        Ok(())
    }

    fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(Direct::is_usable)
    }

    /// The file past the page cache, if there is such a way.
    pub(super) fn direct_file(&self) -> Option<&File> {
        self.direct.as_ref().map(|direct| &direct.file)
    }

    pub(super) fn rings(&self) -> &Rings {
        &self.rings
    }

    /// The means to begin calls without waiting for them.
    pub(super) fn direct_with_ring(&self) -> Option<(&File, Ring)> {
        let file = self.direct_file().filter(|_| self.is_direct())?;
        Some((file, self.rings.take()?))
    }

    /// How to write `writes`: durably if that costs nothing.
    fn way(&self, writes: &[BlockWrite<'_>]) -> Way {
        if self.geometry.is_volatile || !self.is_direct() {
            return Way::Write;
        }
        let state = self.state.lock();
        match writes.iter().all(|write| state.allocated.covers(&range(write))) {
            true => Way::WriteDurably,
            false => Way::Write,
        }
    }
}

/// The file system's blocks that hold `range`. If these are smaller, some of them may not be allocated, which costs a
/// sync.
fn file_blocks(range: &Range<u64>) -> Range<u64> {
    let block = u64::from(FILE_BLOCK_BYTES);
    range.start / block * block..range.end.next_multiple_of(block)
}

fn range(write: &BlockWrite<'_>) -> Range<u64> {
    write.offset..write.offset + write.len()
}

impl BlockFile for RealBlockFile {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let len = self.len();
        writes.iter().try_for_each(|write| write.check(&self.geometry, &self.path, len))?;
        let way = self.way(writes);
        if way == Way::Write {
            let mut state = self.state.lock();
            for range in writes.iter().map(range) {
                state.allocated.remove(&range);
            }
        }
        let lies_right = |write: &BlockWrite<'_>| write.parts.iter().all(|part| self.is_aligned(part));
        let done = if writes.iter().all(lies_right) {
            self.write_aligned(way, writes)
        } else {
            writes.iter().try_for_each(|write| self.write_copied(way, write))
        };
        done.map_err(|e| self.error("write", e))?;
        if way == Way::Write && !self.geometry.is_volatile {
            let mut state = self.state.lock();
            writes.iter().map(range).for_each(|range| state.fresh.insert(range));
        }
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        let len = self.len();
        for (offset, buf) in reads.iter() {
            self.geometry.check(&self.path, *offset, buf.len() as u64, len)?;
        }
        let first = reads.first().map_or(0, |(offset, _)| *offset);
        let done = if reads.iter().all(|(_, buf)| self.is_aligned(buf)) {
            self.read_aligned(reads)
        } else {
            reads.iter_mut().try_for_each(|(offset, buf)| self.read_copied(*offset, buf))
        };
        done.map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                Error::corruption(&self.path, first, format!("a file of {len} bytes"), "its end before that")
            }
            _ => self.error("read", e),
        })
    }

    fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
        let len = self.len();
        let are_there = |(offset, buf): &(u64, BlockBuf)| {
            self.geometry.check(&self.path, *offset, buf.len() as u64, len).is_ok()
        };
        match reads.iter().all(are_there) {
            true => Box::new(BegunReads::begin(self, reads)),
            // The error is reported when the reads are waited for.
            false => read_later(self, reads),
        }
    }

    fn sync(&self) -> Result<bool> {
        let _alone = self.syncing.lock();
        let (fresh, is_changed) = {
            let mut state = self.state.lock();
            let needs_no_sync = state.fresh.total() == 0 && !state.is_changed;
            if needs_no_sync && !self.geometry.is_volatile && self.is_direct() {
                return Ok(false);
            }
            (std::mem::take(&mut state.fresh), std::mem::take(&mut state.is_changed))
        };
        let done = self.sync_file();
        let mut state = self.state.lock();
        match &done {
            // The file system allocates whole blocks of its own.
            Ok(()) => fresh.iter().for_each(|range| state.allocated.insert(file_blocks(&range))),
            Err(_) => fresh.iter().for_each(|range| state.fresh.insert(range)),
        }
        state.is_changed |= is_changed && done.is_err();
        done.map(|()| true)
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.geometry.check_blocks(&self.path, &(0..len), u64::MAX)?;
        let _alone = self.growing.lock();
        let before = self.len();
        if len <= before {
            return Ok(());
        }
        if len > super::reserved::length_limit() {
            return Err(self.error("grow", io::Error::from(io::ErrorKind::FileTooLarge)));
        }
        let grown = match retry(|| {
            rustix::fs::fallocate(&self.file, FallocateFlags::empty(), before, len - before)
        }) {
            Err(Errno::NOTSUP | Errno::NOSYS) => retry(|| rustix::fs::ftruncate(&self.file, len)),
            done => done,
        };
        if let Err(e) = grown {
            // A part of it may have been done. That part is never read, and later growth covers it again.
            let _ = retry(|| rustix::fs::ftruncate(&self.file, before));
            return Err(self.error("grow", e));
        }
        self.state.lock().is_changed = true;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<bool> {
        self.geometry.check_blocks(&self.path, &range, self.len())?;
        let _alone = self.syncing.lock();
        let forget = |range| {
            let mut state = self.state.lock();
            state.allocated.remove(range);
            state.fresh.remove(range);
            state.is_changed = true;
        };
        forget(&range);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = range.end - range.start;
        match retry(|| rustix::fs::fallocate(&self.file, flags, range.start, bytes)) {
            _ if bytes == 0 => Ok(true),
            Ok(()) => Ok(true),
            Err(Errno::NOTSUP | Errno::NOSYS) => Ok(false),
            Err(e) => Err(self.error("discard", e)),
        }
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// How the file at `path` is written, and whether that can go past the page cache.
fn geometry(path: &Path) -> Result<(Geometry, bool)> {
    let wanted = StatxFlags::BASIC_STATS | DIRECT_ALIGN;
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), wanted)
        .map_err(|e| Error::io(path, "stat", e.into()))?;
    let device = device::of(stat.stx_dev_major, stat.stx_dev_minor);
    let is_told = stat.stx_mask & DIRECT_ALIGN.bits() != 0;
    let sector_bytes = match (is_told, device) {
        (true, _) => stat.stx_dio_offset_align.max(stat.stx_dio_mem_align).max(LEAST_SECTOR_BYTES),
        (false, Some(device)) => device.sector_bytes,
        (false, None) => FILE_BLOCK_BYTES,
    };
    let file_block = Some(stat.stx_blksize).filter(|size| size.is_power_of_two() && *size <= 1 << 16);
    let block_bytes = [device.map(|device| device.block_bytes), file_block, Some(FILE_BLOCK_BYTES)];
    let block_bytes = block_bytes.into_iter().flatten().fold(sector_bytes, u32::max);
    let is_volatile = device.is_none_or(|device| device.is_volatile);
    let can_be_direct = !is_told || stat.stx_dio_offset_align > 0;
    Ok((Geometry { sector_bytes, block_bytes, is_volatile }, can_be_direct))
}
