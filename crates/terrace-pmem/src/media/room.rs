//! Room for a pool on its file system.
//!
//! A store to a mapped page must not find the disk full, which would be a signal and not an error: what is mapped has
//! its space set aside first, or there is far more on a tmpfs than is asked for.

use std::fs::File;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use terrace_base::{Error, Result};

/// Room on a tmpfs below which pages are set aside at once: with less, others might fill it before the prefault
/// has touched them.
pub(super) const TIGHT_BYTES: u64 = 1 << 30;

/// Makes the file `to` bytes long with its space set aside. The length is not durable yet.
pub(super) fn extend(file: &File, name: &Path, from: u64, to: u64, on_tmpfs: bool) -> Result<()> {
    // Setting pages aside on a tmpfs means taking them all now; the prefault does that in the background.
    if on_tmpfs && free_bytes(file, name)? >= (to - from).saturating_add(TIGHT_BYTES) {
        rustix::fs::ftruncate(file, to).map_err(|e| Error::io(name, "extend", e.into()))
    } else {
        set_aside(file, name, from, to)
    }
}

/// Takes the pages from `from` to `to`; a file that is shorter becomes that long.
pub(super) fn set_aside(file: &File, name: &Path, from: u64, to: u64) -> Result<()> {
    let failed = |e: Errno| Error::io(name, "extend", e.into());
    let before = rustix::fs::fstat(file).map_err(failed)?.st_size;
    let outcome =
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), from, to - from));
    if outcome.is_err() {
        // Some file systems keep what they had taken when there was no more.
        let _ = rustix::fs::ftruncate(file, before as u64);
    }
    match outcome {
        Ok(()) => Ok(()),
        // Longer than the file system's longest file.
        Err(Errno::FBIG) => Err(Error::NoSpace { path: name.to_path_buf() }),
        Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(file, to).map_err(failed),
        Err(e) => Err(failed(e)),
    }
}

pub(super) fn free_bytes(file: &File, name: &Path) -> Result<u64> {
    let free = rustix::fs::fstatvfs(file).map_err(|e| Error::io(name, "stat", e.into()))?;
    Ok(free.f_bavail.saturating_mul(free.f_frsize))
}
