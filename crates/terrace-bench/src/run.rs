//! One workload on one store by several threads, measured.
//!
//! Every thread has its own operations, key buffer, random numbers and histograms; they share the
//! store, the value bytes and the key space. An operation's latency is from the end of the one before
//! it to its own end, as in db_bench: one reading of the clock each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::checksum::hash64;
use terrace_base::clock::{Clock, SystemClock};
use terrace_base::exec::{Executor, ThreadPool};
use terrace_base::rng::Rng;

use crate::keys::KeyMaker;
use crate::outcome::{Counts, Kind, Outcome, Recorder};
use crate::space::KeySpace;
use crate::store::{Batch, Direction, Store, StoreResult};
use crate::stream::{Op, Stream, StreamMaker};
use crate::trace::{Trace, TraceOp};
use crate::values::ValuePool;
use crate::workload::{Action, ONE_RECORD, Workload};

/// How long and how large a run is. The totals are of all threads together.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Records that a fill writes, and operations of everything else.
    pub num: u64,
    /// Operations of workloads that do not fill; `num` if absent.
    pub reads: Option<u64>,
    /// Runs workloads that do not fill for this long, whatever their number of operations.
    pub duration: Option<Duration>,
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
    /// Writes made at once by workloads that only write; 1 for single puts.
    pub batch: usize,
    /// What the random numbers start from.
    pub seed: u64,
    /// What `replay` replays.
    pub trace: Option<Arc<Trace>>,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            num: 1_000_000,
            reads: None,
            duration: None,
            threads: 1,
            key_size: 16,
            value_size: 100,
            random_share: 0.5,
            seek_records: 1,
            batch: 1,
            seed: 1,
            trace: None,
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

/// A run's line to whoever waits for it.
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

    fn progress(&self, operations: u64) {
        if let Some(call) = &self.on_progress {
            call(operations);
        }
    }
}

/// Operations between two reports to [`Watch`].
const REPORT_EVERY: u64 = 256;

struct Shared {
    store: Arc<dyn Store>,
    plan: Plan,
    action: Action,
    batch: usize,
    streams: Option<StreamMaker>,
    values: ValuePool,
    space: Arc<KeySpace>,
    watch: Arc<Watch>,
    clock: SystemClock,
    start: Barrier,
    done: Mutex<Vec<StoreResult<Part>>>,
}

/// What one thread did.
struct Part {
    recorder: Recorder,
    counts: Counts,
    began: Duration,
    ended: Duration,
}

/// Runs `workload` on `store`, whose keys are those of `space`, and says what came of it.
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
        pool.spawn(Box::new(move || shared.work(index, first, operations)));
    }
    drop(pool); // Joins the threads.
    let parts = std::mem::take(&mut *shared.done.lock());
    if parts.len() != threads {
        return Err("a benchmark thread panicked".into());
    }
    let parts = parts.into_iter().collect::<StoreResult<Vec<Part>>>()?;
    Ok(outcome(workload, &parts, store.stats().since(&before), watch.is_stopped()))
}

