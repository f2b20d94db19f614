//! Blocks that lie where they were not written: a FAST&FAIR tree answers rightly or says what is wrong.

use std::ops::Bound;

use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch, kinds};
use terrace_pmem::Pool;

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
    filled_in::<N>(&memory_pool(), keys, add)
}

fn filled_in<const N: usize>(pool: &Pool, keys: u64, add: u64) -> Image {
    let tree = FastFair::<N>::create(pool, "tree").unwrap();
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
    Image::of(pool, pairs, &kinds)
}

fn word_of(pairs: &Pairs, key: &[u8]) -> Option<u64> {
    pairs.binary_search_by(|(there, _)| there.as_slice().cmp(key)).ok().map(|at| pairs[at].1)
}

/// Reads everything, and what is not there.
fn read<const N: usize>(tree: &FastFair<N>, pairs: &Pairs, keys: u64, judge: &mut Judge<'_>) {
    // Twice: the second time by shortcuts.
    for _ in 0..2 {
        for i in (0..keys * 2).step_by(3) {
            let key = key(i);
            judge.right(tree.get(&key).map(|found| found == word_of(pairs, &key)), "get");
        }
    }
    judge.scans(tree, pairs);
}

/// Asks a damaged tree everything; whether anything was said. What was not is right.
fn judge<const N: usize>(image: &[u8], pairs: &Pairs, keys: u64, case: &str) -> bool {
    let Ok(pool) = opened(image) else { return true };
    let Ok(tree) = FastFair::<N>::open(&pool, "tree") else { return true };
    let mut judge = Judge { case, is_told: false };
    read(&tree, pairs, keys, &mut judge);
    assert!(
        !judge.is_told || tree.check().is_ok_and(|found| !found.is_empty()) || tree.check().is_err(),
        "{case}"
    );
    for i in (0..keys * 2).step_by(5) {
        let key = key(i);
        let wanted = word_of(pairs, &key);
        judge.right(tree.insert(&key, 7).map(|before| before == wanted), "insert");
        judge.right(tree.remove(&key).map(|before| before == Some(7) || before == wanted), "remove");
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

/// A reader compares no fences on its way where no crash can have left anything: what the nodes themselves say is all
/// it has.
fn displace_while_open<const N: usize>(keys: u64) {
    let pool = memory_pool();
    let (image, other) = (filled_in::<N>(&pool, keys, 1), filled::<N>(keys, 1000));
    displacing::displace(N as u64 + 1, 1500, &image, &other, |damaged, case| {
        pool.media().copy_flush(0, damaged);
        let mut judge = Judge { case, is_told: false };
        match FastFair::<N>::open(&pool, "tree") {
            Ok(tree) => read(&tree, &image.pairs, keys, &mut judge),
            Err(_) => judge.is_told = true,
        }
        pool.media().copy_flush(0, &image.bytes);
        judge.is_told
    });
}

#[test]
fn what_gets_to_another_place_while_the_tree_is_open_is_told_by_small_nodes() {
    displace_while_open::<4>(300);
}

#[test]
fn what_gets_to_another_place_while_the_tree_is_open_is_told_by_large_nodes() {
    displace_while_open::<28>(900);
}
