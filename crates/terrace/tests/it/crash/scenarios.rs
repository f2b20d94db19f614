//! One scenario for each thing the store does, on persistent memory and on an ordinary file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace::{EngineKind, Options, PoolChoice};
use terrace_pmem::Granularity;
use terrace_sim::{
    Explorer, KvModel, Map, PmOptions, Recorder, Scenario, Summary, World, WorldOptions, kv_scenario,
};

use super::env::{DEVICE, ENGINES, runs_on, share};
use super::judge::{Shared, judge, options};
use super::mixes::{Drawn, Mix};
use super::ops::Op;
use super::room::everywhere;
use super::run::{Errors, Session};
use crate::harness::with_memtables_of;

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

/// What is explored: an engine on a medium, from a seed.
#[derive(Debug, Clone, Copy)]
pub struct Exploration {
    pub engine: EngineKind,
    pub granularity: Granularity,
    pub seed: u64,
    /// So many images, of an engine that keeps everything in memory its share of them.
    pub images: u64,
}

impl Exploration {
    /// Explores on media of a size for most scenarios.
    pub fn explorer(&self) -> Explorer {
        let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity: self.granularity };
        let images = self.images / share(self.engine);
        Explorer::new(self.seed).world(WorldOptions { pm }).images(images).shrink_runs(60)
    }
}

/// Crashes within recoveries, and within the recoveries from these.
#[derive(Debug, Clone, Copy)]
pub struct Nested {
    /// How deep; 0 for no crash within a recovery.
    pub depth: u32,
    /// At so many events of each recovery.
    pub events: u32,
}

impl Nested {
    pub const NONE: Nested = Nested { depth: 0, events: 0 };

    /// Sets them for `explorer`.
    pub fn within(self, explorer: Explorer) -> Explorer {
        explorer.nested(self.depth, self.events)
    }
}

/// Operations drawn at random, and how many crash images of them are looked at.
struct Plan {
    drawn: Drawn,
    /// So many images on each medium, of the default engine; of others a third.
    images: u64,
}

impl Plan {
    /// Explores every engine on both media.
    fn explore(&self) {
        let ops = self.drawn.draw();
        for (engine, granularity) in everywhere() {
            let summary = self.explore_on(engine, granularity, &ops);
            println!("{engine:?} {granularity:?} seed {}: {summary:?}", self.drawn.seed);
        }
    }

    fn explore_on(&self, engine: EngineKind, granularity: Granularity, ops: &[Op]) -> Summary {
        // The others have fewer structures to catch in the middle of a change.
        let images = if engine == EngineKind::default() { self.images } else { self.images / 3 };
        let seed = self.drawn.seed;
        let scenario = scenario(with_memtables_of(seed, options(engine)), Errors::Fail);
        Exploration { engine, granularity, seed, images }.explorer().must_pass(scenario, ops.to_vec())
    }
}

/// Must catch what is half there of a database, and what a second creation makes of it.
#[test]
fn creation() {
    Plan { drawn: Drawn { seed: 1, ops: 0, mix: Mix::NONE }, images: 600 }.explore();
}

/// Must catch a pool that outlives the directory it belongs to, or comes after it.
#[test]
fn creation_outside_the_directory() {
    // Not on an ordinary file: of what a power cut leaves of one, nothing says whose it was.
    for (engine, pool) in ENGINES.into_iter().flat_map(|e| [(e, DEVICE), (e, "/elsewhere")]) {
        if !runs_on(engine, Granularity::CacheLine) {
            continue;
        }
        let options = Options { pool: PoolChoice::Path(pool.into()), ..options(engine) };
        let scenario = scenario(options, Errors::Fail);
        let in_memory = Exploration { engine, granularity: Granularity::CacheLine, seed: 21, images: 600 };
        let summary = in_memory.explorer().must_pass(scenario, Vec::new());
        println!("{engine:?} {pool}: {summary:?}");
    }
}

