//! How long opening takes after a kill, for `terrace-bench restart` (WipDB, figure 2.9).
//!
//! A process fills a store until it has cut its keys into so many ranges, says how far it came, and dies by SIGKILL
//! with the store open. Another process opens that store, and reads every record that was acknowledged.

use std::io::{BufRead, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use terrace_base::clock::{Clock, SystemClock};

use crate::chart::{Bars, Panel, save};
use crate::compare::contender::{Contender, Place};
use crate::draw::Draw;
use crate::keys::{KeyMaker, KeyOrder};
use crate::report::{columns, grouped, nanos};
use crate::run::{Plan, Watch, run};
use crate::space::KeySpace;
use crate::store::{Store, StoreResult};
use crate::stream::Op;
use crate::suite;
use crate::workload::{Start, Workload};

/// The hidden subcommand that makes a process one that fills or opens.
pub const SUBCOMMAND: &str = "restart-life";

const SIGKILL: i32 = 9;

/// Records between two looks at how many ranges there are.
const LOOK_EVERY: u64 = 10_000;

/// Is shown a write: the number of its key, the key, the value.
type Each<'a> = dyn FnMut(u64, &[u8], &[u8]) -> StoreResult<()> + 'a;

/// How a store is filled before it is killed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The store.
    pub contender: Contender,
    /// Where it is.
    pub place: Place,
    /// Which keys are written: the name of a workload that only fills.
    pub workload: String,
    /// Ranges that there are to be.
    pub buckets: u64,
    /// Records that are written at least, and at most.
    pub least: u64,
    /// See `least`.
    pub most: u64,
    /// Bytes of a value; keys have 16.
    pub value_bytes: usize,
    /// Writes made at once.
    pub batch: usize,
    /// The seed of random numbers.
    pub seed: u64,
}

/// The orders of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Life {
    /// Fill a store, and die.
    Fill(Spec),
    /// Open the store that was left when so many records were acknowledged.
    Open(Spec, u64),
}

/// The last message of a process before it dies.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Full {
    /// Records that were acknowledged.
    records: u64,
    /// Ranges there were.
    buckets: u64,
}

/// The outcome of opening.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Back {
    open_seconds: f64,
    first_read_seconds: f64,
    buckets: u64,
    missing: u64,
    wrong: u64,
}

/// The outcome of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// How it was filled.
    pub spec: Spec,
    /// Records that were acknowledged.
    pub records: u64,
    /// Ranges there were when the process died.
    pub buckets: u64,
    /// Ranges there were when it was open again.
    pub buckets_opened: u64,
    /// Bytes of the log's files that the process left.
    pub log_bytes: u64,
    /// Seconds until the store was open.
    pub open_seconds: f64,
    /// Seconds of the first read after that.
    pub first_read_seconds: f64,
    /// Acknowledged records that are not there.
    pub missing: u64,
    /// Acknowledged records that have another value.
    pub wrong: u64,
}

impl Run {
    /// Acknowledged records that were lost.
    pub fn lost(&self) -> u64 {
        self.missing + self.wrong
    }
}

impl Spec {
    /// Fills, kills and opens the store, in processes of `program`. Files that lie there are removed before and after.
    ///
    /// # Errors
    /// Those of the store, and one if a process does not end as it should.
    pub fn measure(&self, program: &Path) -> StoreResult<Run> {
        self.place.clean(0);
        let full: Full = self.live(program, &Life::Fill(self.clone()), true)?;
        let (dir, pm_dir) = self.place.dirs(0);
        let log_bytes = log_bytes(&dir)? + log_bytes(&pm_dir)?;
        let back: Back = self.live(program, &Life::Open(self.clone(), full.records), false)?;
        self.place.clean(0);
        Ok(Run {
            spec: self.clone(),
            records: full.records,
            buckets: full.buckets,
            buckets_opened: back.buckets,
            log_bytes,
            open_seconds: back.open_seconds,
            first_read_seconds: back.first_read_seconds,
            missing: back.missing,
            wrong: back.wrong,
        })
    }

