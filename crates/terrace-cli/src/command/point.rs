//! `terrace get`, `put` and `delete`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use terrace::{Error, Expiry, MAX_KEY_BYTES, MAX_VALUE_BYTES};

use crate::args::{bytes_of, file_of, optional_bytes};
use crate::command::scan::key_range;
use crate::command::swept::sweep_and_close;
use crate::escape;
use crate::failure::{CommandResult, Failure, exit};
use crate::interrupt;
use crate::keyspace::{KeyspaceArg, Records, expiry};
use crate::made::Made;
use crate::open::{Intent, OpenArgs};
use crate::records::within_limits;

/// Prints the value of a key.
///
/// The value is printed escaped and with a line end, so that it can be pasted into a put; --raw
/// prints its bytes alone. The exit code is 1 if the key is not there.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace get ./db greeting\n  terrace get ./db picture.png --raw > picture.png"
)]
pub struct Get {
    /// The database
    pub dir: PathBuf,
    /// The key, with \\ \t \n \r and \xNN for bytes that cannot be typed
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// Print the value's bytes as they are, without a line end
    #[arg(long, conflicts_with = "hex")]
    pub raw: bool,
    /// Print the value as a whole number, which it must be: eight bytes, the least significant first. With --hex, only
    /// the key is in hexadecimal
    #[arg(long, conflicts_with = "raw")]
    pub number: bool,
    /// Take the key and print the value in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// The keyspace.
    #[command(flatten)]
    pub keyspace: KeyspaceArg,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Get {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let key = bytes_of("the key", &self.key, self.hex)?;
        let db = self.open.open(&self.dir, Intent::Read)?;
        let records = self.keyspace.of(&db, false)?;
        let Some(value) = records.get(&key)? else { return Err(not_found(&records, &key)) };
        if self.raw {
            return Ok(out.write_all(&value)?);
        }
        if !self.number {
            return Ok(writeln!(out, "{}", shown(&value, self.hex))?);
        }
        let Ok(bytes) = value[..].try_into() else {
            let len = value.len();
            return Err(Failure::error(format!(
                "the value is no number of eight bytes, but has {len} bytes"
            )));
        };
        Ok(writeln!(out, "{}", i64::from_le_bytes(bytes))?)
    }
}

fn shown(bytes: &[u8], hex: bool) -> String {
    if hex { escape::hex(bytes) } else { escape::escaped(bytes) }
}

pub(super) fn not_found(records: &Records, key: &[u8]) -> Failure {
    let hint = match records.range(..) {
        Err(Error::Unsupported { .. }) => "`terrace export DIR` shows all keys",
        _ => "`terrace scan DIR --from KEY --limit 10` shows the keys from there on",
    };
    Failure::new(exit::NOT_FOUND, format!("there is no key \"{}\"", escape::preview(key, 200))).hint(hint)
}

/// Writes a record, making the database if there is none.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace put ./db greeting 'hello, world'\n  terrace put ./db 'two\\nlines' '\\x00\\xff'\n  terrace put ./db picture.png --file picture.png\n  terrace put ./db --keyspace sessions ada signed-in --ttl 30m"
)]
pub struct Put {
    /// The database
    pub dir: PathBuf,
    /// The key, with \\ \t \n \r and \xNN for bytes that cannot be typed
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// The value, written likewise
    #[arg(allow_negative_numbers = true, required_unless_present = "file", conflicts_with = "file")]
    pub value: Option<OsString>,
    /// Take the value's bytes from a file as they are, or from standard input for -
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Take the key and the value in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// How long the record lives: 30m, 12h, 7days, or forever. A keyspace that is made by this has records that can
    /// expire
    #[arg(long, value_name = "DURATION", requires = "keyspace", value_parser = expiry)]
    pub ttl: Option<Expiry>,
    /// The keyspace.
    #[command(flatten)]
    pub keyspace: KeyspaceArg,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Put {
    /// Runs the command.
    pub fn run(&self) -> CommandResult {
        let key = bytes_of("the key", &self.key, self.hex)?;
        let value = match &self.value {
            Some(value) => bytes_of("the value", value, self.hex)?,
            None => read_all(file_of(&self.file))?,
        };
        within_limits(&key, &value).map_err(Failure::usage)?;
        interrupt::install()?;
        let made = Made::about_to(&self.dir, &self.open.options());
        let db = self.open.open(&self.dir, Intent::Create)?;
        // Closed even where there was no room: earlier records are kept.
        let written = match self.ttl {
            None => self.keyspace.of(&db, true).and_then(|records| records.put(&key, &value)),
            Some(Expiry::After(ttl)) => self.keyspace.put_with_ttl(&db, &key, &value, ttl),
            // Also where the keyspace says otherwise.
            Some(Expiry::ByEntry) => self.keyspace.put_with_ttl(&db, &key, &value, Duration::MAX),
        };
        let closed = db.close();
        if let Some(made) = made.filter(|_| written.is_err()) {
            made.remove();
        }
        Ok(written.and(closed)?)
    }
}

fn read_all(file: Option<&Path>) -> CommandResult<Vec<u8>> {
    let Some(path) = file else {
        let mut value = Vec::new();
        let read = std::io::stdin().lock().take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut value);
        return read.map(|_| value).map_err(|e| Failure::error(format!("cannot read standard input: {e}")));
    };
    std::fs::read(path).map_err(|e| Failure::io(path, "read", e))
}

