//! Deletions of ranges, crashed anywhere: in their batch, in the sweep of what they hide, in an opening.

use terrace::{EngineKind, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;
use terrace_sim::{KvModel, Recorder};

use super::room::everywhere;
use super::scenarios::Nested;
use super::spaces::{IMAGES, Session, Story};
use crate::harness::key_in;

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

fn carry_out(session: &mut Session<'_>, op: &Op, recorder: &mut Recorder<KvModel>) -> Result<(), String> {
    let name = |in_space: bool| in_space.then_some(SPACE);
    match *op {
        Op::Put { in_space, key, large } => {
            let value = session.stamp.to_le_bytes().repeat(if large { 1300 } else { 15 });
            let space = session.make(recorder, SPACE)?;
            let change = (key_in(name(in_space), &[key]), Some(value.clone()));
            session.write(recorder, vec![change], |db| {
                if in_space { space.put([key], &value) } else { db.put([key], &value) }
            })
        }
        Op::Delete { in_space, key } => {
            let space = session.make(recorder, SPACE)?;
            session.write(recorder, vec![(key_in(name(in_space), &[key]), None)], |db| {
                if in_space { space.delete([key]) } else { db.delete([key]) }
            })
        }
        Op::DeleteRange { in_space, from, to } => {
            let space = session.make(recorder, SPACE)?;
            let gone = (from..=to).map(|key| (key_in(name(in_space), &[key]), None)).collect();
            session.write(recorder, gone, |db| match in_space {
                true => space.delete_range([from]..=[to]),
                false => db.delete_range([from]..=[to]),
            })
        }
        Op::Replace { from, to, key } => {
            let space = session.make(recorder, SPACE)?;
            let value = session.stamp.to_le_bytes().repeat(15);
            let both = [None, Some(SPACE)];
            let gone = both.into_iter().flat_map(|name| {
                (from..=to).filter(|other| *other != key).map(move |key| (key_in(name, &[key]), None))
            });
            let put = both.into_iter().map(|name| (key_in(name, &[key]), Some(value.clone())));
            session.write(recorder, gone.chain(put).collect(), |db| {
                let mut batch = WriteBatch::new();
                batch.delete_range([from]..=[to]);
                batch.delete_range_in(&space, [from]..=[to]);
                batch.put([key], &value);
                batch.put_in(&space, [key], &value);
                db.write(batch)
            })
        }
        Op::Flush => session.db().flush().map_err(|e| format!("flushing: {e}")),
        Op::Compact => session.db().compact_range(..).map_err(|e| format!("compacting: {e}")),
        Op::Tidy => {
            session.tidy();
            Ok(())
        }
        Op::Background => {
            session.help();
            Ok(())
        }
        Op::Reopen => session.reopen(),
    }
}

/// The survivor deletes what is left.
fn deletes_everything(session: &Session<'_>) -> Result<(), String> {
    session.db().delete_range(..).map_err(|e| format!("deleting: {e}"))?;
    match session.db().entries().and_then(|mut entries| entries.next().transpose()) {
        Ok(None) => Ok(()),
        Ok(Some((key, _))) => Err(format!("key {key:02x?} is not gone")),
        Err(e) => Err(format!("reading what is gone: {e}")),
    }
}

fn explore(engine: EngineKind, granularity: Granularity, nested: Nested) {
    for seed in 0..2 {
        let story = Story {
            seed,
            images: IMAGES,
            ops: drawn(seed),
            defers: true,
            carry_out,
            finally: deletes_everything,
        };
        story.explore(engine, granularity, nested);
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
