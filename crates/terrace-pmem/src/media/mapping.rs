//! A file or device mapped into one reserved range of addresses, so that it can grow without moving.
//!
//! Invariants:
//! 1. `[base, base + reserved)` belongs to this mapping from creation to drop; `base` is aligned to 2 MiB, and to what
//!    a device asks for: a device-dax refuses to be mapped anywhere else. The system may drop the reservation of a
//!    range whose mapping it then refuses, and another thread's mapping may land there; so only mappings that are known
//!    to work replace a part of the reservation, and a part that cannot be reserved again after a refusal no longer
//!    counts as reserved.
//! 2. `[base, base + len)` is mapped shared and writable and backed by the file; the rest is inaccessible. A private
//!    mapping starts with the file's contents, and its stores stay in this process.
//! 3. The file is locked for as long as the mapping lives: one process, one mapping, or any number of private ones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use terrace_base::{Error, Result};

use super::prefault::Prefault;
use super::room::{TIGHT_BYTES, extend, free_bytes, set_aside};
use super::{instance, probe};

pub(super) const PAGE_BYTES: u64 = 4096;
const HUGE_BYTES: u64 = 2 << 20;
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The kind of backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backing {
    /// A file in the page cache that a disk backs.
    Disk,
    /// A file that lives in memory.
    Tmpfs,
    /// A file mapped past the page cache (MAP_SYNC).
    Dax,
    /// A device-dax, by its numbers.
    DevDax { major: u32, minor: u32 },
}

#[derive(Debug)]
pub(super) struct Mapping {
    base: *mut u8,
    reserved: AtomicU64,
    len: AtomicU64,
    backing: Backing,
    /// Whether stores stay in this process.
    private: bool,
    file: File,
    name: PathBuf,
    /// Serialises growth.
    growing: Mutex<()>,
    prefault: Mutex<Option<Prefault>>,
}

