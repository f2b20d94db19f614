//! Proving and describing the data on the SSD.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_disk::Slot;

use super::home::Ssd;
use super::place::OnSsd;
use crate::core::report::CheckReport;
use crate::engine::pm::{PmEngine, PmStore};
use crate::stats::Stats;

/// Reads every table in full, checks that it has as many live entries as recorded, and that every slot has
/// one owner.
pub(super) fn check<E: PmEngine<Home = Ssd>>(
    store: &PmStore<E>,
    named: &[OnSsd],
    report: &mut CheckReport,
) -> Result<()> {
    let ssd = &*store.home;
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut slots: Vec<Slot> = Vec::new();
    for place in named {
        match place {
            OnSsd::Run(position) => *counts.entry(position.number()).or_default() += 1,
            OnSsd::Slot(slot) => slots.push(*slot),
        }
    }
    for &number in ssd.manifest.state().tables.keys() {
        report.tables += 1;
        let verified = ssd.tables.get(number).and_then(|table| table.verify());
        report.note(verified)?;
    }
    if ssd.runs.are_counted() {
        for run in ssd.runs.all() {
            let found = counts.get(&run.number).copied().unwrap_or(0);
            if found != run.live {
                let (number, live) = (run.number, run.live);
                report
                    .problems
                    .push(format!("{number:06}.sst: {live} entries are said to be live, {found} are"));
            }
        }
    }
    for number in ssd.manifest.listing()?.missing_tables {
        report.problems.push(format!("{number:06}.sst: missing"));
    }
    // Asked before and after: nothing leads yet to what a writer has just written.
    let before = store.placing.load(Ordering::Acquire);
    let checked = ssd.stamps.with(|stamps| ssd.slots.check(slots.into_iter().chain(stamps.iter().copied())));
    if let Some(nobodys) = report.note(checked)?
        && nobodys > 0
        && before == 0
        && store.placing.load(Ordering::Acquire) == 0
    {
        report.problems.push(format!("slots: {nobodys} bytes are nobody's"));
    }
    Ok(())
}

pub(super) fn fill_stats(ssd: &Ssd, stats: &mut Stats) {
    ssd.manifest.state().fill_stats(&mut stats.ssd);
    let (slots, split) = (ssd.slots.stats(), &mut stats.split);
    if ssd.runs.are_counted() {
        stats.ssd.live_entries = ssd.runs.all().iter().map(|run| run.live).sum();
        split.dead_bytes = ssd.runs.all().iter().map(super::runs::TableCount::dead_bytes).sum();
    }
    stats.dram.index += ssd.weights.dram_bytes();
    (split.is_there, split.cache_is_volatile) = (true, ssd.cache_is_volatile);
    split.migrated = ssd.migrated.load(Ordering::Relaxed);
    split.migrated_bytes = ssd.migrated_bytes.load(Ordering::Relaxed);
    let stamps = ssd.stamps.counted(&ssd.slots);
    split.items = slots.items.saturating_sub(stamps);
    split.item_bytes = slots.item_bytes.saturating_sub(stamps * u64::from(ssd.sector_bytes()));
    split.retired_bytes = slots.retired_bytes;
    split.held_bytes = slots.held_bytes;
    split.free_bytes = slots.free_bytes;
    split.file_bytes = slots.file_bytes - slots.hole_bytes;
    split.submissions = slots.submissions;
    split.submitted = slots.submitted;
    split.device_syncs = slots.syncs;
}
