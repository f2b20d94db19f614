//! `terrace-bench regions`.

use clap::Args;
use terrace_bench::count;
use terrace_bench::regions::{Spec, figures, table};

use super::stores::Stores;
use super::{Outcome, progress};

/// Measures writes whose distribution changes, and how a store cuts its keys meanwhile.
///
/// One thread fills four regions of the keys, one after the other, with exponential, normal, uniform and reversed
/// exponential keys of 16 bytes. For a store that cuts its keys into buckets, the report tells where these begin in the
/// middle of each region. For a store with tables in files, it tells the sizes of the tables in the end.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  terrace-bench regions --stores wip,lsm --num 1M --set wip.bucket_bytes=33554432 --svg ."
)]
pub struct Regions {
    /// Records for each region
    #[arg(long, value_name = "N", default_value = "5M", value_parser = count::parse)]
    num: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value: usize,
    /// Writes made at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    #[command(flatten)]
    stores: Stores,
}

impl Regions {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let (num, seed) = (self.num, self.stores.seed);
        let spec = Spec { num, value_bytes: self.value, batch: self.batch as usize, seed };
        let contenders = self.stores.contenders()?;
        let site = self.stores.site()?;
        let mut runs = Vec::new();
        for contender in &contenders {
            let bar = progress(&contender.name, spec.records());
            let shown = bar.clone();
            let run = spec.measure(contender, &site.place, move |operations| shown.inc(operations));
            bar.finish_and_clear();
            runs.push(run.map_err(|e| format!("{}: {e}", contender.name))?);
        }
        print!("{}", table(&runs));
        self.stores.conclude(&runs, |dir| figures(&runs, dir))
    }
}
