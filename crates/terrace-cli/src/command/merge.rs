//! `terrace merge`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use terrace::{Keyspace, KeyspaceOptions};

use crate::args::bytes_of;
use crate::failure::{CommandResult, Failure};
use crate::interrupt;
use crate::open::{Intent, OpenArgs};
use crate::records::within_limits;

/// Merges an operand into the value of a key, in a keyspace with a merge operator.
///
/// `terrace keyspaces --make NAME --merge OPERATOR` makes such a keyspace. A key that does not exist gets the value that
/// the operator makes of the operand alone.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace keyspaces ./db --make visits --merge add\n  terrace merge ./db --keyspace visits 'front page' 1 --number\n  terrace get ./db --keyspace visits 'front page' --number"
)]
pub struct Merge {
    /// The database
    pub dir: PathBuf,
    /// The key, with \\ \t \n \r and \xNN for bytes that cannot be typed
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// The operand, written likewise
    #[arg(allow_negative_numbers = true)]
    pub operand: OsString,
    /// Take the operand as a whole number in eight bytes, the least significant first, as the operator add does
    #[arg(long)]
    pub number: bool,
    /// Take the key, and the operand unless it is a number, in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// The keyspace
    #[arg(long, value_name = "NAME")]
    pub keyspace: String,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Merge {
    /// Runs the command.
    pub fn run(&self) -> CommandResult {
        let key = bytes_of("the key", &self.key, self.hex)?;
        let operand = match self.number {
            true => number_of(&self.operand)?,
            false => bytes_of("the operand", &self.operand, self.hex)?,
        };
        within_limits(&key, &operand).map_err(Failure::usage)?;
        interrupt::install()?;
        let db = self.open.open(&self.dir, Intent::Write)?;
        let existing = KeyspaceOptions { create_if_missing: false, ..KeyspaceOptions::default() };
        let opened = db.keyspace_with(&self.keyspace, existing);
        let merged = opened.map_err(Failure::from).and_then(|keyspace| merge(&keyspace, &key, &operand));
        let closed = db.close();
        merged?;
        Ok(closed?)
    }
}

fn merge(keyspace: &Keyspace, key: &[u8], operand: &[u8]) -> CommandResult {
    let name = keyspace.name().escape_debug();
    match keyspace.merge_operator() {
        None => Err(Failure::usage(format!("keyspace \"{name}\" has no merge operator"))
            .hint("`terrace keyspaces DIR --make NAME --merge add` sets it")),
        Some(_) => Ok(keyspace.merge(key, operand)?),
    }
}

fn number_of(text: &OsString) -> CommandResult<Vec<u8>> {
    let number = text.to_str().and_then(|text| text.parse::<i64>().ok());
    let number =
        number.ok_or_else(|| Failure::usage(format!("{} is no whole number of 64 bits", text.display())))?;
    Ok(number.to_le_bytes().into())
}
