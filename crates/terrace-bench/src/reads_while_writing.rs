//! Reads beside writes, for `terrace-bench reads-while-writing` (WipDB, figure 2.8).
//!
//! A filled store at rest is read for a while, then read while one thread overwrites records at a rate, then read for a
//! while again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde::Serialize;
use terrace_base::exec::{Executor, ThreadPool};

use crate::chart::{Bars, Named, Panel, save};
use crate::compare::contender::{Contender, Place};
use crate::distribution::Shape;
use crate::keys::KeyOrder;
use crate::outcome::{Latency, Outcome, SLICE, rates};
use crate::peers::Settings;
use crate::report::{columns, grouped, nanos};
use crate::rest;
use crate::run::{Plan, Watch, run};
use crate::space::KeySpace;
use crate::store::{Store, StoreResult};
use crate::workload::Workload;

/// Writes made at once while the store is filled.
const FILL_BATCH: usize = 1000;

/// Points of a line over time at most, and slices of time behind each at least.
const POINTS: usize = 150;
const SLICES: usize = 5;

/// The plan of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Spec {
    /// Records of the store.
    pub num: u64,
    /// Bytes of a value; keys have 16.
    pub value_bytes: usize,
    /// Threads that read.
    pub readers: usize,
    /// Which keys they read, in the order of keys: uniform or exponential.
    pub reads: Shape,
    /// Seconds of reading before the writes.
    pub before: f64,
    /// Seconds of reading after them.
    pub after: f64,
    /// Writes.
    pub writes: u64,
    /// Writes a second at most.
    pub rate: u64,
    /// The seed of random numbers.
    pub seed: u64,
}

/// The outcome of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The store.
    pub store: String,
    /// Its settings.
    pub settings: Settings,
    /// Its plan.
    pub spec: Spec,
    /// Seconds from the last write of the fill until the store was at rest.
    pub rest_seconds: f64,
    /// The reads before the writes.
    pub before: Outcome,
    /// The reads beside them.
    pub during: Outcome,
    /// The reads after them.
    pub after: Outcome,
    /// The writes.
    pub writes: Outcome,
    /// Reads a second beside the writes, as a multiple of those before.
    pub during_ratio: f64,
    /// The same of the last fifth of the time of the writes.
    pub recovered_ratio: f64,
}

/// A store with its records.
struct Filled {
    store: Arc<dyn Store>,
    space: Arc<KeySpace>,
}

