//! Blocks that lie where they were not written: a FAST&FAIR tree answers rightly or says what is wrong.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_base::{ErrorKind, Result};
use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch, kinds};
use terrace_pmem::{Granularity, Media, MemMedia, Pool};

use crate::bed::{memory_pool, options};
use crate::displaced::blocks;

type Pairs = Vec<(Vec<u8>, u64)>;

/// Everything on the pool's medium.
fn image(pool: &Pool) -> Vec<u8> {
    let media = pool.media();
    // SAFETY: the medium's mapping is so long and does not move; nobody stores to it meanwhile.
    unsafe { std::slice::from_raw_parts(media.base(), media.len() as usize) }.to_vec()
}

/// The pool that `image` is.
fn opened(image: &[u8]) -> Result<Pool> {
    let media = MemMedia::new(image.len() as u64, 64 << 20, Granularity::CacheLine).unwrap();
    media.copy_flush(0, image);
    Pool::open_on(Arc::new(media), Path::new("memory"), &options())
}

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
fn filled<const N: usize>(keys: u64, add: u64) -> (Vec<u8>, Pairs, Vec<Vec<u64>>) {
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
    let blocks = [64, 256, 4096].map(|bytes| blocks(&pool, &kinds, bytes)).into();
    (image(&pool), pairs, blocks)
}

/// What became of the questions asked.
struct Judge<'c> {
    case: &'c str,
    is_told: bool,
}

impl Judge<'_> {
    fn right(&mut self, found: Result<bool>, what: &str) {
        match found {
            Ok(right) => assert!(right, "{what}: {}", self.case),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{}", self.case);
                self.is_told = true;
            }
        }
    }
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
    for reverse in [false, true] {
        let mut batch = ScanBatch::new();
        let scanned = tree.scan(Bound::Unbounded, reverse, usize::MAX, &mut batch);
        let mut found: Pairs = batch.iter().map(|(key, word)| (key.to_vec(), word)).collect();
        if reverse {
            found.reverse();
        }
        judge.right(scanned.map(|()| found == *pairs), "scan");
    }
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
    let (image, pairs, all) = filled::<N>(keys, 1);
    let (other, _, others) = filled::<N>(keys, 1000);
    assert!(!judge::<N>(&image, &pairs, keys, "sound"));
    let mut rng = Rng::new(N as u64);
    let mut told = [0; 3];
    for case in 0..450 {
        let i = rng.below(3) as usize;
        let (bytes, blocks) = ([64, 256, 4096][i], &all[i]);
        let mut any = || blocks[rng.below(blocks.len() as u64) as usize] as usize;
        let (from, to) = (any(), any());
        let mut damaged = image.clone();
        let what = match case % 3 {
            0 => {
                damaged.copy_within(from..from + bytes, to);
                "put at"
            }
            1 => {
                (0..bytes).for_each(|i| damaged.swap(from + i, to + i));
                "swapped with"
            }
            _ if others[i].contains(&(to as u64)) => {
                damaged[to..to + bytes].copy_from_slice(&other[to..to + bytes]);
                "or rather another pool's at"
            }
            _ => continue,
        };
        let case = format!("case {case}: {bytes} bytes at {from:#x} {what} {to:#x}");
        told[i] += u64::from(judge::<N>(&damaged, &pairs, keys, &case));
    }
    assert!(told.iter().all(|count| *count > 15), "{told:?}");
}

#[test]
fn what_lies_in_another_place_or_pool_is_told_by_small_nodes() {
    displace::<4>(300);
}

#[test]
fn what_lies_in_another_place_or_pool_is_told_by_large_nodes() {
    displace::<28>(900);
}
