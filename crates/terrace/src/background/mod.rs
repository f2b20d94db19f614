//! What an engine does in the background: which jobs are on their way, how many of a kind run at once, and who
//! waits for them; and its flushes, which writers may have to do themselves.
//!
//! 1. No job begins once the database is closing; a close waits for those that have begun. It does not wait for those that
//!    wait for a thread themselves: the threads may be busy for other databases. Where nobody but the closer would do them
//!    he does.
//! 2. A job is counted out after it has let go of the engine, however it ends: whoever has closed may open again.
//! 3. What writers wait for goes before what makes reads cheaper, and that before what nobody waits for ([`Lane`]).
//! 4. A slot is one job's at a time, from the moment when the job begins: one that waits for a thread keeps
//!    nobody from compacting ([`slots`]).
//! 5. The executor is given one ticket for each queued job, the job itself stays here ([`queue`]). Whoever
//!    waits until nothing is left does what is queued himself: the threads may be busy for other databases.

mod compactions;
mod flushes;
mod queue;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace_base::exec::Lane;
use terrace_base::{Error, Result};

use crate::core::Core;

pub(crate) use compactions::{Compacting, Patience};
pub(crate) use flushes::Flushes;
use queue::{Jobs, Needs};
pub(crate) use slots::Slot;

/// How often somebody who waits for jobs looks whether there is one to help with.
const POLL: Duration = Duration::from_millis(50);

/// The background jobs of one engine.
#[derive(Debug)]
pub(crate) struct Background {
    core: Arc<Core>,
    jobs: Mutex<Jobs>,
    idle: Condvar,
    closing: AtomicBool,
    /// Whether the closer does jobs himself just now.
    clearing: AtomicBool,
    closed: AtomicBool,
    /// Held while somebody gathers all slots: two could wait for each other.
    gathering: Mutex<()>,
}

