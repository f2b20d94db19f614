//! Reclaiming after a crash while writers are at work: at every mark of the walk others change the index's structure.
//!
//! What a writer has been told is there stays there: now, when reclaimed memory has been given out again, and after
//! the next crash.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::rng::Rng;
use terrace_index::PointIndex;
use terrace_sim::{Snapshot, World, WorldOptions};

use super::{Case, Subject, colliding};
use crate::bed::{assert_marked, create_in, open_in};

type Map = BTreeMap<Vec<u8>, u64>;

/// Marks of a walk at which a run of its own changes everything; longer walks are tried at as many, evenly spread.
const MARKS_TRIED: u64 = 30;

/// Runs in which something changes at every mark.
const STEADY_RUNS: u64 = 6;

/// Keys of every shape: such as fit into slots, and such as need records, in order, spread, and of one hash.
fn key(i: u64) -> Vec<u8> {
    match i % 4 {
        0 => (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7).to_be_bytes().to_vec(),
        1 => format!("user{i:012}").into_bytes(),
        2 => colliding(i),
        _ => format!("{:x}/{i}", i.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 40).into_bytes(),
    }
}

/// What an index must be like, and what it becomes.
#[derive(Clone)]
struct Model {
    map: Map,
    rng: Rng,
    /// Keys that changes are drawn from.
    keys: u64,
}

/// Makes `n` changes, which in `phase` 0 mostly grow the index, in 1 mostly shrink it, and in 2 do both.
fn change(index: &impl Subject, Model { map, rng, keys }: &mut Model, phase: u64, n: u64) {
    for _ in 0..n {
        let key = key(rng.below(*keys));
        let grows = match phase {
            0 => !rng.one_in(8),
            1 => rng.one_in(8),
            _ => rng.one_in(2),
        };
        if grows {
            let word = 1 + rng.below(1 << 40);
            assert_eq!(index.insert(&key, word).unwrap(), map.insert(key, word));
        } else {
            assert_eq!(index.remove(&key).unwrap(), map.remove(&key));
        }
    }
}

/// An index that has grown and shrunk, at the moment of its crash, and what is in it.
fn crashed<C: Case>(seed: u64, keys: u64) -> (Snapshot, Model) {
    let world = World::new(seed, WorldOptions::default());
    let index = C::create(&create_in(&world).unwrap()).unwrap();
    let mut model = Model { map: Map::new(), rng: Rng::new(seed), keys };
    for (phase, n) in [(0, keys), (1, keys / 2), (0, keys / 4)] {
        change(&index, &mut model, phase, n);
    }
    (world.capture(), model)
}

/// When the writers of a run are at work.
#[derive(Clone, Copy, Debug)]
enum At {
    /// At this mark: so many changes in this phase.
    One { mark: u64, phase: u64, changes: u64 },
    /// At every mark, with a few.
    Each,
}

impl At {
    /// The changes at mark `now`: phase and number.
    fn changes(self, now: u64, seed: u64) -> Option<(u64, u64)> {
        match self {
            At::One { mark, phase, changes } => (mark == now).then_some((phase, changes)),
            At::Each => Some(((now / 16 + seed) % 3, now % 5)),
        }
    }
}

/// Reopens a crashed index and reclaims what the crash has left, with writers at work; the marks that were made.
fn reclaim<C: Case>((snapshot, model): &(Snapshot, Model), seed: u64, at: At) -> u64 {
    let world = snapshot.kill();
    let pool = open_in(&world).unwrap();
    let index = Arc::new(C::open(&pool).unwrap());
    let model = Arc::new(Mutex::new(Model { rng: Rng::new(seed), ..model.clone() }));
    let marked = Arc::new(AtomicU64::new(0));
    let (theirs, state, count) = (index.clone(), model.clone(), marked.clone());
    world.media().at_marks(Some(Arc::new(move |_| {
        let now = count.fetch_add(1, Ordering::Relaxed);
        if let Some((phase, changes)) = at.changes(now, seed) {
            change(&*theirs, &mut state.lock(), phase, changes);
        }
    })));
    let mut marks = pool.marks();
    index.mark(&mut marks).unwrap();
    world.media().at_marks(None);
    pool.reclaim(&marks).unwrap();
    // Empties limbo: no late free can come.
    index.close().unwrap();
    pool.release_reclaimed().unwrap();

    let model = &mut *model.lock();
    is_as(&*index, &model.map);
    // What was given out again is written over.
    for phase in [0, 1, 2] {
        change(&*index, model, phase, model.keys / 4);
    }
    is_as(&*index, &model.map);
    let world = world.kill();
    let pool = open_in(&world).unwrap();
    let index = C::open(&pool).unwrap();
    is_as(&index, &model.map);
    index.close().unwrap();
    assert_marked(&pool, |marks| index.mark(marks));
    is_as(&index, &model.map);
    marked.load(Ordering::Relaxed)
}

fn is_as(index: &impl Subject, map: &Map) {
    assert_eq!(index.check().unwrap(), Vec::<String>::new());
    for (key, word) in map {
        assert_eq!(index.get(key).unwrap(), Some(*word), "{key:?}");
    }
    assert_eq!(index.contents(50), map.clone().into_iter().collect::<Vec<_>>());
}

/// The test, among `keys` keys: a run for each mark, in which much changes there, and runs in which little changes at
/// each.
pub fn reclaims_beside_writers<C: Case>(keys: u64) {
    let crashed = crashed::<C>(11, keys);
    let count = reclaim::<C>(&crashed, 0, At::One { mark: u64::MAX, phase: 0, changes: 0 });
    assert!(count > 0, "a walk that marks nothing");
    for mark in (0..count).step_by(count.div_ceil(MARKS_TRIED) as usize) {
        // A few changes move some parts of the structure and leave others where they are; many move all.
        for (phase, changes) in [(2, keys / 5), (0, keys / 2), (1, keys)] {
            reclaim::<C>(&crashed, mark, At::One { mark, phase, changes });
        }
    }
    for seed in 0..STEADY_RUNS {
        reclaim::<C>(&crashed, seed, At::Each);
    }
}
