//! Executors of background work: threads in production, the caller itself under simulation.
//!
//! Jobs are never lost and never run twice. The most urgent queued job is begun first ([`Lane`]), and one that takes
//! long makes way for more urgent ones ([`Executor::give_way`]). A thread that waits for background work calls
//! [`Executor::help`] first: an inline executor runs the work right there (nobody else would), a threaded one answers
//! that a worker will run it. Jobs report their failures themselves; one that panics takes its worker's current job
//! with it and nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::{Clock, SystemClock};

mod inline;

pub use inline::Inline;

/// A unit of background work.
pub type Job = Box<dyn FnOnce() + Send>;

/// How urgent a job is: the first lane goes first. Jobs of one lane are begun in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Writers wait for it, or soon will.
    Flush,
    /// Reads and later writes are slower without it.
    Compaction,
    /// Nobody waits for it.
    Tidying,
}

/// How many lanes there are.
pub const LANES: usize = 3;

/// Jobs that wait for their time at most.
const MOST_LATER: usize = 1024;

/// Runs background work.
pub trait Executor: Send + Sync + std::fmt::Debug {
    /// Queues `job`. It runs once, some time later, possibly on this thread within [`help`](Self::help).
    fn spawn_in(&self, lane: Lane, job: Job);

    /// Queues a job that nobody waits for.
    fn spawn(&self, job: Job) {
        self.spawn_in(Lane::Tidying, job);
    }

    /// Queues a job that nobody waits for once `after` has passed, if there is a thread by then: none is started for it.
    /// It may be dropped: if the executor goes before its time, and if there are too many. It says when to look whether
    /// there is work; whoever relies on that looks at other moments, too.
    fn spawn_later(&self, _after: Duration, _job: Job) {}

    /// Runs one queued job that is more urgent than those of `lane`, on this thread; false if there is none, or if the
    /// thread that waits for it runs it. Called by a job of `lane` that takes long, at moments when it has nothing
    /// locked.
    fn give_way(&self, _lane: Lane) -> bool {
        false
    }

    /// Whether jobs that are at least as urgent as those of `lane` wait for a thread, from any user of this executor.
    fn others_wait(&self, _lane: Lane) -> bool {
        false
    }

    /// Whether threads of its own run the jobs, so that a job may wait for something that the thread holds which has
    /// queued it.
    fn runs_beside(&self) -> bool {
        false
    }

    /// Runs one queued job on this thread if that is how this executor works; false if there was
    /// none or if other threads run them.
    fn help(&self) -> bool;

    /// Runs both to their end, at once where there are threads, else `first` and then `second`.
    ///
    /// `first` must never wait for `second`.
    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send));
}

/// A pool of worker threads. None is started before there is work for it. Dropping the pool runs what is queued and
/// joins the threads.
///
/// 1. A thread is started for a job only if no thread is free and there are fewer than the pool may have.
/// 2. A queued job has a thread that will come for it: the one that waits for the job, if the system refuses the first
///    thread.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    name: String,
    threads: usize,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    /// Queued jobs of each lane, to be looked at without the lock.
    waiting: [AtomicUsize; LANES],
    clock: SystemClock,
}

#[derive(Default)]
struct Queue {
    lanes: [VecDeque<Job>; LANES],
    closed: bool,
    workers: Vec<JoinHandle<()>>,
    /// Workers that wait for a job.
    free: usize,
    /// Jobs whose time has not come, by their times and in the order in which they came.
    later: BTreeMap<(Duration, u64), Job>,
    sent_later: u64,
}

impl Queue {
    fn len(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
    }

    /// The most urgent job of the first `lanes` lanes, and its lane.
    fn pop(&mut self, lanes: usize) -> Option<(usize, Job)> {
        let urgent = self.lanes[..lanes].iter_mut().enumerate();
        urgent.filter_map(|(lane, jobs)| jobs.pop_front().map(|job| (lane, job))).next()
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut queue = f.debug_struct("Queue");
        queue.field("jobs", &self.len()).field("threads", &self.workers.len()).field("free", &self.free);
        queue.field("closed", &self.closed).finish()
    }
}

/// Pools that are shared, by the threads that they may have.
static SHARED: Mutex<BTreeMap<usize, Weak<ThreadPool>>> = Mutex::new(BTreeMap::new());

