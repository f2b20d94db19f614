//! Many tombstones before the first record that lives, or behind the last: walks skip what others have found empty.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::Snapshot;
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::harness::{Engine, Machine, Setup};

/// Keys of the random operations: enough of them are deleted beside each other for ranges to be kept.
const KEYS: u64 = 1500;

/// Records that a walk reads.
const TAKEN: usize = 3;

type Model = BTreeMap<u64, u64>;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().unwrap())
}

/// The first records from `bound` on, in either direction.
fn walked(snapshot: &Snapshot, bound: Bound<u64>, forward: bool) -> Vec<(u64, u64)> {
    let at = bound.map(key);
    let at = at.as_ref().map(|key| &key[..]);
    let numbers = |entry: terrace::Result<(bytes::Bytes, bytes::Bytes)>| {
        let (key, value) = entry.unwrap();
        (number(&key), number(&value))
    };
    match forward {
        true => snapshot.range((at, Bound::Unbounded)).unwrap().take(TAKEN).map(numbers).collect(),
        false => snapshot.range((Bound::Unbounded, at)).unwrap().rev().take(TAKEN).map(numbers).collect(),
    }
}

fn expected(model: &Model, bound: Bound<u64>, forward: bool) -> Vec<(u64, u64)> {
    let owned = |(key, value): (&u64, &u64)| (*key, *value);
    match forward {
        true => model.range((bound, Bound::Unbounded)).take(TAKEN).map(owned).collect(),
        false => model.range((Bound::Unbounded, bound)).rev().take(TAKEN).map(owned).collect(),
    }
}

fn some_bound(rng: &mut Rng) -> Bound<u64> {
    match rng.below(6) {
        0 | 1 => Bound::Unbounded,
        2 | 3 => Bound::Included(rng.below(KEYS)),
        _ => Bound::Excluded(rng.below(KEYS)),
    }
}

/// Must catch a record that a walk misses because it was put into a range that had been empty, and one that an older
/// snapshot still sees there.
pub fn walks_over_what_was_taken_match_a_map(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return;
    }
    for (setup, seed) in (0..4)
        .map(|seed| (Setup::roomy(engine, Granularity::CacheLine), seed))
        .chain([(Setup::tiny("tiny", engine), 9)])
    {
        let db = Machine::new(&setup).open().unwrap();
        let (mut model, mut rng) = (Model::new(), Rng::new(seed));
        let mut held: Vec<(Snapshot, Model)> = Vec::new();
        for i in 0..KEYS {
            db.put(key(i), key(0)).unwrap();
            model.insert(i, 0);
        }
        for step in 0..3000 {
            match rng.below(100) {
                0..3 => {
                    let at = rng.below(KEYS);
                    db.put(key(at), key(step)).unwrap();
                    model.insert(at, step);
                }
                3..5 => held.push((db.snapshot(), model.clone())),
                5..7 if held.len() > 3 => drop(held.swap_remove(0)),
                7 => db.flush().unwrap(),
                8..80 => {
                    // Takes from the front more often than from the back.
                    let forward = rng.below(5) > 0;
                    let taken = match forward {
                        true => model.pop_first(),
                        false => model.pop_last(),
                    };
                    let found = walked(&db.snapshot(), Bound::Unbounded, forward).into_iter().next();
                    assert_eq!(found, taken, "{:?}, {} by {seed}: step {step}", engine.kind, setup.name);
                    taken.into_iter().for_each(|(at, _)| db.delete(key(at)).unwrap());
                }
                _ => {
                    let (bound, forward) = (some_bound(&mut rng), rng.below(2) == 0);
                    let now = (db.snapshot(), model.clone());
                    for (snapshot, model) in held.iter().chain([&now]) {
                        let what =
                            format!("{:?}, {} by {seed}: step {step}, {bound:?}", engine.kind, setup.name);
                        let found = walked(snapshot, bound, forward);
                        assert_eq!(found, expected(model, bound, forward), "{what}, {forward}");
                    }
                }
            }
            if model.len() < 200 {
                for i in 0..KEYS / 2 {
                    let at = rng.below(KEYS);
                    db.put(key(at), key(i)).unwrap();
                    model.insert(at, i);
                }
            }
        }
    }
}

/// Records that go through the queue of [`queues_lose_nothing_under_threads`].
const THROUGH: u64 = 3000;

/// Must catch a record that is put where a walk beside it finds nothing, and that later walks skip.
pub fn queues_lose_nothing_under_threads(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return;
    }
    let db = Machine::new(&Setup::roomy(engine, Granularity::CacheLine).threaded(2)).open().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..THROUGH {
                db.put(key(KEYS + i), key(i)).unwrap();
                // Now and then one that overtakes all others.
                if i.is_multiple_of(50) {
                    db.put(key(KEYS - 1 - i / 50), key(i)).unwrap();
                    let first = db.iter().unwrap().next().unwrap().unwrap();
                    assert!(number(&first.0) < KEYS, "{:?}: {:?} beside {i}", engine.kind, first.0);
                    db.delete(key(KEYS - 1 - i / 50)).unwrap();
                }
            }
            is_done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut next = 0;
            while next < THROUGH {
                let done = is_done.load(Ordering::Acquire);
                let first = db.range(&key(KEYS)[..]..).unwrap().next().map(|entry| entry.unwrap());
                match first {
                    Some((found, _)) => {
                        assert_eq!(number(&found), KEYS + next, "{:?}", engine.kind);
                        db.delete(&found).unwrap();
                        next += 1;
                    }
                    None => assert!(!done, "{:?}: {next} is missing", engine.kind),
                }
            }
        });
    });
}
