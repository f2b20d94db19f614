//! Files that are opened when they are read, with a limit to how many are open at a time.
//!
//! A [`LazyFile`] opens itself at its first read and whenever it is read after it was closed. The least recently read
//! files are closed, by the clock algorithm: a hand goes around the open files and closes one that was not read since
//! its last visit. So a read of an open file takes no lock and sets a flag at most.
//!
//! 1. Beyond the limit only files that are being read, or opened, at this moment are open.
//! 2. A file that is read from stays open until that read is over, also if it is closed meanwhile.
//! 3. Every open file has one place in `clock`, or is about to get it.
//! 4. If the system has no descriptor left ([`SparingFs`]), some files are closed, and the call is made again.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use terrace_base::{Error, Result};

use crate::block::BlockFile;
use crate::forward_fs;
use crate::fs::{Access, FileLock, Fs, ReadFile, Room, WriteFile};
use crate::maps::Mapping;

/// How often a call that finds no descriptor is made again, each time after an eighth of the open files has been
/// closed.
const ATTEMPTS: usize = 32;

/// The descriptors of lazy files.
#[derive(Debug)]
pub struct Descriptors {
    limit: usize,
    open: AtomicUsize,
    clock: Mutex<VecDeque<Weak<LazyFile>>>,
}

impl Descriptors {
    /// At most `limit` of them at a time, and at least one.
    pub fn new(limit: usize) -> Arc<Descriptors> {
        let (limit, open) = (limit.max(1), AtomicUsize::new(0));
        Arc::new(Descriptors { limit, open, clock: Mutex::default() })
    }

    /// How many are open now.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts one more file as open, and closes another one at the limit.
    fn count_in(self: &Arc<Self>) -> Counted {
        // It closes two at most: files that were opened at the same time may have exceeded the limit, and the number
        // comes down again.
        for _ in 0..2 {
            if self.open() < self.limit || !self.close_one() {
                break;
            }
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }

    /// Closes the file that the hand comes to; false if none is open.
    fn close_one(&self) -> bool {
        let mut clock = self.clock.lock();
        // After one round no file is flagged as read; only a file that is read meanwhile is passed again.
        let mut passed = 2 * clock.len();
        while let Some(next) = clock.pop_front() {
            let Some(file) = next.upgrade() else { continue };
            if passed > 0 && file.was_read.swap(false, Ordering::Relaxed) {
                passed -= 1;
                clock.push_back(next);
                continue;
            }
            drop(clock);
            file.open.store(None);
            return true;
        }
        false
    }

    /// Closes a part of the open files; false if none is open.
    fn close_some(&self) -> bool {
        let count = (self.open() / 8).max(1);
        (0..count).filter(|_| self.close_one()).count() > 0
    }

    /// Repeats `call` with fewer files open if it finds no descriptor.
    fn sparing<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            match call() {
                Err(e) if e.is_out_of_descriptors() && self.close_some() => {}
                outcome => return outcome,
            }
        }
        call()
    }

    fn note(&self, file: Weak<LazyFile>) {
        let mut clock = self.clock.lock();
        // Files that are gone leave their places behind.
        if clock.len() > 2 * self.open() + 16 {
            clock.retain(|file| file.strong_count() > 0);
        }
        clock.push_back(file);
    }
}

