//! Proving a database, and describing it.
//!
//! Every table is read in full and proved by itself. Then all of them are read once more, merged, which proves what
//! holds between them: a version that is newer than another of its key lies no deeper. Then the memtables, the logs
//! and the pool.

use std::collections::BTreeMap;

use terrace_base::Result;
use terrace_table::{Cursor, Kind, merge};

use super::flush::Flushing;
use super::{Lsm, Readable};
use crate::core::report::CheckReport;
use crate::levels::Levels;
use crate::stats::Stats;

/// Bytes read ahead from a table being checked.
const READAHEAD_BYTES: usize = 256 << 10;

pub(super) fn check(lsm: &Lsm) -> Result<CheckReport> {
    lsm.jobs.wait_idle();
    let _no_compaction = lsm.jobs.all_slots();
    let _no_flush = Flushing::claim(lsm);
    let mut report = CheckReport::default();
    let readable = lsm.readable();
    check_tables(&readable.levels, &mut report);
    report.problems.extend(readable.levels.check());
    if report.problems.is_empty()
        && let Err(e) = check_versions(&readable, &mut report)
    {
        report.problems.push(e.to_string());
    }
    for memtable in &readable.memtables {
        report.problems.extend(memtable.list.check().into_iter().map(|p| format!("memtable: {p}")));
    }
    check_manifest(lsm, &mut report)?;
    check_pool(lsm, &mut report)?;
    Ok(report)
}

fn check_tables(levels: &Levels, report: &mut CheckReport) {
    for table in levels.runs() {
        report.tables += 1;
        report.entries += table.meta().entries;
        if let Err(e) = table.verify() {
            report.problems.push(e.to_string());
        }
    }
}

/// Walks over all versions in order, newest first within a key: their levels must not go up again. Memtables stand before
/// the first.
fn check_versions(readable: &Readable, report: &mut CheckReport) -> Result<()> {
    let levels = &readable.levels;
    let (mut children, mut places): (Vec<Box<dyn Cursor>>, Vec<usize>) = (Vec::new(), Vec::new());
    for memtable in &readable.memtables {
        children.push(Box::new(memtable.list.cursor()));
        places.push(0);
    }
    for level in 0..levels.depth() {
        for table in levels.level(level).iter() {
            children.push(Box::new(table.cursor(false, READAHEAD_BYTES)));
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
            report.keys += u64::from(cursor.kind() == Kind::Put);
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

fn check_manifest(lsm: &Lsm, report: &mut CheckReport) -> Result<()> {
    let (state, levels) = (lsm.manifest.state(), lsm.readable().levels.clone());
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
    for number in lsm.manifest.listing()?.missing_tables {
        report.problems.push(format!("{number:06}.sst: missing"));
    }
    Ok(())
}

fn check_pool(lsm: &Lsm, report: &mut CheckReport) -> Result<()> {
    report.problems.extend(lsm.log.check(&lsm.manifest)?.into_iter().map(|p| format!("log: {p}")));
    let Some(pool) = &lsm.pool else { return Ok(()) };
    let problems = lsm.log.with_marked(pool.marks(), |marks| Ok(pool.check(marks)))?;
    report.problems.extend(problems.into_iter().map(|p| format!("pool: {p}")));
    report.pm_bytes = pool.used_bytes();
    Ok(())
}

pub(super) fn fill_stats(lsm: &Lsm, stats: &mut Stats) {
    let sync = lsm.core.options.sync;
    stats.durability = durability(lsm.pool.is_some(), sync).into();
    stats.media = match &lsm.pool {
        Some(pool) => pool.describe(),
        None => "no persistent memory; the log lies in files".into(),
    };
    stats.emulated = lsm.emulated.clone();
    stats.opened = lsm.opened.get().cloned().unwrap_or_default();
    let readable = lsm.readable();
    stats.dram.tables = lsm.core.cache().table_bytes();
    stats.dram.memtables = readable.memtables.iter().map(|m| m.list.dram_bytes()).sum();
    if let Some(pool) = &lsm.pool {
        stats.pm.size = pool.size();
        stats.pm.max_size = pool.max_size();
        stats.pm.used = pool.used_bytes();
        stats.pm.traffic = pool.stats();
    }
    let state = lsm.manifest.state();
    stats.ssd.tables = state.tables.size() as u64;
    for table in state.tables.values() {
        stats.ssd.table_bytes += table.meta.file_bytes;
        stats.ssd.table_entries += table.meta.entries;
        stats.ssd.live_entries += table.live();
    }
}

/// Whether acknowledged writes survive a power cut, in plain words.
fn durability(on_pm: bool, sync: bool) -> &'static str {
    match (on_pm, sync) {
        (true, _) => "an acknowledged write survives a power cut",
        (false, true) => {
            "an acknowledged write survives a power cut (each group of writes waits for fdatasync)"
        }
        (false, false) => {
            "an acknowledged write survives a killed process; after a power cut a consistent prefix \
             with every synced write is there"
        }
    }
}
