//! `terrace-bench reads-while-writing`.

use clap::{Args, ValueEnum};
use terrace_bench::count;
use terrace_bench::distribution::Shape;
use terrace_bench::reads_while_writing::{Spec, figures, table};

use super::stores::Stores;
use super::{Outcome, progress};

/// Measures reads before, beside and after writes at a rate.
///
/// A store is filled and comes to rest. Then threads read, at first alone, then for as long as another thread takes for
/// its overwrites of uniform keys, then alone again. Every read must find its record.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  terrace-bench reads-while-writing --stores wip,wip+wip.read_aware=false,lsm --reads exponential"
)]
pub struct ReadsWhileWriting {
    /// Records of the store
    #[arg(long, value_name = "N", default_value = "5M", value_parser = count::parse)]
    num: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value: usize,
    /// Threads that read
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    readers: u32,
    /// The keys that they read: exponential ones lie near the first key
    #[arg(long, value_name = "KEYS", value_enum, default_value_t = Reads::Uniform)]
    reads: Reads,
    /// Seconds of reading before the writes
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    before: f64,
    /// Seconds of reading after the writes
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    after: f64,
    /// Writes
    #[arg(long, value_name = "N", default_value = "3M", value_parser = count::parse)]
    writes: u64,
    /// Writes a second at most
    #[arg(long, value_name = "N", default_value = "50k", value_parser = count::parse)]
    rate: u64,
    #[command(flatten)]
    stores: Stores,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reads {
    Uniform,
    Exponential,
}

impl ReadsWhileWriting {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let contenders = self.stores.contenders()?;
        let spec = self.spec();
        let site = self.stores.site()?;
        let mut runs = Vec::new();
        for contender in &contenders {
            let bar = progress(&contender.name, spec.num + spec.writes);
            let shown = bar.clone();
            let run = spec.measure(contender, &site.place, move |operations| shown.inc(operations));
            bar.finish_and_clear();
            runs.push(run.map_err(|e| format!("{}: {e}", contender.name))?);
        }
        print!("{}", table(&runs));
        self.stores.conclude(&runs, |dir| figures(&runs, dir))
    }

    fn spec(&self) -> Spec {
        Spec {
            num: self.num,
            value_bytes: self.value,
            readers: self.readers as usize,
            reads: match self.reads {
                Reads::Uniform => Shape::Uniform,
                Reads::Exponential => Shape::Exponential,
            },
            before: self.before,
            after: self.after,
            writes: self.writes,
            rate: self.rate,
            seed: self.stores.seed,
        }
    }
}
