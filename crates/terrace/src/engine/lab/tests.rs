//! The trees alone, without levels and logs, in the simulator: after any crash the value tree has its earlier
//! state or the one being made, hints lead where they were set to lead, and nothing in the pool is lost.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_base::rng::Rng;
use terrace_base::{Error, Result};
use terrace_disk::{RealFs, SimFs};
use terrace_index::{OrderedIndex, PointIndex, ScanBatch};
use terrace_pmem::{Pool, PoolOptions, Profile};
use terrace_sim::{Change, Explorer, KvModel, Map, PmOptions, Recorder, World, WorldOptions, kv_scenario};
use terrace_table::Position;

use super::Lab;
use super::layout::{Hint, ValueLocation};
use super::open::{assemble, log_home};
use super::tree::{ValueTree, kind};
use crate::batch::WriteBatch;
use crate::core::Core;
use crate::core::engine::Engine;
use crate::core::request::{Group, Request};
use crate::env::{Env, RealPm};
use crate::leveled::Relocations;
use crate::levels::output::BlockHint;
use crate::options::{EngineKind, LabOptions, Options, PoolChoice};
use crate::pool;
use crate::versions::Version;

/// An operation on the trees. Keys are small numbers, values are lengths.
#[derive(Debug, Clone)]
enum Op {
    Put(u8, u16),
    /// A tombstone, which stays.
    Delete(u8),
    /// To the levels, as by an eviction.
    Leave(u8),
    /// To the levels, because there is no room.
    Below(u8),
    /// Runs come, and others go.
    Placed(Vec<u8>, u8, Option<u8>),
    Outdate(u8),
    Trim,
    /// The pool is closed, and opened again.
    Reopen,
}

/// A key that only the model has, once the trees are made.
const READY: &[u8] = b"";

/// Stands for a tombstone in the model.
const GONE: &[u8] = b"deleted";

fn key(number: u8) -> Vec<u8> {
    format!("a beginning/{}", u32::from(number) * 7919).into_bytes()
}

fn core() -> Arc<Core> {
    let env = Env {
        fs: Arc::new(SimFs::new()),
        pm: Arc::new(RealPm::default()),
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: Some(1),
    };
    Core::new(Path::new("/").into(), Options::default(), env).unwrap()
}

fn pool_options(world: &World) -> PoolOptions {
    PoolOptions { extent_bytes: 4096, ..world.pool_options() }
}

fn attach(pool: &Pool) -> Result<Arc<ValueTree>> {
    let options = LabOptions { value_tree_bytes: 1 << 20, hint_tree_bytes: 2 << 10, ..LabOptions::default() };
    let values = ValueTree::open(&core(), pool, &options)?;
    values.fit_filter();
    Ok(values)
}

/// The trees, and the number of writes to them.
struct Subject {
    values: Arc<ValueTree>,
    number: u64,
}

impl Subject {
    fn keep(&mut self, k: u8, value: Option<&[u8]>) -> Result<()> {
        let values = &self.values;
        let _work = values.work.lock();
        self.number += 1;
        let key = key(k);
        let before = if values.may_hold(values.hash(&key)) { values.place(&key)? } else { None };
        values.keep(&Version { key: &key, value, number: self.number, older: None }, before)?;
        values.drain();
        Ok(())
    }

    fn leave(&self, k: u8) -> Result<()> {
        let _work = self.values.work.lock();
        match self.values.place(&key(k))? {
            Some(place) => self.values.leave(&key(k), place),
            None => Ok(()),
        }
    }

    fn below(&self, k: u8) -> Result<()> {
        let _work = self.values.work.lock();
        let before = self.values.place(&key(k))?;
        if let Some(ValueLocation::Here(_)) = before {
            self.values.set(&key(k), ValueLocation::Below, false)?;
            self.values.retire(before);
        }
        Ok(())
    }

    fn placed(&self, keys: &[u8], run: u8, gone: Option<u8>) {
        let block = |i: usize| Position::new(u64::from(run) + 1, 16 + 4096 * (i as u64 / 3), 4000).unwrap();
        let hints = keys.iter().enumerate();
        let hints = hints.map(|(i, k)| BlockHint { key: key(*k), block: block(i), entries: 3 }).collect();
        let gone = gone.map(|run| u64::from(run) + 1).into_iter().collect();
        let relocations = Relocations { hints, moved: (0..40).map(key).collect(), gone };
        self.values.hints.placed(&relocations, 0, &|_| Some(100));
    }

