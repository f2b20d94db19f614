//! Ingesting: tables are written from a sorted stream, and appear in all their buckets in one step.
//!
//! [`levels::hidden`](crate::levels::hidden) has what holds for the tables of every engine. Beside that:
//!
//! 1. A table lies within one bucket, and ends where that may be split. Buckets may change while tables wait: those
//!    that no longer fit are written anew, beside writers before the caller leads, and the rest when no bucket can
//!    change.
//! 2. When tables appear nothing is in memtables, and the manifest says in the same group that everything up to their
//!    number is in tables: a replay of the log, of whatever bucket, begins after it, and no log lacks it.
//! 3. All buckets have their tables before the number is visible. Jobs that read them earlier keep what readers see
//!    then.
//! 4. Each lies on the lowest level where nothing lies beside or above it.
//! 5. A bucket that gets more than it may hold is divided in the same group, if it is idle (`divide.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_table::{Kind, TableMeta};

use super::Wip;
use super::bucket::Bucket;
use super::buckets::Buckets;
use super::change::BucketsEdit;
use super::divide::Division;
use crate::commit_log::Logged;
use crate::compaction::buckets::{BucketTable, lowest_level};
use crate::core::engine::{Fill, HiddenTables};
use crate::levels::hidden::{HiddenStream, holds_some, pass_hidden};
use crate::levels::output::{Below, Outputs, Written};
use crate::manifest::Edit;
use crate::tables::WriterOptions;

/// The tables of one stream.
struct NewTables {
    wip: Arc<Wip>,
    stream: HiddenStream,
}

impl HiddenTables for NewTables {
    fn prepare(&mut self) -> Result<()> {
        let (wip, stream) = (&self.wip, &mut self.stream);
        let _open = wip.jobs.hold_open()?;
        let keys = stream.tables.iter().map(|written| &*written.meta.smallest);
        wip.slow_down_beside(keys, stream.bytes())?;
        // Writers do not wait for this. With a log that has failed, memtables are flushed while nobody writes.
        if !wip.is_log_unreliable() {
            wip.freeze_all();
            match wip.wait_for_frozen() {
                // It has failed meanwhile, and whoever leads mends it.
                Err(_) if wip.is_log_unreliable() => {}
                flushed => flushed?,
            }
        }
        wip.cut_anew(stream)?;
        let prepared = wip.make_way(&stream.tables);
        wip.spawn_compaction();
        prepared
    }

    fn show(self: Box<Self>) -> Result<()> {
        let NewTables { wip, stream } = *self;
        let _open = wip.jobs.hold_open()?;
        wip.core.health.check()?;
        wip.decide_ingest()?;
        wip.manifest.announce_pool()?;
        wip.log.mend(&*wip)?;
        wip.flush_all()?;
        let shown = wip.show_tables(stream);
        if shown.is_err() {
            // Its room is wanted: it is why this has failed, or is for the next try.
            wip.sweep();
        }
        wip.spawn_compaction();
        shown
    }

    fn renumbered(self: Box<Self>, number: u64) -> Result<Box<dyn HiddenTables>> {
        self.wip.write_tables(number, &mut |take| self.stream.pass(&self.wip.core, take))
    }
}

