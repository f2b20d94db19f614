//! `terrace-bench report`, `terrace-bench compare-runs` and the child of `terrace-bench compare`.

use std::path::PathBuf;

use clap::Args;
use terrace_bench::compare::results::Results;
use terrace_bench::compare::{changes, figures, page, session, summary};

use terrace_bench::StoreResult;

/// Draws the report of a comparison again.
#[derive(Debug, Args)]
pub struct Report {
    /// The directory that `compare` was given
    dir: PathBuf,
}

impl Report {
    /// Runs the command.
    pub fn run(&self) -> StoreResult<()> {
        for path in page::write(&Results::load(&self.dir)?, &self.dir)? {
            println!("{}", path.display());
        }
        Ok(())
    }
}

/// Draws pictures of one or more comparisons, whose rounds and stores are put together.
#[derive(Debug, Args)]
pub struct Figures {
    /// The directories that `compare` was given
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// The folder to draw into
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Print these figures of each step, separated by commas
    #[arg(long, value_name = "LIST", default_value = "ops/s", value_delimiter = ',')]
    metrics: Vec<String>,
}

impl Figures {
    /// Runs the command.
    pub fn run(&self) -> StoreResult<()> {
        let mut all = Results::default();
        for dir in &self.dirs {
            all = all.with(Results::load(dir)?);
        }
        for name in &self.metrics {
            let metric = summary::metric(name).ok_or_else(|| {
                let known: Vec<_> = summary::METRICS.iter().map(|metric| metric.name).collect();
                format!("there is no figure {name:?}; there are: {}", known.join(", "))
            })?;
            println!("{name}: {}\n{}", metric.about, figures::table(&all, metric));
        }
        for path in figures::draw(&all, &self.out)? {
            println!("{}", path.display());
        }
        Ok(())
    }
}

/// Says what has changed from one comparison to another, beyond the noise of their rounds.
#[derive(Debug, Args)]
pub struct CompareRuns {
    /// The directory of the earlier one
    before: PathBuf,
    /// The directory of the later one
    after: PathBuf,
}

impl CompareRuns {
    /// Runs the command.
    pub fn run(&self) -> StoreResult<()> {
        let (before, after) = (Results::load(&self.before)?, Results::load(&self.after)?);
        let (found, compared) = changes::changes(&before, &after);
        print!("{}", changes::table(&found, compared));
        if before.machine.cpu != after.machine.cpu || before.pm_profile != after.pm_profile {
            println!("the runs were made on different machines or media");
        }
        Ok(())
    }
}

/// Runs one session of a comparison; `compare` starts it.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Session;

impl Session {
    /// Runs the command.
    pub fn run(&self) -> StoreResult<()> {
        // Nobody would remove the files of a child whose parent is gone, so it ends with its parent. Where this call
        // fails it ends with its script.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        session::serve(&mut std::io::stdin().lock(), &mut std::io::stdout().lock())
    }
}
