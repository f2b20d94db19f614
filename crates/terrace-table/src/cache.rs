//! The cache of blocks in memory, shared by all tables of one store.
//!
//! Thread-safe, in shards with a lock each. Its size is bounded in bytes; a block that alone exceeds a shard's share is
//! not kept. Table numbers are the key, so tables of different stores must not share a cache, nor may a store use a
//! number twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::block::Block;
use crate::position::BLOCK_ALIGN;

/// A guess of an average block, by which the cache sizes its bookkeeping.
const TYPICAL_BLOCK_BYTES: u64 = 4096;
/// Shards are no smaller than this, so that blocks of some megabytes can be kept in small caches too.
const MIN_SHARD_BYTES: u64 = 4 << 20;
const MAX_SHARDS: u64 = 64;

#[derive(Debug, Clone)]
struct Held;

impl Weighter<u64, Arc<Block>> for Held {
    fn weight(&self, _: &u64, block: &Arc<Block>) -> u64 {
        block.held_bytes() as u64
    }
}

/// Hits and misses of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
}

/// A cache of checked, decompressed blocks by table number and offset.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Cache<u64, Arc<Block>, Held>,
    /// Bytes that tables hold beside their blocks.
    tables: AtomicU64,
}

fn key(number: u64, offset: u64) -> u64 {
    (number << 36) | (offset / BLOCK_ALIGN)
}

impl BlockCache {
    /// A cache that holds up to `bytes`; 0 holds nothing.
    pub fn new(bytes: u64) -> Self {
        let shards = (bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS);
        let options = OptionsBuilder::new()
            .shards(shards as usize)
            .estimated_items_capacity((bytes / TYPICAL_BLOCK_BYTES) as usize)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are given, which is all that a cache requires");
        let blocks = Cache::with_options(options, Held, DefaultHashBuilder::default(), Default::default());
        BlockCache { blocks, tables: AtomicU64::new(0) }
    }

    /// Bytes held now.
    pub fn usage(&self) -> u64 {
        self.blocks.weight()
    }

    /// Bytes that may be held.
    pub fn capacity(&self) -> u64 {
        self.blocks.capacity()
    }

    /// Changes how much may be held; surplus blocks are dropped at once.
    pub fn set_capacity(&self, bytes: u64) {
        self.blocks.set_capacity(bytes);
    }

    /// Bytes that the tables which use this cache hold beside it: figures, root indexes and filters.
    pub fn table_bytes(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    pub(crate) fn table_grew(&self, bytes: usize) {
        self.tables.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn table_shrank(&self, bytes: usize) {
        self.tables.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Lookups so far. Scans that do not fill the cache are not counted.
    pub fn stats(&self) -> CacheStats {
        CacheStats { hits: self.blocks.hits(), misses: self.blocks.misses() }
    }

    pub(crate) fn get(&self, number: u64, offset: u64) -> Option<Arc<Block>> {
        self.blocks.get(&key(number, offset))
    }

    /// As [`get`](Self::get), without an effect on statistics or eviction.
    pub(crate) fn peek(&self, number: u64, offset: u64) -> Option<Arc<Block>> {
        self.blocks.peek(&key(number, offset))
    }

    pub(crate) fn insert(&self, number: u64, block: &Arc<Block>) {
        self.blocks.insert(key(number, block.offset), block.clone());
    }
}
