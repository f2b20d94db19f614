//! Keyspaces that are made and dropped, and keys of the default one that make room for them, crashed anywhere; and
//! operands that are kept while what they stand on moves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrace::{EngineKind, Expiry, Keyspace, KeyspaceOptions, MergeOperator, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;
use terrace_sim::{KvModel, Recorder};

use super::room::everywhere;
use super::scenarios::Nested;
use super::spaces::{IMAGES, Session, Story};
use crate::harness::{key_in, there_is};

/// Entries of the second one can expire.
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
    /// The same, with what is there merged.
    MergeBoth(usize, u8),
    Merge(usize, u8),
    Delete(usize, u8),
    /// An entry that is due at once.
    PutDue(u8),
    Sweep,
    Flush,
    Compact,
    Background,
    Reopen,
}

fn drawn(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let mut ops: Vec<Op> = (0..6).map(Op::PutHigh).collect();
    ops.extend((0..55).map(|_| {
        let (name, key) = (rng.below(2) as usize, rng.below(12) as u8);
        match rng.below(28) {
            0 | 1 => Op::Make(name),
            2 | 3 => Op::Drop(name),
            4 | 5 => Op::PutHigh(key),
            6..=10 => Op::Put(name, key),
            11..=13 => Op::PutBoth(name, key),
            14 | 15 => Op::Delete(name, key),
            16 | 17 => Op::Flush,
            18 => Op::Background,
            19 | 20 => Op::PutDue(key),
            21 => Op::Sweep,
            22 | 23 => Op::MergeBoth(name, key),
            24 | 25 => Op::Merge(name, key),
            _ => Op::Reopen,
        }
    }));
    ops
}

/// Appends to many keys, of which most are deleted then, and a few appended to again: buckets are split and joined.
fn appends(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let mut ops = Vec::new();
    let mut draw = |ops: &mut Vec<Op>, count, keys, deletes: u64| {
        ops.extend((0..count).map(|_| {
            let key = rng.below(keys) as u8;
            match rng.below(40) {
                0..24 if rng.below(100) < deletes => Op::Delete(0, key),
                0..22 => Op::Merge(0, key),
                22 | 23 => Op::MergeBoth(0, key),
                24 | 25 => Op::Put(0, key),
                26 | 27 => Op::Delete(0, key),
                28 | 29 => Op::Flush,
                30 => Op::Compact,
                31 => Op::Reopen,
                _ => Op::Background,
            }
        }));
    };
    draw(&mut ops, 420, 160, 0);
    ops.extend([Op::Flush, Op::Compact]);
    ops.extend((0..160).filter(|key| key % 16 != 0).map(|key| Op::Delete(0, key)));
    ops.extend([Op::Flush, Op::Compact]);
    draw(&mut ops, 120, 160, 60);
    ops
}

/// Buckets that were split and joined since this process began.
static RESHAPED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn note_buckets(session: &Session<'_>) {
    let buckets = session.db().stats().buckets;
    RESHAPED[0].fetch_max(buckets.splits, Ordering::Relaxed);
    RESHAPED[1].fetch_max(buckets.joins, Ordering::Relaxed);
}

fn made(session: &Session<'_>, recorder: &mut Recorder<KvModel>, name: usize) -> Result<Keyspace, String> {
    let expiry = (name == 1).then_some(Expiry::ByEntry);
    // Where entries expire it is not.
    let merge = Some(MergeOperator::append().deferred());
    session.make_with(recorder, NAMES[name], KeyspaceOptions { expiry, merge, ..KeyspaceOptions::default() })
}

