//! Files in memory that count their reads and can be changed behind the reader's back.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use terrace_base::{Error, Result};
use terrace_disk::{Access, BlockFile, FileLock, Fs, ReadFile, WriteFile};

type Shared = Arc<RwLock<Vec<u8>>>;

/// Reads made through one [`MemFs`].
#[derive(Debug, Default)]
pub struct Reads {
    pub calls: AtomicUsize,
    pub bytes: AtomicUsize,
}

#[derive(Debug, Default)]
pub struct MemFs {
    files: Mutex<BTreeMap<PathBuf, Shared>>,
    reads: Arc<Reads>,
}

#[derive(Debug)]
struct MemFile {
    path: PathBuf,
    data: Shared,
    reads: Arc<Reads>,
}

impl MemFs {
    /// The file's bytes.
    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        self.file(path).unwrap().read().clone()
    }

    /// Creates or replaces a file.
    pub fn set(&self, path: &Path, data: Vec<u8>) {
        self.files.lock().insert(path.to_path_buf(), Arc::new(RwLock::new(data)));
    }

    /// Changes a file under those who have it open.
    pub fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.file(path).unwrap().write());
    }

    /// Removes every file.
    pub fn remove_all(&self) {
        self.files.lock().clear();
    }

    /// Reads since the last call: how many and of how many bytes.
    pub fn take_reads(&self) -> (usize, usize) {
        (self.reads.calls.swap(0, Ordering::SeqCst), self.reads.bytes.swap(0, Ordering::SeqCst))
    }

    fn file(&self, path: &Path) -> Result<Shared> {
        let files = self.files.lock();
        let missing = || Error::io(path, "open", io::Error::from(io::ErrorKind::NotFound));
        files.get(path).cloned().ok_or_else(missing)
    }

    fn handle(&self, path: &Path, data: Shared) -> MemFile {
        MemFile { path: path.to_path_buf(), data, reads: self.reads.clone() }
    }
}

impl Fs for MemFs {
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        self.set(path, Vec::new());
        Ok(Box::new(self.handle(path, self.file(path)?)))
    }
    fn open_blocks(&self, path: &Path, _: bool) -> Result<Arc<dyn BlockFile>> {
        Err(Error::io(path, "open", io::ErrorKind::Unsupported.into()))
    }
    fn open(&self, path: &Path, _: Access) -> Result<Arc<dyn ReadFile>> {
        Ok(Arc::new(self.handle(path, self.file(path)?)))
    }
    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        Ok(())
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.files.lock().remove(path);
        Ok(())
    }
    fn sync_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn list(&self, _: &Path) -> Result<Vec<PathBuf>> {
        Ok(self.files.lock().keys().cloned().collect())
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.files.lock().contains_key(path))
    }
    fn create_dir_all(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        Err(Error::locked(path))
    }
    fn free_bytes(&self, _: &Path) -> Result<u64> {
        Ok(u64::MAX)
    }
}

impl WriteFile for MemFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.data.write().extend_from_slice(data);
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn cut(&mut self, len: u64) -> Result<()> {
        self.data.write().truncate(len as usize);
        Ok(())
    }
    fn len(&self) -> u64 {
        self.data.read().len() as u64
    }
    fn path(&self) -> &Path {
        &self.path
    }
}

impl ReadFile for MemFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.calls.fetch_add(1, Ordering::SeqCst);
        self.reads.bytes.fetch_add(buf.len(), Ordering::SeqCst);
        let data = self.data.read();
        let start = offset as usize;
        let end = start + buf.len();
        let past = || Error::corruption(&self.path, offset, "bytes up to the end", "the end of the file");
        buf.copy_from_slice(data.get(start..end).ok_or_else(past)?);
        Ok(())
    }
    fn len(&self) -> u64 {
        self.data.read().len() as u64
    }
    fn path(&self) -> &Path {
        &self.path
    }
}
