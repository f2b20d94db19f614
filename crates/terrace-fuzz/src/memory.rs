//! Files and pools in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Fs, SimFs};
use terrace_pmem::{Granularity, Media, MemMedia, Pool, PoolOptions};

/// Bytes to which a pool may grow.
const MAX_POOL_BYTES: u64 = 1 << 20;

pub fn dir() -> &'static Path {
    Path::new("/db")
}

/// A file system with these files.
pub fn files(files: &[(PathBuf, &[u8])]) -> SimFs {
    let fs = SimFs::new();
    fs.create_dir_all(dir()).unwrap();
    for (path, data) in files {
        fs.plant(path, data).unwrap();
    }
    fs
}

fn pool_options(max_size: u64) -> PoolOptions {
    PoolOptions {
        size: 64 << 10,
        max_size,
        extent_bytes: 4096,
        prefault: false,
        count_xplines: false,
        boot_id: Some("one".into()),
        ..PoolOptions::default()
    }
}

/// A new pool.
pub fn new_pool() -> Pool {
    new_pool_of(MAX_POOL_BYTES)
}

/// A new pool that may grow to `max` bytes.
pub fn new_pool_of(max: u64) -> Pool {
    let media = MemMedia::new(64 << 10, max, Granularity::CacheLine).unwrap();
    Pool::create_on(Arc::new(media), Path::new("pool"), &pool_options(max)).unwrap()
}

/// Everything on the pool's medium.
pub fn image(pool: &Pool) -> Vec<u8> {
    let media = pool.media();
    // SAFETY: the medium's mapping has this length and does not move; nobody stores to it meanwhile.
    unsafe { std::slice::from_raw_parts(media.base(), media.len() as usize) }.to_vec()
}

/// The pool whose bytes are `image`.
pub fn open_pool(image: &[u8]) -> Result<Pool> {
    open_pool_of(image, MAX_POOL_BYTES)
}

/// The pool whose bytes are `image`; it may grow to `max` bytes.
pub fn open_pool_of(image: &[u8], max: u64) -> Result<Pool> {
    let len = (image.len() as u64).min(max);
    let media = MemMedia::new(len.max(1), max, Granularity::CacheLine).unwrap();
    media.copy_flush(0, &image[..len as usize]);
    Pool::open_on(Arc::new(media), Path::new("pool"), &pool_options(max))
}

/// Whether a decoder may answer wrong bytes with `error`.
#[track_caller]
pub fn assert_typed(error: &Error) {
    assert!(
        matches!(error.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat),
        "{error} is no error about what was read"
    );
}

/// The result, if it is not an error about what was read.
#[track_caller]
pub fn typed<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_typed(&error);
            None
        }
    }
}
