//! Room that is kept back: it is there for those who claim it, and for nobody else.

use terrace_base::ErrorKind;
use terrace_pmem::{Claim, Extent, Granularity, Kind, MemMedia, Pool, PoolOptions};

use std::sync::Arc;

use crate::support::{name, options};

const EXTENT: u64 = 4096;

/// A pool that may grow to `bytes`.
fn pool(bytes: u64) -> Pool {
    let media = MemMedia::new(64 << 10, bytes, Granularity::CacheLine).unwrap();
    let options = PoolOptions { size: 64 << 10, max_size: bytes, extent_bytes: EXTENT, ..options() };
    Pool::create_on(Arc::new(media), name(), &options).unwrap()
}

/// Takes extents of `bytes` until that is refused.
fn take_all(pool: &Pool, bytes: u64) -> Vec<Extent> {
    let mut all = Vec::new();
    loop {
        match pool.reserve_extent(Kind(1), bytes) {
            Ok(extent) => all.push(extent),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::PoolFull);
                return all;
            }
        }
    }
}

#[test]
fn the_last_extents_are_for_who_claims_them() {
    let all = take_all(&pool(1 << 20), EXTENT).len();
    let pool = pool(1 << 20);
    pool.keep_back(2 * EXTENT, 3 * EXTENT);
    let taken = take_all(&pool, EXTENT);
    assert_eq!(taken.len(), all - 5);
    let some = pool.claiming(Claim::Some, || take_all(&pool, EXTENT));
    assert_eq!(some.len(), 2);
    let slots = std::iter::from_fn(|| pool.reserve(Kind(2), 100).ok()).count();
    assert_eq!(slots, 0, "a slab is an extent, too");
    let last = pool.claiming(Claim::All, || {
        // On another thread nothing is claimed, and what is claimed here is not lessened on the way.
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(take_all(&pool, EXTENT).is_empty())).join().unwrap()
        });
        pool.claiming(Claim::Some, || take_all(&pool, EXTENT))
    });
    assert_eq!((last.len(), Claim::current()), (3, Claim::None));
    // What comes back is kept first.
    last.into_iter().chain(some).for_each(|extent| pool.cancel(extent));
    assert!(take_all(&pool, EXTENT).is_empty());
    pool.keep_back(0, 0);
    assert_eq!(take_all(&pool, EXTENT).len(), 5);
}

/// Room in pieces is as good for what is kept as room in a row.
#[test]
fn scattered_extents_are_kept_too() {
    let pool = pool(1 << 20);
    let mut taken = take_all(&pool, EXTENT);
    let scattered: Vec<Extent> = taken.iter().step_by(2).copied().collect();
    taken.retain(|extent| !scattered.contains(extent));
    let free = scattered.len();
    scattered.into_iter().for_each(|extent| pool.cancel(extent));
    pool.keep_back(4 * EXTENT, 6 * EXTENT);
    assert_eq!(take_all(&pool, EXTENT).len(), free - 10);
    assert!(pool.claiming(Claim::All, || take_all(&pool, 2 * EXTENT)).is_empty(), "no two are in a row");
    assert_eq!(pool.claiming(Claim::All, || take_all(&pool, EXTENT)).len(), 10);
}

/// A pool that can grow does so rather than give out what is kept.
#[test]
fn a_pool_grows_before_what_is_kept_is_touched() {
    let pool = pool(1 << 20);
    pool.keep_back(0, 8 * EXTENT);
    while pool.size() < 1 << 20 {
        pool.reserve_extent(Kind(1), EXTENT).unwrap();
        assert!(pool.free_bytes() >= 8 * EXTENT);
    }
    take_all(&pool, EXTENT);
    assert_eq!(pool.free_bytes(), 8 * EXTENT);
}
