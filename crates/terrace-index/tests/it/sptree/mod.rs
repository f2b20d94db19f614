//! SPTrees as the suites see them, and what is particular to them.

mod crash;
mod damage;
mod displaced;
mod logs;
mod moves;
mod rebuild;
mod room;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrace_base::exec::{Executor, Inline, Job, Lane};
use terrace_base::{ErrorKind, Result};
use terrace_index::{OrderedIndex, PointIndex, ScanBatch, SpOptions, SpTree};
use terrace_pmem::{Granularity, MemMedia, POff, Pool, PoolOptions};

use crate::bed::{assert_no_leaks, memory_pool, memory_pool_of, options};
use crate::conformance::Case;

/// Runs every job on the spot.
#[derive(Debug)]
pub struct AtOnce;

impl Executor for AtOnce {
    fn spawn_in(&self, _lane: Lane, job: Job) {
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

impl<const N: usize, const LAGS: bool, const BUFFER: usize> Case for Sp<N, LAGS, BUFFER> {
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

/// The bytes of `pool` at `at`, as a word that a bit may be flipped in.
fn flip(pool: &Pool, at: u64, bit: u32) {
    let word = pool.atomic(POff::new(at & !7));
    word.fetch_xor(1 << ((at & 7) * 8 + u64::from(bit)), std::sync::atomic::Ordering::Relaxed);
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
    let waiting = Arc::new(Inline::default());
    let lagging = SpOptions { executor: Some(waiting.clone()), ..Sp::<8, true, 0>::options() };
    let tree = SpTree::open(&pool, "index", &lagging).unwrap();
    assert!(waiting.pending() > 0);
    assert_eq!(tree.get(&long_key(600)).unwrap(), Some(301));
    assert_eq!(tree.get(&long_key(601)).unwrap(), None);
    let mut batch = ScanBatch::new();
    tree.scan(Bound::Excluded(&long_key(400)), true, 30, &mut batch).unwrap();
    assert_eq!(batch.iter().map(|(_, w)| w).collect::<Vec<_>>(), (171..=200).rev().collect::<Vec<_>>());
    for i in 300..400 {
        assert_eq!(tree.insert(&long_key(i * 2 + 1), 9).unwrap(), None);
        assert_eq!(tree.remove(&long_key(i * 2)).unwrap(), Some(i + 1));
    }
    assert!(waiting.pending() > 0);
    tree.rebuild().unwrap();
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
