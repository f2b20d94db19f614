//! Background work of a tree, its end, and moments without it.
//!
//! Work in an executor's queue may begin at any time. A thread that needs the tree to stand still cannot wait for it,
//! since it may be queued behind work that waits for that thread; nor can it do the work itself. So jobs that would
//! begin meanwhile are deferred.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use super::Core;

type Job = Box<dyn FnOnce(&Core) + Send>;

/// How many jobs are running, and whether any may begin.
#[derive(Default)]
pub(super) struct Jobs {
    state: Mutex<State>,
    over: Condvar,
    closed: AtomicBool,
}

#[derive(Default)]
struct State {
    running: usize,
    /// Threads that need the tree to stand still.
    still: usize,
    /// Jobs that were deferred.
    put_off: Vec<Job>,
}

impl Jobs {
    /// Whether running jobs are to end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Lets no more jobs begin and waits for those that run.
    pub fn close(&self) {
        let mut state = self.state.lock();
        self.closed.store(true, Ordering::Release);
        while state.running > 0 {
            self.over.wait(&mut state);
        }
    }

    /// Waits until no job is running. Others may be on their way.
    pub fn rest(&self) {
        let mut state = self.state.lock();
        while state.running > 0 {
            self.over.wait(&mut state);
        }
    }

    /// The job, if it is to run now.
    fn begin(&self, job: Job) -> Option<(Job, Ends<'_>)> {
        let mut state = self.state.lock();
        if self.is_closed() {
            return None;
        }
        if state.still > 0 {
            state.put_off.push(job);
            return None;
        }
        state.running += 1;
        Some((job, Ends(self)))
    }
}

/// Counts a job out, also after a panic.
struct Ends<'a>(&'a Jobs);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.over.notify_all();
    }
}

/// While it exists no background work of its tree runs. Deferred jobs begin afterwards.
pub struct Still<'t>(&'t Core);

impl fmt::Debug for Still<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Still").finish_non_exhaustive()
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let jobs = {
            let mut state = self.0.jobs.state.lock();
            state.still -= 1;
            if state.still > 0 { Vec::new() } else { std::mem::take(&mut state.put_off) }
        };
        jobs.into_iter().for_each(|job| self.0.spawn(job));
    }
}

impl Core {
    /// Runs `job` in the background, unless the tree is closed first. It keeps the tree alive only while it runs.
    pub(super) fn spawn(&self, job: impl FnOnce(&Core) + Send + 'static) {
        let (jobs, core) = (self.jobs.clone(), self.me.clone());
        let job: Job = Box::new(job);
        self.executor.spawn(Box::new(move || {
            let Some((job, _ends)) = jobs.begin(job) else { return };
            if let Some(core) = core.upgrade() {
                job(&core);
            }
        }));
    }

    /// Waits for running jobs, and defers later ones. The caller is not a job.
    pub(super) fn still(&self) -> Still<'_> {
        self.jobs.state.lock().still += 1;
        self.jobs.rest();
        Still(self)
    }
}

/// A registry that belongs to one tree.
pub(super) fn registry() -> Arc<Jobs> {
    Arc::default()
}
