//! Dividing buckets that get more by an ingest than they may hold: where some of its tables begin.
//!
//! A bucket is divided only while it is idle; otherwise it is split later, as any other that is full. Tables that are
//! there and span such a key are in the way. They are written again, version by version, on their levels: beside
//! writers before the caller leads; what has come since then, if it is little, when it leads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Calm, Result};
use terrace_table::{Cursor, TableMeta};

use super::Wip;
use super::bucket::{Bucket, Placed};
use super::change::BucketsEdit;
use super::compact::with_max_seqs;
use crate::compaction::buckets::{KeyRange, divide, spans};
use crate::events::Event;
use crate::levels::output::{Below, Outputs, Written};
use crate::manifest::Edit;

/// Bytes read ahead from a table that is cut.
const READAHEAD_BYTES: usize = 512 << 10;

/// A bucket that is to be divided. No job runs in it, and none begins before this is dropped.
pub(super) struct Division<'a> {
    wip: &'a Wip,
    bucket: Arc<Bucket>,
    cuts: Vec<Vec<u8>>,
    /// Tables in the way, and by their levels what was made of them.
    old: Vec<Placed>,
    anew: Vec<(usize, Vec<Written>)>,
    calm: Calm,
}

impl Drop for Division<'_> {
    fn drop(&mut self) {
        self.wip.core.health.note_panic(self.calm);
        let mut plan = self.wip.planning.lock();
        plan.whole.remove(&self.bucket.lower);
        plan.ending.remove(&self.bucket.lower);
        drop(plan);
        self.wip.jobs.progressed();
    }
}

impl Division<'_> {
    /// Adds what it changes. New buckets are in tables up to `number`.
    pub fn put_into(&mut self, change: &mut BucketsEdit, number: u64) {
        let begin = |lower: &Vec<u8>| Edit::SetBucket { lower: lower.clone(), flushed: number };
        change.edits.extend(self.cuts.iter().map(begin));
        self.put_cut_tables(change);
    }

    fn put_cut_tables(&mut self, change: &mut BucketsEdit) {
        change.runs.remove(self.old.iter().map(|table| table.run.number()));
        self.anew.drain(..).for_each(|(level, written)| change.runs.add(level, written));
    }
}

impl Wip {
    /// Bytes of a piece into which a full bucket is split.
    pub(super) fn piece_bytes(&self) -> u64 {
        let wip = &self.core.options.wip;
        (wip.bucket_bytes / wip.split_into as u64).max(1)
    }

