//! Log files: how one comes to be.

use std::path::{Path, PathBuf};

use terrace_base::Result;
use terrace_disk::{Fs, Room, WriteFile};

use crate::frame::Origin;
use crate::segment::FileSegment;
use crate::writer::LogWriter;

/// Creates the log file `path`, its name and header durable when this returns.
///
/// It is made under another name ([`unfinished_path`]) and renamed, so that no crash leaves a file named `path` whose
/// header is not whole. A leftover of such a crash is replaced. `database` is the database that the log belongs to,
/// zero if that is not known.
pub fn create_log_file(
    fs: &dyn Fs,
    path: &Path,
    first: (u64, u64),
    database: u64,
) -> Result<LogWriter<FileSegment>> {
    create_by(fs, path, first, database, |unfinished| fs.create(unfinished))
}

/// As [`create_log_file`], with room for many records or syncs where the file system has that ([`Fs::create_reserved`]).
pub fn create_reserved_log_file(
    fs: &dyn Fs,
    path: &Path,
    first: (u64, u64),
    database: u64,
    room: Room,
) -> Result<LogWriter<FileSegment>> {
    create_by(fs, path, first, database, |unfinished| fs.create_reserved(unfinished, room))
}

fn create_by(
    fs: &dyn Fs,
    path: &Path,
    (id, first_lsn): (u64, u64),
    database: u64,
    create: impl FnOnce(&Path) -> Result<Box<dyn WriteFile>>,
) -> Result<LogWriter<FileSegment>> {
    let dir = path.parent().unwrap_or(Path::new(""));
    let origin = Origin { epoch: fs.epoch(dir), database };
    let unfinished = unfinished_path(path);
    if fs.exists(&unfinished)? {
        fs.remove(&unfinished)?;
    }
    let writer = LogWriter::create_of(FileSegment(create(&unfinished)?), id, first_lsn, origin)?;
    fs.rename(&unfinished, path)?;
    fs.sync_dir(dir)?;
    Ok(writer)
}

/// The name under which a log file is made: `path` with `.new` appended.
pub fn unfinished_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}