/// Must catch records that are linked before they are durable, and versions in the wrong order.
#[test]
fn puts_and_overwrites_in_one_memtable() {
    let mix = Mix { put: 6, synced: 1, delete: 2, keys: 12, len: 60, ..Mix::NONE };
    Plan { drawn: Drawn { seed: 2, ops: 20, mix }, images: 600 }.explore();
}

/// Must catch a batch of which a part is there.
#[test]
fn batches() {
    let mix = Mix { put: 2, batch: 6, sync: 1, keys: 16, len: 80, ..Mix::NONE };
    Plan { drawn: Drawn { seed: 3, ops: 14, mix }, images: 600 }.explore();
}

/// Must catch a transaction of which a part is there, or one that a recovery brings back although it was not committed.
#[test]
fn transactions() {
    let mix = Mix { put: 2, transact: 6, sync: 1, flush: 1, keys: 16, len: 120, ..Mix::NONE };
    Plan { drawn: Drawn { seed: 15, ops: 12, mix }, images: 240 }.explore();
}

/// Must catch a swap after which a key has neither value, or an older one.
#[test]
fn swaps() {
    let mix = Mix {
        put: 2,
        swap: 6,
        delete: 2,
        snapshot: 1,
        release: 1,
        flush: 1,
        keys: 10,
        len: 120,
        ..Mix::NONE
    };
    Plan { drawn: Drawn { seed: 16, ops: 24, mix }, images: 400 }.explore();
}

/// Must catch what is in neither memtable nor table, while one becomes the other.
#[test]
fn rotation_and_flush() {
    let mix = Mix { delete: 0, ..Mix::FLUSHES };
    Plan { drawn: Drawn { seed: 4, ops: 50, mix }, images: 1500 }.explore();
}

/// Must catch keys that come back because their tombstone went before they did.
#[test]
fn flush_with_deletes() {
    let mix = Mix { put: 5, delete: 5, batch: 2, background: 1, flush: 2, keys: 15, len: 120, ..Mix::NONE };
    Plan { drawn: Drawn { seed: 5, ops: 50, mix }, images: 1500 }.explore();
}

/// Must catch inputs that go before everything names the outputs, and counts that are no longer true.
#[test]
fn compaction() {
    Plan { drawn: Drawn { seed: 6, ops: 70, mix: Mix::COMPACTIONS }, images: 2000 }.explore();
}

/// Must catch what only a compaction of all keys comes to: the last level beside the first ones, tombstones with
/// nothing below them, versions that a snapshot needs in it, a second one with nothing to do, and a database that is
/// emptied.
#[test]
fn compaction_of_all_keys() {
    let seed = 41;
    let drawn = |seed, ops, mix| Drawn { seed, ops, mix: Mix { compact: 0, ..mix } }.draw();
    let delete = |every: u16| (0..60).filter(move |key| key % every != 0).map(|key| Op::Delete { key });
    let few = |from: u16| (from..from + 6).map(|key| Op::Put { key, len: 300 });
    let all = [Op::CompactAll, Op::Compare];
    let mut ops = drawn(seed, 40, Mix::COMPACTIONS);
    ops.extend(all.iter().chain(&all).cloned());
    ops.extend(
        drawn(seed + 1, 30, Mix { kill: 0, reopen: 0, ..Mix::EVERYTHING }).into_iter().chain([Op::Snapshot]),
    );
    ops.extend(delete(4).chain([Op::CompactAll, Op::ReadSnapshots, Op::Release, Op::Release, Op::Release]));
    ops.extend(all.iter().cloned().chain(few(20)).chain([Op::Kill, Op::CompactAll]).chain(few(23)));
    ops.extend(
        [Op::Reopen, Op::CompactAll].into_iter().chain(delete(u16::MAX)).chain([Op::Delete { key: 0 }]),
    );
    ops.extend(all.iter().cloned().chain(few(0)).chain(all.clone()));
    for (engine, granularity) in everywhere().filter(|(engine, _)| !engine.keeps_all_in_memory()) {
        let scenario = scenario(with_memtables_of(seed, options(engine)), Errors::Fail);
        let summary = Exploration { engine, granularity, seed, images: 100 }
            .explorer()
            .must_pass(scenario, ops.clone());
        println!("{engine:?} {granularity:?}: {summary:?}");
    }
}

