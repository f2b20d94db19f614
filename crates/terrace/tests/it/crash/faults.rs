//! Operations of the media that fail, at every place where a scenario meets one: writes stop with an error,
//! reads are right, what was tried again succeeds, and whatever then happens to process or power, what
//! was acknowledged is there.

use std::collections::BTreeSet;

use terrace::{Db, EngineKind, ErrorKind};
use terrace_disk::Fault;
use terrace_pmem::Granularity;
use terrace_sim::{Explorer, KvModel, Map, Recorder, Scenario, World, WorldOptions, kv_scenario};

use super::env::{DIR, ENGINES, Process, runs_on, share};
use super::judge::{judge, judge_failing, options};
use super::mixes::{Drawn, Mix, Script};
use super::ops::Op;
use super::room::everywhere;
use super::run::{Errors, Session};
use super::scenarios::{Exploration, Nested};
use crate::harness::Contents;

/// Images that the operations of a scenario share; a long run gets more by the environment.
const IMAGES: u64 = 360;

/// The same for a creation, which is short: nearly every event after nearly every failure.
const CREATION_IMAGES: u64 = 1200;

/// Operations after which nothing is left of a passing failure.
fn in_order_again() -> Vec<Op> {
    vec![
        Op::Put { key: 1, len: 30 },
        Op::Compare,
        Op::Flush,
        Op::PutSynced { key: 2, len: 400 },
        Op::COMPACT_LONG_KEYS,
        Op::Compare,
    ]
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

/// One image is drawn at each event and no recovery is crashed: failures are many.
fn one_look(at: Exploration) -> Explorer {
    Nested::NONE.within(at.explorer()).drawn(1)
}

/// Each operation of an ordinary file's fails, and a power cut comes at some time after.
fn each_fails_unheeded(images: u64, script: impl Into<Script>) {
    let Script { seed, ops } = script.into();
    for engine in ENGINES.into_iter().filter(|e| runs_on(*e, Granularity::Page)) {
        let on_a_file = Exploration { engine, granularity: Granularity::Page, seed, images };
        let explorer = one_look(on_a_file).kills(false);
        let outcome = explorer.explore_faults(failing_unheeded(engine), ops.clone());
        let summary = outcome.unwrap_or_else(|failure| panic!("{engine:?}: {failure}"));
        println!("{engine:?} unheeded, seed {seed}: {summary:?}");
    }
}

/// Must catch a close that vouches for the pool although a log failed: that log is behind the pool, and a close in
/// order does not make up for it.
#[test]
fn of_logs_before_a_close() {
    let ops = vec![
        Op::Put { key: 1, len: 100 },
        Op::PutSynced { key: 2, len: 100 },
        Op::Reopen,
        Op::Put { key: 3, len: 100 },
        Op::PutSynced { key: 4, len: 100 },
        Op::Reopen,
    ];
    each_fails_unheeded(2 * IMAGES, Script { seed: 9, ops });
}

/// Must catch writes that were handed over to a log and go with it where it cannot be closed: they must go elsewhere,
/// where the next opening finds all of them.
#[test]
fn of_logs_at_a_close() {
    // What a failed sync drops depends on how many changes there were before.
    let writes = |n: u16| (0..n).map(move |k| Op::Put { key: k, len: 9000 - u32::from(k) * 2000 });
    let ops: Vec<Op> = (1..5).flat_map(|n| writes(n).chain([Op::Reopen])).collect();
    each_fails(Script { seed: 16, ops });
}

/// Must catch writes of a new memtable that are in no log: the log that is begun for what waits for its flush goes on
/// as theirs.
#[test]
fn of_logs_at_a_rotation() {
    let mut ops = vec![
        Op::Put { key: 1, len: 1500 },
        Op::Put { key: 2, len: 1500 },
        Op::Put { key: 3, len: 1500 },
        Op::PutSynced { key: 4, len: 20 },
    ];
    ops.extend([
        Op::Background,
        Op::Background,
        Op::PutSynced { key: 5, len: 20 },
        Op::Put { key: 6, len: 20 },
    ]);
    each_fails_unheeded(2 * IMAGES, Script { seed: 10, ops });
}

/// Must catch a group that goes with its log: the manifest could not be told of that log, it takes the next group, and
/// a flush has ended meanwhile.
#[test]
fn of_logs_begun_before_a_flush_ends() {
    let ops = vec![
        Op::Put { key: 1, len: 1500 },
        Op::Put { key: 2, len: 1500 },
        Op::Put { key: 3, len: 1500 },
        Op::Background,
        Op::Background,
        Op::PutSynced { key: 4, len: 20 },
        Op::Put { key: 5, len: 20 },
    ];
    each_fails_unheeded(4 * IMAGES, Script { seed: 14, ops });
}

/// Must catch a failure that nobody heeds and that later lives pay for: kills, closes and power cuts come on top of it.
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
        ..Mix::NONE
    };
    for seed in 11..14 {
        each_fails_unheeded(IMAGES / 2, Drawn { seed, ops: 40, mix });
    }
}

