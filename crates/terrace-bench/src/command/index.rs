//! `terrace-bench index`.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use terrace_bench::index::list::{INDEXES, with_subject};
use terrace_bench::index::pairs::Pairs;
use terrace_bench::index::{Place, Run, Runner, Spec, Step, plot, store, table};
use terrace_bench::{StoreResult, count};
use terrace_pmem::{Pool, Profile};

use super::Outcome;

/// Measures bare indexes: throughput, latency, PM traffic, load factors, footprint and recovery.
///
/// Each index and number of threads starts with an empty pool, which is removed afterwards. Reads are compared
/// with what was written; a wrong answer fails the run.
#[derive(Debug, Args)]
#[command(after_help = help_text())]
pub struct Index {
    /// Indexes, separated by commas
    #[arg(long, value_name = "LIST", default_value = "fastfair", value_delimiter = ',')]
    index: Vec<String>,
    /// Pairs that an insert step inserts, such as 16M; several for several runs
    #[arg(long, value_name = "LIST", default_value = "1M", value_delimiter = ',', value_parser = count::parse)]
    num: Vec<u64>,
    /// Most operations of a read or miss step, and pairs of a scan step [default: num]
    #[arg(long, value_name = "N", value_parser = count::parse)]
    reads: Option<u64>,
    /// Numbers of threads, separated by commas
    #[arg(long, value_name = "LIST", default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Shapes of pairs: 8+8, 15+15, string24 (24-byte keys, the first 16 alike)
    #[arg(long, value_name = "LIST", default_value = "8+8", value_delimiter = ',', value_parser = shape)]
    pairs: Vec<Pairs>,
    /// What to do, in this order; an insert after an insert inserts more
    ///
    /// By default: insert,flush,read,miss,update,flush,scan,probes,recover,read,delete,flush,check.
    #[arg(long, value_name = "LIST")]
    steps: Option<String>,
    /// Pairs that a scan asks for
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    scan: u32,

    /// Keys that reads announce before they read them, so that those are on their way from memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    ahead: u32,
    /// Where the pool lies: a PATH, or `emulated:PROFILE@PATH`; nothing may be there
    ///
    /// Profiles are dram, optane, cxl, slm and tlsm, or figures such as read=300,drain=100,bw=2G.
    #[arg(long, value_name = "POOL", default_value = "emulated:dram@/dev/shm/terrace-bench.pool", value_parser = place, verbatim_doc_comment)]
    pool: Place,
    /// Bytes of the pool to touch beforehand [default: 128 a pair]
    #[arg(long, value_name = "BYTES", value_parser = count::parse)]
    pool_size: Option<u64>,
    /// Changes that a write buffer takes, for the variants with buffers [default: the structure's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    buffer: Option<u32>,
    /// Do not count 256-byte blocks written (about 2 ns a block flushed)
    #[arg(long)]
    no_xplines: bool,
    /// Insert in a process of its own, kill that with SIGKILL, and run the steps on the pool that it leaves
    ///
    /// The steps are then recover,read,check unless they are given, and begin with recover.
    #[arg(long)]
    kill: bool,
    /// Write everything measured to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw figures into DIR
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

const STEPS: &str = "insert,flush,read,miss,update,flush,scan,probes,recover,read,delete,flush,check";
const KILLED_STEPS: &str = "recover,read,check";

/// The contents of a JSON file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// The runs.
    pub runs: Vec<Run>,
}

fn help_text() -> String {
    let mut text = "Indexes:\n".to_string();
    for entry in INDEXES {
        text.push_str(&format!("  {:<14} {}\n", entry.name, entry.about));
    }
    text.push_str(
        "\nSteps:\n  insert, read, miss (keys that are not there), update, scan, delete\n  \
         probes    how many buckets a miss looks at\n  \
         recover   drop everything unclosed and open it again\n  \
         check     verify the index's invariants\n  \
         flush     merge what is buffered; the PM traffic counts for the step before\n\n\
         Example:\n  terrace-bench index --index fastfair,skiplist --num 4M --threads 1,2 \
         --pool emulated:optane@/dev/shm/p --json out.json\n",
    );
    text
}

fn shape(text: &str) -> Result<Pairs, String> {
    let named = Pairs::ALL.iter().find(|(name, _)| *name == text);
    named.map(|(_, shape)| *shape).ok_or_else(|| "8+8, 15+15 or string24".to_string())
}

fn place(text: &str) -> Result<Place, String> {
    let Some(emulated) = text.strip_prefix("emulated:") else {
        return Ok(Place { path: text.into(), profile: None });
    };
    let (profile, path) = emulated.split_once('@').ok_or("emulated:PROFILE@PATH names a path")?;
    let profile = Profile::parse(profile).map_err(|e| e.to_string())?;
    Ok(Place { path: path.into(), profile: Some(profile) })
}

