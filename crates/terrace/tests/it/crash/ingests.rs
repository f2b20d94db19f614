//! Ingests, crashed anywhere, with operations that fail and with disks that are full.

use std::path::Path;

use terrace::{Db, EngineKind, RepairReport};
use terrace_disk::Fs;
use terrace_pmem::Granularity;
use terrace_sim::{KvModel, Recorder, Scenario, World, kv_scenario};

use super::env::{DIR, Process, runs_on};
use super::faults::each_fails;
use super::judge::{judge, options};
use super::mixes::{Drawn, Mix, Script};
use super::ops::{Op, Write, key};
use super::room::{everywhere, on_a_full_disk};
use super::run::{Errors, Session};
use super::scenarios::{Exploration, Nested, scenario};
use crate::harness::with_memtables_of;

/// Images of each engine on each medium; a long run gets more by the environment.
const IMAGES: u64 = 500;

/// Must catch a stream of which a part is there, one that a recovery brings back or loses, tables that lie below older
/// versions, and logs that seem to lack the number of an ingest.
#[test]
fn ingests_survive_crashes() {
    for seed in 0..3 {
        let ops = Drawn { seed: 70 + seed, ops: 45, mix: Mix::INGESTS }.draw();
        for (engine, granularity) in everywhere() {
            let scenario = scenario(with_memtables_of(seed, options(engine)), Errors::Fail);
            let images = if engine.ingests_atomically() { IMAGES } else { IMAGES / 8 };
            let summary =
                Exploration { engine, granularity, seed, images }.explorer().must_pass(scenario, ops.clone());
            println!("{engine:?} {granularity:?} seed {seed}: {summary:?}");
        }
    }
}

/// Must catch what a crash in an opening after an ingest loses.
#[test]
fn ingests_survive_crashes_in_openings() {
    let ops = Drawn { seed: 74, ops: 30, mix: Mix { reopen: 3, kill: 3, ..Mix::INGESTS } }.draw();
    for (engine, granularity) in everywhere().filter(|(engine, _)| engine.ingests_atomically()) {
        let explorer = Exploration { engine, granularity, seed: 74, images: 150 }.explorer();
        let explorer = Nested { depth: 1, events: 3 }.within(explorer);
        let summary = explorer.must_pass(scenario(options(engine), Errors::Fail), ops.clone());
        println!("{engine:?} {granularity:?}: {summary:?}");
    }
}

/// Judges what a repair makes of a survivor, which has lost nothing.
fn judge_repaired(engine: EngineKind, world: &World, model: &KvModel) -> Result<(), String> {
    let is_made = world.fs().exists(&Path::new(DIR).join("CURRENT")).is_ok_and(|exists| exists);
    let report = match is_made {
        true => Db::repair_in(Process::new(world).env, DIR, options(engine)),
        false => Ok(RepairReport::default()),
    };
    let report = report.map_err(|e| format!("repair: {e}"))?;
    if !report.lost.is_empty() {
        return Err(format!("a sound database has lost something: {report:?}"));
    }
    judge(&options(engine), world, model)
}

fn repaired(engine: EngineKind) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options(engine), Errors::Fail)?;
            ops.iter().try_for_each(|op| session.carry_out(op, recorder))
        },
        move |world: &World, model: &KvModel| judge_repaired(engine, world, model),
    )
}

/// Must catch a repair that takes tables of an ingest which has not taken place for the database's.
#[test]
fn a_repair_leaves_out_what_was_being_ingested() {
    let mix = Mix { reopen: 0, kill: 0, ingest: 16, ..Mix::INGESTS };
    let ops = Drawn { seed: 77, ops: 30, mix }.draw();
    // A repair could not replace a pool on a medium that has room for one: these engines need none on a file.
    let granularity = Granularity::Page;
    let engines = [(EngineKind::Lsm, 900), (EngineKind::Wip, 600)];
    for (engine, images) in engines.into_iter().filter(|(engine, _)| runs_on(*engine, granularity)) {
        let explorer = Exploration { engine, granularity, seed: 77, images }.explorer();
        let explorer = Nested::NONE.within(explorer);
        println!("{engine:?}: {:?}", explorer.must_pass(repaired(engine), ops.clone()));
    }
}

