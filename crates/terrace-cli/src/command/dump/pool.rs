//! A pool.
//!
//! Opening a pool changes it, since the session is noted in it. So a copy is opened. The original is locked while it is
//! copied.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use terrace_base::Error;
use terrace_pmem::{Granularity, Kind, MediaRequest, Pool, PoolOptions};

use crate::escape::hex;
use crate::failure::{CommandResult, Failure};
use terrace_base::size::human;

pub(super) fn dump(path: &Path, out: &mut dyn Write) -> CommandResult {
    let copy = tempfile::NamedTempFile::new().map_err(|e| Failure::io(&std::env::temp_dir(), "create", e))?;
    let original = super::open(path)?;
    if original.metadata().is_ok_and(|meta| meta.file_type().is_char_device()) {
        // This locks the pool itself, so it is not locked here.
        drop(original);
        Pool::copy_device(path, copy.as_file()).map_err(|e| renamed(e, path))?;
    } else {
        if flock(&original, FlockOperation::NonBlockingLockShared).is_err() {
            return Err(Error::locked(path).into());
        }
        std::fs::copy(path, copy.path()).map_err(|e| renamed(Error::io(path, "copy", e), path))?;
    }
    let pool = open_copy(copy.path()).map_err(|e| renamed(e, path))?;
    describe(&pool, path, out)
}

/// Opens a copy as its original: with the original's kind of media, and with the stores of a process that was killed in
/// this boot.
fn open_copy(copy: &Path) -> Result<Pool, Error> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot_id = boot_id.map(|id| id.trim().to_owned());
    let open = |granularity| {
        let media = MediaRequest::Force(granularity);
        Pool::open(
            copy,
            &PoolOptions { media, prefault: false, boot_id: boot_id.clone(), ..PoolOptions::default() },
        )
    };
    match open(Granularity::Page) {
        Err(Error::InvalidArgument(_)) => open(Granularity::CacheLine),
        opened => opened,
    }
}

/// Errors are about the original.
fn renamed(error: Error, path: &Path) -> Failure {
    match error {
        Error::Corruption { offset, expected, found, .. } => {
            Error::Corruption { file: path.to_path_buf(), offset, expected, found }.into()
        }
        Error::InvalidFormat { found, supported, is_other_version, .. } => {
            let error = Error::InvalidFormat { file: path.to_path_buf(), found, supported, is_other_version };
            Failure::error(error.to_string()).hint(
                "known are NUMBER.sst, NUMBER.log, SLOTS, CURRENT, a database's directory, and pools by any name",
            )
        }
        Error::NoSpace { .. } => {
            let place = std::env::temp_dir();
            let what = format!("no space left for a copy of {} in {}", path.display(), place.display());
            Failure::error(format!("{what}; TMPDIR may name another directory"))
        }
        other => other.into(),
    }
}

fn describe(pool: &Pool, path: &Path, out: &mut dyn Write) -> CommandResult {
    writeln!(out, "pool {}, {}", path.display(), human(pool.size()))?;
    writeln!(out, "  identity    {}", hex(&pool.uuid()))?;
    writeln!(out, "  found       {:?}, after {} openings", pool.opened(), pool.generation() - 1)?;
    writeln!(out, "  extents of  {}", human(pool.extent_bytes()))?;
    writeln!(out, "  used        {}, free {}", human(pool.used_bytes()), human(pool.free_bytes()))?;
    writeln!(out, "roots")?;
    for (name, value) in pool.roots()? {
        writeln!(out, "  {name:<24} {value:#014x}")?;
    }
    writeln!(out, "extents by kind")?;
    for kind in 0..=u8::MAX {
        extents(pool, Kind(kind), out)?;
    }
    Ok(())
}

/// Whole extents of a kind, and its slots by their size.
fn extents(pool: &Pool, kind: Kind, out: &mut dyn Write) -> CommandResult {
    let extents = pool.extents(kind);
    if !extents.is_empty() {
        let bytes: u64 = extents.iter().map(|e| e.bytes).sum();
        writeln!(out, "  kind {:<3} {:>8} extents {:>12}", kind.0, extents.len(), human(bytes))?;
    }
    let mut slots: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, bytes) in pool.slots(kind) {
        *slots.entry(bytes).or_default() += 1;
    }
    for (bytes, count) in slots {
        writeln!(out, "  kind {:<3} {count:>8} slots of {bytes} bytes {:>12}", kind.0, human(bytes * count))?;
    }
    Ok(())
}
