//! SPTrees as the suites see them, and what is particular to them.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::exec::{Executor, Inline, Job};
use terrace_base::{Error, ErrorKind, Result};
use terrace_index::{OrderedIndex, ScanBatch, SpOptions, SpTree};
use terrace_pmem::{Granularity, Kind, Media, MemMedia, POff, Pool, PoolOptions};
use terrace_sim::{World, WorldOptions};

use crate::bed::{
    assert_no_leaks, create_in, memory_pool, memory_pool_of, open_in, options, survivors, world_options,
};
use crate::conformance::Constructor;

/// Runs every job on the spot.
#[derive(Debug)]
pub struct AtOnce;

impl Executor for AtOnce {
    fn spawn(&self, job: Job) {
        job();
    }

    fn help(&self) -> bool {
        false
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        first();
        second();
    }
}

/// An SPTree with leaves of `N` entries and buffers of `BUFFER`, none if 0. Its background work is done on the
/// spot, or not at all if it `LAGS`.
pub struct Sp<const N: usize, const LAGS: bool, const BUFFER: usize>;

impl<const N: usize, const LAGS: bool, const BUFFER: usize> Sp<N, LAGS, BUFFER> {
    fn options() -> SpOptions {
        let executor: Arc<dyn Executor> = if LAGS { Arc::new(Inline::default()) } else { Arc::new(AtOnce) };
        SpOptions {
            leaf_entries: N,
            buffered: BUFFER > 0,
            buffer_entries: BUFFER.max(1),
            log_bytes: 400,
            logs: 2,
            executor: Some(executor),
            ..SpOptions::default()
        }
    }
}

impl<const N: usize, const LAGS: bool, const BUFFER: usize> Constructor for Sp<N, LAGS, BUFFER> {
    type Index = SpTree;
    fn create(pool: &Pool) -> Result<SpTree> {
        SpTree::create(pool, "index", &Self::options())
    }
    fn open(pool: &Pool) -> Result<SpTree> {
        SpTree::open(pool, "index", &Self::options())
    }
}

type Lagging<const N: usize, const BUFFER: usize> = Sp<N, true, BUFFER>;

fn key(i: u64) -> Vec<u8> {
    format!("k{i:05}").into_bytes()
}

fn long_key(i: u64) -> Vec<u8> {
    format!("a/common/prefix/{i:05}").into_bytes()
}

fn all(index: &SpTree) -> Vec<(Vec<u8>, u64)> {
    try_all(index).unwrap()
}

fn try_all(index: &SpTree) -> Result<Vec<(Vec<u8>, u64)>> {
    let mut batch = ScanBatch::new();
    index.scan(Bound::Unbounded, false, usize::MAX, &mut batch)?;
    Ok(batch.iter().map(|(k, w)| (k.to_vec(), w)).collect())
}

fn check(index: &SpTree) {
    assert_eq!(index.check().unwrap(), Vec::<String>::new());
}

