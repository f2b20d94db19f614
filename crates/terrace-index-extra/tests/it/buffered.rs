//! What is particular to write buffers: flushes beside writers, full pools, creations that fail, merges out of place.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::ErrorKind;
use terrace_base::rng::Rng;
use terrace_index::{FastFair, HashIndex, PointIndex, SkipIndex, kinds};
use terrace_index_extra::Cceh;
use terrace_index_extra::buffered::{BufferOptions, BufferedIndex, Merge};
use terrace_pmem::{Granularity, MemMedia, POff, Pool};
use terrace_sim::{Survival, World, WorldOptions};

use crate::bed::{assert_marked, create_in, memory_pool, memory_pool_of, open_in, options};
use crate::conformance::{Case, Subject};
use crate::subjects::{Buffered, Replaced, tight};

type Tree = FastFair<4>;
type Table = Cceh<4, 2>;

fn key(i: u64) -> [u8; 8] {
    (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8).to_be_bytes()
}

/// Flushes beside writers never let go of a part of the log that a buffer still needs.
fn flushes_beside_writers<C: Case>(flush: impl Fn(&C::Index) + Sync) {
    for round in 0..100 {
        let pool = memory_pool();
        let index = C::create(&pool).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let writers: Vec<_> = (0..3u64)
                .map(|t| {
                    let index = &index;
                    s.spawn(move || {
                        let mut rng = Rng::new(round * 3 + t);
                        for n in 0..5 + rng.below(20) {
                            index.insert(&key(n * 3 + t), n + 1).unwrap();
                        }
                    })
                })
                .collect();
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    flush(&index);
                }
            });
            writers.into_iter().for_each(|w| w.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(index.check().unwrap(), Vec::<String>::new(), "round {round}");
    }
}

#[test]
fn flushes_beside_writers_let_go_of_nothing_that_is_needed() {
    flushes_beside_writers::<Replaced<Tree>>(|index| index.flush().unwrap());
    flushes_beside_writers::<Replaced<SkipIndex>>(|index| index.flush().unwrap());
    flushes_beside_writers::<Replaced<Table>>(|index| index.flush().unwrap());
}

/// In a full pool nothing is lost and nothing comes back, whatever merges fail; and it opens.
fn a_full_pool<C: Case>(name: &str) {
    let media = Arc::new(MemMedia::new(1 << 20, 2 << 20, Granularity::CacheLine).unwrap());
    let options = terrace_pmem::PoolOptions { max_size: 2 << 20, ..options() };
    let mut pool = Pool::create_on(media.clone(), Path::new("memory"), &options).unwrap();
    let mut index = C::create(&pool).unwrap();
    let mut model = BTreeMap::new();
    let mut rng = Rng::new(7);
    let mut refused = 0;
    let mut n = 0;
    while refused < 160 {
        let i = if rng.one_in(4) { rng.below(n + 1) } else { n };
        let removes = rng.one_in(if refused > 0 { 2 } else { 8 });
        let done = if removes { index.remove(&key(i)) } else { index.insert(&key(i), n + 1) };
        match done {
            Ok(before) => {
                assert_eq!(before, model.get(&i).copied(), "{name}: key {i}");
                if removes {
                    model.remove(&i)
                } else {
                    model.insert(i, n + 1)
                };
                n += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::PoolFull, "{name}: {e}");
                assert_eq!(
                    index.get(&key(i)).unwrap(),
                    model.get(&i).copied(),
                    "{name}: key {i} was refused"
                );
                refused += 1;
            }
        }
        if refused % 80 == 40 {
            same(&index, &model, n, name);
            // Dropped, not closed.
            drop((index, pool));
            pool = Pool::open_on(media.clone(), Path::new("memory"), &options).unwrap();
            index = C::open(&pool).unwrap_or_else(|e| panic!("{name}: {e}"));
            refused += 1;
            same(&index, &model, n, name);
        }
    }
    assert!(n > 2000, "{name}: {n} changes in 2 MiB");
}

/// The index has what the model has, and is sound.
fn same<I: Subject>(index: &I, model: &BTreeMap<u64, u64>, n: u64, name: &str) {
    for i in 0..n {
        assert_eq!(index.get(&key(i)).unwrap(), model.get(&i).copied(), "{name}: key {i}");
    }
    assert_eq!(index.len(), model.len() as u64, "{name}");
    assert_eq!(index.contents(100).len(), model.len(), "{name}");
    assert_eq!(index.check().unwrap(), Vec::<String>::new(), "{name}");
}

#[test]
fn a_full_pool_loses_nothing_and_opens() {
    a_full_pool::<Replaced<Tree>>("FAST&FAIR out of place");
    a_full_pool::<Buffered<Tree>>("FAST&FAIR in place");
    a_full_pool::<Replaced<SkipIndex>>("skiplist out of place");
    a_full_pool::<Buffered<SkipIndex>>("skiplist in place");
    a_full_pool::<Replaced<Table>>("CCEH out of place");
    a_full_pool::<Buffered<Table>>("CCEH in place");
}

