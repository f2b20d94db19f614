//! The seams: trees with another write buffer, another stage and other policies, against a map.

mod copies;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::Result;
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_base::rng::Rng;
use terrace_disk::SimFs;
use terrace_pmem::{Granularity, Kind as PmKind, Marks, MemMedia, Pool, PoolOptions};
use terrace_table::{Cursor, Entry, Kind, TableOptions};

use super::buffer::Moment;
use super::change::LevelsEdit;
use super::{LeveledTree, Memtable, Parts, Settings, Stage, WriteBuffer};
use crate::batch::{Op, WriteBatch};
use crate::compaction::leveled::tests::policies;
use crate::compaction::leveled::{LevelPolicy, Limits};
use crate::core::Core;
use crate::core::engine::{Direction, Engine};
use crate::core::report::CheckReport;
use crate::core::request::{Group, Request};
use crate::core::snapshots::Held;
use crate::env::{Env, RealPm};
use crate::manifest::{Edit, Manifest};
use crate::memtable::chunks::Chunks;
use crate::memtable::{MemCursor, MemList, Version};
use crate::options::{EngineKind, Options};
use crate::pool;
use crate::stats::Stats;

/// By key, each key's newest version first.
type Versions = BTreeMap<(Vec<u8>, Reverse<u64>), (Kind, Vec<u8>)>;

/// Versions in a map of the standard library.
#[derive(Debug, Default)]
struct Map {
    versions: Mutex<Versions>,
}

impl Map {
    fn put(&self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) {
        self.versions.lock().insert((key.to_vec(), Reverse(seq)), (kind, value.to_vec()));
    }
}

impl Memtable for Map {
    type Cursor = MemCursor;

    const ENTRY_BYTES: u64 = 32;

    fn insert<'a>(&self, ops: impl Iterator<Item = (Op<'a>, u64)>) {
        ops.for_each(|(op, seq)| self.put(op.key, seq, op.kind, op.value));
    }

    fn get<T>(&self, key: &[u8], at: u64, take: impl FnOnce(Version<'_>) -> T) -> Option<T> {
        let versions = self.versions.lock();
        let ((found, Reverse(seq)), (kind, value)) = versions.range((key.to_vec(), Reverse(at))..).next()?;
        (found == key).then(|| take(Version { seq: *seq, kind: *kind, value }))
    }

    /// Over a copy.
    fn cursor(&self) -> MemCursor {
        let copy = MemList::new(&Chunks::new());
        let mut writer = copy.writer();
        for ((key, Reverse(seq)), (kind, value)) in self.versions.lock().iter() {
            writer.insert(key, *seq, *kind, value);
        }
        copy.cursor()
    }

    fn visit(&self, mut each: impl FnMut(&[u8], u64, Kind, &[u8]) -> Result<()>) -> Result<()> {
        let versions = self.versions.lock();
        versions.iter().try_for_each(|((key, Reverse(seq)), (kind, value))| each(key, *seq, *kind, value))
    }

    fn is_empty(&self) -> bool {
        self.versions.lock().is_empty()
    }

    fn bytes_used(&self) -> u64 {
        let bytes = |((key, _), (_, value)): (&(Vec<u8>, _), &(_, Vec<u8>))| (key.len() + value.len()) as u64;
        self.versions.lock().iter().map(|version| Self::ENTRY_BYTES + bytes(version)).sum()
    }

    fn dram_bytes(&self) -> u64 {
        self.bytes_used()
    }

    fn max_seq(&self) -> u64 {
        self.versions.lock().keys().map(|(_, Reverse(seq))| *seq).max().unwrap_or(0)
    }

    fn check(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A write buffer without a log: what is not flushed is lost with the process.
#[derive(Debug, Default)]
struct Forgetful<S> {
    stage: S,
}

impl<S: Stage> WriteBuffer for Forgetful<S> {
    type Memtable = Map;
    type Stage = S;

    fn memtable(&self, _bytes: u64) -> Map {
        Map::default()
    }

    fn make_ready(&self, _manifest: &Manifest) {}

    fn held_bytes(&self) -> u64 {
        0
    }

    fn stage(&self) -> &S {
        &self.stage
    }

    fn mend(_tree: &LeveledTree<Self>) -> Result<()> {
        Ok(())
    }

    fn log(_tree: &LeveledTree<Self>, _group: &Group<'_>) -> Result<()> {
        Ok(())
    }

    fn rotate(&self) -> Result<()> {
        Ok(())
    }

    fn sync(_tree: &LeveledTree<Self>) -> Result<()> {
        Ok(())
    }

    fn forgotten(_tree: &LeveledTree<Self>, _memtable: &Map) -> Vec<Edit> {
        Vec::new()
    }

    fn forget(&self, _manifest: &Manifest) -> Result<()> {
        Ok(())
    }

    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(&Marks) -> Result<T>) -> Result<T> {
        then(&marks)
    }

    fn check(&self, _manifest: &Manifest, _report: &mut CheckReport) -> Result<()> {
        Ok(())
    }

    fn fill_stats(_tree: &LeveledTree<Self>, stats: &mut Stats) {
        stats.durability = "nothing survives anything".into();
    }

    fn close(_tree: &LeveledTree<Self>) -> Result<()> {
        Ok(())
    }
}

/// A stage that keeps all versions of every fourth key.
#[derive(Debug, Default)]
struct Favourites {
    kept: Map,
}

fn is_favourite(key: &[u8]) -> bool {
    key[0].is_multiple_of(4)
}

impl Stage for Favourites {
    const CHANGES: bool = false;

    fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        let copy = |version: Version<'_>| {
            let value = Bytes::copy_from_slice(version.value);
            Entry { seq: version.seq, kind: version.kind, value }
        };
        Ok(self.kept.get(key, at, copy))
    }

    fn cursors(&self, _moment: &Arc<Moment>) -> Vec<Box<dyn Cursor>> {
        vec![Box::new(self.kept.cursor())]
    }

    fn flush<B: WriteBuffer<Stage = Self>>(
        tree: &LeveledTree<B>,
        memtable: &B::Memtable,
    ) -> Result<LevelsEdit> {
        let kept = &tree.buffer.stage().kept;
        tree.to_level_0(|add| {
            memtable.visit(|key, seq, kind, value| {
                if !is_favourite(key) {
                    return add(key, seq, kind, value);
                }
                kept.put(key, seq, kind, value);
                Ok(())
            })
        })
    }

    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        then(marks)
    }
}