/// Runs `change` on a tree of `keys`, crashing at each event. Keys that are the same before and after must be
/// there in every survivor, nothing may be there that is in neither; further writes must find the tree whole.
fn crash_in_each_event_of<C: Constructor<Index = SpTree>>(keys: &[Vec<u8>], change: impl Fn(&SpTree)) {
    let world = World::new(7, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let tree = C::create(&pool).unwrap();
    keys.iter().enumerate().for_each(|(i, k)| tree.insert(k, i as u64 + 1).map(drop).unwrap());
    let before = all(&tree);
    let images = Arc::new(Mutex::new(Vec::new()));
    let sink = images.clone();
    world.on_event(Box::new(move |_, world| sink.lock().push(world.capture())));
    change(&tree);
    world.ignore_events();
    let after = all(&tree);
    let untouched: Vec<_> = before.iter().filter(|e| after.contains(e)).collect();
    let images = std::mem::take(&mut *images.lock());
    assert!(!images.is_empty());
    for image in &images {
        for survivor in survivors(image, 5) {
            let pool = open_in(&survivor).unwrap();
            let tree = C::open(&pool).unwrap();
            let found = all(&tree);
            untouched.iter().for_each(|e| assert!(found.contains(e), "{e:?} is lost"));
            assert!(found.iter().all(|e| before.contains(e) || after.contains(e)), "{found:?}");
            check(&tree);
            (20..50).for_each(|i| tree.insert(&key(i), i + 1).map(drop).unwrap());
            (0..40).for_each(|i| tree.remove(&key(i)).map(drop).unwrap());
            check(&tree);
            assert_eq!(tree.len(), all(&tree).len() as u64);
            assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
        }
    }
}

/// Prototype: a split was not atomic, and a leaf still on its way to the top layer was lost.
#[test]
fn a_split_is_there_or_not_wherever_it_is_cut_off() {
    let keys: Vec<_> = (0..4).map(key).collect();
    crash_in_each_event_of::<Sp<4, false, 0>>(&keys, |tree| {
        tree.insert(&key(9), 10).unwrap();
    });
    crash_in_each_event_of::<Lagging<4, 0>>(&keys, |tree| {
        tree.insert(b"k00001+", 10).unwrap();
    });
    let keys: Vec<_> = (0..4).map(long_key).collect();
    crash_in_each_event_of::<Sp<4, false, 0>>(&keys, |tree| {
        tree.insert(&long_key(2), 10).unwrap();
    });
}

#[test]
fn a_merge_is_there_or_not_wherever_it_is_cut_off() {
    for name in [key, long_key] {
        let keys: Vec<_> = (0..12).map(name).collect();
        let thin_out = |tree: &SpTree| {
            (2..11).for_each(|i| {
                tree.remove(&name(i)).unwrap();
            })
        };
        crash_in_each_event_of::<Sp<4, false, 0>>(&keys, thin_out);
        crash_in_each_event_of::<Lagging<4, 0>>(&keys, thin_out);
    }
}

#[test]
fn a_flush_of_a_buffer_is_there_or_not_wherever_it_is_cut_off() {
    for name in [key, long_key] {
        let keys: Vec<_> = (0..7).map(name).collect();
        crash_in_each_event_of::<Sp<6, false, 3>>(&keys, |tree| {
            tree.remove(&name(1)).unwrap();
            tree.insert(&name(3), 40).unwrap();
            (8..11).for_each(|i| {
                tree.insert(&name(i), i + 1).unwrap();
            });
        });
    }
}

/// Long enough that logs are begun, flushed and freed several times; then everything goes to the leaves.
#[test]
fn no_log_is_cut_before_its_entries_are_in_leaves() {
    let keys: Vec<_> = (0..10).map(key).collect();
    crash_in_each_event_of::<Sp<8, false, 6>>(&keys, |tree| {
        (0..40).for_each(|i| {
            tree.insert(&key(i % 13), 100).unwrap();
        });
        tree.close().unwrap();
    });
}

/// What is in logs belongs to the tree whatever options it is opened with.
#[test]
fn a_tree_with_entries_in_logs_may_be_opened_without_buffers() {
    let world = World::new(3, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let tree = Sp::<16, false, 14>::create(&pool).unwrap();
    (0..10).for_each(|i| {
        tree.insert(&key(i), i + 1).unwrap();
    });
    tree.remove(&key(4)).unwrap();
    let want = all(&tree);
    for survivor in survivors(&world.capture(), 3) {
        let pool = open_in(&survivor).unwrap();
        let tree = Sp::<16, false, 0>::open(&pool).unwrap();
        assert_eq!(all(&tree), want);
        check(&tree);
        assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
    }
}

/// A reader must not return what a power cut can take back: at each event of a writer another thread reads,
/// then the power goes.
#[test]
fn what_a_reader_has_seen_is_durable() {
    fn look<C: Constructor<Index = SpTree>>(start: u64, writes: u64) {
        let world = World::new(start, WorldOptions::default());
        let pool = create_in(&world).unwrap();
        let tree = Arc::new(C::create(&pool).unwrap());
        (0..start).for_each(|i| {
            tree.insert(&key(i * 2), 1).unwrap();
        });
        let reader = tree.clone();
        // What is being done: it may be done after the cut, also where it was not seen before.
        let doing = Arc::new(Mutex::new((0, None)));
        let done = doing.clone();
        let looks = Arc::new(Mutex::new(0));
        let counted = looks.clone();
        world.on_event(Box::new(move |_, world| {
            let words: Vec<_> = (0..30).map(|i| reader.get(&key(i)).unwrap()).collect();
            let scanned = all(&reader);
            *counted.lock() += 1;
            for survivor in survivors(&world.capture(), 2) {
                let pool = open_in(&survivor).unwrap();
                let tree = C::open(&pool).unwrap();
                let (changing, new) = *done.lock();
                for (i, word) in (0..).zip(&words) {
                    let found = tree.get(&key(i)).unwrap();
                    let is_done = i == changing && found == new;
                    assert!(is_done || found == *word, "key {i} was {word:?} before the cut, then {found:?}");
                }
                let found = all(&tree);
                let lost = scanned.iter().filter(|e| e.0 != key(changing) && !found.contains(e));
                assert_eq!(lost.count(), 0);
            }
        }));
        for i in 0..writes {
            // Inserts, updates and removals among what is there.
            *doing.lock() = (i, (i % 3 != 2).then_some(5));
            if i % 3 == 2 {
                tree.remove(&key(i)).unwrap();
            } else {
                tree.insert(&key(i), 5).unwrap();
            }
        }
        world.ignore_events();
        assert!(*looks.lock() > writes);
    }
    look::<Sp<4, false, 0>>(3, 8);
    look::<Lagging<4, 0>>(12, 14);
    look::<Sp<5, false, 3>>(9, 14);
}

/// Opening reads headers; each leaf is found when it is asked for, and can be written to and split, before
/// any of the rebuilding is done.
#[test]
fn a_tree_serves_before_its_upper_layers_are_rebuilt() {
    let pool = memory_pool();
    let tree = Sp::<8, false, 0>::create(&pool).unwrap();
    (0..500).for_each(|i| {
        tree.insert(&long_key(i * 2), i + 1).unwrap();
    });
    drop(tree);
    let tree = Lagging::<8, 0>::open(&pool).unwrap();
    assert!(!tree.is_rebuilt());
    assert_eq!(tree.get(&long_key(600)).unwrap(), Some(301));
    assert_eq!(tree.get(&long_key(601)).unwrap(), None);
    let mut batch = ScanBatch::new();
    tree.scan(Bound::Excluded(&long_key(400)), true, 30, &mut batch).unwrap();
    assert_eq!(batch.iter().map(|(_, w)| w).collect::<Vec<_>>(), (171..=200).rev().collect::<Vec<_>>());
    for i in 300..400 {
        assert_eq!(tree.insert(&long_key(i * 2 + 1), 9).unwrap(), None);
        assert_eq!(tree.remove(&long_key(i * 2)).unwrap(), Some(i + 1));
    }
    assert!(!tree.is_rebuilt());
    tree.rebuild().unwrap();
    assert!(tree.is_rebuilt());
    check(&tree);
    assert_eq!(tree.len(), 500);
    assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
}

#[test]
fn threads_use_a_tree_while_other_threads_rebuild_it() {
    for buffered in [false, true] {
        let pool = memory_pool_of(256 << 20);
        let options = SpOptions { buffered, leaf_entries: 16, log_bytes: 20_000, ..SpOptions::default() };
        let tree = SpTree::create(&pool, "index", &options).unwrap();
        (0..20_000).for_each(|i| {
            tree.insert(&key(i * 3), i + 1).unwrap();
        });
        // Also for what it has unlinked and not given back yet.
        drop(tree);
        for _ in 0..3 {
            drop(tree_used_by_threads(&pool, &options));
        }
        let tree = SpTree::open(&pool, "index", &options).unwrap();
        assert_eq!(tree.len(), 20_000);
        check(&tree);
        assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
    }
}

fn tree_used_by_threads(pool: &Pool, options: &SpOptions) -> SpTree {
    let tree = SpTree::open(pool, "index", options).unwrap();
    std::thread::scope(|s| {
        for t in 0..3u64 {
            let tree = &tree;
            s.spawn(move || {
                for i in (0..3000u64).map(|i| (i * 7919 + t) % 20_000) {
                    assert_eq!(tree.get(&key(i * 3)).unwrap(), Some(i + 1));
                    let mine = key(i * 3 + 1 + t % 2);
                    if t < 2 {
                        tree.insert(&mine, 7).unwrap();
                        assert_eq!(tree.remove(&mine).unwrap(), Some(7));
                    }
                }
            });
        }
    });
    tree
}

/// The bytes of `pool` at `at`, as a word that a bit may be flipped in.
fn flip(pool: &Pool, at: u64, bit: u32) {
    let word = pool.atomic(POff::new(at & !7));
    word.fetch_xor(1 << ((at & 7) * 8 + u64::from(bit)), std::sync::atomic::Ordering::Relaxed);
}

/// Whether `tree` says of each key what `want` says, or that something is damaged.
fn right_or_damaged(tree: Result<SpTree>, want: &[(Vec<u8>, u64)], at: u64) {
    let damaged = |e: &Error| e.kind() == ErrorKind::Corruption;
    let tree = match tree {
        Ok(tree) => tree,
        Err(e) => return assert!(damaged(&e), "{e}"),
    };
    for (key, word) in want {
        match tree.get(key) {
            Ok(found) => assert_eq!(found, Some(*word), "byte {at} flipped"),
            Err(e) => assert!(damaged(&e), "{e}"),
        }
    }
    for reverse in [false, true] {
        let mut batch = ScanBatch::new();
        match tree.scan(Bound::Unbounded, reverse, usize::MAX, &mut batch) {
            Ok(()) => {
                let mut found: Vec<_> = batch.iter().map(|(k, w)| (k.to_vec(), w)).collect();
                if reverse {
                    found.reverse();
                }
                assert_eq!(found, want, "byte {at} flipped");
            }
            Err(e) => assert!(damaged(&e), "{e}"),
        }
    }
    // Whatever else is asked is answered or refused, not more.
    let _ = (tree.check(), tree.len(), tree.pm_bytes());
}

/// Every bit of leaves, of key records and of the header, flipped while the tree is closed, and then, for
/// leaves, while it is open.
#[test]
fn a_flipped_bit_is_noticed_or_does_no_harm() {
    for name in [key as fn(u64) -> Vec<u8>, long_key] {
        let pool = memory_pool();
        let tree = Sp::<16, false, 0>::create(&pool).unwrap();
        (0..40).for_each(|i| {
            tree.insert(&name(i), i + 1).unwrap();
        });
        // The last change of each leaf is an update: one bit does not take it back.
        (0..40).for_each(|i| {
            tree.insert(&name(i), i + 100).unwrap();
        });
        let want = all(&tree);
        drop(tree);
        let word = |at: u64| pool.atomic(POff::new(at)).load(std::sync::atomic::Ordering::Relaxed);
        let header = pool.root("index").unwrap().unwrap();
        let leaf = word(word(header + 8) + 192);
        let record = word(leaf) & ((1 << 48) - 1);
        let places = (leaf..leaf + 1280).chain(header..header + 64).chain(
            // Slot 0 of the leaf holds a short key, or leads to a record of 8 bytes and 21 of key.
            if name(0).len() > 8 { record..record + 29 } else { 0..0 },
        );
        for at in places {
            let bit = (at * 5 % 8) as u32;
            for bit in [bit, (bit + 3) % 8] {
                flip(&pool, at, bit);
                right_or_damaged(Lagging::<16, 0>::open(&pool), &want, at);
                flip(&pool, at, bit);
            }
        }
        let tree = Lagging::<16, 0>::open(&pool).unwrap();
        assert_eq!(all(&tree), want);
        for at in leaf..leaf + 1280 {
            let bit = (at * 3 % 8) as u32;
            flip(&pool, at, bit);
            for (key, word) in &want {
                match tree.get(key) {
                    Ok(found) => assert_eq!(found, Some(*word)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption),
                }
            }
            match try_all(&tree) {
                Ok(found) => assert_eq!(found, want),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption),
            }
            flip(&pool, at, bit);
        }
    }
}

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

/// After a kill nothing is replayed before a key is asked for, and then what its log says of it alone counts.
#[test]
fn a_buffered_tree_serves_before_its_logs_are_gone_through() {
    for name in [key as fn(u64) -> Vec<u8>, long_key] {
        let pool = memory_pool();
        let mut options =
            SpOptions { buffered: true, leaf_entries: 16, log_bytes: 30_000, ..SpOptions::default() };
        options.executor = Some(Arc::new(AtOnce));
        let tree = SpTree::create(&pool, "index", &options).unwrap();
        (0..2000).for_each(|i| tree.insert(&name(i * 7 % 2000), i + 1).map(drop).unwrap());
        (0..2000).step_by(3).for_each(|i| tree.insert(&name(i), i + 9000).map(drop).unwrap());
        (0..2000).step_by(5).for_each(|i| tree.remove(&name(i)).map(drop).unwrap());
        let want = all(&tree);
        // Opened by three sessions that bring back some and write some, and end as if killed.
        options.executor = Some(Arc::new(Inline::default()));
        drop(tree);
        let mut want: std::collections::BTreeMap<_, _> = want.into_iter().collect();
        for session in 0..4u64 {
            let tree = SpTree::open(&pool, "index", &options).unwrap();
            assert!(!tree.is_rebuilt());
            for i in (0..2000).step_by(11) {
                assert_eq!(tree.get(&name(i)).unwrap(), want.get(&name(i)).copied(), "{i}");
            }
            for i in (session..2000).step_by(13) {
                let word = (i % 4 != 0).then_some(i + 100 * session + 1);
                let before = match word {
                    Some(word) => tree.insert(&name(i), word).unwrap(),
                    None => tree.remove(&name(i)).unwrap(),
                };
                let old = match word {
                    Some(word) => want.insert(name(i), word),
                    None => want.remove(&name(i)),
                };
                assert_eq!(before, old, "{i}");
            }
            if session == 2 {
                assert_eq!(all(&tree), want.clone().into_iter().collect::<Vec<_>>());
            }
        }
        let tree = SpTree::open(&pool, "index", &options).unwrap();
        assert_eq!(tree.len(), want.len() as u64);
        check(&tree);
        assert_eq!(all(&tree), want.into_iter().collect::<Vec<_>>());
        assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
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

/// What has come back from a log comes back once, also if what follows it in the log cannot.
#[test]
fn what_came_back_before_an_error_stays_what_it_is() {
    let pool = memory_pool();
    let options = SpOptions { buffered: true, leaf_entries: 16, logs: 1, ..SpOptions::default() };
    let options = SpOptions { executor: Some(Arc::new(Inline::default())), ..options };
    let tree = SpTree::create(&pool, "index", &options).unwrap();
    (0..40).for_each(|i| tree.insert(&key(i), i + 1).map(drop).unwrap());
    (0..40).step_by(9).for_each(|i| tree.insert(&key(i), i + 100).map(drop).unwrap());
    let mut want = all(&tree);
    drop(tree);

    let word = |at: u64| pool.atomic(POff::new(at)).load(std::sync::atomic::Ordering::Relaxed);
    let second = word(word(pool.root("index").unwrap().unwrap() + 8) + 192);
    let tree = SpTree::open(&pool, "index", &options).unwrap();
    flip(&pool, second, 3);
    assert_eq!(try_all(&tree).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(tree.insert(&key(0), 1000).unwrap(), Some(100));
    assert_eq!(try_all(&tree).unwrap_err().kind(), ErrorKind::Corruption);
    flip(&pool, second, 3);
    want[0].1 = 1000;
    assert_eq!(all(&tree), want);
    assert_eq!(tree.len(), 40);
    check(&tree);
    tree.close().unwrap();
    assert_eq!(all(&tree), want);
}

/// Whether the pool was closed by a tree with buffers or without: not a byte changes, whatever readers ask for.
#[test]
fn reading_only_stores_nothing() {
    for (buffered, name) in [(false, key as fn(u64) -> Vec<u8>), (true, key), (true, long_key)] {
        let media = Arc::new(MemMedia::new(1 << 20, 8 << 20, Granularity::CacheLine).unwrap());
        // SAFETY: the medium lives on, and nobody uses the pool meanwhile.
        let bytes = || unsafe { std::slice::from_raw_parts(media.base(), 1 << 20) }.to_vec();
        let (path, read_only) = (Path::new("memory"), PoolOptions { read_only: true, ..options() });
        let sp = SpOptions { buffered, leaf_entries: 8, log_bytes: 2000, logs: 2, ..SpOptions::default() };
        let sp = SpOptions { executor: Some(Arc::new(AtOnce)), ..sp };
        let pool = Pool::create_on(media.clone(), path, &options()).unwrap();
        let tree = SpTree::create(&pool, "index", &sp).unwrap();
        (0..300).for_each(|i| tree.insert(&name(i * 7 % 300), i + 1).map(drop).unwrap());
        let want = all(&tree);
        tree.close().unwrap();
        drop(tree);
        pool.close().unwrap();
        drop(pool);

        let before = bytes();
        for buffered in [false, true] {
            let pool = Pool::open_on(media.clone(), path, &read_only).unwrap();
            let tree = SpTree::open(&pool, "index", &SpOptions { buffered, ..sp.clone() }).unwrap();
            assert_eq!(all(&tree), want);
            assert_eq!(tree.get(&name(8)).unwrap(), want.iter().find(|e| e.0 == name(8)).map(|e| e.1));
            check(&tree);
            let mut marks = pool.marks();
            tree.mark(&mut marks).unwrap();
            assert!(pool.check(&marks).is_empty());
            drop(tree);
            pool.close().unwrap();
            drop(pool);
            let now = bytes();
            let changed = before.iter().zip(&now).position(|(a, b)| a != b);
            assert_eq!(changed, None);
        }
    }
}

/// What the design promises: with many keys DRAM is at most 12% of the leaves (33% with buffers), and with few not
/// much more; with buffers a third of the blocks are written.
#[test]
fn dram_and_blocks_written_are_what_they_should_be() {
    let n = 200_000u64;
    let load = |buffered| {
        let media = MemMedia::new(64 << 20, 512 << 20, Granularity::CacheLine).unwrap();
        let options =
            PoolOptions { max_size: 512 << 20, extent_bytes: 65_536, count_xplines: true, ..options() };
        let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap();
        let sp = SpOptions { buffered, executor: Some(Arc::new(AtOnce)), ..SpOptions::default() };
        let tree = SpTree::create(&pool, "index", &sp).unwrap();
        for i in 0..n {
            // Below 2^24, so that the upper bytes are as full as with a hundred times as many keys.
            let key = (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 6).to_be_bytes();
            tree.insert(&key, i + 1).unwrap();
        }
        let leaves = tree.leaves().unwrap();
        let share = tree.dram_bytes() as f64 / (leaves * 1280) as f64;
        (share, pool.stats().xpline_writes)
    };
    let (plain, buffered) = (load(false), load(true));
    assert!(plain.0 < 0.14, "{plain:?}");
    assert!(buffered.0 < 0.36, "{buffered:?}");
    assert!(buffered.1 * 3 <= plain.1, "{plain:?} {buffered:?}");
}

#[test]
fn what_is_not_possible_is_refused() {
    let pool = memory_pool();
    let wrong = [
        SpOptions { leaf_entries: 3, ..SpOptions::default() },
        SpOptions { leaf_entries: 65, ..SpOptions::default() },
        SpOptions { filter_bits: 3, ..SpOptions::default() },
        SpOptions { buffer_entries: 15, ..SpOptions::default() },
    ];
    for options in &wrong {
        assert_eq!(SpTree::create(&pool, "index", options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let tree = SpTree::create(&pool, "index", &SpOptions { filter_bits: 4, ..SpOptions::default() }).unwrap();
    assert_eq!(tree.insert(b"key", 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(tree.insert(&[0; 65_536], 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    tree.insert(b"", u64::MAX).unwrap();
    tree.insert(&[0; 8], 1).unwrap();
    assert_eq!(all(&tree), [(vec![], u64::MAX), (vec![0; 8], 1)]);
    drop(tree);
    let missing = SpTree::open(&pool, "other", &SpOptions::default()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Corruption);
}
