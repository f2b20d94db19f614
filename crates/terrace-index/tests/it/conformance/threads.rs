//! Several threads at once: nothing is lost, nothing that is there is missed.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrace_base::rng::Rng;
use terrace_index::{OrderedIndex, PointIndex, ScanBatch};
use terrace_pmem::Opened;
use terrace_sim::{Survival, World, WorldOptions};

use super::{Case, Subject};
use crate::bed::{assert_marked, create_in, memory_pool_of, open_in};

const THREADS: u64 = 4;

fn sound<I: Subject>(pool: &terrace_pmem::Pool, index: &I, keys: u64) {
    assert_eq!(index.check().unwrap(), Vec::<String>::new());
    assert_eq!(index.len(), keys);
    index.check_figures();
    // Empties limbo.
    index.close().unwrap();
    assert_marked(pool, |marks| index.mark(marks));
}

/// Threads insert interleaved keys, so that they split the same nodes, leaves and inner ones.
pub fn loses_no_insert<C: Case>() {
    let pool = memory_pool_of(256 << 20);
    let index = C::create(&pool).unwrap();
    let each = 4000u64;
    let key = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).to_be_bytes();
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let index = &index;
            s.spawn(move || {
                for i in 0..each {
                    let n = i * THREADS + t;
                    assert_eq!(index.insert(&key(n), n + 1).unwrap(), None);
                    assert_eq!(index.get(&key(n)).unwrap(), Some(n + 1));
                    let earlier = n / 2 / THREADS * THREADS + t;
                    assert_eq!(index.get(&key(earlier)).unwrap(), Some(earlier + 1));
                }
            });
        }
    });
    for n in 0..each * THREADS {
        assert_eq!(index.get(&key(n)).unwrap(), Some(n + 1), "key {n}");
    }
    sound(&pool, &index, each * THREADS);
}

/// More threads than have numbers of their own, all there at once, each with a few keys of its own and some that all
/// change: nothing is lost, and nothing is given back under somebody's eyes.
pub fn bears_many_threads<C: Case>() {
    let pool = memory_pool_of(64 << 20);
    let index = C::create(&pool).unwrap();
    let threads = terrace_pmem::thread_slot::EXCLUSIVE as u64 + 26;
    let (own, shared) = (
        |t: u64, i: u64| format!("own/{t:03}/{i}").into_bytes(),
        |i: u64| format!("shared/{i}").into_bytes(),
    );
    let all_there = std::sync::Barrier::new(threads as usize);
    std::thread::scope(|s| {
        for t in 0..threads {
            let (index, all_there) = (&index, &all_there);
            s.spawn(move || {
                let mut rng = Rng::new(t);
                all_there.wait();
                for i in 0..40u64 {
                    let (mine, ours) = (own(t, i % 8), shared(rng.below(6)));
                    assert_eq!(
                        index.insert(&mine, i + 1).unwrap(),
                        i.checked_sub(8).map(|before| before + 1)
                    );
                    index.insert(&ours, ((rng.below(6) + 1) << 32) | (t + 1)).unwrap();
                    if let Some(word) = index.get(&shared(rng.below(6))).unwrap() {
                        assert!(
                            (1..=threads).contains(&(word & 0xffff_ffff)) && word >> 32 <= 6,
                            "{word:#x}"
                        );
                    }
                    if rng.one_in(3) {
                        index.remove(&ours).unwrap();
                    }
                    assert_eq!(index.get(&mine).unwrap(), Some(i + 1));
                }
            });
        }
    });
    for i in 0..6 {
        index.remove(&shared(i)).unwrap();
    }
    for (t, i) in (0..threads).flat_map(|t| (0..8).map(move |i| (t, i))) {
        assert_eq!(index.get(&own(t, i)).unwrap(), Some(33 + i));
    }
    sound(&pool, &index, threads * 8);
}

