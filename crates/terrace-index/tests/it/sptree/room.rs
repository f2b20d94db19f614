//! Full pools.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::ErrorKind;
use terrace_index::{PointIndex, SpOptions, SpTree, kinds};
use terrace_pmem::{Kind, Pool, PoolOptions};
use terrace_sim::{World, WorldOptions};

use super::{AtOnce, Lagging, Sp, all, check, key, long_key};
use crate::bed::{assert_no_leaks, memory_pool_of, survivors, world_options};
use crate::conformance::Case;

/// Fills the tree until the pool refuses; how many keys it has.
fn fill(tree: &SpTree, name: fn(u64) -> Vec<u8>) -> u64 {
    let mut n = 0;
    loop {
        match tree.insert(&name(n), n + 1) {
            Ok(before) => {
                assert_eq!(before, None, "key {n} was not there");
                n += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::PoolFull);
                assert_eq!(tree.get(&name(n)).unwrap(), None, "key {n} was refused");
                return n;
            }
        }
    }
}

/// A full pool is an error, loses nothing, and is left again by removing.
#[test]
fn a_full_pool_refuses_and_loses_nothing() {
    for (buffered, reopened, name) in [
        (false, true, long_key as fn(u64) -> Vec<u8>),
        (true, false, long_key),
        (true, true, long_key),
        (true, false, key),
        (true, true, key),
    ] {
        let pool = memory_pool_of(4 << 20);
        let options = SpOptions { buffered, leaf_entries: 8, log_bytes: 4000, ..SpOptions::default() };
        let options = SpOptions { executor: Some(Arc::new(AtOnce)), logs: 4, ..options };
        let mut tree = SpTree::create(&pool, "index", &options).unwrap();
        let n = fill(&tree, name);
        assert!(n > 300, "{n} keys in 4 MiB");
        for i in 0..n {
            assert_eq!(tree.get(&name(i)).unwrap(), Some(i + 1));
        }
        check(&tree);
        if reopened {
            drop(tree);
            tree = SpTree::open(&pool, "index", &options).unwrap();
        }
        assert_eq!(tree.len(), n);
        for i in 0..n {
            assert_eq!(tree.remove(&name(i)).unwrap(), Some(i + 1));
        }
        check(&tree);
        assert_eq!(tree.len(), 0);
        // There is room again.
        let again = fill(&tree, name);
        assert!(again > n / 2, "{again} keys after {n}");
        for i in 0..again {
            assert_eq!(tree.remove(&name(i)).unwrap(), Some(i + 1));
        }
        check(&tree);
        assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
    }
}

/// In a full pool, cut off wherever it may be, a tree opens, has what was there, and can be removed from.
#[test]
fn a_full_pool_is_left_wherever_it_is_cut_off() {
    for name in [key as fn(u64) -> Vec<u8>, long_key] {
        let world = World::new(11, WorldOptions::default());
        let media = world.media();
        let small = |world: &World| PoolOptions { max_size: 512 << 10, ..world_options(world) };
        let pool = Pool::create_on(media, Path::new("pm"), &small(&world)).unwrap();
        let tree = Sp::<8, false, 5>::create(&pool).unwrap();
        // Until the first refusal within, which makes the tree do without logs, and then a few more.
        let images = Arc::new(Mutex::new(std::collections::VecDeque::new()));
        let acknowledged = Arc::new(Mutex::new(0u64));
        let (sink, known) = (images.clone(), acknowledged.clone());
        let events = Mutex::new(0u64);
        world.on_event(Box::new(move |_, world| {
            let mut events = events.lock();
            *events += 1;
            // Each of the last events, and some of those before.
            if *events > 9000 || events.is_multiple_of(997) {
                let mut images = sink.lock();
                images.push_back((*known.lock(), world.capture()));
            }
        }));
        let mut n = 0;
        while tree.insert(&name(n), n + 1).is_ok() {
            n += 1;
            *acknowledged.lock() = n;
        }
        world.ignore_events();
        let images = std::mem::take(&mut *images.lock());
        let step = images.len().div_ceil(25).max(1);
        for (known, image) in images.iter().step_by(step) {
            for survivor in survivors(image, 1) {
                let pool = Pool::open_on(survivor.media(), Path::new("pm"), &small(&survivor)).unwrap();
                let tree = Sp::<8, false, 5>::open(&pool).unwrap();
                for i in 0..*known {
                    assert_eq!(tree.get(&name(i)).unwrap(), Some(i + 1), "{i} of {known}");
                }
                let there = tree.len();
                assert!((*known..=known + 1).contains(&there));
                for i in 0..there {
                    assert_eq!(tree.remove(&name(i)).unwrap(), Some(i + 1));
                }
                (0..50).for_each(|i| assert_eq!(tree.insert(&name(i), 7).unwrap(), None));
                check(&tree);
                assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
            }
        }
    }
}

