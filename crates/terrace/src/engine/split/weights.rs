//! How often records are read and written: one counter in DRAM for each piece of the pool.
//!
//! A counter is found by its record's offset, and costs a read one byte in the caches. Several small records
//! may share one, and counts that two threads make at once may count as one: it only estimates what is worth
//! keeping. It does not outlive the process: after an opening every weight is zero, and the oldest records
//! migrate first.

use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of the pool for each counter, if the memory budget allows that.
const PIECE_BYTES: u64 = 256;

/// At most one counter for each so many bytes of the memory budget.
const BUDGET_SHARE: u64 = 16;

/// A counter that reaches this stays there.
const MOST: u8 = u8::MAX;

/// The counters of a pool.
#[derive(Debug)]
pub(super) struct Weights {
    counters: Box<[AtomicU8]>,
    /// Bytes of the pool for each counter.
    piece: u64,
}

impl Weights {
    pub fn new(pool_bytes: u64, memory_budget: u64) -> Weights {
        let most = (memory_budget / BUDGET_SHARE).max(1);
        let piece = pool_bytes.div_ceil(most).max(PIECE_BYTES).next_power_of_two();
        let count = (pool_bytes / piece + 1) as usize;
        Weights { counters: (0..count).map(|_| AtomicU8::new(0)).collect(), piece }
    }

    fn counter(&self, offset: u64) -> Option<&AtomicU8> {
        self.counters.get((offset / self.piece) as usize)
    }

    /// The weight of the record at `offset`.
    pub fn get(&self, offset: u64) -> u8 {
        self.counter(offset).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    pub fn set(&self, offset: u64, weight: u8) {
        if let Some(counter) = self.counter(offset) {
            counter.store(weight, Ordering::Relaxed);
        }
    }

    /// Counts an access.
    #[inline]
    pub fn count(&self, offset: u64) {
        if let Some(counter) = self.counter(offset) {
            let weight = counter.load(Ordering::Relaxed);
            if weight < MOST {
                counter.store(weight + 1, Ordering::Relaxed);
            }
        }
    }

    /// Subtracts `by` from the weight of the record at `offset`.
    pub fn lower(&self, offset: u64, by: u8) {
        self.set(offset, self.get(offset).saturating_sub(by));
    }

    /// Bytes of memory.
    pub fn dram_bytes(&self) -> u64 {
        self.counters.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_apart() {
        let weights = Weights::new(1 << 20, 1 << 30);
        (0..300).for_each(|_| weights.count(256));
        weights.count(512);
        assert_eq!([0, 256, 511, 512].map(|at| weights.get(at)), [0, MOST, MOST, 1]);
        weights.lower(256, 5);
        weights.lower(512, 5);
        assert_eq!([256, 512].map(|at| weights.get(at)), [MOST - 5, 0]);
        weights.count(1 << 40);
        assert_eq!(weights.get(1 << 40), 0, "what is outside the pool is nobody's");
    }

    #[test]
    fn they_keep_to_the_budget() {
        assert!(Weights::new(1 << 40, 1 << 20).dram_bytes() <= 1 + (1 << 20) / BUDGET_SHARE);
        assert_eq!(Weights::new(1 << 20, 1 << 30).dram_bytes(), 1 + (1 << 20) / PIECE_BYTES);
    }
}
