//! One kind of operation on one index by several threads, measured.
//!
//! Threads work through interleaved or adjacent shares of the numbers in blocks of 64 operations. The first of a block
//! is timed by itself; all the rest run back to back, so that the clock costs less than a nanosecond an operation. The
//! results of reads are compared with the pairs that were written.

use std::str::FromStr;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use terrace_base::clock::{Clock, SystemClock};
use terrace_base::exec::{Executor, ThreadPool};
use terrace_base::{Error, Result};
use terrace_index::ScanBatch;
use terrace_pmem::{PmStats, Pool};

use super::pairs::{ABSENT_FROM, PairKeys, Pairs, Permutation};
use super::phase_outcome::{PhaseOutcome, Point};
use super::subject::Subject;
use crate::outcome::{Latency, empty};

/// Operations of which one is timed.
const BLOCK: u64 = 64;

/// Inserts between two points of the timeline.
const POINT_EVERY: u64 = 1_000_000;

/// The kinds of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// New pairs.
    Insert,
    /// Reads of keys that are there.
    Read,
    /// Reads of keys that are not.
    Miss,
    /// New words for keys that are there.
    Update,
    /// Scans from keys that are there.
    Scan,
    /// Removals of keys that are there.
    Delete,
}

impl Op {
    /// The kinds by name.
    pub const ALL: [(&'static str, Op); 6] = [
        ("insert", Op::Insert),
        ("read", Op::Read),
        ("miss", Op::Miss),
        ("update", Op::Update),
        ("scan", Op::Scan),
        ("delete", Op::Delete),
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, op)| *op == self).map_or("", |(name, _)| name)
    }
}

impl FromStr for Op {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Op, ()> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, op)| *op).ok_or(())
    }
}

/// The pairs that a phase works on.
#[derive(Debug, Clone)]
pub struct Ground {
    /// The shape of pairs.
    pub pairs: Pairs,
    /// The numbers that are there.
    pub live: std::ops::Range<u64>,
    /// Increased by each update of all pairs; part of the words.
    pub round: u64,
    /// Pairs a scan asks for.
    pub scan: usize,
    /// Keys that reads announce before they read them.
    pub ahead: u64,
}

impl Ground {
    /// The word of `number` after so many rounds of updates.
    #[inline]
    fn word(&self, number: u64) -> u64 {
        self.round << 48 | (number + 1)
    }
}

/// One thread's part.
struct Share {
    /// First operation of this thread.
    first: u64,
    /// From one to the next: 1, or the number of threads where they are interleaved.
    stride: u64,
    count: u64,
}

/// A thread's results.
#[derive(Default)]
struct Seen {
    wrong: u64,
    scanned: u64,
    longest_block: Duration,
    latency: Option<Histogram<u64>>,
    timeline: Vec<Point>,
}

struct Worker<S> {
    subject: Arc<S>,
    clock: Arc<SystemClock>,
    ground: Ground,
    keys: PairKeys,
    batch: ScanBatch,
    seen: Seen,
}

/// Runs `count` operations of one kind by `threads` threads.
pub fn run_phase<S: Subject>(
    subject: &Arc<S>,
    pool: &Pool,
    ground: &Ground,
    op: Op,
    count: u64,
    threads: usize,
) -> Result<PhaseOutcome> {
    let clock = Arc::new(SystemClock::new());
    let results: Arc<Mutex<Vec<Result<Seen>>>> = Arc::default();
    let barrier = Arc::new(Barrier::new(threads + 1));
    let workers = ThreadPool::new("bench", threads);
    for t in 0..threads as u64 {
        let share = share_of(op, t, threads as u64, count);
        let mut worker = Worker {
            subject: subject.clone(),
            clock: clock.clone(),
            ground: ground.clone(),
            keys: PairKeys::new(ground.pairs),
            batch: ScanBatch::new(),
            seen: Seen::default(),
        };
        let (results, barrier) = (results.clone(), barrier.clone());
        workers.spawn(Box::new(move || {
            barrier.wait();
            let done = worker.run(op, &share, t == 0);
            results.lock().push(done.map(|()| worker.seen));
        }));
    }
    let before = pool.stats();
    let start = clock.now();
    barrier.wait();
    // Joins the threads.
    drop(workers);
    let elapsed = clock.now() - start;
    let stats = pool.stats().since(&before);
    let seen = std::mem::take(&mut *results.lock());
    if seen.len() != threads {
        return Err(Error::invalid("a measuring thread has panicked"));
    }
    let seen = seen.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(gather(op, threads, count, elapsed, &stats, seen))
}

