//! Flushing memtables out of DRAM to level 0 of their buckets.
//!
//! Memtables are flushed in the order in which they were closed, several at a time. The tables, the number up
//! to which each bucket is in tables now, and the first log that is still needed go into the manifest as one
//! group, so after a crash a flush has happened or not. Before that the log is made durable as far as it is
//! written: what another bucket has logged earlier must not be lost if this survives. If the log is
//! unreliable, all memtables are flushed as one; that is everything up to some moment, and needs no log.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_table::TableMeta;

use super::Wip;
use super::bucket::tables_lack;
use super::buckets::Buckets;
use super::change::BucketsEdit;
use super::memtable::BucketMemtable;
use crate::levels::merge::Survivors;
use crate::levels::output::{Below, Outputs};

/// Most memtables flushed together, and their most bytes.
const TOGETHER: usize = 16;
const TOGETHER_BYTES: u64 = 64 << 20;

/// The weight of the newest flush in the average of flushes' bytes.
const NEWEST_SHARE: u64 = 8;

/// Memtables to be flushed as one group.
pub(super) struct Batch {
    memtables: Vec<Arc<BucketMemtable>>,
    /// They are not all memtables: the contents of the others must be in the log durably.
    needs_log: bool,
}

impl Wip {
    /// Flushes waiting memtables until none is left, or until it is `enough` for writers to continue. One
    /// caller works, the others wait.
    pub(super) fn run_flushes(&self, enough: impl Fn() -> bool) -> Result<()> {
        let next = || if enough() { Ok(None) } else { self.next_batch() };
        let outcome = self.flushes.run(&self.core, &self.manifest, next, |batch| self.flush(batch));
        if outcome.is_ok() {
            self.spawn_compaction();
        }
        outcome
    }

    /// The next batch to flush; `None` if nothing waits.
    pub(super) fn next_batch(&self) -> Result<Option<Batch>> {
        let batch = if self.is_log_unreliable() { self.all_at_once()? } else { self.oldest_together() };
        Ok(Some(batch).filter(|batch| !batch.memtables.is_empty()))
    }

    /// Those that have waited the longest.
    fn oldest_together(&self) -> Batch {
        let mut bytes = 0;
        let within = |memtable: &&Arc<BucketMemtable>| {
            bytes += memtable.bytes_used();
            bytes <= TOGETHER_BYTES
        };
        let frozen = self.frozen.lock();
        let first = frozen.front().into_iter();
        let others = frozen.iter().take(TOGETHER).take_while(within).skip(1);
        Batch { memtables: first.chain(others).cloned().collect(), needs_log: true }
    }

    /// All memtables, which must be closed: the leader ensures that.
    fn all_at_once(&self) -> Result<Batch> {
        let _writing = self.writing.lock();
        let is_written = self.buckets().iter().any(|bucket| !bucket.readable.load().active().is_empty());
        let frozen: Vec<_> = self.frozen.lock().iter().cloned().collect();
        if is_written && !frozen.is_empty() {
            return Err(self.log.failure("flush"));
        }
        Ok(Batch { memtables: frozen, needs_log: false })
    }

    fn flush(&self, batch: &Batch) -> Result<()> {
        self.log.make_ready(&self.manifest);
        let has_old_logs = self.put_into_tables(batch)?;
        // Flushes may have no end for long.
        self.spawn_compaction();
        // The log that was ready may have been taken meanwhile.
        self.log.make_ready(&self.manifest);
        match has_old_logs {
            true => self.log.drop_old(&self.manifest),
            false => Ok(()),
        }
    }

    /// Replaces the memtables by tables; returns whether there are logs that nobody needs any more.
    pub(super) fn put_into_tables(&self, Batch { memtables: batch, needs_log }: &Batch) -> Result<bool> {
        if *needs_log {
            // Before there is a table: a repair that finds a whole one takes it that logs hold what came before its
            // writes, even if the manifest does not name it.
            self.log.sync_beside()?;
        }
        let mut change = BucketsEdit::default();
        let held = self.seen();
        let buckets = self.buckets();
        let mut outputs = Outputs::new(&self.core, &self.manifest, self.writer_options(), Below::default());
        for memtable in batch {
            outputs.begin_part(buckets.cuts(&memtable.lower, memtable.upper.as_deref()))?;
            let lacks = |key: &[u8], numbers| lacks(&buckets, memtable, key, numbers);
            let mut survivors = Survivors::new(&held, lacks);
            memtable.visit(|key, seq, kind, value| match survivors.keeps(key, seq, kind) {
                true => outputs.add(key, seq, kind, value),
                false => Ok(()),
            })?;
        }
        let written = outputs.finish()?;
        let bytes: u64 = written.iter().map(|table| table.meta.file_bytes).sum();
        let deleting = written.iter().map(|table| &table.meta).filter(|meta| is_mostly_tombstones(meta));
        let deleted: Vec<_> = deleting.map(|meta| meta.smallest.clone()).collect();
        change.runs.add(0, written);
        let needed_before = self.manifest.state().log_number;
        self.install(change, batch)?;
        // How much they hide decides whether the bucket is garbage.
        let buckets = self.buckets();
        deleted.iter().for_each(|key| self.estimate_overlap(buckets.find(key)));
        self.core.counters.count_flush(batch.len() as u64, 0, bytes);
        self.note_flush(bytes / batch.len() as u64);
        Ok(self.manifest.state().log_number > needed_before)
    }

    /// The moments that readers see or may come to see: a group that was just inserted and is not visible yet
    /// becomes visible as a whole, and a reader may still come to see the moment before.
    pub(super) fn seen(&self) -> Vec<u64> {
        let visible = self.core.snapshots.visible();
        let mut held = self.core.snapshots.list();
        held.push(visible);
        held.sort_unstable();
        held
    }

    fn note_flush(&self, bytes: u64) {
        let before = self.flush_bytes.load(Ordering::Relaxed);
        let average = if before == 0 { bytes } else { (before * (NEWEST_SHARE - 1) + bytes) / NEWEST_SHARE };
        self.flush_bytes.store(average.max(1), Ordering::Relaxed);
    }
}

/// Whether no version of `key` with one of these numbers lies outside `memtable`, if it is known.
fn lacks(
    buckets: &Buckets,
    memtable: &Arc<BucketMemtable>,
    key: &[u8],
    numbers: RangeInclusive<u64>,
) -> bool {
    let readable = buckets.find(key).readable.load();
    let oldest = readable.memtables.iter().rfind(|other| !other.is_empty());
    oldest.is_some_and(|oldest| Arc::ptr_eq(oldest, memtable))
        && tables_lack(&readable.tables, key, numbers, &[])
}

fn is_mostly_tombstones(meta: &TableMeta) -> bool {
    2 * meta.deletes > meta.entries
}
