//! Power cuts and kills at every drain.

use std::fmt::Debug;
use std::ops::Bound;

use terrace_base::Result;
use terrace_base::rng::Rng;
use terrace_index::{PointIndex, ScanBatch};
use terrace_pmem::Pool;
use terrace_sim::{Change, Explorer, KvModel, Map, Recorder, Scenario, World, WorldOptions, kv_scenario};

use super::{Case, Subject};
use crate::bed::{assert_marked, create_in, open_in};

/// An operation.
#[derive(Debug, Clone)]
pub enum Op {
    /// Gives a key a word.
    Insert(Vec<u8>, u64),
    Remove(Vec<u8>),
    /// Makes the index as small as its keys let it be.
    Shrink,
    /// Closes the index in order; it may be used further.
    Close,
}

impl Op {
    fn carry_out(&self, index: &impl Subject) -> Result<()> {
        match self {
            Op::Insert(key, word) => index.insert(key, *word).map(drop),
            Op::Remove(key) => index.remove(key).map(drop),
            Op::Shrink => index.shrink(),
            Op::Close => index.close(),
        }
    }

    /// What it changes, if anything.
    fn change(&self) -> Change {
        match self {
            Op::Insert(key, word) => Change::put(key.clone(), word.to_le_bytes()),
            Op::Remove(key) => Change::delete(key.clone()),
            Op::Shrink | Op::Close => Change(Vec::new()),
        }
    }
}

/// Inserts of `keys`, with words from `word` on.
pub fn inserts(word: u64, keys: impl IntoIterator<Item = Vec<u8>>) -> Vec<Op> {
    keys.into_iter().zip(word..).map(|(key, word)| Op::Insert(key, word)).collect()
}

/// Removals of `keys`.
pub fn removes(keys: impl IntoIterator<Item = Vec<u8>>) -> Vec<Op> {
    keys.into_iter().map(Op::Remove).collect()
}

fn run<C: Case>(world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]) -> Result<(), String> {
    let text = |e: terrace_base::Error| e.to_string();
    let pool = create_in(world).map_err(text)?;
    let index = C::create(&pool).map_err(text)?;
    ops.iter().try_for_each(|op| recorder.apply(op.change(), || op.carry_out(&index)).map_err(text))
}

fn contents(index: &impl Subject, step: usize) -> Map {
    index.contents(step).into_iter().map(|(k, w)| (k, w.to_le_bytes().to_vec())).collect()
}

/// The keys by a scan downward.
fn downward(index: &impl Subject) -> Option<Map> {
    let mut batch = ScanBatch::new();
    index.ordered()?.scan(Bound::Unbounded, true, usize::MAX, &mut batch).unwrap();
    let keys: Vec<_> = batch.iter().map(|(k, _)| k.to_vec()).collect();
    assert!(keys.is_sorted_by(|a, b| a > b), "a scan in order");
    Some(batch.iter().map(|(k, w)| (k.to_vec(), w.to_le_bytes().to_vec())).collect())
}

fn assert_no_leaks(pool: &Pool, index: &impl Subject) {
    // Empties limbo.
    index.close().unwrap();
    assert_marked(pool, |marks| index.mark(marks));
}

fn verify<C: Case>(world: &World, model: &KvModel) -> Result<(), String> {
    let Some((pool, index)) = open::<C>(world) else { return model.accepts_in(world, &Map::new()) };
    first_look(world, model, &index, &pool).map(drop)
}

fn open<C: Case>(world: &World) -> Option<(Pool, C::Index)> {
    let pool = open_in(world).ok()?;
    pool.root("index").ok()??;
    let index = C::open(&pool).expect("an index that a root names opens");
    Some((pool, index))
}

