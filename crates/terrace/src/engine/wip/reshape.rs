//! Replacing buckets: one by several, two by one.
//!
//! The manifest is told first; then, between two groups, everybody is shown the new ones. Active memtables
//! are closed and stay in every new bucket that has keys of theirs, until they are flushed.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::Wip;
use super::bucket::{Bucket, Placed, newest_first};
use super::change::BucketsEdit;
use super::memtable::BucketMemtable;
use crate::events::Event;
use crate::manifest::Edit;
use crate::memtable::Memtables;

impl Wip {
    /// Applies `change`, and also splits `bucket` into several that begin at `boundaries`. None of its tables
    /// spans one of them, and no job runs in it.
    pub(super) fn split(
        &self,
        bucket: &Arc<Bucket>,
        mut change: BucketsEdit,
        boundaries: &[Vec<u8>],
    ) -> Result<()> {
        let _no_flush = self.flushes.claim();
        let alone = self.changing.lock();
        let flushed = self.flushed_of(bucket);
        let begin = |lower: &Vec<u8>| Edit::SetBucket { lower: lower.clone(), flushed };
        change.edits.extend(boundaries.iter().map(begin));
        self.install_locked(change, &[])?;
        self.replace(&[bucket], boundaries);
        drop(alone);
        self.reshaped.splits.fetch_add(1, Ordering::Relaxed);
        self.core.events.tell(|| Event::BucketSplit { into: boundaries.len() + 1 });
        self.spawn_flush();
        Ok(())
    }

    /// Joins two neighbours; true, done or not: there may be another job.
    pub(super) fn join(&self, left: &Arc<Bucket>, right: &Arc<Bucket>) -> Result<bool> {
        let _no_flush = self.flushes.claim();
        let _alone = self.changing.lock();
        if !self.claim_both(left, right) {
            return Ok(true);
        }
        let flushed = self.flushed_of_both(left, right);
        let edits = [
            Edit::RemoveBucket { lower: right.lower.clone() },
            Edit::SetBucket { lower: left.lower.clone(), flushed },
        ];
        let outcome = self.manifest.apply(&edits);
        if outcome.is_ok() {
            self.replace(&[left, right], &[]);
            self.reshaped.joins.fetch_add(1, Ordering::Relaxed);
            self.core.events.tell(|| Event::BucketJoin);
        }
        let mut plan = self.planning.lock();
        for bucket in [left, right] {
            plan.whole.remove(&bucket.lower);
            plan.ending.remove(&bucket.lower);
        }
        drop(plan);
        if outcome.is_ok() {
            // A flush begins compactions in turn: after a failure that would be this one again, without end.
            self.spawn_flush();
        }
        outcome.map(|()| true)
    }

    /// Keeps jobs from beginning in either, if none runs and both still exist.
    fn claim_both(&self, left: &Arc<Bucket>, right: &Arc<Bucket>) -> bool {
        let mut plan = self.planning.lock();
        let is_free = |bucket: &Arc<Bucket>| {
            self.is_current(bucket) && !plan.whole.contains(&bucket.lower) && !plan.has_busy(bucket, &[])
        };
        if !is_free(left) || !is_free(right) || left.upper.as_ref() != Some(&right.lower) {
            return false;
        }
        for bucket in [left, right] {
            plan.whole.insert(bucket.lower.clone());
            plan.ending.insert(bucket.lower.clone());
        }
        true
    }

    /// The number up to which two buckets together are in tables. A bucket without writes in memtables counts
    /// as far as the other, whatever the manifest records for it: it was not written to since.
    fn flushed_of_both(&self, left: &Bucket, right: &Bucket) -> u64 {
        let least = |bucket: &Bucket| bucket.readable.load().memtables.iter().map(|m| m.min_seq()).min();
        let held = least(left).into_iter().chain(least(right)).min().unwrap_or(u64::MAX);
        let (left, right) = (self.flushed_of(left), self.flushed_of(right));
        left.max(right).min(held.saturating_sub(1)).max(left.min(right))
    }

    fn flushed_of(&self, bucket: &Bucket) -> u64 {
        self.manifest.state().buckets.get(&bucket.lower).map_or(0, |known| known.flushed)
    }

    /// Replaces `old`, which are neighbours, by buckets that begin where the first of them does and at
    /// `boundaries`, and shows these.
    pub(super) fn replace(&self, old: &[&Arc<Bucket>], boundaries: &[Vec<u8>]) {
        let _writing = self.writing.lock();
        let buckets = self.buckets();
        let (memtables, tables) = self.contents(old);
        let (first, last) = (old[0], old[old.len() - 1]);
        let lowers = std::iter::once(&first.lower).chain(boundaries);
        let uppers = boundaries.iter().cloned().map(Some).chain([last.upper.clone()]);
        let new = lowers.zip(uppers).map(|(lower, upper)| self.part(lower, upper, &memtables, &tables));
        let new: Vec<Arc<Bucket>> = new.collect();
        let next = buckets.replaced(buckets.place(&first.lower), old.len(), new.clone());
        // A thread that chooses a job holds this lock, and so meets no bucket without its figures.
        let plan = self.planning.lock();
        new.iter().for_each(|bucket| self.note_figures(&plan, bucket));
        self.buckets.store(Arc::new(next));
    }

    /// The memtables of `old`, all of them closed, newest first, and the tables.
    fn contents(&self, old: &[&Arc<Bucket>]) -> (Vec<Arc<BucketMemtable>>, Vec<Placed>) {
        let (mut memtables, mut tables) = (Vec::new(), Vec::new());
        for bucket in old {
            let readable = bucket.readable.load();
            if !readable.active().is_empty() {
                self.queue(readable.active());
            }
            for memtable in readable.memtables.iter().filter(|memtable| !memtable.is_empty()) {
                if !memtables.iter().any(|known| Arc::ptr_eq(known, memtable)) {
                    memtables.push(memtable.clone());
                }
            }
            tables.extend(readable.tables.iter().cloned());
        }
        // Of two with common keys one was closed before the other began.
        memtables.sort_by_key(|memtable| Reverse(memtable.max_seq()));
        (memtables, tables)
    }

    fn part(
        &self,
        lower: &[u8],
        upper: Option<Vec<u8>>,
        memtables: &[Arc<BucketMemtable>],
        tables: &[Placed],
    ) -> Arc<Bucket> {
        let has = |key: &[u8]| *lower <= *key && upper.as_ref().is_none_or(|upper| *key < **upper);
        let own: Vec<Placed> =
            tables.iter().filter(|table| has(&table.run.meta().smallest)).cloned().collect();
        debug_assert!(own.iter().all(|table| has(&table.run.meta().largest)), "no table spans buckets");
        let active = self.new_memtable((lower, upper.as_deref()), false);
        // One of another range would stay here: after its flush nobody looks for it here.
        let reaches = |memtable: &&Arc<BucketMemtable>| {
            memtable.reaches(lower) && upper.as_ref().is_none_or(|upper| memtable.lower < *upper)
        };
        let reaching = memtables.iter().filter(reaches).cloned();
        let memtables = Memtables::new(std::iter::once(active).chain(reaching).collect());
        Bucket::new(lower.to_vec(), upper, memtables, newest_first(own))
    }
}