impl Index {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let usual = if self.kill { KILLED_STEPS } else { STEPS };
        let steps: Vec<Step> = self
            .steps
            .as_deref()
            .unwrap_or(usual)
            .split(',')
            .map(|name| Step::parse(name).ok_or_else(|| format!("there is no step \"{name}\"")))
            .collect::<Result<_, _>>()?;
        if let Some(stranger) = self.index.iter().find(|name| INDEXES.iter().all(|e| e.name != **name)) {
            return Err(format!("there is no index \"{stranger}\"; --help lists them").into());
        }
        if self.kill && steps.first() != Some(&Step::Recover) {
            return Err("with --kill the first step is recover".into());
        }
        if Pool::exists(&self.pool.path)? {
            return Err(format!("something lies at {} already", self.pool.path.display()).into());
        }
        let mut runs = Vec::new();
        for num in &self.num {
            for pairs in &self.pairs {
                for name in &self.index {
                    for threads in &self.threads {
                        runs.push(self.measure(name, *num, *pairs, *threads as usize, &steps)?);
                    }
                }
            }
        }
        self.conclude(runs)
    }

    fn measure(
        &self,
        name: &str,
        num: u64,
        pairs: Pairs,
        threads: usize,
        steps: &[Step],
    ) -> StoreResult<Run> {
        let spec = Spec {
            place: self.pool.clone(),
            pool_bytes: self.pool_size.unwrap_or(num * 128 + (64 << 20)),
            count_xplines: !self.no_xplines,
            pairs,
            buffer: self.buffer.map(|n| n as usize),
            num,
            reads: self.reads.unwrap_or(num),
            scan: self.scan as usize,
            ahead: self.ahead.into(),
            threads,
            steps: steps.to_vec(),
        };
        println!("{name}, {num} pairs of {}, {threads} threads", pairs.name());
        if self.kill {
            self.fill_and_be_killed(name, &spec)?;
        }
        let mut report = |p: &_| println!("  {}", table::line(p));
        let _removed = Removed(&self.pool.path);
        let run = with_subject(name, Runner { name, spec: &spec, resumes: self.kill, report: &mut report })
            .ok_or_else(|| format!("there is no index \"{name}\""))??;
        Ok(run)
    }

    /// Has a child insert the pairs and die.
    fn fill_and_be_killed(&self, name: &str, spec: &Spec) -> Outcome {
        let pool = match spec.place.profile {
            Some(profile) => format!("emulated:{}@{}", profile_text(profile), spec.place.path.display()),
            None => spec.place.path.display().to_string(),
        };
        let (num, threads) = (spec.num.to_string(), spec.threads.to_string());
        let size = spec.pool_bytes.to_string();
        let buffer = self.buffer.map(|n| vec!["--buffer".to_string(), n.to_string()]);
        let child = std::process::Command::new(std::env::current_exe()?)
            .args(["index", "--steps", "insert,die", "--index", name, "--num", &num])
            .args([
                "--threads",
                &threads,
                "--pairs",
                spec.pairs.name(),
                "--pool",
                &pool,
                "--pool-size",
                &size,
            ])
            .args(buffer.unwrap_or_default())
            .status()?;
        match child.signal() {
            Some(9) => Ok(()),
            _ => Err(format!("the process that inserts ended otherwise than by SIGKILL: {child}").into()),
        }
    }

    fn conclude(&self, runs: Vec<Run>) -> Outcome {
        println!("\n{}\n{}", runs.first().map_or("", |r| &r.media), table::table(&runs));
        runs.iter().for_each(|run| print!("{}", table::facts(run)));
        if let Some(dir) = &self.svg {
            for path in plot::figures(&runs, dir)? {
                println!("{}", path.display());
            }
        }
        let wrong: u64 = runs.iter().map(Run::wrong).sum();
        let findings: usize = runs.iter().map(|r| r.findings.len()).sum();
        if let Some(path) = &self.json {
            let command = std::env::args().collect::<Vec<_>>().join(" ");
            fs::write(path, serde_json::to_string_pretty(&Report { command, runs })?)?;
        }
        match (wrong, findings) {
            (0, 0) => Ok(()),
            _ => Err(format!("{wrong} wrong answers, {findings} findings").into()),
        }
    }
}

/// A profile as `--pool` takes it.
fn profile_text(profile: Profile) -> String {
    let mut text = format!("read={},drain={}", profile.read_ns, profile.write_ns);
    if let Some(rate) = profile.write_bytes_per_sec {
        text.push_str(&format!(",bw={rate}"));
    }
    text
}

/// Removes the pool when the run is over, also when it failed.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        // Best effort: a pool that stays is named by the next run.
        let _ = Pool::remove(self.0);
        let _ = std::fs::remove_dir_all(store::directory(self.0));
    }
}