    /// The buckets to be divided when `tables` come. The caller leads, and no flush runs.
    pub(super) fn divisions(&self, tables: &[Written]) -> Result<Vec<Division<'_>>> {
        let mut divisions = Vec::new();
        for (bucket, cuts) in self.places_to_divide(tables) {
            let Some(mut division) = self.claim(&bucket, cuts) else { continue };
            // Writers wait for this.
            let is_idle = !self.planning.lock().has_busy(&bucket, &[]);
            if is_idle
                && bytes(&in_the_way(&bucket, &division.cuts)) <= self.piece_bytes()
                && self.cut(&mut division)?
            {
                divisions.push(division);
            }
        }
        Ok(divisions)
    }

    /// Cuts tables that are in the way of dividing buckets when `tables` come.
    pub(super) fn make_way(&self, tables: &[Written]) -> Result<()> {
        let places = self.places_to_divide(tables).into_iter();
        for (bucket, cuts) in places.filter(|(bucket, cuts)| !in_the_way(bucket, cuts).is_empty()) {
            // Whoever holds all slots meets no bucket that is claimed.
            let _slot = self.jobs.slot();
            let is_there = || self.is_current(&bucket);
            self.jobs.wait_until(|| !is_there() || !self.planning.lock().whole.contains(&bucket.lower));
            let Some(mut division) = self.claim(&bucket, cuts) else { continue };
            self.jobs.wait_until(|| !self.planning.lock().has_busy(&bucket, &[]));
            if !self.cut(&mut division)? {
                continue;
            }
            let mut change = BucketsEdit::default();
            division.put_cut_tables(&mut change);
            self.install(change, &[])?;
            self.forget_old(&division);
        }
        Ok(())
    }

    /// The buckets that get more than they may hold, with keys to divide them at.
    fn places_to_divide(&self, tables: &[Written]) -> Vec<(Arc<Bucket>, Vec<Vec<u8>>)> {
        let options = self.bucket_options();
        let cuts = |tables: &[&Written]| {
            let coming: Vec<_> = tables.iter().map(|w| (range(&w.meta), w.meta.file_bytes)).collect();
            divide(&coming, &options)
        };
        let groups = self.by_buckets(tables).into_iter().map(|(bucket, tables)| (bucket, cuts(&tables)));
        groups.filter(|(_, cuts)| !cuts.is_empty()).collect()
    }

    /// Keeps jobs from beginning in `bucket`, unless all of it is being merged or it was replaced.
    fn claim(&self, bucket: &Arc<Bucket>, cuts: Vec<Vec<u8>>) -> Option<Division<'_>> {
        let mut plan = self.planning.lock();
        if !self.is_current(bucket) || plan.whole.contains(&bucket.lower) {
            return None;
        }
        plan.whole.insert(bucket.lower.clone());
        plan.ending.insert(bucket.lower.clone());
        let (old, anew, calm) = (Vec::new(), Vec::new(), Calm::now());
        Some(Division { wip: self, bucket: bucket.clone(), cuts, old, anew, calm })
    }

    /// Writes the tables in the way again, cut where the bucket is divided; false if there is no room for that.
    fn cut(&self, division: &mut Division<'_>) -> Result<bool> {
        let tables = in_the_way(&division.bucket, &division.cuts);
        // After them: it knows whether they keep old versions.
        let state = self.manifest.state();
        for table in tables {
            let written = match self.cut_table(&table, &division.cuts) {
                Err(e) if e.is_out_of_space() => return Ok(false),
                written => written?.into_iter(),
            };
            let keeps_old = state.candidates.contains(&table.run.number());
            let written = written.map(|w| Written { keeps_old: w.keeps_old || keeps_old, ..w });
            division.anew.push((table.level, written.collect()));
            division.old.push(table);
        }
        Ok(true)
    }

    fn cut_table(&self, table: &Placed, cuts: &[Vec<u8>]) -> Result<Vec<Written>> {
        let options = self.writer_options();
        let mut outputs = Outputs::new(&self.core, &self.manifest, options, Below::default());
        outputs.begin_part(cuts.to_vec())?;
        let mut cursor = table.run.cursor(false, READAHEAD_BYTES);
        cursor.seek_first()?;
        while cursor.valid() {
            outputs.add(cursor.key(), cursor.seq(), cursor.kind(), &cursor.value()?)?;
            cursor.next()?;
        }
        let written = outputs.finish()?;
        let bytes = written.iter().map(|written| written.written_bytes).sum();
        self.core.counters.count_compaction(table.level, bytes);
        Ok(written)
    }

    /// Replaces the bucket of `division`. The caller has locked `changing`, and no flush runs.
    pub(super) fn replace_divided(&self, division: &Division<'_>) {
        self.replace(&[&division.bucket], &division.cuts);
    }

    /// Notes that a bucket was divided.
    pub(super) fn divided(&self, division: Division<'_>) {
        self.forget_old(&division);
        self.reshaped.splits.fetch_add(1, Ordering::Relaxed);
        self.core.events.tell(|| Event::BucketSplit { into: division.cuts.len() + 1 });
    }

    fn forget_old(&self, division: &Division<'_>) {
        self.runs.remove_merged(&[], with_max_seqs(&division.old));
    }
}

fn range(meta: &TableMeta) -> KeyRange<'_> {
    (&meta.smallest, &meta.largest)
}

/// The tables of `bucket` that span one of `cuts`.
fn in_the_way(bucket: &Bucket, cuts: &[Vec<u8>]) -> Vec<Placed> {
    let readable = bucket.readable.load();
    readable.tables.iter().filter(|table| spans(range(table.run.meta()), cuts)).cloned().collect()
}

fn bytes(tables: &[Placed]) -> u64 {
    tables.iter().map(|table| table.run.meta().file_bytes).sum()
}
