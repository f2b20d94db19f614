//! Where value bytes come from: slices of one shared random buffer, so that making a value costs
//! nothing. As in db_bench, each stretch of 100 bytes holds `random_share` of random bytes, repeated
//! to fill it, so that a compressor finds what it would find in half-structured data.

use std::sync::Arc;

use terrace_base::rng::Rng;

const POOL_BYTES: usize = 1 << 20;
const STRETCH_BYTES: usize = 100;

/// Value bytes, shared between threads.
#[derive(Debug, Clone)]
pub struct ValuePool {
    bytes: Arc<[u8]>,
    value_bytes: usize,
}

impl ValuePool {
    /// Values of `value_bytes` bytes, of which `random_share` (0 to 1) cannot be compressed away.
    pub fn new(value_bytes: usize, random_share: f64, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let random = ((STRETCH_BYTES as f64 * random_share.clamp(0.0, 1.0)) as usize).clamp(1, STRETCH_BYTES);
        let mut bytes = vec![0u8; (POOL_BYTES + value_bytes).next_multiple_of(STRETCH_BYTES)];
        for stretch in bytes.chunks_exact_mut(STRETCH_BYTES) {
            rng.fill(&mut stretch[..random]);
            for i in random..STRETCH_BYTES {
                stretch[i] = stretch[i - random];
            }
        }
        ValuePool { bytes: bytes.into(), value_bytes }
    }

    /// One of the values; `pick` chooses which.
    pub fn value(&self, pick: u64) -> &[u8] {
        let at = (pick % POOL_BYTES as u64) as usize;
        &self.bytes[at..at + self.value_bytes]
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
    fn half_of_each_stretch_repeats() {
        let pool = ValuePool::new(100, 0.5, 9);
        let value = pool.value(0);
        assert_eq!(value[..50], value[50..]);
        let random = ValuePool::new(100, 1.0, 9);
        assert_ne!(random.value(0)[..50], random.value(0)[50..]);
    }
}
