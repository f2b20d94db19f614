//! An engine's background work: its jobs, how many of a kind run at once, and who waits for them; and its
//! flushes, which writers may have to do themselves.
//!
//! 1. No job begins once the database is closing; a close waits for those that have begun. It does not wait for those
//!    that still wait for a thread: the threads may be busy for other databases. If only the closer can do them,
//!    it does.
//! 2. A job is counted out after it has released the engine, however it ends: after a close the caller may
//!    open again.
//! 3. Jobs that writers wait for precede those that make reads cheaper, and those precede the ones that
//!    nobody waits for ([`Lane`]).
//! 4. A slot belongs to one job at a time, from the moment when the job begins: a job that waits for a thread
//!    keeps nobody from compacting ([`slots`]).
//! 5. The executor gets one ticket for each queued job; the job itself stays here ([`queue`]). A thread that
//!    waits until nothing is left does the queued jobs itself: the threads may be busy for other databases.

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
use terrace_base::{Calm, Error, Result};

use crate::core::Core;

pub(crate) use compactions::{Compacting, Patience};
pub(crate) use flushes::Flushes;
use queue::{Jobs, Needs};
pub(crate) use slots::Slot;

/// How often a waiter checks whether there is a job to help with.
const POLL: Duration = Duration::from_millis(50);

/// The background jobs of one engine.
#[derive(Debug)]
pub(crate) struct Background {
    core: Arc<Core>,
    jobs: Mutex<Jobs>,
    idle: Condvar,
    closing: AtomicBool,
    /// Whether the closer is doing jobs itself.
    clearing: AtomicBool,
    closed: AtomicBool,
    /// Held while gathering all slots: two threads could wait for each other.
    gathering: Mutex<()>,
}

impl Background {
    /// No jobs yet; at most `slots` at a time of the kind that needs a slot.
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

    /// Prevents further jobs from beginning, and waits for those that have; returns whether this call was the
    /// first.
    pub fn close(&self) -> bool {
        {
            let _jobs = self.jobs.lock();
            self.closing.store(true, Ordering::Release);
        }
        self.clearing.store(true, Ordering::Release);
        while self.core.env.executor.help() {}
        self.clearing.store(false, Ordering::Release);
        // The remaining jobs will not begin, and nobody may wait for them. They are dropped with nothing
        // locked: one may hold the last handle of something.
        let left = self.jobs.lock().take_all();
        drop(left);
        self.progressed();
        self.wait_for_running();
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Closes if an engine could not be `opened`: another opening meets none of its jobs.
    pub fn closed_unless<T>(&self, opened: Result<T>) -> Result<T> {
        opened.inspect_err(|_| {
            self.close();
        })
    }

    /// Counts a job in; false if the database is closing.
    fn begin(&self) -> bool {
        let mut jobs = self.jobs.lock();
        let may = !self.is_closing();
        jobs.running += usize::from(may);
        may
    }

    /// Makes a close wait for what the calling thread is about to do.
    pub fn hold_open(self: &Arc<Self>) -> Result<JobGuard> {
        match self.begin() {
            true => Ok(JobGuard { jobs: self.clone(), calm: Calm::now() }),
            false => Err(Error::Closed),
        }
    }

    /// Does `work`; a close waits for it. Once the database is closed, that is an error only if there
    /// `is_work`.
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

    /// Runs `job` in the background; false if the database is closing.
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

    /// Runs `flush` in the background, unless the database is closing.
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

    /// Runs the cleanup `job` in the background, unless the database is closing. Its failure is the
    /// database's.
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
            if let Err(e) = core.health.uncut().and_then(|()| job(engine)) {
                core.health.fail(e);
            }
        })
    }

    /// Runs `piece` again and again, each time as a cleanup job: it receives its start, 0 at first, and
    /// returns the start of the next piece.
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

    /// Runs more urgent jobs than those of `lane` that wait for a thread. A long job calls this between its
    /// steps, with nothing locked.
    pub fn give_way(&self, lane: Lane) {
        while !self.is_closing() && self.core.env.executor.give_way(lane) {}
    }

    /// Waits until no job is left. The caller itself does those, of any lane, that no thread has taken.
    pub fn wait_idle(self: &Arc<Self>) {
        loop {
            if self.core.env.executor.help() || self.run_own() {
                continue;
            }
            let mut jobs = self.jobs.lock();
            if jobs.are_done() {
                return;
            }
            // It also does one that has come since.
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

    /// Waits until `done`, which is checked whenever a job has ended or a slot was released, and helps
    /// meanwhile.
    pub fn wait_until(&self, mut done: impl FnMut() -> bool) {
        while !done() {
            if !self.core.env.executor.help() {
                self.wait_a_moment();
            }
        }
    }

    /// Makes waiters check again: a job has made progress.
    pub fn progressed(&self) {
        self.idle.notify_all();
    }

    /// Waits until background work has made `enough` progress, or nobody does any and none is left. If nobody
    /// else can do it, does it by `next`, which returns whether there was something to do.
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
                    // Otherwise others are doing what there is to do.
                    if !self.jobs.lock().slots.are_taken() {
                        return Ok(());
                    }
                }
                self.wait_a_moment();
            }
            Ok(())
        })
    }

    /// Delays a writer as long as `delay` says. If that returns nothing, it does or awaits background work,
    /// like [`work_until`](Self::work_until), until there is a delay again.
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

    /// Waits until a job has ended or a slot was released, or for a short while.
    pub fn wait_a_moment(&self) {
        let mut jobs = self.jobs.lock();
        self.idle.wait_for(&mut jobs, POLL);
    }
}

/// Counts a job out when it is dropped.
#[derive(Debug)]
pub(crate) struct JobGuard {
    jobs: Arc<Background>,
    calm: Calm,
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        self.jobs.core.health.note_panic(self.calm);
        self.jobs.jobs.lock().running -= 1;
        self.jobs.idle.notify_all();
    }
}
