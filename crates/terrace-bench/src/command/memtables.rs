//! `terrace-bench memtables`.

use std::path::PathBuf;

use clap::Args;
use terrace_bench::count;
use terrace_bench::memtables::{DESIGNS, Run, Spec, figure, measure, median, table};

use super::{Outcome, save_json};

/// Measures bare memtables: random keys into many of them, and back.
///
/// Each has its own part of the keys. Reads are compared with what was written.
#[derive(Debug, Args)]
pub struct Memtables {
    /// Memtables: skiplists, one-skiplist (in the place of all), hash, hash-huge (in huge pages)
    #[arg(
        long,
        value_name = "LIST",
        default_value = "skiplists,one-skiplist,hash,hash-huge",
        value_delimiter = ','
    )]
    memtable: Vec<String>,
    /// How many of them
    #[arg(long, value_name = "LIST", default_value = "1,10,100,1000", value_delimiter = ',', value_parser = count::parse)]
    tables: Vec<u64>,
    /// Keys of 16 bytes that each gets
    #[arg(long, value_name = "N", default_value = "10k", value_parser = count::parse)]
    keys: u64,
    /// Keys to insert at least, into fresh memtables when those before are full
    #[arg(long, value_name = "N", default_value = "2M", value_parser = count::parse)]
    num: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value: usize,
    /// How often everything is measured, in turn; the medians are reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Write what was measured to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figure into DIR
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

impl Memtables {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let mut all = Vec::new();
        for tables in &self.tables {
            for name in &self.memtable {
                let design = DESIGNS.iter().find(|(known, _)| known == name);
                let (name, design) = *design.ok_or_else(|| format!("there is no memtable \"{name}\""))?;
                let spec = Spec { tables: *tables, keys: self.keys, num: self.num, value_bytes: self.value };
                all.push((name, design, spec, Vec::new()));
            }
        }
        for _ in 0..self.rounds {
            for (name, design, spec, runs) in &mut all {
                runs.push(measure(name, *design, spec));
            }
        }
        self.conclude(all.iter().filter_map(|(.., runs)| median(runs)).collect())
    }

    fn conclude(&self, runs: Vec<Run>) -> Outcome {
        print!("{}", table(&runs));
        if let Some(dir) = &self.svg
            && let Some(path) = figure(&runs, dir)?
        {
            println!("{}", path.display());
        }
        let wrong: u64 = runs.iter().map(|run| run.wrong).sum();
        if let Some(path) = &self.json {
            save_json(path, &runs)?;
        }
        if wrong == 0 { Ok(()) } else { Err(format!("{wrong} wrong answers").into()) }
    }
}