impl Wip {
    /// Writes hidden tables with the entries that `fill` passes.
    pub(super) fn write_tables(&self, number: u64, fill: &mut Fill<'_>) -> Result<Box<dyn HiddenTables>> {
        let wip = self.me.upgrade().ok_or(Error::Closed)?;
        let begin = |outputs: &mut Outputs<'_>, key: &[u8]| {
            // As they are now; the first ones may lie before the key.
            outputs.begin_part(self.buckets().cuts(key, None))
        };
        let stream = HiddenStream::write(number, self.hidden_outputs(), &self.jobs, fill, begin)?;
        Ok(Box::new(NewTables { wip, stream }))
    }

    /// Tables of about the size of what a bucket is split into: a merge of a whole bucket leaves them as they are where
    /// they overlap no others.
    fn hidden_outputs(&self) -> Outputs<'_> {
        let options = self.writer_options();
        let options = WriterOptions { table_bytes: options.table_bytes.min(self.piece_bytes()), ..options };
        Outputs::new(&self.core, &self.manifest, options, Below::default()).hidden()
    }

    /// Writes those tables anew that do not fit into the buckets as they are now.
    fn cut_anew(&self, stream: &mut HiddenStream) -> Result<()> {
        let (number, buckets) = (stream.number, self.buckets());
        for written in std::mem::take(&mut stream.tables) {
            let cuts = cuts_within(&buckets, &written.meta);
            if cuts.is_empty() {
                stream.tables.push(written);
                continue;
            }
            let mut outputs = self.hidden_outputs();
            outputs.begin_part(cuts)?;
            pass_hidden(&self.core, &written.meta, &mut |key, value| {
                outputs.add(key, number, Kind::Put, value)
            })?;
            stream.tables.extend(outputs.finish()?);
        }
        Ok(())
    }

    /// Has the tables appear. The caller leads, and nothing is in memtables.
    fn show_tables(&self, mut stream: HiddenStream) -> Result<()> {
        // From here on no bucket is replaced, and none gets new places to be split at.
        let _no_flush = self.flushes.claim();
        self.cut_anew(&mut stream)?;
        let divisions = self.divisions(&stream.tables)?;
        let number = stream.number;
        let add = |tables| self.add_tables(number, tables, divisions);
        stream.appear(&self.core, &self.manifest, &self.undecided, add)
    }

    /// Adds `tables`, whose versions have this number, to their buckets, and divides some of these.
    fn add_tables(&self, number: u64, tables: Vec<Written>, mut divisions: Vec<Division<'_>>) -> Result<()> {
        let alone = self.changing.lock();
        let (mut change, mut counted) = (BucketsEdit::default(), Vec::new());
        divisions.iter_mut().for_each(|division| division.put_into(&mut change, number));
        for (bucket, tables) in self.by_buckets(tables) {
            let readable = bucket.readable.load();
            let nothing = Default::default();
            let there: Vec<BucketTable<'_>> =
                readable.tables.iter().map(|table| table.figures(&Default::default(), &nothing)).collect();
            for written in tables {
                let range = (&written.meta.smallest[..], &written.meta.largest[..]);
                let run = |number| readable.tables.iter().find(|table| table.run.number() == number);
                let holds = |number| run(number).is_none_or(|table| holds_some(&table.run, &written.meta));
                let level = lowest_level(&there, range, holds);
                counted.push((level, written.written_bytes));
                change.runs.add(level, vec![written]);
            }
        }
        change.edits.push(Edit::FlushedSeq(number));
        self.install_locked(change, &[])?;
        divisions.iter().for_each(|division| self.replace_divided(division));
        self.applied.fetch_max(number, Ordering::AcqRel);
        self.core.snapshots.advance(number);
        drop(alone);
        counted.into_iter().for_each(|(level, bytes)| self.core.counters.count_flush(0, level, bytes));
        divisions.into_iter().for_each(|division| self.divided(division));
        Ok(())
    }

    /// The tables of each bucket, in order.
    pub(super) fn by_buckets<T: AsRef<TableMeta>>(
        &self,
        tables: impl IntoIterator<Item = T>,
    ) -> Vec<(Arc<Bucket>, Vec<T>)> {
        let buckets = self.buckets();
        let mut groups: BTreeMap<usize, Vec<T>> = BTreeMap::new();
        for table in tables {
            groups.entry(buckets.place(&table.as_ref().smallest)).or_default().push(table);
        }
        groups.into_iter().map(|(place, tables)| (buckets.at(place).clone(), tables)).collect()
    }

    /// Has the manifest decide that an ingest which has failed never takes place.
    pub(super) fn decide_ingest(&self) -> Result<()> {
        if self.undecided.decide(&self.manifest)? {
            self.sweep();
        }
        Ok(())
    }
}

/// The keys inside of a table where it would have to end.
fn cuts_within(buckets: &Buckets, table: &TableMeta) -> Vec<Vec<u8>> {
    let past_largest = [&table.largest[..], &[0]].concat();
    let mut cuts = buckets.cuts(&table.smallest, Some(&past_largest));
    cuts.retain(|cut| table.smallest < *cut && *cut <= table.largest);
    cuts
}
