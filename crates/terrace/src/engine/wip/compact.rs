//! Running compactions, one after the other as they are chosen.
//!
//! The manifest takes outputs and the end of their inputs in one group, so after a crash a compaction has
//! happened or not. No two jobs read one table.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Calm, Error, Result};

use super::bucket::{Bucket, Placed};
use super::change::BucketsEdit;
use super::whole::Ended;
use super::{Plan, Wip};
use crate::background::{Compacting, Patience};
use crate::compaction::buckets::{BucketFigures, LEVELS, Pick, choose};

/// A compaction to run.
enum Job {
    /// All of a level into one sublevel of the next.
    Level(Arc<Bucket>, usize),
    /// The whole bucket.
    Whole(Arc<Bucket>),
    /// Two neighbours become one.
    Join(Arc<Bucket>, Arc<Bucket>),
}

/// What has become of a requested merge of a whole bucket.
enum Tried {
    Done,
    /// An ingest has divided it before.
    Replaced,
    /// There is no room for it.
    Refused(Error),
}

/// Tables that are busy until this is dropped.
pub(super) struct Claim<'a> {
    wip: &'a Wip,
    pub bucket: Arc<Bucket>,
    pub tables: Vec<Placed>,
    pub(super) calm: Calm,
}

impl<'a> Claim<'a> {
    /// Makes those `wanted` tables of `bucket` busy that are not busy yet. `plan` is the engine's.
    pub fn of(
        wip: &'a Wip,
        plan: &mut Plan,
        bucket: &Arc<Bucket>,
        wanted: impl Fn(&Placed) -> bool,
    ) -> Claim<'a> {
        let is_free = |table: &&Placed| !plan.busy.contains(&table.run.number());
        let readable = bucket.readable.load();
        let tables: Vec<Placed> =
            readable.tables.iter().filter(is_free).filter(|table| wanted(table)).cloned().collect();
        plan.busy.extend(tables.iter().map(|table| table.run.number()));
        wip.note_figures(plan, bucket);
        Claim { wip, bucket: bucket.clone(), tables, calm: Calm::now() }
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.tables.iter().map(|table| table.run.number()).collect()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.wip.core.health.note_panic(self.calm);
        let mut plan = self.wip.planning.lock();
        for table in &self.tables {
            plan.busy.remove(&table.run.number());
            plan.read_whole.remove(&table.run.number());
        }
        // If the bucket was replaced, its tables are in others.
        let buckets = self.wip.buckets();
        for bucket in buckets.within(&self.bucket.lower, self.bucket.upper.as_deref()) {
            self.wip.note_figures(&plan, bucket);
        }
        drop(plan);
        self.wip.jobs.progressed();
    }
}

impl Wip {
    /// Does the most worthwhile compaction; false if there is none, or no time. The caller has a slot.
    pub(super) fn compact_next(&self) -> Result<bool> {
        let outcome = match self.next_job() {
            Ok(None) => return Ok(false),
            Ok(Some(Job::Level(bucket, level))) => self.compact_level(&bucket, level, Patience::UntilClosing),
            Ok(Some(Job::Whole(bucket))) => {
                self.merge_whole(&bucket, Patience::UntilClosing).map(|ended| ended != Ended::NotBegun)
            }
            Ok(Some(Job::Join(left, right))) => self.join(&left, &right),
            Err(e) => Err(e),
        };
        if outcome.is_err() && self.jobs.is_closing() {
            return Ok(false);
        }
        outcome.inspect_err(|_| self.core.counters.background_errors.add(1))
    }

    /// Starts compactions in the background, as soon as a slot is free.
    pub(super) fn spawn_compaction(&self) {
        // Groups that are replayed go into the buckets that existed when their reading began.
        let is_replaying = self.replaying.load(Ordering::Acquire);
        if self.core.options.read_only || self.core.is_scratch || is_replaying {
            return;
        }
        let how: Compacting<Wip> = Compacting {
            begin: |_| Ok(()),
            next: |wip, _| wip.compact_next(),
            is_due: |wip| matches!(wip.next_job(), Ok(Some(_))),
            sweep: Wip::sweep,
        };
        self.jobs.compact(&self.me, how);
    }

