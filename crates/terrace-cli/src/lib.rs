//! The `terrace` command: a Terrace database from the command line.
//!
//! | module | owns |
//! |---|---|
//! | [`args`] | the command line: its commands, and how they are explained |
//! | [`command`] | a module per command: its arguments and what it does |
//! | [`open`], [`made`] | the flags that say how to open a database; one that is made and goes again |
//! | [`keyspace`] | the keyspace that a command works on |
//! | [`escape`], [`records`] | bytes as text and back; nothing here knows of a database |
//! | [`failure`] | exit codes, messages and hints |
//! | [`interrupt`], [`progress`] | signals that end a command; the bar on standard error |
//! | [`text`] | the records that the tour imports |

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::{CommandResult, exit};

pub mod args;
pub mod command;
pub mod escape;
pub mod failure;
pub mod interrupt;
pub mod keyspace;
pub mod made;
pub mod open;
pub mod progress;
pub mod records;
pub mod text;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    interrupt::survive_limits();
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let result = run(&cli, &mut out);
    // Output before a failure comes before its message.
    let flushed = out.flush().map_err(Into::into);
    let Err(failure) = result.and(flushed) else { return ExitCode::from(exit::OK) };
    // Standard error may be closed; then the message is lost on purpose.
    let _ = write!(std::io::stderr(), "{}", failure.render(cli.command.dir()));
    ExitCode::from(failure.code)
}

fn run(cli: &Cli, out: &mut dyn Write) -> CommandResult {
    match &cli.command {
        Command::Tour(c) => c.run(out),
        Command::Import(c) => c.run(out),
        Command::Export(c) => c.run(out),
        Command::Get(c) => c.run(out),
        Command::Put(c) => c.run(),
        Command::Delete(c) => c.run(),
        Command::Merge(c) => c.run(),
        Command::Explain(c) => c.run(out),
        Command::Scan(c) => c.run(out),
        Command::Keyspaces(c) => c.run(out),
        Command::Stat(c) => c.run(out),
        Command::Options(c) => c.run(out),
        Command::Check(c) => c.run(out),
        Command::Repair(c) => c.run(out),
        Command::Dump(c) => c.run(out),
        Command::Bench(c) => c.run(out),
        Command::Completions(c) => c.run(out),
        Command::Manual(c) => c.run(out),
        Command::WriteForever(c) => c.run(out),
    }
}
