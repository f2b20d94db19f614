//! `terrace bench`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use terrace::{Db, MAX_KEY_BYTES, MAX_VALUE_BYTES, PoolChoice};
use terrace_base::Error;
use terrace_base::rng::Rng;
use terrace_bench::suite::Contents;
use terrace_bench::trace::Trace;
use terrace_bench::workload::{Action, GROUPS, WORKLOADS};
use terrace_bench::{Outcome, Plan, Provider, Store, StoreResult, Suite, TerraceStore, Watch, Workload};
use terrace_bench::{StoreError, report};

use crate::failure::{CommandResult, Failure, exit};
use crate::interrupt;
use crate::open::{Intent, OpenArgs};
use crate::progress;
use terrace_base::size;

/// The file that describes a benchmark directory's database; a directory without it is not touched.
const MARKER: &str = "terrace-bench.json";
const DATABASE: &str = "db";

/// The benchmarks that are run by default, and those that only engines with an order run.
const UNORDERED: &str = "fillseq,fillrandom,overwrite,readrandom,readmissing";
const ORDERED: &str = "readseq,readreverse,seekrandom";

/// Measures a database made for the purpose, with db_bench's and YCSB's workloads.
///
/// DIR must be empty, not there, or from an earlier bench: fills start with an empty database. An
/// operation's latency is from the end of the one before; with several threads, operations are
/// divided among them. Amplification is bytes that the medium wrote while the benchmark ran per byte
/// that it wrote: data still buffered at its end is not in it, so put `flush` or `compact` after it.
#[derive(Debug, Args)]
#[command(after_help = help_text())]
pub struct Bench {
    /// The directory to work in
    pub dir: PathBuf,
    /// What to run, in this order, separated by commas
    ///
    /// By default: fillseq,fillrandom,overwrite,readrandom,readmissing,readseq,readreverse,seekrandom, the last three
    /// only where the engine keeps an order.
    #[arg(long, value_name = "LIST")]
    pub benchmarks: Option<String>,
    /// Records that a fill writes, and operations of everything else
    #[arg(long, value_name = "N", default_value = "1M", value_parser = terrace_bench::count::parse)]
    pub num: u64,
    /// Operations of benchmarks that do not fill [default: num]
    #[arg(long, value_name = "N", value_parser = terrace_bench::count::parse)]
    pub reads: Option<u64>,
    /// Run benchmarks that do not fill for so many seconds instead
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub duration: Option<f64>,
    /// Bytes of a key
    #[arg(long, value_name = "SIZE", default_value = "16", value_parser = parse_key_size)]
    pub key_size: usize,
    /// Bytes of a value, such as 100 or 4KiB
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = parse_value_size)]
    pub value_size: usize,
    /// Share of a value's bytes that compression cannot remove, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub random_share: f64,
    /// Records that each seek of seekrandom reads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub seek_records: u32,
    /// Keys that each read of multireadrandom asks for
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub multi_keys: u32,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Writes made at once by benchmarks that only write
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch: u32,
    /// The seed of random numbers; the same seed draws the same operations [default: from the system]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The trace that `replay` replays (docs/formats/trace.md)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print JSON instead of lines and a table
    #[arg(long)]
    pub json: bool,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

fn parse_key_size(text: &str) -> Result<usize, String> {
    sized(text, 4, MAX_KEY_BYTES - 1)
}

fn parse_value_size(text: &str) -> Result<usize, String> {
    sized(text, 0, MAX_VALUE_BYTES)
}

fn sized(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let bytes = size::parse(text)? as usize;
    let refused = || format!("it must be {least} to {most} bytes");
    (least..=most).contains(&bytes).then_some(bytes).ok_or_else(refused)
}

fn help_text() -> String {
    let mut text = "Benchmarks:\n".to_string();
    for workload in WORKLOADS {
        text.push_str(&format!("  {:<14} {}\n", workload.name, workload.about));
    }
    text.push_str("\nGroups of them:\n");
    for (group, members) in GROUPS {
        text.push_str(&format!("  {group:<8} {}\n", members.join(" ")));
    }
    text.push_str(
        "\nExamples:\n  terrace bench ./bench --num 200000 --value-size 1000\n  \
         terrace bench ./bench --benchmarks ycsb --threads 2 --value-size 1000\n  \
         terrace bench ./bench --benchmarks fillrandom,flush,readrandom --pool emulated:optane --json\n\n\
         `terrace-bench compare` measures the engines beside other stores and draws a report (docs/comparing.md).\n",
    );
    text
}

