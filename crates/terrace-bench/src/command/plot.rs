//! `terrace-bench plot`.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use terrace_bench::index::plot;

use super::Outcome;
use super::index::Report;

/// Draws the figures of runs that were written by `index --json`.
#[derive(Debug, Args)]
pub struct Plot {
    /// Files with runs; together they are one set
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The folder to draw into
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

impl Plot {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let mut runs = Vec::new();
        for file in &self.files {
            let report: Report = serde_json::from_str(&fs::read_to_string(file)?)?;
            runs.extend(report.runs);
        }
        for path in plot::figures(&runs, &self.out)? {
            println!("{}", path.display());
        }
        Ok(())
    }
}
