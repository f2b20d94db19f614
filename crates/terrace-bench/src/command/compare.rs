//! `terrace-bench compare`.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use terrace::Profile;
use terrace_bench::compare::child::Place;
use terrace_bench::compare::contender::Contender;
use terrace_bench::compare::entrant::{Entrant, parse_option};
use terrace_bench::compare::page;
use terrace_bench::compare::results::Results;
use terrace_bench::compare::run::Comparison;
use terrace_bench::compare::script::{Scale, Script};
use terrace_bench::compare::summary::THROUGHPUT;
use terrace_bench::report;

use terrace_bench::StoreResult;

use super::own;

/// Measures engines beside the stores people use, each in a process of its own, and draws a report.
///
/// Quick takes about a quarter of an hour, full less than two hours; tlsm and lab are the evaluations of single
/// engines, with stores of their own. The report is DIR/index.html, the machine without persistent memory, and
/// DIR/pm.html, the one with it: files that need no network. Every raw figure is in DIR/results.json. Run it as root
/// for bounded memory and for dropped caches; without, it says what was not possible.
#[derive(Debug, Args)]
pub struct Compare {
    /// Engines, separated by commas: those that end in -pm, and those that need it, have an emulated persistent memory;
    /// those that end in -nvm have their files there. ENGINE+OPTION=VALUE has an option of its own
    /// [default: those of the suite]
    #[arg(long, value_name = "LIST")]
    engines: Option<String>,
    /// Peers, separated by commas; an empty list for none [default: those of the suite in this build]
    #[arg(long, value_name = "LIST")]
    peers: Option<String>,
    /// How much
    #[arg(long, value_name = "quick|full|tlsm|lab", default_value = "quick", value_parser = parse_scale)]
    suite: Scale,
    /// Where the report goes
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only these scripts of the suite, separated by commas
    #[arg(long, value_name = "LIST")]
    scripts: Option<String>,
    /// Rounds of every script instead of the suite's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Threads of every script instead of the suite's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Records of every script instead of the suite's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,
    /// Bytes of a value of every script instead of the suite's
    #[arg(long, value_name = "BYTES")]
    value_size: Option<usize>,
    /// MiB of DRAM for write buffers and caches of every script instead of the suite's
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: Option<u64>,
    /// MiB of a write buffer of every script instead of a quarter of that memory
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    write_buffer: Option<u64>,
    /// Writes made at once by benchmarks that only write
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// An option of Terrace's engines, for those that have it; may be given again
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_option)]
    set: Vec<(String, String)>,
    /// Seconds of each benchmark that does not fill, instead of the suite's
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Benchmarks of every script instead of the suite's, separated by commas
    #[arg(long, value_name = "LIST")]
    benchmarks: Option<String>,
    /// Replay this trace instead of the suite (docs/formats/trace.md)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Make every write of every script wait for the medium
    #[arg(long)]
    sync: bool,
    /// The medium that engines have for persistent memory [default: the suite's]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Where it is emulated: a directory on tmpfs
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pm_dir: PathBuf,
    /// Where the stores' files are, on the SSD [default: DIR/work]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Lock this file during each session, so that those who share the machine and the file take turns
    #[arg(long, value_name = "FILE")]
    lock: Option<PathBuf>,
    /// Begin no further round after so many minutes [default: the suite's]
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// The seed of random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn parse_scale(text: &str) -> Result<Scale, String> {
    let found = Scale::ALL.into_iter().find(|s| s.name() == text);
    found.ok_or_else(|| Scale::ALL.map(Scale::name).join(", "))
}

impl Compare {
    /// Runs the command.
    pub fn run(&self) -> StoreResult<()> {
        let comparison = self.comparison()?;
        fs::create_dir_all(&self.out)?;
        let results = comparison.run(&mut |results| results.save(&self.out));
        // Files that are left there are of no use without the process that made them.
        let _ = fs::remove_dir_all(&comparison.place.work_dir);
        let _ = fs::remove_dir_all(&comparison.place.pm_dir);
        let results = results?;
        print!("{}", ratios(&results));
        for path in page::write(&results, &self.out)? {
            println!("{}", path.display());
        }
        Ok(())
    }

    fn comparison(&self) -> StoreResult<Comparison> {
        let profile = self.profile.as_deref().unwrap_or_else(|| self.suite.profile());
        Profile::parse(profile)?;
        let scripts = self.scripts()?;
        let trace = self.trace.as_deref().map(fs::canonicalize).transpose()?;
        let out = std::path::absolute(&self.out)?;
        let comparison = Comparison {
            suite: self.suite.name().to_string(),
            entrants: self.entrants(&scripts)?,
            scripts,
            minutes: self.minutes.unwrap_or_else(|| self.suite.minutes()),
            place: Place {
                program: std::env::current_exe()?,
                work_dir: own(self.work.as_deref().unwrap_or(&out), "work")?,
                pm_dir: own(&self.pm_dir, &format!("terrace-bench-{}", std::process::id()))?,
                profile: profile.to_string(),
                seed: self.seed,
                trace,
            },
            lock: self.lock.clone(),
        };
        comparison.scripts.iter().try_for_each(Script::validate)?;
        Ok(comparison)
    }

    fn entrants(&self, scripts: &[Script]) -> StoreResult<Vec<Contender>> {
        let (mut entrants, mut usual) = (Vec::new(), self.usual(scripts)?);
        match &self.engines {
            Some(list) => entrants.extend(Contender::parse_list(list, "engine", Entrant::is_ours)?),
            None => entrants.extend(usual.extract_if(.., |contender| is_ours(&contender.name))),
        }
        match &self.peers {
            Some(list) => entrants.extend(Contender::parse_list(list, "peer", |e| !e.is_ours())?),
            None => entrants.extend(usual.extract_if(.., |contender| !is_ours(&contender.name))),
        }
        if entrants.is_empty() {
            return Err("there is nothing to measure: name engines or peers".into());
        }
        Ok(entrants)
    }