    /// The message of a process that follows these orders; one that `dies` must end by SIGKILL.
    fn live<T: DeserializeOwned>(&self, program: &Path, life: &Life, dies: bool) -> StoreResult<T> {
        let mut child = Command::new(program)
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take().ok_or("the child has no input")?;
        let life = serde_json::to_string(life)?;
        // A process that is gone is reported below.
        let _ = writeln!(input, "{life}");
        drop(input);
        let output = child.wait_with_output()?;
        let is_well = if dies { output.status.signal() == Some(SIGKILL) } else { output.status.success() };
        if !is_well {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().next_back().map(|line| line.trim_start_matches("terrace-bench: "));
            let status = output.status.to_string();
            return Err(format!("{} (its process: {status})", last.unwrap_or("nothing was said")).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn workload(&self) -> StoreResult<(&'static Workload, KeyOrder)> {
        match Workload::find(&self.workload) {
            Some(workload @ Workload { start: Start::Fresh(order), .. }) => Ok((workload, *order)),
            _ => Err(format!("{} fills no store", self.workload).into()),
        }
    }

    fn plan(&self) -> Plan {
        Plan {
            num: self.most,
            value_size: self.value_bytes,
            batch: self.batch,
            seed: self.seed,
            ..Plan::default()
        }
    }

    /// Fills until there is enough; the store stays open as long as the result is held.
    fn fill(&self) -> StoreResult<(Full, Arc<dyn Store>)> {
        let (workload, order) = self.workload()?;
        let store = self.contender.open(&self.place, 0)?.store;
        let plan = self.plan();
        let space = Arc::new(suite::empty(workload, order, plan.num));
        let (looked_at, least, wanted) = (store.clone(), self.least, self.buckets);
        let (done, looked) = (AtomicU64::new(0), AtomicU64::new(0));
        let watch = Arc::new_cyclic(|own: &Weak<Watch>| {
            let own = own.clone();
            Watch::new(move |operations| {
                let now = done.fetch_add(operations, Ordering::Relaxed) + operations;
                if now < least || now < looked.load(Ordering::Relaxed) + LOOK_EVERY.min(least) {
                    return;
                }
                looked.store(now, Ordering::Relaxed);
                if looked_at.partitions().len() as u64 >= wanted
                    && let Some(own) = own.upgrade()
                {
                    own.stop();
                }
            })
        });
        let outcome = run(&store, workload, &plan, &space, &watch)?;
        let full = Full { records: outcome.counts.operations, buckets: store.partitions().len() as u64 };
        Ok((full, store))
    }

    /// Opens the store that was left, and looks for the first `records` records.
    fn open(&self, records: u64) -> StoreResult<Back> {
        let clock = SystemClock::new();
        let store = self.contender.open(&self.place, 0)?.store;
        let opened = clock.now();
        store.get(KeyMaker::new(self.plan().key_size, KeyOrder::Hashed).key(0), &mut |_| {})?;
        let read = clock.now();
        let buckets = store.partitions().len() as u64;
        let (missing, wrong) = self.look_for(&*store, records)?;
        Ok(Back {
            open_seconds: opened.as_secs_f64(),
            first_read_seconds: read.saturating_sub(opened).as_secs_f64(),
            buckets,
            missing,
            wrong,
        })
    }

    /// Draws the first `records` writes again. Returns how many of their keys are not there, and how many have another
    /// value than the last one written.
    fn look_for(&self, store: &dyn Store, records: u64) -> StoreResult<(u64, u64)> {
        let (mut missing, mut unlike) = (0, std::collections::HashMap::new());
        let mut found = Vec::new();
        self.draw_again(records, &mut |number, key, value| {
            let mut keep = |bytes: &[u8]| found = bytes.to_vec();
            if !store.get(key, &mut keep)? {
                missing += 1;
            } else if found != value {
                unlike.insert(number, found.clone());
            }
            Ok(())
        })?;
        // A key that was drawn again has its last value.
        if !unlike.is_empty() {
            let mut last = std::collections::HashMap::new();
            self.draw_again(records, &mut |number, _, value| {
                if unlike.contains_key(&number) {
                    last.insert(number, value.to_vec());
                }
                Ok(())
            })?;
            unlike.retain(|number, found| last.get(number) != Some(found));
        }
        Ok((missing, unlike.len() as u64))
    }

    fn draw_again(&self, records: u64, each: &mut Each<'_>) -> StoreResult<()> {
        let (workload, order) = self.workload()?;
        let plan = self.plan();
        let draw = Draw::new(workload, &plan, &Arc::new(KeySpace::new(0, order)));
        let mut stream = draw.stream(0, 0).ok_or("a fill draws operations")?;
        let mut keys = KeyMaker::new(plan.key_size, order);
        for _ in 0..records {
            if let Op::Update(number) | Op::Insert(number) = stream.next_op() {
                let value = draw.values.value(stream.random());
                each(number, keys.key(number), value)?;
            }
        }
        Ok(())
    }
}

/// Carries out the orders in the line that is read from `input`, and reports the outcome.
///
/// # Errors
/// Those of the store.
pub fn live(input: &mut dyn BufRead, output: &mut dyn Write) -> StoreResult<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    match serde_json::from_str(&line)? {
        Life::Fill(spec) => {
            let (full, _open) = spec.fill()?;
            writeln!(output, "{}", serde_json::to_string(&full)?)?;
            output.flush()?;
            use rustix::process::{Signal, getpid, kill_process};
            Ok(kill_process(getpid(), Signal::KILL)?)
        }
        Life::Open(spec, records) => {
            let back = spec.open(records)?;
            Ok(writeln!(output, "{}", serde_json::to_string(&back)?)?)
        }
    }
}

/// Bytes of the files below `dir` whose names end in `.log`, as those of all stores with a log in files do.
fn log_bytes(dir: &Path) -> StoreResult<u64> {
    let mut sum = 0;
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(0) };
    for entry in entries {
        let path = entry?.path();
        let meta = std::fs::metadata(&path)?;
        sum += match meta.is_dir() {
            true => log_bytes(&path)?,
            false if path.extension().is_some_and(|kind| kind == "log") => meta.len(),
            false => 0,
        };
    }
    Ok(sum)
}

/// Runs in columns.
pub fn table(runs: &[Run]) -> String {
    let head =
        ["store", "keys", "buckets", "records", "log MiB", "open s", "first read", "then buckets", "lost"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        vec![
            run.spec.contender.name.clone(),
            run.spec.workload.clone(),
            grouped(run.buckets),
            grouped(run.records),
            format!("{:.1}", run.log_bytes as f64 / f64::from(1 << 20)),
            format!("{:.3}", run.open_seconds),
            nanos((run.first_read_seconds * 1e9) as u64),
            grouped(run.buckets_opened),
            grouped(run.lost()),
        ]
    }));
    columns(&rows)
}

