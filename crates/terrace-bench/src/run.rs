//! One workload on one store by several threads, measured.
//!
//! Every thread has its own operations, key buffer, random numbers and histograms; they share the store, the value
//! bytes and the key space. A run whose reads missed records that they had to find has no outcome: it ends with an
//! error that says how many.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::clock::SystemClock;
use terrace_base::exec::{Executor, ThreadPool};

use crate::draw::{Draw, shares};
use crate::keys::KeyMaker;
use crate::outcome::{Counts, Outcome, Recorder};
use crate::report::grouped;
use crate::space::KeySpace;
use crate::store::{Store, StoreResult};
use crate::tally::Tally;
use crate::trace::Trace;
use crate::worker::{Part, ShortScan, Worker};
use crate::workload::{Action, Workload};

/// How long and how large a run is. The totals are of all threads together.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Records that a fill writes, and operations of everything else.
    pub num: u64,
    /// Operations of workloads that do not fill; `num` if absent.
    pub reads: Option<u64>,
    /// Runs workloads that do not fill for this long, whatever their number of operations.
    pub duration: Option<Duration>,
    /// Operations a second of all threads together, at most.
    pub rate: Option<u64>,
    /// Threads.
    pub threads: usize,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Share of a value's bytes that cannot be compressed away, 0 to 1.
    pub random_share: f64,
    /// Records that a seek of `seekrandom` reads.
    pub seek_records: u32,
    /// Keys of each read of `multireadrandom`.
    pub multi_keys: usize,
    /// Writes made at once by workloads that only write; 1 for single puts.
    pub batch: usize,
    /// The seed of random numbers.
    pub seed: u64,
    /// The trace that `replay` replays.
    pub trace: Option<Arc<Trace>>,
    /// Where threads note the operations that were acknowledged, to be read after they were killed.
    pub tally: Option<Arc<Tally>>,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            num: 1_000_000,
            reads: None,
            duration: None,
            rate: None,
            threads: 1,
            key_size: 16,
            value_size: 100,
            random_share: 0.5,
            seek_records: 1,
            multi_keys: 32,
            batch: 1,
            seed: 1,
            trace: None,
            tally: None,
        }
    }
}

impl Plan {
    /// Operations of `workload`, all threads together.
    pub fn operations(&self, workload: &Workload) -> u64 {
        if workload.action == Action::Replay {
            return self.trace.as_ref().map_or(0, |trace| trace.len() as u64);
        }
        match (workload.fills(), self.duration) {
            (true, _) => self.num,
            (false, Some(_)) => u64::MAX,
            (false, None) => self.reads.unwrap_or(self.num),
        }
    }
}

/// A run's connection to its caller.
#[derive(Default)]
pub struct Watch {
    stop: AtomicBool,
    on_progress: Option<Box<dyn Fn(u64) + Send + Sync>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("stop", &self.stop).finish_non_exhaustive()
    }
}

impl Watch {
    /// Calls `on_progress` from the threads at work, now and then, with the operations done since its
    /// last call.
    pub fn new(on_progress: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Watch { stop: AtomicBool::new(false), on_progress: Some(Box::new(on_progress)) }
    }

    /// Asks the threads to stop soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether they were asked to.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn progress(&self, operations: u64) {
        if let Some(call) = &self.on_progress {
            call(operations);
        }
    }
}

/// The state that the threads of a run share.
pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    pub plan: Plan,
    pub action: Action,
    pub batch: usize,
    pub draw: Draw,
    pub space: Arc<KeySpace>,
    pub watch: Arc<Watch>,
    pub clock: SystemClock,
    pub start: Barrier,
    pub done: Mutex<Vec<StoreResult<Part>>>,
}

/// Runs `workload` on `store`, whose keys are those of `space`; returns the outcome.
pub fn run(
    store: &Arc<dyn Store>,
    workload: &Workload,
    plan: &Plan,
    space: &Arc<KeySpace>,
    watch: &Arc<Watch>,
) -> StoreResult<Outcome> {
    let threads = match workload.action {
        Action::Flush | Action::Compact => 1,
        _ => plan.threads.max(1),
    };
    let shared = Arc::new(Shared::new(store, workload, plan, space, watch, threads));
    let before = store.stats();
    let pool = ThreadPool::new("bench", threads);
    for (index, (first, operations)) in shares(plan.operations(workload), threads).into_iter().enumerate() {
        let shared = shared.clone();
        pool.spawn(Box::new(move || Worker::live(&shared, index, first, operations)));
    }
    drop(pool); // Joins the threads.
    let parts = std::mem::take(&mut *shared.done.lock());
    if parts.len() != threads {
        return Err("a benchmark thread panicked".into());
    }
    let parts = parts.into_iter().collect::<StoreResult<Vec<Part>>>()?;
    let mut outcome = outcome(workload, &parts, store.stats().since(&before), watch.is_stopped());
    let short = parts.iter().flat_map(|part| &part.short_scans);
    outcome.counts.lost += records_missing(short, space, &KeyMaker::new(plan.key_size, space.order()));
    judge(&outcome)?;
    Ok(outcome)
}