/// What was acknowledged is there, the index is sound, the pool has nothing that is nobody's, and writers go on; what
/// is in the index then.
fn first_look(world: &World, model: &KvModel, index: &impl Subject, pool: &Pool) -> Result<Map, String> {
    let found = contents(index, 7);
    model.accepts_in(world, &found)?;
    if downward(index).is_some_and(|down| down != found) {
        return Err("the scans upward and downward differ".into());
    }
    for (key, word) in &found {
        if index.get(key).unwrap().map(u64::to_le_bytes).as_ref().map(<[u8; 8]>::as_slice) != Some(word) {
            return Err(format!("{key:?} is not found"));
        }
    }
    let problems = index.check().unwrap();
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    world.recovery_done();
    assert_no_leaks(pool, index);
    let map = goes_on(index, put_back(index, model, found)?)?;
    assert_no_leaks(pool, index);
    Ok(map)
}

/// What was being removed is put back: of all writes the first, so that it meets what the crash has left.
fn put_back(index: &impl Subject, model: &KvModel, mut map: Map) -> Result<Map, String> {
    for (key, word) in model.acknowledged() {
        if !map.contains_key(key) {
            let before = index.insert(key, u64::from_le_bytes(word.as_slice().try_into().unwrap())).unwrap();
            if before.is_some() {
                return Err(format!("{key:?} was gone and is there"));
            }
            map.insert(key.clone(), word.clone());
        }
    }
    is_in_order(index, &map)?;
    Ok(map)
}

/// Writers repair what the crash has left: everything is removed, put back, and looked at.
fn goes_on(index: &impl Subject, mut map: Map) -> Result<Map, String> {
    let mut rng = Rng::new(map.len() as u64);
    let keys: Vec<_> = map.keys().cloned().collect();
    for (i, key) in keys.iter().enumerate() {
        let beside = [&key[..], b"+"].concat();
        if rng.one_in(2) {
            index.remove(key).unwrap();
            map.remove(key);
        }
        if rng.one_in(2) {
            index.insert(&beside, 1 + i as u64).unwrap();
            map.insert(beside, (1 + i as u64).to_le_bytes().to_vec());
        }
    }
    is_in_order(index, &map)?;
    Ok(map)
}

/// After further writes `map` is there, and the index is sound.
fn is_in_order(index: &impl Subject, map: &Map) -> Result<(), String> {
    let problems = index.check().unwrap();
    if !problems.is_empty() {
        return Err(format!("after further writes: {}", problems.join("; ")));
    }
    if contents(index, usize::MAX) != *map {
        return Err("further writes are lost".into());
    }
    if index.len() != map.len() as u64 {
        return Err(format!("{} keys counted, {} there", index.len(), map.len()));
    }
    index.check_figures();
    Ok(())
}

fn ops(seed: u64, n: usize, keys: u64, key: impl Fn(u64) -> Vec<u8>) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    // Grow, then shrink to nothing, so that every structure change comes up both ways.
    let mut out: Vec<Op> = (0..n)
        .map(|i| {
            let grow = i < n * 2 / 3;
            let put = if grow { !rng.one_in(5) } else { rng.one_in(5) };
            let key = key(rng.below(keys));
            if put { Op::Insert(key, 1 + rng.below(1000)) } else { Op::Remove(key) }
        })
        .collect();
    out.extend(removes((0..keys).map(key)));
    out
}

/// The crash test: dense keys, ascending keys with a long common prefix, and mixed ones.
pub fn survives_crashes<C: Case>() {
    let explore = |seed, ops| {
        Explorer::new(seed).images(700).nested(1, 1).must_pass(kv_scenario(run::<C>, verify::<C>), ops)
    };
    explore(1, ops(1, 40, 16, |i| vec![b'a' + (i % 16) as u8]));
    let user = |i| format!("user{i:018}").into_bytes();
    let mut ascending = inserts(1, (0..24).map(user));
    ascending.extend(removes((0..24).map(user)));
    explore(2, ascending);
    explore(
        3,
        ops(3, 50, 30, |i| {
            if i % 3 == 0 { vec![b'x'; (i % 7) as usize] } else { format!("key-{}", i * i).into_bytes() }
        }),
    );
}