/// Splits `total` operations: where each thread's stretch begins, and its length.
fn shares(total: u64, threads: usize) -> Vec<(u64, u64)> {
    let threads = threads as u64;
    let (each, more) = (total / threads, total % threads);
    (0..threads).map(|t| (t * each + t.min(more), each + u64::from(t < more))).collect()
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
        let longest = plan.trace.as_ref().map_or(0, |trace| trace.longest_value()).max(plan.value_size);
        let streams = match workload.action {
            Action::Operations { mix, keys, scan_records } => {
                let operations = plan.operations(workload);
                let expected = if operations == u64::MAX { 0 } else { operations };
                let fill = workload.fills().then_some(plan.num);
                let seek = (plan.seek_records, plan.seek_records);
                let scan_records = if scan_records == ONE_RECORD { seek } else { scan_records };
                Some(StreamMaker::new(mix, keys, scan_records, space.clone(), expected, fill))
            }
            _ => None,
        };
        Shared {
            store: store.clone(),
            plan: Plan {
                duration: plan.duration.filter(|_| !workload.fills()),
                // Else what is read would be what was written, in the same order.
                seed: plan.seed ^ hash64(workload.name.as_bytes()),
                ..plan.clone()
            },
            action: workload.action,
            batch: if workload.only_writes() { plan.batch.max(1) } else { 1 },
            streams,
            values: match workload.action {
                Action::Replay => ValuePool::new(longest, plan.random_share, plan.seed),
                _ => ValuePool::mixed(workload.sizes, plan.value_size, plan.random_share, plan.seed),
            },
            space: space.clone(),
            watch: watch.clone(),
            clock: SystemClock::new(),
            start: Barrier::new(threads),
            done: Mutex::default(),
        }
    }

    /// A thread's whole life.
    fn work(&self, index: usize, first: u64, operations: u64) {
        self.start.wait();
        let began = self.clock.now();
        let mut worker = Worker {
            shared: self,
            keys: KeyMaker::new(self.plan.key_size, self.space.order()),
            recorder: Recorder::default(),
            counts: Counts::default(),
            last: began,
            deadline: self.plan.duration.map(|d| began + d),
            reported: 0,
        };
        let result = match self.action {
            Action::Operations { .. } => worker.operate(index, first, operations),
            Action::Walk(direction) => worker.walk(direction, operations),
            Action::Replay => worker.replay(index),
            Action::Flush => worker.upkeep(|store| store.flush()),
            Action::Compact => worker.upkeep(|store| store.compact()),
        };
        if result.is_err() {
            self.watch.stop();
        }
        let Worker { recorder, counts, last, .. } = worker;
        self.done.lock().push(result.map(|()| Part { recorder, counts, began, ended: last }));
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    keys: KeyMaker,
    recorder: Recorder,
    counts: Counts,
    /// When the last operation ended.
    last: Duration,
    deadline: Option<Duration>,
    /// Operations the watch knows of.
    reported: u64,
}

