//! Counts the traffic of a file system, and charges for it where it is to be as slow as another medium.
//!
//! Thread safety: counters are relaxed atomics; a snapshot taken while others write may hold one operation's bytes
//! without its count. Only operations that succeeded are counted.

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use terrace_base::Result;

use crate::block::{BlockBuf, BlockFile, BlockReads, BlockWrite, Geometry};
use crate::forward_fs;
use crate::fs::{Access, Fs, ReadFile, Room, WriteFile};
use crate::maps::Mapping;
use crate::toll::Toll;

/// Traffic so far, or between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoStats {
    /// Bytes appended, and written to files of sectors.
    pub bytes_written: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes that a `sync` has covered.
    pub bytes_synced: u64,
    /// Appends, and writes to files of sectors; each of a batch counts.
    pub writes: u64,
    /// Reads; each of a batch counts.
    pub reads: u64,
    /// Syncs of files for which a device had to be asked.
    pub syncs: u64,
    /// Syncs of directories.
    pub dir_syncs: u64,
    /// Files created.
    pub creates: u64,
    /// Files removed.
    pub removes: u64,
    /// Files renamed.
    pub renames: u64,
    /// Bytes of files of sectors that were given back.
    pub bytes_discarded: u64,
}

impl IoStats {
    /// The counts since `earlier`.
    pub fn since(&self, earlier: &IoStats) -> IoStats {
        IoStats {
            bytes_written: self.bytes_written.saturating_sub(earlier.bytes_written),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            bytes_synced: self.bytes_synced.saturating_sub(earlier.bytes_synced),
            writes: self.writes.saturating_sub(earlier.writes),
            reads: self.reads.saturating_sub(earlier.reads),
            syncs: self.syncs.saturating_sub(earlier.syncs),
            dir_syncs: self.dir_syncs.saturating_sub(earlier.dir_syncs),
            creates: self.creates.saturating_sub(earlier.creates),
            removes: self.removes.saturating_sub(earlier.removes),
            renames: self.renames.saturating_sub(earlier.renames),
            bytes_discarded: self.bytes_discarded.saturating_sub(earlier.bytes_discarded),
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
    bytes_synced: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
    syncs: AtomicU64,
    dir_syncs: AtomicU64,
    creates: AtomicU64,
    removes: AtomicU64,
    renames: AtomicU64,
    bytes_discarded: AtomicU64,
    toll: Option<Arc<dyn Toll>>,
    watch: Option<Arc<dyn SyncWatch>>,
}

/// Takes the time of each sync of a file.
pub trait SyncWatch: Send + Sync + Debug {
    /// The time now.
    fn now(&self) -> Duration;

    /// A sync has succeeded and took so long.
    fn synced(&self, took: Duration);
}

/// A file system that counts the operations of another one. Clones share their counters.
///
/// ```
/// use std::path::Path;
/// use std::sync::Arc;
/// use terrace_disk::{Fs, MeteredFs, SimFs};
/// let fs = MeteredFs::new(Arc::new(SimFs::new()));
/// fs.create(Path::new("/a"))?.append(b"seven b")?;
/// assert_eq!(fs.stats().bytes_written, 7);
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MeteredFs {
    inner: Arc<dyn Fs>,
    counters: Arc<Counters>,
}

impl MeteredFs {
    /// Counts the operations of `inner` from now on.
    pub fn new(inner: Arc<dyn Fs>) -> Self {
        MeteredFs { inner, counters: Arc::default() }
    }

    /// Counts the operations of `inner` from now on, and lets `toll` charge for reads, writes and syncs.
    pub fn charging(inner: Arc<dyn Fs>, toll: Arc<dyn Toll>) -> Self {
        MeteredFs { inner, counters: Arc::new(Counters { toll: Some(toll), ..Counters::default() }) }
    }

    /// Counts the operations of `inner` from now on; `watch` takes the time of its syncs.
    pub fn watched(inner: Arc<dyn Fs>, watch: Option<Arc<dyn SyncWatch>>) -> Self {
        MeteredFs { inner, counters: Arc::new(Counters { watch, ..Counters::default() }) }
    }

    fn count_created(&self, inner: Box<dyn WriteFile>) -> Box<dyn WriteFile> {
        self.counters.creates.fetch_add(1, Relaxed);
        let synced = inner.len();
        Box::new(MeteredWrite { inner, counters: self.counters.clone(), synced })
    }

    /// The traffic since `new`.
    pub fn stats(&self) -> IoStats {
        let c = &self.counters;
        IoStats {
            bytes_written: c.bytes_written.load(Relaxed),
            bytes_read: c.bytes_read.load(Relaxed),
            bytes_synced: c.bytes_synced.load(Relaxed),
            writes: c.writes.load(Relaxed),
            reads: c.reads.load(Relaxed),
            syncs: c.syncs.load(Relaxed),
            dir_syncs: c.dir_syncs.load(Relaxed),
            creates: c.creates.load(Relaxed),
            removes: c.removes.load(Relaxed),
            renames: c.renames.load(Relaxed),
            bytes_discarded: c.bytes_discarded.load(Relaxed),
        }
    }
}

impl Fs for MeteredFs {
    forward_fs! { self, self.inner;
        link list exists create_dir_all remove_dir lock lock_to_read free_bytes epoch available_memory
        resident_memory
    }

    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        Ok(self.count_created(self.inner.create(path)?))
    }

    fn create_reserved(&self, path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
        Ok(self.count_created(self.inner.create_reserved(path, room)?))
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        let inner = self.inner.open_blocks(path, is_new)?;
        self.counters.creates.fetch_add(u64::from(is_new), Relaxed);
        Ok(Arc::new(MeteredBlocks { inner, counters: self.counters.clone(), unsynced: AtomicU64::new(0) }))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>> {
        let inner = self.inner.open(path, access)?;
        Ok(Arc::new(MeteredRead { inner, counters: self.counters.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)?;
        self.counters.renames.fetch_add(1, Relaxed);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)?;
        self.counters.removes.fetch_add(1, Relaxed);
        Ok(())
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.counters.timed(|| self.inner.sync_file(path))?;
        self.counters.syncs.fetch_add(1, Relaxed);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.inner.sync_dir(path)?;
        self.counters.dir_syncs.fetch_add(1, Relaxed);
        Ok(())
    }
}

#[derive(Debug)]
struct MeteredWrite {
    inner: Box<dyn WriteFile>,
    counters: Arc<Counters>,
    synced: u64,
}

impl WriteFile for MeteredWrite {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let offset = self.inner.len();
        self.inner.append(data)?;
        self.counters.count_write(offset, data.len() as u64);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.counters.timed(|| self.inner.sync())?;
        self.counters.count_sync(self.inner.len() - self.synced, true);
        self.synced = self.inner.len();
        Ok(())
    }

    fn start_sync(&mut self) {
        self.inner.start_sync();
    }

    fn cut(&mut self, len: u64) -> Result<()> {
        self.inner.cut(len)
    }

    fn trim(&mut self) -> Result<()> {
        self.inner.trim()
    }

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    fn is_mapped(&self) -> bool {
        self.inner.is_mapped()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

#[derive(Debug)]
struct MeteredRead {
    inner: Arc<dyn ReadFile>,
    counters: Arc<Counters>,
}

impl Counters {
    fn count_read(&self, offset: u64, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
        if let Some(toll) = &self.toll {
            toll.read(offset, bytes as u64);
        }
    }

    fn count_write(&self, offset: u64, bytes: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.bytes_written.fetch_add(bytes, Relaxed);
        if let Some(toll) = &self.toll {
            toll.write(offset, bytes);
        }
    }

    /// Does `sync`, and takes the time if somebody wants it.
    fn timed<T>(&self, sync: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(watch) = &self.watch else { return sync() };
        let start = watch.now();
        let done = sync()?;
        watch.synced(watch.now() - start);
        Ok(done)
    }

    fn count_sync(&self, bytes: u64, was_asked: bool) {
        self.bytes_synced.fetch_add(bytes, Relaxed);
        self.syncs.fetch_add(u64::from(was_asked), Relaxed);
        if let Some(toll) = &self.toll {
            toll.sync();
        }
    }
}

impl ReadFile for MeteredRead {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)?;
        self.counters.count_read(offset, buf.len());
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.inner.read_many(reads)?;
        reads.iter().for_each(|(offset, buf)| self.counters.count_read(*offset, buf.len()));
        Ok(())
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.inner.will_need(offset, len);
    }

    /// Reads through a mapping are not counted, so there is none where reads are charged for.
    fn map(&self) -> Option<Mapping> {
        if self.counters.toll.is_some() { None } else { self.inner.map() }
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

#[derive(Debug)]
struct MeteredBlocks {
    inner: Arc<dyn BlockFile>,
    counters: Arc<Counters>,
    /// Bytes written that no sync has covered.
    unsynced: AtomicU64,
}

impl BlockFile for MeteredBlocks {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.inner.write_many(writes)?;
        self.unsynced.fetch_add(writes.iter().map(BlockWrite::len).sum(), Relaxed);
        writes.iter().for_each(|write| self.counters.count_write(write.offset, write.len()));
        Ok(())
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.inner.read_many(reads)?;
        reads.iter().for_each(|(offset, buf)| self.counters.count_read(*offset, buf.len()));
        Ok(())
    }

    fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
        let offsets = reads.iter().map(|(offset, _)| *offset).collect();
        let inner = self.inner.clone().begin_reads(reads);
        Box::new(MeteredReads { inner, offsets, counters: self.counters.clone() })
    }

    fn sync(&self) -> Result<bool> {
        let covered = self.unsynced.swap(0, Relaxed);
        let was_asked = self.counters.timed(|| self.inner.sync()).inspect_err(|_| {
            self.unsynced.fetch_add(covered, Relaxed);
        })?;
        self.counters.count_sync(covered, was_asked);
        Ok(was_asked)
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.inner.grow(len)
    }

    fn discard(&self, range: Range<u64>) -> Result<bool> {
        let bytes = range.end.saturating_sub(range.start);
        let is_done = self.inner.discard(range)?;
        self.counters.bytes_discarded.fetch_add(if is_done { bytes } else { 0 }, Relaxed);
        Ok(is_done)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

#[derive(Debug)]
struct MeteredReads {
    inner: Box<dyn BlockReads>,
    offsets: Vec<u64>,
    counters: Arc<Counters>,
}

impl BlockReads for MeteredReads {
    fn finish(self: Box<Self>) -> Result<Vec<BlockBuf>> {
        let found = self.inner.finish()?;
        self.offsets
            .iter()
            .zip(&found)
            .for_each(|(offset, buf)| self.counters.count_read(*offset, buf.len()));
        Ok(found)
    }
}