impl Spec {
    /// Measures `contender` on a database of its own, which is removed in the end. `progress` is told of the fill's
    /// records and of writes.
    ///
    /// # Errors
    /// Those of the store, and one if a read does not find its record.
    pub fn measure(
        &self,
        contender: &Contender,
        place: &Place,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> StoreResult<Run> {
        let opened = contender.open(place, 0)?;
        let progress = Arc::new(progress);
        let filled = self.fill(opened.store, progress.clone())?;
        let rest_seconds = rest::wait(&*filled.store)?.as_secs_f64();
        let before = self.read(&filled, Some(self.before), &Arc::default())?;
        let (during, writes) = self.read_and_write(&filled, progress)?;
        let after = self.read(&filled, Some(self.after), &Arc::default())?;
        drop(filled);
        place.clean(0);
        let ratio = |rate: f64| rate / before.throughput().max(1e-9);
        let (during_ratio, recovered_ratio) = (ratio(during.throughput()), ratio(last_fifth(&during)));
        Ok(Run {
            store: contender.name.clone(),
            settings: opened.settings,
            spec: self.clone(),
            rest_seconds,
            before,
            during,
            after,
            writes,
            during_ratio,
            recovered_ratio,
        })
    }

    fn plan(&self) -> Plan {
        Plan { num: self.num, value_size: self.value_bytes, seed: self.seed, ..Plan::default() }
    }

    fn fill(
        &self,
        store: Arc<dyn Store>,
        progress: Arc<impl Fn(u64) + Send + Sync + 'static>,
    ) -> StoreResult<Filled> {
        let space = Arc::new(KeySpace::new(0, KeyOrder::Hashed));
        let watch = Arc::new(Watch::new(move |operations| progress(operations)));
        let plan = Plan { batch: FILL_BATCH, ..self.plan() };
        run(&store, find("load")?, &plan, &space, &watch)?;
        Ok(Filled { store, space: Arc::new(space.grown(self.num)) })
    }

    /// Reads for so many seconds, or until `watch` is stopped.
    fn read(&self, filled: &Filled, seconds: Option<f64>, watch: &Arc<Watch>) -> StoreResult<Outcome> {
        let workload = match self.reads {
            Shape::Exponential => find("readexponential")?,
            _ => find("readrandom")?,
        };
        let plan = Plan {
            threads: self.readers,
            duration: seconds.map(Duration::try_from_secs_f64).transpose()?,
            reads: Some(u64::MAX),
            ..self.plan()
        };
        run(&filled.store, workload, &plan, &filled.space, watch)
    }

    /// Writes, and reads for as long as that takes; the reads and the writes.
    fn read_and_write(
        &self,
        filled: &Filled,
        progress: Arc<impl Fn(u64) + Send + Sync + 'static>,
    ) -> StoreResult<(Outcome, Outcome)> {
        let reading = Arc::new(Watch::default());
        let writing = Arc::new(Watch::new(move |operations| progress(operations)));
        let (sender, written) = channel();
        let writer = ThreadPool::new("writer", 1);
        {
            let (store, space) = (filled.store.clone(), filled.space.clone());
            let (ends, writing) = (Ends(reading.clone()), writing.clone());
            let workload = find("overwrite")?;
            let plan = Plan { reads: Some(self.writes), rate: Some(self.rate), ..self.plan() };
            writer.spawn(Box::new(move || {
                let outcome = run(&store, workload, &plan, &space, &writing);
                drop((store, ends));
                // Nobody waits for the writer if the reads have failed.
                let _ = sender.send(outcome);
            }));
        }
        let reads = self.read(filled, None, &reading);
        if reads.is_err() {
            writing.stop();
        }
        drop(writer); // Joins it.
        let writes = written.recv().map_err(|_| "the thread that writes panicked")?;
        Ok((reads?, writes?))
    }
}

/// Stops the reads when the writes have ended, with success or not.
struct Ends(Arc<Watch>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn find(name: &str) -> StoreResult<&'static Workload> {
    Ok(Workload::find(name).ok_or_else(|| format!("there is no workload {name}"))?)
}

/// Operations a second in the last fifth of the time.
fn last_fifth(outcome: &Outcome) -> f64 {
    let slices = &outcome.timeline;
    let whole = &slices[..slices.len().saturating_sub(1)];
    let last = &whole[whole.len() * 4 / 5..];
    if last.is_empty() {
        return outcome.throughput();
    }
    last.iter().sum::<u64>() as f64 / (last.len() as f64 * SLICE.as_secs_f64())
}

impl Run {
    fn phases(&self) -> [(&'static str, &Outcome); 3] {
        [("before", &self.before), ("during", &self.during), ("after", &self.after)]
    }

    /// Reads a second over all three phases, the first of which begins at 0.
    fn reads_over_time(&self) -> Vec<(f64, f64)> {
        let mut begins = 0.0;
        let mut points = Vec::new();
        for (_, outcome) in self.phases() {
            points.extend(over_time(outcome, begins));
            begins += outcome.elapsed.as_secs_f64();
        }
        points
    }
}

/// Thousands a second over time from `begins` on.
fn over_time(outcome: &Outcome, begins: f64) -> impl Iterator<Item = (f64, f64)> {
    let slices = &outcome.timeline;
    let together = slices.len().div_ceil(POINTS).max(SLICES).min(slices.len().max(1));
    rates(slices, together).into_iter().map(move |(at, rate)| (begins + at, rate / 1e3))
}

/// Runs in columns.
pub fn table(runs: &[Run]) -> String {
    let head = ["store", "", "ops/s", "of before", "p50", "p99", "p99.9", "max"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for run in runs {
        for (phase, outcome) in run.phases() {
            let ratio = outcome.throughput() / run.before.throughput().max(1e-9);
            rows.push(row(run, &format!("reads {phase}"), outcome, Some(ratio)));
            if phase == "during" {
                let rate = grouped((run.recovered_ratio * run.before.throughput()) as u64);
                let texts =
                    [run.store.clone(), "its last fifth".into(), rate, ratio_text(run.recovered_ratio)];
                rows.push(texts.into_iter().chain((0..4).map(|_| "-".to_string())).collect());
            }
        }
        rows.push(row(run, "writes", &run.writes, None));
    }
    columns(&rows)
}

fn ratio_text(ratio: f64) -> String {
    format!("{ratio:.2}")
}

fn row(run: &Run, what: &str, outcome: &Outcome, ratio: Option<f64>) -> Vec<String> {
    let Latency { p50_ns, p99_ns, p999_ns, max_ns, .. } = outcome.latency;
    let ratio = ratio.map_or("-".to_string(), ratio_text);
    let mut row = vec![run.store.clone(), what.to_string(), grouped(outcome.throughput() as u64), ratio];
    row.extend([p50_ns, p99_ns, p999_ns, max_ns].map(nanos));
    row
}

/// Draws figure 2.8 into the folder `dir`; the file made.
///
/// # Errors
/// Those of drawing and of writing the file.
pub fn figures(runs: &[Run], dir: &Path) -> StoreResult<Vec<PathBuf>> {
    let Some(first) = runs.first() else { return Ok(Vec::new()) };
    let named = |line: &dyn Fn(&Run) -> Vec<(f64, f64)>| -> Vec<Named> {
        runs.iter().map(|run| (run.store.clone(), line(run))).collect()
    };
    let reads = named(&|run| run.reads_over_time());
    let writes = named(&|run| over_time(&run.writes, run.before.elapsed.as_secs_f64()).collect());
    let tails = runs.iter().map(|run| {
        let tail = |(_, outcome): (_, &Outcome)| Some(outcome.latency.p99_ns as f64 / 1e3);
        (run.store.clone(), run.phases().map(tail).to_vec())
    });
    let name = first.spec.reads.name();
    let panels = [
        Panel::lines(format!("Reads, {name}"), "seconds", "k reads/s", reads),
        Panel::lines("Writes".into(), "seconds", "k writes/s", writes),
        Panel::Bars(Bars {
            title: "p99 of the reads".into(),
            y: "µs".into(),
            groups: first.phases().map(|(phase, _)| format!("{phase} the writes")).to_vec(),
            series: tails.collect(),
            log: false,
        }),
    ];
    Ok(save(dir, &format!("reads-while-writing-{name}"), 3, &panels)?.into_iter().collect())
}