// SAFETY: `base` is an address range that the value owns alone; all fields that change are atomics or locked.
unsafe impl Send for Mapping {}
// SAFETY: as above; the contract of the pool's stores governs the bytes in the range.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the file or device `path`, calling it `name` in errors. A file is made if it is not there; a file shorter
    /// than `len` is extended to it. At most `capacity` bytes will ever be mapped.
    pub(super) fn open(path: &Path, name: &Path, len: u64, capacity: u64) -> Result<Mapping> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(len > 0)
            .truncate(false)
            .open(path)
            .map_err(|e| Error::io(name, "open", e))?;
        lock(&file, name, FlockOperation::NonBlockingLockExclusive)?;
        let meta = file.metadata().map_err(|e| Error::io(name, "stat", e))?;
        if meta.file_type().is_char_device() {
            return Self::map_device(file, name, meta.rdev());
        }
        let on_tmpfs = rustix::fs::fstatfs(&file).is_ok_and(|s| s.f_type as u64 == TMPFS_MAGIC);
        let old = meta.len() / PAGE_BYTES * PAGE_BYTES;
        if on_tmpfs && old > 0 && free_bytes(&file, name)? < TIGHT_BYTES {
            // A former owner may not have touched all of it.
            set_aside(&file, name, 0, old)?;
        }
        if old < len {
            extend(&file, name, old, len, on_tmpfs)?;
            rustix::fs::fsync(&file).map_err(|e| Error::io(name, "sync", e.into()))?;
        }
        let len = old.max(len);
        let mut map = Self::reserve(file, name, capacity.max(len), HUGE_BYTES)?;
        map.backing = map.map_file(len, on_tmpfs)?;
        Ok(map)
    }

    /// Maps the file `path` privately, which needs no permission to write it; otherwise as [`open`](Self::open).
    pub(super) fn open_private(path: &Path, name: &Path, capacity: u64) -> Result<Mapping> {
        let file = File::open(path).map_err(|e| Error::io(name, "open", e))?;
        lock(&file, name, FlockOperation::NonBlockingLockShared)?;
        let meta = file.metadata().map_err(|e| Error::io(name, "stat", e))?;
        let on_tmpfs = rustix::fs::fstatfs(&file).is_ok_and(|s| s.f_type as u64 == TMPFS_MAGIC);
        let len = meta.len() / PAGE_BYTES * PAGE_BYTES;
        let mut map = Self::reserve(file, name, capacity.max(len), HUGE_BYTES)?;
        map.private = true;
        map.backing = map.backing_of(len, on_tmpfs);
        let mapped = match on_tmpfs && meta.blocks() * STAT_BLOCK_BYTES < len {
            // Touching a hole of such a file fills it, for which there may be no room.
            true => map.map_copy(len),
            false => map.map_range(0, len, PRIVATE),
        };
        if len > 0 {
            mapped.map_err(|e| Error::io(name, "map", e.into()))?;
        }
        map.len.store(len, Ordering::Release);
        Ok(map)
    }

    /// Copies the first `len` bytes of the file to where they would be mapped; holes take no memory.
    fn map_copy(&self, len: u64) -> rustix::io::Result<()> {
        self.map_nothing(0, len)?;
        let mut at = 0;
        while at < len {
            let data = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => return Ok(()),
                data => data?.min(len),
            };
            let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(data))?.min(len);
            // SAFETY: the range was just mapped, writable, and nobody else knows of it yet.
            let part = unsafe {
                std::slice::from_raw_parts_mut(self.base.add(data as usize), (hole - data) as usize)
            };
            self.file.read_exact_at(part, data).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            at = hole;
        }
        Ok(())
    }

    /// Maps zero bytes that no file holds to a piece of the reservation.
    fn map_nothing(&self, from: u64, to: u64) -> rustix::io::Result<()> {
        assert!(from <= to && to <= self.reserved(), "mapping stays inside its reservation");
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, PRIVATE | MapFlags::FIXED);
        // SAFETY: the range lies inside the reservation, which this value owns (invariant 1), and holds nothing yet.
        unsafe {
            let at = self.base.add(from as usize).cast();
            rustix::mm::mmap_anonymous(at, (to - from) as usize, protection, flags).map(drop)
        }
    }

    fn map_device(file: File, name: &Path, rdev: u64) -> Result<Mapping> {
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let (size, align) = probe::devdax_geometry(Path::new("/sys"), major, minor).ok_or_else(|| {
            Error::invalid(format!("{} is a device, but not a persistent-memory one", name.display()))
        })?;
        let backing = Backing::DevDax { major, minor };
        let len = size / align.max(1) * align.max(1);
        let mut map = Self::reserve(file, name, len, align)?;
        map.map_range(0, len, flags(backing)).map_err(|e| Error::io(name, "map", e.into()))?;
        map.len.store(len, Ordering::Release);
        map.backing = backing;
        Ok(map)
    }

    fn reserve(file: File, name: &Path, capacity: u64, align: u64) -> Result<Mapping> {
        let reserved = capacity.div_ceil(PAGE_BYTES) * PAGE_BYTES;
        let base =
            reserve_range(reserved, align).map_err(|e| Error::io(name, "reserve addresses for", e.into()))?;
        Ok(Mapping {
            base,
            reserved: AtomicU64::new(reserved),
            len: AtomicU64::new(0),
            backing: Backing::Disk,
            private: false,
            file,
            name: name.to_path_buf(),
            growing: Mutex::new(()),
            prefault: Mutex::new(None),
        })
    }

    /// Maps the file's first `len` bytes, past the page cache where the file system can.
    fn map_file(&self, len: u64, on_tmpfs: bool) -> Result<Backing> {
        let backing = self.backing_of(len, on_tmpfs);
        if len > 0 {
            self.map_range(0, len, flags(backing)).map_err(|e| Error::io(&self.name, "map", e.into()))?;
        }
        self.len.store(len, Ordering::Release);
        Ok(backing)
    }

    fn backing_of(&self, len: u64, on_tmpfs: bool) -> Backing {
        match (len > 0 && self.can_sync_map(), on_tmpfs) {
            (true, _) => Backing::Dax,
            (false, true) => Backing::Tmpfs,
            (false, false) => Backing::Disk,
        }
    }

    /// Whether the file can be mapped past the page cache. Tried at an address of the system's choice, not over
    /// the reservation (invariant 1).
    fn can_sync_map(&self) -> bool {
        let protection = if self.private { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        let flags = flags(Backing::Dax);
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped at once.
        unsafe {
            rustix::mm::mmap(ptr::null_mut(), PAGE_BYTES as usize, protection, flags, &self.file, 0)
                .and_then(|at| rustix::mm::munmap(at, PAGE_BYTES as usize))
                .is_ok()
        }
    }

    /// Maps a piece of the file to its place in the reservation.
    fn map_range(&self, from: u64, to: u64, flags: MapFlags) -> rustix::io::Result<()> {
        assert!(from <= to && to <= self.reserved(), "mapping stays inside its reservation");
        // SAFETY: the range lies inside the reservation, which this value owns (invariant 1); it is not yet
        // mapped to anything but inaccessible pages, so nothing is replaced under anyone.
        unsafe {
            let at = self.base.add(from as usize);
            let len = (to - from) as usize;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let mapped =
                rustix::mm::mmap(at.cast(), len, protection, flags | MapFlags::FIXED, &self.file, from);
            if let Err(e) = mapped {
                let again = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
                if rustix::mm::mmap_anonymous(at.cast(), len, ProtFlags::empty(), again).is_err() {
                    // The reservation may still be there. Leaking addresses is better than unmapping another thread's.
                    self.reserved.store(from, Ordering::Release);
                }
                return Err(e);
            }
            // Only advice: a kernel or file system without huge pages refuses, and nothing is lost.
            let _ = rustix::mm::madvise(at.cast(), len, Advice::LinuxHugepage);
        }
        Ok(())
    }

    /// Its name in errors.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub(super) fn capacity(&self) -> u64 {
        if matches!(self.backing, Backing::DevDax { .. }) { self.len() } else { self.reserved() }
    }

    fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    pub(super) fn backing(&self) -> Backing {
        self.backing
    }

    /// Extends file and mapping to `len` bytes. The longer file is durable when this returns.
    pub(super) fn grow(&self, len: u64) -> Result<()> {
        let _one = self.growing.lock();
        let (old, len) = (self.len(), len.div_ceil(PAGE_BYTES) * PAGE_BYTES);
        if len <= old {
            return Ok(());
        }
        if len > self.capacity() {
            let (path, size) = (self.name.clone(), self.capacity());
            return Err(Error::PoolFull { path, requested: len - old, size });
        }
        if self.private {
            self.map_nothing(old, len).map_err(|e| Error::io(&self.name, "map", e.into()))?;
            self.len.store(len, Ordering::Release);
            return Ok(());
        }
        extend(&self.file, &self.name, old, len, self.backing == Backing::Tmpfs)?;
        self.map_range(old, len, flags(self.backing)).map_err(|e| Error::io(&self.name, "map", e.into()))?;
        self.sync_length(old, len).inspect_err(|_| self.unmap(old, len))?;
        self.len.store(len, Ordering::Release);
        if let Some(prefault) = &*self.prefault.lock() {
            // SAFETY: `drop` joins the prefault before it unmaps.
            unsafe { prefault.range(self.base.add(old as usize), len - old) };
        }
        Ok(())
    }

    /// Makes the file's length durable, of which the range was just mapped. Nothing there is dirty, so that ext4 and xfs
    /// wait for the length alone, where `fsync` would have every page written that was stored to. The system may tell by
    /// it that it has lost other pages, also for want of room: that is no lack of room for this range.
    fn sync_length(&self, from: u64, to: u64) -> Result<()> {
        let synced = self.msync(from, to);
        synced.map_err(|e| Error::io(&self.name, "sync", io::Error::other(io::Error::from(e))))
    }

    /// Makes a range inaccessible again of which nobody knows yet.
    fn unmap(&self, from: u64, to: u64) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range lies inside the reservation, which this value owns (invariant 1), and behind what is in use.
        let unmapped = unsafe {
            let at = self.base.add(from as usize).cast();
            rustix::mm::mmap_anonymous(at, (to - from) as usize, ProtFlags::empty(), flags)
        };
        if unmapped.is_err() {
            self.reserved.store(from, Ordering::Release);
        }
    }

    /// The identity of the mapped file; see [`Media::instance`](super::Media::instance).
    pub(super) fn instance(&self) -> u64 {
        match self.backing {
            Backing::DevDax { major, minor } => instance::of_device(major, minor),
            backing => instance::of(&self.file, backing == Backing::Tmpfs),
        }
    }

    /// `msync` of the pages that hold the range.
    pub(super) fn sync_range(&self, offset: u64, len: u64) -> Result<()> {
        let from = offset / PAGE_BYTES * PAGE_BYTES;
        let to = (offset + len).min(self.len());
        if from >= to || self.private {
            return Ok(());
        }
        self.msync(from, to).map_err(|e| Error::io(&self.name, "sync", e.into()))
    }

    /// `msync` of whole pages that are mapped. What the file system needs to find them is durable, too.
    fn msync(&self, from: u64, to: u64) -> rustix::io::Result<()> {
        assert!(from <= to && to <= self.reserved(), "mapping stays inside its reservation");
        // SAFETY: the range lies inside the reservation (invariant 1); msync changes no memory, and refuses what is
        // not mapped.
        unsafe {
            rustix::mm::msync(self.base.add(from as usize).cast(), (to - from) as usize, MsyncFlags::SYNC)
        }
    }

    /// Starts touching pages in the background. Pages of a disk file are left alone: touching would only make
    /// them dirty.
    pub(super) fn start_prefault(&self) {
        if self.backing != Backing::Disk && !self.private {
            // SAFETY: `drop` joins the prefault before it unmaps.
            *self.prefault.lock() = unsafe { Prefault::start(self.base, self.len()) };
        }
    }

    pub(super) fn stop_prefault(&self) {
        if let Some(prefault) = &*self.prefault.lock() {
            prefault.stop();
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Joined before the range is unmapped.
        drop(self.prefault.lock().take());
        // SAFETY: the reservation is this value's own (invariant 1) and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.reserved() as usize) };
        // Closing is not enough: a process that another thread is just starting also has the descriptor until it runs
        // its own program.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// The flags of a private mapping.
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// The unit in which `stat` counts a file's blocks.
const STAT_BLOCK_BYTES: u64 = 512;

/// How a backing is mapped.
fn flags(backing: Backing) -> MapFlags {
    match backing {
        Backing::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        Backing::Disk | Backing::Tmpfs | Backing::DevDax { .. } => MapFlags::SHARED,
    }
}

/// An inaccessible range of addresses, aligned so that huge pages fit, and to `align`.
pub(super) fn reserve_range(len: u64, align: u64) -> rustix::io::Result<*mut u8> {
    let align = align.max(HUGE_BYTES).checked_next_power_of_two().ok_or(Errno::INVAL)?;
    let total = len.checked_add(align).ok_or(Errno::NOMEM)? as usize;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing; the two pieces
    // unmapped lie inside it, outside the part that is kept.
    unsafe {
        let start =
            rustix::mm::mmap_anonymous(ptr::null_mut(), total, ProtFlags::empty(), flags)?.cast::<u8>();
        let before = (start as usize).wrapping_neg() % align as usize;
        let base = start.add(before);
        let after = total - before - len as usize;
        if before > 0 {
            rustix::mm::munmap(start.cast(), before)?;
        }
        if after > 0 {
            rustix::mm::munmap(base.add(len as usize).cast(), after)?;
        }
        Ok(base)
    }
}

fn lock(file: &File, name: &Path, how: FlockOperation) -> Result<()> {
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::locked(name)),
        Err(e) => Err(Error::io(name, "lock", e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_where_a_device_asks() {
        for align in [1, PAGE_BYTES, HUGE_BYTES, 1 << 30] {
            let base = reserve_range(3 * PAGE_BYTES, align).unwrap();
            assert_eq!(base as u64 % align.max(HUGE_BYTES), 0, "{align:#x}");
            // SAFETY: the range just reserved, which nothing else knows.
            unsafe { rustix::mm::munmap(base.cast(), 3 * PAGE_BYTES as usize) }.unwrap();
        }
        assert!(reserve_range(PAGE_BYTES, u64::MAX).is_err());
    }

    #[test]
    fn a_descriptor_that_a_starting_process_has_holds_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let open = || Mapping::open(&path, &path, PAGE_BYTES, PAGE_BYTES);
        let map = open().unwrap();
        let inherited = map.file.try_clone().unwrap();
        assert!(matches!(open(), Err(Error::Locked { .. })));
        drop(map);
        drop(open().unwrap());
        drop(inherited);
    }
}
