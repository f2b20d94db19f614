//! Blocks that lie where they were not written: a tree answers rightly or says what is wrong.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_base::{ErrorKind, Result};
use terrace_index::{OrderedIndex, PointIndex, ScanBatch, SpTree, kinds};
use terrace_pmem::{Granularity, Media, MemMedia, Pool};

use super::{Lagging, Sp, key, long_key};
use crate::bed::{memory_pool, options};
use crate::conformance::Case;
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

/// A tree of short and long keys, some updated and some removed: its pool as a killed process leaves it.
fn filled(keys: u64, add: u64) -> (Vec<u8>, Pairs, Vec<Vec<u64>>) {
    let pool = memory_pool();
    let tree = Sp::<16, false, 0>::create(&pool).unwrap();
    let name = |i: u64| if i.is_multiple_of(2) { key(i) } else { long_key(i) };
    for (i, word) in (0..keys).map(|i| (i, i + add)).chain((0..keys).step_by(3).map(|i| (i, i + 2 * add))) {
        tree.insert(&name(i), word).unwrap();
    }
    for i in (0..keys).step_by(7) {
        tree.remove(&name(i)).unwrap();
    }
    let pairs = super::all(&tree);
    drop(tree);
    let kinds = [
        kinds::SPTREE_LEAF,
        kinds::SPTREE_KEY,
        kinds::FASTFAIR_NODE,
        kinds::FASTFAIR_RECORD,
        kinds::FASTFAIR_KEY,
    ];
    let blocks = [64, 256, 4096].map(|bytes| blocks(&pool, &kinds, bytes)).into();
    (image(&pool), pairs, blocks)
}

/// Whether anything was said; what was not is right.
fn is_told(tree: Result<SpTree>, pairs: &Pairs, case: &str) -> bool {
    let Ok(tree) = tree else { return true };
    let mut told = false;
    let mut right = |found: Result<bool>, what: &str| match found {
        Ok(right) => assert!(right, "{what}: {case}"),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corruption, "{case}");
            told = true;
        }
    };
    for (key, word) in pairs.iter().step_by(3) {
        right(tree.get(key).map(|found| found == Some(*word)), "get");
        let exchanged = tree.compare_exchange(key, Some(u64::MAX >> 1), None);
        right(exchanged.map(|outcome| outcome == Err(Some(*word))), "compare_exchange");
    }
    for reverse in [false, true] {
        let mut batch = ScanBatch::new();
        let scanned = tree.scan(Bound::Unbounded, reverse, usize::MAX, &mut batch);
        let mut found: Pairs = batch.iter().map(|(key, word)| (key.to_vec(), word)).collect();
        if reverse {
            found.reverse();
        }
        right(scanned.map(|()| found == *pairs), "scan");
    }
    told
}

fn judge(image: &[u8], pairs: &Pairs, case: &str) -> bool {
    // Before and after the layers in DRAM are rebuilt.
    let lagging = opened(image).and_then(|pool| Lagging::<16, 0>::open(&pool));
    let whole = opened(image).and_then(|pool| Sp::<16, false, 0>::open(&pool));
    is_told(lagging, pairs, &format!("lagging, {case}")) | is_told(whole, pairs, case)
}

/// What lies at one place is put at another, or changes places with it, or is of another pool.
#[test]
fn what_lies_in_another_place_or_pool_is_told() {
    let (image, pairs, all) = filled(900, 1);
    let (other, _, others) = filled(900, 1000);
    assert!(!judge(&image, &pairs, "sound"));
    let mut rng = Rng::new(5);
    let mut told = [0; 3];
    for case in 0..600 {
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
        told[i] += u64::from(judge(&damaged, &pairs, &case));
    }
    assert!(told.iter().all(|count| *count > 15), "{told:?}");
}
