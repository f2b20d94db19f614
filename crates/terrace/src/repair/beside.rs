//! Shows a database's directory and pool as a repair would leave them; what the repair writes lies beside
//! them.
//!
//! 1. The directory's own files and the pool in its place never change: new files lie in the folder `repair`
//!    of the directory, removed files are only hidden, and the pool is opened as a private copy. A file of
//!    sectors can be read but refuses writes.
//! 2. Users of this view see one directory: without the hidden files, with the new ones.
//! 3. A new pool lies beside the old one, under its name with `.repair` behind it.
//!
//! Thread safety: everything here may be called from any thread.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_disk::{Access, BlockFile, FileLock, Fs, ReadFile, Room, WriteFile};

use super::kept::KeptBlocks;
use super::note::{self, Note};
use super::pools::{BesidePm, pool_beside};
use super::stop::Stop;
use crate::env::Env;
use crate::manifest::REPAIR_FOLDER;
use crate::pool::{self, inside, real_path};

/// The folder where a repair writes its files.
pub(super) fn folder(dir: &Path) -> PathBuf {
    dir.join(REPAIR_FOLDER)
}

/// Claims the folder for a repair, and the place beside `pool` if nothing lies there: whatever lies in them
/// later is worthless and may be removed. A folder with other files in it is refused.
fn claim(env: &Env, dir: &Path, pool: &Path) -> Result<()> {
    let (fs, folder) = (&*env.fs, folder(dir));
    fs.create_dir_all(&folder)?;
    // A power cut either takes the pool too or leaves the note that claims it.
    fs.sync_dir(dir)?;
    if !fs.list(&folder)?.is_empty() {
        return Err(others_files(&folder, ""));
    }
    let beside = pool_beside(pool);
    // If even looking at the place fails, it is not claimed. Nothing can be made in a folder that is not there.
    let is_free = env.pm.has_folder(&beside) && env.pm.exists(&beside).is_ok_and(|is_there| !is_there);
    let pool = if is_free { claimed_name(dir, beside)? } else { None };
    let note = Note { dir: absolute(dir)?, pool };
    note.write(fs, &folder)
}

/// The name of a new pool as a note has it: without parts `..`, which would lead elsewhere from another directory.
/// `None` if they lead nowhere, where no pool can be made.
fn claimed_name(dir: &Path, pool: PathBuf) -> Result<Option<PathBuf>> {
    let name = name_from(dir, pool.clone())?;
    if note::is_beside(&name) {
        Ok(Some(name))
    } else {
        Ok(real_path(&pool).filter(|pool| note::is_beside(pool)))
    }
}

fn others_files(folder: &Path, why: &str) -> Error {
    Error::invalid(format!(
        "{} is where a repair writes, and there are files in it that no repair has made{why}: move them away",
        folder.display()
    ))
}

/// Explains an error over the note in the folder: nobody knows whose files lie there.
fn is_for_others(error: Error, folder: &Path) -> Error {
    match error {
        Error::Corruption { .. } => others_files(folder, &format!(" ({error})")),
        error => error,
    }
}

/// The path that finds `path` from `dir`: relative if it lies in `dir`, and so in copies of it, else absolute.
pub(super) fn name_from(dir: &Path, path: PathBuf) -> Result<PathBuf> {
    inside(&path, dir).map_or_else(|| absolute(&path), Ok)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io(path, "name", e))
}

/// Removes what an unfinished repair has written beside `dir`, and nothing else.
pub(super) fn discard(env: &Env, dir: &Path) -> Result<()> {
    let (fs, folder) = (&*env.fs, folder(dir));
    let note = Note::read(fs, &folder).map_err(|e| is_for_others(e, &folder))?;
    if let Some(pool) = note.as_ref().and_then(|note| note.pool_of(dir)) {
        let pool = dir.join(pool);
        if !env.pm.has_folder(&pool) {
            return Err(Error::invalid(format!(
                "a repair that was cut short has its new pool in {}, whose folder is not there: where it is gone for good, \
                 remove {}",
                pool.display(),
                folder.display()
            )));
        }
        match pool::whose_new_pool(env, dir, &pool)? {
            Some(true) => env.pm.remove(&pool)?,
            Some(false) => {}
            None => pool::keep_or_remove(env, &pool)?,
        }
        // A power cut must not bring it back without the note that claims it.
        fs.sync_dir(pool.parent().unwrap_or(dir))?;
    }
    empty(fs, dir)?;
    note::discard_unwritten(fs, &folder)?;
    // An empty folder stays where the file system cannot remove directories.
    let _ = fs.remove_dir(&folder);
    Ok(())
}

