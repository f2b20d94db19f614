//! The `terrace-bench` command.

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Terrace's parts.
#[derive(Debug, Parser)]
#[command(name = "terrace-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Index(Box<command::index::Index>),
    Plot(command::plot::Plot),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Index(index) => index.run(),
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