    fn take(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Put(k, len) => self.keep(*k, Some(&value(*k, *len))),
            Op::Delete(k) => self.keep(*k, None),
            Op::Leave(k) => self.leave(*k),
            Op::Below(k) => self.below(*k),
            Op::Placed(keys, run, gone) => {
                self.placed(keys, *run, *gone);
                Ok(())
            }
            Op::Outdate(k) => {
                let found = self.values.hints.walk().find(&key(*k));
                let found: Vec<_> = found.map(|(_, word)| (key(*k), word)).into_iter().collect();
                self.values.hints.outdate(&found, &|_| Some(100));
                Ok(())
            }
            Op::Trim => {
                self.values.hints.trim(0, &|_, hint| hint.is_some_and(|hint| hint.is_stale));
                Ok(())
            }
            Op::Reopen => {
                self.values.close()?;
                let pool = self.values.pool.clone();
                self.values = attach(&pool)?;
                self.values.hints.gather(&|_| Some(100));
                look(&self.values).map(drop).map_err(Error::invalid)
            }
        }
    }

    fn change(&self, op: &Op) -> Option<Change> {
        match op {
            Op::Put(k, len) => Some(Change::put(key(*k), value(*k, *len))),
            Op::Delete(k) => Some(Change::put(key(*k), GONE)),
            Op::Leave(k) | Op::Below(k) => Some(Change::delete(key(*k))),
            _ => None,
        }
    }
}

fn value(k: u8, len: u16) -> Vec<u8> {
    (0..len).map(|i| k ^ len as u8 ^ i as u8).collect()
}

/// The contents of the value tree, also read by single keys.
fn look(values: &ValueTree) -> std::result::Result<Map, String> {
    let told = |e: Error| e.to_string();
    let mut found = Map::new();
    let mut batch = ScanBatch::new();
    values.index.scan(Bound::Unbounded, false, usize::MAX, &mut batch).map_err(told)?;
    for (key, bits) in batch.iter() {
        let ValueLocation::Here(word) = values.decode(bits).map_err(told)? else { continue };
        let record = values.record(word, key).map_err(told)?;
        found.insert(key.to_vec(), if word.is_tombstone() { GONE.to_vec() } else { record.value.to_vec() });
    }
    for k in (0..60).map(key) {
        let got = values.get(&k, u64::MAX).map_err(told)?.is_some();
        if got != found.contains_key(&k) {
            return Err(format!("a get of {} says {got}", k.escape_ascii()));
        }
    }
    Ok(found)
}

fn run(world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]) -> std::result::Result<(), String> {
    let told = |e: Error| e.to_string();
    let pool = Pool::create_on(world.media(), Path::new("/pool"), &pool_options(world)).map_err(told)?;
    ValueTree::create(&pool).map_err(told)?;
    recorder.update(|model| {
        model.begin(Change::put(READY, READY));
        model.acknowledge();
    });
    let mut subject = Subject { values: attach(&pool).map_err(told)?, number: 0 };
    for op in ops {
        let change = subject.change(op);
        change.iter().for_each(|change| recorder.update(|model| model.begin(change.clone())));
        subject.take(op).map_err(told)?;
        change.iter().for_each(|_| recorder.update(KvModel::acknowledge));
    }
    Ok(())
}

fn draw(seed: u64, count: usize) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let one = |rng: &mut Rng| {
        let k = rng.below(30) as u8;
        match rng.below(20) {
            0..8 => Op::Put(k, rng.below(300) as u16),
            8 => Op::Delete(k),
            9..12 => Op::Leave(k),
            12 => Op::Below(k),
            13..16 => {
                let keys = (0..rng.below(9)).map(|i| k + i as u8).collect();
                Op::Placed(keys, rng.below(6) as u8, rng.one_in(2).then(|| rng.below(6) as u8))
            }
            16 | 17 => Op::Outdate(k),
            18 => Op::Trim,
            _ => Op::Reopen,
        }
    };
    (0..count).map(|_| one(&mut rng)).collect()
}

