//! The place of a pool: whether it is taken, and its removal.
//!
//! A file is there or not. A device always is, and can be read only by mapping it: the pages of its superblocks tell
//! whether it holds anything.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use terrace_base::{Error, Result};

use super::create::{map, temporary_name};
use super::format::{self, Raw, SUPERBLOCK_PAGE_BYTES, is_blank_page};
use super::{Pool, PoolOptions};
use crate::layout::SUPERBLOCK_AT;
use crate::media::Media;

/// The unit of copying: a page.
const COPY_BYTES: usize = 4096;

impl Pool {
    /// Whether there is something at `path`, a pool or not, where [`create`](Self::create) would make none: a
    /// file, or a device that is not blank.
    ///
    /// Errors: [`Error::Locked`] for a device in use; [`Error::InvalidArgument`] for anything else.
    pub fn exists(path: &Path) -> Result<bool> {
        match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_char_device() => {
                Ok(!Self::is_blank_on(&*map(path, path, 0, &looking())?, path)?)
            }
            Ok(meta) if !meta.is_file() => {
                let path = path.display();
                Err(Error::invalid(format!(
                    "{path} is neither a file nor a devdax device, and holds no pool"
                )))
            }
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
            Err(e) => Err(Error::io(path, "stat", e)),
        }
    }

    /// Removes the pool at `path`, in any state: a file is removed, a device becomes blank.
    ///
    /// Errors: [`Error::Locked`] for a device in use.
    pub fn remove(path: &Path) -> Result<()> {
        if is_device(path)? {
            return Self::remove_on(&*map(path, path, 0, &looking())?, path);
        }
        fs::remove_file(path).map_err(|e| Error::io(path, "remove", e))
    }

    /// Removes the leftovers of a creation of a pool at `path` that was cut short, if there are any.
    ///
    /// Errors: [`Error::InvalidArgument`] if something else has the name under which pools are made.
    pub fn remove_unfinished(path: &Path) -> Result<()> {
        remove_unfinished(path)
    }

    /// Makes a medium blank, durably. Until it is, the pool may still be there. `name` stands for the medium in
    /// messages.
    pub fn remove_on(media: &dyn Media, name: &Path) -> Result<()> {
        format::erase_superblocks(&Raw::new(media, name)?)
    }

    /// Copies everything on the device at `path`, which cannot be read as a file can, to an empty file.
    ///
    /// Errors: [`Error::Locked`] for a device in use.
    pub fn copy_device(path: &Path, to: &fs::File) -> Result<()> {
        Self::copy_on(&*map(path, path, 0, &looking())?, path, to)
    }

    /// Copies everything on a medium that nobody changes meanwhile; zero pages stay holes. `name` stands for the medium
    /// in messages.
    pub fn copy_on(media: &dyn Media, name: &Path, to: &fs::File) -> Result<()> {
        let raw = Raw::new(media, name)?;
        let failed = |e| Error::io(name, "copy", e);
        to.set_len(media.len()).map_err(failed)?;
        // Media are whole pages long.
        for at in (0..media.len()).step_by(COPY_BYTES) {
            let page = raw.read::<COPY_BYTES>(at);
            if page != [0; COPY_BYTES] {
                to.write_all_at(&page, at).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Whether a pool can be [created on](Self::create_on) the medium.
    pub fn is_blank_on(media: &dyn Media, name: &Path) -> Result<bool> {
        Ok(format::is_blank(&Raw::new(media, name)?))
    }
}

/// Whether `path` names a device, which is mapped but never made, renamed or unlinked.
pub(super) fn is_device(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(meta) => Ok(meta.file_type().is_char_device()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io(path, "stat", e)),
    }
}

/// Refuses to make a file where devices have their names: a name there means a device. /dev/shm is for files.
pub(super) fn refuse_among_devices(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Making the file reports missing directories.
    let Ok(parent) = parent.canonicalize() else { return Ok(()) };
    if parent.starts_with("/dev") && !parent.starts_with("/dev/shm") {
        let path = path.display();
        return Err(Error::invalid(format!(
            "there is no device {path}, and no file is made under /dev; name a devdax device that is there, or a file \
             elsewhere"
        )));
    }
    Ok(())
}

/// Removes the leftovers of a creation of a pool at `path` that was cut short.
pub(super) fn remove_unfinished(path: &Path) -> Result<()> {
    let temporary = temporary_name(path);
    match fs::symlink_metadata(&temporary) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        Ok(meta) if meta.is_file() && is_unfinished(&temporary)? => {}
        Ok(_) => {
            return Err(Error::invalid(format!(
                "{} has the temporary name of the pool {} and is not a leftover of its creation: move it away",
                temporary.display(),
                path.display()
            )));
        }
        Err(e) => return Err(Error::io(&temporary, "stat", e)),
    }
    fs::remove_file(&temporary).map_err(|e| Error::io(&temporary, "remove", e))
}

/// Whether a file is the leftover of a creation: the superblocks, which are written last, are missing or have no magic
/// yet, or it is a pool without any root.
///
/// Errors: [`Error::Locked`] if somebody has it open.
fn is_unfinished(path: &Path) -> Result<bool> {
    match Pool::open(path, &PoolOptions { private: true, salvage: true, ..looking() }) {
        Ok(pool) => Ok(pool.roots().is_ok_and(|roots| roots.is_empty())),
        Err(e @ Error::Locked { .. }) => Err(e),
        Err(_) => is_blank_so_far(path),
    }
}

/// Whether the pages of both superblocks are [blank](is_blank_page), as far as the file goes.
fn is_blank_so_far(path: &Path) -> Result<bool> {
    let failed = |e| Error::io(path, "read", e);
    let mut head = Vec::new();
    let end = SUPERBLOCK_AT[1] + SUPERBLOCK_PAGE_BYTES as u64;
    fs::File::open(path).and_then(|file| file.take(end).read_to_end(&mut head)).map_err(failed)?;
    head.resize(end as usize, 0);
    Ok(SUPERBLOCK_AT.into_iter().all(|at| is_blank_page(&head[at as usize..][..SUPERBLOCK_PAGE_BYTES])))
}

/// Looking at a device does not count as using it.
fn looking() -> PoolOptions {
    PoolOptions { prefault: false, ..PoolOptions::default() }
}