    /// The stores that `scripts` name and this build has, or all that it has where they name none.
    fn usual(&self, scripts: &[Script]) -> StoreResult<Vec<Contender>> {
        let mut found: Vec<Contender> = Vec::new();
        for name in scripts.iter().flat_map(|script| &script.stores) {
            if !Contender::entrant_of(name)?.is_built() {
                continue;
            }
            let contender = Contender::parse(name)?;
            if !found.contains(&contender) {
                found.push(contender);
            }
        }
        if found.is_empty() {
            let all = Entrant::engines().into_iter().chain(Entrant::peers());
            found.extend(all.map(Contender::from));
        }
        Ok(found)
    }

    fn scripts(&self) -> StoreResult<Vec<Script>> {
        let mut scripts = self.suite.scripts();
        if let Some(list) = &self.scripts {
            let names: Vec<&str> = list.split(',').map(str::trim).collect();
            let known: Vec<&str> = scripts.iter().map(|s| s.name.as_str()).collect();
            if let Some(stranger) = names.iter().find(|name| !known.contains(name)) {
                return Err(
                    format!("there is no script {stranger:?}; there are: {}", known.join(", ")).into()
                );
            }
            scripts.retain(|s| names.contains(&s.name.as_str()));
        }
        if self.trace.is_some() {
            scripts.truncate(1);
            scripts.iter_mut().for_each(|s| {
                s.name = "trace".to_string();
                s.title = "a recorded trace".to_string();
                s.steps = vec!["replay".to_string()];
            });
        }
        scripts.iter_mut().for_each(|s| self.change(s));
        Ok(scripts)
    }

    fn change(&self, script: &mut Script) {
        script.rounds = self.rounds.unwrap_or(script.rounds);
        script.threads = self.threads.map_or(script.threads, |n| n as usize);
        script.records = self.records.unwrap_or(script.records);
        script.seconds = self.seconds.unwrap_or(script.seconds);
        script.sync |= self.sync;
        script.value_size = self.value_size.unwrap_or(script.value_size);
        script.memory = self.memory.map_or(script.memory, |mib| mib << 20);
        script.write_buffer = self.write_buffer.map(|mib| mib << 20).or(script.write_buffer);
        script.batch = self.batch.map_or(script.batch, |n| n as usize);
        script.options.extend(self.set.iter().cloned());
        script.stores = self.stores(std::mem::take(&mut script.stores));
        if let Some(list) = &self.benchmarks {
            script.steps = names(list).collect();
        }
    }

    /// The stores that a script names. Where other stores of a kind are asked for, they take the place of the script's.
    fn stores(&self, mut stores: Vec<String>) -> Vec<String> {
        if stores.is_empty() {
            return stores;
        }
        for (asked, of_ours) in [(&self.engines, true), (&self.peers, false)] {
            let Some(list) = asked else { continue };
            stores.retain(|name| is_ours(name) != of_ours);
            stores.extend(names(list));
        }
        stores
    }
}

/// The names in a list separated by commas.
fn names(list: &str) -> impl Iterator<Item = String> {
    list.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty())
}

fn is_ours(name: &str) -> bool {
    Contender::entrant_of(name).is_ok_and(Entrant::is_ours)
}

/// Throughput of every step, as thousands a second and as multiples of the baseline's.
fn ratios(results: &Results) -> String {
    let base = results.baseline();
    let mut head = vec!["k operations a second".to_string()];
    head.extend(results.entrants.iter().cloned());
    let mut rows = vec![head];
    for script in &results.scripts {
        for step in results.step_names(&script.name) {
            let mut row = vec![format!("{} {step}", script.name)];
            row.extend(results.entrants.iter().map(|name| {
                let stat = results.stat(&script.name, name, &step, THROUGHPUT);
                let ratio = results.ratio(&script.name, name, &step, base);
                match (stat, ratio) {
                    (Some(stat), Some(ratio)) => format!("{:.1} {ratio:.2}x", stat.median / 1e3),
                    (Some(stat), None) => format!("{:.1}", stat.median / 1e3),
                    _ => "-".to_string(),
                }
            }));
            rows.push(row);
        }
    }
    let failures = results.sessions.iter().filter_map(|s| Some((s, s.error.as_ref()?)));
    let failures = failures.map(|(s, e)| format!("{} {} round {}: {e}\n", s.script, s.entrant, s.round + 1));
    report::columns(&rows) + &failures.collect::<String>()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        compare: Compare,
    }

    fn measured(args: &[&str]) -> Vec<String> {
        let fixed = ["terrace-bench", "--out", "out", "--suite", "tlsm", "--scripts", "ycsb"];
        let compare = Cli::parse_from(fixed.iter().chain(args)).compare;
        let scripts = compare.scripts().unwrap();
        let entrants = compare.entrants(&scripts).unwrap();
        let done = entrants.into_iter().filter(|entrant| scripts[0].stores.contains(&entrant.name));
        done.map(|entrant| entrant.name).collect()
    }

    #[test]
    fn a_suite_has_stores_of_its_own_unless_others_are_asked_for() {
        let own = measured(&[]);
        assert_eq!((own.len(), own[0].as_str()), (4, "lsm-nvm"));
        assert_eq!(measured(&["--peers", ""]), own);
        assert_eq!(measured(&["--engines", "lsm-pm, tlsm+tiering=lru"]), ["lsm-pm", "tlsm+tiering=lru"]);
    }
}
