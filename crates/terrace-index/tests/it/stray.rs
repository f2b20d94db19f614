//! Blocks that lie where they were not written: a FAST&FAIR tree answers rightly or says what is wrong.

use std::ops::Bound;

use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch, kinds};

use crate::bed::memory_pool;
use crate::displacing::{self, Image, Judge, Pairs, opened};

/// Keys of lengths that lie in records of several sizes; `i` of three is never there.
fn key(i: u64) -> Vec<u8> {
    match i % 4 {
        0 => format!("k{i:05}").into_bytes(),
        1 => format!("a/common/prefix/{i:05}").into_bytes(),
        2 => format!("a/common/prefix/{i:05}/and/a/longer/tail/than/a/line/of/the/cache/has").into_bytes(),
        _ => i.to_be_bytes().to_vec(),
    }
}

/// A tree of some keys, some updated and some removed: its pool as a killed process leaves it.
fn filled<const N: usize>(keys: u64, add: u64) -> Image {
    let pool = memory_pool();
    let tree = FastFair::<N>::create(&pool, "tree").unwrap();
    for (i, word) in (0..keys).map(|i| (i, i + add)).chain((0..keys).step_by(3).map(|i| (i, i + 2 * add))) {
        tree.insert(&key(i * 2), word).unwrap();
    }
    for i in (0..keys).step_by(7) {
        tree.remove(&key(i * 2)).unwrap();
    }
    tree.drain();
    let mut batch = ScanBatch::new();
    tree.scan(Bound::Unbounded, false, usize::MAX, &mut batch).unwrap();
    let pairs = batch.iter().map(|(key, word)| (key.to_vec(), word)).collect();
    drop(tree);
    let kinds = [kinds::FASTFAIR_NODE, kinds::FASTFAIR_RECORD, kinds::FASTFAIR_KEY];
    Image::of(&pool, pairs, &kinds)
}

/// Asks a damaged tree everything; whether anything was said. What was not is right.
fn judge<const N: usize>(image: &[u8], pairs: &Pairs, keys: u64, case: &str) -> bool {
    let Ok(pool) = opened(image) else { return true };
    let Ok(tree) = FastFair::<N>::open(&pool, "tree") else { return true };
    let mut judge = Judge { case, is_told: false };
    let wanted = |key: &[u8]| {
        pairs.binary_search_by(|(there, _)| there.as_slice().cmp(key)).ok().map(|at| pairs[at].1)
    };
    // Twice: the second time by shortcuts.
    for _ in 0..2 {
        for i in (0..keys * 2).step_by(3) {
            let key = key(i);
            judge.right(tree.get(&key).map(|found| found == wanted(&key)), "get");
        }
    }
    judge.scans(&tree, pairs);
    assert!(
        !judge.is_told || tree.check().is_ok_and(|found| !found.is_empty()) || tree.check().is_err(),
        "{case}"
    );
    for i in (0..keys * 2).step_by(5) {
        let key = key(i);
        judge.right(tree.insert(&key, 7).map(|before| before == wanted(&key)), "insert");
        judge.right(tree.remove(&key).map(|before| before == Some(7) || before == wanted(&key)), "remove");
    }
    judge.is_told
}

fn displace<const N: usize>(keys: u64) {
    let (image, other) = (filled::<N>(keys, 1), filled::<N>(keys, 1000));
    displacing::displace(N as u64, 450, &image, &other, |damaged, case| {
        judge::<N>(damaged, &image.pairs, keys, case)
    });
}

#[test]
fn what_lies_in_another_place_or_pool_is_told_by_small_nodes() {
    displace::<4>(300);
}

#[test]
fn what_lies_in_another_place_or_pool_is_told_by_large_nodes() {
    displace::<28>(900);
}
