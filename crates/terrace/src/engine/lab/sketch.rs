//! How often keys were written lately: a count-min sketch whose counters are halved after a number of writes.
//!
//! One thread at a time counts, while any number read. An estimate is never too low except by the halving,
//! and too high if other keys share all of a key's counters. It lies in DRAM and starts empty at each
//! opening: it decides only where a value lies.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Counters that each key has.
const ROWS: usize = 4;

/// All counters are halved after this many writes for each counter of a row. With two, half of the keys that
/// are written once would be taken for recurring ones; with one it is a twentieth.
const WINDOW: u64 = 1;

/// Counters by hashes of keys.
#[derive(Debug)]
pub(super) struct Sketch {
    /// Row after row.
    counters: Box<[AtomicU8]>,
    /// Counters of a row; a power of two.
    width: usize,
    /// Writes since the last halving.
    written: AtomicU64,
}

impl Sketch {
    /// A sketch of about `bytes`, at least a few.
    pub fn new(bytes: usize) -> Sketch {
        let width = (bytes / ROWS).max(16).next_power_of_two();
        let counters = (0..ROWS * width).map(|_| AtomicU8::new(0)).collect();
        Sketch { counters, width, written: AtomicU64::new(0) }
    }

    /// Counts a write of the key with `hash`.
    pub fn touch(&self, hash: u64) {
        let least = self.estimate(hash);
        // Only the smallest counters grow: the others are too high already.
        for at in self.places(hash) {
            if self.counters[at].load(Ordering::Relaxed) == least {
                self.counters[at].store(least.saturating_add(1), Ordering::Relaxed);
            }
        }
        let written = self.written.load(Ordering::Relaxed) + 1;
        let is_over = written >= WINDOW * self.width as u64;
        self.written.store(if is_over { 0 } else { written }, Ordering::Relaxed);
        if is_over {
            let halve = |c: &AtomicU8| c.store(c.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            self.counters.iter().for_each(halve);
        }
    }

    /// Bytes of DRAM held.
    pub fn dram_bytes(&self) -> u64 {
        self.counters.len() as u64
    }

    /// How often the key with `hash` was written lately.
    pub fn estimate(&self, hash: u64) -> u8 {
        self.places(hash).map(|at| self.counters[at].load(Ordering::Relaxed)).into_iter().min().unwrap_or(0)
    }

    fn places(&self, hash: u64) -> [usize; ROWS] {
        let (step, mask) = ((hash >> 32) | 1, self.width as u64 - 1);
        std::array::from_fn(|row| {
            let place = hash.wrapping_add(step.wrapping_mul(row as u64)) & mask;
            row * self.width + place as usize
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use terrace_base::checksum::hash64;

    use super::*;

    fn hash(key: u16) -> u64 {
        hash64(&key.to_be_bytes())
    }

    proptest! {
        /// Before the first halving no key is estimated too low.
        #[test]
        fn nothing_is_estimated_too_low(keys in prop::collection::vec(0u16..50, 1..200)) {
            let sketch = Sketch::new(ROWS * 256);
            let mut counted = BTreeMap::<u16, u8>::new();
            for key in keys {
                sketch.touch(hash(key));
                *counted.entry(key).or_default() += 1;
            }
            for (key, count) in counted {
                prop_assert!(sketch.estimate(hash(key)) >= count);
            }
        }
    }

    /// Writes of ever new keys, as in a load, must not look like recurring ones: all would be admitted.
    #[test]
    fn what_is_written_once_is_seldom_thought_to_be_hot() {
        let sketch = Sketch::new(ROWS * 1024);
        let mut hot = 0;
        for key in 0..40_000u64 {
            let hash = hash64(&key.to_be_bytes());
            sketch.touch(hash);
            hot += u64::from(sketch.estimate(hash) >= 2);
        }
        assert!(hot < 4_000, "{hot} of 40,000");
    }

    #[test]
    fn hot_keys_are_told_from_cold_ones_and_cool_down() {
        let sketch = Sketch::new(ROWS * 1024);
        for round in 0..1000u16 {
            sketch.touch(hash(7));
            sketch.touch(hash(1000 + round));
        }
        assert_eq!(sketch.estimate(hash(7)), u8::MAX);
        let warm = (1000..2000).filter(|key| sketch.estimate(hash(*key)) > 2).count();
        assert!(warm < 20, "{warm} of a thousand keys that were written once");
        for write in 0..8 * 8192u64 {
            sketch.touch(hash(3000 + (write % 40_000) as u16));
        }
        assert!(sketch.estimate(hash(7)) < 100, "{}", sketch.estimate(hash(7)));
    }
}
