//! `terrace export`.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use terrace_bench::report::grouped;

use crate::args::file_of;
use crate::failure::{CommandResult, Failure};
use crate::interrupt;
use crate::keyspace::{KeyspaceArg, Records};
use crate::open::{Intent, OpenArgs};
use crate::progress;
use crate::records::Format;

/// Writes all records, in key order where the engine has one, in a form that `terrace import` reads
///
/// tsv: a record a line: key, tab, value. Only backslashes, control bytes and bytes that are not UTF-8
/// are escaped.
///
/// json: an object a line: {"key":"..","value":".."}, with "key_b64" or "value_b64" in base64 for
/// bytes that are not UTF-8.
///
/// A FILE appears whole or not at all, and replaces one that is there. A device or a pipe is written to as it stands.
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:\n  terrace export ./db backup.tsv\n  terrace export ./db --format json | gzip > backup.jsonl.gz"
)]
pub struct Export {
    /// The database
    pub dir: PathBuf,
    /// The file to write; standard output if absent or -
    pub file: Option<PathBuf>,
    /// How to write the records
    #[arg(long, default_value = "tsv")]
    pub format: Format,
    /// The keyspace.
    #[command(flatten)]
    pub keyspace: KeyspaceArg,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Export {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let Some(path) = file_of(&self.file) else {
            let records = self.records()?;
            return self.write_records(&records, out).map(|_| ());
        };
        refuse_files_of(&self.dir, path)?;
        interrupt::install()?;
        let records = self.write_file(&self.records()?, path)?;
        Ok(writeln!(out, "exported {} records to {}", grouped(records), path.display())?)
    }

    /// The records to export. A person is told of those that are not among them.
    fn records(&self) -> CommandResult<Records> {
        let db = self.open.open(&self.dir, Intent::Read)?;
        let records = self.keyspace.of(&db, false)?;
        // Only for the message: what can be exported is.
        let others = db.keyspaces().map_or(0, |names| names.len());
        if self.keyspace.keyspace.is_none() && others > 0 {
            let noun = if others == 1 { "keyspace is" } else { "keyspaces are" };
            // Standard error may be closed; then the message is lost on purpose.
            let _ = writeln!(
                std::io::stderr(),
                "terrace: {others} {noun} left out; `terrace keyspaces` lists them, --keyspace NAME exports one"
            );
        }
        Ok(records)
    }

    fn write_file(&self, records: &Records, path: &Path) -> CommandResult<u64> {
        refuse_locked(path)?;
        let Some(path) = replaceable(path)? else {
            let file = File::options().write(true).open(path).map_err(|e| Failure::io(path, "open", e))?;
            return self.write_records(records, &mut &file);
        };
        let part = Part::create(&path)?;
        let mut out = BufWriter::with_capacity(1 << 18, &part.file);
        // An error of the full disk belongs to the file, not to standard output.
        let records = self.write_records(records, &mut out).map_err(|f| part.blame(f))?;
        out.flush().map_err(|e| Failure::io(&part.path, "write", e))?;
        drop(out);
        part.finish()?;
        Ok(records)
    }

    fn write_records(&self, from: &Records, out: &mut dyn Write) -> CommandResult<u64> {
        let bar = progress::operations("export", None);
        let mut lines = Vec::with_capacity(1 << 17);
        let mut records = 0u64;
        for record in from.entries()? {
            let (key, value) = record?;
            self.format.write(&key, &value, &mut lines);
            records += 1;
            if lines.len() >= 1 << 16 {
                out.write_all(&lines)?;
                lines.clear();
                bar.set_position(records);
                if interrupt::requested() {
                    bar.finish_and_clear();
                    return Err(interrupt::stopped("stopped; nothing was exported"));
                }
            }
        }
        out.write_all(&lines)?;
        bar.finish_and_clear();
        Ok(records)
    }
}

/// Refuses a target beside the files of the database in `dir`, which it would replace or be taken for.
fn refuse_files_of(dir: &Path, path: &Path) -> CommandResult {
    let place = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let beside = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (beside.canonicalize(), dir.canonicalize()) {
        (Ok(beside), Ok(dir)) if beside == dir => Err(Failure::usage(format!(
            "{} lies in the directory of the database, which is for the database's files: name another place",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses a file that a process has locked, this one's own pool among them.
fn refuse_locked(path: &Path) -> CommandResult {
    if !path.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    match File::open(path).map(|file| file.try_lock()) {
        Ok(Err(TryLockError::WouldBlock)) => {
            Err(Failure::usage(format!("{} is in use: name another place", path.display())))
        }
        _ => Ok(()),
    }
}

/// The file that is to replace the target of `path`. The target must be a file, or not exist yet.
fn replaceable(path: &Path) -> CommandResult<Option<PathBuf>> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(Failure::usage(format!("{} is a directory", path.display()))),
        Ok(found) if !found.is_file() => Ok(None),
        // A link stays a link.
        Ok(_) => path.canonicalize().map(Some).map_err(|e| Failure::io(path, "follow", e)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Some(path.to_path_buf())),
        Err(e) => Err(Failure::io(path, "look at", e)),
    }
}

/// A file being written beside its final place; gone again unless finished.
struct Part {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Part {
    fn create(target: &Path) -> CommandResult<Part> {
        let mut name = OsString::from(".");
        name.push(
            target
                .file_name()
                .ok_or_else(|| Failure::usage(format!("{} names no file to export to", target.display())))?,
        );
        name.push(format!(".{}.part", std::process::id()));
        let path = target.with_file_name(name);
        let file = File::create(&path).map_err(|e| Failure::io(&path, "create", e))?;
        Ok(Part { file, path, target: target.to_path_buf() })
    }

    fn blame(&self, failure: Failure) -> Failure {
        match failure.message.strip_prefix("cannot write the output: ") {
            Some(cause) => Failure::error(format!("cannot write {}: {cause}", self.path.display())),
            None => failure,
        }
    }

    /// Durable under its final name.
    fn finish(self) -> CommandResult {
        self.file.sync_all().map_err(|e| Failure::io(&self.path, "sync", e))?;
        std::fs::rename(&self.path, &self.target).map_err(|e| Failure::io(&self.target, "rename", e))?;
        let dir = self.target.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Failure::io(dir, "sync", e))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After a rename there is nothing left to remove.
        let _ = std::fs::remove_file(&self.path);
    }
}
