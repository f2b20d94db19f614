//! Merging a whole bucket into one sorted list, after which it may be split.
//!
//! Meanwhile the bucket serves reads and writes as usual; its newer tables are compacted beside the merge.
//! Every table written for the bucket meanwhile ends at the keys where it may be split, so the split rewrites
//! no table. It is split if more than half of what it may hold lives; otherwise it was full of dead entries,
//! and stays one.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_table::TableMeta;

use super::Wip;
use super::bucket::{Bucket, LAST_LEVEL, Placed};
use super::change::BucketsEdit;
use super::compact::{Claim, with_max_seqs};
use crate::background::Patience;
use crate::compaction::buckets::{BucketOptions, BucketTable, LEVELS, fit, kept, pieces, splitters};
use crate::levels::output::Written;

/// The outcome of a merge of a whole bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Another job is running in the bucket.
    NotBegun,
    /// It is one sorted list, beside whatever arrived meanwhile.
    Merged,
    /// The same, in several buckets.
    Split,
}

/// Marks a bucket as being merged as a whole; dropping this removes the mark and its cuts.
struct Whole<'a> {
    wip: &'a Wip,
    claim: Claim<'a>,
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.wip.core.health.note_panic(self.claim.calm);
        let lower = &self.claim.bucket.lower;
        // In this order: the next merge of the whole bucket has its own cuts.
        self.claim.bucket.cuts.lock().clear();
        let mut plan = self.wip.planning.lock();
        plan.whole.remove(lower);
        plan.ending.remove(lower);
    }
}

impl Wip {
    /// Merges all tables of `bucket` into one sorted list on its last level, and splits it if it is too large for one.
    pub(super) fn merge_whole(&self, bucket: &Arc<Bucket>, patience: Patience) -> Result<Ended> {
        let oldest = self.seen().first().copied();
        let live = bucket.figures.lock().live_bytes(oldest);
        let most = pieces(live, &self.bucket_options()).max(self.core.options.wip.split_into);
        let splitters = splitters(&sample(bucket)?, most, &bucket.lower);
        let Some((whole, kept)) = self.claim_whole(bucket, splitters, patience) else {
            return Ok(Ended::NotBegun);
        };
        let running = self.core.begin_compaction();
        let cuts = bucket.cuts.lock().clone();
        let (stay, inputs): (Vec<Placed>, Vec<Placed>) =
            whole.claim.tables.iter().cloned().partition(|table| kept.contains(&table.run.number()));
        let written = self.merge_tables(&whole.claim, &inputs, cuts.clone(), patience)?;
        self.close_to_jobs(&whole);
        let live = stay.iter().map(|table| table.run.meta()).chain(written.iter().map(|table| &table.meta));
        let boundaries = boundaries(cuts, live, &self.bucket_options());
        let bytes = written.iter().map(|table| table.meta.file_bytes).sum();
        self.end_whole(&whole, &stay, &inputs, written, &boundaries)?;
        running.done(bytes);
        Ok(if boundaries.is_empty() { Ended::Merged } else { Ended::Split })
    }

    /// Claims all tables of `bucket`, in which no job may run; from now on tables written for it end where it
    /// may be split.
    fn claim_whole(
        &self,
        bucket: &Arc<Bucket>,
        splitters: Vec<Vec<u8>>,
        patience: Patience,
    ) -> Option<(Whole<'_>, Vec<u64>)> {
        // A running flush would not know where to end its tables.
        let _no_flush = self.flushes.claim();
        let mut plan = self.planning.lock();
        if !self.is_current(bucket) || plan.whole.contains(&bucket.lower) || plan.has_busy(bucket, &[]) {
            return None;
        }
        plan.whole.insert(bucket.lower.clone());
        let claim = Claim::of(self, &mut plan, bucket, |_| true);
        plan.read_whole.extend(claim.tables.iter().map(|table| table.run.number()));
        self.note_figures(&plan, bucket);
        drop(plan);
        if claim.tables.is_empty() {
            self.planning.lock().whole.remove(&bucket.lower);
            return None;
        }
        let keeping = self.manifest.state().candidates.clone();
        let nothing = Default::default();
        let tables: Vec<BucketTable<'_>> =
            claim.tables.iter().map(|table| table.figures(&keeping, &nothing)).collect();
        // Who asks for a compaction wants all that a table may come to be.
        let meets_all = patience == Patience::ToTheEnd && self.core.may_change_tables();
        let kept = if meets_all { Vec::new() } else { kept(&tables, self.bytes_kept()) };
        let is_kept = |table: &&BucketTable<'_>| kept.contains(&table.number);
        let ranges: Vec<(&[u8], &[u8])> =
            tables.iter().filter(is_kept).map(|table| (table.smallest, table.largest)).collect();
        let mut cuts = fit(splitters, &ranges, &bucket.lower);
        cuts.retain(|cut| *cut > bucket.lower && bucket.holds(cut));
        drop(tables);
        *bucket.cuts.lock() = cuts;
        Some((Whole { wip: self, claim }, kept))
    }

    /// Sizes of tables that a merge of the whole bucket may keep as they are.
    pub(super) fn bytes_kept(&self) -> RangeInclusive<u64> {
        let piece = self.piece_bytes();
        piece / 4..=piece * 2
    }

