//! Memory for shards' buckets: a slot of the pool, or a part of one.
//!
//! The pool has slots of every power of two up to its largest class, and whole extents from there on. A shard of a size
//! between these shares an extent with others of its size. Which parts are in use is known in DRAM alone: a part is in
//! use because a descriptor names it, so nothing has to be persisted for it, and opening learns it from the directory.
//! The extent itself is active before any part of it is given out, and is freed with its last part.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_pmem::{Pool, Slot};

use crate::kinds;

/// The pool's largest class of slots, where extents are large enough for it.
const LARGEST_CLASS_BYTES: u64 = 8192;

/// An extent in equal parts.
#[derive(Debug)]
struct Split {
    /// Bytes of a part.
    bytes: u64,
    /// Which parts are in use.
    used: Vec<bool>,
    /// How many are.
    count: usize,
}

impl Split {
    fn new(extent_bytes: u64, bytes: u64) -> Self {
        Split { bytes, used: vec![false; (extent_bytes / bytes) as usize], count: 0 }
    }

    /// Takes part `i`, or the first free one; returns its number, or `None` if it is taken or there is none.
    fn take(&mut self, i: Option<usize>) -> Option<usize> {
        let i = i.or_else(|| self.used.iter().position(|used| !used))?;
        let part = self.used.get_mut(i).filter(|used| !**used)?;
        *part = true;
        self.count += 1;
        Some(i)
    }

    /// Gives part `i` back; returns whether it was the last.
    fn give(&mut self, i: usize) -> bool {
        if let Some(part) = self.used.get_mut(i).filter(|used| **used) {
            *part = false;
            self.count -= 1;
        }
        self.count == 0
    }
}

/// The extents that are shared.
pub(super) struct Blocks {
    pool: Pool,
    splits: Mutex<BTreeMap<u64, Split>>,
}

/// Memory that no descriptor names yet.
pub(super) struct NewBlock {
    pub offset: u64,
    bytes: u64,
    /// `None` for a part of an extent.
    slot: Option<Slot>,
}

impl Blocks {
    pub fn new(pool: &Pool) -> Self {
        Blocks { pool: pool.clone(), splits: Mutex::default() }
    }

    /// Reserves `bytes`, a power of two of at least 256.
    pub fn reserve(&self, bytes: u64) -> Result<NewBlock> {
        if !self.is_part(bytes) {
            let slot = self.pool.reserve(kinds::TURBOHASH, bytes)?;
            return Ok(NewBlock { offset: slot.offset, bytes, slot: Some(slot) });
        }
        let mut splits = self.splits.lock();
        let open =
            splits.iter_mut().filter(|(_, split)| split.bytes == bytes && split.count < split.used.len());
        for (extent, split) in open {
            if let Some(part) = split.take(None) {
                return Ok(NewBlock { offset: extent + part as u64 * bytes, bytes, slot: None });
            }
        }
        let slot = self.pool.reserve(kinds::TURBOHASH, self.pool.extent_bytes())?;
        // Before another thread can name a part of it.
        self.pool.activate(&slot);
        self.pool.drain();
        let mut split = Split::new(self.pool.extent_bytes(), bytes);
        split.take(None);
        splits.insert(slot.offset, split);
        Ok(NewBlock { offset: slot.offset, bytes, slot: None })
    }

    /// Activates a block that is about to be named; to be drained.
    pub fn activate(&self, block: &NewBlock) {
        if let Some(slot) = &block.slot {
            self.pool.activate(slot);
        }
    }

    /// Takes a reservation back.
    pub fn cancel(&self, block: NewBlock) -> Result<()> {
        match block.slot {
            Some(slot) => {
                self.pool.cancel(slot);
                Ok(())
            }
            None => self.free(block.offset, block.bytes),
        }
    }

    /// Frees a block that is neither named nor read any more.
    pub fn free(&self, offset: u64, bytes: u64) -> Result<()> {
        if !self.is_part(bytes) {
            return self.pool.free(offset, kinds::TURBOHASH);
        }
        let extent = self.owner(offset, bytes);
        let mut splits = self.splits.lock();
        let part = ((offset - extent) / bytes) as usize;
        if splits.get_mut(&extent).is_some_and(|split| split.give(part)) {
            splits.remove(&extent);
            return self.pool.free(extent, kinds::TURBOHASH);
        }
        Ok(())
    }

