//! Proving and describing a database.
//!
//! Every table is read in full and proved by itself, and so is every memtable. Then each bucket is read once more,
//! merged, which proves the order between its tables: a version that is newer than another of its key lies no deeper.
//! Then buckets are compared with the manifest, the log and the pool.

use terrace_base::Result;
use terrace_table::{Cursor, Kind, merge};

use super::Wip;
use super::bucket::{Bucket, Readable};
use crate::commit_log::durability;
use crate::compaction::buckets::LEVELS;
use crate::core::report::CheckReport;
use crate::pool;
use crate::stats::{BucketStats, Stats};

/// Bytes read ahead from a table being checked.
const READAHEAD_BYTES: usize = 256 << 10;

pub(super) fn check(wip: &Wip) -> Result<CheckReport> {
    wip.jobs.wait_idle();
    pool::pay_before_check(wip.pool.as_ref(), || wip.reclaim_now());
    let _no_compaction = wip.jobs.all_slots();
    let _no_flush = wip.flushes.claim();
    let mut report = CheckReport::default();
    let buckets = wip.buckets();
    for bucket in buckets.iter() {
        check_bucket(bucket, &mut report)?;
    }
    for memtable in wip.memtables() {
        report.problems.extend(memtable.check().into_iter().map(|p| format!("memtable: {p}")));
    }
    check_manifest(wip, &mut report)?;
    check_log(wip, &mut report)?;
    Ok(report)
}

fn check_bucket(bucket: &Bucket, report: &mut CheckReport) -> Result<()> {
    let readable = bucket.readable.load();
    let before = report.problems.len();
    for table in readable.tables.iter() {
        report.tables += 1;
        report.entries += table.run.meta().entries;
        report.note(table.run.verify())?;
        let meta = table.run.meta();
        if !bucket.holds(&meta.smallest) || !bucket.holds(&meta.largest) {
            report.problems.push(format!("table {}: lies in more than one bucket", meta.number));
        }
        if table.level >= LEVELS {
            report.problems.push(format!("table {}: is on level {}", meta.number, table.level));
        }
    }
    if report.problems.len() == before {
        let walked = check_versions(bucket, &readable, report);
        report.note(walked)?;
    }
    Ok(())
}

/// Walks over all versions in order, newest first within a key: none in a memtable is older than one in an older
/// memtable or in a table.
fn check_versions(bucket: &Bucket, readable: &Readable, report: &mut CheckReport) -> Result<()> {
    let mut children: Vec<Box<dyn Cursor>> = readable.memtables.iter().map(|m| m.cursor()).collect();
    let memtables = children.len();
    for table in readable.tables.iter() {
        children.push(Box::new(table.run.cursor(false, READAHEAD_BYTES)));
    }
    let mut cursor = merge(children);
    cursor.seek(&bucket.lower, u64::MAX)?;
    let (mut key, mut deepest): (Vec<u8>, Option<usize>) = (Vec::new(), None);
    let mut last = 0;
    while cursor.valid() && bucket.holds(cursor.key()) {
        if deepest.is_none() || cursor.key() != key {
            key.clear();
            key.extend_from_slice(cursor.key());
            deepest = None;
            report.keys += u64::from(cursor.kind() != Kind::Delete);
        } else if cursor.seq() == last {
            // A copy of a version above it: a joined bucket is replayed from the lower of its two parts'
            // flushed numbers.
            cursor.next()?;
            continue;
        }
        last = cursor.seq();
        let place = cursor.child().map_or(0, |child| child.min(memtables));
        if deepest.is_some_and(|deepest| place < deepest) {
            let key = key.escape_ascii();
            report
                .problems
                .push(format!("a memtable has a version of {key} that is older than one below it"));
        }
        deepest = Some(deepest.map_or(place, |deepest| deepest.max(place)));
        cursor.next()?;
    }
    Ok(())
}

fn check_manifest(wip: &Wip, report: &mut CheckReport) -> Result<()> {
    let (state, buckets) = (wip.manifest.state(), wip.buckets());
    if !state.buckets.keys().eq(buckets.iter().map(|bucket| &bucket.lower)) {
        report.problems.push(format!(
            "manifest: {} buckets, and {} are read",
            state.buckets.size(),
            buckets.len()
        ));
    }
    let mut shown = 0;
    for bucket in buckets.iter() {
        let readable = bucket.readable.load();
        shown += readable.tables.len();
        for table in readable.tables.iter() {
            let number = table.run.number();
            if state.tables.get(&number).is_none_or(|named| named.level as usize != table.level) {
                report.problems.push(format!("manifest: table {number} is not read on its level"));
            }
        }
        let flushed = state.buckets.get(&bucket.lower).map_or(0, |known| known.flushed);
        let least = readable.memtables.iter().map(|memtable| memtable.min_seq()).min();
        if let Some(least) = least.filter(|least| *least <= flushed) {
            let bucket = bucket.lower.escape_ascii();
            report.problems.push(format!(
                "manifest: bucket \"{bucket}\" is said to be flushed up to {flushed}, and a memtable holds write {least}"
            ));
        }
    }
    if shown != state.tables.size() {
        report.problems.push(format!("manifest: {} tables, and {shown} are read", state.tables.size()));
    }
    for number in wip.manifest.listing()?.missing_tables {
        report.problems.push(format!("{number:06}.sst: missing"));
    }
    Ok(())
}

fn check_log(wip: &Wip, report: &mut CheckReport) -> Result<()> {
    report.problems.extend(wip.log.check(&wip.manifest)?.into_iter().map(|p| format!("log: {p}")));
    let Some(pool) = &wip.pool else { return Ok(()) };
    let problems = wip.log.with_marked(pool.marks(), |marks| Ok(pool.check(marks)))?;
    report.problems.extend(problems.into_iter().map(|p| format!("pool: {p}")));
    report.pm_bytes = pool.used_bytes();
    Ok(())
}

pub(super) fn fill_stats(wip: &Wip, stats: &mut Stats) {
    stats.durability = durability(wip.pool.is_some(), wip.core.options.sync).into();
    stats.log = wip.log.describe().into();
    match &wip.pool {
        None => stats.media = "no persistent memory; the log lies in files".into(),
        Some(pool) => pool::fill_stats(pool, stats),
    }
    stats.emulated = wip.emulated.clone();
    stats.opened = wip.opened.get().cloned().unwrap_or_default();
    stats.dram.tables = wip.core.cache().table_bytes();
    stats.dram.memtables = wip.memory.reserved();
    wip.manifest.state().fill_stats(&mut stats.ssd);
    stats.buckets = bucket_stats(wip);
}

fn bucket_stats(wip: &Wip) -> BucketStats {
    use std::sync::atomic::Ordering::Relaxed;
    let log_held_by = wip.log_holder().unwrap_or_default();
    let log_bytes = wip.span.lock().total;
    let buckets = wip.buckets();
    let sublevels =
        |bucket: &Bucket| -> usize { bucket.figures.lock().levels.iter().map(|level| level.sublevels).sum() };
    BucketStats {
        buckets: buckets.len() as u64,
        most_sublevels: buckets.iter().map(|bucket| sublevels(bucket) as u64).max().unwrap_or(0),
        splits: wip.reshaped.splits.load(Relaxed),
        joins: wip.reshaped.joins.load(Relaxed),
        log_bytes,
        log_held_by,
    }
}
