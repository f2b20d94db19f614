//! Making a pool.
//!
//! A file is made under a temporary name, its own with `.new` behind it, and takes its own when it is a whole pool: a
//! crash leaves at most the temporary one, which the next creation removes. An existing file that is not empty is never
//! touched. Under the temporary name only leftovers of a creation are touched.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags};
use terrace_base::{Error, Result};

use super::format::{self, Raw};
use super::open::Parts;
use super::place::{is_device, refuse_among_devices, remove_unfinished};
use super::state::{self, Session};
use super::{MediaRequest, Opened, Pool, PoolOptions};
use crate::media::{EmulatedMedia, FileMedia, Media};

impl Pool {
    /// Makes a pool in a new file, an empty file, or an unused device.
    ///
    /// Errors: [`Error::InvalidArgument`] if something is there already, [`Error::Locked`], [`Error::NoSpace`].
    pub fn create(path: &Path, options: &PoolOptions) -> Result<Pool> {
        format::validate_options(options)?;
        let present = match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_char_device() => {
                return Self::create_on(map(path, path, 0, options)?, path, options);
            }
            Ok(meta) if !meta.is_file() => {
                return Err(refused(path, "it is neither a file nor a devdax device"));
            }
            Ok(meta) if meta.len() > 0 => return Err(refused(path, "it is not empty")),
            Ok(_) => true,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                refuse_among_devices(path)?;
                false
            }
            Err(e) => return Err(Error::io(path, "stat", e)),
        };
        let temporary = temporary_name(path);
        remove_unfinished(path)?;
        let size = options.size.min(options.max_size) / options.extent_bytes * options.extent_bytes;
        let made = map(&temporary, path, size, options).and_then(|media| {
            let pool = Self::format(media, path, options)?;
            take_name(&temporary, path, present)?;
            Ok(pool)
        });
        if made.is_err() {
            // Best effort: the next creation removes leftovers.
            let _ = fs::remove_file(&temporary);
        }
        made
    }

    /// Makes a pool on a medium that holds none. `name` stands for it in messages.
    pub fn create_on(media: Arc<dyn Media>, name: &Path, options: &PoolOptions) -> Result<Pool> {
        if !Self::is_blank_on(&*media, name)? {
            return Err(refused(name, "the medium is not empty"));
        }
        Self::format(media, name, options)
    }

    /// Makes a pool on a medium, ignoring its contents.
    pub fn recreate_on(media: Arc<dyn Media>, name: &Path, options: &PoolOptions) -> Result<Pool> {
        Self::format(media, name, options)
    }

    fn format(media: Arc<dyn Media>, name: &Path, options: &PoolOptions) -> Result<Pool> {
        let raw = Raw::new(&*media, name)?;
        let (superblock, units) = format::plan(options, &*media, name)?;
        format::write_header(&raw, &superblock, units)?;
        let session = Session::first(state::place(options, &*media), media.power_safe());
        session.write(&raw)?;
        format::write_superblocks(&raw, &superblock)?;
        let size = units * superblock.extent_bytes;
        let opened = Opened::Created;
        let parts = Parts { superblock, size, opened, session, digest: 0, unreclaimed: false };
        Pool::assemble(media, name, options, parts)
    }
}

/// Maps the file or device at `path` as `options` asks; extends it to `len` bytes, making it if necessary.
pub(super) fn map(path: &Path, name: &Path, len: u64, options: &PoolOptions) -> Result<Arc<dyn Media>> {
    if options.read_only || options.private {
        match is_device(path)? {
            false => return map_private(path, name, options),
            // A device has no pages that could be a process's own.
            true if options.private => return Err(Error::NotClosed { path: name.to_path_buf() }),
            true => {}
        }
    }
    Ok(match options.media {
        MediaRequest::Emulated(profile) => {
            let media = EmulatedMedia::open(path, name, len, options.max_size, profile)?;
            if options.prefault {
                media.prefault();
            }
            Arc::new(media)
        }
        MediaRequest::Auto | MediaRequest::Force(_) => {
            let force = match options.media {
                MediaRequest::Force(granularity) => Some(granularity),
                MediaRequest::Auto | MediaRequest::Emulated(_) => None,
            };
            let media = FileMedia::open(path, name, len, options.max_size, force)?;
            if options.prefault {
                media.prefault();
            }
            Arc::new(media)
        }
    })
}

fn map_private(path: &Path, name: &Path, options: &PoolOptions) -> Result<Arc<dyn Media>> {
    Ok(match options.media {
        MediaRequest::Emulated(profile) => {
            Arc::new(EmulatedMedia::open_private(path, name, options.max_size, profile)?)
        }
        MediaRequest::Auto => Arc::new(FileMedia::open_private(path, name, options.max_size, None)?),
        MediaRequest::Force(granularity) => {
            Arc::new(FileMedia::open_private(path, name, options.max_size, Some(granularity))?)
        }
    })
}

/// The name under which a pool's file is made.
pub(super) fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Gives the finished file its name. Replaces a file only if that was intended.
fn take_name(temporary: &Path, path: &Path, replaces: bool) -> Result<()> {
    let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(CWD, temporary, CWD, path, flags) {
        Ok(()) => {}
        // A file system without the flag: a link never replaces either.
        Err(rustix::io::Errno::INVAL) => {
            fs::hard_link(temporary, path).map_err(|e| Error::io(path, "create", e))?;
            fs::remove_file(temporary).map_err(|e| Error::io(temporary, "remove", e))?;
        }
        Err(e) => return Err(Error::io(path, "create", e.into())),
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = fs::File::open(parent).map_err(|e| Error::io(parent, "open", e))?;
    dir.sync_all().map_err(|e| Error::io(parent, "sync", e))
}

fn refused(path: &Path, why: &str) -> Error {
    Error::invalid(format!("a pool cannot be made at {}: {why}", path.display()))
}