/// A stage with an empty slot in the pool.
#[derive(Debug)]
struct InPool {
    slot: u64,
}

impl Stage for InPool {
    const CHANGES: bool = false;

    fn get(&self, _key: &[u8], _at: u64) -> Result<Option<Entry>> {
        Ok(None)
    }

    fn cursors(&self, _moment: &Arc<Moment>) -> Vec<Box<dyn Cursor>> {
        Vec::new()
    }

    fn flush<B: WriteBuffer<Stage = Self>>(
        tree: &LeveledTree<B>,
        memtable: &B::Memtable,
    ) -> Result<LevelsEdit> {
        tree.to_level_0(|add| memtable.visit(add))
    }

    fn with_marked<T>(&self, mut marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        marks.slot(self.slot)?;
        then(marks)
    }
}

/// A key's versions: sequence number, and the value unless it was deleted.
type History = Vec<(u64, Option<Vec<u8>>)>;

/// A tree, and its expected contents.
struct Pair<S: Stage> {
    tree: Arc<LeveledTree<Forgetful<S>>>,
    history: BTreeMap<Vec<u8>, History>,
    held: Vec<Held>,
    rng: Rng,
}

impl<S: Stage> Pair<S> {
    fn new(stage: S, policy: Box<dyn LevelPolicy>, seed: u64) -> Self {
        Self::in_pool(stage, policy, seed, None)
    }

    fn in_pool(stage: S, policy: Box<dyn LevelPolicy>, seed: u64, pool: Option<Pool>) -> Self {
        let env = Env {
            fs: Arc::new(SimFs::new()),
            pm: Arc::new(RealPm::default()),
            executor: Arc::new(Inline::default()),
            clock: Arc::new(ManualClock::default()),
            hash_seed: None,
        };
        let core = Core::new(Path::new("/").into(), Options::default(), env).unwrap();
        let identity = pool::new_identity(&core.dir, &core.options, EngineKind::Lsm).unwrap();
        let manifest = Manifest::create(core.fs.clone(), &core.dir, identity).unwrap();
        let limits = Limits { l0_tables: (20, 36), debt: (1 << 30, 1 << 31), memtable_fill: 0.5 };
        let settings =
            Settings { memtable_bytes: 2 << 10, memtables: 3, limits, table: TableOptions::default() };
        let parts = Parts { settings, policy, manifest, pool, buffer: Forgetful { stage }, lists: None };
        let tree = LeveledTree::new(core, parts).unwrap();
        Pair { tree, history: BTreeMap::new(), held: Vec::new(), rng: Rng::new(seed) }
    }

    fn visible(&self) -> u64 {
        self.tree.core.snapshots.visible()
    }

    fn key(&mut self) -> Vec<u8> {
        vec![self.rng.below(60) as u8]
    }

