//! `terrace keyspaces`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use terrace::Db;

use crate::failure::CommandResult;
use crate::open::{Intent, OpenArgs};

/// Lists the keyspaces of a database, a name a line; drops one; names those that damage left without a name.
///
/// The default keyspace, in which records lie without --keyspace, is not listed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace keyspaces ./db\n  terrace put ./db --keyspace users ada 1815\n  terrace keyspaces ./db --drop users"
)]
pub struct Keyspaces {
    /// The database
    pub dir: PathBuf,
    /// Drop this keyspace with all its records
    #[arg(long, value_name = "NAME", conflicts_with = "recover")]
    pub drop: Option<String>,
    /// Give keyspaces that have records and no name, which only damage can leave, new names, and print these
    #[arg(long)]
    pub recover: bool,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Keyspaces {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let intent = if self.drop.is_some() || self.recover { Intent::Write } else { Intent::Read };
        let db = self.open.open(&self.dir, intent)?;
        let names = self.work(&db);
        let closed = db.close();
        for name in names? {
            writeln!(out, "{}", name.escape_debug())?;
        }
        Ok(closed?)
    }

    fn work(&self, db: &Db) -> CommandResult<Vec<String>> {
        if let Some(name) = &self.drop {
            db.drop_keyspace(name)?;
            // Nobody else will before the next opening for writing.
            db.sweep()?;
            return Ok(Vec::new());
        }
        Ok(if self.recover { db.recover_keyspaces()? } else { db.keyspaces()? })
    }
}