/// Wherever a creation finds the pool full, it takes nothing with it but what the next one uses.
#[test]
fn a_creation_that_fails_leaves_nothing() {
    let mut refused = 0;
    for filled in 0..40u64 {
        let pool = memory_pool_of(1 << 20);
        let filler = terrace_pmem::Kind(200);
        let mut taken = Vec::new();
        while let Ok(slot) = pool.reserve(filler, 4000) {
            pool.activate(&slot);
            taken.push(slot.offset);
        }
        pool.drain();
        taken.drain(taken.len() - filled as usize..).for_each(|at| pool.free(at, filler).unwrap());
        let create = || BufferedIndex::<Tree>::create(&pool, "index", &tight(Merge::OutOfPlace, true));
        let Err(e) = create() else { continue };
        assert_eq!(e.kind(), ErrorKind::PoolFull);
        refused += 1;
        taken.drain(..).for_each(|at| pool.free(at, filler).unwrap());
        let index = create().unwrap();
        assert_eq!(index.insert(b"key", 1).unwrap(), None);
        index.close().unwrap();
        let mut marks = pool.marks();
        index.mark(&mut marks).unwrap();
        assert_eq!(pool.check(&marks), [], "{filled} extents were free");
    }
    assert!(refused > 3, "{refused} creations were refused");
}

/// Keys that come and go take no more memory than keys that stay.
#[test]
fn removed_keys_of_a_skiplist_come_back_where_they_were() {
    let pool = memory_pool();
    let index = BufferedIndex::<SkipIndex>::create(&pool, "index", &tight(Merge::OutOfPlace, true)).unwrap();
    let round = || {
        for i in 0..500u64 {
            index.insert(&key(i), i + 1).unwrap();
        }
        for i in 0..500u64 {
            index.remove(&key(i)).unwrap();
        }
        index.flush().unwrap();
        index.base().pm_bytes()
    };
    let first = round();
    for _ in 0..400 {
        assert_eq!(round(), first);
    }
    assert_marked(&pool, |marks| index.mark(marks));
}

/// Segments that are merged into out of place are filled further than windows alone allow.
#[test]
fn segments_merged_out_of_place_are_fuller() {
    let pool = memory_pool();
    let options = BufferOptions { merge: Merge::OutOfPlace, ..BufferOptions::default() };
    let index = BufferedIndex::<Cceh>::create(&pool, "index", &options).unwrap();
    let mut peak = 0.0f64;
    for i in 0..30_000u64 {
        assert_eq!(index.insert(&i.to_le_bytes(), i + 1).unwrap(), None);
        if i % 1000 == 0 {
            peak = peak.max(index.base().figures().unwrap().load_factor());
        }
    }
    assert!(peak > 0.7, "{peak}");
    for i in 0..30_000u64 {
        assert_eq!(index.get(&i.to_le_bytes()).unwrap(), Some(i + 1));
    }
    assert_eq!(index.check().unwrap(), Vec::<String>::new());
}

/// Any bit of the header, the set and what is used of the logs may be flipped: the right answers or an error. What was
/// appended last is as good as torn off if it is damaged.
fn flipped_bits<C: Case>(name: &str) {
    const KEYS: u64 = 40;
    let world = World::new(3, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let index = C::create(&pool).unwrap();
    // What the last merge has left is not the base's alone.
    (0..KEYS).for_each(|i| drop(index.insert(&key(i), i + 1).map(drop)));
    (0..KEYS).step_by(3).for_each(|i| drop(index.insert(&key(i), i + 100).map(drop)));
    (0..KEYS).step_by(7).for_each(|i| drop(index.remove(&key(i)).map(drop)));
    let wanted: Vec<_> = (0..KEYS).map(|i| index.get(&key(i)).unwrap()).collect();
    index.insert(b"the last one", 1).unwrap();
    let whole = world.capture();
    let slots = pool.slots(kinds::SPOT_ON);
    let logs = pool.extents(kinds::SPOT_ON_LOG).into_iter().map(|extent| (extent.offset, 600));
    let mut rng = Rng::new(5);
    let (mut told, mut harmless) = (0, 0);
    for at in slots.chain(logs).flat_map(|(at, bytes)| (at..at + bytes).step_by(7)) {
        let world = whole.power_cut(Survival::Everything);
        let pool = open_in(&world).unwrap();
        let bit = (at & 7) * 8 + rng.below(8);
        pool.atomic(POff::new(at & !7)).fetch_xor(1 << bit, Ordering::Relaxed);
        let damaged = |e: terrace_base::Error| {
            let told = [ErrorKind::Corruption, ErrorKind::InvalidFormat].contains(&e.kind());
            assert!(told, "{name}: byte {at:#x}: {e}");
        };
        match C::open(&pool) {
            Err(e) => {
                damaged(e);
                told += 1;
            }
            Ok(index) => {
                for (i, wanted) in (0..).zip(&wanted) {
                    assert_eq!(index.get(&key(i)).unwrap(), *wanted, "{name}: key {i}, byte {at:#x} flipped");
                }
                assert_eq!(index.check().unwrap(), Vec::<String>::new(), "{name}: byte {at:#x}");
                harmless += 1;
            }
        }
    }
    assert!(told > 30 && harmless > 30, "{name}: {told} told, {harmless} harmless");
}

#[test]
fn a_flipped_bit_of_the_log_is_an_error_or_harmless() {
    flipped_bits::<Replaced<Tree>>("FAST&FAIR");
    flipped_bits::<Buffered<SkipIndex>>("skiplist");
    flipped_bits::<Replaced<Table>>("CCEH");
}