/// A descriptor that is counted.
#[derive(Debug)]
struct Counted(Arc<Descriptors>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An open file. It is closed before it is counted out.
#[derive(Debug)]
struct Opened {
    file: Arc<dyn ReadFile>,
    _counted: Counted,
}

/// An immutable file that is opened when it is read.
#[derive(Debug)]
pub struct LazyFile {
    me: Weak<LazyFile>,
    fs: Arc<dyn Fs>,
    descriptors: Arc<Descriptors>,
    path: PathBuf,
    access: Access,
    len: u64,
    open: ArcSwapOption<Opened>,
    opening: Mutex<()>,
    /// Whether it was read since the hand came by.
    was_read: AtomicBool,
}

impl LazyFile {
    /// The file of `len` bytes at `path` of `fs`, which is not looked at yet.
    pub fn new(
        fs: Arc<dyn Fs>,
        descriptors: &Arc<Descriptors>,
        path: PathBuf,
        len: u64,
        access: Access,
    ) -> Arc<LazyFile> {
        Arc::new_cyclic(|me| LazyFile {
            me: me.clone(),
            fs,
            descriptors: descriptors.clone(),
            path,
            access,
            len,
            open: ArcSwapOption::empty(),
            opening: Mutex::default(),
            was_read: AtomicBool::new(false),
        })
    }

    fn with<T>(&self, read: impl FnOnce(&dyn ReadFile) -> Result<T>) -> Result<T> {
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
        match &*self.open.load() {
            Some(open) => read(&*open.file),
            None => read(&*self.open_it()?.file),
        }
    }

    #[cold]
    fn open_it(&self) -> Result<Arc<Opened>> {
        let _alone = self.opening.lock();
        if let Some(open) = self.open.load_full() {
            return Ok(open);
        }
        let _counted = self.descriptors.count_in();
        let file = self.fs.open(&self.path, self.access)?;
        if file.len() != self.len {
            let (expected, found) =
                (format!("a file of {} bytes", self.len), format!("{} bytes", file.len()));
            return Err(Error::corruption(&self.path, self.len.min(file.len()), expected, found));
        }
        let open = Arc::new(Opened { file, _counted });
        self.open.store(Some(open.clone()));
        self.descriptors.note(self.me.clone());
        Ok(open)
    }
}

impl ReadFile for LazyFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.with(|file| file.read_at(offset, buf))
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.with(|file| file.read_many(reads))
    }

    /// A file that cannot be opened says so when it is read.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = self.with(|file| {
            file.will_need(offset, len);
            Ok(())
        });
    }

    /// Needs no descriptor once it is made.
    fn map(&self) -> Option<Mapping> {
        self.with(|file| Ok(file.map())).ok().flatten()
    }

    /// Opened apart from the counted files, for a reader that reads all of it once.
    fn past_cache(&self) -> Result<Option<Arc<dyn ReadFile>>> {
        self.with(|_| Ok(()))?;
        let file = self.fs.open(&self.path, Access::Direct)?;
        Ok(Some(file).filter(|file| file.len() == self.len))
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A file system whose calls close lazy files if the system has no descriptor left.
pub struct SparingFs {
    inner: Arc<dyn Fs>,
    descriptors: Arc<Descriptors>,
}

impl SparingFs {
    /// The file system `inner`; its calls may close files of `descriptors`.
    pub fn new(inner: Arc<dyn Fs>, descriptors: Arc<Descriptors>) -> Self {
        SparingFs { inner, descriptors }
    }
}

impl fmt::Debug for SparingFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Fs for SparingFs {
    forward_fs! { self, self.inner;
        rename link remove exists remove_dir free_bytes epoch available_memory resident_memory
    }

    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        self.descriptors.sparing(|| self.inner.create(path))
    }

    fn create_reserved(&self, path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
        self.descriptors.sparing(|| self.inner.create_reserved(path, room))
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        self.descriptors.sparing(|| self.inner.open_blocks(path, is_new))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>> {
        self.descriptors.sparing(|| self.inner.open(path, access))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        self.descriptors.sparing(|| self.inner.read(path))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.descriptors.sparing(|| self.inner.sync_file(path))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.descriptors.sparing(|| self.inner.sync_dir(path))
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.descriptors.sparing(|| self.inner.list(path))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.descriptors.sparing(|| self.inner.create_dir_all(path))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.descriptors.sparing(|| self.inner.lock(path))
    }

    fn lock_to_read(&self, path: &Path) -> Result<Option<Box<dyn FileLock>>> {
        self.descriptors.sparing(|| self.inner.lock_to_read(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimFs;

    const ACCESS: Access = Access::Random;

    fn path(i: usize) -> PathBuf {
        PathBuf::from(format!("/{i}"))
    }

    fn files(fs: &SimFs, descriptors: &Arc<Descriptors>, count: usize) -> Vec<Arc<LazyFile>> {
        let sparing: Arc<dyn Fs> = Arc::new(SparingFs::new(Arc::new(fs.clone()), descriptors.clone()));
        let lazy = |i: usize| {
            fs.plant(&path(i), &[i as u8; 3]).unwrap();
            LazyFile::new(sparing.clone(), descriptors, path(i), 3, ACCESS)
        };
        (0..count).map(lazy).collect()
    }

    fn first(file: &LazyFile) -> Result<u8> {
        let mut buf = [0; 2];
        file.read_at(1, &mut buf).map(|()| buf[0])
    }

    #[test]
    fn only_so_many_are_open_and_those_that_are_read_stay_so() {
        let (fs, descriptors) = (SimFs::new(), Descriptors::new(4));
        let files = files(&fs, &descriptors, 20);
        assert_eq!((fs.descriptors(), descriptors.open()), (0, 0), "nothing is opened before it is read");
        for i in 0..20 {
            assert_eq!(first(&files[i]).unwrap(), i as u8);
            assert_eq!(first(&files[0]).unwrap(), 0);
            assert!(fs.descriptors() <= 4 && descriptors.open() == fs.descriptors());
        }
        assert!(files[0].open.load().is_some() && files[5].open.load().is_none());
        drop(files);
        assert_eq!((fs.descriptors(), descriptors.open()), (0, 0));
    }

    #[test]
    fn where_the_system_has_none_left_some_are_closed() {
        let (fs, descriptors) = (SimFs::new(), Descriptors::new(100));
        let files = files(&fs, &descriptors, 50);
        fs.set_descriptors(Some(10));
        for (i, file) in files.iter().enumerate() {
            assert_eq!(first(file).unwrap(), i as u8);
        }
        let sparing = SparingFs::new(Arc::new(fs.clone()), descriptors.clone());
        let more: Vec<_> = (60..65).map(|i| sparing.create(&path(i)).unwrap()).collect();
        assert!(fs.descriptors() <= 10);
        fs.set_descriptors(Some(0));
        let refused = first(&files[0]).unwrap_err();
        assert!(refused.is_out_of_descriptors() && refused.is_retryable(), "{refused}");
        fs.set_descriptors(None);
        assert_eq!(first(&files[0]).unwrap(), 0);
        drop((more, files));
        assert_eq!((fs.descriptors(), descriptors.open()), (0, 0));
    }

    #[test]
    fn another_length_is_told_and_a_file_that_is_gone_is_not_there() {
        let (fs, descriptors) = (SimFs::new(), Descriptors::new(1));
        let files = files(&fs, &descriptors, 2);
        fs.plant(&path(0), b"four").unwrap();
        let told = first(&files[0]).unwrap_err().to_string();
        assert!(told.contains("expected a file of 3 bytes, found 4 bytes"), "{told}");
        fs.remove(&path(1)).unwrap();
        assert!(matches!(first(&files[1]), Err(Error::Io { .. })));
        assert_eq!(descriptors.open(), 0);
    }

    #[test]
    fn many_threads_read_what_is_closed_under_them() {
        let (fs, descriptors) = (SimFs::new(), Descriptors::new(3));
        let files = files(&fs, &descriptors, 40);
        std::thread::scope(|scope| {
            for t in 0..4 {
                let files = &files;
                scope.spawn(move || {
                    for i in (0..2000).map(|i| (i * 7 + t) % 40) {
                        assert_eq!(first(&files[i]).unwrap(), i as u8);
                    }
                });
            }
        });
        // Files that are opened at the same time exceed the limit by at most the number of threads.
        assert!(descriptors.open() <= 3 + 4);
        assert!(descriptors.clock.lock().len() <= 2 * descriptors.open() + 17);
    }
}
