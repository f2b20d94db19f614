//! Proving and describing a database.
//!
//! Every table is read in full. For each put in it the index is asked whether it holds that version; the
//! versions that the index holds must add up to all that its words name, which proves both directions without
//! reading any block twice. Then the counts, the index, the memtables and the pool itself.

use std::collections::BTreeMap;

use terrace_base::Result;
use terrace_index::{PointIndex, SkipList};
use terrace_pmem::Granularity;
use terrace_table::{Cursor, Kind, Position};

use super::Slm;
use crate::commit_log::durability;
use crate::core::report::CheckReport;
use crate::located::{CHAIN_KIND, Chain, Location, Origin};
use crate::pool;
use crate::stats::Stats;

/// Bytes read ahead from a table being checked.
const READAHEAD_BYTES: usize = 1 << 20;

pub(super) fn check(slm: &Slm) -> Result<CheckReport> {
    slm.jobs.wait_idle();
    let _no_compaction = slm.jobs.all_slots();
    let _no_collapse = slm.located.hold_collapsing();
    let _no_flush = slm.flushes.claim();
    let _no_index_change = slm.located.hold_still();
    let mut report = CheckReport::default();
    let held = check_tables(slm, &mut report)?;
    check_words(slm, &held, &mut report)?;
    check_counts(slm, &held, &mut report);
    report.problems.extend(slm.located.index().check()?.into_iter().map(|p| format!("index: {p}")));
    for memtable in slm.mem.load().iter() {
        report.problems.extend(memtable.list().check()?.into_iter().map(|p| format!("memtable: {p}")));
    }
    check_pool(slm, &mut report)?;
    if slm.logs_writes() {
        let held = "nothing is lost by that: the memtables hold what was in it";
        let problems = slm.log.check(&slm.manifest)?.into_iter();
        report.problems.extend(problems.map(|p| format!("log: {p}; {held}")));
    }
    for number in slm.manifest.listing()?.missing_tables {
        report.problems.push(format!("{number:06}.sst: missing"));
    }
    if let Some(more) = report.note(keys_beside_index(slm))? {
        report.keys = report.keys.saturating_add_signed(more);
    }
    Ok(report)
}

/// The difference between the number of keys and the number in the index, according to memtables.
fn keys_beside_index(slm: &Slm) -> Result<i64> {
    let mem = slm.mem.load_full();
    let mut newer: Vec<&SkipList> = Vec::new();
    let mut more = 0;
    for list in mem.iter().map(|memtable| memtable.list()) {
        let mut cursor = list.cursor();
        cursor.seek_first()?;
        let mut seen: Option<Vec<u8>> = None;
        while cursor.valid() {
            let key = cursor.key();
            if seen.as_deref() != Some(key) {
                seen = Some(key.to_vec());
                let is_newest = !holds(&newer, key)?;
                let is_there = i64::from(cursor.version_kind()? == Kind::Put);
                more += if is_newest { is_there - i64::from(slm.located.contains(key)?) } else { 0 };
            }
            cursor.next()?;
        }
        newer.push(list);
    }
    Ok(more)
}

