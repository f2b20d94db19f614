//! No room: on the disk, or in the pool. Writes are refused and reads go on; what was acknowledged outlives process
//! and power; when there is room writing goes on, without a restart.

use terrace::{EngineKind, Options};
use terrace_pmem::Granularity;
use terrace_sim::{KvModel, PmOptions, Recorder, Scenario, World, WorldOptions, kv_scenario};

use super::env::{ENGINES, runs_on};
use super::judge::{judge, options};
use super::mixes::{Drawn, Mix};
use super::ops::Op;
use super::run::{Errors, Session, contents, give_room};
use super::scenarios::Exploration;

/// Images for each amount of room; a long run gets more by the environment.
const IMAGES: u64 = 48;

/// Carries operations out that may be refused until there is room, and then must not.
fn without_room(options: Options) -> impl Scenario<Op = Op, Model = KvModel> {
    let for_judge = options.clone();
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options, Errors::Fail)?;
            for op in ops {
                match op {
                    Op::DiskFull { .. } | Op::PoolFull { .. } => session.expect(Errors::Expected),
                    Op::Room => session.expect(Errors::Fail),
                    _ => {}
                }
                session.carry_out(op, recorder)?;
            }
            Ok(())
        },
        move |world: &World, model: &KvModel| judge_without_room(&for_judge, world, model),
    )
}

/// The survivor has no more room than its machine had: it may not open, but if it does it is right. With
/// room it is as any other.
fn judge_without_room(options: &Options, world: &World, model: &KvModel) -> Result<(), String> {
    if let Ok(session) = Session::open(world, options, Errors::Expected) {
        let found = contents(session.db()).map_err(|e| format!("reading without room: {e}"))?;
        model.accepts_in(world, &found).map_err(|e| format!("without room: {e}"))?;
    }
    give_room(world);
    judge(options, world, model)
}

/// Some of everything but lives.
const MIX: Mix = Mix {
    put: 10,
    delete: 3,
    batch: 2,
    sync: 0,
    snapshot: 1,
    flush: 1,
    background: 2,
    reopen: 0,
    kill: 0,
    len: 400,
    ..Mix::EVERYTHING
};

/// Every engine on both media.
pub fn everywhere() -> impl Iterator<Item = (EngineKind, Granularity)> {
    let both = |engine| [(engine, Granularity::CacheLine), (engine, Granularity::Page)];
    ENGINES.into_iter().flat_map(both).filter(|(engine, granularity)| runs_on(*engine, *granularity))
}

/// Some operations, more of them without room, and more with.
fn around(seed: u64, full: Op, mix: Mix) -> Vec<Op> {
    let drawn = |seed, ops| Drawn { seed, ops, mix }.draw();
    let mut ops = drawn(seed, 20);
    ops.push(full);
    ops.extend(drawn(seed + 1000, 40));
    ops.extend([Op::Room, Op::Compare, Op::Put { key: 3, len: 100 }, Op::Flush]);
    ops.extend(drawn(seed + 2000, 10));
    ops.extend([Op::CompactAll, Op::Compare]);
    ops
}

/// Must catch a write that is acknowledged although its log has no room, and a store that goes on refusing when there
/// is room.
#[test]
fn on_the_disk() {
    for (i, slack) in [0, 60, 700, 1500, 3000, 5000, 12_000].into_iter().enumerate() {
        on_a_full_disk(20 + i as u64, slack, MIX);
    }
}

/// Explores operations of `mix` around a time when the disk has `slack` bytes left.
pub fn on_a_full_disk(seed: u64, slack: u32, mix: Mix) {
    on_a_full_disk_with(seed, slack, mix, |engine| Some(options(engine)));
}

/// The same with these options of each engine, if it has any.
pub fn on_a_full_disk_with(seed: u64, slack: u32, mix: Mix, options: impl Fn(EngineKind) -> Option<Options>) {
    for (engine, granularity) in everywhere() {
        let Some(options) = options(engine) else { continue };
        let ops = around(seed, Op::DiskFull { slack }, mix);
        let on_disk = Exploration { engine, granularity, seed, images: IMAGES };
        let summary = on_disk.explorer().must_pass(without_room(options), ops);
        println!("{engine:?} {granularity:?}, {slack} bytes left: {summary:?}");
    }
}

/// Must catch a refused write that is half there or keeps room of the pool, and a store that goes on refusing when
/// there is room.
#[test]
fn where_the_pool_lies() {
    let large = Mix { len: 50_000, ..MIX };
    for (i, slack) in [0, 30_000, 100_000].into_iter().enumerate() {
        for (engine, granularity) in everywhere() {
            let seed = 40 + i as u64;
            let ops = around(seed, Op::PoolFull { slack }, large);
            let in_pool = Exploration { engine, granularity, seed, images: IMAGES };
            let pm = PmOptions { bytes: 128 << 10, capacity: 1 << 20, granularity };
            let summary =
                in_pool.explorer().world(WorldOptions { pm }).must_pass(without_room(options(engine)), ops);
            println!("{engine:?} {granularity:?}, {slack} bytes left: {summary:?}");
        }
    }
}
