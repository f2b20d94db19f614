//! Flipped bits, and readers that store nothing.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrace_base::{Error, ErrorKind, Result};
use terrace_index::{OrderedIndex, PointIndex, ScanBatch, SpOptions, SpTree};
use terrace_pmem::{Granularity, Media, MemMedia, POff, Pool, PoolOptions};

use super::{AtOnce, Lagging, Sp, all, check, flip, key, long_key, try_all};
use crate::bed::{memory_pool, options};
use crate::conformance::Case;

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