impl ThreadPool {
    /// A pool of at most `threads` workers named `name`; at least one.
    pub fn new(name: &str, threads: usize) -> Self {
        ThreadPool { shared: Arc::default(), name: name.to_owned(), threads: threads.max(1) }
    }

    /// The one pool of `threads` workers in this process, shared by all who ask for as many. It ends with its last
    /// handle.
    pub fn shared(threads: usize) -> Arc<Self> {
        let mut pools = SHARED.lock();
        pools.retain(|_, pool| pool.strong_count() > 0);
        if let Some(pool) = pools.get(&threads).and_then(Weak::upgrade) {
            return pool;
        }
        let pool = Arc::new(ThreadPool::new("terrace", threads));
        pools.insert(threads, Arc::downgrade(&pool));
        pool
    }

    /// Starts one more worker if `queue`, just added to, has none that is free.
    fn start(&self, queue: &mut Queue) -> io::Result<()> {
        if queue.free >= queue.len() || queue.workers.len() >= self.threads {
            return Ok(());
        }
        self.start_one(queue)
    }

    fn start_one(&self, queue: &mut Queue) -> io::Result<()> {
        let shared = self.shared.clone();
        let name = format!("{}-{}", self.name, queue.workers.len());
        let worker = std::thread::Builder::new().name(name).spawn(move || shared.work())?;
        queue.workers.push(worker);
        Ok(())
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next() {
            run(job);
        }
    }

    fn pop(&self, queue: &mut Queue, lanes: usize) -> Option<Job> {
        let (lane, job) = queue.pop(lanes)?;
        self.waiting[lane].fetch_sub(1, Ordering::Relaxed);
        Some(job)
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            let until_later = self.take_due(&mut queue);
            if let Some(job) = self.pop(&mut queue, LANES) {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue.free += 1;
            match until_later {
                Some(time) => drop(self.ready.wait_for(&mut queue, time)),
                None => self.ready.wait(&mut queue),
            }
            queue.free -= 1;
        }
    }

