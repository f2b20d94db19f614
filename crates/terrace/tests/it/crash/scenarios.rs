//! One scenario for each thing the store does, on persistent memory and on an ordinary file.

use terrace::{EngineKind, Options, PoolChoice};
use terrace_pmem::Granularity;
use terrace_sim::{
    Explorer, KvModel, PmOptions, Recorder, Scenario, Summary, World, WorldOptions, kv_scenario,
};

use super::env::{DEVICE, ENGINES, runs_on, share};
use super::judge::{judge, options};
use super::ops::{Mix, Op, draw};
use super::run::{Errors, Session};

/// Carries operations out and judges every survivor.
pub fn scenario(options: Options, errors: Errors) -> impl Scenario<Op = Op, Model = KvModel> {
    let for_judge = options.clone();
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options, errors)?;
            ops.iter().try_for_each(|op| session.carry_out(op, recorder))
        },
        move |world: &World, model: &KvModel| judge(&for_judge, world, model),
    )
}

pub fn explorer(engine: EngineKind, seed: u64, granularity: Granularity, images: u64) -> Explorer {
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity };
    Explorer::new(seed).world(WorldOptions { pm }).images(images / share(engine)).shrink_runs(60)
}

/// Explores `ops` on both media.
fn on_both(seed: u64, images: u64, ops: &[Op]) {
    for engine in ENGINES {
        for granularity in [Granularity::CacheLine, Granularity::Page] {
            if !runs_on(engine, granularity) {
                continue;
            }
            let summary = on(engine, granularity, seed, images, ops);
            println!("{engine:?} {granularity:?} seed {seed}: {summary:?}");
        }
    }
}

fn on(engine: EngineKind, granularity: Granularity, seed: u64, images: u64, ops: &[Op]) -> Summary {
    // The second engine has fewer structures to catch in the middle of a change.
    let images = if engine == EngineKind::default() { images } else { images / 3 };
    explorer(engine, seed, granularity, images)
        .must_pass(scenario(options(engine), Errors::Fail), ops.to_vec())
}

#[test]
fn creation() {
    on_both(1, 600, &[]);
}

#[test]
fn creation_outside_the_directory() {
    // Not on an ordinary file: of what a power cut leaves of one, nothing says whose it was.
    for (engine, pool) in ENGINES.into_iter().flat_map(|e| [(e, DEVICE), (e, "/elsewhere")]) {
        if !runs_on(engine, Granularity::CacheLine) {
            continue;
        }
        let options = Options { pool: PoolChoice::Path(pool.into()), ..options(engine) };
        let scenario = scenario(options, Errors::Fail);
        let summary = explorer(engine, 21, Granularity::CacheLine, 600).must_pass(scenario, Vec::new());
        println!("{engine:?} {pool}: {summary:?}");
    }
}

#[test]
fn puts_and_overwrites_in_one_memtable() {
    let mix = Mix { put: 6, synced: 1, delete: 2, keys: 12, len: 60, ..Mix::default() };
    on_both(2, 600, &draw(2, 20, mix));
}

#[test]
fn batches() {
    let mix = Mix { put: 2, batch: 6, sync: 1, keys: 16, len: 80, ..Mix::default() };
    on_both(3, 600, &draw(3, 14, mix));
}

#[test]
fn rotation_and_flush() {
    let mix = Mix { put: 12, background: 2, flush: 1, keys: 40, len: 400, ..Mix::default() };
    on_both(4, 1500, &draw(4, 50, mix));
}

#[test]
fn flush_with_deletes() {
    let mix =
        Mix { put: 5, delete: 5, batch: 2, background: 1, flush: 2, keys: 15, len: 120, ..Mix::default() };
    on_both(5, 1500, &draw(5, 50, mix));
}

#[test]
fn compaction() {
    let mix = Mix {
        put: 8,
        delete: 3,
        batch: 2,
        background: 3,
        flush: 2,
        compact: 1,
        keys: 60,
        len: 400,
        ..Mix::default()
    };
    on_both(6, 2000, &draw(6, 70, mix));
}

/// Must catch versions of one key that are told apart by what they share: a table, a block, a length.
#[test]
fn versions_in_one_block() {
    let mix = Mix { put: 8, snapshot: 3, compact: 1, keys: 3, len: 12, ..Mix::default() };
    for seed in 0..2 {
        on_both(seed, 500, &draw(seed, 24, mix));
    }
}

#[test]
fn pool_growth() {
    let mix = Mix { put: 6, delete: 1, background: 1, keys: 8, len: 60_000, ..Mix::default() };
    on_both(8, 600, &draw(8, 20, mix));
}

#[test]
fn logs_rotated_and_synced() {
    let mix = Mix {
        put: 8,
        synced: 3,
        sync: 1,
        delete: 1,
        background: 1,
        flush: 1,
        keys: 20,
        len: 500,
        ..Mix::default()
    };
    on_both(9, 1200, &draw(9, 40, mix));
}

#[test]
fn closed_and_opened_again() {
    let mix = Mix {
        put: 8,
        delete: 2,
        synced: 1,
        background: 1,
        flush: 1,
        reopen: 2,
        keys: 20,
        len: 200,
        ..Mix::default()
    };
    on_both(10, 1200, &draw(10, 30, mix));
}

#[test]
fn killed_and_opened_again() {
    let mix = Mix {
        put: 8,
        delete: 2,
        batch: 2,
        synced: 1,
        background: 1,
        flush: 1,
        kill: 2,
        keys: 20,
        len: 200,
        ..Mix::default()
    };
    on_both(11, 1500, &draw(11, 40, mix));
}

/// The logs of a large memtable are replayed into small ones, several times full; recoveries are cut short, too.
#[test]
fn replay_that_overflows_memtables() {
    let mix = Mix { put: 10, synced: 2, delete: 3, batch: 2, flush: 1, keys: 50, len: 700, ..Mix::default() };
    let mut ops = draw(13, 60, Mix { flush: 0, ..mix });
    ops.extend(draw(14, 60, mix));
    for engine in ENGINES.into_iter().filter(|e| runs_on(*e, Granularity::Page)) {
        let mut large = options(engine);
        large.slm.memtable_bytes = 64 << 10;
        large.lsm.memtable_bytes = 64 << 10;
        let scenario = kv_scenario(
            move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
                let mut session = Session::open(world, &large, Errors::Fail)?;
                ops.iter().try_for_each(|op| session.carry_out(op, recorder))
            },
            move |world: &World, model: &KvModel| judge(&options(engine), world, model),
        );
        explorer(engine, 13, Granularity::Page, 250).nested(2, 3).must_pass(scenario, ops.clone());
    }
}

#[test]
fn everything_at_once() {
    let mix = Mix {
        put: 12,
        synced: 2,
        delete: 5,
        batch: 4,
        sync: 1,
        snapshot: 2,
        read: 1,
        release: 1,
        flush: 2,
        compact: 1,
        background: 4,
        reopen: 1,
        kill: 1,
        keys: 40,
        len: 300,
    };
    on_both(12, 2000, &draw(12, 120, mix));
}
