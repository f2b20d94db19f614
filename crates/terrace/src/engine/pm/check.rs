//! Proving a database, and describing it.
//!
//! Every version that the index leads to is read where it lies: it must be sound, belong to its key, and each
//! older version under it must have a lower number. Then the index proves itself, the pool proves that
//! everything in it is either reachable or free, and the home proves that each place has one word.

use std::time::Duration;

use terrace_base::Result;
use terrace_index::{PointIndex, ScanBatch};
use terrace_pmem::{Granularity, Marks};

use super::PmStore;
use super::elsewhere::{Elsewhere, PlaceOf, VersionRef, VersionRefOf};
use super::index::{KeyIndex, PmEngine, PositionOf};
use super::versions::Named;
use crate::core::report::{CheckReport, problem};
use crate::pool;
use crate::stats::Stats;

/// How often a check looks whether all readers have left before it lets others go on.
const PATIENCE: u32 = 10_000;

/// How long it lets them.
const PAUSE: Duration = Duration::from_millis(1);

/// Lets others run; false.
fn yields() -> bool {
    std::thread::yield_now();
    false
}

pub(super) fn check<E: PmEngine>(store: &PmStore<E>) -> Result<CheckReport> {
    store.jobs.wait_idle();
    store.home.still(|| check_still(store))
}

fn check_still<E: PmEngine>(store: &PmStore<E>) -> Result<CheckReport> {
    let _whole = store.hold_index();
    let (_alone, _still, rested) = loop {
        let (alone, still) = (store.gate.exclusive(), store.index.still());
        let rested = store.index.rest(&store.core);
        // Most readers look at one thing for a moment and leave; nothing new arrives, since writers wait.
        if (0..PATIENCE).any(|_| store.give_back() || yields()) {
            break (alone, still, rested);
        }
        // Somebody looks for longer, and may want what this holds.
        drop((alone, still));
        store.core.env.clock.sleep(PAUSE);
    };
    let mut marks = store.pool.marks();
    let (mut report, places) = prove_words(store, &mut marks)?;
    report.problems.extend(rested.err().map(|e| format!("index: {e}")));
    marks.slot(store.header)?;
    store.index.mark(&mut marks)?;
    report.problems.extend(store.pool.check(&marks).into_iter().map(|p| format!("pool: {p}")));
    report.pm_bytes = store.pool.used_bytes();
    store.home.check(store, &places, &mut report)?;
    Ok(report)
}

/// Proves index and records, without the rest of the pool.
pub(super) fn prove<E: PmEngine>(store: &PmStore<E>) -> Result<CheckReport> {
    let _whole = store.hold_index();
    let _alone = store.gate.exclusive();
    let _still = store.index.still();
    prove_words(store, &mut store.pool.marks()).map(|(report, _)| report)
}

/// Checks the versions that the words lead to, with all their places.
fn prove_words<E: PmEngine>(store: &PmStore<E>, marks: &mut Marks) -> Result<(CheckReport, Vec<PlaceOf<E>>)> {
    let mut report = CheckReport::default();
    let mut places = Vec::new();
    let counted = check_words(store, marks, &mut places, &mut report)?;
    if counted != store.index.len() {
        report.problems.push(format!("index: {counted} keys are found, {} were counted", store.index.len()));
    }
    report.problems.extend(store.index.check()?.into_iter().map(|p| format!("index: {p}")));
    Ok((report, places))
}

/// Follows every word of the index; returns the keys in it.
fn check_words<E: PmEngine>(
    store: &PmStore<E>,
    marks: &mut Marks,
    places: &mut Vec<PlaceOf<E>>,
    report: &mut CheckReport,
) -> Result<u64> {
    let (mut cursor, mut batch, mut more) = (PositionOf::<E>::default(), ScanBatch::new(), true);
    let mut counted = 0;
    while more {
        let visited = store.visit_batch(&mut cursor, &mut batch, &mut |key, word| {
            counted += 1;
            report.keys += u64::from(!word.is_tombstone());
            if let Err(e) = check_chain(store, key, word, marks, places, &mut report.entries) {
                report.problems.push(format!("{}, under the key {}", problem(e)?, key.escape_ascii()));
            }
            Ok(())
        });
        more = report.note(visited)?.unwrap_or(false);
    }
    Ok(counted)
}

fn check_chain<E: PmEngine>(
    store: &PmStore<E>,
    key: &[u8],
    word: VersionRefOf<E>,
    marks: &mut Marks,
    places: &mut Vec<PlaceOf<E>>,
    entries: &mut u64,
) -> Result<()> {
    // Marked even if it is damaged: it has an owner.
    match word {
        VersionRef::Record(record) => marks.slot(record.offset())?,
        VersionRef::Place(place) => places.push(place),
    }
    let chain = store.chain(word, key)?;
    *entries += chain.len() as u64;
    for (i, version) in chain.iter().enumerate() {
        let (place, number) = match version {
            Named::Place(place) => (Some(*place), None),
            Named::Record(record) => (store.place_in(record)?, Some(record.number)),
        };
        if i > 0
            && let Named::Record(record) = version
        {
            marks.slot(record.word.offset())?;
        }
        if let Some(place) = place {
            if i > 0 || number.is_some() {
                places.push(place);
            }
            let loaded = store.home.load(key, place)?.ok_or_else(|| store.home.lost(place))?;
            check_number(store, word, number.unwrap_or(loaded.number).max(loaded.number))?;
        } else if i == 0 {
            check_number(store, word, number.unwrap_or(0))?;
        }
    }
    Ok(())
}

/// Fails unless the number was given out.
fn check_number<E: PmEngine>(store: &PmStore<E>, word: VersionRefOf<E>, number: u64) -> Result<()> {
    if number > store.number() {
        let at = word.record().map_or(0, |record| record.offset());
        return Err(store.pool.corruption(at, "a number that was given out", "a higher one"));
    }
    Ok(())
}

pub(super) fn fill_stats<E: PmEngine>(store: &PmStore<E>, stats: &mut Stats) {
    pool::fill_stats(&store.pool, stats);
    stats.durability = durability(store.pool.granularity()).into();
    stats.emulated = store.emulated.clone();
    stats.opened = store.opened.get().cloned().unwrap_or_default();
    stats.dram.tables = store.core.cache().table_bytes();
    stats.dram.index = store.index.dram_bytes();
    stats.dram.allocator = store.pool.dram_bytes();
    stats.pm.index = store.index.pm_bytes();
    stats.pm.chains = store.kept_versions();
    stats.counts.index_keys = store.index.len();
    store.home.fill_stats(stats);
}

/// What an acknowledged write survives, in words.
fn durability(granularity: Granularity) -> &'static str {
    match granularity {
        Granularity::Byte | Granularity::CacheLine => "an acknowledged write survives a power cut",
        Granularity::Page => "an acknowledged write survives a killed process",
    }
}
