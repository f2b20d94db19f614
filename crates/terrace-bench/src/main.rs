//! The `terrace-bench` command.

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Terrace, its parts, and the stores it is compared with.
#[derive(Debug, Parser)]
#[command(name = "terrace-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(Box<command::compare::Compare>),
    Report(command::reports::Report),
    Figures(command::reports::Figures),
    CompareRuns(command::reports::CompareRuns),
    Session(command::reports::Session),
    Index(Box<command::index::Index>),
    Media(command::media::Media),
    Memtables(command::memtables::Memtables),
    Regions(command::regions::Regions),
    ReadsWhileWriting(command::reads_while_writing::ReadsWhileWriting),
    Restart(command::restart::Restart),
    RestartLife(command::restart::RestartLife),
    Plot(command::plot::Plot),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Compare(compare) => compare.run(),
        Command::Report(report) => report.run(),
        Command::Figures(figures) => figures.run(),
        Command::CompareRuns(runs) => runs.run(),
        Command::Session(session) => session.run(),
        Command::Index(index) => index.run(),
        Command::Media(media) => media.run(),
        Command::Memtables(memtables) => memtables.run(),
        Command::Regions(regions) => regions.run(),
        Command::ReadsWhileWriting(reads) => reads.run(),
        Command::Restart(restart) => restart.run(),
        Command::RestartLife(life) => life.run(),
        Command::Plot(plot) => plot.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("terrace-bench: {e}");
            ExitCode::FAILURE
        }
    }
}
