//! Leaves and key records that move to other slots.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_index::{PointIndex, SpTree, kinds};
use terrace_pmem::{Granularity, Kind, MemMedia, Pool, PoolOptions};

use super::{Lagging, all, key, long_key};
use crate::bed::{assert_no_leaks, options};
use crate::conformance::Case;

/// A pool whose slabs have slots of a leaf's size.
fn pool() -> Pool {
    let media = MemMedia::new(1 << 20, 64 << 20, Granularity::CacheLine).unwrap();
    let options = PoolOptions { extent_bytes: 16 << 10, ..options() };
    Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap()
}

/// Moves everything of a kind once; how many slots, and how many of them were the tree's.
fn move_all(pool: &Pool, tree: &SpTree, kind: Kind) -> (usize, usize) {
    let extents: BTreeSet<u64> = pool.slots(kind).map(|(at, _)| at / pool.extent_bytes()).collect();
    let (mut slots, mut moved) = (0, 0);
    for extent in extents {
        let clearing = pool.clear_slab(extent * pool.extent_bytes()).unwrap();
        for at in clearing.slots() {
            // SAFETY: active in a slab that is held.
            moved += usize::from(unsafe { tree.move_slot(kind, at) }.unwrap());
            slots += 1;
        }
    }
    assert!(tree.drain());
    (slots, moved)
}

fn moves<C: Case<Index = SpTree>>(key: fn(u64) -> Vec<u8>) {
    let pool = pool();
    let tree = C::create(&pool).unwrap();
    let mut rng = Rng::new(1);
    for round in 0..6u64 {
        for _ in 0..200 {
            let key = key(rng.below(500));
            if rng.below(4) < 3 - round / 2 {
                tree.insert(&key, 1 + rng.below(1 << 40)).unwrap();
            } else {
                tree.remove(&key).unwrap();
            }
        }
        let before = all(&tree);
        // Among them such as have been merged away and wait for their readers, which nobody moves.
        let (slots, moved) = move_all(&pool, &tree, kinds::SPTREE_LEAF);
        assert!(0 < moved && moved < slots);
        let leaves = move_all(&pool, &tree, kinds::SPTREE_LEAF);
        assert_eq!(leaves.1 + 1, leaves.0, "all but the first move");
        assert_eq!((tree.check().unwrap(), all(&tree)), (Vec::new(), before.clone()));
        let records = move_all(&pool, &tree, kinds::SPTREE_KEY);
        assert_eq!(records.0, records.1);
        assert_eq!((tree.check().unwrap(), all(&tree)), (Vec::new(), before.clone()));
        for (key, word) in &before {
            assert_eq!(tree.get(key).unwrap(), Some(*word));
        }
        assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
    }
    let before = all(&tree);
    tree.close().unwrap();
    drop(tree);
    assert_eq!(all(&C::open(&pool).unwrap()), before);
}

#[test]
fn whatever_has_moved_is_found() {
    moves::<Lagging<6, 0>>(key);
    moves::<Lagging<6, 0>>(long_key);
    moves::<Lagging<64, 0>>(long_key);
}

#[test]
fn buffers_stay_with_leaves_that_move() {
    moves::<Lagging<6, 3>>(key);
}
