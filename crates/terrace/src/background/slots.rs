//! Slots limit how many compactions of one engine run at once. Every compacting thread has one, a writer as
//! well as a thread of the executor; a holder of all slots knows that nobody else compacts.
//!
//! 1. A slot is taken when a compaction begins, and released when it is dropped.
//! 2. A compaction that was requested while none was free is queued when one is released, unless the database
//!    is closing.

use std::sync::Arc;

use terrace_base::Calm;
use terrace_base::exec::Lane;

use super::Background;

/// The taken slots.
#[derive(Debug)]
pub(super) struct Slots {
    /// One bit for each.
    taken: usize,
    limit: usize,
}

impl Slots {
    pub fn new(limit: usize) -> Slots {
        Slots { taken: 0, limit: limit.clamp(1, usize::BITS as usize - 1) }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The number of free slots.
    pub fn free(&self) -> usize {
        self.limit - self.taken.count_ones() as usize
    }

    /// Whether any is taken.
    pub fn are_taken(&self) -> bool {
        self.taken != 0
    }

    /// Takes the first free one.
    pub fn take(&mut self) -> Option<usize> {
        let number = self.taken.trailing_ones() as usize;
        let is_free = number < self.limit;
        self.taken |= usize::from(is_free) << number;
        is_free.then_some(number)
    }

    fn give_back(&mut self, number: usize) {
        debug_assert!(self.taken & 1 << number != 0, "the holder of a slot gives it back");
        self.taken &= !(1 << number);
    }
}

impl Background {
    /// Claims a slot, if one is free.
    pub fn free_slot(self: &Arc<Self>) -> Option<Slot> {
        let number = self.jobs.lock().slots.take();
        number.map(|number| Slot::new(self, number))
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
        let limit = self.jobs.lock().slots.limit();
        let mut all = Vec::with_capacity(limit);
        self.wait_until(|| {
            all.extend(std::iter::from_fn(|| self.free_slot()));
            all.len() == limit
        });
        all
    }
}

/// A claimed slot; free again when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    jobs: Arc<Background>,
    number: usize,
    calm: Calm,
}

impl Slot {
    pub(super) fn new(jobs: &Arc<Background>, number: usize) -> Slot {
        Slot { jobs: jobs.clone(), number, calm: Calm::now() }
    }

    /// Its index, from 0.
    pub fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.jobs.core.health.note_panic(self.calm);
        let is_resumed = {
            let mut jobs = self.jobs.jobs.lock();
            jobs.slots.give_back(self.number);
            !self.jobs.is_closing() && jobs.resume()
        };
        if is_resumed {
            self.jobs.send_ticket(Lane::Compaction);
        }
        self.jobs.idle.notify_all();
    }
}
