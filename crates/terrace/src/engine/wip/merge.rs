//! Merging tables of a bucket.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_table::Cursor;

use super::Wip;
use super::bucket::{Bucket, Placed, tables_lack};
use super::compact::Claim;
use super::memtable::BucketMemtable;
use crate::background::Patience;
use crate::compaction::buckets::{KeyRange, rows};
use crate::levels::cursor::LevelCursor;
use crate::levels::merge::Survivors;
use crate::levels::output::{Below, Outputs, Written};
use crate::levels::row::Row;
use crate::levels::run::Run;
use crate::tables::merge_ahead;

/// Bytes read ahead from each sublevel, at most.
const READAHEAD_BYTES: usize = 512 << 10;

/// A merge leaves room for this part of the log.
const LEFT_TO_WRITERS: u64 = 4;

impl Wip {
    /// Merges `inputs`, which are among the tables of `claim`, into new ones that end before each of `cuts`.
    pub(super) fn merge_tables(
        &self,
        claim: &Claim<'_>,
        inputs: &[Placed],
        cuts: Vec<Vec<u8>>,
        patience: Patience,
    ) -> Result<Vec<Written>> {
        self.refuse_without_room(inputs)?;
        // Whatever arrives in the bucket from now on is newer than the merged tables. What is there need not be: tables
        // of a level are older than those below if a merge of the whole bucket has read them and was cut short, and
        // after a replay memtables may hold copies of what is in tables.
        let newest = inputs.iter().map(|table| table.run.meta().max_seq).max().unwrap_or(0);
        let (tables, memtables) = self.beside(&claim.bucket, newest);
        let held = self.seen();
        let inputs_of: Vec<u64> = inputs.iter().map(|table| table.run.number()).collect();
        let lacks = |key: &[u8], numbers: RangeInclusive<u64>| {
            let mut in_memory = memtables.iter().filter_map(|memtable| memtable.get(key, *numbers.end()));
            tables_lack(&tables, key, numbers.clone(), &inputs_of)
                && in_memory.next().is_none_or(|version| !numbers.contains(&version.seq))
        };
        let mut survivors = Survivors::new(&held, lacks);
        let rows = sublevels(inputs);
        let child = |row: Row, ahead| -> Result<Box<dyn Cursor>> {
            Ok(Box::new(LevelCursor::new(row, false, ahead)))
        };
        let (mut cursor, _loan) = merge_ahead(&self.core, READAHEAD_BYTES, rows, child)?;
        let outputs = Outputs::new(&self.core, &self.manifest, self.writer_options(), Below::default());
        let mut outputs = outputs.judged(0);
        outputs.begin_part(cuts)?;
        outputs.add_survivors(&mut cursor, None, &mut survivors, |_| true, || self.jobs.look_up(patience))?;
        outputs.finish()
    }

    /// The tables of `bucket`, and those of its memtables, newest first, that may have a version up to `newest`. The
    /// others fill up and are flushed while a merge runs, which must not keep their memory.
    pub(super) fn beside(
        &self,
        bucket: &Bucket,
        newest: u64,
    ) -> (Arc<Vec<Placed>>, Vec<Arc<BucketMemtable>>) {
        let readable = bucket.readable.load();
        let is_replaying = self.replaying.load(Ordering::Acquire);
        let may_have = |memtable: &&Arc<BucketMemtable>| is_replaying || memtable.min_seq() <= newest;
        (readable.tables.clone(), readable.memtables.iter().filter(may_have).cloned().collect())
    }

    /// An error, with nothing written, if the disk lacks room for what a merge of `inputs` may write: the
    /// merge would take what writers need until it fails.
    fn refuse_without_room(&self, inputs: &[Placed]) -> Result<()> {
        let bytes: u64 = inputs.iter().map(|table| table.run.meta().file_bytes).sum();
        if bytes > self.room_for_merges()? { Err(self.no_room()) } else { Ok(()) }
    }

    /// Bytes of tables that the disk has room to merge.
    pub(super) fn room_for_merges(&self) -> Result<u64> {
        let free = self.core.fs().free_bytes(&self.core.dir)?;
        let left = free.saturating_sub(self.core.options.wip.log_bytes / LEFT_TO_WRITERS);
        // Part of the rest is for what tables hold beside their entries.
        Ok(left - left / 16)
    }

    pub(super) fn no_room(&self) -> Error {
        Error::NoSpace { path: self.core.dir.clone() }
    }
}

/// Groups the tables into rows of tables that do not overlap: as few rows as possible.
fn sublevels(tables: &[Placed]) -> Vec<Row> {
    let mut runs: Vec<Run> = tables.iter().map(|table| table.run.clone()).collect();
    runs.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
    let ranges: Vec<KeyRange<'_>> =
        runs.iter().map(|run| (&*run.meta().smallest, &*run.meta().largest)).collect();
    let places = rows(&ranges);
    let mut parts: Vec<Vec<Run>> = vec![Vec::new(); places.iter().max().map_or(0, |last| last + 1)];
    for (run, place) in runs.iter().zip(places) {
        parts[place].push(run.clone());
    }
    parts.into_iter().map(Row::of).collect()
}