/// Draws figure 2.9 into the folder `dir`; the file made.
///
/// # Errors
/// Those of drawing and of writing the file.
pub fn figures(runs: &[Run], dir: &Path) -> StoreResult<Vec<PathBuf>> {
    let mut asked: Vec<u64> = runs.iter().map(|run| run.spec.buckets).collect();
    asked.sort_unstable();
    asked.dedup();
    let name = |run: &Run| format!("{} {}", run.spec.contender.name, run.spec.workload);
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        if !names.contains(&name(run)) {
            names.push(name(run));
        }
    }
    let panel = |title: &str, y: &str, value: &dyn Fn(&Run) -> f64| {
        let of = |own: &String, buckets: &u64| {
            let run = runs.iter().find(|run| name(run) == *own && run.spec.buckets == *buckets);
            run.map(value)
        };
        let series = names.iter().map(|own| (own.clone(), asked.iter().map(|n| of(own, n)).collect()));
        Panel::Bars(Bars {
            title: title.into(),
            y: y.into(),
            groups: asked.iter().map(|buckets| grouped(*buckets)).collect(),
            series: series.collect(),
            log: false,
        })
    };
    let panels = [
        panel("Log by buckets", "MiB", &|run| run.log_bytes as f64 / f64::from(1 << 20)),
        panel("Opening after SIGKILL by buckets", "seconds", &|run| run.open_seconds),
    ];
    Ok(save(dir, "restart", 2, &panels)?.into_iter().collect())
}