/// Must catch a table that a flush has written whole before logs hold what came before its writes: a repair takes it that
/// the manifest has lost it, and keeps a later write without an earlier one of another bucket.
#[test]
fn a_repair_after_a_flush_keeps_what_came_before() {
    let mut keys: Vec<u16> = (1..60).collect();
    keys.sort_by_key(|number| key(*number));
    let stream = keys.into_iter().map(|key| Write::Put { key, len: 90 }).collect();
    let mut ops = vec![Op::Ingest(stream), Op::Compact { from: 0, to: 59 }];
    for len in [88, 70, 50] {
        ops.extend([44, 11, 30, 5].map(|key| Op::Put { key, len }));
        ops.push(Op::Flush);
    }
    let granularity = Granularity::Page;
    let engines = [EngineKind::Lsm, EngineKind::Wip].into_iter();
    for engine in engines.filter(|engine| runs_on(*engine, granularity)) {
        let explorer = Exploration { engine, granularity, seed: 79, images: 2500 }.explorer();
        println!("{engine:?}: {:?}", Nested::NONE.within(explorer).must_pass(repaired(engine), ops.clone()));
    }
}

/// Must catch a repair that is cut short after an ingest was, and leaves a part of that behind or loses something else.
#[test]
fn a_repair_after_an_ingest_is_cut_short() {
    let ops = Drawn { seed: 78, ops: 24, mix: Mix { reopen: 0, kill: 0, ingest: 16, ..Mix::INGESTS } }.draw();
    let granularity = Granularity::Page;
    let engines = [EngineKind::Lsm, EngineKind::Wip].into_iter();
    for engine in engines.filter(|engine| runs_on(*engine, granularity)) {
        let explorer = Exploration { engine, granularity, seed: 78, images: 60 }.explorer();
        let explorer = Nested { depth: 1, events: 4 }.within(explorer);
        println!("{engine:?}: {:?}", explorer.must_pass(repaired(engine), ops.clone()));
    }
}

fn stream(from: u16, len: u32) -> Op {
    let mut keys: Vec<u16> = (from..from + 30).step_by(3).collect();
    keys.sort_by_key(|number| key(*number));
    Op::Ingest(keys.into_iter().map(|key| Write::Put { key, len }).collect())
}

/// Must catch an ingest that fails in the middle and leaves a part, a file or a store that refuses another one.
#[test]
fn ingests_that_fail() {
    let few = |from: u16| (from..from + 6).map(|key| Op::Put { key, len: 100 });
    let mut ops: Vec<Op> = few(1).collect();
    ops.extend([stream(1, 90), Op::Snapshot]);
    ops.extend(few(20));
    ops.extend([stream(10, 200), Op::ReadSnapshots, Op::Background, Op::PutSynced { key: 4, len: 30 }]);
    ops.extend([stream(40, 60), Op::Flush, Op::Compare]);
    each_fails(Script { seed: 75, ops });
}

/// Must catch an ingest that is refused for want of room and takes some for good.
#[test]
fn ingests_on_a_full_disk() {
    for (i, slack) in [0, 900, 4000, 9000].into_iter().enumerate() {
        on_a_full_disk(80 + i as u64, slack, Mix { kill: 0, reopen: 0, synced: 0, ..Mix::INGESTS });
    }
}

/// Ingests one stream while it is open.
fn beside_another(engine: EngineKind) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options(engine), Errors::Fail)?;
            let db = session.db().clone();
            let done = db.ingest(|_| {
                ops.iter().try_for_each(|op| session.carry_out(op, recorder)).map_err(terrace::Error::invalid)
            });
            done.map(drop).map_err(|e| e.to_string())
        },
        move |world: &World, model: &KvModel| judge(&options(engine), world, model),
    )
}

/// Must catch an ingest that harms what is written while its stream is taken.
#[test]
fn others_write_beside_an_ingest() {
    let mix = Mix { reopen: 0, kill: 0, ..Mix::INGESTS };
    let ops = Drawn { seed: 76, ops: 40, mix }.draw();
    for (engine, granularity) in everywhere().filter(|(engine, _)| engine.ingests_atomically()) {
        let explorer = Exploration { engine, granularity, seed: 76, images: 150 }.explorer();
        let summary = explorer.must_pass(beside_another(engine), ops.clone());
        println!("{engine:?} {granularity:?}: {summary:?}");
    }
}
