//! The engine `tlsm`, crashed at every event of what changes its lists: flushes, merges, lists that leave for tables,
//! buffers that are emptied, openings. With each tiering, and with each of the paper's steps.

use terrace::{EngineKind, ListDesign, ListStats, Options, TieringKind};
use terrace_pmem::Granularity;
use terrace_sim::{PmOptions, World, WorldOptions};

use super::env::runs_on;
use super::judge::{Shared, options};
use super::moments::{Every, Moment, at_every_event, judge_all, judge_openings};
use super::ops::Op;
use super::run::{Errors, Session};

/// Keys that are written again and again.
const OFTEN: u16 = 24;

fn with(tiering: TieringKind, list_bytes: u64, design: ListDesign) -> Options {
    let mut options = options(EngineKind::Tlsm);
    (options.tlsm.tiering, options.tlsm.list_bytes, options.tlsm.design) = (tiering, list_bytes, design);
    options
}

/// Writes a few keys often, so that buffers are mostly dead, and many once.
fn fill() -> Vec<Op> {
    let mut ops = Vec::new();
    for round in 0..8u16 {
        ops.extend((0..OFTEN).map(|key| Op::Put { key, len: 60 + u32::from(key) }));
        ops.extend((0..8).map(|i| Op::Put { key: OFTEN + 8 * round + i, len: 120 }));
        ops.extend([Op::Flush, Op::Background]);
    }
    ops
}

/// What a flush meets: keys that are replaced and deleted, new and large ones, and a snapshot.
fn writes() -> Vec<Op> {
    let mut ops = vec![Op::Snapshot];
    ops.extend((0..OFTEN).map(|key| match key % 5 {
        0 => Op::Delete { key },
        1 => Op::Put { key, len: 900 },
        _ => Op::Put { key, len: 90 },
    }));
    ops.extend((150..170).map(|key| Op::Put { key, len: 100 }));
    ops
}

/// Crashes at every event of `ops`, after what fills the lists and `writes`; what changed meanwhile.
fn crash_in(what: &str, options: &Options, ops: &[Op]) -> (Vec<Moment>, [ListStats; 2]) {
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity: Granularity::CacheLine };
    let world = World::new(6, WorldOptions { pm });
    let mut session = Session::open(&world, options, Errors::Fail).unwrap();
    let mut ledger = Shared::over(Default::default());
    for op in fill().iter().chain(&writes()) {
        session.carry_out(op, &mut ledger).unwrap();
    }
    let first = session.db().stats().lists;
    let moments = at_every_event(&mut session, &world, ops, &ledger);
    let then = session.db().stats().lists;
    println!("{what}: {} events; from {first:?}\n  to {then:?}", moments.len());
    judge_all(options, &moments, what);
    (moments, [first, then])
}

/// Must catch a list that is whole before its records are, and one that goes before what replaces it is named.
#[test]
fn crashes_in_a_flush_and_in_merges() {
    if !runs_on(EngineKind::Tlsm, Granularity::CacheLine) {
        return;
    }
    for design in [ListDesign::Ps, ListDesign::Bac, ListDesign::default()] {
        for tiering in [TieringKind::None, TieringKind::Leveled] {
            let what = format!("{design:?} {tiering:?}");
            let options = with(tiering, 0, design);
            let (moments, [first, then]) = crash_in(&what, &options, &[Op::Flush, Op::CompactAll]);
            assert!(moments.iter().any(Moment::is_of_memory) && first != then, "{what}");
        }
    }
}

/// Must catch a list that is freed before the table that takes its place is named, and a buffer that is freed with
/// records that some list leads to.
#[test]
fn crashes_in_lists_that_leave() {
    if !runs_on(EngineKind::Tlsm, Granularity::CacheLine) {
        return;
    }
    let options = with(TieringKind::Lru, 24 << 10, ListDesign::default());
    let more: Vec<Op> = (170..200).map(|key| Op::Put { key, len: 200 }).collect();
    let ops: Vec<Op> = [Op::Flush, Op::Background].into_iter().chain(more).chain([Op::Flush]).collect();
    let (_, [first, then]) = crash_in("little room for lists", &options, &ops);
    assert!(then.evicted > first.evicted, "no list has left: {then:?}");
}

/// Must catch an opening that is cut short and leaves less than it found of what a flush or a merge had begun.
#[test]
fn crashes_in_openings() {
    if !runs_on(EngineKind::Tlsm, Granularity::CacheLine) {
        return;
    }
    let options = with(TieringKind::Lru, 48 << 10, ListDesign::default());
    let (moments, _) = crash_in("then an opening", &options, &[Op::Flush, Op::CompactAll]);
    let looks = judge_openings(&options, &moments, Every(7), "opening");
    println!("{looks} openings that were cut short");
    assert!(looks > 30);
}
