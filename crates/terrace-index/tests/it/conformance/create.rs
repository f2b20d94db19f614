//! Creations that fail: an error, and the pool as it was.

use std::path::Path;
use std::sync::Arc;

use terrace_base::{ErrorKind, Result};
use terrace_pmem::{Granularity, Kind, MemMedia, Pool, PoolOptions};

use crate::bed::options;

/// What an index is called, and how one is made under the root `index`, by several allocations.
pub type Creation = (&'static str, fn(&Pool) -> Result<()>);

/// A pool of exactly `bytes`, unless that is too few for one.
fn pool_of(bytes: u64) -> Option<Pool> {
    let media = MemMedia::new(bytes, bytes, Granularity::CacheLine).unwrap();
    let options = PoolOptions { size: bytes, max_size: bytes, ..options() };
    Pool::create_on(Arc::new(media), Path::new("memory"), &options).ok()
}

/// Extents that can be had.
fn room(pool: &Pool) -> usize {
    let all: Vec<_> = std::iter::from_fn(|| pool.reserve_extent(Kind(60), 1).ok()).collect();
    let count = all.len();
    all.into_iter().for_each(|extent| pool.cancel(extent));
    count
}

/// Whether nothing has anything of the pool, whose extents were `room` at first.
fn assert_empty(pool: &Pool, before: usize, of: &str) {
    assert_eq!(pool.check(&pool.marks()), [], "{of}");
    assert_eq!(room(pool), before, "{of}: extents that can be had");
}

/// In pools of every size, from the smallest on, until there is room for the index.
pub fn finding_no_room_leaves_nothing(creations: &[Creation]) {
    for &(what, create) in creations {
        let (mut refused, mut size) = (0, 0);
        loop {
            size += options().extent_bytes;
            let Some(pool) = pool_of(size) else { continue };
            let before = room(&pool);
            match create(&pool) {
                Ok(()) => break,
                Err(e) => assert_eq!(e.kind(), ErrorKind::PoolFull, "{what} in {size} bytes"),
            }
            refused += 1;
            assert_eq!(pool.roots().unwrap(), []);
            assert_empty(&pool, before, &format!("{what} in {size} bytes"));
        }
        assert!(refused > 0, "{what} was never refused");
    }
}

/// Where no root is left, or, of two, only one.
pub fn finding_no_root_leaves_nothing(creations: &[Creation]) {
    for &(what, create) in creations {
        for left in 0..2 {
            let pool = pool_of(4 << 20).unwrap();
            let before = room(&pool);
            let mut others: Vec<_> =
                (0..).map(|i| format!("other-{i}")).take_while(|o| pool.set_root(o, 1).is_ok()).collect();
            others.drain(..left).for_each(|other| pool.clear_root(&other).unwrap());
            if create(&pool).is_ok() {
                assert!(left == 1 && !what.starts_with("sptree"), "{what} with {left} roots");
                continue;
            }
            assert_eq!(pool.roots().unwrap().len(), others.len());
            assert_empty(&pool, before, what);
            // With room for it under the same name.
            others.iter().for_each(|other| pool.clear_root(other).unwrap());
            create(&pool).unwrap();
        }
    }
}
