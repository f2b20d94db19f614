//! Room in memory and in the log: which memtables are flushed, and how writers are throttled before they have
//! to wait.
//!
//! All memtables together stay within their share of the memory budget. A memtable is flushed when it is
//! full; if memory is short, the largest are flushed; if the log exceeds its limit, those that hold back its
//! oldest part are flushed.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use terrace_base::Result;

use super::Wip;
use super::bucket::Bucket;
use super::memtable::BucketMemtable;
use super::write::{Most, Touched};
use crate::compaction::leveled::{Limits, Load, delay};
use crate::core::request::Group;
use crate::options::BucketMemtableKind;

/// Approximate bytes that an operation takes in a memtable beside its key and value.
const ENTRY_BYTES: u64 = 48;

/// The part of their budget that active memtables may take; the rest is for those that are being flushed.
const WRITTEN_SIXTEENTHS: u64 = 12;

/// If memory is short, memtables of this part of the budget are flushed together.
const TOGETHER: u64 = 32;

/// Throttling begins when level 0 of a bucket has this many times the sublevels at which it is compacted;
/// writers wait at the second multiple. With less, background threads idle in a load of batches: a merge has to end
/// before its level shrinks.
const SLOW_TIMES: usize = 5;
const STOP_TIMES: usize = 16;

/// The same for how many times its intended size a bucket holds, in thousandths.
const SLOW_EXCESS: u64 = 2000;
const STOP_EXCESS: u64 = 3000;

/// Bytes of waiting memtables, as a share of the budget, at which throttling begins.
const FILL: f64 = 0.85;

/// The buckets of the last group with the largest backlog of compactions.
struct Behind {
    deepest: Option<Arc<Bucket>>,
    fullest: Option<Arc<Bucket>>,
}

impl Behind {
    fn of(Touched { deepest, fullest, .. }: Touched) -> Behind {
        Behind { deepest: upgrade(deepest), fullest: upgrade(fullest) }
    }
}

fn upgrade<T>(most: Option<Most<T>>) -> Option<Arc<Bucket>> {
    most.and_then(|(bucket, _)| bucket.upgrade())
}

impl Wip {
    /// Size at which a memtable is full: larger if few share the memory. Buckets that nobody writes to, as those that
    /// ascending keys have left behind, have no part in it.
    pub(super) fn memtable_limit(&self) -> u64 {
        let wip = &self.core.options.wip;
        let share = self.memtables_budget() / (4 * self.memory.filling().max(1));
        share.clamp(wip.memtable_bytes, wip.most_memtable_bytes)
    }

    /// Flushes memtables that are full or in the way, waits if there is no room, and throttles before that.
    pub(super) fn make_room(&self, group: &Group<'_>) -> Result<()> {
        let touched = std::mem::take(&mut *self.touched.lock());
        self.freeze(&touched.full.iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
        let behind = Behind::of(touched);
        self.make_room_in_log()?;
        let need = group.bytes() + group.ops() * ENTRY_BYTES;
        let budget = self.memtables_budget();
        loop {
            let (held, frozen) = (self.memory.held(), self.frozen_bytes.load(Ordering::Relaxed));
            let written = held.saturating_sub(frozen);
            if written + need > budget / 16 * WRITTEN_SIXTEENTHS && self.freeze_largest(budget / TOGETHER) {
                continue;
            }
            if held + need <= budget || !self.has_frozen() {
                return self.slow_down(&behind, held as f64 / budget as f64, group.bytes());
            }
            self.wait_for_flush()?;
        }
    }

    /// Throttles whoever brings `bytes` to the buckets of `keys` past their memtables.
    pub(super) fn slow_down_beside<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        bytes: u64,
    ) -> Result<()> {
        let (mut touched, buckets) = (Touched::default(), self.buckets());
        keys.for_each(|key| touched.note_load(buckets.find(key)));
        self.slow_down(&Behind::of(touched), 0.0, bytes)
    }

    /// Spreads the wait for background work over the preceding writes, so that no single one stops for long.
    fn slow_down(&self, behind: &Behind, fill: f64, bytes: u64) -> Result<()> {
        let sublevels = self.core.options.wip.sublevels;
        let limits = Limits {
            l0_tables: (SLOW_TIMES * sublevels, STOP_TIMES * sublevels),
            debt: (SLOW_EXCESS, STOP_EXCESS),
            memtable_fill: FILL,
        };
        let debt_of = |bucket: &Option<Arc<Bucket>>| bucket.as_ref().map_or((0, 0), |b| self.debt_of(b));
        let load = || Load {
            l0_tables: debt_of(&behind.deepest).0,
            debt: debt_of(&behind.fullest).1,
            memtables_full: self.has_frozen(),
            memtable_fill: fill,
            group_bytes: bytes,
        };
        self.jobs.slow_down(|| delay(&load(), &limits), || self.compact_for_writers())
    }

    /// Sublevels on level 0 of `bucket`, and its excess size; zero once others have replaced it. Its figures
    /// no longer change then, and a writer waiting for them would wait until no work is left anywhere.
    pub(super) fn debt_of(&self, bucket: &Bucket) -> (usize, u64) {
        match self.is_current(bucket) {
            true => (bucket.depth.load(Ordering::Relaxed), bucket.excess.load(Ordering::Relaxed)),
            false => (0, 0),
        }
    }

    /// Replaces the active memtables of `buckets`, and starts the flush of the old ones.
    pub(super) fn freeze(&self, buckets: &[Arc<Bucket>]) {
        if buckets.is_empty() {
            return;
        }
        let writing = self.writing.lock();
        for bucket in buckets {
            self.freeze_one(bucket);
        }
        drop(writing);
        self.fit_cache();
        self.spawn_flush();
    }

