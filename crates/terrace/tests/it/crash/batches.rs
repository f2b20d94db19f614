//! Batches in the engines that keep everything in persistent memory: what a crash leaves of one is taken back when the
//! database is opened, by an undo list and nothing else. Each event is tried, and of the openings some are crashed too.

use terrace::{EngineKind, Options};
use terrace_pmem::Granularity;
use terrace_sim::{Explorer, PmOptions, WorldOptions};

use super::judge::options;
use super::mixes::Script;
use super::ops::{Op, Write};
use super::run::Errors;
use super::scenarios::{Nested, scenario};

/// Images of an event that are fixed, and that are drawn beside them.
const FIXED: u64 = 5;
const DRAWN: u64 = 2;

/// Tries every event of the script.
fn each_event(options: &Options, script: Script) {
    let Script { seed, ops } = script;
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity: Granularity::CacheLine };
    let explorer = Explorer::new(seed).world(WorldOptions { pm }).shrink_runs(60);
    let run = |explorer: Explorer| explorer.must_pass(scenario(options.clone(), Errors::Fail), ops.clone());
    let count = run(Nested::NONE.within(explorer.clone().images(1).drawn(0)));
    let explorer = explorer.images(count.events * (FIXED + DRAWN)).drawn(DRAWN);
    let summary = run(Nested { depth: 1, events: 1 }.within(explorer));
    let is_asked = std::env::var_os("TERRACE_CRASH_IMAGES").is_some();
    assert!(is_asked || summary.events_tried == summary.events, "every event is tried: {summary:?}");
    println!("{:?} seed {seed}: {summary:?}", options.engine);
}

/// Batches upon four keys: of new keys, of keys that are replaced, of keys that go, and of all sorts. Keys and values
/// are short and long; one key is empty.
fn batches() -> Vec<Op> {
    vec![
        Op::Put { key: 1, len: 20 },
        Op::Put { key: 3, len: 300 },
        Op::Put { key: 4, len: 8 },
        Op::Put { key: 2, len: 2 },
        Op::Batch(vec![Write::Put { key: 5, len: 30 }, Write::Put { key: 6, len: 2 }]),
        Op::Batch(vec![Write::Put { key: 1, len: 3 }, Write::Put { key: 3, len: 900 }]),
        Op::Batch(vec![Write::Delete { key: 4 }, Write::Delete { key: 5 }, Write::Delete { key: 7 }]),
        Op::Batch(vec![
            Write::Put { key: 1, len: 100 },
            Write::Put { key: 8, len: 5 },
            Write::Delete { key: 3 },
            Write::Put { key: 0, len: 5000 },
        ]),
        // Twice in one batch, and there again after it was removed.
        Op::Batch(vec![
            Write::Put { key: 9, len: 1 },
            Write::Put { key: 9, len: 60 },
            Write::Delete { key: 2 },
            Write::Put { key: 2, len: 40 },
        ]),
        Op::Batch(vec![Write::Delete { key: 0 }, Write::Put { key: 0, len: 8 }, Write::Delete { key: 6 }]),
        // Of keys that there are, and of one that there is not.
        Op::Swap { key: 1, len: 30 },
        Op::Swap { key: 8, len: 600 },
        Op::Swap { key: 11, len: 4 },
        // By a transaction, which asks behind the gate.
        Op::Transact {
            reads: vec![0, 8],
            writes: vec![
                Write::Put { key: 1, len: 10 },
                Write::Delete { key: 9 },
                Write::Put { key: 10, len: 9 },
            ],
        },
    ]
}

/// Must catch a key of a batch that was cut off whose older version the undo list does not bring back into the hash
/// table.
#[test]
fn in_turbo_are_there_or_not() {
    each_event(&options(EngineKind::Turbo), Script { seed: 1, ops: batches() });
}

/// Must catch a leaf that a batch splits and that keeps, after the undo, an entry of the batch or lacks one from before
/// it.
#[test]
fn in_sptree_are_there_or_not() {
    let mut options = options(EngineKind::Sptree);
    options.sptree.leaf_entries = 4;
    each_event(&options, Script { seed: 2, ops: batches() });
}

/// Must catch a batch that the logs of write buffers bring back after it was taken back, or of which they bring back a
/// part.
#[test]
fn in_a_buffered_sptree_are_there_or_not() {
    let mut options = options(EngineKind::Sptree);
    options.sptree.leaf_entries = 4;
    options.sptree.buffered = true;
    options.sptree.log_bytes = 4096;
    each_event(&options, Script { seed: 3, ops: batches() });
}