fn carry_out(session: &mut Session<'_>, op: &Op, recorder: &mut Recorder<KvModel>) -> Result<(), String> {
    let value = session.stamp.to_le_bytes().repeat(15);
    match op {
        Op::Make(name) => made(session, recorder, *name).map(drop),
        Op::Drop(name) => drop_one(session, recorder, NAMES[*name]),
        Op::PutHigh(key) => {
            let key = [0xff, *key];
            let change = (key_in(None, &key), Some(value.clone()));
            session.write(recorder, vec![change], |db| db.put(key, &value))
        }
        Op::Put(name, key) => {
            let space = made(session, recorder, *name)?;
            let change = (key_in(Some(space.name()), &[*key]), Some(value.clone()));
            session.write(recorder, vec![change], |_| space.put([*key], &value))
        }
        Op::PutBoth(name, key) => {
            let space = made(session, recorder, *name)?;
            let both = [(Some(space.name()), vec![*key]), (None, vec![0xff, *key])];
            let changes = both.map(|(name, key)| (key_in(name, &key), Some(value.clone())));
            session.write(recorder, changes.into(), |db| {
                let mut batch = WriteBatch::new();
                batch.put_in(&space, [*key], &value);
                batch.put([0xff, *key], &value);
                db.write(batch)
            })
        }
        Op::MergeBoth(name, key) => {
            let space = made(session, recorder, *name)?;
            let merged = appended(recorder, space.name(), *key, &value);
            let high = (key_in(None, &[0xff, *key]), Some(value.clone()));
            session.write(recorder, vec![merged, high], |db| {
                let mut batch = WriteBatch::new();
                batch.merge_in(&space, [*key], &value[..8]);
                batch.put([0xff, *key], &value);
                batch.merge_in(&space, [*key], &value[8..]);
                db.write(batch)
            })
        }
        Op::Merge(name, key) => {
            let space = made(session, recorder, *name)?;
            let merged = appended(recorder, space.name(), *key, &value);
            session.write(recorder, vec![merged], |_| space.merge([*key], &value))
        }
        Op::Delete(name, key) => {
            let space = made(session, recorder, *name)?;
            session
                .write(recorder, vec![(key_in(Some(space.name()), &[*key]), None)], |_| space.delete([*key]))
        }
        Op::PutDue(key) => {
            let space = made(session, recorder, 1)?;
            let gone = vec![(key_in(Some(space.name()), &[*key]), None)];
            session.write(recorder, gone, |_| space.put_with_ttl([*key], &value, Duration::ZERO))
        }
        Op::Sweep => session.db().sweep().map_err(|e| format!("sweeping: {e}")),
        Op::Flush => session.db().flush().map_err(|e| format!("flushing: {e}")),
        Op::Compact => session.db().compact_range(..).map_err(|e| format!("compacting: {e}")),
        Op::Background => {
            session.help();
            Ok(())
        }
        Op::Reopen => {
            note_buckets(session);
            session.reopen()
        }
    }
}

/// What a key of a keyspace has with `operand` behind its value.
fn appended(
    recorder: &mut Recorder<KvModel>,
    name: &str,
    key: u8,
    operand: &[u8],
) -> (Vec<u8>, Option<Vec<u8>>) {
    let key = key_in(Some(name), &[key]);
    let before = recorder.read(|model| model.expected().and_then(|map| map.get(&key).cloned()));
    let value = [before.unwrap_or_default(), operand.to_vec()].concat();
    (key, Some(value))
}

fn drop_one(session: &Session<'_>, recorder: &mut Recorder<KvModel>, name: &str) -> Result<(), String> {
    let (is, keys) = (there_is(name), key_in(Some(name), b""));
    let gone = recorder.read(|model| {
        let there = model.expected().map(|map| map.keys().filter(|k| **k == is || k.starts_with(&keys)));
        there.into_iter().flatten().map(|key| (key.clone(), None)).collect::<Vec<_>>()
    });
    if gone.is_empty() {
        return Ok(());
    }
    session.write(recorder, gone, |db| db.drop_keyspace(name))
}

/// What the survivor makes collides with nothing that was left.
fn makes_a_new_one(session: &Session<'_>) -> Result<(), String> {
    let new = session.db().keyspace("new").map_err(|e| format!("making: {e}"))?;
    match new.entries().and_then(|mut entries| entries.next().transpose()) {
        Ok(None) => Ok(()),
        Ok(Some((key, _))) => Err(format!("a new keyspace has key {key:02x?}")),
        Err(e) => Err(format!("reading a new one: {e}")),
    }
}

fn explore(engine: EngineKind, granularity: Granularity, nested: Nested) {
    (0..2).for_each(|seed| story(seed, IMAGES, drawn(seed)).explore(engine, granularity, nested));
}

fn story(seed: u64, images: u64, ops: Vec<Op>) -> Story<Op> {
    Story { seed, images, ops, defers: false, carry_out, finally: makes_a_new_one }
}

/// Must catch a keyspace that is half made or half dropped, a dropped one whose keys come back, a number that is given
/// twice, keys of the default keyspace that are lost as they make room, and an older version that
/// comes back when the one over it is due.
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

/// Must catch operands that are lost, folded twice, or folded without what they stand on: a flush, a merge of tables, a
/// split or a join is cut short, and the log is replayed over it.
#[test]
fn operands_survive_crashes() {
    for (engine, granularity) in everywhere().filter(|(engine, _)| engine.keeps_operands()) {
        for seed in 0..2 {
            let times = if engine == EngineKind::Wip { 12 } else { 1 };
            story(seed, times * IMAGES, appends(seed)).explore(engine, granularity, Nested::NONE);
        }
    }
    let reshaped = RESHAPED.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{reshaped:?} splits and joins");
    let has_wip = everywhere().any(|(engine, _)| engine == EngineKind::Wip);
    assert!(!has_wip || reshaped.iter().all(|count| *count > 0), "{reshaped:?}");
}
