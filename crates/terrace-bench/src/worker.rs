//! One thread of a run: its operations, how long each took, and whether its reads found the records that they had to
//! find.
//!
//! An operation's latency is from the end of the one before it to its own end, as in db_bench: one reading of the clock
//! each.

use std::time::Duration;

use terrace_base::clock::Clock;
use terrace_base::rng::Rng;

use crate::keys::KeyMaker;
use crate::outcome::{Counts, Kind, Recorder};
use crate::pace::Pace;
use crate::run::Shared;
use crate::store::{Batch, Direction, Store, StoreResult};
use crate::stream::{Op, Stream};
use crate::trace::TraceOp;
use crate::workload::{Action, Mix};

/// Operations between two reports to the watch.
const REPORT_EVERY: u64 = 256;

/// The results of one thread.
pub(crate) struct Part {
    pub recorder: Recorder,
    pub counts: Counts,
    pub began: Duration,
    pub ended: Duration,
    pub short_scans: Vec<ShortScan>,
}

/// A scan that ended before it had as many records as it was asked for: right where there were no more.
pub(crate) struct ShortScan {
    /// The key that it began at.
    pub number: u64,
    pub asked: u32,
    pub seen: u32,
    /// Numbers below this one were there before it.
    pub visible: u64,
}

/// The result of a scan.
#[derive(Default)]
struct Scanned {
    records: u32,
    /// Whether the first was the key that was sought.
    is_first: bool,
}

pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    index: usize,
    keys: KeyMaker,
    recorder: Recorder,
    counts: Counts,
    short_scans: Vec<ShortScan>,
    /// Whether it is known how many records a scan must return.
    judges_scans: bool,
    /// When the last operation ended.
    last: Duration,
    deadline: Option<Duration>,
    pace: Option<Pace>,
    /// Operations the watch knows of.
    reported: u64,
}

