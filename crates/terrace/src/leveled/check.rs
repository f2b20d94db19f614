//! Proving and describing a database.
//!
//! Every run is read in full and proved by itself. Then all runs are read once more, merged, which proves the
//! order between them: a version that is newer than another of its key lies no deeper. Then the memtables,
//! the write buffer and the pool.

use std::collections::BTreeMap;

use terrace_base::Result;
use terrace_table::{Cursor, Kind, merge};

use super::buffer::Moment;
use super::{LeveledTree, Memtable, Readable, Stage, WriteBuffer};
use crate::core::report::CheckReport;
use crate::levels::Levels;
use crate::pool;
use crate::stats::Stats;

/// Bytes read ahead from a run being checked.
const READAHEAD_BYTES: usize = 256 << 10;

pub(super) fn check<B: WriteBuffer>(tree: &LeveledTree<B>) -> Result<CheckReport> {
    tree.jobs.wait_idle();
    pool::pay_before_check(tree.pool.as_ref(), || tree.reclaim_now());
    let _no_compaction = tree.jobs.all_slots();
    let _no_flush = tree.flushes.claim();
    let mut report = CheckReport::default();
    let readable = tree.readable();
    check_runs(&readable.levels, &mut report)?;
    report.problems.extend(readable.levels.check());
    if report.problems.is_empty() {
        let walked = check_versions(tree, &readable, &mut report);
        report.note(walked)?;
    }
    for memtable in &readable.memtables {
        report.problems.extend(memtable.check().into_iter().map(|p| format!("memtable: {p}")));
    }
    check_manifest(tree, &mut report)?;
    check_pool(tree, &mut report)?;
    Ok(report)
}

fn check_runs(levels: &Levels, report: &mut CheckReport) -> Result<()> {
    for run in levels.runs() {
        report.tables += 1;
        report.entries += run.meta().entries;
        report.note(run.verify())?;
    }
    Ok(())
}

/// Walks over all versions in order, newest first within a key: their levels must not decrease. Memtables and
/// the stage precede the first level.
fn check_versions<B: WriteBuffer>(
    tree: &LeveledTree<B>,
    readable: &Readable<B::Memtable>,
    report: &mut CheckReport,
) -> Result<()> {
    let levels = &readable.levels;
    let mut children = tree.cursors_above(readable, &Moment::forever());
    let mut places = vec![0; children.len()];
    for level in 0..levels.depth() {
        for run in levels.level(level).iter() {
            children.push(Box::new(run.cursor(false, READAHEAD_BYTES)));
            places.push(level);
        }
    }
    let mut cursor = merge(children);
    cursor.seek_first()?;
    let (mut key, mut deepest): (Vec<u8>, Option<usize>) = (Vec::new(), None);
    while cursor.valid() {
        if deepest.is_none() || cursor.key() != key {
            key.clear();
            key.extend_from_slice(cursor.key());
            deepest = None;
            report.keys += u64::from(cursor.kind() != Kind::Delete);
        }
        let level = cursor.child().map_or(0, |child| places[child]);
        if deepest.is_some_and(|deepest| level < deepest) {
            let key = key.escape_ascii();
            report.problems.push(format!("level {level} has a version of {key} older than a lower level's"));
        }
        deepest = Some(deepest.map_or(level, |deepest| deepest.max(level)));
        cursor.next()?;
    }
    Ok(())
}

fn check_manifest<B: WriteBuffer>(tree: &LeveledTree<B>, report: &mut CheckReport) -> Result<()> {
    let (state, levels) = (tree.manifest.state(), tree.readable().levels.clone());
    let on = |level: usize| levels.level(level).iter().map(|t| (t.number(), level)).collect::<Vec<_>>();
    let shown: BTreeMap<u64, usize> = (0..levels.depth()).flat_map(on).collect();
    if shown.len() != state.tables.size() {
        report.problems.push(format!(
            "manifest: {} tables, and {} are read",
            state.tables.size(),
            shown.len()
        ));
    }
    for (number, table) in &state.tables {
        if shown.get(number) != Some(&(table.level as usize)) {
            report.problems.push(format!("manifest: table {number} is not read on its level"));
        }
        if table.meta.max_seq > state.flushed_seq {
            report.problems.push(format!("manifest: table {number} holds more than is said to be flushed"));
        }
    }
    for number in tree.manifest.listing()?.missing_tables {
        report.problems.push(format!("{number:06}.sst: missing"));
    }
    Ok(())
}

fn check_pool<B: WriteBuffer>(tree: &LeveledTree<B>, report: &mut CheckReport) -> Result<()> {
    tree.buffer.check(&tree.manifest, report)?;
    B::Stage::check(tree, report)?;
    let Some(pool) = &tree.pool else { return Ok(()) };
    // If a list is damaged, which was reported already, the used part of the pool is unknown.
    let problems = match tree.with_marked(pool, |marks| Ok(pool.check(marks))) {
        Ok(problems) => problems,
        Err(e) => return report.note::<()>(Err(e)).map(drop),
    };
    report.problems.extend(problems.into_iter().map(|p| format!("pool: {p}")));
    report.pm_bytes = pool.used_bytes();
    Ok(())
}

pub(super) fn fill_stats<B: WriteBuffer>(tree: &LeveledTree<B>, stats: &mut Stats) {
    B::fill_stats(tree, stats);
    if let Some(pool) = &tree.pool {
        pool::fill_stats(pool, stats);
    }
    tree.buffer.stage().fill_stats(stats);
    tree.runs.lists().iter().for_each(|lists| lists.fill_stats(stats));
    stats.emulated = tree.emulated.clone();
    stats.opened = tree.opened.get().cloned().unwrap_or_default();
    let readable = tree.readable();
    stats.dram.tables = tree.core.cache().table_bytes();
    stats.dram.memtables = tree.memtables_bytes(&readable);
    tree.manifest.state().fill_stats(&mut stats.ssd);
}
