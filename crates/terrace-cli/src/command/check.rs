//! `terrace check` and `terrace repair`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use terrace::{Db, RepairOptions};
use terrace_base::{Error, ErrorKind};
use terrace_bench::report::grouped;

use crate::failure::{CommandResult, Failure, exit};
use crate::interrupt;
use crate::open::{OpenArgs, require_database};
use terrace_base::size;

const REPAIR_HINT: &str = "`terrace repair DIR` rebuilds what can be rebuilt";

/// The command that problems name which no repair mends.
const RECOVERS: &str = "`terrace keyspaces DIR --recover`";

/// Reads everything and verifies it: checksums, order, and that every byte of the pool is free or has
/// one owner.
///
/// The exit code is 1 if something is damaged; the places and kinds of damage are printed.
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
                "sound: {} keys, {} entries in {} SSTables, {} of the pool",
                grouped(report.keys),
                grouped(report.entries),
                grouped(report.tables),
                size::human(report.pm_bytes),
            )?);
        }
        let count = report.problems.len();
        let things = if count == 1 { "problem" } else { "problems" };
        let is_of_keyspaces = report.problems.iter().all(|problem| problem.contains(RECOVERS));
        let hint = if is_of_keyspaces { format!("{RECOVERS} mends that") } else { REPAIR_HINT.into() };
        Err(Failure::new(exit::NOT_FOUND, format!("the database is damaged: {count} {things}")).hint(hint))
    }
}

/// Damage that ends the check early counts as a finding.
fn damage(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Corruption => Failure::new(exit::NOT_FOUND, error.to_string()).hint(REPAIR_HINT),
        _ => error.into(),
    }
}

/// Rebuilds a damaged database as far as possible, and lists what is lost.
///
/// New files are written beside the old ones, checked, and put in their place in one step: a repair that fails or is
/// killed has changed nothing, or is complete. It needs room for that. Files that were damaged, or are another
/// database's, are kept in the folder `lost` of the directory, with a list of what they are. A sound database is left
/// as it is.
///
/// The exit code is 1 if something is lost.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace repair ./db --dry-run\n  terrace repair ./db && terrace check ./db"
)]
pub struct Repair {
    /// The database
    pub dir: PathBuf,
    /// Do all but the last step: report what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Repair {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        require_database(&self.dir)?;
        interrupt::install()?;
        let stop = Some(interrupt::flag());
        let how = RepairOptions { engine: self.open.engine_asked(), dry_run: self.dry_run, stop };
        let report = match Db::repair_with(&self.dir, self.open.options(), how) {
            Err(e) if interrupt::requested() && e.kind() == ErrorKind::Io => {
                return Err(interrupt::stopped("stopped; run the same command again to repair the database"));
            }
            repaired => repaired.map_err(|e| self.no_room(e))?,
        };
        for line in &report.actions {
            writeln!(out, "{line}")?;
        }
        for line in &report.set_aside {
            writeln!(out, "set aside: {line}")?;
        }
        let (what, lost) = match self.dry_run {
            true => ("would be in the repaired database; nothing was changed", "would be lost"),
            false => ("are in the repaired database", "lost"),
        };
        writeln!(out, "{} keys {what}", grouped(report.keys))?;
        for line in &report.doubts {
            writeln!(out, "not known: {line}")?;
        }
        if report.lost.is_empty() {
            let nothing = if report.doubts.is_empty() { "nothing" } else { "nothing that is known of" };
            return Ok(writeln!(out, "{nothing} {}", if self.dry_run { lost } else { "is lost" })?);
        }
        for line in &report.lost {
            writeln!(out, "{lost}: {line}")?;
        }
        Err(Failure::new(exit::NOT_FOUND, "not everything could be recovered; what is lost is listed above"))
    }
}

impl Repair {
    /// Adds how much room a repair needs to an error about missing room.
    fn no_room(&self, error: Error) -> Failure {
        let len = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        let needed = match &error {
            Error::NoSpace { .. } => {
                let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
                let all = size::human(files.map(|file| len(file.path())).sum());
                format!(
                    "a repair writes beside what is there: it needs up to {all} of free space, and has changed nothing"
                )
            }
            Error::PoolFull { path, .. } => {
                let there = size::human(len(path.with_extension("")));
                format!(
                    "the pool that is there takes {there}: give the new one as much with `--pm SIZE`; nothing was changed"
                )
            }
            _ => return error.into(),
        };
        Failure::new(exit::ERROR, error.to_string()).hint(needed)
    }
}
