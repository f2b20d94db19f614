//! `terrace completions`.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::CommandResult;

/// Prints a completion script
///
/// For bash, for one: terrace completions bash > ~/.local/share/bash-completion/completions/terrace
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "terrace", &mut script);
        Ok(out.write_all(&script)?)
    }
}