/// Removes the files in the folder, the note last: without it nobody knows that the others were a repair's.
pub(super) fn empty(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let folder = folder(dir);
    let note = folder.join(note::NAME);
    if !fs.exists(&note)? {
        return Ok(());
    }
    fs.list(&folder)?.iter().filter(|file| **file != note).try_for_each(|file| fs.remove(file))?;
    fs.sync_dir(&folder)?;
    fs.remove(&note)?;
    fs.sync_dir(&folder)
}

/// What a repair has changed in its view of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Files that lie in the folder, by name.
    pub made: BTreeSet<OsString>,
    /// Files of the directory that are to go.
    pub hidden: BTreeSet<OsString>,
}

/// The files of a directory, with what is written lying beside them.
#[derive(Debug)]
pub(super) struct BesideFs {
    fs: Arc<dyn Fs>,
    stop: Stop,
    dir: PathBuf,
    changes: Mutex<Changes>,
}

/// A view of a database in which a repair works.
#[derive(Debug)]
pub(super) struct RepairView {
    pub fs: Arc<BesideFs>,
    pub pm: Arc<BesidePm>,
    pub stop: Stop,
    env: Env,
}

impl RepairView {
    /// A view of `dir` and its pool's place in which nothing has been changed. Its folder exists and holds
    /// only a note. Once `stop` is true every new operation in the view fails.
    pub fn new(env: &Env, dir: &Path, pool: &Path, stop: Option<&'static AtomicBool>) -> Result<RepairView> {
        let stop = Stop(stop);
        claim(env, dir, pool)?;
        let changes = Mutex::default();
        let fs = Arc::new(BesideFs { fs: env.fs.clone(), stop, dir: dir.to_path_buf(), changes });
        let pm = Arc::new(BesidePm { pm: env.pm.clone(), stop, now: Mutex::default() });
        Ok(RepairView { fs, pm, stop, env: env.clone() })
    }

    /// The environment in which to work on the view.
    pub fn env(&self) -> Env {
        Env { fs: self.fs.clone(), pm: self.pm.clone(), ..self.env.clone() }
    }
}

impl BesideFs {
    pub fn changes(&self) -> Changes {
        self.changes.lock().clone()
    }

    /// The name in the directory that `path` refers to.
    fn name<'a>(&self, path: &'a Path) -> Option<&'a OsStr> {
        path.file_name().filter(|_| path.parent() == Some(&*self.dir))
    }

    /// Where the file seen at `path` really lies; `None` if the view shows none.
    fn place(&self, path: &Path) -> Option<PathBuf> {
        let Some(name) = self.name(path) else { return Some(path.to_path_buf()) };
        let changes = self.changes.lock();
        match (changes.made.contains(name), changes.hidden.contains(name)) {
            (true, _) => Some(folder(&self.dir).join(name)),
            (false, true) => None,
            (false, false) => Some(path.to_path_buf()),
        }
    }

    fn found(&self, path: &Path, operation: &'static str) -> Result<PathBuf> {
        self.place(path).ok_or_else(|| Error::io(path, operation, std::io::ErrorKind::NotFound.into()))
    }
}

impl BesideFs {
    /// Has `create` make a file that replaces what the view shows at `path`.
    fn create_by<T>(&self, path: &Path, create: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.stop.look(path)?;
        let Some(name) = self.name(path) else { return create(path) };
        if self.exists(path)? {
            return Err(Error::io(path, "create", std::io::ErrorKind::AlreadyExists.into()));
        }
        let file = create(&folder(&self.dir).join(name))?;
        self.changes.lock().made.insert(name.to_owned());
        Ok(file)
    }
}

impl Fs for BesideFs {
    fn create(&self, path: &Path) -> Result<Box<dyn WriteFile>> {
        self.create_by(path, |place| self.fs.create(place))
    }

    fn create_reserved(&self, path: &Path, room: Room) -> Result<Box<dyn WriteFile>> {
        self.create_by(path, |place| self.fs.create_reserved(place, room))
    }

