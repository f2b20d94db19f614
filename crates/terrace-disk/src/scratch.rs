//! A file system over another one that it does not change: writes, renames and removals happen in memory alone, and are
//! gone with the value.
//!
//! Names that were made here are looked up first, then those below that were not removed here. Nothing is durable and
//! nothing has to be, so syncs do nothing.
//!
//! 1. A name is in `blocks`, or in `made`, or, unless it is `gone`, below.
//! 2. Locks are taken in the order `gone`, `blocks`.

mod blocks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::{Error, Result};

use self::blocks::ScratchBlocks;
use crate::block::BlockFile;
use crate::fs::{Access, FileLock, Fs, ReadFile, WriteFile};
use crate::sim::SimFs;

/// See the module's head.
///
/// ```
/// use std::path::Path;
/// use std::sync::Arc;
/// use terrace_disk::{Fs, ScratchFs, SimFs};
/// let disk = SimFs::new();
/// disk.plant(Path::new("/kept"), b"kept")?;
/// let scratch = ScratchFs::new(Arc::new(disk.clone()));
/// scratch.remove(Path::new("/kept"))?;
/// scratch.create(Path::new("/made"))?.append(b"made")?;
/// assert_eq!(scratch.list(Path::new("/"))?, [Path::new("/made")]);
/// assert_eq!(disk.list(Path::new("/"))?, [Path::new("/kept")]);
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Debug)]
pub struct ScratchFs {
    below: Arc<dyn Fs>,
    /// Files that were made here.
    made: SimFs,
    /// Files below that were removed or replaced here. Locked while names change.
    gone: Mutex<BTreeSet<PathBuf>>,
    /// Files of sectors below that were opened here, with their changes, by the names that they have here.
    blocks: Mutex<BTreeMap<PathBuf, Arc<ScratchBlocks>>>,
}

impl ScratchFs {
    /// A file system that begins with the contents of `below`.
    pub fn new(below: Arc<dyn Fs>) -> ScratchFs {
        ScratchFs { below, made: SimFs::new(), gone: Mutex::default(), blocks: Mutex::default() }
    }

    /// Whether `below` has such a name that was not removed here.
    fn is_below(&self, gone: &BTreeSet<PathBuf>, path: &Path) -> Result<bool> {
        let is_changed = self.blocks.lock().contains_key(path);
        Ok(is_changed || !gone.contains(path) && self.below.exists(path)?)
    }

    fn missing<T>(path: &Path, operation: &'static str) -> Result<T> {
        Err(Error::io(path, operation, std::io::ErrorKind::NotFound.into()))
    }

    /// Makes a directory here for a file that is about to be made.
    fn make_parent(&self, path: &Path) -> Result<()> {
        match path.parent() {
            Some(parent) if !self.made.exists(parent)? => self.made.create_dir_all(parent),
            _ => Ok(()),
        }
    }
}

impl Fs for ScratchFs {
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        let gone = self.gone.lock();
        if self.is_below(&gone, path)? {
            return Err(Error::io(path, "create", std::io::ErrorKind::AlreadyExists.into()));
        }
        self.make_parent(path)?;
        self.made.create(path)
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        let gone = self.gone.lock();
        if is_new && self.is_below(&gone, path)? {
            return Err(Error::io(path, "create", std::io::ErrorKind::AlreadyExists.into()));
        }
        let mut blocks = self.blocks.lock();
        if let Some(open) = blocks.get(path) {
            return Ok(open.clone());
        }
        if is_new || self.made.exists(path)? || gone.contains(path) {
            self.make_parent(path)?;
            return self.made.open_blocks(path, is_new);
        }
        let opened = Arc::new(ScratchBlocks::new(self.below.open(path, Access::Direct)?));
        blocks.insert(path.to_path_buf(), opened.clone());
        Ok(opened)
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>> {
        let gone = self.gone.lock();
        if let Some(blocks) = self.blocks.lock().get(path) {
            return Ok(Arc::new(blocks.view(path)));
        }
        if self.made.exists(path)? {
            return self.made.open(path, access);
        }
        if gone.contains(path) {
            return Self::missing(path, "open");
        }
        self.below.open(path, access)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut gone = self.gone.lock();
        if from == to && (self.made.exists(from)? || self.is_below(&gone, from)?) {
            return Ok(());
        }
        let changed = self.blocks.lock().get(from).cloned();
        if let Some(changed) = changed {
            if self.made.exists(to)? {
                self.made.remove(to)?;
            }
            let mut blocks = self.blocks.lock();
            blocks.remove(from);
            blocks.insert(to.to_path_buf(), changed);
        } else {
            if !self.made.exists(from)? {
                if !self.is_below(&gone, from)? {
                    return Self::missing(from, "rename");
                }
                self.make_parent(from)?;
                self.made.plant(from, &self.below.read(from)?)?;
            }
            self.make_parent(to)?;
            self.made.rename(from, to)?;
            self.blocks.lock().remove(to);
        }
        gone.extend([from.to_path_buf(), to.to_path_buf()]);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut gone = self.gone.lock();
        let was_made = self.made.exists(path)?;
        if was_made {
            self.made.remove(path)?;
        } else if !self.is_below(&gone, path)? {
            return Self::missing(path, "remove");
        }
        self.blocks.lock().remove(path);
        gone.insert(path.to_path_buf());
        Ok(())
    }