impl Bench {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let usual = match self.open.options().engine.is_ordered() {
            false => UNORDERED.to_string(),
            true => format!("{UNORDERED},{ORDERED}"),
        };
        let workloads =
            Workload::parse_list(self.benchmarks.as_ref().unwrap_or(&usual)).map_err(|stranger| {
                Failure::usage(format!("there is no benchmark \"{stranger}\""))
                    .hint("`terrace bench --help` lists them")
            })?;
        let plan = self.plan()?;
        let suite = Suite { workloads: &workloads, plan };
        if workloads.iter().any(|w| w.action == Action::Replay) && self.trace.is_none() {
            return Err(Failure::usage("replay needs a trace").hint("name one with --trace FILE"));
        }
        suite.validate().map_err(Failure::usage)?;
        interrupt::install()?;
        let mut databases = Databases::prepare(&self.dir, &self.open)?;
        if !self.json {
            writeln!(out, "{}", self.headline(&suite.plan))?;
            out.flush()?;
        }
        let outcomes = self.run_suite(&suite, &mut databases, out)?;
        if self.json {
            self.print_json(&suite.plan, &databases, &outcomes, out)?;
        } else {
            writeln!(out, "\n{}", databases.describe())?;
            write!(out, "{}", report::table(&outcomes))?;
        }
        if interrupt::requested() {
            return Err(interrupt::stopped(
                "stopped; the figures of the last benchmark are of its beginning",
            ));
        }
        Ok(())
    }

    fn plan(&self) -> CommandResult<Plan> {
        let duration = self.duration.map(Duration::try_from_secs_f64).transpose();
        let trace = self.trace.as_deref().map(Trace::load).transpose().map_err(failure_of)?;
        Ok(Plan {
            num: self.num,
            reads: self.reads,
            duration: duration.map_err(|_| Failure::usage("--duration is a number of seconds"))?,
            threads: self.threads as usize,
            key_size: self.key_size,
            value_size: self.value_size,
            random_share: self.random_share,
            seek_records: self.seek_records,
            multi_keys: self.multi_keys as usize,
            batch: self.batch as usize,
            seed: self.seed.unwrap_or_else(Rng::fresh_seed),
            trace: trace.map(Arc::new),
            ..Plan::default()
        })
    }

    fn headline(&self, plan: &Plan) -> String {
        format!(
            "{} records of {} + {} bytes, {} {}, seed {}",
            report::grouped(plan.num),
            plan.key_size,
            plan.value_size,
            plan.threads,
            if plan.threads == 1 { "thread" } else { "threads" },
            plan.seed,
        )
    }

    fn run_suite(
        &self,
        suite: &Suite<'_>,
        databases: &mut Databases<'_>,
        out: &mut dyn Write,
    ) -> CommandResult<Vec<Outcome>> {
        let mut printed = Ok(());
        let mut bar = progress::operations("", None);
        let shown = std::cell::RefCell::new(&mut bar);
        let result = suite.run(
            databases,
            &mut |workload, operations| {
                let bar = progress::operations(workload.name, Some(operations).filter(|&n| n < u64::MAX));
                **shown.borrow_mut() = bar.clone();
                watch(bar)
            },
            &mut |workload, outcome| {
                shown.borrow().finish_and_clear();
                if !self.json && printed.is_ok() {
                    printed = writeln!(out, "{}", report::line(workload, outcome)).and_then(|()| out.flush());
                }
            },
        );
        bar.finish_and_clear();
        printed?;
        result.map_err(failure_of)
    }

    fn print_json(
        &self,
        plan: &Plan,
        databases: &Databases<'_>,
        outcomes: &[Outcome],
        out: &mut dyn Write,
    ) -> CommandResult {
        let benchmarks: Vec<_> = outcomes
            .iter()
            .map(|o| {
                json!({
                    "ops_per_second": o.throughput(),
                    "ssd_write_amplification": o.ssd_write_amplification(),
                    "pm_write_amplification": o.pm_write_amplification(),
                    "outcome": o,
                })
            })
            .collect();
        let value = json!({
            "store": databases.describe(),
            "num": plan.num,
            "key_size": plan.key_size,
            "value_size": plan.value_size,
            "threads": plan.threads,
            "batch": plan.batch,
            "seed": plan.seed,
            "benchmarks": benchmarks,
        });
        Ok(writeln!(out, "{value:#}")?)
    }
}

