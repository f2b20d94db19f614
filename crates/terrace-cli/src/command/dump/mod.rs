//! `terrace dump`: the files of a database in readable form.

mod log;
mod pool;
mod slots;
mod table;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use terrace::manifest::{self, FileName};
use terrace_disk::RealFs;

use crate::failure::{CommandResult, Failure};

/// Prints a file of a database in readable form: an SSTable (NUMBER.sst), the manifest (a database's
/// directory, or CURRENT in it), a commit log (NUMBER.log), the large items of the engine `split`
/// (SLOTS) or a pool.
///
/// Of SLOTS it prints stamps and items in the order of the file: the byte at which an item begins, its sectors, its
/// sequence number, the bytes of its value, whether its checksum holds, and its key. Items are found by their own
/// heads. Replaced items stay until others take their place or their space is given back; the checksum of one that is
/// partly overwritten does not hold.
///
/// It reads and never writes; a pool is copied and the copy opened. Files of a database that is in use
/// may be seen half-written.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace dump ./db\n  terrace dump ./db/000007.sst --entries --limit 20\n  terrace dump ./db/SLOTS\n  terrace dump ./db/pool"
)]
pub struct Dump {
    /// The file, or a database's directory for its manifest
    pub file: PathBuf,
    /// Print every entry of an SSTable, and not only its blocks
    #[arg(long)]
    pub entries: bool,
    /// The most entries to print
    #[arg(long, value_name = "N", requires = "entries")]
    pub limit: Option<u64>,
    /// Print values whole and not only their beginnings
    #[arg(long, requires = "entries")]
    pub full: bool,
}

impl Dump {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let path = &self.file;
        let found = std::fs::metadata(path).map_err(|e| Failure::io(path, "open", e))?;
        if found.is_dir() {
            return manifest_of(path, out);
        }
        match FileName::parse(path) {
            Some(FileName::Table(number) | FileName::TableHidden(number)) => table::dump(self, number, out),
            Some(FileName::Log(number) | FileName::LogBegun(number)) => log::dump(path, number, out),
            Some(FileName::Manifest(number)) => self.manifest(number, out),
            Some(FileName::Current | FileName::CurrentTemp) => manifest_of(parent(path), out),
            Some(FileName::Slots) => slots::dump(path, out),
            Some(FileName::Lock) => Err(Failure::usage("a LOCK file holds nothing")),
            Some(FileName::Ingest(_)) => Err(Failure::usage("the file of an ingest names tables alone")),
            None => pool::dump(path, out),
        }
    }

    fn manifest(&self, number: u64, out: &mut dyn Write) -> CommandResult {
        let dir = parent(&self.file);
        if manifest::locate(&RealFs, dir)? != Some(number) {
            return Err(Failure::error(format!("{} is not the manifest in force", self.file.display()))
                .hint("it is a leftover and holds nothing that counts; name the directory for the one that does"));
        }
        manifest_of(dir, out)
    }
}

fn manifest_of(dir: &Path, out: &mut dyn Write) -> CommandResult {
    let mut text = Vec::new();
    let result = manifest::dump(&RealFs, dir, &mut text);
    // The readable part is printed before the error.
    out.write_all(&text)?;
    Ok(result?)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn open(path: &Path) -> CommandResult<File> {
    File::open(path).map_err(|e| Failure::io(path, "open", e))
}
