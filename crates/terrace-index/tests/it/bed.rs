//! What tests stand on: pools in memory and in simulated worlds.

use std::path::Path;
use std::sync::Arc;

use terrace_base::Result;
use terrace_index::PointIndex;
use terrace_pmem::{Granularity, Marks, MemMedia, Pool, PoolOptions};
use terrace_sim::{Halting, Snapshot, Survival, World};

/// Options for small pools.
pub fn options() -> PoolOptions {
    PoolOptions {
        size: 1 << 20,
        max_size: 64 << 20,
        extent_bytes: 4096,
        prefault: false,
        count_xplines: false,
        boot_id: Some("one".into()),
        ..PoolOptions::default()
    }
}

/// A pool in ordinary memory.
pub fn memory_pool() -> Pool {
    memory_pool_of(64 << 20)
}

/// A pool in ordinary memory that may grow to `max` bytes.
pub fn memory_pool_of(max: u64) -> Pool {
    let media = MemMedia::new(1 << 20, max, Granularity::CacheLine).unwrap();
    Pool::create_on(Arc::new(media), Path::new("memory"), &PoolOptions { max_size: max, ..options() })
        .unwrap()
}

/// Options for pools in `world`.
pub fn world_options(world: &World) -> PoolOptions {
    PoolOptions { max_size: 8 << 20, size: 256 << 10, boot_id: Some(world.boot_id().into()), ..options() }
}

/// A new pool in `world`.
pub fn create_in(world: &World) -> Result<Pool> {
    Pool::create_on(world.media(), Path::new("pm"), &world_options(world))
}

/// A new pool in `world`, on a medium that can stop a thread.
pub fn create_halting(world: &World) -> (Arc<Halting>, Pool) {
    let media = Halting::new(world.media());
    let pool = Pool::create_on(media.clone(), Path::new("pm"), &world_options(world)).unwrap();
    (media, pool)
}

/// The pool of `world`, on a medium that can stop a thread.
pub fn open_halting(world: &World) -> (Arc<Halting>, Pool) {
    let media = Halting::new(world.media());
    let pool = Pool::open_on(media.clone(), Path::new("pm"), &world_options(world)).unwrap();
    (media, pool)
}

/// The pool of `world`.
pub fn open_in(world: &World) -> Result<Pool> {
    Pool::open_on(world.media(), Path::new("pm"), &world_options(world))
}

/// The worlds that a crash at `snapshot` may leave: the extremes, a kill, and `drawn` drawn ones.
pub fn survivors(snapshot: &Snapshot, drawn: u64) -> impl Iterator<Item = World> + '_ {
    let fixed = [Survival::Nothing, Survival::Everything];
    let cuts = fixed.into_iter().chain((0..drawn).map(Survival::Seeded));
    cuts.map(|s| snapshot.power_cut(s)).chain(std::iter::once_with(|| snapshot.kill()))
}

/// Asserts that the pool holds what `index` marks and nothing else, after reclaiming what a crash leaked.
pub fn assert_no_leaks(pool: &Pool, index: &dyn PointIndex, mark: impl Fn(&mut Marks) -> Result<()>) {
    // Empties limbo.
    index.close().unwrap();
    assert_marked(pool, mark);
}

/// Asserts that the pool holds what `mark` marks and nothing else, after reclaiming what a crash leaked.
pub fn assert_marked(pool: &Pool, mark: impl Fn(&mut Marks) -> Result<()>) {
    let mut marks = pool.marks();
    mark(&mut marks).unwrap();
    pool.reclaim(&marks).unwrap();
    let mut marks = pool.marks();
    mark(&mut marks).unwrap();
    let problems = pool.check(&marks);
    assert!(problems.is_empty(), "{problems:?}");
}