/// Must catch versions of one key that are told apart by what they share: a table, a block, a length.
#[test]
fn versions_in_one_block() {
    let mix = Mix { put: 8, snapshot: 3, compact: 1, keys: 3, len: 12, ..Mix::NONE };
    for seed in 0..2 {
        Plan { drawn: Drawn { seed, ops: 24, mix }, images: 500 }.explore();
    }
}

/// Must catch extents that a structure uses before the pool is known to have them.
#[test]
fn pool_growth() {
    let mix = Mix { reopen: 0, len: 60_000, ..Mix::GROWTH };
    Plan { drawn: Drawn { seed: 8, ops: 20, mix }, images: 600 }.explore();
}

/// Must catch a synced write that is in no log, and logs out of order.
#[test]
fn logs_rotated_and_synced() {
    let mix = Mix { synced: 3, ..Mix::LOGS };
    Plan { drawn: Drawn { seed: 9, ops: 40, mix }, images: 1200 }.explore();
}

/// Must catch what a close says is whole and is not.
#[test]
fn closed_and_opened_again() {
    let mix = Mix { reopen: 2, kill: 0, len: 200, ..Mix::OPENINGS };
    Plan { drawn: Drawn { seed: 10, ops: 30, mix }, images: 1200 }.explore();
}

/// Must catch what one recovery leaves for the next.
#[test]
fn killed_and_opened_again() {
    let mix = Mix { batch: 2, reopen: 0, kill: 2, len: 200, ..Mix::OPENINGS };
    Plan { drawn: Drawn { seed: 11, ops: 40, mix }, images: 1500 }.explore();
}

/// Memtables so large that what a scenario writes is in logs until it is flushed, and those into which it is replayed.
fn large_and_small(engine: EngineKind) -> (Options, Options) {
    let (mut large, mut small) = (options(engine), options(engine));
    large.slm.memtable_bytes = 64 << 10;
    large.lsm.memtable_bytes = 64 << 10;
    large.wip.memtable_bytes = 64 << 10;
    large.wip.most_memtable_bytes = 64 << 10;
    large.wip.bucket_bytes = 256 << 10;
    large.wip.log_bytes = 256 << 10;
    // Of all buckets together.
    small.wip.memtables_share = 0.01;
    (large, small)
}

/// How many memtables are flushed while what `ops` leave of logs is read back.
fn flushes_of_a_replay((large, small): &(Options, Options), ops: &[Op]) -> u64 {
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity: Granularity::Page };
    let world = World::new(13, WorldOptions { pm });
    let mut ledger = Shared::over(Map::new());
    let mut session = Session::open(&world, large, Errors::Fail).unwrap();
    ops.iter().chain([&Op::Sync]).try_for_each(|op| session.carry_out(op, &mut ledger)).unwrap();
    assert_eq!(session.db().stats().counts.flushes, 0, "all of it is in logs alone");
    let survivor = world.crash(13);
    let session = Session::open(&survivor, small, Errors::Fail).unwrap();
    session.db().stats().counts.flushes
}

