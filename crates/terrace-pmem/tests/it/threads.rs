//! Many threads reserving and freeing at once: no memory is given to two of them, and nothing is lost.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::rng::Rng;
use terrace_pmem::{Kind, POff, Pool};

use crate::support::memory_pool;

const THREADS: u64 = 4;
const ROUNDS: u64 = 3000;

/// Stamps an object with its thread; a stamp already there would be another's.
fn claim(pool: &Pool, offset: u64, owner: u64) {
    let stamp = pool.atomic(POff::new(offset));
    stamp.store(owner, Ordering::Relaxed);
    std::hint::spin_loop();
    assert_eq!(stamp.load(Ordering::Relaxed), owner, "{offset:#x} has two owners");
}

fn work(pool: &Pool, thread: u64, given: &AtomicU64) -> Vec<(u64, u64, bool)> {
    let mut rng = Rng::new(thread);
    let mut held: Vec<(u64, u64, bool)> = Vec::new();
    for round in 1..=ROUNDS {
        let owner = thread << 32 | round;
        let reserved = if rng.one_in(20) {
            pool.reserve_extent(Kind(1), 1 + rng.below(10_000)).map(|e| {
                pool.activate(&e);
                (e.offset, e.bytes, true)
            })
        } else {
            pool.reserve(Kind(1), 1 + rng.below(700)).map(|s| {
                pool.activate(&s);
                (s.offset, s.bytes, false)
            })
        };
        if let Ok(object) = reserved {
            claim(pool, object.0, owner);
            given.fetch_add(1, Ordering::Relaxed);
            held.push(object);
        }
        if held.len() > 100 || (!held.is_empty() && rng.one_in(3)) {
            let (offset, _, whole) = held.swap_remove(rng.below(held.len() as u64) as usize);
            assert_eq!(pool.atomic(POff::new(offset)).load(Ordering::Relaxed) >> 32, thread);
            if whole { pool.free_extent(offset, Kind(1)) } else { pool.free(offset, Kind(1)) }.unwrap();
        }
    }
    held
}

#[test]
fn threads_never_share_an_object() {
    let (_, pool) = memory_pool();
    let given = AtomicU64::new(0);
    let held: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|t| {
                scope.spawn({
                    let (p, g) = (&pool, &given);
                    move || work(p, t, g)
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert!(given.load(Ordering::Relaxed) > THREADS * ROUNDS / 2);
    let mut marks = pool.marks();
    for &(offset, _, whole) in &held {
        if whole { marks.extent(offset) } else { marks.slot(offset) }.unwrap();
    }
    assert_eq!(marks.len(), held.len() as u64);
    assert_eq!(pool.check(&marks), []);
    for (offset, _, whole) in held {
        if whole { pool.free_extent(offset, Kind(1)) } else { pool.free(offset, Kind(1)) }.unwrap();
    }
    assert_eq!(pool.check(&pool.marks()), []);
}

#[test]
fn objects_may_be_freed_by_other_threads() {
    let (_, pool) = memory_pool();
    let (sender, receiver) = std::sync::mpsc::sync_channel::<u64>(64);
    std::thread::scope(|scope| {
        let (giver, taker) = (pool.clone(), pool.clone());
        scope.spawn(move || {
            for i in 0..5000u64 {
                let slot = giver.reserve(Kind(2), 16 + i % 400).unwrap();
                giver.activate(&slot);
                sender.send(slot.offset).unwrap();
            }
        });
        scope.spawn(move || receiver.iter().for_each(|offset| taker.free(offset, Kind(2)).unwrap()));
    });
    assert_eq!(pool.slots(Kind(2)).count(), 0);
    assert_eq!(pool.check(&pool.marks()), []);
}

#[test]
fn reclaiming_runs_beside_mutators() {
    let (media, pool) = memory_pool();
    for _ in 0..500 {
        pool.activate(&pool.reserve(Kind(1), 100).unwrap());
    }
    let left: Vec<u64> = pool.slots(Kind(1)).map(|(offset, _)| offset).collect();
    drop(pool);
    let pool = Pool::open_on(media, crate::support::name(), &crate::support::other_boot()).unwrap();
    let mut marks = pool.marks();
    // The owner reaches every third; every third more was unlinked by a mutator, which frees it late; the rest
    // is lost.
    left.iter().step_by(3).for_each(|&o| marks.slot(o).unwrap());
    let held = std::thread::scope(|scope| {
        let mutator = scope.spawn(|| {
            let mut held = Vec::new();
            for &late in left.iter().skip(1).step_by(3) {
                let slot = pool.reserve(Kind(1), 100).unwrap();
                pool.activate(&slot);
                held.push(slot.offset);
                pool.free(late, Kind(1)).unwrap();
            }
            held
        });
        pool.reclaim(&marks).unwrap();
        mutator.join().unwrap()
    });
    pool.release_reclaimed().unwrap();
    held.iter().for_each(|&o| marks.slot(o).unwrap());
    let twice = |p: &terrace_pmem::Problem| p.what.contains("twice");
    assert_eq!(pool.check(&marks).into_iter().filter(|p| !twice(p)).collect::<Vec<_>>(), []);
}
