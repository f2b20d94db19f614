//! Where value bytes come from: slices of one shared random buffer, so that making a value costs nothing. As in
//! db_bench, each stretch of 100 bytes holds `random_share` of random bytes, repeated to fill it, so that a compressor
//! finds as much redundancy as in half-structured data.

use std::sync::Arc;

use terrace_base::rng::Rng;

const POOL_BYTES: usize = 1 << 20;
const STRETCH_BYTES: usize = 100;

/// How long values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// All as long as the plan says.
    Planned,
    /// Small ones and large ones.
    Mixed {
        /// Bytes of a small value.
        small: u32,
        /// Bytes of a large value.
        large: u32,
        /// One value in so many is large.
        one_in: u32,
    },
}

/// Half of the values are small, half large: nearly all bytes are in the large ones.
pub const MIXED_BY_COUNT: Sizes = Sizes::Mixed { small: 256, large: 4096, one_in: 2 };
/// Half of the bytes are in small values, half in large ones: 16 small values to a large one.
pub const MIXED_BY_BYTES: Sizes = Sizes::Mixed { small: 256, large: 4096, one_in: 17 };

impl Sizes {
    fn largest(self, planned: usize) -> usize {
        match self {
            Sizes::Planned => planned,
            Sizes::Mixed { small, large, .. } => small.max(large) as usize,
        }
    }
}

/// Value bytes, shared between threads.
#[derive(Debug, Clone)]
pub struct ValuePool {
    bytes: Arc<[u8]>,
    value_bytes: usize,
    sizes: Sizes,
}

impl ValuePool {
    /// Values of `value_bytes` bytes, of which `random_share` (0 to 1) cannot be compressed away.
    pub fn new(value_bytes: usize, random_share: f64, seed: u64) -> Self {
        ValuePool::mixed(Sizes::Planned, value_bytes, random_share, seed)
    }

    /// Values of `sizes`, with a planned size of `value_bytes`.
    pub fn mixed(sizes: Sizes, value_bytes: usize, random_share: f64, seed: u64) -> Self {
        let longest = sizes.largest(value_bytes);
        let mut rng = Rng::new(seed);
        let random = ((STRETCH_BYTES as f64 * random_share.clamp(0.0, 1.0)) as usize).clamp(1, STRETCH_BYTES);
        let mut bytes = vec![0u8; (POOL_BYTES + longest).next_multiple_of(STRETCH_BYTES)];
        for stretch in bytes.chunks_exact_mut(STRETCH_BYTES) {
            rng.fill(&mut stretch[..random]);
            for i in random..STRETCH_BYTES {
                stretch[i] = stretch[i - random];
            }
        }
        ValuePool { bytes: bytes.into(), value_bytes, sizes }
    }

    /// One of the values; `pick` chooses which.
    pub fn value(&self, pick: u64) -> &[u8] {
        let len = match self.sizes {
            Sizes::Planned => self.value_bytes,
            // Bits that do not choose where the value begins.
            Sizes::Mixed { large, one_in, .. } if (pick >> 32).is_multiple_of(u64::from(one_in)) => {
                large as usize
            }
            Sizes::Mixed { small, .. } => small as usize,
        };
        self.value_of(pick, len)
    }

    /// `len` bytes, not more than the longest value has; `pick` chooses which.
    pub fn value_of(&self, pick: u64, len: usize) -> &[u8] {
        let at = (pick % POOL_BYTES as u64) as usize;
        &self.bytes[at..at + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pick_has_the_asked_length() {
        for len in [0, 1, 100, 5000] {
            let pool = ValuePool::new(len, 0.5, 1);
            for pick in [0, 1, POOL_BYTES as u64 - 1, u64::MAX] {
                assert_eq!(pool.value(pick).len(), len);
            }
        }
    }

    #[test]
    fn mixed_values_have_the_promised_shares() {
        let count = |sizes| {
            let (pool, mut rng) = (ValuePool::mixed(sizes, 0, 0.5, 1), Rng::new(5));
            let lens: Vec<usize> = (0..100_000).map(|_| pool.value(rng.next_u64()).len()).collect();
            let large = lens.iter().filter(|&&len| len == 4096).count() as f64;
            (large / lens.len() as f64, large * 4096.0 / lens.iter().sum::<usize>() as f64)
        };
        assert!((count(MIXED_BY_COUNT).0 - 0.5).abs() < 0.01);
        assert!((count(MIXED_BY_BYTES).1 - 0.5).abs() < 0.02);
    }

    #[test]
    fn half_of_each_stretch_repeats() {
        let pool = ValuePool::new(100, 0.5, 9);
        let value = pool.value(0);
        assert_eq!(value[..50], value[50..]);
        let random = ValuePool::new(100, 1.0, 9);
        assert_ne!(random.value(0)[..50], random.value(0)[50..]);
    }
}