    /// Queues the jobs whose time has come; returns the time until the next one.
    fn take_due(&self, queue: &mut Queue) -> Option<Duration> {
        loop {
            let next = queue.later.first_entry()?;
            let wait = next.key().0.saturating_sub(self.clock.now());
            if !wait.is_zero() {
                return Some(wait);
            }
            let job = next.remove();
            queue.lanes[Lane::Tidying as usize].push_back(job);
            self.waiting[Lane::Tidying as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs `job` for others. One that panics has reported nothing; the store's own guards poison it. The thread
/// lives on.
pub fn run(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}

impl Executor for ThreadPool {
    fn runs_beside(&self) -> bool {
        let mut queue = self.shared.queue.lock();
        // Without one, the job runs on a thread that waits.
        !queue.workers.is_empty() || self.start_one(&mut queue).is_ok()
    }

    fn spawn_in(&self, lane: Lane, job: Job) {
        let mut queue = self.shared.queue.lock();
        queue.lanes[lane as usize].push_back(job);
        self.shared.waiting[lane as usize].fetch_add(1, Ordering::Relaxed);
        // If the system refuses a thread, an existing worker takes the job, or the thread that waits for it does
        // (`help`).
        let _ = self.start(&mut queue);
        drop(queue);
        self.shared.ready.notify_one();
    }

    fn spawn_later(&self, after: Duration, job: Job) {
        let mut queue = self.shared.queue.lock();
        if queue.later.len() >= MOST_LATER {
            drop(queue);
            return drop(job);
        }
        let key = (self.shared.clock.now().saturating_add(after), queue.sent_later);
        queue.sent_later += 1;
        queue.later.insert(key, job);
        drop(queue);
        // Whoever waits for work does so until then.
        self.shared.ready.notify_all();
    }

    fn give_way(&self, lane: Lane) -> bool {
        let urgent = lane as usize;
        if self.shared.waiting[..urgent].iter().all(|jobs| jobs.load(Ordering::Relaxed) == 0) {
            return false;
        }
        let job = self.shared.pop(&mut self.shared.queue.lock(), urgent);
        job.map(run).is_some()
    }

    fn others_wait(&self, lane: Lane) -> bool {
        self.shared.waiting[..=lane as usize].iter().any(|jobs| jobs.load(Ordering::Relaxed) > 0)
    }

    fn help(&self) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.len() == 0 || !queue.workers.is_empty() || self.start(&mut queue).is_ok() {
            return false;
        }
        let job = self.shared.pop(&mut queue, LANES);
        drop(queue);
        job.map(run).is_some()
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        std::thread::scope(|scope| {
            scope.spawn(second);
            first();
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let workers = {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.workers)
        };
        self.shared.ready.notify_all();
        for worker in workers {
            // The last handle may be dropped by a job; a thread cannot join itself.
            if worker.thread().id() != std::thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_dropped_pool_has_run_everything() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = ThreadPool::new("t", 2);
        for _ in 0..100 {
            let done = done.clone();
            pool.spawn(Box::new(move || {
                done.fetch_add(1, Ordering::SeqCst);
            }));
        }
        drop(pool);
        assert_eq!(done.load(Ordering::SeqCst), 100);
    }

    #[test]
    fn no_thread_is_started_before_there_is_work() {
        let pool = ThreadPool::new("t", 3);
        let started = || pool.shared.queue.lock().workers.len();
        assert_eq!(started(), 0);
        let together = Arc::new(Barrier::new(3));
        for _ in 0..2 {
            let together = together.clone();
            pool.spawn(Box::new(move || {
                together.wait();
            }));
        }
        assert_eq!(started(), 2);
        together.wait();
    }

    #[test]
    fn who_asks_for_as_many_threads_shares_them() {
        let (one, other) = (ThreadPool::shared(251), ThreadPool::shared(251));
        assert!(Arc::ptr_eq(&one, &other));
        assert!(!Arc::ptr_eq(&one, &ThreadPool::shared(252)));
        let old = Arc::downgrade(&one);
        drop((one, other));
        assert_eq!(old.strong_count(), 0, "the pool ends with its last handle");
    }

    #[test]
    fn a_panicking_job_does_not_stop_the_next() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = ThreadPool::new("t", 1);
        pool.spawn(Box::new(|| panic!("expected by this test")));
        let after = done.clone();
        pool.spawn(Box::new(move || {
            after.fetch_add(1, Ordering::SeqCst);
        }));
        drop(pool);
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_most_urgent_job_goes_first_and_long_ones_give_way() {
        let pool = Arc::new(ThreadPool::new("t", 1));
        let (seen, queued) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Barrier::new(2)));
        let note = |what: &'static str| {
            let seen = seen.clone();
            move || seen.lock().push(what)
        };
        let (begin, end) = (note("long begins"), note("long ends"));
        let (within, waits) = (pool.clone(), queued.clone());
        pool.spawn_in(
            Lane::Compaction,
            Box::new(move || {
                begin();
                waits.wait();
                waits.wait();
                while within.give_way(Lane::Compaction) {}
                end();
            }),
        );
        // It has begun.
        queued.wait();
        pool.spawn(Box::new(note("tidying")));
        pool.spawn_in(Lane::Compaction, Box::new(note("compaction")));
        pool.spawn_in(Lane::Flush, Box::new(note("first flush")));
        pool.spawn_in(Lane::Flush, Box::new(note("second flush")));
        queued.wait();
        // The last handle is perhaps dropped by the job.
        let mut last = pool;
        while let Err(other) = Arc::try_unwrap(last).map(drop) {
            std::thread::yield_now();
            last = other;
        }
        let order = ["long begins", "first flush", "second flush", "long ends", "compaction", "tidying"];
        assert_eq!(*seen.lock(), order);
    }

    #[test]
    fn a_thread_that_is_there_wakes_up_for_what_comes_later() {
        let pool = ThreadPool::new("t", 1);
        let (seen, met) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Barrier::new(2)));
        let note = |what: &'static str| {
            let seen = seen.clone();
            move || seen.lock().push(what)
        };
        pool.spawn_later(Duration::ZERO, Box::new(note("when nobody was there")));
        assert_eq!(pool.shared.queue.lock().workers.len(), 0, "none is started for it");
        pool.spawn(Box::new(note("now")));
        let waits = met.clone();
        pool.spawn_later(Duration::from_secs(3600), Box::new(note("much later")));
        pool.spawn_later(Duration::from_millis(2), Box::new(move || _ = waits.wait()));
        pool.spawn_later(Duration::from_millis(1), Box::new(note("later")));
        met.wait();
        drop(pool);
        assert_eq!(*seen.lock(), ["now", "when nobody was there", "later"]);
    }
}