/// Opens the remains of a crash, and proves them.
fn judge(world: &World, model: &KvModel) -> std::result::Result<(), String> {
    let told = |e: Error| e.to_string();
    let opened = Pool::open_on(world.media(), Path::new("/pool"), &pool_options(world));
    let (pool, values) = match opened.and_then(|pool| Ok((pool.clone(), attach(&pool)?))) {
        Err(_) if !model.acknowledged().contains_key(READY) => return Ok(()),
        opened => opened.map_err(told)?,
    };
    let mut found = look(&values)?;
    found.extend(model.acknowledged().get(READY).map(|ready| (READY.to_vec(), ready.clone())));
    model.accepts(&found)?;
    world.recovery_done();
    values.hints.gather(&|_| Some(100));
    prove(&pool, &values)?;
    let mut subject = Subject { values, number: 1 << 20 };
    draw(world.seed(), 30).iter().try_for_each(|op| subject.take(op)).map_err(told)?;
    prove(&pool, &subject.values)
}

/// Checks that nothing is wrong with the trees, and that nothing in the pool is lost after reclaiming.
fn prove(pool: &Pool, values: &ValueTree) -> std::result::Result<(), String> {
    let told = |e: Error| e.to_string();
    values.with_marked(pool.marks(), |marks| pool::reclaim(pool, &marks)).map_err(told)?;
    let found = values.with_marked(pool.marks(), |marks| Ok(pool.check(&marks))).map_err(told)?;
    let mut problems: Vec<String> = found.into_iter().map(|problem| problem.to_string()).collect();
    problems.extend(values.index.check().map_err(told)?);
    problems.extend(values.hints.problems().map_err(told)?);
    let walked = values.hints.each(None, None, &mut |key, bits| {
        if Hint::decode(bits, key).is_none() {
            problems.push(format!("the hint of {} is {bits:#x}", key.escape_ascii()));
        }
        Ok(true)
    });
    walked.map_err(told)?;
    if problems.is_empty() { Ok(()) } else { Err(format!("{problems:#?}")) }
}

#[test]
fn trees_survive_crashes() {
    let pm = PmOptions { bytes: 256 << 10, capacity: 2 << 20, ..PmOptions::default() };
    for seed in 1..4 {
        let explorer = Explorer::new(seed).world(WorldOptions { pm }).images(900).shrink_runs(60);
        let summary = explorer.must_pass(kv_scenario(run, judge), draw(seed, 120));
        println!("{seed}: {summary:?}");
    }
}

/// Stale copies are found again after an opening, as far as hints show them, and hints that lead nowhere are
/// dropped.
#[test]
fn what_is_stale_is_found_again() {
    let world = World::new(1, WorldOptions::default());
    let pool = Pool::create_on(world.media(), Path::new("/pool"), &pool_options(&world)).unwrap();
    ValueTree::create(&pool).unwrap();
    let mut subject = Subject { values: attach(&pool).unwrap(), number: 0 };
    subject.placed(&[1, 2, 3, 4, 5], 3, None);
    subject.placed(&[6, 7], 4, None);
    for k in [1, 2, 6] {
        subject.take(&Op::Outdate(k)).unwrap();
        subject.take(&Op::Outdate(k)).unwrap();
    }
    let stale =
        |subject: &Subject| subject.values.hints.stale().iter().map(|(r, b)| (*r, *b)).collect::<Vec<_>>();
    assert_eq!(stale(&subject), [(4, 200), (5, 100)], "each copy counts once");
    // Two copies of run 3 move to run 5, one of them stale, and the others are removed. What was written is not stale.
    subject.placed(&[2, 3], 5, Some(3));
    assert_eq!(stale(&subject), [(5, 100)]);
    subject.take(&Op::Outdate(2)).unwrap();
    assert_eq!(stale(&subject), [(5, 100), (6, 100)]);
    assert_eq!(subject.values.hints.len(), 4);
    subject.take(&Op::Reopen).unwrap();
    assert_eq!(stale(&subject), [(5, 100), (6, 100)]);
    subject.values.hints.gather(&|run| (run != 5).then_some(70));
    assert_eq!((stale(&subject), subject.values.hints.len()), (vec![(6, 70)], 2));
}