/// Removes records.
///
/// The exit code is 1 if one of the keys was not there; the others are removed all the same. With --from, --to,
/// --prefix or --all, every record in a range of keys is removed, at once: either all of them are gone or none.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace delete ./db greeting farewell\n  terrace delete ./db --prefix log/2026-01\n  terrace delete ./db --keyspace users --all"
)]
pub struct Delete {
    /// The database
    pub dir: PathBuf,
    /// The keys, with \\ \t \n \r and \xNN for bytes that cannot be typed
    #[arg(
        conflicts_with_all = ["from", "to", "prefix", "all"],
        value_name = "KEY",
        allow_negative_numbers = true
    )]
    pub keys: Vec<OsString>,
    /// The first key of the range
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub from: Option<OsString>,
    /// The key to end before
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub prefix: Option<OsString>,
    /// Every record
    #[arg(long, conflicts_with_all = ["from", "to", "prefix"])]
    pub all: bool,
    /// Take the keys in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// The keyspace.
    #[command(flatten)]
    pub keyspace: KeyspaceArg,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Delete {
    /// Runs the command.
    pub fn run(&self) -> CommandResult {
        if self.keys.is_empty() {
            return self.delete_range();
        }
        let keys: Vec<Vec<u8>> =
            self.keys.iter().map(|key| bytes_of("the key", key, self.hex)).collect::<CommandResult<_>>()?;
        if let Some(long) = keys.iter().find(|key| key.len() > MAX_KEY_BYTES) {
            let (len, preview) = (long.len(), escape::preview(long, 60));
            return Err(Failure::usage(format!("no key has {len} bytes, as \"{preview}\" has")));
        }
        interrupt::install()?;
        let db = self.open.open(&self.dir, Intent::Write)?;
        let deleted = self.keyspace.of(&db, false).map_err(Failure::from).and_then(|r| delete_all(&r, &keys));
        let closed = db.close();
        let missing = deleted?;
        closed?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Failure::new(exit::NOT_FOUND, format!("not there to delete: {}", missing.join(", "))))
    }

    fn delete_range(&self) -> CommandResult {
        let from = optional_bytes("--from", &self.from, self.hex)?;
        let to = optional_bytes("--to", &self.to, self.hex)?;
        let prefix = optional_bytes("--prefix", &self.prefix, self.hex)?;
        if !self.all && from.is_none() && to.is_none() && prefix.is_none() {
            return Err(Failure::usage("nothing says which records to delete")
                .hint("name keys, or a range with --from, --to or --prefix; --all stands for every record"));
        }
        let Some(range) = key_range(from, to, prefix) else {
            return Err(Failure::usage("no key lies in that range"));
        };
        interrupt::install()?;
        let db = self.open.open(&self.dir, Intent::Write)?;
        let deleted = self.keyspace.of(&db, false).and_then(|records| records.delete_range(range));
        Ok(sweep_and_close(&db, deleted)?)
    }
}

/// Removes `keys`; returns those that were not there, in printable form.
fn delete_all(records: &Records, keys: &[Vec<u8>]) -> CommandResult<Vec<String>> {
    let mut missing = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        if interrupt::requested() {
            return Err(interrupt::stopped(format!("stopped; {at} of {} keys are deleted", keys.len())));
        }
        if !records.contains_key(key)? {
            missing.push(format!("\"{}\"", escape::preview(key, 200)));
        }
        records.delete(key)?;
    }
    Ok(missing)
}