    /// Keeps other jobs from beginning in the bucket, and waits for those that run.
    fn close_to_jobs(&self, whole: &Whole<'_>) {
        let (bucket, own) = (&whole.claim.bucket, whole.claim.numbers());
        self.planning.lock().ending.insert(bucket.lower.clone());
        self.jobs.wait_until(|| !self.planning.lock().has_busy(bucket, &own));
    }

    /// Replaces the merged inputs by the outputs, and splits the bucket at `boundaries`.
    fn end_whole(
        &self,
        whole: &Whole<'_>,
        stay: &[Placed],
        inputs: &[Placed],
        written: Vec<Written>,
        boundaries: &[Vec<u8>],
    ) -> Result<()> {
        let bucket = &whole.claim.bucket;
        let bytes: u64 = written.iter().map(|table| table.meta.file_bytes).sum();
        let live = bytes + stay.iter().map(|table| table.run.meta().file_bytes).sum::<u64>();
        let mut change = BucketsEdit::default();
        change.runs.remove(inputs.iter().map(|table| table.run.number()));
        stay.iter()
            .filter(|table| table.level != LAST_LEVEL)
            .for_each(|table| change.runs.move_to(LAST_LEVEL, [table.run.number()]));
        change.runs.add(LAST_LEVEL, written.into_iter().map(keeping_tombstones).collect());
        if boundaries.is_empty() {
            self.install(change, &[])?;
        } else {
            self.split(bucket, change, boundaries)?;
        }
        (0..LEVELS).for_each(|level| bucket.forget_reads(level));
        bucket.note_overlap(0.0);
        bucket.merged.store(if boundaries.is_empty() { live } else { 0 }, Ordering::Relaxed);
        // While it still counts as being merged: by its old figures it would be chosen again at once.
        self.note_figures(&self.planning.lock(), bucket);
        self.core.counters.count_compaction(LAST_LEVEL, bytes);
        self.runs.remove_merged(&[], with_max_seqs(inputs));
        Ok(())
    }

    /// Estimates the share of a bucket's upper levels that is in its last level, too.
    pub(super) fn estimate_overlap(&self, bucket: &Arc<Bucket>) {
        // Postponed if a table cannot be read: the merge that reads it reports that.
        if let Ok(Some(share)) = overlap(bucket) {
            bucket.note_overlap(share);
            self.note_figures(&self.planning.lock(), bucket);
        }
    }
}

/// A tombstone left after a merge of the whole bucket stays for a snapshot, like old versions.
fn keeping_tombstones(table: Written) -> Written {
    Written { keeps_old: table.keeps_old || table.meta.deletes > 0, ..table }
}

/// Sample keys from the tables of `bucket`, ascending: as many from each table as its share of all bytes.
fn sample(bucket: &Bucket) -> Result<Vec<Vec<u8>>> {
    let readable = bucket.readable.load();
    let total: u64 = readable.tables.iter().map(|table| table.run.meta().file_bytes).sum();
    let mut keys = Vec::new();
    for table in readable.tables.iter() {
        let share = table.run.meta().file_bytes as f64 / total.max(1) as f64;
        keys.extend(table.run.sample((share * SPLIT_SAMPLES as f64).ceil() as usize)?);
    }
    keys.sort_unstable();
    Ok(keys)
}

/// The `cuts` at which a bucket with the tables `live` is split: none if it should not be, and none that
/// would leave an empty bucket.
fn boundaries<'a>(
    cuts: Vec<Vec<u8>>,
    live: impl Iterator<Item = &'a TableMeta>,
    options: &BucketOptions,
) -> Vec<Vec<u8>> {
    let mut bytes: BTreeMap<usize, u64> = BTreeMap::new();
    for meta in live {
        *bytes.entry(cuts.partition_point(|cut| *cut <= meta.smallest)).or_default() += meta.file_bytes;
    }
    if pieces(bytes.values().sum(), options) == 1 {
        return Vec::new();
    }
    let first = bytes.keys().next().copied();
    let begins = bytes.keys().filter(|piece| Some(**piece) != first);
    begins.filter_map(|piece| cuts.get(piece - 1).cloned()).collect()
}

/// The share of the tables' keys that older tables may hold, too, by a sample; `None` if there is nothing to
/// compare.
fn overlap(bucket: &Bucket) -> Result<Option<f64>> {
    let readable = bucket.readable.load();
    let (mut sampled, mut found) = (0u32, 0u32);
    for (at, table) in readable.tables.iter().enumerate() {
        let older: Vec<&Placed> = readable.tables[at + 1..].iter().collect();
        for (key, _) in table.run.anchors()?.into_iter().take(SAMPLES) {
            let mut held = false;
            for other in older.iter().filter(|other| other.covers(&key)) {
                held = held || other.run.may_contain(&key)?;
            }
            (sampled, found) = (sampled + 1, found + u32::from(held));
        }
    }
    Ok((sampled > 0).then(|| f64::from(found) / f64::from(sampled)))
}

/// Keys from which a bucket's splitters are taken.
const SPLIT_SAMPLES: usize = 512;

/// Keys sampled in each table.
const SAMPLES: usize = 16;
