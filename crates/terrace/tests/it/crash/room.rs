//! No room: on the disk, or in the pool. Writes are refused and reads go on; what was acknowledged outlives process
//! and power; when there is room writing goes on, without a restart.

use terrace::EngineKind;
use terrace_pmem::Granularity;
use terrace_sim::{Explorer, KvModel, PmOptions, Recorder, Scenario, World, WorldOptions, kv_scenario};

use super::env::{ENGINES, runs_on};
use super::judge::{judge, options};
use super::ops::{Mix, Op, draw};
use super::run::{Errors, Session, contents, give_room};
use super::scenarios::explorer;

/// Images for each amount of room; a long run gets more by the environment.
const IMAGES: u64 = 48;

/// Carries operations out that may be refused until there is room, and then must not.
fn without_room(engine: EngineKind) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options(engine), Errors::Fail)?;
            for op in ops {
                match op {
                    Op::DiskFull(_) | Op::PoolFull(_) => session.expect(Errors::Expected),
                    Op::Room => session.expect(Errors::Fail),
                    _ => {}
                }
                session.carry_out(op, recorder)?;
            }
            Ok(())
        },
        move |world: &World, model: &KvModel| judge_without_room(engine, world, model),
    )
}

/// The survivor has no more room than its machine had: it may not open, but if it does it is right. With
/// room it is as any other.
fn judge_without_room(engine: EngineKind, world: &World, model: &KvModel) -> Result<(), String> {
    if let Ok(session) = Session::open(world, &options(engine), Errors::Expected) {
        let found = contents(session.db()).map_err(|e| format!("reading without room: {e}"))?;
        model.accepts_in(world, &found).map_err(|e| format!("without room: {e}"))?;
    }
    give_room(world);
    judge(&options(engine), world, model)
}

fn mix() -> Mix {
    Mix {
        put: 10,
        synced: 2,
        delete: 3,
        batch: 2,
        flush: 1,
        compact: 1,
        background: 2,
        snapshot: 1,
        read: 1,
        release: 1,
        keys: 40,
        len: 400,
        ..Mix::default()
    }
}

/// Every engine on both media.
pub fn everywhere() -> impl Iterator<Item = (EngineKind, Granularity)> {
    let both = |engine| [(engine, Granularity::CacheLine), (engine, Granularity::Page)];
    ENGINES.into_iter().flat_map(both).filter(|(engine, granularity)| runs_on(*engine, *granularity))
}

/// Some operations, more of them without room, and more with.
fn around(seed: u64, full: Op, mix: Mix) -> Vec<Op> {
    let mut ops = draw(seed, 20, mix);
    ops.push(full);
    ops.extend(draw(seed + 1000, 40, mix));
    ops.extend([Op::Room, Op::Compare, Op::Put(3, 100), Op::Flush]);
    ops.extend(draw(seed + 2000, 10, mix));
    ops.extend([Op::Compact(0, u16::MAX), Op::Compare]);
    ops
}

#[test]
fn on_the_disk() {
    for (i, slack) in [0, 60, 700, 1500, 3000, 5000, 12_000].into_iter().enumerate() {
        for (engine, granularity) in everywhere() {
            let seed = 20 + i as u64;
            let ops = around(seed, Op::DiskFull(slack), mix());
            let summary = explorer(engine, seed, granularity, IMAGES).must_pass(without_room(engine), ops);
            println!("{engine:?} {granularity:?}, {slack} bytes left: {summary:?}");
        }
    }
}

#[test]
fn where_the_pool_lies() {
    let large = Mix { len: 50_000, ..mix() };
    for (i, slack) in [0, 30_000, 100_000].into_iter().enumerate() {
        for (engine, granularity) in everywhere() {
            let seed = 40 + i as u64;
            let ops = around(seed, Op::PoolFull(slack), large);
            let summary = small(engine, seed, granularity, 1 << 20).must_pass(without_room(engine), ops);
            println!("{engine:?} {granularity:?}, {slack} bytes left: {summary:?}");
        }
    }
}

fn small(engine: EngineKind, seed: u64, granularity: Granularity, capacity: u64) -> Explorer {
    let pm = PmOptions { bytes: 128 << 10, capacity, granularity };
    explorer(engine, seed, granularity, IMAGES).world(WorldOptions { pm })
}