/// Must catch a replay that flushes memtables on its way and, cut short, leaves writes behind those that it lacks.
#[test]
fn replay_that_overflows_memtables() {
    let mix = Mix { put: 10, synced: 2, delete: 3, batch: 2, flush: 1, keys: 50, len: 700, ..Mix::NONE };
    let first = Drawn { seed: 13, ops: 60, mix: Mix { flush: 0, ..mix } }.draw();
    let ops = [first.clone(), Drawn { seed: 14, ops: 60, mix }.draw()].concat();
    for engine in ENGINES.into_iter().filter(|e| runs_on(*e, Granularity::Page)) {
        let sizes = large_and_small(engine);
        let flushes = flushes_of_a_replay(&sizes, &first);
        assert!(flushes > 1, "{engine:?}: {flushes} memtables are flushed while its logs are replayed");
        let (large, small) = sizes;
        let scenario = kv_scenario(
            move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
                let mut session = Session::open(world, &large, Errors::Fail)?;
                ops.iter().try_for_each(|op| session.carry_out(op, recorder))
            },
            move |world: &World, model: &KvModel| judge(&small, world, model),
        );
        let on_files = Exploration { engine, granularity: Granularity::Page, seed: 13, images: 250 };
        Nested { depth: 2, events: 3 }.within(on_files.explorer()).must_pass(scenario, ops.clone());
    }
}

/// Must catch what only comes about where all of this meets.
#[test]
fn everything_at_once() {
    Plan { drawn: Drawn { seed: 12, ops: 120, mix: Mix::EVERYTHING }, images: 2000 }.explore();
}

/// Must catch what many openings that each write a little leave to one another: a log that takes the place of many and
/// lacks some of them, many that go before it is there, and what a killed one had only stored.
#[test]
fn opened_often_for_little() {
    let mix = Mix { put: 4, delete: 1, synced: 1, reopen: 5, keys: 10, len: 30, ..Mix::NONE };
    Plan { drawn: Drawn { seed: 12, ops: 34, mix }, images: 900 }.explore();
}

/// Must catch keys that are in no bucket, in two, or in one whose bounds are not theirs: buckets are split, emptied,
/// joined and filled again.
#[test]
fn buckets_split_and_joined() {
    let all = [Op::Flush, Op::COMPACT_LONG_KEYS];
    let rest = || std::iter::repeat_n(Op::Background, 12);
    let mut ops = Drawn { seed: 31, ops: 110, mix: Mix::BUCKETS }.draw();
    ops.extend(all.iter().cloned().chain(rest()));
    ops.extend((0..60).filter(|key| key % 7 != 0).map(|key| Op::Delete { key }));
    ops.extend(all.iter().cloned().chain(rest()));
    let more = Mix { kill: 1, synced: 1, ..Mix::BUCKETS };
    ops.extend(Drawn { seed: 32, ops: 60, mix: more }.draw());
    for (granularity, memtables) in
        [Granularity::CacheLine, Granularity::Page, Granularity::Page].into_iter().zip(0..)
    {
        if !runs_on(EngineKind::Wip, granularity) {
            continue;
        }
        let most = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let (options, seen) = (with_memtables_of(memtables, options(EngineKind::Wip)), most.clone());
        let for_judge = options.clone();
        let scenario = kv_scenario(
            move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
                let mut session = Session::open(world, &options, Errors::Fail)?;
                ops.iter().try_for_each(|op| {
                    session.carry_out(op, recorder)?;
                    let buckets = session.db().stats().buckets;
                    seen.0.fetch_max(buckets.splits, Ordering::Relaxed);
                    seen.1.fetch_max(buckets.joins, Ordering::Relaxed);
                    Ok(())
                })
            },
            move |world: &World, model: &KvModel| judge(&for_judge, world, model),
        );
        let of_buckets = Exploration { engine: EngineKind::Wip, granularity, seed: 31, images: 500 };
        let summary = of_buckets.explorer().must_pass(scenario, ops.clone());
        println!("{granularity:?}: {most:?} {summary:?}");
        let [splits, joins] = [&most.0, &most.1].map(|count| count.load(Ordering::Relaxed));
        assert!(splits > 0 && joins > 0, "{splits} splits, {joins} joins");
    }
}
