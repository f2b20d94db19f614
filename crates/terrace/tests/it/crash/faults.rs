//! Operations of the media that fail, at every place where a scenario meets one: writes stop with an error,
//! reads are right, what was tried again succeeds, and whatever then happens to process or power, what
//! was acknowledged is there.

use std::collections::BTreeSet;

use terrace::{Db, EngineKind, ErrorKind};
use terrace_disk::Fault;
use terrace_pmem::Granularity;
use terrace_sim::{KvModel, Map, Recorder, Scenario, World, WorldOptions, kv_scenario};

use super::env::{DIR, ENGINES, Process, runs_on, share};
use super::judge::{judge, judge_failing, options};
use super::ops::{Mix, Op, draw};
use super::room::everywhere;
use super::run::{Errors, Session};
use super::scenarios::explorer;
use crate::harness::Contents;

/// Images that the operations of a scenario share; a long run gets more by the environment.
const IMAGES: u64 = 360;

/// The same for a creation, which is short: nearly every event after nearly every failure.
const CREATION_IMAGES: u64 = 1200;

/// Operations after which nothing is left of a passing failure.
fn in_order_again() -> Vec<Op> {
    vec![Op::Put(1, 30), Op::Compare, Op::Flush, Op::PutSynced(2, 400), Op::Compact(0, u16::MAX), Op::Compare]
}

/// Carries operations out with one failing somewhere, then some more, which must not fail.
fn failing_once(engine: EngineKind) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options(engine), Errors::Passing)?;
            ops.iter().try_for_each(|op| session.carry_out(op, recorder))?;
            world.heal();
            session.expect(Errors::Fail);
            let after = in_order_again();
            after.iter().try_for_each(|op| session.carry_out(op, recorder))
        },
        move |world: &World, model: &KvModel| judge(&options(engine), world, model),
    )
}

/// Carries operations out with one failing somewhere and nobody caring.
fn failing_unheeded(engine: EngineKind) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options(engine), Errors::Expected)?;
            ops.iter().try_for_each(|op| session.carry_out(op, recorder))
        },
        move |world: &World, model: &KvModel| judge(&options(engine), world, model),
    )
}

/// Each operation of an ordinary file's fails, and a power cut comes at some time after.
fn each_fails_unheeded(seed: u64, images: u64, ops: &[Op]) {
    for engine in ENGINES.into_iter().filter(|e| runs_on(*e, Granularity::Page)) {
        let explorer = explorer(engine, seed, Granularity::Page, images).nested(0, 0).drawn(1).kills(false);
        let outcome = explorer.explore_faults(failing_unheeded(engine), ops.to_vec());
        let summary = outcome.unwrap_or_else(|failure| panic!("{engine:?}: {failure}"));
        println!("{engine:?} unheeded, seed {seed}: {summary:?}");
    }
}

/// A log that failed is behind the pool: closing in order does not make up for it.
#[test]
fn of_logs_before_a_close() {
    let ops = [
        Op::Put(1, 100),
        Op::PutSynced(2, 100),
        Op::Reopen,
        Op::Put(3, 100),
        Op::PutSynced(4, 100),
        Op::Reopen,
    ];
    each_fails_unheeded(9, 2 * IMAGES, &ops);
}

/// What was handed over to a log goes elsewhere where that cannot be closed: the next opening finds all of it.
#[test]
fn of_logs_at_a_close() {
    // What a failed sync drops depends on how many changes there were before.
    let writes = |n: u16| (0..n).map(move |k| Op::Put(k, 9000 - u32::from(k) * 2000));
    let ops: Vec<Op> = (1..5).flat_map(|n| writes(n).chain([Op::Reopen])).collect();
    each_fails(16, &ops);
}

/// The log that is begun for what waits for its flush goes on as the log of the memtable after it.
#[test]
fn of_logs_at_a_rotation() {
    let mut ops = vec![Op::Put(1, 1500), Op::Put(2, 1500), Op::Put(3, 1500), Op::PutSynced(4, 20)];
    ops.extend([Op::Background, Op::Background, Op::PutSynced(5, 20), Op::Put(6, 20)]);
    each_fails_unheeded(10, 2 * IMAGES, &ops);
}

/// A log that the manifest could not be told of takes the next group, although a flush has ended meanwhile.
#[test]
fn of_logs_begun_before_a_flush_ends() {
    let ops = [
        Op::Put(1, 1500),
        Op::Put(2, 1500),
        Op::Put(3, 1500),
        Op::Background,
        Op::Background,
        Op::PutSynced(4, 20),
        Op::Put(5, 20),
    ];
    each_fails_unheeded(14, 4 * IMAGES, &ops);
}

#[test]
fn of_anything_unheeded() {
    let mix = Mix {
        put: 12,
        synced: 4,
        delete: 2,
        background: 4,
        flush: 1,
        reopen: 2,
        kill: 1,
        keys: 20,
        len: 900,
        ..Mix::default()
    };
    for seed in 11..14 {
        each_fails_unheeded(seed, IMAGES / 2, &draw(seed, 40, mix));
    }
}

