//! A manifest as text, for people.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use terrace_base::{Error, Result};
use terrace_disk::Fs;
use terrace_log::Tail;

use super::{FileName, State, edit, locate, replay};

/// Writes the manifest in force in `dir` to `out` as readable text: every edit, and the resulting state.
/// Damage ends the text and is returned.
pub fn dump(fs: &dyn Fs, dir: &Path, out: &mut dyn io::Write) -> Result<()> {
    let Some(number) = locate(fs, dir)? else {
        return Err(Error::NotFound { dir: dir.to_path_buf() });
    };
    let mut text = format!("{}\n", FileName::Manifest(number));
    let read = replay::read_seeing(fs, dir, number, &mut |at, edit| {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{at:>8}  {edit}");
    });
    let read = read.map(|(state, outline)| describe_end(&mut text, &state, &outline.tail));
    out.write_all(text.as_bytes()).map_err(|e| Error::io(Path::new("the dump"), "write", e))?;
    read
}

fn describe_end(text: &mut String, state: &State, tail: &Tail) {
    if let Tail::Torn { at, dropped } = tail {
        let _ = writeln!(text, "{at:>8}  a torn tail of {dropped} bytes, dropped");
    }
    let _ = writeln!(
        text,
        "state: {} tables, {} candidates, {} open jobs, flushed {}, next file {}, logs from {}",
        state.tables.size(),
        state.candidates.size(),
        state.jobs.size(),
        state.flushed_seq,
        state.next_file,
        state.log_number,
    );
    for (lower, bucket) in &state.buckets {
        let _ = writeln!(text, "  bucket from \"{}\": flushed {}", lower.escape_ascii(), bucket.flushed);
    }
    for (number, table) in &state.tables {
        let what = if table.list.is_some() { "list" } else { "table" };
        let _ = write!(text, "  {what} {number}: level {}, {} live of ", table.level, table.live());
        let _ = edit::describe(text, &table.meta);
        text.push('\n');
    }
}
