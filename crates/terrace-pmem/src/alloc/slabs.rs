//! All slabs by unit.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::RwLock;

use super::slab::Slab;
use crate::thread_slot;

const SHARDS: usize = 16;

/// Slabs of the units that share a remainder, by the quotient.
type Shard = RwLock<Vec<Option<Arc<Slab>>>>;

/// All slabs by unit, and the bytes of their free slots.
#[derive(Default)]
pub(crate) struct Slabs {
    shards: [CachePadded<Shard>; SHARDS],
    free: [CachePadded<AtomicI64>; SHARDS],
    /// Bytes of DRAM that the slabs take.
    dram: AtomicI64,
    count: AtomicI64,
}

impl Slabs {
    pub(super) fn get(&self, unit: u64) -> Option<Arc<Slab>> {
        let shard = self.shards[unit as usize % SHARDS].read();
        shard.get(unit as usize / SHARDS)?.clone()
    }

    pub(super) fn insert(&self, slab: Arc<Slab>) {
        let at = slab.unit as usize / SHARDS;
        self.dram.fetch_add(slab.dram_bytes(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shards[slab.unit as usize % SHARDS].write();
        if shard.len() <= at {
            shard.resize(at + 1, None);
        }
        shard[at] = Some(slab);
    }

    pub(super) fn remove(&self, unit: u64) {
        if let Some(place) = self.shards[unit as usize % SHARDS].write().get_mut(unit as usize / SHARDS)
            && let Some(slab) = place.take()
        {
            self.dram.fetch_sub(slab.dram_bytes(), Ordering::Relaxed);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Slab>> {
        let mut all: Vec<_> =
            self.shards.iter().flat_map(|s| s.read().iter().flatten().cloned().collect::<Vec<_>>()).collect();
        all.sort_by_key(|s| s.unit);
        all
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let sum: i64 = self.free.iter().map(|c| c.load(Ordering::Relaxed)).sum();
        sum.max(0) as u64
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes of DRAM that all of it takes.
    pub(super) fn dram_bytes(&self) -> u64 {
        self.dram.load(Ordering::Relaxed).max(0) as u64
    }

    pub(super) fn add_free(&self, bytes: i64) {
        self.free[thread_slot::current() % SHARDS].fetch_add(bytes, Ordering::Relaxed);
    }
}
