//! `terrace check` and `terrace repair`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use terrace::Db;
use terrace_base::{Error, ErrorKind};
use terrace_bench::report::grouped;

use crate::failure::{CommandResult, Failure, exit};
use crate::open::{OpenArgs, require_database};
use crate::size;

const REPAIR_HINT: &str = "`terrace repair DIR` rebuilds what can be rebuilt";

/// Reads everything and verifies it: checksums, order, and that every byte of the pool is free or has
/// one owner.
///
/// The exit code is 1 if something is damaged; what and where is printed.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  terrace check ./db && echo sound")]
pub struct Check {
    /// The database
    pub dir: PathBuf,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Check {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        require_database(&self.dir)?;
        let db = self.open.open_to_read(&self.dir, damage)?;
        let report = db.check().map_err(damage)?;
        db.close()?;
        for problem in &report.problems {
            writeln!(out, "{problem}")?;
        }
        if report.is_clean() {
            return Ok(writeln!(
                out,
                "sound: {} keys in the index, {} entries in {} SSTables, {} of the pool",
                grouped(report.keys),
                grouped(report.entries),
                grouped(report.tables),
                size::human(report.pm_bytes),
            )?);
        }
        let count = report.problems.len();
        let things = if count == 1 { "problem" } else { "problems" };
        Err(Failure::new(exit::NOT_FOUND, format!("the database is damaged: {count} {things}"))
            .hint(REPAIR_HINT))
    }
}

/// Damage that kept the check from going on is what the check was to find.
fn damage(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Corruption => Failure::new(exit::NOT_FOUND, error.to_string()).hint(REPAIR_HINT),
        _ => error.into(),
    }
}

/// Rebuilds what can be rebuilt of a damaged database, and says what is lost.
///
/// The pool is rebuilt from SSTables and log; SSTables that cannot be read are set aside. Make a copy
/// of the directory first if nothing must be lost for good.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cp -a ./db ./db.bak && terrace repair ./db && terrace check ./db")]
pub struct Repair {
    /// The database
    pub dir: PathBuf,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Repair {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        require_database(&self.dir)?;
        let report = Db::repair(&self.dir, self.open.options_for(&self.dir))?;
        for line in &report.actions {
            writeln!(out, "{line}")?;
        }
        writeln!(out, "{} keys are in the repaired database", grouped(report.keys))?;
        if report.lost.is_empty() {
            return Ok(writeln!(out, "nothing is lost")?);
        }
        for lost in &report.lost {
            writeln!(out, "lost: {lost}")?;
        }
        Err(Failure::new(exit::NOT_FOUND, "not everything could be recovered; what is lost is listed above"))
    }
}
