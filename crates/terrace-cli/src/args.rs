//! The command line: what can be asked for, and how it is explained.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

use crate::command;
use crate::escape;
use crate::failure::{CommandResult, Failure};
use crate::open::OpenArgs;

/// An ordered key-value store for DRAM, persistent memory and SSD.
///
/// A database is a directory, DIR. One process has it open at a time. Keys and values are any bytes:
/// on the command line and in text, \\ \t \n \r and \xNN stand for bytes that cannot be typed, and
/// --hex takes and prints hexadecimal instead.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = EXAMPLES)]
pub struct Cli {
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  terrace tour                             see everything on a database of its own
  terrace put ./db greeting 'hello, world'
  terrace get ./db greeting
  terrace import ./db records.tsv          a record a line: key, tab, value
  terrace scan ./db --prefix user/ --limit 10
  terrace export ./db backup.tsv
  terrace stat ./db                        what lies where, and what it cost
  terrace check ./db && echo sound
  terrace bench ./bench --benchmarks ycsb --num 100000 --value-size 1000

Exit codes:
  0    done
  1    the key was not there, or check found damage
  2    the command line makes no sense
  3    another error: the database is in use, the disk is full, a line of input is wrong, ...
  130  stopped by Ctrl-C; what was acknowledged is kept";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what Terrace does, on a database made for it
    Tour(command::tour::Tour),
    /// Read records from a file into the database
    Import(command::import::Import),
    /// Write the records of the database to a file, in key order
    Export(command::export::Export),
    /// Print the value of a key
    Get(command::point::Get),
    /// Write a record
    Put(command::point::Put),
    /// Remove records
    Delete(command::point::Delete),
    /// Print records in key order
    Scan(command::scan::Scan),
    /// Show what lies on each floor and what it cost
    Stat(command::stat::Stat),
    /// Verify every structure and checksum
    Check(command::check::Check),
    /// Rebuild what can be rebuilt of a damaged database
    Repair(command::check::Repair),
    /// Print an SSTable, a manifest or a pool in readable form
    Dump(command::dump::Dump),
    /// Measure a database
    Bench(command::bench::Bench),
    /// Print a completion script for a shell
    Completions(command::completions::Completions),
    /// Write until killed, acknowledging each write on standard output
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
            Command::Scan(c) => Some(&c.dir),
            Command::Stat(c) => Some(&c.dir),
            Command::Check(c) => Some(&c.dir),
            Command::Repair(c) => Some(&c.dir),
            Command::Bench(c) => Some(&c.dir),
            Command::WriteForever(c) => Some(&c.dir),
            Command::Dump(_) | Command::Completions(_) => None,
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