fn share_of(op: Op, t: u64, threads: u64, count: u64) -> Share {
    let own = count / threads + u64::from(t < count % threads);
    match op {
        // Interleaved, so that the inserted numbers grow as one range.
        Op::Insert => Share { first: t, stride: threads, count: own },
        _ => Share { first: t * (count / threads) + t.min(count % threads), stride: 1, count: own },
    }
}

fn gather(
    op: Op,
    threads: usize,
    operations: u64,
    elapsed: Duration,
    stats: &PmStats,
    seen: Vec<Seen>,
) -> PhaseOutcome {
    let mut latency = empty();
    let (mut wrong, mut scanned, mut longest, mut timeline) = (0, 0, Duration::ZERO, Vec::new());
    for thread in seen {
        wrong += thread.wrong;
        scanned += thread.scanned;
        longest = longest.max(thread.longest_block);
        timeline.extend(thread.timeline);
        if let Some(own) = thread.latency {
            // Cannot fail: all have the same bounds.
            let _ = latency.add(own);
        }
    }
    PhaseOutcome {
        op,
        threads,
        operations,
        seconds: elapsed.as_secs_f64(),
        wrong,
        scanned,
        latency: Latency::of(&latency),
        longest_block_ns: longest.as_nanos() as u64,
        xpline_writes: stats.xpline_writes,
        xpline_reads: stats.xpline_reads,
        drains: stats.drains,
        bytes_flushed: stats.bytes_flushed,
        timeline,
    }
}

impl<S: Subject> Worker<S> {
    fn run(&mut self, op: Op, share: &Share, keeps_timeline: bool) -> Result<()> {
        match op {
            Op::Insert => self.insert(share, keeps_timeline),
            Op::Read => self.look_up(share, 0, Self::read),
            Op::Miss => self.look_up(share, ABSENT_FROM, Self::miss),
            Op::Update => self.visit(share, Self::update),
            Op::Scan => self.visit(share, Self::scan),
            Op::Delete => self.visit(share, Self::delete),
        }
    }

    /// Calls `one` for each operation of the share, a block at a time, and `between` after each block with the number
    /// of operations so far; `between` says whether it took time.
    #[inline]
    fn blocks(
        &mut self,
        count: u64,
        mut one: impl FnMut(&mut Self) -> Result<()>,
        mut between: impl FnMut(&mut Self, u64) -> bool,
    ) -> Result<()> {
        let mut latency = empty();
        let mut done = 0;
        let mut begun = self.clock.now();
        while done < count {
            let block = BLOCK.min(count - done);
            one(self)?;
            latency.saturating_record((self.clock.now() - begun).as_nanos() as u64);
            for _ in 1..block {
                one(self)?;
            }
            done += block;
            let now = self.clock.now();
            self.seen.longest_block = self.seen.longest_block.max(now - begun);
            // Time between two blocks counts for the whole run, but for no latency.
            begun = if between(self, done) { self.clock.now() } else { now };
        }
        self.seen.latency = Some(latency);
        Ok(())
    }

    fn insert(&mut self, share: &Share, keeps_timeline: bool) -> Result<()> {
        let (start, stride) = (self.ground.live.end, share.stride);
        let mut number = start + share.first;
        let mut due = POINT_EVERY;
        self.blocks(
            share.count,
            |w| {
                let word = w.ground.word(number);
                w.subject.insert(w.keys.key(number), word)?;
                number += stride;
                Ok(())
            },
            |w, done| {
                let now = keeps_timeline && done * stride >= due;
                if now {
                    due += POINT_EVERY;
                    let point = w.point(w.ground.live.end - w.ground.live.start + done * stride);
                    w.seen.timeline.push(point);
                }
                now
            },
        )
    }

