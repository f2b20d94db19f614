//! Batches that a pool has no room for, and a crash at events of their refusal: the survivor has the room that there
//! was before. It is told of no more room than its machine had.

use terrace::{EngineKind, Options};
use terrace_sim::{KvModel, PmOptions, Recorder, Scenario, World, WorldOptions, kv_scenario};

use super::judge::{judge_doing, options};
use super::ops::{Op, Write};
use super::room::everywhere;
use super::run::{Errors, Session};
use super::scenarios::Exploration;

/// What the pool may grow to.
const POOL_BYTES: u64 = 1 << 20;

/// Images of each engine on each medium; a long run gets more by the environment.
const IMAGES: u64 = 120;

fn small(engine: EngineKind) -> Options {
    Options { pm_bytes: POOL_BYTES, ..options(engine) }
}

/// More than the pool holds, in values of `bytes`, each of another key; some are there already.
fn too_much(bytes: u32) -> Op {
    let values = 3 * POOL_BYTES as u32 / 2 / bytes;
    let puts = (0..values as u16).map(|key| Write::Put { key, len: bytes });
    Op::Batch(puts.chain([Write::Delete { key: 3 }]).collect())
}

fn is_too_much(op: &Op) -> bool {
    matches!(op, Op::Batch(writes) if writes.len() > 3)
}

/// Writes of a little, one batch after the other that is refused, also with snapshots held, and again of a little.
fn ops() -> Vec<Op> {
    let few = |from: u16| (from..from + 12).map(|key| Op::Put { key, len: 60 });
    let mut ops: Vec<Op> = few(0).collect();
    ops.extend([
        Op::Flush,
        too_much(100_000),
        Op::Put { key: 50, len: 60 },
        Op::Snapshot,
        too_much(45_000),
        too_much(400_000),
    ]);
    ops.extend(few(20));
    ops.extend([
        Op::Delete { key: 2 },
        Op::Snapshot,
        too_much(100_000),
        Op::Compare,
        Op::Flush,
        Op::ReadSnapshots,
    ]);
    ops
}

/// What every survivor must have room for.
fn more() -> Vec<Op> {
    let mut ops: Vec<Op> = (0..100).map(|key| Op::Put { key, len: 60 }).collect();
    ops.extend([
        Op::Flush,
        Op::Delete { key: 7 },
        Op::Batch(vec![Write::Delete { key: 1 }, Write::Put { key: 2, len: 70 }]),
        Op::Flush,
        Op::Compare,
    ]);
    ops.extend([Op::Reopen, Op::Compare]);
    ops
}

fn refusals(engine: EngineKind) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &small(engine), Errors::Fail)?;
            for op in ops {
                session.expect(if is_too_much(op) { Errors::Expected } else { Errors::Fail });
                session.carry_out(op, recorder)?;
            }
            Ok(())
        },
        move |world: &World, model: &KvModel| judge_doing(&small(engine), world, model, &more()),
    )
}

/// Must catch extents and slots that a refused batch has taken and that a crash beside the refusal leaves to nobody.
#[test]
fn a_crash_beside_a_refusal_takes_no_room() {
    for (engine, granularity) in everywhere() {
        let pm = PmOptions { bytes: 256 << 10, capacity: 2 << 20, granularity };
        let summary = Exploration { engine, granularity, seed: 70, images: IMAGES }
            .explorer()
            .world(WorldOptions { pm })
            .must_pass(refusals(engine), ops());
        println!("{engine:?} {granularity:?}: {summary:?}");
    }
}
