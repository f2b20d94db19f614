//! With how much a new pool begins, and in which units it is allocated.

use terrace_pmem::{MediaRequest, PoolOptions};

use crate::core::Core;
use crate::options::EngineKind;

/// Initial size of a pool file; it grows by itself. A pool that may not become much larger, or that takes
/// memory which is to be touched ahead of its use, begins with more.
const INITIAL_POOL_BYTES: u64 = 256 << 10;
const INITIAL_MEMORY_BYTES: u64 = 16 << 20;

/// Extents that fit from the beginning, however large they are.
const INITIAL_EXTENTS: u64 = 4;

/// Extents where that is the engine's choice.
const EXTENT_BYTES: u64 = 64 << 10;

/// Those of `slm` in an ordinary file, where a small database is to be a small file: its large records lie in extents
/// that belong to a memtable, so that small units waste nothing. A memtable in persistent memory is one extent, and
/// finds a place for that only among large ones.
const SLM_EXTENT_BYTES: u64 = 32 << 10;

/// A pool that may not become as large as this has the usual extents: no extent crosses the boundaries of the pool's
/// table, which lie closer with small ones, and a large record would find no place between them.
const LEAST_MAX_BYTES_OF_SMALL_EXTENTS: u64 = 1 << 30;

/// Bytes with which the latter begins: header, table of extents, two for a memtable, and two of the index.
const SLM_INITIAL_BYTES: u64 = 6 * SLM_EXTENT_BYTES;

/// The way the pool is mapped and its size limit.
pub(crate) fn pool_options(core: &Core, media: MediaRequest) -> PoolOptions {
    let (max_size, engine) = (core.options.pm_bytes, core.options.engine);
    let (extent_bytes, extent_bytes_in_file) = match core.options.pool_extent_bytes {
        0 => {
            let are_small = engine == EngineKind::Slm && max_size >= LEAST_MAX_BYTES_OF_SMALL_EXTENTS;
            (EXTENT_BYTES, are_small.then_some(SLM_EXTENT_BYTES))
        }
        asked => (asked, None),
    };
    PoolOptions {
        size: initial_bytes(max_size, extent_bytes, extent_bytes_in_file.is_some(), &media),
        max_size,
        extent_bytes,
        extent_bytes_in_file,
        media,
        read_only: core.options.read_only,
        ..PoolOptions::default()
    }
}

fn initial_bytes(max_size: u64, extent_bytes: u64, is_smaller_in_file: bool, media: &MediaRequest) -> u64 {
    let begins_small = matches!(media, MediaRequest::Auto) && max_size > INITIAL_MEMORY_BYTES;
    if begins_small && is_smaller_in_file {
        return SLM_INITIAL_BYTES;
    }
    let initial = if begins_small { INITIAL_POOL_BYTES } else { INITIAL_MEMORY_BYTES };
    // Room for the header and some extents, however large these are.
    initial.max(INITIAL_EXTENTS.saturating_mul(extent_bytes)).min(max_size)
}