/// Keys that are never removed are found by every get and every scan, in order, while others come and go
/// around them and the tree grows and shrinks.
pub fn shows_what_is_always_there<C: Case>() {
    let pool = memory_pool_of(256 << 20);
    let index = C::create(&pool).unwrap();
    let fixed = 200u64;
    let name = |i: u64, other: u64| format!("some/long/common/prefix/{i:06}/{other:03}").into_bytes();
    for i in 0..fixed {
        index.insert(&name(i, 500), i + 1).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..2u64)
            .map(|t| {
                let index = &index;
                s.spawn(move || {
                    let mut rng = Rng::new(t);
                    for round in 0..6u64 {
                        for _ in 0..1500 {
                            let (i, other) = (rng.below(fixed), 2 * rng.below(400) + t);
                            if other == 500 {
                                continue;
                            }
                            if round % 2 == 0 {
                                index.insert(&name(i, other), 7).unwrap();
                            } else {
                                index.remove(&name(i, other)).unwrap();
                            }
                        }
                        if round % 2 == 1 {
                            for i in 0..fixed {
                                for other in (t..800).step_by(2).filter(|o| *o != 500) {
                                    index.remove(&name(i, other)).unwrap();
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        for t in 0..2u64 {
            let (index, stop) = (&index, &stop);
            s.spawn(move || {
                let mut rng = Rng::new(100 + t);
                let mut batch = ScanBatch::new();
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..50 {
                        let i = rng.below(fixed);
                        assert_eq!(index.get(&name(i, 500)).unwrap(), Some(i + 1));
                    }
                    let some: Vec<u64> = (0..40).map(|_| rng.below(fixed)).collect();
                    let names: Vec<Vec<u8>> = some.iter().map(|i| name(*i, 500)).collect();
                    let (names, mut words) = (names.iter().map(|k| &k[..]).collect::<Vec<_>>(), Vec::new());
                    index.get_many(&names, &mut words).unwrap();
                    assert!(words.into_iter().eq(some.into_iter().map(|i| Some(i + 1))));
                    match index.ordered() {
                        Some(index) => scan_sees_all(index, &mut batch, rng.one_in(2), fixed, &name),
                        None => unordered_scan_sees_all(index, 1 + rng.below(900) as usize, fixed, &name),
                    }
                }
            });
        }
        writers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    sound(&pool, &index, fixed);
}

fn scan_sees_all(
    index: &dyn OrderedIndex,
    batch: &mut ScanBatch,
    reverse: bool,
    fixed: u64,
    name: &impl Fn(u64, u64) -> Vec<u8>,
) {
    batch.clear();
    index.scan(Bound::Unbounded, reverse, usize::MAX, batch).unwrap();
    let mut keys: Vec<_> = batch.iter().map(|(k, _)| k.to_vec()).collect();
    if reverse {
        keys.reverse();
    }
    assert!(keys.is_sorted_by(|a, b| a < b), "in order, each key once");
    let mut seen = keys.iter();
    for i in 0..fixed {
        let wanted = name(i, 500);
        assert!(seen.any(|k| *k == wanted), "key {i} is missed by a scan (reverse: {reverse})");
    }
}

fn unordered_scan_sees_all(
    index: &impl Subject,
    step: usize,
    fixed: u64,
    name: &impl Fn(u64, u64) -> Vec<u8>,
) {
    let seen: BTreeSet<_> = index.contents(step).into_iter().map(|(key, _)| key).collect();
    for i in 0..fixed {
        assert!(seen.contains(&name(i, 500)), "key {i} is missed by a scan in steps of {step}");
    }
}

fn add_by_exchange(index: &impl Subject, key: &[u8]) {
    let mut now = index.get(key).unwrap();
    while let Err(other) = index.compare_exchange(key, now, Some(now.unwrap_or(0) + 1)).unwrap() {
        now = other;
    }
}

/// Every thread adds to the same words, by exchanges and by updates; one that is lost or doubled shows in the sum. Some
/// words are removed at times and counted elsewhere.
pub fn counts_by_compare_exchange<C: Case>() {
    let pool = memory_pool_of(64 << 20);
    let index = C::create(&pool).unwrap();
    let (keys, each) = (40u64, 3000u64);
    let key = |i: u64| format!("counter/{i:04}").into_bytes();
    let taken: u64 = std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let index = &index;
                s.spawn(move || {
                    let mut rng = Rng::new(t);
                    let mut taken = 0;
                    for _ in 0..each {
                        let key = key(rng.below(keys));
                        if rng.one_in(2) {
                            index
                                .update(&key, &mut |now| Some(NonZeroU64::new(now.unwrap_or(0) + 1)))
                                .unwrap();
                        } else {
                            add_by_exchange(index, &key);
                        }
                        if rng.one_in(8) {
                            taken += index.remove(&key).unwrap().unwrap_or(0);
                        }
                    }
                    taken
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    let left: Vec<_> = (0..keys).filter_map(|i| index.get(&key(i)).unwrap()).collect();
    assert_eq!(left.iter().sum::<u64>() + taken, THREADS * each);
    sound(&pool, &index, left.len() as u64);
}

/// Marking goes on beside writers and never errs; what was there throughout is marked once.
pub fn marks_beside_writers<C: Case>() {
    let pool = memory_pool_of(64 << 20);
    let index = C::create(&pool).unwrap();
    let key = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_be_bytes();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            for round in 0..4u64 {
                for i in 0..1500 {
                    if round % 2 == 0 {
                        index.insert(&key(i), i + 1).unwrap();
                    } else {
                        index.remove(&key(i)).unwrap();
                    }
                }
            }
        });
        while !writer.is_finished() {
            let mut marks = pool.marks();
            index.mark(&mut marks).unwrap();
        }
    });
    sound(&pool, &index, 0);
}

/// Readers go on while an index and its pool are closed, and afterwards. They store nothing by then: the next session
/// finds the pool as it was closed.
pub fn closes_beside_readers<C: Case>() {
    let key = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).to_be_bytes();
    let mut world = World::new(40, WorldOptions::default());
    for round in 0..4u64 {
        let pool = if round == 0 { create_in(&world) } else { open_in(&world) }.unwrap();
        let index = if round == 0 { C::create(&pool) } else { C::open(&pool) }.unwrap();
        for i in 0..300 {
            index.insert(&key(i), i + 1 + round).unwrap();
        }
        let (closed, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|s| {
            for t in 0..2 {
                let (index, closed, reads) = (&index, &closed, &reads);
                s.spawn(move || {
                    let mut rng = Rng::new(round << 8 | t);
                    // Once more after the close.
                    let mut left = 2;
                    while left > 0 {
                        left -= i32::from(closed.load(Ordering::Acquire));
                        let n = rng.below(300);
                        assert_eq!(index.get(&key(n)).unwrap(), Some(n + 1 + round));
                        assert_eq!(index.contents(7).len(), 300);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while reads.load(Ordering::Relaxed) < 3 * (round % 2) {
                std::thread::yield_now();
            }
            index.close().unwrap();
            pool.close().unwrap();
            closed.store(true, Ordering::Release);
        });
        drop((index, pool));
        world = if round == 2 { world.capture().power_cut(Survival::Nothing) } else { world.kill() };
        let next = open_in(&world.kill()).unwrap();
        assert_eq!(next.opened(), Opened::Clean);
        assert_eq!(next.altered(), [], "round {round}");
        assert_eq!(C::open(&next).unwrap().check().unwrap(), Vec::<String>::new());
    }
}
