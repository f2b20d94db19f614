//! `terrace man`.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::{CommandResult, Failure};

/// Prints the manual page, or writes one for each command
///
/// To read it: terrace man | man -l -
/// To install: terrace man ~/.local/share/man/man1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Manual {
    /// Directory, which must be there, for the pages of all commands: terrace.1, terrace-get.1, ...
    pub to: Option<PathBuf>,
}

impl Manual {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        match &self.to {
            None => Ok(Man::new(Cli::command()).render(out)?),
            Some(dir) => {
                clap_mangen::generate_to(Cli::command(), dir).map_err(|e| Failure::io(dir, "write to", e))
            }
        }
    }
}
