//! A file system in memory that keeps the contract of [`crate::fs`] and promises nothing more.
//!
//! Bytes that were not synced may be lost, torn or filled with old bytes at a power cut ([`SimFs::crash`]); nothing is
//! lost when only the process dies ([`SimFs::fork`]). Both give an independent disk, in time proportional to the number
//! of files: contents are shared until written to.
//!
//! Thread safety: every operation takes effect at once, under one lock; observers run outside it.
//! The same calls and the same generator give the same disk.

mod blocks;
mod content;
mod crash;
mod fault;
mod file;
mod process;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_base::{Error, Result};

use self::content::Content;
pub use self::fault::{Fault, FsEvent, Observer};
use self::process::Disk;
use self::state::{FileId, Inode, State};
use crate::block::BlockFile;
use crate::fs::{Access, FileLock, Fs, ReadFile, Room, WriteFile};

/// A simulated disk. Clones are handles of the same disk; [`fork`](Self::fork) copies it.
///
/// ```
/// use std::path::Path;
/// use terrace_base::rng::Rng;
/// use terrace_disk::{Fs, SimFs};
/// let disk = SimFs::new();
/// let mut file = disk.create(Path::new("/log"))?;
/// file.append(b"durable")?;
/// file.sync()?;
/// disk.sync_dir(Path::new("/"))?;
/// file.append(b" or not")?;
/// let after = disk.crash(&mut Rng::new(1)).read(Path::new("/log"))?;
/// assert!(after.starts_with(b"durable") && after.len() <= 14);
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Clone)]
pub struct SimFs {
    shared: Arc<Shared>,
}

/// One disk and the process that uses it.
struct Shared {
    disk: Mutex<Disk>,
    observer: Mutex<Option<Arc<dyn Observer>>>,
}

/// The default capacity of a disk.
const UNLIMITED_BYTES: u64 = 1 << 50;

impl SimFs {
    /// An empty disk with the directories `/` and the current one.
    pub fn new() -> Self {
        SimFs::with_state(State::new())
    }

    fn with_state(state: State) -> Self {
        let disk = Disk { state, ..Disk::default() };
        SimFs { shared: Arc::new(Shared { disk: Mutex::new(disk), observer: Mutex::new(None) }) }
    }

    /// The disk as the next process finds it after this one died: everything written is there, and pending changes are
    /// still pending. Locks, open handles, faults and the observer are not copied.
    pub fn fork(&self) -> SimFs {
        let mut state = self.shared.disk.lock().state.clone();
        state.forget_unreachable(&BTreeMap::new());
        SimFs::with_state(state)
    }

    /// A disk as a power cut at this moment may leave it. This one goes on as if nothing happened.
    pub fn crash(&self, rng: &mut Rng) -> SimFs {
        let state = self.shared.disk.lock().state.clone();
        SimFs::with_state(crash::survivor(&state, rng))
    }

    /// The disk after a power cut that takes everything which was not synced.
    pub fn crash_losing_all(&self) -> SimFs {
        let state = self.shared.disk.lock().state.clone();
        SimFs::with_state(crash::least_survivor(&state))
    }

    /// The disk after a power cut that takes nothing.
    pub fn crash_keeping_all(&self) -> SimFs {
        let state = self.shared.disk.lock().state.clone();
        SimFs::with_state(crash::most_survivor(&state))
    }

    /// Forgets every file and directory without telling an observer. For a disk that is no longer used, but that a
    /// leaked object still holds.
    pub fn empty(&self) {
        self.observe(None);
        let mut disk = self.shared.disk.lock();
        disk.state = State::new();
        disk.empty_maps();
    }

    /// Whether a failed sync has dropped pages since the machine was booted.
    pub fn has_dropped_pages(&self) -> bool {
        self.shared.disk.lock().state.dropped_pages
    }

    /// From now on, pages that failed syncs drop stay readable and count as synced for later syncs, but a power cut
    /// takes them.
    pub fn show_dropped(&self, shown: bool) {
        self.shared.disk.lock().state.shows_dropped = shown;
    }

    /// Gives its page cache another number, as if the machine had been booted so many times.
    pub fn set_epoch(&self, epoch: u64) {
        self.shared.disk.lock().state.epoch = epoch;
    }

    /// Reports every change to this disk to `observer`; `None` ends that.
    pub fn observe(&self, observer: Option<Arc<dyn Observer>>) {
        *self.shared.observer.lock() = observer;
    }

    /// Plans an I/O error, in place of one planned before; `None` heals the disk.
    pub fn inject(&self, fault: Option<Fault>) {
        self.shared.disk.lock().faults.plan(fault);
    }

    /// Operations so far: all, and those that change something. Both count failed ones.
    pub fn operations(&self) -> (u64, u64) {
        let disk = self.shared.disk.lock();
        (disk.faults.operations, disk.faults.changes)
    }

