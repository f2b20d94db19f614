//! Background threads that can be brought to rest, so that a machine is killed at one moment.

use parking_lot::Mutex;
use terrace_base::exec::{Executor, Inline, Job, Lane, ThreadPool};

/// Threads until [`pause`](Self::pause); afterwards a thread that waits for background work does it.
#[derive(Debug)]
pub struct Pausable {
    threads: Mutex<Option<ThreadPool>>,
    late: Inline,
}

impl Pausable {
    pub fn new(threads: usize) -> Self {
        Pausable { threads: Mutex::new(Some(ThreadPool::new("pausable", threads))), late: Inline::default() }
    }

    /// Waits until the threads have done what they had to. What comes from now on is kept for `help`.
    pub fn pause(&self) {
        let threads = self.threads.lock().take();
        drop(threads);
    }
}

impl Executor for Pausable {
    fn spawn_in(&self, lane: Lane, job: Job) {
        match &*self.threads.lock() {
            Some(threads) => threads.spawn_in(lane, job),
            None => self.late.spawn_in(lane, job),
        }
    }

    fn runs_beside(&self) -> bool {
        self.threads.lock().is_some()
    }

    fn help(&self) -> bool {
        let paused = self.threads.lock().is_none();
        paused && self.late.help()
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        std::thread::scope(|scope| {
            scope.spawn(second);
            first();
        });
    }
}