impl Background {
    /// No jobs yet; `slots` at a time of the kind that needs a slot.
    pub fn new(core: Arc<Core>, slots: usize) -> Arc<Background> {
        Arc::new(Background {
            core,
            jobs: Mutex::new(Jobs::new(slots)),
            idle: Condvar::new(),
            closing: AtomicBool::new(false),
            clearing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            gathering: Mutex::default(),
        })
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Has no further job begin, and waits for those that have; says whether it was the first to do so.
    pub fn close(&self) -> bool {
        {
            let _jobs = self.jobs.lock();
            self.closing.store(true, Ordering::Release);
        }
        self.clearing.store(true, Ordering::Release);
        while self.core.env.executor.help() {}
        self.clearing.store(false, Ordering::Release);
        // What is left will not begin, and nobody is to wait for it. It goes with nothing locked: it may hold
        // the last handle of something.
        let left = self.jobs.lock().take_all();
        drop(left);
        self.progressed();
        self.wait_for_running();
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Closes if an engine could not be `opened`: whoever opens it again meets no job of it.
    pub fn closed_unless<T>(&self, opened: Result<T>) -> Result<T> {
        opened.inspect_err(|_| {
            self.close();
        })
    }

    /// Counts a job in, unless the database is closing: then it says no.
    fn begin(&self) -> bool {
        let mut jobs = self.jobs.lock();
        let may = !self.is_closing();
        jobs.running += usize::from(may);
        may
    }

    /// Has a close wait for what the calling thread is about to do.
    pub fn hold_open(self: &Arc<Self>) -> Result<JobGuard> {
        match self.begin() {
            true => Ok(JobGuard { jobs: self.clone() }),
            false => Err(Error::Closed),
        }
    }

    /// Does `work`, for which a close waits. Once the database is closed, that is an error only where there `is_work`.
    pub fn unless_closed(
        self: &Arc<Self>,
        is_work: impl FnOnce() -> bool,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.hold_open() {
            Ok(_open) => work(),
            Err(e) if is_work() => Err(e),
            Err(_) => Ok(()),
        }
    }

    /// Has `job` run in the background, unless the database is closing: then it says no.
    pub fn spawn<E>(
        self: &Arc<Self>,
        lane: Lane,
        engine: &Weak<E>,
        job: impl FnOnce(&E) + Send + 'static,
    ) -> bool
    where
        E: Send + Sync + 'static,
    {
        self.send(lane, Needs::Nothing, engine, |_, engine, _| job(engine))
    }

    /// Has `flush` run in the background, unless the database is closing.
    pub fn spawn_flush<E>(
        self: &Arc<Self>,
        engine: &Weak<E>,
        flush: impl FnOnce(&E) -> Result<()> + Send + 'static,
    ) where
        E: Send + Sync + 'static,
    {
        self.spawn(Lane::Flush, engine, |engine| {
            // The failure is kept in `health`; writers that need the room get it.
            let _ = flush(engine);
        });
    }

    /// Has `job` tidy up in the background, unless the database is closing. Its failure is the database's.
    pub fn tidy<E>(
        self: &Arc<Self>,
        engine: &Weak<E>,
        job: impl FnOnce(&E) -> Result<()> + Send + 'static,
    ) -> bool
    where
        E: Send + Sync + 'static,
    {
        let core = self.core.clone();
        self.spawn(Lane::Tidying, engine, move |engine| {
            if let Err(e) = job(engine) {
                core.health.fail(e);
            }
        })
    }

    /// Has `piece` done again and again, each time as a job that tidies up: it is given where it begins, from 0 on, and says
    /// where the next one does.
    pub fn tidy_in_pieces<E>(
        self: &Arc<Self>,
        engine: &Weak<E>,
        piece: impl Fn(&E, u64) -> Option<u64> + Send + 'static,
    ) where
        E: Send + Sync + 'static,
    {
        self.tidy_from(engine, 0, piece);
    }

    fn tidy_from<E>(
        self: &Arc<Self>,
        engine: &Weak<E>,
        from: u64,
        piece: impl Fn(&E, u64) -> Option<u64> + Send + 'static,
    ) where
        E: Send + Sync + 'static,
    {
        let again = engine.clone();
        self.send(Lane::Tidying, Needs::Nothing, engine, move |jobs, engine, _| {
            if let Some(next) = piece(engine, from) {
                jobs.tidy_from(&again, next, piece);
            }
        });
    }

    /// Runs what is more urgent than jobs of `lane` and waits for a thread. A long job asks for it between its steps, with
    /// nothing locked.
    pub fn give_way(&self, lane: Lane) {
        while !self.is_closing() && self.core.env.executor.give_way(lane) {}
    }

    /// Waits until no job is left. Does those himself, of any lane, that no thread has come for.
    pub fn wait_idle(self: &Arc<Self>) {
        loop {
            if self.core.env.executor.help() || self.run_own() {
                continue;
            }
            let mut jobs = self.jobs.lock();
            if jobs.are_done() {
                return;
            }
            // One that has come since is his as well.
            if !jobs.are_queued() || self.is_closing() {
                self.idle.wait_for(&mut jobs, POLL);
            }
        }
    }

    /// Waits for the jobs that have begun.
    fn wait_for_running(&self) {
        loop {
            if self.core.env.executor.help() {
                continue;
            }
            let mut jobs = self.jobs.lock();
            if jobs.running == 0 {
                return;
            }
            self.idle.wait_for(&mut jobs, POLL);
        }
    }

    /// Waits until `done`, which is looked at whenever a job or a slot has come free, helping meanwhile.
    pub fn wait_until(&self, mut done: impl FnMut() -> bool) {
        while !done() {
            if !self.core.env.executor.help() {
                self.wait_a_moment();
            }
        }
    }

    /// Has those who wait look again: a job has come further.
    pub fn progressed(&self) {
        self.idle.notify_all();
    }

    /// Waits until background work has come `enough` far, or nobody does any and there is none. Where nobody else can do it,
    /// does it by `next`, which says whether there was something to do.
    pub fn work_until(
        self: &Arc<Self>,
        enough: impl Fn() -> bool,
        next: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        self.core.stalled(|| {
            while !enough() {
                if self.core.env.executor.help() {
                    continue;
                }
                if let Some(slot) = self.free_slot() {
                    if next()? {
                        continue;
                    }
                    drop(slot);
                    // Else others are at what there is to do.
                    if !self.jobs.lock().slots.are_taken() {
                        return Ok(());
                    }
                }
                self.wait_a_moment();
            }
            Ok(())
        })
    }

    /// Slows a writer down by what `delay` says. Where that is nothing any more, does or awaits background work, as
    /// [`work_until`](Self::work_until) does, until it is something again.
    pub fn slow_down(
        self: &Arc<Self>,
        delay: impl Fn() -> Option<Duration>,
        next: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        match delay() {
            Some(delay) => self.core.slow_down(delay),
            None => self.work_until(|| delay().is_some(), next)?,
        }
        Ok(())
    }

    /// Waits until a job or a slot has come free, or for a short while.
    pub fn wait_a_moment(&self) {
        let mut jobs = self.jobs.lock();
        self.idle.wait_for(&mut jobs, POLL);
    }
}

/// Counts a job out when it is dropped.
#[derive(Debug)]
pub(crate) struct JobGuard {
    jobs: Arc<Background>,
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.jobs.core.health.fail(Error::invalid("a background job panicked"));
        }
        self.jobs.jobs.lock().running -= 1;
        self.jobs.idle.notify_all();
    }
}
