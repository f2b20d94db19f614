//! One budget for all DRAM: cached blocks get the rest after everything else.
//!
//! A database's needs beside the cache vary: B-trees grow with memtables, jobs hold keys and buffers, and the
//! allocator of the C library keeps some freed memory. So the cache's bound follows them, down to a
//! guaranteed share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_table::BlockCache;

/// The cache's largest share of the budget, in sixteenths.
const MOST_SIXTEENTHS: u64 = 12;

/// The cache's guaranteed share of the budget, in sixteenths.
const LEAST_SIXTEENTHS: u64 = 2;

/// Memory that the C library's allocator keeps for its threads beside what is in use, and small things that
/// nobody counts: a sixteenth of the budget and this much.
const SLACK_BYTES: u64 = 18 << 20;

/// The cache's bound moves in steps of this part of the budget, since each step visits all its shards.
const STEPS: u64 = 64;

/// A database's DRAM.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: u64,
    jobs: AtomicU64,
    cache: Arc<BlockCache>,
    /// The cache's bound.
    bound: AtomicU64,
}

impl Memory {
    /// Memory of which a block cache gets its share.
    pub fn new(budget: u64) -> Arc<Memory> {
        let bound = share(budget, 0);
        Arc::new(Memory {
            budget,
            jobs: AtomicU64::new(0),
            cache: Arc::new(BlockCache::new(bound)),
            bound: AtomicU64::new(bound),
        })
    }

    pub fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Bytes that jobs hold now.
    pub fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }

    /// Counts `bytes` as a job's, until the loan is dropped.
    pub fn lend(self: &Arc<Self>, bytes: usize) -> Loan {
        self.jobs.fetch_add(bytes as u64, Ordering::Relaxed);
        Loan { of: self.clone(), bytes: bytes as u64 }
    }

    /// Bounds the cache by the rest beside jobs and the `others`.
    pub fn fit_cache(&self, others: u64) {
        let wanted = share(self.budget, others + self.jobs());
        let before = self.bound.load(Ordering::Relaxed);
        if wanted.abs_diff(before) > self.budget / STEPS {
            self.bound.store(wanted, Ordering::Relaxed);
            self.cache.set_capacity(wanted);
        }
    }

    /// The size of a buffer: `most` bytes, or less if the budget is small: `count` of them take at most a
    /// sixteenth of it.
    pub fn buffer(&self, count: usize, most: usize) -> usize {
        let each = self.budget / 16 / (count as u64).max(1);
        usize::try_from(each).unwrap_or(most).clamp(16 << 10, most.max(16 << 10))
    }
}

/// The cache's share of `budget` beside `others`.
fn share(budget: u64, others: u64) -> u64 {
    let left = budget.saturating_sub(budget / 16 + SLACK_BYTES + others);
    let sixteenth = budget / 16;
    left.clamp(sixteenth * LEAST_SIXTEENTHS, sixteenth * MOST_SIXTEENTHS)
}

/// Bytes counted as a job's.
#[derive(Debug)]
pub(crate) struct Loan {
    of: Arc<Memory>,
    bytes: u64,
}

impl Loan {
    /// Sets the loan to this many bytes.
    pub fn becomes(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.of.jobs.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.of.jobs.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_gets_what_is_left() {
        let budget = 256 << 20;
        assert_eq!(share(budget, 0), budget / 16 * 12);
        assert_eq!(share(budget, 100 << 20), (256 - 16 - 18 - 100) << 20);
        assert_eq!(share(budget, 300 << 20), 32 << 20);
        assert_eq!(share(0, 5), 0);
    }

    #[test]
    fn loans_are_counted_until_they_end() {
        let memory = Memory::new(32 << 20);
        let before = memory.cache().capacity();
        let mut loan = memory.lend(1000);
        let other = memory.lend(5);
        loan.becomes(16 << 20);
        assert_eq!(memory.jobs(), (16 << 20) + 5);
        memory.fit_cache(0);
        assert!(memory.cache().capacity() < before);
        drop((loan, other));
        memory.fit_cache(0);
        assert_eq!((memory.jobs(), memory.cache().capacity()), (0, before));
        assert_eq!((memory.buffer(8, 512 << 10), memory.buffer(1, 512 << 10)), (256 << 10, 512 << 10));
        assert_eq!(memory.buffer(1000, 512 << 10), 16 << 10);
    }
}
