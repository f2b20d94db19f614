//! Deletions of ranges, crashed anywhere: in their batch, in the sweep of what they hide, in an opening.

use std::sync::Arc;

use terrace::{Db, EngineKind, Keyspace, Options, WriteBatch};
use terrace_base::exec::Executor;
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;
use terrace_sim::{Change, KvModel, Recorder, Scenario, World, kv_scenario};

use super::env::{DIR, Process};
use super::judge::{may_end_early, options};
use super::room::everywhere;
use super::scenarios::{Exploration, Nested};
use crate::harness::{Deferred, all_keyspaces, assert_clean, key_in, there_is};

/// Images of each engine on each medium; a long run gets more by the environment.
const IMAGES: u64 = 60;

const SPACE: &str = "s";

/// Keys of each keyspace.
const KEYS: u64 = 24;

/// An operation on the default keyspace or on another one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    Put {
        in_space: bool,
        key: u8,
        large: bool,
    },
    Delete {
        in_space: bool,
        key: u8,
    },
    DeleteRange {
        in_space: bool,
        from: u8,
        to: u8,
    },
    /// A batch that deletes a range of both keyspaces, and puts a key into each.
    Replace {
        from: u8,
        to: u8,
        key: u8,
    },
    Flush,
    /// Some of the sweep.
    Tidy,
    Background,
    Reopen,
    Compact,
}

fn drawn(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let mut ops: Vec<Op> =
        (0..20).map(|i| Op::Put { in_space: i % 2 == 1, key: i, large: i % 5 == 0 }).collect();
    ops.extend((0..45).map(|_| {
        let (in_space, key) = (rng.one_in(3), rng.below(KEYS) as u8);
        let to = key + rng.below(12) as u8;
        match rng.below(20) {
            0..=6 => Op::Put { in_space, key, large: rng.one_in(5) },
            7 => Op::Delete { in_space, key },
            8..=10 => Op::DeleteRange { in_space, from: key, to },
            11 | 12 => Op::Replace { from: key, to, key: rng.below(KEYS) as u8 },
            13 => Op::Flush,
            14..=16 => Op::Tidy,
            17 => Op::Background,
            18 => Op::Compact,
            _ => Op::Reopen,
        }
    }));
    ops
}

struct Session<'a> {
    world: &'a World,
    options: Options,
    background: Arc<Deferred>,
    _process: Process,
    db: Option<Db>,
    stamp: u32,
}

impl<'a> Session<'a> {
    fn open(world: &'a World, options: &Options) -> Result<Self, String> {
        let (mut process, background) = (Process::new(world), Arc::new(Deferred::default()));
        process.env.executor = background.clone();
        let db =
            Db::open_in(process.env.clone(), DIR, options.clone()).map_err(|e| format!("opening: {e}"))?;
        Ok(Session { world, options: options.clone(), background, _process: process, db: Some(db), stamp: 0 })
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("a session has its database open")
    }

    /// Has `write` do what `changes` say, and the model know.
    fn write<T>(
        &self,
        recorder: &mut Recorder<KvModel>,
        changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        write: impl FnOnce(&Db) -> terrace::Result<T>,
    ) -> Result<T, String> {
        recorder.update(|model| model.begin(Change(changes)));
        let written = write(self.db()).map_err(|e| format!("writing: {e}"))?;
        recorder.update(KvModel::acknowledge);
        Ok(written)
    }

    fn space(&self, recorder: &mut Recorder<KvModel>) -> Result<Keyspace, String> {
        self.write(recorder, vec![(there_is(SPACE), Some(Vec::new()))], |db| db.keyspace(SPACE))
    }

    fn carry_out(&mut self, op: &Op, recorder: &mut Recorder<KvModel>) -> Result<(), String> {
        self.stamp += 1;
        let name = |in_space: bool| in_space.then_some(SPACE);
        match *op {
            Op::Put { in_space, key, large } => {
                let value = self.stamp.to_le_bytes().repeat(if large { 1300 } else { 15 });
                let space = self.space(recorder)?;
                let change = (key_in(name(in_space), &[key]), Some(value.clone()));
                self.write(recorder, vec![change], |db| {
                    if in_space { space.put([key], &value) } else { db.put([key], &value) }
                })
            }
            Op::Delete { in_space, key } => {
                let space = self.space(recorder)?;
                self.write(recorder, vec![(key_in(name(in_space), &[key]), None)], |db| {
                    if in_space { space.delete([key]) } else { db.delete([key]) }
                })
            }
            Op::DeleteRange { in_space, from, to } => {
                let space = self.space(recorder)?;
                let gone = (from..=to).map(|key| (key_in(name(in_space), &[key]), None)).collect();
                self.write(recorder, gone, |db| match in_space {
                    true => space.delete_range([from]..=[to]),
                    false => db.delete_range([from]..=[to]),
                })
            }
            Op::Replace { from, to, key } => {
                let space = self.space(recorder)?;
                let value = self.stamp.to_le_bytes().repeat(15);
                let both = [None, Some(SPACE)];
                let gone = both.into_iter().flat_map(|name| {
                    (from..=to).filter(|other| *other != key).map(move |key| (key_in(name, &[key]), None))
                });
                let put = both.into_iter().map(|name| (key_in(name, &[key]), Some(value.clone())));
                self.write(recorder, gone.chain(put).collect(), |db| {
                    let mut batch = WriteBatch::new();
                    batch.delete_range([from]..=[to]);
                    batch.delete_range_in(&space, [from]..=[to]);
                    batch.put([key], &value);
                    batch.put_in(&space, [key], &value);
                    db.write(batch)
                })
            }
            Op::Flush => self.db().flush().map_err(|e| format!("flushing: {e}")),
            Op::Compact => self.db().compact_range(..).map_err(|e| format!("compacting: {e}")),
            Op::Tidy => {
                self.background.tidy();
                Ok(())
            }
            Op::Background => {
                self.background.help();
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
}

fn judge(options: &Options, world: &World, model: &KvModel) -> Result<(), String> {
    let session = Session::open(world, options)?;
    let found = all_keyspaces(session.db()).map_err(|e| format!("reading: {e}"))?;
    model.accepts_in(world, &found).or_else(|e| match may_end_early(world) {
        true => model.accepts_prefix(&found),
        false => Err(e),
    })?;
    world.recovery_done();
    while session.background.tidy() || session.background.help() {}
    assert_clean(session.db());
    let still = all_keyspaces(session.db()).map_err(|e| format!("reading again: {e}"))?;
    if still != found {
        return Err("the sweep has changed what there is".into());
    }
    session.db().delete_range(..).map_err(|e| format!("deleting: {e}"))?;
    match session.db().entries().and_then(|mut entries| entries.next().transpose()) {
        Ok(None) => Ok(()),
        Ok(Some((key, _))) => Err(format!("key {key:02x?} is not gone")),
        Err(e) => Err(format!("reading what is gone: {e}")),
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

/// Must catch a range that is half deleted, keys of one that come back, and keys put since that are swept with it.
#[test]
fn deleted_ranges_survive_crashes() {
    everywhere().for_each(|(engine, granularity)| explore(engine, granularity, Nested::NONE));
}

/// Must catch what a crash in an opening loses that goes on with a sweep.
#[test]
fn deleted_ranges_survive_crashes_in_openings() {
    everywhere()
        .for_each(|(engine, granularity)| explore(engine, granularity, Nested { depth: 1, events: 3 }));
}
