//! The command line: its commands, and how they are explained.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

use crate::command;
use crate::escape;
use crate::failure::{CommandResult, Failure};

/// An ordered key-value store for DRAM, persistent memory and SSD.
///
/// A database is a directory, DIR. One process at a time can write to it; commands that only read change
/// nothing in it. Keys and values are any bytes: on the command line and in text, \\ \t \n \r and \xNN
/// stand for bytes that cannot be typed, and --hex takes and prints hexadecimal instead.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = EXAMPLES)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  terrace tour                               see everything on a database made for it
  terrace put ./db greeting 'hello, world'
  terrace get ./db greeting
  terrace import ./db records.tsv            a record a line: key, tab, value
  terrace scan ./db --prefix user/ --limit 10
  terrace export ./db backup.tsv
  terrace stat ./db                          what lies where, and what it cost
  terrace check ./db && echo sound
  terrace bench ./bench --benchmarks ycsb --num 100000 --value-size 1000

Exit codes:
  0      done
  1      the key was not there, the database is damaged, or repair could not keep everything
  2      the command line makes no sense
  3      another error: the database is in use, the disk is full, a line of input is wrong, ...
  128+N  stopped by signal N (130: Ctrl-C, 143: SIGTERM); what was acknowledged is kept";

/// The commands. The text of each struct describes its command; the help shows it, too.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "text here would take the place of the struct's in the command's help")]
pub enum Command {
    Tour(command::tour::Tour),
    Import(command::import::Import),
    Export(command::export::Export),
    Get(command::point::Get),
    Put(command::point::Put),
    Delete(command::point::Delete),
    Merge(command::merge::Merge),
    Explain(command::explain::Explain),
    Scan(command::scan::Scan),
    Keyspaces(command::keyspaces::Keyspaces),
    Stat(command::stat::Stat),
    Options(command::options::ListOptions),
    Check(command::check::Check),
    Repair(command::check::Repair),
    Dump(command::dump::Dump),
    Bench(command::bench::Bench),
    Completions(command::completions::Completions),
    #[command(name = "man")]
    Manual(command::man::Manual),
    #[command(name = "__write", hide = true)]
    WriteForever(command::tour::WriteForever),
}

impl Command {
    /// The directory that the command works on, for hints.
    pub fn dir(&self) -> Option<&Path> {
        match self {
            Command::Tour(c) => c.dir.as_deref(),
            Command::Import(c) => Some(&c.dir),
            Command::Export(c) => Some(&c.dir),
            Command::Get(c) => Some(&c.dir),
            Command::Put(c) => Some(&c.dir),
            Command::Delete(c) => Some(&c.dir),
            Command::Merge(c) => Some(&c.dir),
            Command::Explain(c) => Some(&c.dir),
            Command::Scan(c) => Some(&c.dir),
            Command::Keyspaces(c) => Some(&c.dir),
            Command::Stat(c) => Some(&c.dir),
            Command::Check(c) => Some(&c.dir),
            Command::Repair(c) => Some(&c.dir),
            Command::Bench(c) => Some(&c.dir),
            Command::WriteForever(c) => Some(&c.dir),
            Command::Options(_) | Command::Dump(_) | Command::Completions(_) | Command::Manual(_) => None,
        }
    }
}

/// The bytes that a key or value on the command line stands for.
pub fn bytes_of(name: &str, text: &OsStr, hex: bool) -> CommandResult<Vec<u8>> {
    let text = text.as_bytes();
    let bytes = if hex {
        escape::unhex(text)
    } else {
        let mut out = Vec::with_capacity(text.len());
        escape::unescape(text, &mut out).map(|()| out)
    };
    bytes.map_err(|e| Failure::usage(format!("{name} \"{}\": {e}", text.escape_ascii())))
}

/// A file, or standard input or output for `-` or nothing.
pub fn file_of(path: &Option<PathBuf>) -> Option<&Path> {
    path.as_deref().filter(|p| p.as_os_str() != OsStr::new("-"))
}

/// Optional bytes from the command line.
pub fn optional_bytes(name: &str, text: &Option<OsString>, hex: bool) -> CommandResult<Option<Vec<u8>>> {
    text.as_ref().map(|text| bytes_of(name, text, hex)).transpose()
}