/// A change of an index's structure, and how it is seen.
pub struct StructureChange<C: Case, T> {
    /// Of the explorer; other than that of any change tried by the same test.
    pub seed: u64,
    /// What comes before it.
    pub before: Vec<Op>,
    /// The operations within which it happens.
    pub change: Vec<Op>,
    /// What is seen of the index, before `change` and after each of its operations.
    pub sight: fn(&C::Index, &World) -> T,
    /// Whether what was seen proves that the structure has changed.
    pub proof: fn(&[T]) -> bool,
}

/// Tries every event of a structure change, of what comes before it, and of the index's creation.
pub fn crash_in_each_event_of<C: Case, T: Debug>(change: StructureChange<C, T>) {
    let seen = seen_of(&change);
    assert!((change.proof)(&seen), "the structure does not change: {seen:?}");
    let ops = [change.before, change.change].concat();
    try_each_event(change.seed, || kv_scenario(run::<C>, verify_and_grow::<C>), &ops);
}

/// Takes one route through the crashes of a structure change: one that was wrong once.
pub fn crash_again<C: Case>(ops: Vec<Op>, route: &str) {
    let scenario = kv_scenario(run::<C>, verify_and_grow::<C>);
    Explorer::new(0).replay(scenario, ops, &route.parse().unwrap()).unwrap();
}

/// What is seen where nothing crashes.
fn seen_of<C: Case, T>(change: &StructureChange<C, T>) -> Vec<T> {
    let world = World::new(change.seed, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let index = C::create(&pool).unwrap();
    change.before.iter().for_each(|op| op.carry_out(&index).unwrap());
    let mut seen = vec![(change.sight)(&index, &world)];
    for op in &change.change {
        op.carry_out(&index).unwrap();
        seen.push((change.sight)(&index, &world));
    }
    seen
}

/// Images drawn for each event, beside the five fixed ones.
const DRAWN: u64 = 4;

/// Explores a scenario with images enough for every event, and a third of the recoveries at two events of theirs.
pub fn try_each_event<S: Scenario>(seed: u64, scenario: impl Fn() -> S, ops: &[S::Op]) {
    let explorer = Explorer::new(seed).shrink_runs(30);
    let count = explorer.clone().images(1).drawn(0).nested(0, 0).must_pass(scenario(), ops.to_vec());
    let explorer = explorer.images(count.events * (5 + DRAWN)).drawn(DRAWN).nested(1, 4);
    let summary = explorer.must_pass(scenario(), ops.to_vec());
    let is_asked = std::env::var_os("TERRACE_CRASH_IMAGES").is_some();
    assert!(is_asked || summary.events_tried == summary.events, "every event is tried: {summary:?}");
    println!("seed {seed}: {summary:?}");
}

fn verify_and_grow<C: Case>(world: &World, model: &KvModel) -> Result<(), String> {
    let Some((pool, index)) = open::<C>(world) else { return model.accepts_in(world, &Map::new()) };
    let map = first_look(world, model, &index, &pool)?;
    let beside = keys_beside(&map);
    for (key, word) in beside.iter().zip(1..) {
        index.insert(key, word).unwrap();
    }
    let grown = beside.iter().zip(1u64..).map(|(key, word)| (key.clone(), word.to_le_bytes().to_vec()));
    is_in_order(&index, &map.clone().into_iter().chain(grown).collect())?;
    beside.iter().for_each(|key| assert!(index.remove(key).unwrap().is_some()));
    is_in_order(&index, &map)?;
    assert_no_leaks(&pool, &index);
    Ok(())
}

/// Keys beside each that is there, enough that every part of a small index grows.
fn keys_beside(map: &Map) -> Vec<Vec<u8>> {
    let each = 24u64.div_ceil(map.len().max(1) as u64);
    let keys = map.keys().cloned().chain(map.is_empty().then(Vec::new));
    keys.flat_map(|key| (0..each).map(move |i| [&key[..], format!("/{i}").as_bytes()].concat())).collect()
}
