//! Judging what a crash has left: open, compare, prove, use, reopen.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace::{Db, EngineKind, Options};
use terrace_base::rng::Rng;
use terrace_pmem::{Granularity, Media, Opened, Pool, PoolOptions};
use terrace_sim::{KvModel, Map, Survival, World};

use super::env::{DIR, Process, tiny};
use super::mixes::{Drawn, Mix};
use super::ops::{Op, Write, is_junk, key};
use super::run::{Errors, Ledger, Session, contents};

/// Keys that scenarios use at most.
const ALL_KEYS: u16 = 400;

/// Of this many survivors, one lives on and is crashed again.
const SECOND_LIFE_ONE_IN: u64 = 6;

/// An operation of a recovery that fails is drawn from so many.
const FAILING_AMONG: u64 = 24;

/// Judges `world`, which crashed while the model stood at `model`.
pub fn judge(options: &Options, world: &World, model: &KvModel) -> Result<(), String> {
    let found = first_look(options, world, model, &a_little_more())?;
    world.recovery_done();
    let mut rng = Rng::new(world.seed());
    if rng.one_in(SECOND_LIFE_ONE_IN) { second_life(options, world, found, &mut rng) } else { Ok(()) }
}

/// As [`judge`], with one operation failing while the survivor is opened or comes to rest, which one by its seed.
pub fn judge_failing(options: &Options, world: &World, model: &KvModel) -> Result<(), String> {
    let mut rng = Rng::new(world.seed() ^ 0xfa17);
    world.fail_nth(rng.below(FAILING_AMONG));
    let mut model = model.clone();
    {
        let mut session = Session::open(world, options, Errors::Passing)?;
        let found = contents(session.db()).map_err(|e| format!("reading: {e}"))?;
        if session.was_torn() {
            model.accepts_prefix(&found)?;
            model = KvModel::from(found.clone());
        }
        model.accepts_in(world, &found)?;
        let mut ledger = Shared::over(found.clone());
        session.carry_out(&Op::Flush, &mut ledger)?;
        session.rest();
        world.heal();
        same(&session, &found, "after an error")?;
        session.expect(Errors::Fail);
        session.carry_out(&Op::Reopen, &mut ledger)?;
        same(&session, &found, "by closing and opening")?;
    }
    judge(options, world, &model)
}

/// Judges `world` as [`judge`], and has it carry out `ops`, all of which must succeed.
pub fn judge_doing(options: &Options, world: &World, model: &KvModel, ops: &[Op]) -> Result<(), String> {
    first_look(options, world, model, ops).map(drop)
}

/// Opens the survivor, compares it with the model, lets background work finish, proves it, and has it do `more`.
fn first_look(options: &Options, world: &World, model: &KvModel, more: &[Op]) -> Result<Map, String> {
    let may_lose = may_end_early(world) || is_torn(world);
    let mut session = match Session::open(world, options, Errors::Fail) {
        // The process died when a failed sync had dropped what was to survive it, and before that was elsewhere.
        Err(e) if world.fs().has_dropped_pages() && e.contains("corruption") => {
            return repaired(options, world, model);
        }
        opened => opened?,
    };
    let found = contents(session.db()).map_err(|e| format!("reading: {e}"))?;
    model.accepts_in(world, &found).or_else(|e| match may_lose {
        true => model.accepts_prefix(&found),
        false => Err(e),
    })?;
    no_others(&session, &found)?;
    session.rest();
    same(&session, &found, "after background work")?;
    prove(&session)?;
    world.recovery_done();
    let mut ledger = Shared::over(found);
    for op in more {
        session.carry_out(op, &mut ledger)?;
    }
    let found = contents(session.db()).map_err(|e| format!("reading at last: {e}"))?;
    prove(&session)?;
    Ok(found)
}

/// Whether a log may end early without being told for damaged: a failed sync has dropped its last pages, which look
/// like room, and the process died before it had cut the log.
pub fn may_end_early(world: &World) -> bool {
    world.fs().has_dropped_pages() && world.fs().has_room()
}

/// Whether the pool could not be written back once, and was not made again since: as after a power cut it is not
/// trusted, and what was not synced may be gone.
pub fn is_torn(world: &World) -> bool {
    let (media, looking) = (world.media(), PoolOptions { salvage: true, ..world.pool_options() });
    let may_be = world.lost_power() || media.has_failed_sync();
    may_be
        && media.granularity() == Granularity::Page
        && Pool::open_on(media, Path::new(DIR), &looking).is_ok_and(|pool| pool.opened() == Opened::Torn)
}

