//! The process that the tour kills: it writes without end and acknowledges each write over a pipe.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use terrace::WriteBatch;

use crate::failure::CommandResult;
use crate::interrupt;
use crate::open::{Intent, OpenArgs};
use crate::text;

/// Prefix of the keys that the killed process writes.
pub(super) const VISITS: &str = "visit/";
/// Records of one write; they are there together or not at all.
pub(super) const PARTS: u64 = 2;

/// Writes until killed. Write n puts two records in one batch, and then prints n.
#[derive(Debug, Args)]
pub struct WriteForever {
    /// The database
    pub dir: PathBuf,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl WriteForever {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        interrupt::install()?;
        let db = self.open.open(&self.dir, Intent::Write)?;
        for number in 0u64.. {
            if interrupt::requested() {
                db.close()?;
                return Err(interrupt::stopped(""));
            }
            let mut batch = WriteBatch::new();
            for part in 0..PARTS {
                let (key, value) = visit(number, part);
                batch.put(key.as_bytes(), value.as_bytes());
            }
            db.write(batch)?;
            writeln!(out, "{number}")?;
            out.flush()?;
        }
        Ok(())
    }
}

/// The records of write `number`.
pub(super) fn visit(number: u64, part: u64) -> (String, String) {
    let (_, value) = text::record(number % text::RECORDS, 100 + number + part);
    (format!("{VISITS}{number:010}/{part}"), value)
}
