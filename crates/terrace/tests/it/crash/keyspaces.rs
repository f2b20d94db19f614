//! Keyspaces that are made and dropped, and keys of the default one that make room for them, crashed anywhere.

use terrace::{Db, EngineKind, Options, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;
use terrace_sim::{Change, KvModel, Recorder, Scenario, World, kv_scenario};

use super::env::{DIR, Process};
use super::judge::{may_end_early, options};
use super::room::everywhere;
use super::scenarios::{Exploration, Nested};
use crate::harness::{all_keyspaces, assert_clean, key_in, there_is};

/// Images of each engine on each medium; a long run gets more by the environment.
const IMAGES: u64 = 60;

const NAMES: [&str; 2] = ["a", "b"];

/// An operation on keyspaces, of which there are two beside the default one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    Make(usize),
    Drop(usize),
    /// A key of the default keyspace that begins with byte 255.
    PutHigh(u8),
    Put(usize, u8),
    /// A batch over the default keyspace and another.
    PutBoth(usize, u8),
    Delete(usize, u8),
    Flush,
    Background,
    Reopen,
}

fn drawn(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let mut ops: Vec<Op> = (0..6).map(Op::PutHigh).collect();
    ops.extend((0..45).map(|_| {
        let (name, key) = (rng.below(2) as usize, rng.below(12) as u8);
        match rng.below(20) {
            0 | 1 => Op::Make(name),
            2 | 3 => Op::Drop(name),
            4 | 5 => Op::PutHigh(key),
            6..=10 => Op::Put(name, key),
            11..=13 => Op::PutBoth(name, key),
            14 | 15 => Op::Delete(name, key),
            16 | 17 => Op::Flush,
            18 => Op::Background,
            _ => Op::Reopen,
        }
    }));
    ops
}

struct Session<'a> {
    world: &'a World,
    options: Options,
    process: Process,
    db: Option<Db>,
    stamp: u32,
}

impl<'a> Session<'a> {
    fn open(world: &'a World, options: &Options) -> Result<Self, String> {
        let process = Process::new(world);
        let db =
            Db::open_in(process.env.clone(), DIR, options.clone()).map_err(|e| format!("opening: {e}"))?;
        Ok(Session { world, options: options.clone(), process, db: Some(db), stamp: 0 })
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("a session has its database open")
    }

    /// Has `write` do what `changes` say, and the model know.
    fn write(
        &self,
        recorder: &mut Recorder<KvModel>,
        changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        write: impl FnOnce(&Db) -> terrace::Result<()>,
    ) -> Result<(), String> {
        recorder.update(|model| model.begin(Change(changes)));
        write(self.db()).map_err(|e| format!("writing: {e}"))?;
        recorder.update(KvModel::acknowledge);
        Ok(())
    }

    /// Opens a keyspace, which may make it.
    fn make(&self, recorder: &mut Recorder<KvModel>, name: &str) -> Result<terrace::Keyspace, String> {
        let mut made = None;
        self.write(recorder, vec![(there_is(name), Some(Vec::new()))], |db| {
            made = Some(db.keyspace(name)?);
            Ok(())
        })?;
        Ok(made.expect("it was made"))
    }