    fn point(&self, pairs: u64) -> Point {
        let bytes = pairs * (self.ground.pairs.key_bytes() as u64 + 8);
        Point {
            pairs,
            load_factor: self.subject.load_factor(),
            space_factor: bytes as f64 / self.subject.pm_bytes().max(1) as f64,
        }
    }

    /// Calls `one` with numbers that are there, in an order of its own.
    #[inline]
    fn visit(&mut self, share: &Share, one: impl Fn(&mut Self, u64) -> Result<()>) -> Result<()> {
        let live = self.ground.live.clone();
        let mut order = Permutation::new(live.end - live.start, share.first);
        self.blocks(share.count, |w| one(w, live.start + order.step()), |_, _| false)
    }

    /// As [`visit`](Self::visit), announcing as many keys ahead as is asked for; they are those of the numbers and
    /// `shift`.
    #[inline]
    fn look_up(
        &mut self,
        share: &Share,
        shift: u64,
        one: impl Fn(&mut Self, u64) -> Result<()>,
    ) -> Result<()> {
        if self.ground.ahead == 0 {
            return self.visit(share, one);
        }
        let live = self.ground.live.clone();
        let mut ahead = Permutation::new(live.end - live.start, share.first);
        let mut announce = move |w: &mut Self| {
            let key = w.keys.key(shift + live.start + ahead.step());
            w.subject.prefetch(key);
        };
        (0..self.ground.ahead).for_each(|_| announce(self));
        let live = self.ground.live.clone();
        let mut order = Permutation::new(live.end - live.start, share.first);
        let each = |w: &mut Self| {
            announce(w);
            one(w, live.start + order.step())
        };
        self.blocks(share.count, each, |_, _| false)
    }

    #[inline]
    fn read(&mut self, number: u64) -> Result<()> {
        let word = self.subject.get(self.keys.key(number))?;
        self.seen.wrong += u64::from(word != Some(self.ground.word(number)));
        Ok(())
    }

    #[inline]
    fn miss(&mut self, number: u64) -> Result<()> {
        let word = self.subject.get(self.keys.key(ABSENT_FROM + number))?;
        self.seen.wrong += u64::from(word.is_some());
        Ok(())
    }

    /// The word of the next round; the caller moves the round on when all threads are done.
    #[inline]
    fn update(&mut self, number: u64) -> Result<()> {
        let word = self.ground.word(number) + (1 << 48);
        self.subject.update(self.keys.key(number), word)
    }

    #[inline]
    fn scan(&mut self, number: u64) -> Result<()> {
        self.batch.clear();
        let key = self.keys.key(number);
        self.subject.scan(key, self.ground.scan, &mut self.batch)?;
        let first = (!self.batch.is_empty()).then(|| self.batch.word(0));
        self.seen.wrong += u64::from(first != Some(self.ground.word(number)));
        self.seen.scanned += self.batch.len() as u64;
        Ok(())
    }

    #[inline]
    fn delete(&mut self, number: u64) -> Result<()> {
        let there = self.subject.remove(self.keys.key(number))?;
        self.seen.wrong += u64::from(!there);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for threads in 1..5u64 {
            for (_, op) in Op::ALL {
                let mut all: Vec<u64> = (0..threads)
                    .flat_map(|t| {
                        let share = share_of(op, t, threads, 103);
                        (0..share.count).map(move |i| share.first + i * share.stride)
                    })
                    .collect();
                all.sort_unstable();
                assert_eq!(all, (0..103).collect::<Vec<_>>(), "{op:?} by {threads}");
            }
        }
    }

    #[test]
    fn names_parse() {
        for (name, op) in Op::ALL {
            assert_eq!((name.parse(), op.name()), (Ok(op), name));
        }
        assert_eq!("nothing".parse::<Op>(), Err(()));
    }
}