    /// Limits the sum of all files' lengths, less given-back bytes; anything beyond is `NoSpace`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.disk.lock().state.capacity = bytes;
    }

    /// Whether files that are created with room have it.
    pub fn has_room(&self) -> bool {
        !self.shared.disk.lock().state.without_room
    }

    /// Sets whether files that are created with room have it; the default is yes.
    pub fn set_room(&self, has_room: bool) {
        self.shared.disk.lock().state.without_room = !has_room;
    }

    /// Sets whether files can be mapped from now on; the default is yes.
    pub fn set_maps(&self, has_maps: bool) {
        self.shared.disk.lock().state.without_maps = !has_maps;
    }

    /// Sets how much memory the system has for data read; not known by default.
    pub fn set_available_memory(&self, bytes: Option<u64>) {
        self.shared.disk.lock().state.available_memory = bytes;
    }

    /// Sets the bytes of a sector and of a block for files that are opened from now on; 512 and 4096 by default.
    pub fn set_sectors(&self, sector_bytes: u32, block_bytes: u32) {
        self.shared.disk.lock().state.sectors = (sector_bytes, block_bytes);
    }

    /// Sets whether parts of files of sectors can be given back; the default is yes.
    pub fn set_holes(&self, can_be_made: bool) {
        self.shared.disk.lock().state.without_holes = !can_be_made;
    }

    /// Limits how many files the process may have open at a time; one more is refused with the system's error.
    pub fn set_descriptors(&self, most: Option<usize>) {
        self.shared.disk.lock().most_descriptors = most;
    }

    /// How many files the process has open, to read or to write.
    pub fn descriptors(&self) -> usize {
        self.shared.disk.lock().descriptors
    }

    /// The sum of all files' lengths, less given-back bytes, including files that are removed but still open.
    pub fn used_bytes(&self) -> u64 {
        let disk = self.shared.disk.lock();
        disk.state.used(&disk.open)
    }

    /// Every file by name with its bytes, as the process sees them.
    pub fn image(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.shared.disk.lock().state.clone();
        let mut image = BTreeMap::new();
        for (path, dir) in &state.dirs {
            for (name, id) in &dir.now {
                let bytes = state.files.get(id).map_or_else(Vec::new, |inode| inode.visible().to_vec());
                image.insert(path.join(name), bytes);
            }
        }
        image
    }

    /// Puts a file with these bytes at `path`, durably, in place of one that is there: for damaging
    /// a disk and for laying out old ones. Unseen by observers, faults and the capacity. Makes the
    /// directory's other pending changes durable too.
    pub fn plant(&self, path: &Path, data: &[u8]) -> Result<()> {
        let mut disk = self.shared.disk.lock();
        if disk.state.is_file(path) {
            disk.state.remove(path)?;
        }
        disk.state.create(path, Inode::durable(Content::new(data)))?;
        disk.state.sync_dir(path.parent().unwrap_or(Path::new("")))
    }

    /// Changes the bytes of the file at `path` behind everyone's back.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut data = {
            let disk = self.shared.disk.lock();
            let id = disk.state.lookup(path, "damage")?;
            disk.state.files.get(&id).map_or_else(Vec::new, |inode| inode.visible().to_vec())
        };
        change(&mut data);
        self.plant(path, &data)
    }
}

impl Default for SimFs {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.shared.disk.lock();
        f.debug_struct("SimFs").field("files", &disk.state.files.len()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Announces a change, lets it fail, and makes it.
    fn change<T>(
        &self,
        event: FsEvent<'_>,
        path: &Path,
        operation: &'static str,
        make: impl FnOnce(&mut Disk) -> Result<T>,
    ) -> Result<T> {
        self.announce(event);
        let refused = self.refused(path, operation);
        let mut disk = self.disk.lock();
        disk.faults.step(path, operation, true).and(refused)?;
        make(&mut disk)
    }

    /// Makes the file that `find` finds durable. A planned failure is that of a full disk or, if it `may_drop`, one
    /// that loses pages that were not durable.
    fn sync(&self, path: &Path, may_drop: bool, find: impl FnOnce(&State) -> Result<FileId>) -> Result<()> {
        self.announce(FsEvent::Sync { path });
        let refused = self.refused(path, "sync");
        let mut disk = self.disk.lock();
        let id = find(&disk.state)?;
        let Err(error) = disk.faults.step(path, "sync", true) else {
            refused?;
            disk.state.sync_file(id);
            return Ok(());
        };
        let failure = disk.faults.sync_failure();
        if let Some(seed) = failure.drops.filter(|_| may_drop) {
            disk.state.fail_sync(id, seed);
        }
        Err(if failure.full { Error::NoSpace { path: path.to_path_buf() } } else { error })
    }

    fn announce(&self, event: FsEvent<'_>) {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer.before(event);
        }
    }