    fn carry_out(&mut self, op: &Op, recorder: &mut Recorder<KvModel>) -> Result<(), String> {
        self.stamp += 1;
        let value = self.stamp.to_le_bytes().repeat(15);
        match op {
            Op::Make(name) => self.make(recorder, NAMES[*name]).map(drop),
            Op::Drop(name) => self.drop_one(recorder, NAMES[*name]),
            Op::PutHigh(key) => {
                let key = [0xff, *key];
                let change = (key_in(None, &key), Some(value.clone()));
                self.write(recorder, vec![change], |db| db.put(key, &value))
            }
            Op::Put(name, key) => {
                let space = self.make(recorder, NAMES[*name])?;
                let change = (key_in(Some(space.name()), &[*key]), Some(value.clone()));
                self.write(recorder, vec![change], |_| space.put([*key], &value))
            }
            Op::PutBoth(name, key) => {
                let space = self.make(recorder, NAMES[*name])?;
                let both = [(Some(space.name()), vec![*key]), (None, vec![0xff, *key])];
                let changes = both.map(|(name, key)| (key_in(name, &key), Some(value.clone())));
                self.write(recorder, changes.into(), |db| {
                    let mut batch = WriteBatch::new();
                    batch.put_in(&space, [*key], &value);
                    batch.put([0xff, *key], &value);
                    db.write(batch)
                })
            }
            Op::Delete(name, key) => {
                let space = self.make(recorder, NAMES[*name])?;
                self.write(recorder, vec![(key_in(Some(space.name()), &[*key]), None)], |_| {
                    space.delete([*key])
                })
            }
            Op::Flush => self.db().flush().map_err(|e| format!("flushing: {e}")),
            Op::Background => {
                self.process.help();
                Ok(())
            }
            Op::Reopen => {
                let db = self.db.take().expect("a session has its database open");
                db.close().map_err(|e| format!("closing: {e}"))?;
                drop(db);
                *self = Session { stamp: self.stamp, ..Session::open(self.world, &self.options)? };
                Ok(())
            }
        }
    }

    fn drop_one(&self, recorder: &mut Recorder<KvModel>, name: &str) -> Result<(), String> {
        let (is, keys) = (there_is(name), key_in(Some(name), b""));
        let gone = recorder.read(|model| {
            let there = model.expected().map(|map| map.keys().filter(|k| **k == is || k.starts_with(&keys)));
            there.into_iter().flatten().map(|key| (key.clone(), None)).collect::<Vec<_>>()
        });
        if gone.is_empty() {
            return Ok(());
        }
        self.write(recorder, gone, |db| db.drop_keyspace(name))
    }
}

fn judge(options: &Options, world: &World, model: &KvModel) -> Result<(), String> {
    let session = Session::open(world, options)?;
    let found = all_keyspaces(session.db()).map_err(|e| format!("reading: {e}"))?;
    model.accepts_in(world, &found).or_else(|e| match may_end_early(world) {
        true => model.accepts_prefix(&found),
        false => Err(e),
    })?;
    world.recovery_done();
    while session.process.help() {}
    assert_clean(session.db());
    let still = all_keyspaces(session.db()).map_err(|e| format!("reading again: {e}"))?;
    if still != found {
        return Err("background work has changed what there is".into());
    }
    // What the survivor makes collides with nothing that was left.
    let new = session.db().keyspace("new").map_err(|e| format!("making: {e}"))?;
    match new.entries().and_then(|mut entries| entries.next().transpose()) {
        Ok(None) => Ok(()),
        Ok(Some((key, _))) => Err(format!("a new keyspace has key {key:02x?}")),
        Err(e) => Err(format!("reading a new one: {e}")),
    }
}

fn scenario(options: Options) -> impl Scenario<Op = Op, Model = KvModel> {
    let for_judge = options.clone();
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]| {
            let mut session = Session::open(world, &options)?;
            ops.iter().try_for_each(|op| session.carry_out(op, recorder))
        },
        move |world: &World, model: &KvModel| judge(&for_judge, world, model),
    )
}

fn explore(engine: EngineKind, granularity: Granularity, nested: Nested) {
    for seed in 0..2 {
        let explorer = Exploration { engine, granularity, seed, images: IMAGES }.explorer();
        let summary = nested.within(explorer).must_pass(scenario(options(engine)), drawn(seed));
        println!("{} on {granularity:?}, seed {seed}: {summary:?}", engine.name());
    }
}

/// Must catch a keyspace that is half made or half dropped, a dropped one whose keys come back, a number that is given
/// twice, and keys of the default keyspace that are lost as they make room.
#[test]
fn keyspaces_survive_crashes() {
    everywhere().for_each(|(engine, granularity)| explore(engine, granularity, Nested::NONE));
}

/// Must catch what a crash in an opening loses that goes on removing a dropped keyspace.
#[test]
fn keyspaces_survive_crashes_in_openings() {
    everywhere()
        .for_each(|(engine, granularity)| explore(engine, granularity, Nested { depth: 1, events: 3 }));
}
