//! Background work of a tree, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use super::Core;

/// How many jobs are running, and whether any may begin.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    running: Mutex<usize>,
    over: Condvar,
    closed: AtomicBool,
}

impl Jobs {
    /// Whether running jobs are to end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Lets no more jobs begin and waits for those that run.
    pub fn close(&self) {
        let mut running = self.running.lock();
        self.closed.store(true, Ordering::Release);
        while *running > 0 {
            self.over.wait(&mut running);
        }
    }

    /// Waits until no job is running. Jobs that begin later are those that were asked for later.
    pub fn rest(&self) {
        let mut running = self.running.lock();
        while *running > 0 {
            self.over.wait(&mut running);
        }
    }

    fn run(&self, job: impl FnOnce()) {
        {
            let mut running = self.running.lock();
            if self.is_closed() {
                return;
            }
            *running += 1;
        }
        let _ends = Ends(self);
        job();
    }
}

/// Counts a job out, also one that panics.
struct Ends<'a>(&'a Jobs);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.over.notify_all();
    }
}

impl Core {
    /// Runs `job` in the background, unless the tree is closed first. It holds on to the tree while it runs alone.
    pub(super) fn spawn(&self, job: impl FnOnce(&Core) + Send + 'static) {
        let (jobs, core) = (self.jobs.clone(), self.me.clone());
        self.executor.spawn(Box::new(move || {
            jobs.run(|| {
                if let Some(core) = core.upgrade() {
                    job(&core);
                }
            });
        }));
    }
}

/// A registry that belongs to one tree.
pub(super) fn registry() -> Arc<Jobs> {
    Arc::default()
}