impl Worker<'_> {
    fn operate(&mut self, index: usize, first: u64, operations: u64) -> StoreResult<()> {
        let Some(streams) = &self.shared.streams else { return Ok(()) };
        // Far apart, so that threads do not draw alike.
        let seed = Rng::new(self.shared.plan.seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut stream = streams.stream(seed.clone().next_u64(), first);
        if self.shared.batch > 1 {
            return self.operate_in_batches(&mut stream, operations);
        }
        for _ in 0..operations {
            let kind = self.execute(&mut stream)?;
            if !self.ended(kind, 1) {
                break;
            }
        }
        Ok(())
    }

    fn operate_in_batches(&mut self, stream: &mut Stream, operations: u64) -> StoreResult<()> {
        let mut batch = Batch::default();
        let mut inserted = Vec::new();
        let mut left = operations;
        while left > 0 {
            batch.clear();
            let size = left.min(self.shared.batch as u64);
            for _ in 0..size {
                self.collect(stream, &mut batch, &mut inserted);
            }
            self.shared.store.write_batch(&batch)?;
            inserted.drain(..).for_each(|number| stream.acknowledge(number));
            left -= size;
            if !self.ended(Kind::Batch, size) {
                break;
            }
        }
        Ok(())
    }

    fn collect(&mut self, stream: &mut Stream, batch: &mut Batch, inserted: &mut Vec<u64>) {
        let op = stream.next_op();
        if let Op::Delete(number) = op {
            let key = self.keys.key(number);
            self.counts.bytes_written += key.len() as u64;
            batch.delete(key);
        } else if let Op::Update(number) | Op::Insert(number) = op {
            let (key, value) = (self.keys.key(number), self.shared.values.value(stream.random()));
            self.counts.bytes_written += (key.len() + value.len()) as u64;
            batch.put(key, value);
            if let Op::Insert(number) = op {
                inserted.push(number);
            }
        }
    }

    fn execute(&mut self, stream: &mut Stream) -> StoreResult<Kind> {
        Ok(match stream.next_op() {
            Op::Read(number) => {
                self.read(number, false)?;
                Kind::Read
            }
            Op::ReadAbsent(number) => {
                self.read(number, true)?;
                Kind::Read
            }
            Op::Update(number) => {
                self.write(number, stream)?;
                Kind::Update
            }
            Op::Insert(number) => {
                self.write(number, stream)?;
                stream.acknowledge(number);
                Kind::Insert
            }
            Op::Modify(number) => {
                self.read(number, false)?;
                self.write(number, stream)?;
                Kind::Modify
            }
            Op::Scan(number, records) => {
                self.scan(number, records)?;
                Kind::Scan
            }
            Op::Delete(number) | Op::Expire(number) => {
                self.delete(number)?;
                Kind::Delete
            }
            Op::Pop(number) => {
                scan(&*self.shared.store, None, 1, &mut self.counts)?;
                self.delete(number)?;
                Kind::Modify
            }
        })
    }

    fn delete(&mut self, number: u64) -> StoreResult<()> {
        let key = self.keys.key(number);
        self.counts.bytes_written += key.len() as u64;
        self.shared.store.delete(key)
    }

    fn replay(&mut self, index: usize) -> StoreResult<()> {
        let Some(trace) = self.shared.plan.trace.clone() else {
            return Err("replay needs a trace".into());
        };
        let mut rng = Rng::new(self.shared.plan.seed);
        for (key, op) in trace.share(index, self.shared.plan.threads.max(1)) {
            let kind = self.follow(key, op, rng.next_u64())?;
            if !self.ended(kind, 1) {
                break;
            }
        }
        Ok(())
    }

    fn follow(&mut self, key: &[u8], op: TraceOp, pick: u64) -> StoreResult<Kind> {
        let store = &self.shared.store;
        Ok(match op {
            TraceOp::Put(bytes) => {
                self.counts.bytes_written += key.len() as u64 + u64::from(bytes);
                store.put(key, self.shared.values.value_of(pick, bytes as usize))?;
                Kind::Update
            }
            TraceOp::Get => {
                look_up(&**store, key, &mut self.counts)?;
                Kind::Read
            }
            TraceOp::Delete => {
                self.counts.bytes_written += key.len() as u64;
                store.delete(key)?;
                Kind::Delete
            }
            TraceOp::Scan(records) => {
                scan(&**store, Some(key), records, &mut self.counts)?;
                Kind::Scan
            }
        })
    }

    fn read(&mut self, number: u64, absent: bool) -> StoreResult<()> {
        let key = if absent { self.keys.absent(number) } else { self.keys.key(number) };
        look_up(&*self.shared.store, key, &mut self.counts)
    }

    fn write(&mut self, number: u64, stream: &mut Stream) -> StoreResult<()> {
        let (key, value) = (self.keys.key(number), self.shared.values.value(stream.random()));
        self.counts.bytes_written += (key.len() + value.len()) as u64;
        self.shared.store.put(key, value)
    }

    fn scan(&mut self, number: u64, records: u32) -> StoreResult<()> {
        scan(&*self.shared.store, Some(self.keys.key(number)), records, &mut self.counts)
    }

    fn walk(&mut self, direction: Direction, most: u64) -> StoreResult<()> {
        let store = self.shared.store.clone();
        let mut left = most;
        store.scan(None, direction, &mut |key, value| {
            self.counts.scanned += 1;
            self.counts.bytes_read += key.len() as u64 + touch(value);
            left = left.saturating_sub(1);
            self.ended(Kind::Step, 1) && left > 0
        })
    }

    fn upkeep(&mut self, work: impl Fn(&dyn Store) -> StoreResult<()>) -> StoreResult<()> {
        work(&*self.shared.store)?;
        self.ended(Kind::Upkeep, 1);
        Ok(())
    }

    /// Notes that `operations` took until now; false if it is time to stop.
    fn ended(&mut self, kind: Kind, operations: u64) -> bool {
        let now = self.shared.clock.now();
        self.recorder.ended(kind, operations, now.saturating_sub(self.last), now);
        self.last = now;
        self.counts.operations += operations;
        let done = self.counts.operations;
        if done - self.reported >= REPORT_EVERY {
            self.shared.watch.progress(done - self.reported);
            self.reported = done;
        }
        !self.shared.watch.is_stopped() && self.deadline.is_none_or(|deadline| now < deadline)
    }
}

fn look_up(store: &dyn Store, key: &[u8], counts: &mut Counts) -> StoreResult<()> {
    let mut bytes = 0;
    if store.get(key, &mut |value| bytes = touch(value))? {
        counts.found += 1;
    } else {
        counts.missing += 1;
    }
    counts.bytes_read += bytes;
    Ok(())
}

fn scan(store: &dyn Store, from: Option<&[u8]>, records: u32, counts: &mut Counts) -> StoreResult<()> {
    let (mut seen, mut bytes) = (0u32, 0u64);
    store.scan(from, Direction::Forward, &mut |key, value| {
        seen += 1;
        bytes += key.len() as u64 + touch(value);
        seen < records
    })?;
    counts.scanned += u64::from(seen);
    counts.bytes_read += bytes;
    Ok(())
}

/// Reads from both ends of `value`, so that no store is spared fetching it, and gives its length.
fn touch(value: &[u8]) -> u64 {
    std::hint::black_box((value.first(), value.last()));
    value.len() as u64
}
