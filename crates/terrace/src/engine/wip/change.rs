//! A change of tables: those that a flush or a compaction has written, moved and removed.
//!
//! It goes into the manifest as one group, so after a crash all or nothing of it has happened; readers see it
//! after that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::bucket::{Bucket, Placed, newest_first};
use super::buckets::Buckets;
use super::memtable::BucketMemtable;
use super::{Plan, Wip};
use crate::compaction::buckets::{BucketFigures, BucketTable, KeyRange, kept, sublevels};
use crate::levels::change::RunChange;
use crate::manifest::{Edit, State};

/// A change under construction.
#[derive(Debug, Default)]
pub(super) struct BucketsEdit {
    /// Further edits for the manifest.
    pub edits: Vec<Edit>,
    pub runs: RunChange,
}

impl BucketsEdit {
    /// A key of each table that is added, removed or moved.
    fn keys(&self, state: &State) -> Vec<Vec<u8>> {
        let gone = self.runs.removed().iter().chain(self.runs.moved().iter().map(|(number, _)| number));
        let gone = gone.filter_map(|number| state.tables.get(number)).map(|table| &*table.meta);
        gone.chain(self.runs.added().map(|(_, meta)| meta)).map(|meta| meta.smallest.clone()).collect()
    }
}

/// The excess of a bucket is kept in thousandths.
const THOUSAND: f64 = 1000.0;

impl Wip {
    /// Applies `change` and shows its tables to readers; they hold the contents of the memtables `leaving`.
    /// The new tables, which are whole and durable, are opened first, so that nothing fails once they are in
    /// the manifest.
    pub(super) fn install(&self, change: BucketsEdit, leaving: &[Arc<BucketMemtable>]) -> Result<()> {
        let _alone = self.changing.lock();
        self.install_locked(change, leaving)
    }

    /// The same, with `changing` locked.
    pub(super) fn install_locked(
        &self,
        mut change: BucketsEdit,
        leaving: &[Arc<BucketMemtable>],
    ) -> Result<()> {
        let runs = change.runs.open(&self.runs)?;
        let levels = change.runs.added().map(|(level, _)| level);
        let made: Vec<Placed> = levels.zip(runs).map(|(level, run)| Placed { run, level }).collect();
        let state = self.manifest.state();
        let buckets = self.buckets();
        let keys = change.keys(&state);
        let mut edits = std::mem::take(&mut change.edits);
        edits.extend(self.flushed_edits(&state, &buckets, leaving));
        change.runs.commit(&self.manifest, edits)?;
        self.runs.insert(made.iter().map(|table| table.run.clone()));
        self.show(&buckets, &change.runs, &keys, &made, leaving);
        self.forget_logs();
        self.fit_cache();
        self.jobs.progressed();
        Ok(())
    }

    /// The edits for the manifest when memtables leave: for each bucket the number up to which its writes are
    /// in tables, the same for all buckets, and the first log that is still needed.
    fn flushed_edits(&self, state: &State, buckets: &Buckets, leaving: &[Arc<BucketMemtable>]) -> Vec<Edit> {
        if leaving.is_empty() {
            return Vec::new();
        }
        // Before anything is examined: what is inserted later has a greater number.
        let applied = self.applied.load(Ordering::Acquire);
        let mut edits = Vec::new();
        for bucket in self.holders(buckets, leaving).values() {
            let known = state.buckets.get(&bucket.lower).map_or(0, |known| known.flushed);
            let flushed = flushed(bucket, leaving).max(known);
            edits.push(Edit::SetBucket { lower: bucket.lower.clone(), flushed });
        }
        let stays = |memtable: &Arc<BucketMemtable>| !is_among(leaving, memtable);
        let least = self.memtables().iter().filter(|m| stays(m)).map(|m| m.min_seq()).min();
        let all = least.map_or(applied, |least| applied.min(least.saturating_sub(1)));
        edits.push(Edit::FlushedSeq(all));
        edits.push(Edit::LogNumber(self.first_needed_log(leaving)));
        edits
    }

