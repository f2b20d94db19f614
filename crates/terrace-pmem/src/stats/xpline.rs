//! A model of the write-combining buffer inside Optane-class media: 16 KiB, that is 64 blocks of 256 bytes.
//!
//! Flushed lines gather in the buffer; the medium writes a whole block when it leaves. So a flush into a block that is
//! still there costs no media write, and one into any other block costs one. Blocks are placed by their number into
//! sixteen sets of four, the least recently used of a set leaves. The tags are relaxed atomics: threads that meet in
//! one set may miscount by one, which is well inside the model's error. Ranges over 4 KiB count their inner blocks
//! without looking.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use crate::media::XPLINE_BYTES;

const SETS: usize = 16;
const WAYS: usize = 4;

/// Ranges of more blocks pass the buffer by.
const LONG_BLOCKS: u64 = 16;

/// Tags of the blocks in the buffer (block number + 1, 0 = empty), most recently used first in each set.
#[derive(Default)]
pub(super) struct CombiningBuffer {
    sets: [CachePadded<[AtomicU64; WAYS]>; SETS],
}

impl CombiningBuffer {
    /// Block writes that flushing this range leads to.
    #[inline]
    pub(super) fn write(&self, offset: u64, len: u64) -> u64 {
        let first = offset / XPLINE_BYTES;
        let last = (offset + len - 1) / XPLINE_BYTES;
        if last - first > LONG_BLOCKS {
            // The whole blocks inside gain nothing from combining; only the ends meet neighbours.
            return u64::from(self.touch(first)) + (last - first - 1) + u64::from(self.touch(last));
        }
        (first..=last).map(|block| u64::from(self.touch(block))).sum()
    }

    /// Brings a block to the front of its set; true if it was not in the buffer.
    #[inline]
    fn touch(&self, block: u64) -> bool {
        let set = &self.sets[block as usize % SETS];
        let tag = block + 1;
        let mut carried = set[0].load(Relaxed);
        if carried == tag {
            return false;
        }
        set[0].store(tag, Relaxed);
        for way in &set[1..] {
            let here = way.load(Relaxed);
            way.store(carried, Relaxed);
            if here == tag {
                return false;
            }
            carried = here;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_block_combine() {
        let b = CombiningBuffer::default();
        assert_eq!((0..16).map(|i| b.write(i * 64, 64)).sum::<u64>(), 4);
    }

    #[test]
    fn sixty_four_blocks_fit_and_the_next_pass_is_free() {
        let b = CombiningBuffer::default();
        let pass = || (0..64).map(|block| b.write(block * 256, 256)).sum::<u64>();
        assert_eq!(pass(), 64);
        assert_eq!(pass(), 0);
        assert_eq!(b.write(1 << 20, 1 << 20), 4096);
    }

    #[test]
    fn random_small_writes_cost_a_block_each() {
        let b = CombiningBuffer::default();
        let total: u64 = (0..1000u64).map(|i| b.write(i * 7919 * 256, 8)).sum();
        assert_eq!(total, 1000);
    }

    #[test]
    fn the_least_recently_used_block_leaves() {
        let b = CombiningBuffer::default();
        let same_set = |i: u64| i * SETS as u64 * 256;
        for i in 0..4 {
            b.write(same_set(i), 1);
        }
        assert_eq!(b.write(same_set(0), 1), 0);
        assert_eq!(b.write(same_set(4), 1), 1);
        assert_eq!(b.write(same_set(0), 1), 0);
        assert_eq!(b.write(same_set(1), 1), 1);
    }
}