    fn sync_file(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let gone = self.gone.lock();
        let mut files: BTreeSet<PathBuf> =
            self.below.list(path)?.into_iter().filter(|file| !gone.contains(file)).collect();
        if self.made.exists(path)? {
            files.extend(self.made.list(path)?);
        }
        files.extend(self.blocks.lock().keys().filter(|file| file.parent() == Some(path)).cloned());
        Ok(files.into_iter().collect())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let gone = self.gone.lock();
        Ok(self.made.exists(path)? || self.is_below(&gone, path)?)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.made.create_dir_all(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.made.lock(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        self.made.free_bytes(path)
    }

    fn epoch(&self, dir: &Path) -> u64 {
        self.below.epoch(dir)
    }

    fn available_memory(&self) -> Option<u64> {
        self.below.available_memory()
    }

    fn resident_memory(&self) -> Option<u64> {
        self.below.resident_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockWrite;

    fn disk() -> (SimFs, ScratchFs) {
        let disk = SimFs::new();
        disk.plant(Path::new("/a"), b"a").unwrap();
        disk.plant(Path::new("/b"), b"b").unwrap();
        (disk.clone(), ScratchFs::new(Arc::new(disk)))
    }

    #[test]
    fn changes_are_seen_here_and_not_below() {
        let (disk, scratch) = disk();
        let before = disk.image();
        let path = Path::new;
        scratch.rename(path("/a"), path("/b")).unwrap();
        assert_eq!(scratch.read(path("/b")).unwrap(), b"a");
        assert!(scratch.open(path("/a"), Access::Random).is_err() && !scratch.exists(path("/a")).unwrap());
        assert!(scratch.rename(path("/a"), path("/c")).is_err() && scratch.remove(path("/a")).is_err());
        scratch.create(path("/a")).unwrap().append(b"new").unwrap();
        assert!(scratch.create(path("/a")).is_err() && scratch.create(path("/b")).is_err());
        assert_eq!(scratch.list(path("/")).unwrap(), [path("/a"), path("/b")]);
        scratch.remove(path("/a")).unwrap();
        scratch.remove(path("/b")).unwrap();
        assert!(scratch.list(path("/")).unwrap().is_empty());
        scratch.sync_dir(path("/")).unwrap();
        assert_eq!(disk.image(), before);
    }

    #[test]
    fn files_of_sectors_are_changed_here_alone() {
        let (disk, path) = (SimFs::new(), Path::new("/blocks"));
        disk.plant(path, &[1; 8192]).unwrap();
        let before = disk.image();
        let scratch = ScratchFs::new(Arc::new(disk.clone()));
        assert!(
            scratch.open_blocks(path, true).is_err() && scratch.open_blocks(Path::new("/c"), false).is_err()
        );
        let file = scratch.open_blocks(path, false).unwrap();
        file.grow(16384).unwrap();
        file.write_many(&[BlockWrite { offset: 7680, parts: vec![&[2; 1024]] }]).unwrap();
        file.discard(0..4096).unwrap();
        assert!(!file.sync().unwrap() && file.grow(4096).is_ok());
        let again = scratch.open_blocks(path, false).unwrap();
        let mut found = vec![9; 16384];
        again.read_many(&mut [(0, &mut found)]).unwrap();
        let expected = [vec![0; 4096], vec![1; 3584], vec![2; 1024], vec![0; 7680]].concat();
        assert!(found == expected && again.len() == 16384);
        assert!(again.write_many(&[BlockWrite { offset: 16384, parts: vec![&[2; 512]] }]).is_err());
        // Readers find these changes under the file's later name.
        assert!(scratch.read(path).unwrap() == expected);
        let mut part = vec![9; 700];
        scratch.open(path, Access::Random).unwrap().read_at(7700, &mut part).unwrap();
        assert!(part == expected[7700..8400]);
        let moved = Path::new("/moved");
        scratch.rename(path, moved).unwrap();
        assert!(!scratch.exists(path).unwrap() && scratch.create(moved).is_err());
        assert_eq!(scratch.list(Path::new("/")).unwrap(), [moved]);
        file.write_many(&[BlockWrite { offset: 0, parts: vec![&[3; 512]] }]).unwrap();
        assert!(scratch.read(moved).unwrap()[..512] == [3; 512]);
        assert!(scratch.open(moved, Access::Random).unwrap().read_at(16384, &mut [0]).is_err());
        scratch.open_blocks(path, true).unwrap().grow(4096).unwrap();
        scratch.rename(moved, path).unwrap();
        assert!(scratch.read(path).unwrap().len() == 16384 && !scratch.exists(moved).unwrap());
        scratch.remove(path).unwrap();
        assert!(
            scratch.open_blocks(path, false).is_err() && scratch.list(Path::new("/")).unwrap().is_empty()
        );
        scratch.open_blocks(path, true).unwrap().grow(4096).unwrap();
        assert_eq!(disk.image(), before);
    }

    #[test]
    fn what_is_there_cannot_be_made() {
        let (_, scratch) = disk();
        assert!(scratch.create(Path::new("/a")).is_err());
        scratch.remove(Path::new("/a")).unwrap();
        scratch.create(Path::new("/a")).unwrap();
        assert_eq!(scratch.read(Path::new("/a")).unwrap(), b"");
    }
}
