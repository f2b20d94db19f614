//! How a store follows keys whose distribution changes, for `terrace-bench regions` (WipDB, figure 2.7).
//!
//! One thread fills four regions of the keys, one after the other (the workload `fillregions`). In the middle of each
//! the bounds of the store's ranges are noted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use terrace_base::clock::{Clock, SystemClock};

use crate::chart::{Bars, Panel, save};
use crate::compare::contender::{Contender, Place};
use crate::file_sizes::{self, SizeClass};
use crate::keys::{KeyMaker, KeyOrder};
use crate::outcome::{Outcome, rates};
use crate::peers::Settings;
use crate::report::{columns, grouped, nanos};
use crate::run::{Plan, Watch, run};
use crate::space::KeySpace;
use crate::store::{Store, StoreResult};
use crate::workload::{FOUR_REGIONS, Workload};

/// Equal parts of the key space in which ranges are counted.
pub const PARTS: usize = 60;

/// Bytes of a key.
const KEY_BYTES: usize = 16;

/// Moments over all of the run at which ranges are counted.
const GROWTH_POINTS: u64 = 200;

/// Points of a line over time at most, and slices of time behind each at least.
const POINTS: usize = 110;
const SLICES: usize = 10;

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Records for each region.
    pub num: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Writes made at once.
    pub batch: usize,
    /// The seed of random numbers.
    pub seed: u64,
}

/// A moment, and how many ranges there were.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Moment {
    /// Since the run began.
    pub seconds: f64,
    /// Records written.
    pub records: u64,
    /// Ranges that the store had cut its keys into.
    pub partitions: u64,
}

/// Where ranges began in the middle of a region.
#[derive(Debug, Clone, Serialize)]
pub struct Bounds {
    /// When.
    pub moment: Moment,
    /// How many begin in each of [`PARTS`] equal parts of the key space.
    pub parts: Vec<u64>,
}

/// The outcome of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The store.
    pub store: String,
    /// Its settings.
    pub settings: Settings,
    /// Records for each region.
    pub num: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Writes made at once.
    pub batch: usize,
    /// The writes.
    pub outcome: Outcome,
    /// How many ranges there were from time to time.
    pub growth: Vec<Moment>,
    /// Where they began in the middle of each region.
    pub bounds: Vec<Bounds>,
    /// How large the store's tables were when it was closed.
    pub files: Vec<SizeClass>,
}

impl Spec {
    /// Records of all regions.
    pub fn records(&self) -> u64 {
        self.num * FOUR_REGIONS.len() as u64
    }

    /// Fills the regions of `contender`'s database, which is made, and removed in the end. `progress` is told of
    /// writes.
    ///
    /// # Errors
    /// Those of the store.
    pub fn measure(
        &self,
        contender: &Contender,
        place: &Place,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> StoreResult<Run> {
        let workload = Workload::find("fillregions").ok_or("there is no workload fillregions")?;
        let opened = contender.open(place, 0)?;
        let store = opened.store;
        let looks = Arc::new(Mutex::new(Looks::new(self.records())));
        let watch = {
            let (looks, store) = (looks.clone(), store.clone());
            Watch::new(move |operations| {
                progress(operations);
                looks.lock().pass(operations, &*store);
            })
        };
        let plan = Plan {
            num: self.records(),
            key_size: KEY_BYTES,
            value_size: self.value_bytes,
            batch: self.batch,
            seed: self.seed,
            ..Plan::default()
        };
        let space = Arc::new(KeySpace::unknown(0, KeyOrder::Ordered));
        let watch = Arc::new(watch);
        let outcome = run(&store, workload, &plan, &space, &watch)?;
        let (growth, bounds) = looks.lock().end(&*store);
        // The store stays open as long as somebody holds it.
        drop((watch, store));
        let files = file_sizes::of(&place.dirs(0).0)?;
        place.clean(0);
        Ok(Run {
            store: contender.name.clone(),
            settings: opened.settings,
            num: self.num,
            value_bytes: self.value_bytes,
            batch: self.batch,
            outcome,
            growth,
            bounds,
            files,
        })
    }
}

/// Looks at a store's ranges while it is filled.
struct Looks {
    clock: SystemClock,
    records: u64,
    done: u64,
    growth: Vec<Moment>,
    bounds: Vec<Bounds>,
}

impl Looks {
    fn new(records: u64) -> Looks {
        Looks { clock: SystemClock::new(), records, done: 0, growth: Vec::new(), bounds: Vec::new() }
    }

    /// Notes that so many more records were written, and looks if it is time to.
    fn pass(&mut self, operations: u64, store: &dyn Store) {
        self.done += operations;
        if self.done * GROWTH_POINTS / self.records.max(1) >= self.growth.len() as u64 {
            let moment = self.moment(&store.partitions());
            self.growth.push(moment);
        }
        while self.is_beyond_a_middle(self.bounds.len() as u64) {
            let lowers = store.partitions();
            let moment = self.moment(&lowers);
            self.bounds.push(Bounds { moment, parts: parts_of(&lowers) });
        }
    }

    /// Whether half of that region, and all before it, are written.
    fn is_beyond_a_middle(&self, region: u64) -> bool {
        let regions = FOUR_REGIONS.len() as u64;
        region < regions && self.done * 2 * regions >= (2 * region + 1) * self.records
    }

