//! The jobs of one engine that wait for a thread.
//!
//! The executor gets a ticket for each of them: "run one of that lane". So whoever waits can do the jobs of
//! his own database, and of no other, while the threads are busy elsewhere.
//!
//! 1. A lane has no more jobs than tickets under way: a job enters its lane before its ticket is sent, and a
//!    ticket takes out one job at most. A ticket whose job somebody else has done finds another one, which
//!    came later, or nothing.
//! 2. A job is taken out and counted as begun in one step: none is run twice, and none is overlooked by who
//!    waits.
//! 3. Jobs hold no handle of their [`Background`], which holds them; tickets hold a weak one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use terrace_base::exec::{self, LANES, Lane};

use super::slots::{Slot, Slots};
use super::{Background, JobGuard};

/// What a job is given when it begins, and whether it begins without that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A slot. Without one it is put aside until one comes free: somebody has asked for what it does.
    Slot,
    /// A slot. Without one it is dropped: others do what it would have helped with.
    SlotOrGoes,
}

/// What a job does, with the slot that it needs.
type Work = Box<dyn FnOnce(&Arc<Background>, Option<Slot>) + Send>;

/// A job that waits for a thread.
pub(super) struct Waiting {
    needs: Needs,
    work: Work,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// Jobs that have begun, those that wait for a thread, and those that wait for a slot.
#[derive(Debug)]
pub(super) struct Jobs {
    pub running: usize,
    lanes: [VecDeque<Waiting>; LANES],
    /// Compactions that were asked for while every slot was taken.
    aside: VecDeque<Waiting>,
    pub slots: Slots,
}

/// What has become of a job that was to be queued.
enum Sent {
    Queued,
    /// It waits for a slot, or one that has not begun yet does what it would have done.
    LeftToOthers,
    Refused,
}

impl Jobs {
    pub fn new(slots: usize) -> Jobs {
        let (lanes, aside) = Default::default();
        Jobs { running: 0, lanes, aside, slots: Slots::new(slots) }
    }

    /// Whether none has begun and none waits for a thread.
    pub fn are_done(&self) -> bool {
        self.running == 0 && self.lanes.iter().all(VecDeque::is_empty)
    }

    /// Everything that has not begun.
    pub fn take_all(&mut self) -> Vec<Waiting> {
        let lanes = self.lanes.iter_mut().flat_map(|lane| lane.drain(..));
        lanes.chain(self.aside.drain(..)).collect()
    }

    fn queued(&self, is_counted: impl Fn(Needs) -> bool) -> usize {
        self.lanes.iter().flatten().filter(|job| is_counted(job.needs)).count()
    }

    /// Queues `job`, but no more that need a slot than there are free ones. Gives back what is not kept: it
    /// is dropped when nothing is locked.
    fn add(&mut self, lane: Lane, job: Waiting) -> (Sent, Option<Waiting>) {
        let has_room = self.queued(|needs| needs != Needs::Nothing) < self.slots.free();
        match job.needs {
            Needs::SlotOrGoes if !has_room => return (Sent::Refused, Some(job)),
            Needs::Slot if !has_room => return (Sent::LeftToOthers, self.put_aside(job)),
            _ => self.lanes[lane as usize].push_back(job),
        }
        (Sent::Queued, None)
    }

    /// Keeps a compaction until a slot comes free, unless there are others that begin after this moment: they
    /// see what it would have seen.
    fn put_aside(&mut self, job: Waiting) -> Option<Waiting> {
        let begins_later = self.queued(|needs| needs == Needs::Slot) > 0;
        if begins_later || self.aside.len() >= self.slots.limit() {
            return Some(job);
        }
        self.aside.push_back(job);
        None
    }

    /// Queues what waits for a slot, now that one is free; whether there is anything.
    pub fn resume(&mut self) -> bool {
        let job = self.aside.pop_front();
        let lane = &mut self.lanes[Lane::Compaction as usize];
        job.map(|job| lane.push_back(job)).is_some()
    }
}

impl Background {
    /// Has `job` run in the background with what it `needs`, unless the database is closing: then it says no,
    /// as it does to a job that goes without a slot.
    pub(super) fn send<E>(
        self: &Arc<Self>,
        lane: Lane,
        needs: Needs,
        engine: &Weak<E>,
        job: impl FnOnce(&Arc<Background>, &E, Option<Slot>) + Send + 'static,
    ) -> bool
    where
        E: Send + Sync + 'static,
    {
        let engine = engine.clone();
        let work: Work = Box::new(move |jobs, slot| {
            if let Some(engine) = engine.upgrade() {
                job(jobs, &engine, slot);
            }
        });
        let mut jobs = self.jobs.lock();
        if self.is_closing() {
            drop(jobs);
            return false;
        }
        let (sent, _dropped) = jobs.add(lane, Waiting { needs, work });
        drop(jobs);
        if matches!(sent, Sent::Queued) {
            self.send_ticket(lane);
        }
        !matches!(sent, Sent::Refused)
    }

    /// Has a thread come for a job of `lane`.
    pub(super) fn send_ticket(self: &Arc<Self>, lane: Lane) {
        let jobs = Arc::downgrade(self);
        let ticket = move || {
            let jobs = jobs.upgrade();
            if let Some(job) = jobs.and_then(|jobs| jobs.next_job(lane as usize..lane as usize + 1)) {
                job();
            }
        };
        self.core.env.executor.spawn_in(lane, Box::new(ticket));
    }

    /// Runs the most urgent job that waits for a thread; false if there is none.
    pub(super) fn run_own(self: &Arc<Self>) -> bool {
        // As on a thread of the executor, one that panics takes nobody with it.
        self.next_job(0..LANES).map(exec::run).is_some()
    }

    /// Takes out a job of `lanes`, and counts it as begun, unless the database is closing and others are to
    /// do it. One that needs a slot and finds none ends at once.
    fn next_job(self: &Arc<Self>, lanes: Range<usize>) -> Option<exec::Job> {
        let mut jobs = self.jobs.lock();
        if self.is_closing() && !self.clearing.load(Ordering::Acquire) {
            return None;
        }
        let Waiting { needs, work } = jobs.lanes[lanes].iter_mut().find_map(VecDeque::pop_front)?;
        let number = if needs == Needs::Nothing { None } else { jobs.slots.take() };
        if needs == Needs::Nothing || number.is_some() {
            jobs.running += 1;
            drop(jobs);
            let (done, me) = (JobGuard { jobs: self.clone() }, self.clone());
            let slot = number.map(|number| Slot::new(self, number));
            return Some(Box::new(move || {
                let _done = done;
                work(&me, slot);
            }));
        }
        let job = Waiting { needs, work };
        let dropped = if needs == Needs::Slot { jobs.put_aside(job) } else { Some(job) };
        drop(jobs);
        drop(dropped);
        // Whoever waits for it looks again.
        self.idle.notify_all();
        Some(Box::new(|| ()))
    }
}
