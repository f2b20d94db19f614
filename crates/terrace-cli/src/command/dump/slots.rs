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
    // What could be read comes before what could not.
    match &visited {
        Err(failure) if failure.message.is_empty() => {}
        _ => writeln!(out, "{items} items, of which {sound} are sound; what leads to them the index knows")?,
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

/// What is no file of slots is nothing that another version of Terrace has made.
fn foreign(error: Error) -> Failure {
    match error {
        Error::InvalidFormat { .. } => Failure::error(error.to_string())
            .hint("whose items these are say a stamp in the file, or the manifest: dump it where it belongs"),
        other => other.into(),
    }
}