    fn moment(&self, lowers: &[Vec<u8>]) -> Moment {
        let seconds = self.clock.now().as_secs_f64();
        Moment { seconds, records: self.done, partitions: lowers.len() as u64 }
    }

    /// Looks for the last time, and returns the observations.
    fn end(&mut self, store: &dyn Store) -> (Vec<Moment>, Vec<Bounds>) {
        // The last writes were not reported.
        self.pass(self.records - self.done.min(self.records), store);
        (std::mem::take(&mut self.growth), std::mem::take(&mut self.bounds))
    }
}

/// How many of the ranges that begin at `lowers` begin in each part of the key space.
fn parts_of(lowers: &[Vec<u8>]) -> Vec<u64> {
    let mut keys = KeyMaker::new(KEY_BYTES, KeyOrder::Ordered);
    let width = u64::MAX / PARTS as u64;
    // A range that begins before the first key counts for the first part.
    let edges: Vec<Vec<u8>> = (1..PARTS as u64).map(|part| keys.key(part * width).to_vec()).collect();
    let mut parts = vec![0; PARTS];
    lowers.iter().for_each(|lower| parts[edges.partition_point(|edge| edge <= lower)] += 1);
    parts
}

/// Runs in columns, with the slowest second as a share of the median one; below, how many ranges there were.
pub fn table(runs: &[Run]) -> String {
    let head = ["store", "records", "puts/s", "slowest s", "p99.9", "max", "WA tables", "WA"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        let outcome = &run.outcome;
        let ratio = |ratio: Option<f64>| ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
        vec![
            run.store.clone(),
            grouped(outcome.counts.operations),
            grouped(outcome.throughput() as u64),
            ratio(outcome.slowest_second()),
            nanos(outcome.latency.p999_ns),
            nanos(outcome.latency.max_ns),
            ratio(outcome.table_write_amplification()),
            ratio(outcome.ssd_write_amplification()),
        ]
    }));
    let mut text = columns(&rows);
    for run in runs.iter().filter(|run| run.is_cut()) {
        text.push_str(&format!("\n{}\n{}", run.store, ranges(run)));
    }
    let files: Vec<(&str, &[SizeClass])> = runs.iter().map(|r| (r.store.as_str(), &r.files[..])).collect();
    text.push('\n');
    text + &file_sizes::table(&files)
}

/// How many ranges of a store lay in each region in the middle of each.
fn ranges(run: &Run) -> String {
    let mut rows = vec![vec!["at records".to_string(), "seconds".to_string(), "buckets".to_string()]];
    rows[0].extend(FOUR_REGIONS.iter().map(|shape| shape.name().to_string()));
    for Bounds { moment, parts } in &run.bounds {
        let mut row =
            vec![grouped(moment.records), format!("{:.1}", moment.seconds), grouped(moment.partitions)];
        row.extend(parts.chunks(PARTS / FOUR_REGIONS.len()).map(|region| grouped(region.iter().sum())));
        rows.push(row);
    }
    columns(&rows)
}

impl Run {
    /// Whether the store has cut its keys into ranges.
    fn is_cut(&self) -> bool {
        self.growth.iter().any(|moment| moment.partitions > 0)
    }
}

/// Draws figure 2.7 of each run into the folder `dir`; the files made.
///
/// # Errors
/// Those of drawing and of writing files.
pub fn figures(runs: &[Run], dir: &Path) -> StoreResult<Vec<PathBuf>> {
    let mut made = Vec::new();
    for run in runs {
        made.extend(save(dir, &format!("regions-{}", file_name(&run.store)), 2, &panels(run))?);
    }
    Ok(made)
}

fn panels(run: &Run) -> Vec<Panel> {
    let slices = &run.outcome.timeline;
    let together = slices.len().div_ceil(POINTS).max(if slices.len() > 2 * SLICES { SLICES } else { 1 });
    let rates = rates(slices, together).into_iter().map(|(at, rate)| (at, rate / 1e3)).collect();
    let mut panels = vec![Panel::lines(
        format!("{}: writes", run.store),
        "seconds",
        "k puts/s",
        vec![(run.store.clone(), rates)],
    )];
    if !run.is_cut() {
        return panels;
    }
    let growth = run.growth.iter().map(|moment| (moment.seconds, moment.partitions as f64)).collect();
    panels.push(Panel::lines("Buckets".into(), "seconds", "buckets", vec![(run.store.clone(), growth)]));
    panels.extend(run.bounds.iter().map(|Bounds { moment, parts }| {
        let names = (0..PARTS).map(|part| match part % 15 {
            7 => FOUR_REGIONS[part / 15].name().to_string(),
            _ => String::new(),
        });
        Panel::Bars(Bars {
            title: format!("{} records: {} buckets", grouped(moment.records), grouped(moment.partitions)),
            y: "buckets in a 1/60 of the keys".into(),
            groups: names.collect(),
            series: vec![(String::new(), parts.iter().map(|count| Some(*count as f64)).collect())],
            log: false,
        })
    }));
    panels
}

/// A store's name as part of a file's name.
pub(crate) fn file_name(store: &str) -> String {
    store.chars().map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' }).collect()
}