/// A watch that moves `bar` and that Ctrl-C stops.
fn watch(bar: indicatif::ProgressBar) -> Arc<Watch> {
    let watch = Arc::new(Watch::new(move |operations| bar.inc(operations)));
    let stopped = watch.clone();
    interrupt::set_hook(move || stopped.stop());
    watch
}

fn failure_of(error: StoreError) -> Failure {
    match error.downcast::<Error>() {
        Ok(error) => Failure::from(*error),
        Err(other) => Failure::new(exit::ERROR, other.to_string()),
    }
}

/// The databases of one benchmark directory.
struct Databases<'a> {
    dir: PathBuf,
    open: &'a OpenArgs,
    /// The media of the database that was opened last.
    described: String,
}

impl<'a> Databases<'a> {
    fn prepare(dir: &Path, open: &'a OpenArgs) -> CommandResult<Self> {
        let used = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if used && !dir.join(MARKER).exists() {
            return Err(Failure::usage(format!(
                "{} holds something that is not from a bench",
                dir.display()
            ))
            .hint("name a directory that is not there yet: a bench replaces what it finds"));
        }
        fs::create_dir_all(dir).map_err(|e| Failure::io(dir, "create", e))?;
        let databases = Databases { dir: dir.to_path_buf(), open, described: String::new() };
        if !used {
            databases.mark(None).map_err(failure_of)?;
        }
        Ok(databases)
    }

    fn describe(&self) -> &str {
        &self.described
    }

    fn open(&mut self, intent: Intent) -> StoreResult<Arc<dyn Store>> {
        let mut options = self.open.options();
        options.create_if_missing &= intent == Intent::Create;
        let db = Db::open(self.dir.join(DATABASE), options)?;
        let stats = db.stats();
        // The medium's description says so when it is emulated.
        self.described = format!("engine {}; {}; {}", stats.engine, stats.media, stats.durability);
        Ok(Arc::new(TerraceStore::new(db)))
    }

    /// Removes the pool of the former database if that is a file somewhere else. The database opens with the pool,
    /// which shows that the pool is its own.
    fn remove_pool(&self, database: &Path) -> StoreResult<()> {
        let mut options = self.open.options();
        options.create_if_missing = false;
        let (PoolChoice::Path(path) | PoolChoice::Emulated { path: Some(path), .. }) = options.pool.clone()
        else {
            return Ok(());
        };
        if !path.is_file() || Db::open(database, options).is_err() {
            return Ok(());
        }
        Ok(fs::remove_file(&path).map_err(|e| Error::io(&path, "remove", e))?)
    }

    fn mark(&self, contents: Option<Contents>) -> StoreResult<()> {
        let path = self.dir.join(MARKER);
        let text = serde_json::to_string(&contents)?;
        Ok(fs::write(&path, text).map_err(|e| Error::io(&path, "write", e))?)
    }
}

impl Provider for Databases<'_> {
    fn fresh(&mut self) -> StoreResult<Arc<dyn Store>> {
        self.mark(None)?;
        let database = self.dir.join(DATABASE);
        if database.exists() {
            self.remove_pool(&database)?;
            fs::remove_dir_all(&database).map_err(|e| Error::io(&database, "remove", e))?;
        }
        self.open(Intent::Create)
    }

    fn existing(&mut self) -> StoreResult<Option<(Arc<dyn Store>, Contents)>> {
        let path = self.dir.join(MARKER);
        let text = fs::read_to_string(&path).map_err(|e| Error::io(&path, "read", e))?;
        match serde_json::from_str::<Option<Contents>>(&text)? {
            Some(contents) => Ok(Some((self.open(Intent::Write)?, contents))),
            None => Ok(None),
        }
    }

    fn note(&mut self, contents: Contents) -> StoreResult<()> {
        self.mark(Some(contents))
    }
}
