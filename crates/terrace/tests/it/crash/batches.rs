//! Batches in the engines that keep everything in persistent memory: what a crash leaves of one is taken back when the
//! database is opened, by an undo list and nothing else. Each event is tried, and of the openings some are crashed too.

use terrace::{EngineKind, Options};
use terrace_pmem::Granularity;
use terrace_sim::{Explorer, PmOptions, WorldOptions};

use super::judge::options;
use super::ops::Op;
use super::run::Errors;
use super::scenarios::scenario;

/// Images of an event that are drawn; five are fixed.
const DRAWN: u64 = 2;

/// Tries every event of `ops`.
fn each_event(options: &Options, seed: u64, ops: &[Op]) {
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity: Granularity::CacheLine };
    let explorer = Explorer::new(seed).world(WorldOptions { pm }).shrink_runs(60);
    let run = |explorer: Explorer| explorer.must_pass(scenario(options.clone(), Errors::Fail), ops.to_vec());
    let count = run(explorer.clone().images(1).drawn(0).nested(0, 0));
    let summary = run(explorer.images(count.events * (5 + DRAWN)).drawn(DRAWN).nested(1, 1));
    let is_asked = std::env::var_os("TERRACE_CRASH_IMAGES").is_some();
    assert!(is_asked || summary.events_tried == summary.events, "every event is tried: {summary:?}");
    println!("{:?} seed {seed}: {summary:?}", options.engine);
}

/// Batches upon four keys: of new keys, of keys that are replaced, of keys that go, and of all sorts. Keys and values
/// are short and long; one key is empty.
fn batches() -> Vec<Op> {
    vec![
        Op::Put(1, 20),
        Op::Put(3, 300),
        Op::Put(4, 8),
        Op::Put(2, 2),
        Op::Batch(vec![(5, Some(30)), (6, Some(2))]),
        Op::Batch(vec![(1, Some(3)), (3, Some(900))]),
        Op::Batch(vec![(4, None), (5, None), (7, None)]),
        Op::Batch(vec![(1, Some(100)), (8, Some(5)), (3, None), (0, Some(5000))]),
        // Twice in one batch, and there again after it was removed.
        Op::Batch(vec![(9, Some(1)), (9, Some(60)), (2, None), (2, Some(40))]),
        Op::Batch(vec![(0, None), (0, Some(8)), (6, None)]),
    ]
}

#[test]
fn in_turbo_are_there_or_not() {
    each_event(&options(EngineKind::Turbo), 1, &batches());
}

#[test]
fn in_sptree_are_there_or_not() {
    let mut options = options(EngineKind::Sptree);
    options.sptree.leaf_entries = 4;
    each_event(&options, 2, &batches());
}

#[test]
fn in_a_buffered_sptree_are_there_or_not() {
    let mut options = options(EngineKind::Sptree);
    options.sptree.leaf_entries = 4;
    options.sptree.buffered = true;
    options.sptree.log_bytes = 4096;
    each_event(&options, 3, &batches());
}
