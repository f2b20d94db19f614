//! `terrace-bench restart`, and the processes that it kills.

use clap::{Args, ValueEnum};
use terrace_bench::count;
use terrace_bench::restart::{self, Spec, figures, table};

use super::stores::Stores;
use super::{Outcome, progress};

/// Measures opening after SIGKILL, by how many buckets there are.
///
/// For each number of buckets a process fills a store, which has none yet, until it has so many, and dies by SIGKILL.
/// Another process opens the database that it leaves. That is timed, and every acknowledged record is read. Options of
/// the engine decide how much it takes to have many buckets.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  terrace-bench restart --set wip.memtable_bytes=262144 --set wip.bucket_bytes=2097152 --svg ."
)]
pub struct Restart {
    /// Numbers of buckets
    #[arg(long, value_name = "LIST", default_value = "1,10,50,100,400,1000", value_delimiter = ',', value_parser = count::parse)]
    buckets: Vec<u64>,
    /// Keys that are written, over all keys there can be
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        default_value = "uniform,exponential",
        value_delimiter = ','
    )]
    keys: Vec<Keys>,
    /// Records that are written at least
    #[arg(long, value_name = "N", default_value = "100k", value_parser = count::parse)]
    least: u64,
    /// Records that are written at most, if there are not so many buckets by then
    #[arg(long, value_name = "N", default_value = "50M", value_parser = count::parse)]
    num: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value: usize,
    /// Writes made at once
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    #[command(flatten)]
    stores: Stores,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Keys {
    Uniform,
    Exponential,
}

impl Keys {
    /// The fill that writes them.
    fn workload(self) -> &'static str {
        match self {
            Keys::Uniform => "load",
            Keys::Exponential => "fillexponential",
        }
    }
}

impl Restart {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let contenders = self.stores.contenders()?;
        let site = self.stores.site()?;
        let program = std::env::current_exe()?;
        let mut runs = Vec::new();
        let bar = progress("", (contenders.len() * self.keys.len() * self.buckets.len()) as u64);
        for contender in &contenders {
            for keys in &self.keys {
                for buckets in &self.buckets {
                    bar.set_message(format!("{} {buckets}", contender.name));
                    let spec = Spec {
                        contender: contender.clone(),
                        place: site.place.clone(),
                        workload: keys.workload().to_string(),
                        buckets: *buckets,
                        least: self.least,
                        most: self.num,
                        value_bytes: self.value,
                        batch: self.batch as usize,
                        seed: self.stores.seed,
                    };
                    let run = spec.measure(&program);
                    runs.push(run.map_err(|e| format!("{}: {e}", contender.name))?);
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        print!("{}", table(&runs));
        self.stores.conclude(&runs, |dir| figures(&runs, dir))?;
        match runs.iter().map(restart::Run::lost).sum() {
            0u64 => Ok(()),
            lost => Err(format!("{lost} acknowledged records were lost").into()),
        }
    }
}

/// Fills a store and dies, or opens the store that was left; `restart` starts it.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct RestartLife;

impl RestartLife {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        // As in a comparison's session.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        restart::live(&mut std::io::stdin().lock(), &mut std::io::stdout().lock())
    }
}
