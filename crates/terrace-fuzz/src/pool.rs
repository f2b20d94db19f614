//! Pools: header, roots and allocator.

use std::sync::OnceLock;

use terrace_pmem::{Kind, Pool};

use crate::memory::{image, new_pool, open_pool, typed};
use crate::patched;

fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let pool = new_pool();
        for bytes in [5000, 100] {
            let extent = pool.reserve_extent(Kind(1), bytes).unwrap();
            pool.activate(&extent);
            pool.set_root(&format!("extent {bytes}"), extent.offset).unwrap();
        }
        for bytes in [20, 20, 400, 5000, 100, 48] {
            pool.activate(&pool.reserve(Kind(2), bytes).unwrap());
        }
        pool.drain();
        pool.close().unwrap();
        image(&pool)
    })
}

/// A pool that opens gives out nothing twice, and opens again.
pub fn pool(data: &[u8]) {
    let Some(pool) = typed(open_pool(&patched(sound(), data))) else { return };
    typed(pool.roots());
    typed(pool.root("extent 100"));
    use_it(&pool);
    let mut marks = pool.marks();
    for kind in [Kind(1), Kind(2), Kind(3)] {
        pool.extents(kind).iter().for_each(|e| drop(marks.extent(e.offset)));
        pool.slots(kind).for_each(|(offset, _)| drop(marks.slot(offset)));
    }
    let _ = pool.check(&marks);
    if pool.needs_reclaim() && typed(pool.reclaim(&marks)).is_some() {
        typed(pool.release_reclaimed());
    }
    if typed(pool.close()).is_some() {
        let _ = typed(open_pool(&image(&pool)));
    }
}

/// Allocates until some of it is full, and checks that nothing overlaps.
fn use_it(pool: &Pool) {
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for kind in [Kind(1), Kind(2)] {
        taken.extend(pool.extents(kind).iter().map(|e| (e.offset, e.bytes)));
        taken.extend(pool.slots(kind));
    }
    for bytes in [20, 48, 400, 5000, 20, 100] {
        if let Ok(slot) = pool.reserve(Kind(2), bytes) {
            pool.activate(&slot);
            taken.push((slot.offset, slot.bytes));
        }
    }
    if let Ok(extent) = pool.reserve_extent(Kind(3), 9000) {
        pool.activate(&extent);
        taken.push((extent.offset, extent.bytes));
    }
    pool.drain();
    taken.sort_unstable();
    assert!(taken.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "two owners: {taken:?}");
    assert!(taken.iter().all(|(at, bytes)| at + bytes <= pool.size()), "past the end: {taken:?}");
}