/// Records that are missing from scans that ended too early.
fn records_missing<'a>(scans: impl Iterator<Item = &'a ShortScan>, space: &KeySpace, keys: &KeyMaker) -> u64 {
    let mut scans = scans.peekable();
    if scans.peek().is_none() {
        return 0;
    }
    let there = space.in_key_order(keys);
    let missing = |scan: &ShortScan| {
        let from = there.partition_point(|&(place, _)| place < keys.place(scan.number));
        // A scan may or may not see records that are inserted meanwhile.
        let due = there[from..].iter().filter(|&&(_, number)| number < scan.visible);
        due.take(scan.asked as usize).count().saturating_sub(scan.seen as usize) as u64
    };
    scans.map(missing).sum()
}

/// Refuses an outcome whose reads missed records that they had to find, or found some that nobody wrote.
fn judge(outcome: &Outcome) -> Result<(), String> {
    let (name, counts) = (&outcome.name, &outcome.counts);
    let (lost, due, unwritten) = (grouped(counts.lost), grouped(counts.due), grouped(counts.unwritten));
    match (counts.lost, counts.unwritten) {
        (0, 0) => Ok(()),
        (0, _) => Err(format!("{name}: {unwritten} reads found a record that was never written")),
        _ => Err(format!("{name}: {lost} records were not found, of {due} that had to be")),
    }
}

fn outcome(workload: &Workload, parts: &[Part], store: crate::StoreStats, interrupted: bool) -> Outcome {
    let mut recorder = Recorder::default();
    let mut counts = Counts::default();
    for part in parts {
        recorder.merge(&part.recorder);
        counts.add(&part.counts);
    }
    let began = parts.iter().map(|p| p.began).min().unwrap_or_default();
    let ended = parts.iter().map(|p| p.ended).max().unwrap_or_default();
    Outcome {
        name: workload.name.to_string(),
        threads: parts.len(),
        counts,
        elapsed: ended.saturating_sub(began),
        latency: recorder.overall(),
        by_kind: recorder.by_kind(),
        curve: recorder.curve(),
        timeline: recorder.timeline(began),
        stalled: recorder.stalled(),
        delayed: recorder.delayed(),
        store,
        interrupted,
    }
}

impl Shared {
    fn new(
        store: &Arc<dyn Store>,
        workload: &Workload,
        plan: &Plan,
        space: &Arc<KeySpace>,
        watch: &Arc<Watch>,
        threads: usize,
    ) -> Self {
        Shared {
            store: store.clone(),
            plan: Plan {
                duration: plan.duration.filter(|_| !workload.fills()),
                // All records were acknowledged by the fill.
                tally: plan.tally.clone().filter(|_| !workload.fills()),
                ..plan.clone()
            },
            action: workload.action,
            batch: if workload.only_writes() { plan.batch.max(1) } else { 1 },
            draw: Draw::new(workload, plan, space),
            space: space.clone(),
            watch: watch.clone(),
            clock: SystemClock::new(),
            start: Barrier::new(threads),
            done: Mutex::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyOrder;

    #[test]
    fn a_scan_may_end_where_the_records_do_and_not_before() {
        for order in [KeyOrder::Ordered, KeyOrder::Hashed] {
            let (space, keys) = (KeySpace::new(100, order), KeyMaker::new(16, order));
            // Inserted while the scans ran: they may see it.
            space.acknowledge(space.reserve());
            let there = space.in_key_order(&keys);
            let (tenth_last, old) = {
                let old: Vec<u64> = there.iter().map(|pair| pair.1).filter(|&number| number < 100).collect();
                (old[90], old.len())
            };
            assert_eq!((there.len(), old), (101, 100));
            let missing = |asked, seen| {
                let scan = ShortScan { number: tenth_last, asked, seen, visible: 100 };
                records_missing([scan].iter(), &space, &keys)
            };
            assert_eq!([missing(30, 10), missing(30, 11), missing(30, 9), missing(30, 0)], [0, 0, 1, 10]);
            assert_eq!(missing(4, 1), 3);
        }
    }
}
