//! Proving a database, and describing it.
//!
//! Every record that the index leads to is read: it must be sound, of its key, and each older one under it of a lower
//! number. Then the index proves itself, and the pool that everything in it is either reachable or free.

use terrace_base::Result;
use terrace_index::ScanBatch;
use terrace_pmem::{Granularity, Marks};

use super::PmStore;
use super::index::KeyIndex;
use crate::core::report::{CheckReport, problem};
use crate::stats::Stats;
use crate::versions::RecordRef;

pub(super) fn check<I: KeyIndex>(store: &PmStore<I>) -> Result<CheckReport> {
    store.jobs.wait_idle();
    let _alone = store.gate.exclusive();
    let _still = store.index.still();
    let rested = store.index.rest(&store.core);
    // Readers look at one thing for a moment and leave; nothing new comes, since writers wait.
    while !store.give_back() {
        std::thread::yield_now();
    }
    let mut marks = store.pool.marks();
    let mut report = prove_words(store, &mut marks)?;
    report.problems.extend(rested.err().map(|e| format!("index: {e}")));
    marks.slot(store.header)?;
    store.index.mark(&mut marks)?;
    report.problems.extend(store.pool.check(&marks).into_iter().map(|p| format!("pool: {p}")));
    report.pm_bytes = store.pool.used_bytes();
    Ok(report)
}

/// Proves index and records, and says nothing of the rest of the pool.
pub(super) fn prove<I: KeyIndex>(store: &PmStore<I>) -> Result<CheckReport> {
    let _alone = store.gate.exclusive();
    let _still = store.index.still();
    prove_words(store, &mut store.pool.marks())
}

fn prove_words<I: KeyIndex>(store: &PmStore<I>, marks: &mut Marks) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let counted = check_words(store, marks, &mut report)?;
    if counted != store.index.len() {
        report.problems.push(format!("index: {counted} keys are found, {} were counted", store.index.len()));
    }
    report.problems.extend(store.index.check()?.into_iter().map(|p| format!("index: {p}")));
    Ok(report)
}

/// Follows every word of the index; the keys that there are.
fn check_words<I: KeyIndex>(store: &PmStore<I>, marks: &mut Marks, report: &mut CheckReport) -> Result<u64> {
    let (mut cursor, mut batch, mut more) = (I::Cursor::default(), ScanBatch::new(), true);
    let mut counted = 0;
    while more {
        let visited = store.visit_batch(&mut cursor, &mut batch, &mut |key, word| {
            counted += 1;
            report.keys += u64::from(!word.is_tombstone());
            if let Err(e) = check_chain(store, key, word, marks, &mut report.entries) {
                report.problems.push(format!("{}, under the key {}", problem(e)?, key.escape_ascii()));
            }
            Ok(())
        });
        more = report.note(visited)?.unwrap_or(false);
    }
    Ok(counted)
}

fn check_chain<I: KeyIndex>(
    store: &PmStore<I>,
    key: &[u8],
    word: RecordRef,
    marks: &mut Marks,
    entries: &mut u64,
) -> Result<()> {
    // Marked even if it is damaged: it has an owner.
    marks.slot(word.offset())?;
    let chain = store.chain(word, key)?;
    *entries += chain.len() as u64;
    if chain[0].number > store.number() {
        return Err(store.pool.corruption(word.offset(), "a number that was given out", "a higher one"));
    }
    chain[1..].iter().try_for_each(|version| marks.slot(version.word.offset()))
}

pub(super) fn fill_stats<I: KeyIndex>(store: &PmStore<I>, stats: &mut Stats) {
    stats.media = store.pool.describe();
    stats.durability = durability(store.pool.granularity()).into();
    stats.emulated = store.emulated.clone();
    stats.opened = store.opened.get().cloned().unwrap_or_default();
    stats.dram.index = store.index.dram_bytes();
    stats.dram.allocator = store.pool.dram_bytes();
    stats.pm.size = store.pool.size();
    stats.pm.max_size = store.pool.max_size();
    stats.pm.used = store.pool.used_bytes();
    stats.pm.index = store.index.pm_bytes();
    stats.pm.traffic = store.pool.stats();
    stats.pm.chains = store.kept_versions();
    stats.counts.index_keys = store.index.len();
}

/// What an acknowledged write survives, in plain words.
fn durability(granularity: Granularity) -> &'static str {
    match granularity {
        Granularity::Byte | Granularity::CacheLine => "an acknowledged write survives a power cut",
        Granularity::Page => "an acknowledged write survives a killed process",
    }
}
