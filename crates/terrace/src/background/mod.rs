//! What an engine does in the background: which jobs are on their way, how many of a kind run at once, and who
//! waits for them; and its flushes, which writers may have to do themselves.
//!
//! 1. No job begins once the database is closing; a close waits for those that have begun. It does not wait for those that
//!    wait for a thread themselves: the threads may be busy for other databases. Where nobody but the closer would do them
//!    he does.
//! 2. A job is counted out after it has let go of the engine, however it ends: whoever has closed may open again.
//! 3. What writers wait for goes before what makes reads cheaper, and that before what nobody waits for ([`Lane`]).
//! 4. A slot is one job's at a time. Somebody who waits helps with queued jobs where the executor wants that.

mod compactions;
mod flushes;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace_base::exec::Lane;
use terrace_base::{Error, Result};

use crate::core::Core;

pub(crate) use compactions::{Compacting, Patience};
pub(crate) use flushes::Flushes;

/// How often somebody who waits for jobs looks whether there is one to help with.
const POLL: Duration = Duration::from_millis(50);

/// Jobs that have begun, and those that wait for a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Jobs {
    running: usize,
    queued: usize,
}

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
    /// Slots in use, a bit each.
    slots: AtomicUsize,
    limit: usize,
}

impl Background {
    /// No jobs yet; `slots` at a time of the kind that needs a slot.
    pub fn new(core: Arc<Core>, slots: usize) -> Arc<Background> {
        Arc::new(Background {
            core,
            jobs: Mutex::default(),
            idle: Condvar::new(),
            closing: AtomicBool::new(false),
            clearing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            gathering: Mutex::default(),
            slots: AtomicUsize::new(0),
            limit: slots.clamp(1, usize::BITS as usize - 1),
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
        self.wait_for(|jobs| jobs.running == 0);
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

    /// Counts a job in that waits for a thread, unless the database is closing.
    fn queue(self: &Arc<Self>) -> Option<Queued> {
        let mut jobs = self.jobs.lock();
        if self.is_closing() {
            return None;
        }
        jobs.queued += 1;
        Some(Queued { jobs: self.clone() })
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
        let Some(queued) = self.queue() else { return false };
        let engine = engine.clone();
        let job = Box::new(move || {
            let Some(_done) = queued.begin() else { return };
            if let Some(engine) = engine.upgrade() {
                // Dropped before `_done` is.
                let engine = engine;
                job(&engine);
            }
        });
        self.core.env.executor.spawn_in(lane, job);
        true
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
        let (jobs, again) = (self.clone(), engine.clone());
        self.spawn(Lane::Tidying, engine, move |engine| {
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

    /// Waits until no job is left.
    pub fn wait_idle(&self) {
        self.wait_for(|jobs| jobs.running + jobs.queued == 0);
    }

    /// Waits until so few jobs are left that it is `enough`, and helps with them meanwhile.
    fn wait_for(&self, enough: impl Fn(Jobs) -> bool) {
        loop {
            if self.core.env.executor.help() {
                continue;
            }
            let mut jobs = self.jobs.lock();
            if enough(*jobs) {
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

    /// Waits until background work has come far enough. Where nobody else can do it, does it by `next`, which says whether
    /// there was something to do.
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
                match self.free_slot() {
                    Some(_slot) => {
                        if !next()? {
                            return Ok(());
                        }
                    }
                    None => self.wait_a_moment(),
                }
            }
            Ok(())
        })
    }

    /// Waits until a job or a slot has come free, or for a short while.
    pub fn wait_a_moment(&self) {
        let mut jobs = self.jobs.lock();
        self.idle.wait_for(&mut jobs, POLL);
    }

    /// Claims a slot, if one is free.
    pub fn free_slot(self: &Arc<Self>) -> Option<Slot> {
        let claim = |s: &usize| self.slots.fetch_or(1 << s, Ordering::AcqRel) & (1 << s) == 0;
        (0..self.limit).find(claim).map(|number| Slot { jobs: self.clone(), number })
    }

    /// Claims a slot, waiting for one.
    pub fn slot(self: &Arc<Self>) -> Slot {
        loop {
            if let Some(slot) = self.free_slot() {
                return slot;
            }
            if !self.core.env.executor.help() {
                self.wait_a_moment();
            }
        }
    }

    /// Claims every slot, waiting for them.
    pub fn all_slots(self: &Arc<Self>) -> Vec<Slot> {
        let _alone = self.gathering.lock();
        let mut all = Vec::with_capacity(self.limit);
        self.wait_until(|| {
            all.extend(std::iter::from_fn(|| self.free_slot()));
            all.len() == self.limit
        });
        all
    }
}

/// A job that waits for a thread; counted out when it is dropped.
#[derive(Debug)]
struct Queued {
    jobs: Arc<Background>,
}

impl Queued {
    /// Counts it among those that have begun, unless the database is closing and others are to do it.
    fn begin(self) -> Option<JobGuard> {
        let mut jobs = self.jobs.jobs.lock();
        if self.jobs.is_closing() && !self.jobs.clearing.load(Ordering::Acquire) {
            return None;
        }
        jobs.running += 1;
        drop(jobs);
        Some(JobGuard { jobs: self.jobs.clone() })
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.jobs.jobs.lock().queued -= 1;
        self.jobs.idle.notify_all();
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

/// A claimed slot; free again when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    jobs: Arc<Background>,
    number: usize,
}

impl Slot {
    /// Which of the slots it is, from 0.
    pub fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.jobs.slots.fetch_and(!(1 << self.number), Ordering::AcqRel);
        self.jobs.idle.notify_all();
    }
}