    /// The next job; an error if there is room for none.
    fn next_job(&self) -> Result<Option<Job>> {
        // As a merge sees it: versions that nobody sees yet cannot be dropped, and would be merged again and
        // again.
        let oldest = self.seen().first().copied();
        let plan = self.planning.lock();
        let buckets = self.buckets();
        let figures = |bucket: &Arc<Bucket>| {
            let mut figures = bucket.figures.lock().clone();
            // The levels of a bucket that is merged as a whole are still compacted, until that merge is about
            // to end.
            figures.is_busy |= plan.whole.contains(&bucket.lower);
            if plan.ending.contains(&bucket.lower) {
                figures.levels.iter_mut().for_each(|level| level.is_busy = true);
            }
            figures
        };
        let figures: Vec<BucketFigures> = buckets.iter().map(figures).collect();
        let reads: Vec<[u64; LEVELS]> = buckets.iter().map(|bucket| bucket.reads()).collect();
        let mut options = self.bucket_options();
        if choose(&figures, &reads, &options, oldest).is_none() {
            return Ok(None);
        }
        options.room = self.room_for_merges()?;
        let pick = choose(&figures, &reads, &options, oldest).ok_or_else(|| self.no_room())?;
        Ok(Some(match pick {
            Pick::Level { bucket, level } => Job::Level(buckets.at(bucket).clone(), level),
            Pick::Whole { bucket } => Job::Whole(buckets.at(bucket).clone()),
            Pick::Join { left } => Job::Join(buckets.at(left).clone(), buckets.at(left + 1).clone()),
        }))
    }

    /// Merges all free sublevels of `level` into one of the next; false if nothing is left to merge.
    pub(super) fn compact_level(
        &self,
        bucket: &Arc<Bucket>,
        level: usize,
        patience: Patience,
    ) -> Result<bool> {
        let claim = {
            let mut plan = self.planning.lock();
            if plan.ending.contains(&bucket.lower) || !self.is_current(bucket) {
                // The choice is out of date: there may be another.
                return Ok(true);
            }
            Claim::of(self, &mut plan, bucket, |table| table.level == level)
        };
        if claim.tables.is_empty() {
            return Ok(false);
        }
        let running = self.core.begin_compaction();
        let cuts = bucket.cuts.lock().clone();
        let written = self.merge_tables(&claim, &claim.tables, cuts, patience)?;
        let bytes = written.iter().map(|table| table.meta.file_bytes).sum();
        let mut change = BucketsEdit::default();
        change.runs.remove(claim.numbers());
        change.runs.add(level + 1, written);
        self.install(change, &[])?;
        bucket.forget_reads(level);
        self.core.counters.count_compaction(level + 1, bytes);
        running.done(bytes);
        self.runs.remove_merged(&[], with_max_seqs(&claim.tables));
        self.estimate_overlap(bucket);
        Ok(true)
    }

    /// Merges every bucket with keys of the range as a whole. Buckets without room to merge wait until the
    /// others have freed what they can.
    pub(super) fn compact_range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        if self.core.options.read_only {
            return Err(Error::ReadOnly);
        }
        // Nobody else compacts meanwhile.
        let _slots = self.jobs.all_slots();
        let mut refused = self.merge_range(from, to)?;
        while !refused.is_empty() {
            let before = refused.len();
            let mut still = Vec::new();
            for (bucket, _) in refused {
                // An ingest may have divided it meanwhile.
                let upper = bucket.upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                still.extend(self.merge_range(Bound::Included(&bucket.lower), upper)?);
            }
            if still.len() >= before {
                return still.pop().map_or(Ok(()), |(_, why)| Err(why));
            }
            refused = still;
        }
        Ok(())
    }

    /// Merges them one after the other; returns those that lacked room, and why.
    fn merge_range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Vec<(Arc<Bucket>, Error)>> {
        let mut next = match from {
            Bound::Included(from) | Bound::Excluded(from) => Some(from.to_vec()),
            Bound::Unbounded => Some(Vec::new()),
        };
        let (mut is_first, mut refused) = (true, Vec::new());
        while let Some(key) = next.take() {
            let is_past = match to {
                Bound::Included(to) => *key > *to,
                Bound::Excluded(to) => *key >= *to && !is_first,
                Bound::Unbounded => false,
            };
            if is_past {
                break;
            }
            let bucket = self.buckets().find(&key).clone();
            match self.merge_unless_full(&bucket)? {
                Tried::Replaced => {
                    next = Some(key);
                    continue;
                }
                Tried::Refused(why) => refused.push((bucket.clone(), why)),
                Tried::Done => {}
            }
            is_first = false;
            next = bucket.upper.clone();
        }
        Ok(refused)
    }

    /// Merges `bucket` as a whole, if there is room for that.
    fn merge_unless_full(&self, bucket: &Arc<Bucket>) -> Result<Tried> {
        let ended = self.merge_whole(bucket, Patience::ToTheEnd);
        self.sweep();
        match ended.inspect_err(|_| self.core.counters.background_errors.add(1)) {
            Err(e) if e.is_out_of_space() => Ok(Tried::Refused(e)),
            Ok(Ended::NotBegun) if !self.is_current(bucket) => Ok(Tried::Replaced),
            ended => ended.map(|_| Tried::Done),
        }
    }
}

/// The numbers of `tables`, each with its highest sequence number.
pub(super) fn with_max_seqs(tables: &[Placed]) -> Vec<(u64, u64)> {
    tables.iter().map(|table| (table.run.meta().max_seq, table.run.number())).collect()
}