    fn open_blocks(&self, path: &Path, is_new: bool) -> Result<Arc<dyn BlockFile>> {
        if is_new {
            return self.create_by(path, |place| self.fs.open_blocks(place, true));
        }
        self.stop.look(path)?;
        let place = self.found(path, "open")?;
        let file = self.fs.open_blocks(&place, false)?;
        let is_own = place != path || self.name(path).is_none();
        Ok(if is_own { file } else { Arc::new(KeptBlocks(file)) })
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn ReadFile>> {
        self.stop.look(path)?;
        self.fs.open(&self.found(path, "open")?, access)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (Some(old), Some(new)) = (self.name(from), self.name(to)) else {
            return self.fs.rename(from, to);
        };
        let place = self.found(from, "rename")?;
        if place == from {
            return Err(Error::io(from, "rename", std::io::ErrorKind::Unsupported.into()));
        }
        self.fs.rename(&place, &folder(&self.dir).join(new))?;
        let mut changes = self.changes.lock();
        changes.made.remove(old);
        changes.made.insert(new.to_owned());
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let place = self.found(path, "remove")?;
        let Some(name) = self.name(path) else { return self.fs.remove(path) };
        if place != path {
            self.fs.remove(&place)?;
            self.changes.lock().made.remove(name);
        }
        if self.fs.exists(path)? {
            self.changes.lock().hidden.insert(name.to_owned());
        }
        Ok(())
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        self.fs.sync_file(&self.found(path, "sync")?)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.fs.sync_dir(&if path == self.dir { folder(path) } else { path.to_path_buf() })
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.stop.look(path)?;
        let files = self.fs.list(path)?;
        if path != self.dir {
            return Ok(files);
        }
        let changes = self.changes.lock();
        let seen = |file: &PathBuf| file.file_name().is_some_and(|name| !changes.hidden.contains(name));
        let mut all: BTreeSet<PathBuf> = files.into_iter().filter(seen).collect();
        all.extend(changes.made.iter().map(|name| path.join(name)));
        Ok(all.into_iter().collect())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.place(path).map_or(Ok(false), |place| self.fs.exists(&place))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.fs.create_dir_all(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.fs.lock(path)
    }

    fn free_bytes(&self, path: &Path) -> Result<u64> {
        self.fs.free_bytes(path)
    }

    fn epoch(&self, dir: &Path) -> u64 {
        self.fs.epoch(dir)
    }

    fn available_memory(&self) -> Option<u64> {
        self.fs.available_memory()
    }

    fn resident_memory(&self) -> Option<u64> {
        self.fs.resident_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_disk::{BlockWrite, SimFs};

    #[test]
    fn files_of_sectors_that_were_there_are_kept_as_they_are_and_new_ones_lie_beside() {
        let (disk, dir) = (SimFs::new(), Path::new("/db"));
        disk.create_dir_all(&folder(dir)).unwrap();
        let (old, new) = (dir.join("old"), dir.join("new"));
        disk.plant(&old, &[1; 8192]).unwrap();
        let before = disk.image();
        let fs = BesideFs {
            fs: Arc::new(disk.clone()),
            stop: Stop(None),
            dir: dir.to_path_buf(),
            changes: Mutex::default(),
        };
        let write = |file: &dyn BlockFile, byte: u8| {
            file.write_many(&[BlockWrite { offset: 4096, parts: vec![&[byte; 512]] }])
        };
        let byte = |file: &dyn BlockFile| {
            let mut found = [0; 512];
            file.read_many(&mut [(4096, &mut found)]).map(|()| found[0])
        };
        let kept = fs.open_blocks(&old, false).unwrap();
        assert!(write(&*kept, 2).is_err() && kept.grow(12288).is_err() && !kept.discard(0..4096).unwrap());
        assert!(kept.grow(8192).is_ok() && kept.sync().is_ok() && kept.write_many(&[]).is_ok());
        assert_eq!((byte(&*kept).unwrap(), kept.len()), (1, 8192));
        assert!(fs.open_blocks(&old, true).is_err() && fs.open_blocks(&new, false).is_err());
        assert_eq!(disk.image(), before);

        let made = fs.open_blocks(&new, true).unwrap();
        made.grow(8192).unwrap();
        write(&*made, 3).unwrap();
        assert_eq!(byte(&*fs.open_blocks(&new, false).unwrap()).unwrap(), 3);
        assert!(made.discard(4096..8192).unwrap() && fs.exists(&new).unwrap() && !disk.exists(&new).unwrap());
        fs.remove(&old).unwrap();
        assert!(fs.open_blocks(&old, false).is_err());
        write(&*fs.open_blocks(&old, true).unwrap(), 4).unwrap_err();
        assert_eq!(disk.read(&old).unwrap(), [1; 8192]);
        static STOP: AtomicBool = AtomicBool::new(true);
        let stopped = BesideFs { stop: Stop(Some(&STOP)), ..fs };
        assert!(stopped.open_blocks(&new, false).is_err() && stopped.open_blocks(&old, true).is_err());
    }
}
