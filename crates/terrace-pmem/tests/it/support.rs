//! What the tests share.

use std::path::Path;
use std::sync::Arc;

use terrace_pmem::{Granularity, MemMedia, Pool, PoolOptions};

/// Small extents, and a pool that may grow to 16 MiB.
pub fn options() -> PoolOptions {
    PoolOptions {
        size: 1 << 20,
        max_size: 16 << 20,
        extent_bytes: 4096,
        prefault: false,
        boot_id: Some("boot".to_owned()),
        ..PoolOptions::default()
    }
}

/// The options after a restart of the machine.
pub fn other_boot() -> PoolOptions {
    PoolOptions { boot_id: Some("another boot".to_owned()), ..options() }
}

/// A pool in plain memory that calls itself cache-line media.
pub fn memory_pool() -> (Arc<MemMedia>, Pool) {
    let o = options();
    let media = Arc::new(MemMedia::new(o.size, o.max_size, Granularity::CacheLine).unwrap());
    let pool = Pool::create_on(media.clone(), name(), &o).unwrap();
    (media, pool)
}

/// A directory in memory where there is one, for tests that open the same file thousands of times.
pub fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// What the pools in memory are called.
pub fn name() -> &'static Path {
    Path::new("test-pool")
}
