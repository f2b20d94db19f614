//! The engine `lab`, crashed at every event of what changes its trees: flushes, evictions, compactions, openings.

use terrace::{EngineKind, Options};
use terrace_pmem::Granularity;
use terrace_sim::{PmOptions, World, WorldOptions};

use super::env::runs_on;
use super::judge::{Shared, options};
use super::moments::{Every, Moment, at_every_event, judge_all, judge_openings};
use super::ops::Op;
use super::run::{Errors, Session};

/// Keys that are written again and again.
const HOT: u16 = 24;

/// Small trees, which fill up.
fn small() -> Options {
    let mut options = options(EngineKind::Lab);
    (options.lab.value_tree_bytes, options.lab.hint_tree_bytes) = (6 << 10, 4 << 10);
    options
}

/// Writes a few keys often, which fills the value tree, and many once, which go to the levels.
fn fill() -> Vec<Op> {
    let mut ops = Vec::new();
    for round in 0..10u16 {
        ops.extend(
            (0..HOT).filter(|k| (k + round) % 3 != 0).map(|k| Op::Put { key: k, len: 60 + u32::from(k) }),
        );
        ops.extend((0..8).map(|i| Op::Put { key: HOT + 8 * round + i, len: 120 }));
        ops.extend([Op::Flush, Op::Background, Op::Background]);
    }
    ops
}

/// What a flush meets: hot keys that are replaced, deleted and too large for the tree, new ones, and a snapshot that
/// needs what they replace.
fn writes() -> Vec<Op> {
    let mut ops = vec![Op::Snapshot];
    ops.extend((0..HOT).map(|k| match k % 5 {
        0 => Op::Delete { key: k },
        1 => Op::Put { key: k, len: 2000 },
        _ => Op::Put { key: k, len: 90 },
    }));
    ops.extend((0..HOT).filter(|k| k % 4 == 0).map(|k| Op::Put { key: k, len: 70 }));
    ops.extend((150..160).map(|k| Op::Put { key: k, len: 100 }));
    ops
}

/// Keys that are new and written twice each: the tree lets them in, and is full.
fn crowd() -> Vec<Op> {
    (0..2).flat_map(|round| (120..160).map(move |k| Op::Put { key: k, len: 80 + round })).collect()
}

/// What was crashed.
struct Crashed {
    moments: Vec<Moment>,
    /// Keys that left the tree of values meanwhile.
    evicted: u64,
}

/// Crashes at every event of `ops`, carried out after what fills the trees and `before`.
fn crash_in(what: &str, before: &[Op], ops: &[Op]) -> Crashed {
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity: Granularity::CacheLine };
    let world = World::new(5, WorldOptions { pm });
    let mut session = Session::open(&world, &small(), Errors::Fail).unwrap();
    let mut ledger = Shared::over(Default::default());
    for op in fill().iter().chain(before) {
        session.carry_out(op, &mut ledger).unwrap();
    }
    let first = session.db().stats();
    let moments = at_every_event(&mut session, &world, ops, &ledger);
    let then = session.db().stats();
    println!(
        "{what}: {} events; from {:?} {:?}\n  to {:?} {:?}",
        moments.len(),
        first.values,
        first.hints,
        then.values,
        then.hints
    );
    assert!(first.values.keys > 2, "the tree of values is empty: {first:?}");
    judge_all(&small(), &moments, what);
    Crashed { moments, evicted: then.values.evicted - first.values.evicted }
}

/// Must catch a version that a snapshot needs and that is replaced in the tree of values before it is in a table.
#[test]
fn crashes_in_a_flush_under_a_snapshot() {
    if runs_on(EngineKind::Lab, Granularity::CacheLine) {
        crash_in("flush", &writes(), &[Op::Flush]);
    }
}

/// Must catch a log that goes before what its memtable held is in the tree or in a table that the manifest names.
#[test]
fn crashes_in_flushes_without_a_snapshot() {
    if runs_on(EngineKind::Lab, Granularity::CacheLine) {
        let ops: Vec<Op> = writes().into_iter().skip(1).chain([Op::Release, Op::Flush]).collect();
        crash_in("writes and flushes", &[], &ops);
    }
}

/// Must catch a key that leaves the full tree before the manifest names the table that it goes to.
#[test]
fn crashes_in_an_eviction_that_a_flush_begins() {
    if runs_on(EngineKind::Lab, Granularity::CacheLine) {
        let crashed = crash_in("eviction", &crowd(), &[Op::Flush]);
        assert!(crashed.evicted > 0, "a flush that fills the tree has some of it leave");
    }
}

/// Must catch a merge that drops a copy of a key for the sake of a newer one which is leaving the tree just then.
#[test]
fn crashes_in_compactions() {
    if runs_on(EngineKind::Lab, Granularity::CacheLine) {
        let before: Vec<Op> = writes().into_iter().chain([Op::Flush]).collect();
        let crashed = crash_in("compaction", &before, &[Op::COMPACT_LONG_KEYS]);
        assert!(crashed.evicted > 0, "a compaction that is asked for has the tree emptied first");
    }
}

/// Must catch an opening that is cut short and leaves less of a half done flush than it found.
#[test]
fn crashes_in_openings() {
    if !runs_on(EngineKind::Lab, Granularity::CacheLine) {
        return;
    }
    let Crashed { moments, .. } = crash_in("flush", &writes(), &[Op::Flush]);
    let looks = judge_openings(&small(), &moments, Every(5), "flush");
    println!("{looks} openings that were cut short");
    assert!(looks > 50);
}