    /// Takes over a block that a descriptor names. To be called for each, before any other is reserved.
    pub fn adopt(&self, offset: u64, bytes: u64) -> Result<()> {
        if !self.is_part(bytes) {
            return Ok(());
        }
        let extent = self.owner(offset, bytes);
        let mut splits = self.splits.lock();
        let split = splits.entry(extent).or_insert_with(|| Split::new(self.pool.extent_bytes(), bytes));
        let part = ((offset - extent) / bytes) as usize;
        let is_part = split.bytes == bytes && (offset - extent).is_multiple_of(bytes);
        if !is_part || split.take(Some(part)).is_none() {
            return Err(self.pool.corruption(offset, "a shard with memory of its own", "another's"));
        }
        Ok(())
    }

    /// The problems of the parts of shared extents. `blocks` are all blocks of shards and in limbo, with their bytes:
    /// each part that was given out must be one of them, and each of them must be given out once.
    pub fn check(&self, blocks: &[(u64, u64)]) -> Vec<String> {
        let splits = self.splits.lock();
        let (mut findings, mut seen) = (Vec::new(), BTreeSet::new());
        for &(offset, bytes) in blocks.iter().filter(|(_, bytes)| self.is_part(*bytes)) {
            let extent = self.owner(offset, bytes);
            let split = splits.get(&extent).filter(|split| split.bytes == bytes);
            let part = ((offset - extent) / bytes) as usize;
            if split.is_none_or(|split| split.used.get(part) != Some(&true)) {
                findings.push(format!("buckets at {offset:#x}: in use, and free too"));
            }
            if !seen.insert(offset) {
                findings.push(format!("buckets at {offset:#x}: in use twice"));
            }
        }
        for (extent, split) in splits.iter() {
            let used = (0..split.used.len()).filter(|part| split.used[*part]);
            let given_out = used.map(|part| extent + part as u64 * split.bytes);
            let lost = given_out.filter(|offset| !seen.contains(offset));
            findings.extend(lost.map(|offset| format!("buckets at {offset:#x}: lost, no shard has them")));
        }
        findings
    }

    /// The slot of the pool in which a block lies.
    fn owner(&self, offset: u64, bytes: u64) -> u64 {
        if self.is_part(bytes) {
            offset / self.pool.extent_bytes() * self.pool.extent_bytes()
        } else {
            offset
        }
    }

    /// The extents that are shared.
    pub fn extents(&self) -> Vec<u64> {
        self.splits.lock().keys().copied().collect()
    }

    /// Bytes of shared extents that no shard has.
    pub fn idle_bytes(&self) -> u64 {
        let unit = self.pool.extent_bytes();
        let idle = |split: &Split| unit - split.count as u64 * split.bytes;
        self.splits.lock().values().map(idle).sum()
    }

    /// Whether blocks of this size are parts of extents.
    pub fn is_part(&self, bytes: u64) -> bool {
        let unit = self.pool.extent_bytes();
        let largest = LARGEST_CLASS_BYTES.min(unit / 8);
        bytes > largest && bytes < unit
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use terrace_pmem::{Granularity, MemMedia, PoolOptions};

    use super::*;

    #[test]
    fn parts_are_given_out_once_and_extents_given_back() {
        let media = MemMedia::new(1 << 20, 4 << 20, Granularity::CacheLine).unwrap();
        let options = PoolOptions { max_size: 4 << 20, extent_bytes: 4096, ..PoolOptions::default() };
        let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap();
        let blocks = Blocks::new(&pool);
        let free = pool.free_bytes();
        let mut offsets: Vec<_> = (0..10).map(|_| blocks.reserve(1024).unwrap().offset).collect();
        offsets.push(blocks.reserve(2048).unwrap().offset);
        offsets.sort_unstable();
        assert!(offsets.windows(2).all(|w| w[0] + 1024 <= w[1]));
        assert_eq!(blocks.idle_bytes(), 2 * 1024 + 2048);
        let other = Blocks::new(&pool);
        other.adopt(offsets[0], 1024).unwrap();
        assert!(other.adopt(offsets[0], 1024).is_err() && other.adopt(offsets[0], 2048).is_err());
        let last = offsets.pop().unwrap();
        let whole = if blocks.splits.lock()[&blocks.owner(last, 1024)].bytes == 2048 { 2048 } else { 1024 };
        blocks.free(last, whole).unwrap();
        for offset in offsets {
            let bytes = blocks.splits.lock()[&blocks.owner(offset, 1024)].bytes;
            blocks.free(offset, bytes).unwrap();
        }
        assert_eq!((blocks.idle_bytes(), pool.free_bytes()), (0, free));
    }
}
