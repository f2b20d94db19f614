//! Who runs background work: threads in production, the caller itself under simulation.
//!
//! Jobs are never lost and never run twice. A thread that waits for background work calls
//! [`Executor::help`] first: an inline executor runs the work right there (nobody else would), a
//! threaded one says that somebody else is at it. Jobs report their failures themselves; one that
//! panics takes its worker's current job with it and nothing else.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// A unit of background work.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs background work.
pub trait Executor: Send + Sync + std::fmt::Debug {
    /// Queues `job`. It runs once, some time later, possibly on this thread within [`help`](Self::help).
    fn spawn(&self, job: Job);

    /// Runs one queued job on this thread if that is how this executor works; false if there was
    /// none or if other threads run them.
    fn help(&self) -> bool;

    /// Runs both to their end, at once where there are threads, else `first` and then `second`.
    ///
    /// `first` must never wait for `second`.
    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send));
}

/// A pool of worker threads. Dropping it runs what is queued and joins the threads.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("jobs", &self.jobs.len()).field("closed", &self.closed).finish()
    }
}

impl ThreadPool {
    /// A pool of `threads` workers named `name`; at least one.
    pub fn new(name: &str, threads: usize) -> Self {
        let shared = Arc::new(Shared { queue: Mutex::default(), ready: Condvar::new() });
        let workers = (0..threads.max(1))
            .map(|i| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("{name}-{i}"))
                    .spawn(move || shared.work())
                    .expect("the system can start a thread")
            })
            .collect();
        ThreadPool { shared, workers }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next() {
            // A job that panics has reported nothing; the store's own guards poison it. The worker lives on.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            self.ready.wait(&mut queue);
        }
    }
}

impl Executor for ThreadPool {
    fn spawn(&self, job: Job) {
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.ready.notify_one();
    }

    fn help(&self) -> bool {
        false
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
        self.shared.queue.lock().closed = true;
        self.shared.ready.notify_all();
        for worker in self.workers.drain(..) {
            // The last handle may be dropped by a job; a thread cannot join itself.
            if worker.thread().id() != std::thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}

/// Runs every job on the thread that asks for help, in the order they were queued.
#[derive(Debug, Default)]
pub struct Inline {
    queue: Mutex<Queue>,
}

impl Inline {
    /// Jobs not yet run.
    pub fn pending(&self) -> usize {
        self.queue.lock().jobs.len()
    }
}

impl Executor for Inline {
    fn spawn(&self, job: Job) {
        self.queue.lock().jobs.push_back(job);
    }

    fn help(&self) -> bool {
        let Some(job) = self.queue.lock().jobs.pop_front() else { return false };
        job();
        true
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        first();
        second();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
    fn inline_runs_in_order_when_asked() {
        let inline = Inline::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for i in 0..3 {
            let seen = seen.clone();
            inline.spawn(Box::new(move || seen.lock().push(i)));
        }
        assert!(seen.lock().is_empty());
        while inline.help() {}
        assert_eq!(*seen.lock(), [0, 1, 2]);
    }
}