fn holds(lists: &[&SkipList], key: &[u8]) -> Result<bool> {
    for list in lists {
        if list.get(key, u64::MAX)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads every table; returns how many of its versions the index holds.
fn check_tables(slm: &Slm, report: &mut CheckReport) -> Result<BTreeMap<u64, u64>> {
    let mut held = BTreeMap::new();
    for &number in slm.manifest.state().tables.keys() {
        report.tables += 1;
        let live = check_table(slm, number, report);
        held.extend(report.note(live)?.map(|live| (number, live)));
    }
    Ok(held)
}

fn check_table(slm: &Slm, number: u64, report: &mut CheckReport) -> Result<u64> {
    let table = slm.tables.get(number)?;
    table.verify()?;
    let mut live = 0;
    let mut cursor = table.cursor(false, READAHEAD_BYTES);
    cursor.seek_first()?;
    let (mut key, mut newer): (Vec<u8>, Option<u64>) = (Vec::new(), None);
    while cursor.valid() {
        report.entries += 1;
        if cursor.key() != key {
            key.clear();
            key.extend_from_slice(cursor.key());
            newer = None;
        }
        let origin = Origin { table: number, newer: newer.replace(cursor.seq()) };
        if cursor.kind() == Kind::Put
            && let Some(position) = slm.located.held_position(&key, cursor.seq(), origin)?
        {
            live += 1;
            if cursor.position() != Some(position) {
                report.problems.push(misplaced(number, position, &key));
            }
        }
        cursor.next()?;
    }
    Ok(live)
}

fn misplaced(number: u64, position: Position, key: &[u8]) -> String {
    let (at, key) = (position.offset(), key.escape_ascii());
    format!("{number:06}.sst: byte {at} is where the index has the key {key}, which is elsewhere")
}

/// Every position that an index word names must have been found in its table.
fn check_words(slm: &Slm, held: &BTreeMap<u64, u64>, report: &mut CheckReport) -> Result<()> {
    let mut named: BTreeMap<u64, u64> = BTreeMap::new();
    slm.located.each_word(|key, word| {
        match Location::decode(word) {
            Some(Location::Position(position)) => {
                report.keys += 1;
                *named.entry(position.number()).or_default() += 1;
            }
            Some(Location::Chain(offset)) => match Chain::load(&slm.pool, offset) {
                Ok(chain) if chain.key != key => {
                    report.problems.push(format!("the chain at {offset} belongs to another key"));
                }
                Ok(chain) => {
                    // A chain whose newest version is a tombstone exists only for snapshots.
                    report.keys += u64::from(chain.versions.first().is_some_and(|v| v.position.is_some()));
                    let positions = chain.versions.iter().filter_map(|v| v.position);
                    positions.for_each(|p| *named.entry(p.number()).or_default() += 1);
                }
                Err(e) => report.problems.push(e.to_string()),
            },
            None => report.problems.push(format!("index: {word:#018x} is not a word")),
        }
        Ok(())
    })?;
    for (number, count) in named {
        match held.get(&number) {
            Some(found) if *found == count => {}
            Some(found) => report
                .problems
                .push(format!("{number:06}.sst: the index names {count} entries, {found} are there")),
            None => report.problems.push(format!(
                "{number:06}.sst: the index names {count} entries of a table that is gone or damaged"
            )),
        }
    }
    Ok(())
}

fn check_counts(slm: &Slm, held: &BTreeMap<u64, u64>, report: &mut CheckReport) {
    let uncounted = slm.uncounted();
    for (number, table) in &slm.manifest.state().tables {
        let counted = table.live_raw + uncounted.get(number).copied().unwrap_or(0);
        if let Some(live) = held.get(number)
            && counted != *live as i64
        {
            report.problems.push(format!(
                "manifest: table {number} is said to have {counted} live entries and has {live}"
            ));
        }
    }
}

fn check_pool(slm: &Slm, report: &mut CheckReport) -> Result<()> {
    // Readers look at one thing for a moment and leave; nothing new arrives, since writers wait.
    while !slm.located.drain() {
        std::thread::yield_now();
    }
    let mut problems = pool_problems(slm)?;
    if !problems.is_empty() {
        // The last reader of a memtable may have been giving it back at that moment.
        let again = pool_problems(slm)?;
        problems.retain(|problem| again.contains(problem));
    }
    report.problems.extend(problems);
    report.pm_bytes = slm.pool.used_bytes();
    Ok(())
}

fn pool_problems(slm: &Slm) -> Result<Vec<String>> {
    let mut marks = slm.pool.marks();
    let _kept = slm.mark(&mut marks)?;
    slm.located.mark_job_logs(&mut marks)?;
    Ok(slm.pool.check(&marks).into_iter().map(|p| format!("pool: {p}")).collect())
}

pub(super) fn fill_stats(slm: &Slm, stats: &mut Stats) {
    pool::fill_stats(&slm.pool, stats);
    stats.durability = durability(slm.pool.granularity() != Granularity::Page, slm.core.options.sync).into();
    if slm.logs_writes() {
        stats.log = slm.log.describe().into();
    }
    stats.emulated = slm.emulated.clone();
    stats.opened = slm.opened.lock().clone();
    let held = slm.dram();
    (stats.dram.tables, stats.dram.memtables) = (held.tables, held.memtables);
    (stats.dram.index, stats.dram.allocator) = (held.index, held.allocator);
    stats.pm.memtables = slm.mem.load().iter().map(|m| m.list().extents_bytes()).sum();
    stats.pm.index = slm.located.index().pm_bytes();
    slm.manifest.state().fill_stats(&mut stats.ssd);
    stats.counts.index_keys = slm.located.index().len();
    stats.pm.chains = slm.pool.slots(CHAIN_KIND).count() as u64;
}