    fn write(&mut self) {
        let (mut batch, first_seq) = (WriteBatch::new(), self.visible() + 1);
        let ops = 1 + self.rng.below(4);
        for seq in first_seq..first_seq + ops {
            let key = self.key();
            let value = (!self.rng.one_in(4)).then(|| vec![seq as u8; 60]);
            match &value {
                Some(value) => batch.put(&key, value),
                None => batch.delete(&key),
            }
            self.history.entry(key).or_default().push((seq, value));
        }
        let request = Request { batch, alone: false, sync: false };
        self.tree.apply(Group { requests: &[&request], first_seq, sync: false }).unwrap();
        self.tree.core.snapshots.advance(first_seq + ops - 1);
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0 => self.tree.rotate().unwrap(),
            1 => self.tree.wait_until_flushed().unwrap(),
            2 => self.tree.compact(Bound::Unbounded, Bound::Unbounded).unwrap(),
            3 => self.held.push(self.tree.core.snapshots.hold()),
            4 if !self.held.is_empty() => {
                let which = self.rng.below(self.held.len() as u64) as usize;
                self.held.remove(which);
                self.tree.released();
            }
            5 => drop(self.tree.core.env.executor.help()),
            6 => self.compare(),
            _ => self.write(),
        }
    }

    /// Every reader gets the right answer, by lookups and by walks both ways, and nothing is wrong.
    fn compare(&self) {
        for at in self.held.iter().map(Held::seq).chain([self.visible()]) {
            let mut expected = Vec::new();
            for (key, versions) in &self.history {
                let newest = versions.iter().rev().find(|(seq, _)| *seq <= at);
                let value = newest.and_then(|(_, value)| value.clone());
                assert_eq!(self.tree.get(key, Some(at)).unwrap().map(Vec::from), value, "{key:?} at {at}");
                expected.extend(value.map(|value| (key.clone(), value)));
            }
            assert_eq!(self.walk(at, Direction::Forward), expected);
            expected.reverse();
            assert_eq!(self.walk(at, Direction::Backward), expected);
        }
    }

    fn walk(&self, at: u64, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut walk = self.tree.clone().walk(at, direction).unwrap();
        walk.seek(Bound::Unbounded).unwrap();
        let all = std::iter::from_fn(|| walk.next().unwrap());
        all.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    /// Lives for a while, is proved, and is flushed and compacted in the end.
    fn live(&mut self) {
        (0..600).for_each(|_| self.step());
        self.compare();
        self.tree.rotate().unwrap();
        self.tree.wait_until_flushed().unwrap();
        let report = Engine::check(&*self.tree).unwrap();
        assert!(report.is_clean(), "{report:?}");
        self.held.clear();
        self.tree.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
        self.compare();
        let report = Engine::check(&*self.tree).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }

    /// Keys in runs, ascending.
    fn keys_in_runs(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for run in self.tree.readable().levels.runs() {
            let mut cursor = run.cursor(false, 0);
            cursor.seek_first().unwrap();
            while cursor.valid() {
                keys.push(cursor.key().to_vec());
                cursor.next().unwrap();
            }
        }
        keys.sort();
        keys
    }

    fn live_keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        let is_live = |versions: &History| versions.last().is_some_and(|(_, value)| value.is_some());
        self.history.iter().filter(move |(_, versions)| is_live(versions)).map(|(key, _)| key)
    }
}

#[test]
fn any_policy_over_a_write_buffer_without_a_log() {
    for (seed, policy) in (1..).zip(policies(100)) {
        let mut pair = Pair::new((), policy, seed);
        pair.live();
        assert_eq!(
            pair.keys_in_runs(),
            pair.live_keys().cloned().collect::<Vec<_>>(),
            "{:?}",
            pair.tree.policy
        );
        pair.tree.close().unwrap();
    }
}

#[test]
fn any_policy_under_a_stage_that_keeps_some_keys() {
    for (seed, policy) in (11..).zip(policies(100)) {
        let mut pair = Pair::new(Favourites::default(), policy, seed);
        pair.live();
        let others = pair.live_keys().filter(|key| !is_favourite(key)).cloned();
        assert_eq!(pair.keys_in_runs(), others.collect::<Vec<_>>(), "{:?}", pair.tree.policy);
        pair.tree.close().unwrap();
    }
}

/// A stage's memory in the pool is neither leaked nor reclaimed after a crash; memory without an owner is
/// both.
#[test]
fn what_a_stage_has_in_the_pool_is_marked() {
    const KIND: PmKind = PmKind(200);
    let media = Arc::new(MemMedia::new(1 << 20, 1 << 20, Granularity::CacheLine).unwrap());
    let options = PoolOptions { max_size: 1 << 20, extent_bytes: 4096, ..PoolOptions::default() };
    let pool = Pool::create_on(media.clone(), Path::new("memory"), &options).unwrap();
    let [staged, leaked] = [64; 2].map(|bytes| {
        let slot = pool.reserve(KIND, bytes).unwrap();
        pool.activate(&slot);
        slot.offset
    });
    // It is not closed.
    drop(pool);
    let pool = Pool::open_on(media, Path::new("memory"), &options).unwrap();
    let stage = InPool { slot: staged };
    let pair = Pair::in_pool(stage, policies(100).into_iter().next().unwrap(), 21, Some(pool.clone()));
    let check = || Engine::check(&*pair.tree).unwrap().problems;
    assert!(matches!(&check()[..], [one] if one.starts_with("pool: ")), "{leaked:#x}: {:?}", check());
    pair.tree.reclaim_now().unwrap();
    assert_eq!(check(), Vec::<String>::new());
    assert_eq!(pool.slots(KIND).map(|(offset, _)| offset).collect::<Vec<_>>(), [staged]);
}