fn each_fails(seed: u64, ops: &[Op]) {
    for (engine, granularity) in everywhere() {
        let explorer = explorer(engine, seed, granularity, IMAGES).nested(0, 0).drawn(1);
        let outcome = explorer.explore_faults(failing_once(engine), ops.to_vec());
        let summary = outcome.unwrap_or_else(|failure| panic!("{engine:?} {granularity:?}: {failure}"));
        println!("{engine:?} {granularity:?} seed {seed}: {summary:?}");
    }
}

/// Each operation of a creation fails, and a power cut comes at any event of what is tried again.
#[test]
fn of_creation() {
    for (engine, granularity) in everywhere() {
        for (seed, errors) in [(1, Errors::Passing), (15, Errors::Expected)] {
            let explorer = explorer(engine, seed, granularity, CREATION_IMAGES * share(engine));
            let explorer = explorer.nested(0, 0).drawn(1);
            let failing = match errors {
                Errors::Passing => explorer.explore_faults(failing_once(engine), vec![Op::Put(1, 10)]),
                _ => explorer.explore_faults(failing_unheeded(engine), vec![Op::Put(1, 10)]),
            };
            let summary = failing.unwrap_or_else(|failure| panic!("{engine:?} {granularity:?}: {failure}"));
            println!("{engine:?} {granularity:?} seed {seed}: {summary:?}");
        }
    }
}

#[test]
fn of_flushes() {
    let mix = Mix { put: 12, delete: 2, background: 2, flush: 1, keys: 40, len: 400, ..Mix::default() };
    each_fails(2, &draw(2, 40, mix));
}

#[test]
fn of_compactions() {
    let mix = Mix {
        put: 8,
        delete: 3,
        batch: 2,
        flush: 2,
        compact: 1,
        background: 3,
        keys: 60,
        len: 400,
        ..Mix::default()
    };
    each_fails(3, &draw(3, 40, mix));
}

#[test]
fn of_logs() {
    let mix = Mix {
        put: 8,
        synced: 4,
        sync: 1,
        delete: 1,
        background: 1,
        flush: 1,
        keys: 20,
        len: 500,
        ..Mix::default()
    };
    each_fails(4, &draw(4, 40, mix));
}

#[test]
fn of_opening_and_closing() {
    let mix = Mix {
        put: 8,
        delete: 2,
        synced: 1,
        background: 1,
        flush: 1,
        reopen: 3,
        kill: 3,
        keys: 20,
        len: 300,
        ..Mix::default()
    };
    each_fails(5, &draw(5, 30, mix));
}

#[test]
fn of_pool_growth() {
    let mix = Mix { put: 6, delete: 1, background: 1, reopen: 1, keys: 8, len: 90_000, ..Mix::default() };
    each_fails(8, &draw(8, 30, mix));
}

#[test]
fn of_everything() {
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
    each_fails(6, &draw(6, 60, mix));
}

/// As `failing_once`, with all going well until the crash and one operation of the recovery failing.
fn recovery_failing(engine: EngineKind, errors: Errors) -> impl Scenario<Op = Op, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options(engine), errors)?;
            ops.iter().try_for_each(|op| session.carry_out(op, recorder))
        },
        move |world: &World, model: &KvModel| judge_failing(&options(engine), world, model),
    )
}

#[test]
fn of_recovery() {
    let mix = Mix {
        put: 12,
        synced: 2,
        delete: 3,
        batch: 2,
        flush: 1,
        compact: 1,
        background: 3,
        keys: 30,
        len: 400,
        ..Mix::default()
    };
    for (engine, granularity) in everywhere() {
        let explorer = explorer(engine, 7, granularity, 300);
        let summary = explorer.must_pass(recovery_failing(engine, Errors::Fail), draw(7, 50, mix));
        println!("{engine:?} {granularity:?}: {summary:?}");
    }
}

/// Any operation of the disk fails once, reads among them: what is answered is right, the rest is an error that
/// passes, and afterwards all is there.
#[test]
fn of_reads() {
    for (engine, after) in
        ENGINES.into_iter().flat_map(|e| (0..500u64).step_by(7).map(move |after| (e, after)))
    {
        if !after.is_multiple_of(7 * share(engine)) {
            continue;
        }
        let world = World::new(after, WorldOptions::default());
        let db = Db::open_in(Process::new(&world).env, DIR, options(engine)).unwrap();
        world.fs().inject(Some(Fault { after, only_changes: false, sticky: false }));
        let (mut map, mut undecided) = (Map::new(), BTreeSet::new());
        for i in 0..150u32 {
            let (key, value) = ((i * 7 % 60).to_be_bytes().to_vec(), vec![i as u8; 120]);
            match db.put(&key, &value) {
                Ok(()) => drop(map.insert(key, value)),
                Err(e) => assert!(e.kind() == ErrorKind::Io && undecided.insert(key), "{after}: {e}"),
            }
            let asked = (i * 11 % 60).to_be_bytes().to_vec();
            match db.get(&asked) {
                Ok(found) => {
                    assert!(undecided.contains(&asked) || found.as_deref() == map.get(&asked).map(|v| &v[..]))
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::Io, "{after}: {e}"),
            }
        }
        world.fs().inject(None);
        db.compact_range(..).unwrap_or_else(|e| panic!("{after}: {e}"));
        let mut found: Map = db.all().into_iter().collect();
        for key in &undecided {
            found.remove(key);
            map.remove(key);
        }
        assert!(found == map, "{after}");
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{after}: {:#?}", report.problems);
    }
}