pub fn each_fails(script: impl Into<Script>) {
    let Script { seed, ops } = script.into();
    for (engine, granularity) in everywhere() {
        let explorer = one_look(Exploration { engine, granularity, seed, images: IMAGES });
        let outcome = explorer.explore_faults(failing_once(engine), ops.clone());
        let summary = outcome.unwrap_or_else(|failure| panic!("{engine:?} {granularity:?}: {failure}"));
        println!("{engine:?} {granularity:?} seed {seed}: {summary:?}");
    }
}

/// Must catch a creation that fails half way and leaves what the next attempt takes for damage or for a whole database.
#[test]
fn of_creation() {
    for (engine, granularity) in everywhere() {
        let heeded = Exploration { engine, granularity, seed: 1, images: CREATION_IMAGES * share(engine) };
        let unheeded = Exploration { seed: 15, ..heeded };
        let ops = || vec![Op::Put { key: 1, len: 10 }];
        let tried = [
            (heeded, one_look(heeded).explore_faults(failing_once(engine), ops())),
            (unheeded, one_look(unheeded).explore_faults(failing_unheeded(engine), ops())),
        ];
        for (Exploration { seed, .. }, outcome) in tried {
            let summary = outcome.unwrap_or_else(|failure| panic!("{engine:?} {granularity:?}: {failure}"));
            println!("{engine:?} {granularity:?} seed {seed}: {summary:?}");
        }
    }
}

/// Must catch a memtable that is let go of although its table, or what names that, could not be written.
#[test]
fn of_flushes() {
    each_fails(Drawn { seed: 2, ops: 40, mix: Mix::FLUSHES });
}

/// Must catch inputs that are removed although the outputs, or what names them, could not be written.
#[test]
fn of_compactions() {
    each_fails(Drawn { seed: 3, ops: 40, mix: Mix::COMPACTIONS });
}

/// Must catch a write that is acknowledged although its log failed, and writes behind a gap that a failure has left in
/// a log.
#[test]
fn of_logs() {
    each_fails(Drawn { seed: 4, ops: 40, mix: Mix::LOGS });
}

/// Must catch an opening or a close that fails half way, after it has removed what the next opening needs.
#[test]
fn of_opening_and_closing() {
    each_fails(Drawn { seed: 5, ops: 30, mix: Mix::OPENINGS });
}

/// Must catch a structure that uses room which the pool failed to get, and a store that does not ask for it again.
#[test]
fn of_pool_growth() {
    each_fails(Drawn { seed: 8, ops: 30, mix: Mix::GROWTH });
}

/// Must catch a failure in one job that does harm to another: to batches, snapshots, flushes and compactions under way.
#[test]
fn of_everything() {
    each_fails(Drawn { seed: 6, ops: 60, mix: Mix::EVERYTHING });
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

/// Must catch a recovery that drops logs or memtables although it failed to bring over what is in them.
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
        ..Mix::NONE
    };
    let drawn = Drawn { seed: 7, ops: 50, mix };
    for (engine, granularity) in everywhere() {
        let explorer = Exploration { engine, granularity, seed: drawn.seed, images: 300 }.explorer();
        let summary = explorer.must_pass(recovery_failing(engine, Errors::Fail), drawn.draw());
        println!("{engine:?} {granularity:?}: {summary:?}");
    }
}

/// Must catch an answer that is wrong because a read failed, and an error that outlasts its cause.
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