/// A write that has been made is told of as it was made, also if behind it there is no room for the next logs.
#[test]
fn a_write_is_made_once_where_logs_cannot_be_renewed() {
    let pool = memory_pool_of(2 << 20);
    let options = SpOptions { buffered: true, log_bytes: 1000, logs: 4, ..SpOptions::default() };
    let options = SpOptions { executor: Some(Arc::new(AtOnce)), ..options };
    let tree = SpTree::create(&pool, "index", &options).unwrap();
    (0..20).for_each(|i| tree.insert(&key(i), 1).map(drop).unwrap());
    let others: Vec<_> = std::iter::from_fn(|| pool.reserve_extent(Kind(60), 1).ok()).collect();
    for word in 1..20 {
        for i in 0..20 {
            assert_eq!(tree.compare_exchange(&key(i), Some(word), Some(word + 1)).unwrap(), Ok(()));
        }
    }
    others.into_iter().for_each(|extent| pool.cancel(extent));
    assert_eq!(tree.len(), 20);
    check(&tree);
    assert!(all(&tree).iter().all(|(_, word)| *word == 20));
}

/// What logs say is read, too, where buffers have become so small that it would have to go to leaves, and there is no
/// room.
#[test]
fn what_cannot_come_back_for_want_of_room_is_read_from_the_logs() {
    let pool = memory_pool_of(2 << 20);
    let options =
        SpOptions { buffered: true, logs: 2, executor: Some(Arc::new(AtOnce)), ..SpOptions::default() };
    let tree = SpTree::create(&pool, "index", &options).unwrap();
    let is_there = |i: u64| !i.is_multiple_of(5);
    // Last some that are new to every leaf: nothing else needs room, and what is removed makes none.
    let is_late = |i: &u64| i % 8 == 1;
    (0..2000).filter(|i| !is_late(i)).for_each(|i| tree.insert(&long_key(i), i + 1).map(drop).unwrap());
    (0..2000).step_by(5).for_each(|i| tree.remove(&long_key(i)).map(drop).unwrap());
    (0..2000)
        .filter(is_late)
        .filter(|i| is_there(*i))
        .for_each(|i| tree.insert(&long_key(i), i + 1).map(drop).unwrap());
    drop(tree);
    let mut others = Vec::new();
    // The slabs of the tree's own kinds have slots left, of whatever size.
    for bytes in (0..=pool.extent_bytes()).rev().step_by(16) {
        for kind in [Kind(60), kinds::SPTREE_KEY, kinds::SPTREE_LEAF] {
            others.extend(std::iter::from_fn(|| pool.reserve(kind, bytes).ok()));
        }
    }
    let tree = Lagging::<64, 1>::open(&pool).unwrap();
    let read = |tree: &SpTree| {
        for i in 0..2000 {
            assert_eq!(tree.get(&long_key(i)).unwrap(), is_there(i).then_some(i + 1), "{i}");
        }
    };
    read(&tree);
    let refused = tree.rebuild().map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PoolFull, "else there was room after all");
    others.into_iter().for_each(|slot| pool.cancel(slot));
    read(&tree);
    for i in 0..2000 {
        assert_eq!(tree.remove(&long_key(i)).unwrap(), is_there(i).then_some(i + 1));
    }
    assert_eq!(tree.len(), 0);
    check(&tree);
}
