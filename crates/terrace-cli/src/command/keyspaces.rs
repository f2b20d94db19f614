//! `terrace keyspaces`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use terrace::{Db, Expiry, Keyspace, KeyspaceOptions, MergeOperator, TableSettings};

use crate::command::swept::sweep_and_close;
use crate::escape::escaped;
use crate::failure::CommandResult;
use crate::keyspace::{expiry, name};
use crate::made::Made;
use crate::open::{Intent, OpenArgs, plain};

/// Lists the keyspaces of a database, a name a line; makes or drops one; names those that damage left without a name.
///
/// The default keyspace, in which records lie without --keyspace, is not listed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace keyspaces ./db --long\n  terrace put ./db --keyspace users ada 1815\n  terrace keyspaces ./db --make sessions --ttl 30m\n  terrace keyspaces ./db --make visits --merge add\n  terrace keyspaces ./db --make pages --tables compression=lz4,block_bytes=16KiB\n  terrace keyspaces ./db --drop users"
)]
pub struct Keyspaces {
    /// The database
    pub dir: PathBuf,
    /// Make this keyspace, if there is none, and the database, if there is none
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with_all = ["drop", "recover"])]
    pub make: Option<String>,
    /// How long the records of the keyspace to be made live, if their puts say nothing: 30m, 12h, 7days, or forever.
    /// Whether they can expire is fixed when it is made; another time holds for what is put from now on
    #[arg(long, value_name = "DURATION", requires = "make", value_parser = expiry)]
    pub ttl: Option<Expiry>,
    /// How `terrace merge` changes values in the keyspace to be made, or in one that has no operator yet
    #[arg(long, value_name = "OPERATOR", requires = "make")]
    pub merge: Option<Operator>,
    /// Keep operands as they come, and have reads and compactions fold them (engines lsm, tlsm and wip)
    #[arg(long, requires = "merge")]
    pub deferred: bool,
    /// How the records of the keyspace are written into tables, where it is to be otherwise than for the database:
    /// compression=lz4, block_bytes=16KiB and filter_bits_per_key=0, any of them, with commas between; or default
    #[arg(long, value_name = "SETTINGS", requires = "make", value_parser = tables)]
    pub tables: Option<TableSettings>,
    /// Drop this keyspace with all its records
    #[arg(long, value_name = "NAME", value_parser = name, conflicts_with = "recover")]
    pub drop: Option<String>,
    /// Give keyspaces that have records and no name, which only damage can leave, new names, and print these
    #[arg(long)]
    pub recover: bool,
    /// Say with each name how long the records live, by which operator values are merged, and how tables are written
    #[arg(long, conflicts_with_all = ["drop", "recover", "make"])]
    pub long: bool,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

/// An operator that every build has.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Operator {
    /// The sum of whole numbers of eight bytes
    Add,
    /// The operand behind the value
    Append,
    /// The greater one, byte by byte
    Max,
}

impl From<Operator> for MergeOperator {
    fn from(operator: Operator) -> MergeOperator {
        match operator {
            Operator::Add => MergeOperator::add(),
            Operator::Append => MergeOperator::append(),
            Operator::Max => MergeOperator::max(),
        }
    }
}

impl Keyspaces {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let intent = match (&self.make, self.drop.is_some() || self.recover) {
            (Some(_), _) => Intent::Create,
            (None, true) => Intent::Write,
            (None, false) => Intent::Read,
        };
        let made = self.make.as_ref().and_then(|_| Made::about_to(&self.dir, &self.open.options()));
        let db = self.open.open(&self.dir, intent)?;
        if let Some(name) = &self.drop {
            return Ok(sweep_and_close(&db, db.drop_keyspace(name))?);
        }
        let lines = self.work(&db);
        let closed = db.close();
        if let Some(made) = made.filter(|_| lines.is_err()) {
            made.remove();
        }
        for line in lines? {
            writeln!(out, "{line}")?;
        }
        Ok(closed?)
    }

    fn work(&self, db: &Db) -> CommandResult<Vec<String>> {
        if let Some(name) = &self.make {
            let merge = self.merge.map(MergeOperator::from);
            let merge = merge.map(|merge| if self.deferred { merge.deferred() } else { merge });
            let (expiry, tables) = (self.ttl, self.tables);
            let options = KeyspaceOptions { expiry, merge, tables, ..KeyspaceOptions::default() };
            db.keyspace_with(name, options)?;
            return Ok(Vec::new());
        }
        let names = if self.recover { db.recover_keyspaces()? } else { db.keyspaces()? };
        let line = |name: &String| -> CommandResult<String> {
            let shown = escaped(name.as_bytes());
            if !self.long {
                return Ok(shown);
            }
            let keyspace = db.keyspace(name)?;
            let later = if keyspace.keeps_operands() { ", deferred" } else { "" };
            let merges = keyspace
                .merge_operator()
                .map(|operator| format!("; merged by {}{later}", operator.escape_debug()));
            let tables = in_tables(&keyspace.tables());
            Ok(format!("{shown}\t{}{}{tables}", lives(&keyspace), merges.unwrap_or_default()))
        };
        names.iter().map(line).collect()
    }
}

fn tables(text: &str) -> Result<TableSettings, String> {
    let mut tables = TableSettings::default();
    if text != "default" {
        text.split(',').try_for_each(|setting| {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            tables.set(name.trim(), value.trim()).map_err(|e| plain(&e))
        })?;
    }
    Ok(tables)
}

/// What is otherwise than for the database.
fn in_tables(tables: &TableSettings) -> String {
    let set = tables.to_string();
    if set.is_empty() { set } else { format!("; tables: {set}") }
}

fn lives(keyspace: &Keyspace) -> String {
    match keyspace.expiry() {
        None => "records do not expire".into(),
        Some(Expiry::ByEntry) => "records expire if their puts say so".into(),
        Some(Expiry::After(ttl)) => {
            let ttl = humantime::format_duration(Duration::from_millis(ttl.as_millis() as u64));
            format!("records expire after {ttl}, if their puts say nothing else")
        }
    }
}