/// A database that merges every table of level 0 at once, on any helping thread.
fn lab(dir: &Path) -> Arc<Lab> {
    let env = Env {
        fs: Arc::new(RealFs),
        pm: Arc::new(RealPm::default()),
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: None,
    };
    let pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
    let mut options = Options { engine: EngineKind::Lab, pool, pm_bytes: 8 << 20, ..Options::default() };
    (options.lab.value_tree_bytes, options.lab.hint_tree_bytes) = (1 << 20, 64 << 10);
    options.lab.levels.l0_tables = 1;
    let core = Core::new(dir.into(), options, env).unwrap();
    let opened = log_home().open(&core).unwrap();
    assemble(core, opened, None, &mut Err).unwrap()
}

fn put(lab: &Lab, key: &[u8], value: &[u8]) {
    let mut batch = WriteBatch::new();
    batch.put(key, value);
    let request = Request { batch, alone: false, sync: false };
    let first_seq = lab.core().snapshots.visible() + 1;
    lab.apply(Group { requests: &[&request], first_seq, sync: false }).unwrap();
    lab.core().snapshots.advance(first_seq);
}

fn flush(lab: &Lab) {
    lab.rotate().unwrap();
    lab.wait_until_flushed().unwrap();
    while lab.core().env.executor.help() {}
}

/// An eviction has put a version on level 0, and has yet to remove it from the tree: a merge meanwhile must
/// not assume that the tree has it.
#[test]
fn a_version_that_is_about_to_leave_is_not_dropped_from_where_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let lab = lab(dir.path());
    let values = lab.stage().0.clone().unwrap();
    for round in 0..3u8 {
        put(&lab, b"hot", &[round; 50]);
        put(&lab, b"other", &[round; 50]);
        put(&lab, &[b'z', round], b"cold");
        flush(&lab);
    }
    let place = values.place(b"hot").unwrap().expect("it is written often");
    let ValueLocation::Here(word) = place else { panic!("{place:?}") };
    // With a hint that leads there, to a block of nothing else.
    let change = lab.to_level_0_noting(Some(Box::new(|_: &[u8]| true)), |add| {
        let record = values.record(word, b"hot")?;
        add(b"hot", record.number, kind(word), record.value)
    });
    lab.put(change.unwrap()).unwrap();
    put(&lab, b"a", b"cold");
    flush(&lab);
    assert_eq!(lab.check().unwrap().problems, Vec::<String>::new());
    values.leave(b"hot", place).unwrap();
    assert_eq!(lab.get(b"hot", None).unwrap().as_deref(), Some(&[2; 50][..]));
    assert_eq!(lab.check().unwrap().problems, Vec::<String>::new());
}

/// The same beside an older copy that is known to be stale: a merge of both keeps the newer one, which a further merge
/// took for the stale one, and went past.
#[test]
fn a_stale_copy_makes_none_stale_with_which_it_is_merged() {
    let dir = tempfile::tempdir().unwrap();
    let lab = lab(dir.path());
    let values = lab.stage().0.clone().unwrap();
    // One entry a block.
    let value = |byte: u8| vec![byte; 5000];
    let copy = |wanted: bool| {
        let Some(ValueLocation::Here(word)) = values.place(b"hot").unwrap() else {
            panic!("it is written often")
        };
        let wanted = wanted.then(|| Box::new(|_: &[u8]| true) as _);
        let change = lab.to_level_0_noting(wanted, |add| {
            let record = values.record(word, b"hot")?;
            add(b"hot", record.number, kind(word), record.value)
        });
        lab.put(change.unwrap()).unwrap();
        ValueLocation::Here(word)
    };
    let merge = |round: u8| {
        put(&lab, &[b'a', round], &value(round));
        put(&lab, &[b'z', round], &value(round));
        flush(&lab);
    };
    for round in 0..3u8 {
        put(&lab, b"hot", &value(round));
        merge(round);
    }
    copy(true);
    merge(3);
    put(&lab, b"hot", &value(4));
    // No merge comes before the newer copy is there.
    lab.rotate().unwrap();
    lab.wait_until_flushed().unwrap();
    let outdated = values.hints.figures.outdated.load(Ordering::Relaxed);
    assert!(outdated > 0, "the copy on the levels is stale");
    let place = copy(false);
    (4..9).for_each(merge);
    values.leave(b"hot", place).unwrap();
    assert!(lab.get(b"hot", None).unwrap() == Some(Bytes::from(value(4))));
    assert_eq!(lab.check().unwrap().problems, Vec::<String>::new());
}