impl Worker<'_> {
    /// A thread's whole life.
    pub fn live(shared: &Shared, index: usize, first: u64, operations: u64) {
        shared.start.wait();
        let began = shared.clock.now();
        let mut worker = Worker {
            shared,
            index,
            keys: KeyMaker::new(shared.plan.key_size, shared.space.order()),
            recorder: Recorder::default(),
            counts: Counts::default(),
            short_scans: Vec::new(),
            judges_scans: false,
            last: began,
            deadline: shared.plan.duration.map(|d| began + d),
            pace: shared
                .plan
                .rate
                .map(|rate| Pace::new(rate as f64 / shared.plan.threads.max(1) as f64, began)),
            reported: 0,
        };
        let result = worker.work(first, operations);
        if result.is_err() {
            shared.watch.stop();
        }
        let Worker { recorder, counts, short_scans, last, .. } = worker;
        let part = Part { recorder, counts, began, ended: last, short_scans };
        shared.done.lock().push(result.map(|()| part));
    }

    fn work(&mut self, first: u64, operations: u64) -> StoreResult<()> {
        match self.shared.action {
            Action::Operations { mix, .. } => self.operate(mix, first, operations),
            Action::MultiRead(_) => self.read_many(first, operations),
            Action::Walk(direction) => self.walk(direction, operations),
            Action::Replay => self.replay(),
            Action::Flush => self.upkeep(|store| store.flush()),
            Action::Compact => self.upkeep(|store| store.compact()),
        }
    }

    fn operate(&mut self, mix: Mix, first: u64, operations: u64) -> StoreResult<()> {
        let Some(mut stream) = self.shared.draw.stream(self.index, first) else { return Ok(()) };
        if mix.delete > 0 {
            self.shared.space.forget();
        }
        self.judges_scans = mix.only_adds() && self.shared.space.is_known();
        if self.shared.batch > 1 {
            return self.operate_in_batches(&mut stream, operations);
        }
        for _ in 0..operations {
            let kind = self.execute(&mut stream)?;
            if let Some(tally) = &self.shared.plan.tally {
                tally.note(self.index, self.shared.draw.seed, self.counts.operations + 1)?;
            }
            if !self.ended(kind, 1) {
                break;
            }
        }
        Ok(())
    }

    fn operate_in_batches(&mut self, stream: &mut Stream, operations: u64) -> StoreResult<()> {
        let mut batch = Batch::default();
        let (mut inserted, mut updated) = (Vec::new(), Vec::new());
        let mut left = operations;
        while left > 0 {
            batch.clear();
            let size = left.min(self.shared.batch as u64);
            for _ in 0..size {
                match self.collect(stream, &mut batch) {
                    Op::Insert(number) => inserted.push(number),
                    Op::Update(number) => updated.push(number),
                    _ => {}
                }
            }
            self.shared.store.write_batch(&batch)?;
            inserted.drain(..).for_each(|number| stream.acknowledge(number));
            updated.drain(..).for_each(|number| self.shared.space.written(number));
            left -= size;
            if !self.ended(Kind::Batch, size) {
                break;
            }
        }
        Ok(())
    }

    fn collect(&mut self, stream: &mut Stream, batch: &mut Batch) -> Op {
        let op = stream.next_op();
        if let Op::Delete(number) = op {
            let key = self.keys.key(number);
            self.counts.bytes_written += key.len() as u64;
            batch.delete(key);
        } else if let Op::Update(number) | Op::Insert(number) = op {
            self.shared.space.begin(number);
            let (key, value) = (self.keys.key(number), self.shared.draw.values.value(stream.random()));
            self.counts.bytes_written += (key.len() + value.len()) as u64;
            batch.put(key, value);
        }
        op
    }

    fn execute(&mut self, stream: &mut Stream) -> StoreResult<Kind> {
        Ok(match stream.next_op() {
            Op::Read(number) => {
                self.read(number)?;
                Kind::Read
            }
            Op::ReadAbsent(number) => {
                self.read_absent(number)?;
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
                self.read(number)?;
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
                // This one is there until it is removed below, so there is a first one.
                self.counts.due += 1;
                let first = scan(&*self.shared.store, None, 1, &mut self.counts)?;
                self.counts.lost += u64::from(first.records == 0);
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

    fn replay(&mut self) -> StoreResult<()> {
        let Some(trace) = self.shared.plan.trace.clone() else {
            return Err("replay needs a trace".into());
        };
        let mut rng = Rng::new(self.shared.draw.seed);
        for (key, op) in trace.share(self.index, self.shared.plan.threads.max(1)) {
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
                store.put(key, self.shared.draw.values.value_of(pick, bytes as usize))?;
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

    fn read(&mut self, number: u64) -> StoreResult<()> {
        let due = self.shared.space.must_hold(number);
        let found = look_up(&*self.shared.store, self.keys.key(number), &mut self.counts)?;
        self.judge(number, due, found);
        Ok(())
    }

    fn read_many(&mut self, first: u64, operations: u64) -> StoreResult<()> {
        let Some(mut stream) = self.shared.draw.stream(self.index, first) else { return Ok(()) };
        let size = self.shared.plan.multi_keys.max(1);
        let (mut numbers, mut keys) = (Vec::with_capacity(size), vec![0; size * self.shared.plan.key_size]);
        let mut left = operations;
        while left > 0 {
            numbers.clear();
            for key in keys.chunks_mut(self.shared.plan.key_size).take(left.min(size as u64) as usize) {
                let Op::Read(number) = stream.next_op() else { continue };
                key.copy_from_slice(self.keys.key(number));
                numbers.push((number, self.shared.space.must_hold(number)));
            }
            let found = {
                let keys: Vec<&[u8]> = keys.chunks(self.shared.plan.key_size).take(numbers.len()).collect();
                look_up_many(&*self.shared.store, &keys, &mut self.counts)?
            };
            for (&(number, due), found) in numbers.iter().zip(found) {
                self.judge(number, due, found);
            }
            left -= numbers.len() as u64;
            if !self.ended(Kind::MultiRead, numbers.len() as u64) {
                break;
            }
        }
        Ok(())
    }

    fn read_absent(&mut self, number: u64) -> StoreResult<()> {
        let found = look_up(&*self.shared.store, self.keys.absent(number), &mut self.counts)?;
        self.counts.unwritten += u64::from(found);
        Ok(())
    }

    /// Notes whether `number`, which had to be there before it was looked for if it was `due`, was found.
    fn judge(&mut self, number: u64, due: bool, found: bool) {
        let space = &self.shared.space;
        // It may have been taken away meanwhile.
        if due && space.must_hold(number) {
            self.counts.due += 1;
            self.counts.lost += u64::from(!found);
        }
        self.counts.unwritten += u64::from(found && !space.may_hold(number));
    }

    fn write(&mut self, number: u64, stream: &mut Stream) -> StoreResult<()> {
        self.shared.space.begin(number);
        let (key, value) = (self.keys.key(number), self.shared.draw.values.value(stream.random()));
        self.counts.bytes_written += (key.len() + value.len()) as u64;
        self.shared.store.put(key, value)?;
        self.shared.space.written(number);
        Ok(())
    }

    fn scan(&mut self, number: u64, asked: u32) -> StoreResult<()> {
        let space = &self.shared.space;
        let (due, visible) = (space.must_hold(number), space.visible());
        let seen = scan(&*self.shared.store, Some(self.keys.key(number)), asked, &mut self.counts)?;
        self.judge(number, due, seen.is_first);
        if seen.records < asked && self.judges_scans {
            self.short_scans.push(ShortScan { number, asked, seen: seen.records, visible });
        }
        Ok(())
    }

    fn walk(&mut self, direction: Direction, most: u64) -> StoreResult<()> {
        let store = self.shared.store.clone();
        let (mut seen, mut may_go_on) = (0, true);
        store.scan(None, direction, &mut |key, value| {
            seen += 1;
            self.counts.scanned += 1;
            self.counts.bytes_read += key.len() as u64 + touch(value);
            may_go_on = self.ended(Kind::Step, 1);
            may_go_on && seen < most
        })?;
        if may_go_on && self.shared.space.is_known() {
            let due = self.shared.space.count().min(most);
            self.counts.due += due;
            self.counts.lost += due.saturating_sub(seen);
        }
        Ok(())
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
        if let Some(wait) = self.pace.as_mut().and_then(|pace| pace.wait(operations, now)) {
            self.shared.clock.sleep(wait);
            // The wait does not count for the next operation.
            self.last = self.shared.clock.now();
        }
        !self.shared.watch.is_stopped() && self.deadline.is_none_or(|deadline| now < deadline)
    }
}

fn look_up(store: &dyn Store, key: &[u8], counts: &mut Counts) -> StoreResult<bool> {
    let mut bytes = 0;
    let found = store.get(key, &mut |value| bytes = touch(value))?;
    counts.found += u64::from(found);
    counts.missing += u64::from(!found);
    counts.bytes_read += bytes;
    Ok(found)
}

/// Whether each of `keys` was found.
fn look_up_many(store: &dyn Store, keys: &[&[u8]], counts: &mut Counts) -> StoreResult<Vec<bool>> {
    let mut found = Vec::with_capacity(keys.len());
    store.multi_get(keys, &mut |value| {
        counts.found += u64::from(value.is_some());
        counts.missing += u64::from(value.is_none());
        counts.bytes_read += value.map_or(0, touch);
        found.push(value.is_some());
    })?;
    Ok(found)
}

fn scan(store: &dyn Store, from: Option<&[u8]>, asked: u32, counts: &mut Counts) -> StoreResult<Scanned> {
    let (mut seen, mut bytes) = (Scanned::default(), 0u64);
    store.scan(from, Direction::Forward, &mut |key, value| {
        seen.is_first |= seen.records == 0 && from == Some(key);
        seen.records += 1;
        bytes += key.len() as u64 + touch(value);
        seen.records < asked
    })?;
    counts.scanned += u64::from(seen.records);
    counts.bytes_read += bytes;
    Ok(seen)
}

/// Reads from both ends of `value`, so that no store is spared fetching it, and gives its length.
fn touch(value: &[u8]) -> u64 {
    std::hint::black_box((value.first().copied(), value.last().copied()));
    value.len() as u64
}
