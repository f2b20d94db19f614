//! A commit log.

use std::io::Write;
use std::path::Path;

use terrace_log::{LogReader, Tail};

use crate::failure::{CommandResult, Failure};

pub(super) fn dump(path: &Path, number: u64, out: &mut dyn Write) -> CommandResult {
    let data = std::fs::read(path).map_err(|e| Failure::io(path, "read", e))?;
    writeln!(out, "commit log {number}, {} bytes", data.len())?;
    let (mut records, mut bytes) = (0u64, 0u64);
    let mut text = Vec::new();
    let read = LogReader::read_file(&data, path, number, &mut |lsn, payload| {
        // Writing to memory cannot fail.
        let _ = writeln!(text, "{lsn:>12}  {} bytes", payload.len());
        records += 1;
        bytes += payload.len() as u64;
        Ok(())
    });
    out.write_all(&text)?;
    match read? {
        Tail::Clean => writeln!(out, "{records} records of {bytes} bytes; it ends with the last")?,
        Tail::Torn { at, dropped } => writeln!(
            out,
            "{records} records of {bytes} bytes; {dropped} bytes after byte {at} are no record and were never \
             promised"
        )?,
    }
    Ok(())
}
