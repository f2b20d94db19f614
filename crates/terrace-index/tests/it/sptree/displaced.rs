//! Blocks that lie where they were not written: a tree answers rightly or says what is wrong.

use terrace_base::Result;
use terrace_index::{PointIndex, SpTree, kinds};

use super::{Lagging, Sp, key, long_key};
use crate::bed::memory_pool;
use crate::conformance::Case;
use crate::displacing::{Image, Judge, Pairs, displace, opened};

/// A tree of short and long keys, some updated and some removed: its pool as a killed process leaves it.
fn filled(keys: u64, add: u64) -> Image {
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
    Image::of(&pool, pairs, &kinds)
}

/// Whether anything was said; what was not is right.
fn is_told(tree: Result<SpTree>, pairs: &Pairs, case: &str) -> bool {
    let Ok(tree) = tree else { return true };
    let mut judge = Judge { case, is_told: false };
    for (key, word) in pairs.iter().step_by(3) {
        judge.right(tree.get(key).map(|found| found == Some(*word)), "get");
        let exchanged = tree.compare_exchange(key, Some(u64::MAX >> 1), None);
        judge.right(exchanged.map(|outcome| outcome == Err(Some(*word))), "compare_exchange");
    }
    judge.scans(&tree, pairs);
    judge.is_told
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
    let (image, other) = (filled(900, 1), filled(900, 1000));
    displace(5, 600, &image, &other, |damaged, case| judge(damaged, &image.pairs, case));
}
