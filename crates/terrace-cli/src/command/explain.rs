//! `terrace explain`.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::point::not_found;
use crate::args::bytes_of;
use crate::failure::CommandResult;
use crate::keyspace::KeyspaceArg;
use crate::open::{Intent, OpenArgs};

/// Shows what a read of a key touches: memtables, index, filters, tables, blocks and their bytes.
///
/// The database is opened for it, so that nothing is in its caches yet. The exit code is 1 if the key is
/// not there; what it took to find that out is shown all the same.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  terrace explain ./db greeting")]
pub struct Explain {
    /// The database
    pub dir: PathBuf,
    /// The key, with \\ \t \n \r and \xNN for bytes that cannot be typed
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// Take the key in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// The keyspace.
    #[command(flatten)]
    pub keyspace: KeyspaceArg,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Explain {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let key = bytes_of("the key", &self.key, self.hex)?;
        let db = self.open.open(&self.dir, Intent::Read)?;
        let records = self.keyspace.of(&db, false)?;
        let explained = records.explain(&key)?;
        writeln!(out, "{explained}")?;
        match explained.value_bytes {
            Some(_) => Ok(()),
            None => Err(not_found(&records, &key)),
        }
    }
}