    /// Notes that a range read has met the active memtable. A memtable that would be sorted again and again
    /// is closed: then it is sorted once for all, and the next one is ordered.
    pub(super) fn note_range(&self, bucket: &Arc<Bucket>, active: &BucketMemtable) {
        let have_become_many = bucket.ranges.note(self.core.env.clock.now());
        let options = &self.core.options;
        let may_close = !options.read_only && !self.core.is_scratch && !self.jobs.is_closing();
        let is_adaptive = options.wip.memtable == BucketMemtableKind::Adaptive;
        if is_adaptive && may_close && have_become_many && active.is_unsorted() {
            self.freeze(std::slice::from_ref(bucket));
        }
    }

    /// Closes the memtable of `bucket`, unless it is empty. `writing` is locked.
    fn freeze_one(&self, bucket: &Bucket) {
        let readable = bucket.readable.load();
        // A bucket that was replaced meanwhile has had its memtable closed.
        if readable.active().is_empty() || !self.is_current(bucket) {
            return;
        }
        let ranges_come = bucket.ranges.take();
        let next = self.new_memtable(bucket.range(), ranges_come);
        // In this order: if a flush begins at once, an active memtable must remain.
        bucket.readable.rcu(|now| now.with(&next));
        self.queue(readable.active());
    }

    /// Whether nothing has replaced `bucket`.
    pub(super) fn is_current(&self, bucket: &Bucket) -> bool {
        std::ptr::eq(&**self.buckets.load().find(&bucket.lower), bucket)
    }

    /// Queues `memtable`, which takes no more writes, for its flush.
    pub(super) fn queue(&self, memtable: &Arc<BucketMemtable>) {
        memtable.freeze();
        self.frozen_bytes.fetch_add(memtable.closed_bytes(), Ordering::Relaxed);
        self.frozen.lock().push_back(memtable.clone());
    }

    /// Flushes every memtable.
    pub(super) fn freeze_all(&self) {
        let buckets: Vec<Arc<Bucket>> = self.buckets().iter().cloned().collect();
        self.freeze(&buckets);
    }

    /// Flushes the largest memtables, of this many bytes together; returns whether there were any.
    fn freeze_largest(&self, bytes: u64) -> bool {
        let buckets = self.buckets();
        let size = |bucket: &Arc<Bucket>| (bucket.readable.load().active().dram_bytes(), bucket.clone());
        let mut sizes: Vec<(u64, Arc<Bucket>)> = buckets.iter().map(size).collect();
        sizes.retain(|(_, bucket)| !bucket.readable.load().active().is_empty());
        sizes.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        let mut sum = 0;
        let enough = |(size, _): &(u64, Arc<Bucket>)| {
            let wanted = sum < bytes;
            sum += size;
            wanted
        };
        let largest: Vec<Arc<Bucket>> =
            sizes.into_iter().take_while(enough).map(|(_, bucket)| bucket).collect();
        self.freeze(&largest);
        !largest.is_empty()
    }

    /// Flushes the memtables whose first log is `number` or an earlier one.
    pub(super) fn freeze_logged_up_to(&self, number: u64) {
        let holds = |bucket: &&Arc<Bucket>| bucket.readable.load().active().first_log().is_up_to(number);
        let holders: Vec<Arc<Bucket>> = self.buckets().iter().filter(holds).cloned().collect();
        self.freeze(&holders);
    }

    pub(super) fn has_frozen(&self) -> bool {
        !self.frozen.lock().is_empty()
    }

    /// Waits until the memtable that has waited longest is flushed.
    pub(super) fn wait_for_flush(&self) -> Result<()> {
        let first = self.frozen.lock().front().cloned();
        first.map_or(Ok(()), |first| self.wait_for_flush_of(&first))
    }

    /// Waits until all memtables are flushed that wait for it now. Others may join meanwhile, without end.
    pub(super) fn wait_for_frozen(&self) -> Result<()> {
        let last = self.frozen.lock().back().cloned();
        last.map_or(Ok(()), |last| self.wait_for_flush_of(&last))
    }

    fn wait_for_flush_of(&self, memtable: &Arc<BucketMemtable>) -> Result<()> {
        let gone = || !self.frozen.lock().iter().any(|other| Arc::ptr_eq(other, memtable));
        self.flushes.wait_until(&self.core, gone, || self.run_flushes(gone))
    }

    /// Does a compaction that writers wait for. A lack of room to merge is no reason to refuse writes that
    /// there is room for.
    fn compact_for_writers(&self) -> Result<bool> {
        match self.compact_next() {
            Err(e) if e.is_out_of_space() => Ok(false),
            outcome => outcome,
        }
    }

    /// Has the waiting memtables flushed in the background, by one job: another one would keep a thread from
    /// compactions while it waits for the first.
    pub(super) fn spawn_flush(&self) {
        if self.is_flushing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.jobs.spawn_flush(&self.me, |wip| {
            loop {
                let outcome = {
                    let _ends = FlushingEnds(wip);
                    wip.run_flushes(|| false)
                };
                outcome?;
                // Who has come since it was seen empty has begun no job.
                if !wip.has_frozen() || wip.is_flushing.swap(true, Ordering::AcqRel) {
                    return Ok(());
                }
            }
        });
    }
}

/// No job flushes any more once this is dropped.
struct FlushingEnds<'a>(&'a Wip);

impl Drop for FlushingEnds<'_> {
    fn drop(&mut self) {
        self.0.is_flushing.store(false, Ordering::Release);
    }
}
