//! Pools on a medium that is full for a time.

use std::path::Path;
use std::sync::Arc;

use terrace_pmem::{Granularity, Kind, Pool, PoolOptions};
use terrace_sim::{PmOptions, SimPm};

const EXTENT: u64 = 4096;
const MOST: u64 = 16 << 20;

/// Must catch a pool that never grows again, and one that grows to the midst of a segment of its table: those lie where
/// a pool of 4, 8 and 16 MiB ends.
#[test]
fn a_pool_grows_again_once_its_medium_has_room() {
    let limits = (0..24).map(|n| (1 << 20) + n * 37 * EXTENT).chain([2, 4, 8].map(|n| n << 20));
    for (limit, granularity) in
        limits.flat_map(|l| [Granularity::CacheLine, Granularity::Page].map(|g| (l, g)))
    {
        let media = Arc::new(SimPm::new(PmOptions { bytes: 256 << 10, capacity: MOST, granularity }));
        media.set_limit(limit);
        let options = PoolOptions {
            size: 256 << 10,
            max_size: MOST,
            extent_bytes: EXTENT,
            prefault: false,
            boot_id: Some("boot".to_owned()),
            ..PoolOptions::default()
        };
        let pool = Pool::create_on(media.clone(), Path::new("pool"), &options).unwrap();
        assert_eq!(pool.reachable_bytes(), MOST);
        let take = |pool: &Pool| pool.reserve_extent(Kind(1), EXTENT).inspect(|extent| pool.activate(extent));
        let mut taken: Vec<_> = std::iter::from_fn(|| take(&pool).ok()).collect();
        let what = format!("limit {limit}, {granularity:?}, {} extents", taken.len());
        assert!(take(&pool).unwrap_err().is_out_of_space());
        assert!(pool.reachable_bytes() <= limit && taken.len() as u64 * EXTENT > limit / 2, "{what}");
        let give = |taken: &mut Vec<_>| {
            taken
                .drain(..40)
                .for_each(|extent: terrace_pmem::Extent| pool.free_extent(extent.offset, Kind(1)).unwrap());
        };
        // As long as it is full, trying is in vain.
        for _ in 0..3 {
            give(&mut taken);
            taken.extend((0..40).map(|_| take(&pool).unwrap_or_else(|e| panic!("{what}: {e}"))));
            assert!(pool.reachable_bytes() <= limit, "{what}");
        }
        media.set_limit(MOST);
        give(&mut taken);
        taken.extend((0..40).map(|_| take(&pool).unwrap()));
        assert_eq!(pool.reachable_bytes(), MOST, "{what}");
        assert!(pool.size() > limit / 2 && pool.altered().is_empty(), "{what}");
        taken.extend((0..100).map(|_| take(&pool).unwrap()));
        pool.close().unwrap();
        drop(pool);
        let pool = Pool::open_on(media, Path::new("pool"), &options).unwrap();
        let mut marks = pool.marks();
        taken.iter().for_each(|extent| marks.extent(extent.offset).unwrap());
        assert_eq!(pool.check(&marks), [], "{what}");
    }
}