/// What a repair brings back of a log that has lost pages: a prefix of the history with every synced write.
fn repaired(options: &Options, world: &World, model: &KvModel) -> Result<Map, String> {
    let report =
        Db::repair_in(Process::new(world).env, DIR, options.clone()).map_err(|e| format!("repair: {e}"))?;
    if report.lost.is_empty() {
        return Err(format!("a repair of what has lost pages says nothing of it: {:?}", report.actions));
    }
    let session = Session::open(world, options, Errors::Fail)?;
    let found = contents(session.db()).map_err(|e| format!("reading what was repaired: {e}"))?;
    model.accepts_prefix(&found)?;
    prove(&session)?;
    Ok(found)
}

fn a_little_more() -> Vec<Op> {
    vec![
        Op::Put { key: 1, len: 40 },
        Op::Batch(vec![
            Write::Put { key: 2, len: 9 },
            Write::Delete { key: 1 },
            Write::Put { key: 3, len: 300 },
        ]),
        Op::Delete { key: 4 },
        Op::Flush,
        Op::Compare,
        Op::PutSynced { key: 0, len: 5 },
        Op::Reopen,
        Op::Compare,
    ]
}

fn no_others(session: &Session<'_>, found: &Map) -> Result<(), String> {
    for k in (0..ALL_KEYS).map(key).filter(|k| !found.contains_key(k)) {
        let got = session.db().get(&k).map_err(|e| format!("get: {e}"))?;
        if got.is_some_and(|value| !is_junk(&value)) {
            return Err(format!("get finds {k:?}, iteration does not"));
        }
    }
    Ok(())
}

fn same(session: &Session<'_>, wanted: &Map, when: &str) -> Result<(), String> {
    let found = contents(session.db()).map_err(|e| format!("reading {when}: {e}"))?;
    if found == *wanted { Ok(()) } else { Err(format!("the contents have changed {when}")) }
}

fn prove(session: &Session<'_>) -> Result<(), String> {
    let report = session.db().check().map_err(|e| format!("check: {e}"))?;
    if report.is_clean() { Ok(()) } else { Err(format!("check finds {:#?}", report.problems)) }
}

/// A model that outlives the operations it is told of.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<KvModel>>);

impl Shared {
    pub fn over(map: Map) -> Shared {
        Shared(Arc::new(Mutex::new(KvModel::from(map))))
    }
}

impl Ledger for Shared {
    fn update(&mut self, change: &mut dyn FnMut(&mut KvModel)) {
        change(&mut self.0.lock());
    }

    fn model(&self) -> KvModel {
        self.0.lock().clone()
    }
}

/// Uses the survivor for a while, crashes it at some event, and judges what is left.
fn second_life(options: &Options, world: &World, found: Map, rng: &mut Rng) -> Result<(), String> {
    let mut ledger = Shared::over(found);
    // On ordinary files only what is synced is sure to outlive a power cut.
    let mix = Mix {
        put: 8,
        synced: 2,
        delete: 3,
        batch: 3,
        flush: 1,
        background: 3,
        keys: 30,
        len: 300,
        ..Mix::NONE
    };
    let mut ops = vec![Op::Sync, Op::PutSynced { key: 5, len: 5 }];
    ops.extend(Drawn { seed: rng.next_u64(), ops: 12, mix }.draw());
    let mut session = Session::open(world, options, Errors::Fail)?;
    session.carry_out(&ops[0], &mut ledger)?;
    session.carry_out(&ops[1], &mut ledger)?;
    let at = world.events() + rng.below(40);
    let caught = Arc::new(Mutex::new(None));
    let (seen, model) = (caught.clone(), ledger.clone());
    world.on_event(Box::new(move |event, world| {
        if event.index == at {
            *seen.lock() = Some((world.capture(), model.model()));
        }
    }));
    let outcome = ops[2..].iter().try_for_each(|op| session.carry_out(op, &mut ledger));
    world.ignore_events();
    outcome.map_err(|e| format!("in its second life: {e}"))?;
    let caught = caught.lock().take();
    let Some((snapshot, model)) = caught else { return Ok(()) };
    let seed = rng.next_u64();
    let survivors =
        [snapshot.power_cut(Survival::Nothing), snapshot.power_cut(Survival::Seeded(seed)), snapshot.kill()];
    for (i, survivor) in survivors.iter().enumerate() {
        first_look(options, survivor, &model, &a_little_more())
            .map_err(|e| format!("after its second life, survivor {i} of event {at}: {e}"))?;
    }
    Ok(())
}

/// The options of most scenarios.
pub fn options(engine: EngineKind) -> Options {
    tiny(engine)
}
