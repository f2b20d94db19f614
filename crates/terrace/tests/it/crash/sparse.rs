//! Records move out of slabs in which little is left: whenever the power goes, each key has its value, and what was
//! copied in vain is reclaimed.

use terrace::EngineKind;
use terrace_pmem::Granularity;
use terrace_sim::{KvModel, PmOptions, Recorder, Scenario, World, WorldOptions, kv_scenario};

use super::env::ENGINES;
use super::judge::{judge, options};
use super::ops::Op;
use super::run::{Errors, Session, give_room};
use super::scenarios::Exploration;

/// Images for each scenario; a long run gets more by the environment.
const IMAGES: u64 = 1600;

/// Many keys with values of `bytes`, of which most go again; overwritten is some of what a snapshot sees of the rest.
fn thinned(keys: u16, bytes: u32) -> Vec<Op> {
    let stays = |k: &u16| k % 9 == 4;
    let mut ops: Vec<Op> = (0..keys).map(|k| Op::Put { key: k, len: bytes }).collect();
    ops.extend((0..keys).filter(|k| !stays(k)).map(|key| Op::Delete { key }));
    ops.push(Op::Snapshot);
    ops.extend((0..keys).filter(stays).step_by(2).map(|k| Op::Put { key: k, len: bytes }));
    ops
}

/// Carries out and judges; something must move where `shrinks` are carried out.
fn emptying(engine: EngineKind, shrinks: Op) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options(engine), Errors::Fail)?;
            for op in ops {
                let before = session.db().stats().pm.traffic.drains;
                session.carry_out(op, recorder)?;
                let drains = session.db().stats().pm.traffic.drains - before;
                if *op == shrinks && ops.len() > 100 && drains < 10 {
                    return Err(format!("{drains} drains: nothing has moved"));
                }
            }
            Ok(())
        },
        move |world: &World, model: &KvModel| judge(&options(engine), world, model),
    )
}

fn engines() -> impl Iterator<Item = EngineKind> {
    ENGINES.into_iter().filter(|engine| engine.keeps_all_in_memory())
}

/// Must catch a record whose old place is given away before its copy, or the link to that, is durable.
#[test]
fn slabs_are_emptied() {
    for engine in engines() {
        let mut ops = thinned(200, 90);
        let compact = Op::COMPACT_LONG_KEYS;
        ops.extend([compact.clone(), Op::ReadSnapshots, Op::Compare, Op::Release, Op::Flush]);
        ops.extend((0..200).step_by(8).map(|k| Op::Put { key: k, len: 300 }));
        ops.push(Op::Compare);
        let summary = Exploration { engine, granularity: Granularity::CacheLine, seed: 61, images: IMAGES }
            .explorer()
            .must_pass(emptying(engine, compact), ops);
        println!("{engine:?}: {summary:?}");
    }
}

/// Must catch a full pool that refuses values of another size although slabs are nearly empty, and what is lost when
/// they are emptied for it.
#[test]
fn a_full_pool_has_its_slabs_emptied() {
    for engine in engines() {
        let scenario = kv_scenario(
            move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
                let mut session = Session::open(world, &options(engine), Errors::Fail)?;
                ops.iter().try_for_each(|op| session.carry_out(op, recorder))
            },
            move |world: &World, model: &KvModel| {
                give_room(world);
                judge(&options(engine), world, model)
            },
        );
        let mut ops = thinned(300, 200);
        ops.push(Op::PoolFull { slack: 0 });
        ops.extend((0..60).map(|k| Op::Put { key: k * 5, len: 420 }));
        ops.extend([Op::ReadSnapshots, Op::Compare, Op::Room]);
        let pm = PmOptions { bytes: 64 << 10, capacity: 4 << 20, granularity: Granularity::CacheLine };
        let explorer = Exploration { engine, granularity: Granularity::CacheLine, seed: 62, images: IMAGES }
            .explorer()
            .world(WorldOptions { pm });
        let summary = explorer.must_pass(scenario, ops);
        println!("{engine:?}: {summary:?}");
    }
}
