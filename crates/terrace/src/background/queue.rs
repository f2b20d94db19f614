//! The jobs of one engine that wait for a thread.
//!
//! The executor gets a ticket for each of them: "run one of that lane". So a waiting thread can do the jobs
//! of its own database while the threads are busy elsewhere. Of other databases' jobs it does those that such
//! a job gives way to.
//!
//! 1. A lane has no more jobs than tickets: a job enters its lane before its ticket is sent, and a ticket
//!    takes out one job at most. A ticket whose job was done by another thread serves the next job, which
//!    then needs none of its own, or finds nothing.
//! 2. A job is taken out and counted as begun in one step: none runs twice, and no waiter overlooks one.
//! 3. Jobs hold no handle of their [`Background`], which holds them; tickets hold a weak one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;
use terrace_base::Calm;
use terrace_base::exec::{self, LANES, Lane};

use super::slots::{Slot, Slots};
use super::{Background, JobGuard};

/// What a job needs to begin, and what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A slot. Without one it is put aside until one is released: its work was requested.
    Slot,
    /// A slot. Without one it is dropped: others do what it would have helped with.
    SlotOrGoes,
}

/// The work of a job, with the slot that it needs.
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

/// Running jobs, jobs that wait for a thread, and jobs that wait for a slot.
#[derive(Debug)]
pub(super) struct Jobs {
    pub running: usize,
    lanes: [VecDeque<Waiting>; LANES],
    /// Tickets of each lane that the executor has.
    tickets: [usize; LANES],
    /// Compactions that were requested while every slot was taken.
    aside: VecDeque<Waiting>,
    pub slots: Slots,
}

impl Jobs {
    pub fn new(slots: usize) -> Jobs {
        let (lanes, tickets, aside) = Default::default();
        Jobs { running: 0, lanes, tickets, aside, slots: Slots::new(slots) }
    }

    /// Whether one waits for a thread.
    pub fn are_queued(&self) -> bool {
        !self.lanes.iter().all(VecDeque::is_empty)
    }

    /// Whether none has begun and none waits for a thread.
    pub fn are_done(&self) -> bool {
        self.running == 0 && !self.are_queued()
    }

    /// Whether to send a ticket of `lane`, which is then counted.
    fn begin_ticket(&mut self, lane: Lane) -> bool {
        let lane = lane as usize;
        let is_wanted = self.lanes[lane].len() > self.tickets[lane];
        self.tickets[lane] += usize::from(is_wanted);
        is_wanted
    }

    /// Everything that has not begun.
    pub fn take_all(&mut self) -> Vec<Waiting> {
        let lanes = self.lanes.iter_mut().flat_map(|lane| lane.drain(..));
        lanes.chain(self.aside.drain(..)).collect()
    }

    fn queued(&self, is_counted: impl Fn(Needs) -> bool) -> usize {
        self.lanes.iter().flatten().filter(|job| is_counted(job.needs)).count()
    }

    /// Queues `job`, but no more jobs that need a slot than there are free ones: beyond that a compaction is
    /// left to others, and a job that is dropped without a slot is refused, which the result says. Returns
    /// the job if it is not kept: it must be dropped with nothing locked.
    fn add(&mut self, lane: Lane, job: Waiting) -> (bool, Option<Waiting>) {
        let has_room = self.queued(|needs| needs != Needs::Nothing) < self.slots.free();
        match job.needs {
            Needs::SlotOrGoes if !has_room => return (false, Some(job)),
            Needs::Slot if !has_room => return (true, self.put_aside(job)),
            _ => self.lanes[lane as usize].push_back(job),
        }
        (true, None)
    }

    /// Keeps a compaction until a slot is released, unless others will begin after this moment: they see what
    /// it would have seen.
    fn put_aside(&mut self, job: Waiting) -> Option<Waiting> {
        let begins_later = self.queued(|needs| needs == Needs::Slot) > 0;
        if begins_later || self.aside.len() >= self.slots.limit() {
            return Some(job);
        }
        self.aside.push_back(job);
        None
    }

    /// Queues a job that waits for a slot, now that one is free; returns whether to send a ticket of
    /// compactions for it.
    pub fn resume(&mut self) -> bool {
        self.lanes[Lane::Compaction as usize].extend(self.aside.pop_front());
        self.begin_ticket(Lane::Compaction)
    }
}

impl Background {
    /// Runs `job` in the background with what it `needs`; false if the database is closing, or if the job is
    /// dropped without a slot.
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
        let (is_taken, _dropped) = jobs.add(lane, Waiting { needs, work });
        let needs_ticket = jobs.begin_ticket(lane);
        drop(jobs);
        if needs_ticket {
            self.send_ticket(lane);
        }
        is_taken
    }

    /// Requests a thread for a job of `lane`, by a ticket that is counted already.
    pub(super) fn send_ticket(self: &Arc<Self>, lane: Lane) {
        let jobs = Arc::downgrade(self);
        let ticket = move || {
            let Some(jobs) = jobs.upgrade() else { return };
            let job = {
                let mut locked = jobs.jobs.lock();
                locked.tickets[lane as usize] -= 1;
                jobs.next_job(locked, lane as usize..lane as usize + 1)
            };
            drop(jobs);
            job.into_iter().for_each(|job| job());
        };
        self.core.env.executor.spawn_in(lane, Box::new(ticket));
    }

    /// Runs the most urgent job that waits for a thread; false if there is none.
    pub(super) fn run_own(self: &Arc<Self>) -> bool {
        // As on a thread of the executor, a panic of the job does not spread.
        self.next_job(self.jobs.lock(), 0..LANES).map(exec::run).is_some()
    }

    /// Takes out a job of `lanes`, and counts it as begun, unless the database is closing and others are to
    /// do it. A job that needs a slot and finds none ends at once.
    fn next_job(self: &Arc<Self>, mut jobs: MutexGuard<'_, Jobs>, lanes: Range<usize>) -> Option<exec::Job> {
        if self.is_closing() && !self.clearing.load(Ordering::Acquire) {
            return None;
        }
        let Waiting { needs, work } = jobs.lanes[lanes].iter_mut().find_map(VecDeque::pop_front)?;
        let number = if needs == Needs::Nothing { None } else { jobs.slots.take() };
        if needs == Needs::Nothing || number.is_some() {
            jobs.running += 1;
            drop(jobs);
            let (done, me) = (JobGuard { jobs: self.clone(), calm: Calm::now() }, self.clone());
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
        // Its waiters check again.
        self.idle.notify_all();
        Some(Box::new(|| ()))
    }
}
