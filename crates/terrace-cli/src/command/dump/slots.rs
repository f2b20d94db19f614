//! The file of slots of an engine that parts items by size.

use std::io::Write;
use std::path::Path;

use terrace::{Error, InSlots, SlotsFile};
use terrace_disk::RealFs;

use crate::escape::escaped;
use crate::failure::{CommandResult, Failure};

pub(super) fn dump(path: &Path, out: &mut dyn Write) -> CommandResult {
    let file = SlotsFile::open(&RealFs, path).map_err(foreign)?;
    let (bytes, sector, origin) = (file.file_bytes(), file.sector_bytes(), file.origin());
    writeln!(out, "file of slots of {origin:016x}, {bytes} bytes in sectors of {sector}")?;
    let (mut items, mut sound) = (0u64, 0u64);
    let visited = file.visit(&mut |found| {
        if let InSlots::Item { is_sound, .. } = found {
            items += 1;
            sound += u64::from(is_sound);
        }
        show(found, out)
    });
    // The readable part is printed before the error.
    match &visited {
        Err(failure) if failure.message.is_empty() => {}
        _ => writeln!(
            out,
            "{items} items, of which {sound} are sound; only the index knows which of them are in use"
        )?,
    }
    visited
}

/// The byte at which it begins, its sectors, its number, the bytes of its value, its checksum and its key.
fn show(found: InSlots<'_>, out: &mut dyn Write) -> CommandResult {
    match found {
        InSlots::Stamp { offset, number, is_known } => {
            let what = if is_known { "which the manifest knows" } else { "which the manifest does not name" };
            writeln!(out, "{offset:>12}  stamp {number}, {what}")?;
        }
        InSlots::Item { offset, sectors, key, number, value_bytes, is_sound } => {
            let state = if is_sound { "sound" } else { "wrong checksum" };
            let key = escaped(key);
            writeln!(
                out,
                "{offset:>12}  {sectors:>7} sectors  {number:>12}  {value_bytes:>10} bytes  {state}\t{key}"
            )?;
        }
        _ => {}
    }
    Ok(())
}

/// Another version of Terrace would have made a file of slots, too; this is none.
fn foreign(error: Error) -> Failure {
    match error {
        Error::InvalidFormat { .. } => Failure::error(error.to_string())
            .hint("a stamp in the file, or the manifest, tells which database its items belong to: dump it in its place"),
        other => other.into(),
    }
}