    /// Whether the observer lets an operation take place.
    fn refused(&self, path: &Path, operation: &'static str) -> Result<()> {
        let observer = self.observer.lock().clone();
        let refusal = observer.and_then(|observer| observer.refuse(path, operation));
        refusal.map_or(Ok(()), |source| Err(Error::io(path, operation, source)))
    }

    /// Carries out an operation that changes nothing, unless it is made to fail.
    fn look<T>(
        &self,
        path: &Path,
        operation: &'static str,
        see: impl FnOnce(&mut Disk) -> Result<T>,
    ) -> Result<T> {
        let refused = self.refused(path, operation);
        let mut disk = self.disk.lock();
        disk.faults.step(path, operation, false).and(refused)?;
        see(&mut disk)
    }
}

impl SimFs {
    fn create_file(&self, path: &Path) -> Result<FileId> {
        self.shared.change(FsEvent::Create { path }, path, "create", |disk| {
            disk.find_descriptor(path, "create")?;
            let id = disk.state.create(path, Inode::default())?;
            disk.hold(id);
            Ok(id)
        })
    }
}

impl Fs for SimFs {
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        let id = self.create_file(path)?;
        Ok(Box::new(file::SimWriteFile::new(self.shared.clone(), id, path, None)))
    }

    fn create_reserved(&self, path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
        let id = self.create_file(path)?;
        let room = Some(room).filter(|_| !self.shared.disk.lock().state.without_room);
        Ok(Box::new(file::SimWriteFile::new(self.shared.clone(), id, path, room)))
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        let id = match is_new {
            true => self.create_file(path)?,
            false => self.shared.look(path, "open", |disk| {
                let id = disk.state.lookup(path, "open")?;
                disk.find_descriptor(path, "open")?;
                disk.hold(id);
                Ok(id)
            })?,
        };
        Ok(Arc::new(blocks::SimBlockFile::open(self.shared.clone(), id, path)))
    }

    fn open(&self, path: &Path, _access: Access) -> Result<Arc<dyn ReadFile>> {
        let content = self.shared.look(path, "open", |disk| {
            let id = disk.state.lookup(path, "open")?;
            disk.find_descriptor(path, "open")?;
            disk.descriptors += 1;
            Ok(disk.state.files.get(&id).map(|inode| inode.visible()).unwrap_or_default())
        })?;
        Ok(Arc::new(file::SimReadFile::new(self.shared.clone(), path, content)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared.change(FsEvent::Rename { from, to }, from, "rename", |disk| disk.state.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared.change(FsEvent::Create { path: to }, from, "link", |disk| disk.state.link(from, to))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.shared.change(FsEvent::Remove { path }, path, "remove", |disk| disk.state.remove(path))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.shared.sync(path, false, |state| state.lookup(path, "sync"))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.shared.change(FsEvent::SyncDir { path }, path, "sync directory", |disk| {
            disk.find_descriptor(path, "open")?;
            disk.state.sync_dir(path)?;
            disk.state.forget_unreachable(&disk.open);
            Ok(())
        })
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.shared.look(path, "list", |disk| {
            disk.find_descriptor(path, "list")?;
            disk.state.list(path)
        })
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.shared
            .look(path, "stat", |disk| Ok(disk.state.dirs.contains_key(path) || disk.state.is_file(path)))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.shared.change(FsEvent::CreateDir { path }, path, "create directory", |disk| {
            disk.state.create_dir_all(path)
        })
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.shared.change(FsEvent::Lock { path }, path, "lock", |disk| {
            if !disk.state.is_file(path) {
                disk.state.create(path, Inode::default())?;
            }
            if !disk.locks.insert(path.to_path_buf()) {
                return Err(Error::locked(path));
            }
            Ok(())
        })?;
        Ok(Box::new(file::SimLock::new(self.shared.clone(), path)))
    }

    /// The file exists and does not change; one lock at a time.
    fn lock_to_read(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        if !self.exists(path)? {
            return self.lock(path).map(Some);
        }
        self.shared.look(path, "lock", |disk| match disk.locks.insert(path.to_path_buf()) {
            true => Ok(()),
            false => Err(Error::locked(path)),
        })?;
        Ok(Some(Box::new(file::SimLock::new(self.shared.clone(), path))))
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        self.shared.look(path, "statvfs", |disk| {
            let capacity = disk.state.capacity.unwrap_or(UNLIMITED_BYTES);
            Ok(capacity.saturating_sub(disk.state.used(&disk.open)))
        })
    }

    fn epoch(&self, _dir: &Path) -> u64 {
        self.shared.disk.lock().state.epoch
    }

    fn available_memory(&self) -> Option<u64> {
        self.shared.disk.lock().state.available_memory
    }
}