    /// The buckets that hold one of `memtables`, by their index.
    fn holders<'a>(
        &self,
        buckets: &'a Buckets,
        memtables: &[Arc<BucketMemtable>],
    ) -> BTreeMap<usize, &'a Arc<Bucket>> {
        let mut holders = BTreeMap::new();
        for memtable in memtables {
            let first = buckets.place(&memtable.lower);
            let within = buckets.iter().skip(first).take_while(|bucket| memtable.reaches(&bucket.lower));
            holders.extend(within.enumerate().map(|(at, bucket)| (first + at, bucket)));
        }
        holders
    }

    /// Shows the change to readers, each bucket in one step; `keys` belong to the tables that are added,
    /// removed or moved.
    fn show(
        &self,
        buckets: &Buckets,
        change: &RunChange,
        keys: &[Vec<u8>],
        made: &[Placed],
        leaving: &[Arc<BucketMemtable>],
    ) {
        let mut touched = self.holders(buckets, leaving);
        for key in keys {
            let place = buckets.place(key);
            touched.insert(place, buckets.at(place));
        }
        for bucket in touched.values() {
            let new: Vec<&Placed> = made.iter().filter(|t| bucket.holds(&t.run.meta().smallest)).collect();
            bucket.readable.rcu(|now| {
                let mut next = (**now).clone();
                next.memtables = now.memtables.without(|memtable| is_among(leaving, memtable));
                let kept = now.tables.iter().filter(|t| !change.removed().contains(&t.run.number()));
                let mut tables: Vec<Placed> = kept.chain(new.iter().copied()).cloned().collect();
                for (number, level) in change.moved() {
                    tables.iter_mut().filter(|t| t.run.number() == *number).for_each(|t| t.level = *level);
                }
                next.tables = newest_first(tables);
                next
            });
        }
        if !leaving.is_empty() {
            let mut frozen = self.frozen.lock();
            frozen.retain(|memtable| !is_among(leaving, memtable));
            let bytes: u64 = leaving.iter().map(|memtable| memtable.closed_bytes()).sum();
            self.frozen_bytes.fetch_sub(bytes, Ordering::Relaxed);
            leaving.iter().for_each(|memtable| memtable.leave());
        }
        let plan = self.planning.lock();
        touched.values().for_each(|bucket| self.note_figures(&plan, bucket));
    }

    fn forget_logs(&self) {
        self.span.lock().forget_before(self.manifest.state().log_number);
    }

    /// Updates the figures for the choice of compactions.
    pub(super) fn note_figures(&self, plan: &Plan, bucket: &Bucket) {
        let readable = bucket.readable.load();
        let keeping = self.manifest.state().candidates.clone();
        let tables: Vec<BucketTable<'_>> =
            readable.tables.iter().map(|placed| placed.figures(&keeping, &plan.busy)).collect();
        let uppermost = tables.iter().filter(|table| table.level == 0);
        let ranges: Vec<KeyRange<'_>> = uppermost.map(|table| (table.smallest, table.largest)).collect();
        bucket.depth.store(sublevels(&ranges), Ordering::Relaxed);
        let merged = bucket.merged.load(Ordering::Relaxed);
        let stays = kept(&tables, self.bytes_kept());
        let stays = tables.iter().filter(|t| stays.contains(&t.number)).map(|t| t.bytes).sum();
        let figures = BucketFigures::new(&tables, bucket.overlap(), merged, bucket.seed());
        let mut figures = figures.keeping(stays);
        for (level, of_level) in figures.levels.iter_mut().enumerate() {
            // A merge of the whole bucket reads only older tables than those that arrive meanwhile, which are
            // merged beside it.
            of_level.is_busy = tables
                .iter()
                .any(|t| t.level as usize == level && t.busy && !plan.read_whole.contains(&t.number));
        }
        let excess = figures.excess(&self.bucket_options(), self.seen().first().copied());
        bucket.excess.store((excess * THOUSAND) as u64, Ordering::Relaxed);
        *bucket.figures.lock() = figures;
    }
}

/// The sequence number up to which the writes of `bucket` are in tables once `leaving` are.
fn flushed(bucket: &Bucket, leaving: &[Arc<BucketMemtable>]) -> u64 {
    let readable = bucket.readable.load();
    let (gone, stays): (Vec<_>, Vec<_>) = readable.memtables.iter().partition(|m| is_among(leaving, m));
    let least = stays.iter().map(|memtable| memtable.min_seq()).min().unwrap_or(u64::MAX);
    let greatest = gone.iter().map(|memtable| memtable.max_seq()).max().unwrap_or(0);
    greatest.min(least.saturating_sub(1))
}

fn is_among(all: &[Arc<BucketMemtable>], memtable: &Arc<BucketMemtable>) -> bool {
    all.iter().any(|other| Arc::ptr_eq(other, memtable))
}
