//! Compaction filters, crashed anywhere, on a full disk and with operations that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace::{CompactionFilter, EngineKind, FilterDecision, Options};

use super::judge::options;
use super::mixes::{Drawn, Mix};
use super::ops::is_junk;
use super::room::{everywhere, on_a_full_disk_with};
use super::run::Errors;
use super::scenarios::{Exploration, scenario};

/// Images of each engine on each medium; a long run gets more by the environment.
const IMAGES: u64 = 200;

/// Options with a filter that lets go of junk and counts it; `None` for an engine that refuses filters.
fn filtered(engine: EngineKind, count: &Arc<AtomicU64>) -> Option<Options> {
    let count = count.clone();
    let filter = CompactionFilter::new(move |entry| match is_junk(entry.value) {
        true => {
            count.fetch_add(1, Ordering::Relaxed);
            FilterDecision::Remove
        }
        false => FilterDecision::Keep,
    });
    let options = Options { compaction_filter: Some(filter), ..options(engine) };
    (!engine.keeps_all_in_memory()).then_some(options)
}

/// Must catch an entry that goes with what a filter lets go, an older value that comes back from under it, and a
/// recovery that stumbles over a deletion which was cut off.
#[test]
fn filters_survive_crashes() {
    for seed in 90..92 {
        let ops = Drawn { seed, ops: 50, mix: Mix::JUNK }.draw();
        for (engine, granularity) in everywhere() {
            let count = Arc::default();
            let Some(options) = filtered(engine, &count) else { continue };
            let explorer = Exploration { engine, granularity, seed, images: IMAGES }.explorer();
            let summary = explorer.must_pass(scenario(options, Errors::Fail), ops.clone());
            let count = count.load(Ordering::Relaxed);
            println!("{engine:?} {granularity:?} seed {seed}: {count} let go, {summary:?}");
            // Small items stay in persistent memory as long as there is room.
            assert!(count > 20 || engine == EngineKind::Split, "{engine:?}: hardly anything was let go");
        }
    }
}

/// Must catch a filter whose deletions are refused for want of room, and that takes more than it may or gives up.
#[test]
fn filters_on_a_full_disk() {
    for (seed, slack) in (94..).zip([0, 1500, 6000]) {
        let count = Arc::default();
        let mix = Mix { kill: 0, reopen: 0, synced: 0, ..Mix::JUNK };
        on_a_full_disk_with(seed, slack, mix, |engine| filtered(engine, &count));
        assert!(count.load(Ordering::Relaxed) > 100);
    }
}
