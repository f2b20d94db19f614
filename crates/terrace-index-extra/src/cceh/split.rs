//! Splitting a segment in place.

use terrace_base::Result;

use super::Cceh;
use super::layout::{BUCKET_SLOTS, Entry, prefix};
use super::probe::{key_word, value_word};

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Splits the segment `old`, which the caller has locked and to which `hash` leads. Every slot of its upper half
    /// keeps its place, so everything fits. False if it may not be split, since too many keys have hashes that begin
    /// alike.
    #[cold]
    pub(super) fn split(&self, hash: u64, old: Entry) -> Result<bool> {
        if !self.may_split(old)? {
            return Ok(false);
        }
        let new = self.space.take()?;
        let split = self.fill_upper_half(hash, old, new).and_then(|()| {
            // No other thread knows it yet; but as soon as the directory names it, writers must wait until that is
            // durable.
            let _held = self.locks.lock(new);
            self.publish_split(hash, old, new)
        });
        if split.is_err() {
            self.space.give(new);
        }
        split.map(|()| true)
    }

    /// Copies the slots of the upper half of `old` to `new`, durably.
    fn fill_upper_half(&self, hash: u64, old: Entry, new: u64) -> Result<()> {
        let upper = prefix(hash, old.depth) << 1 | 1;
        let segment = self.segment(old.offset)?;
        self.pool.charge_read(old.offset, Self::SEGMENT_BYTES);
        let mut image = Vec::with_capacity(Self::SEGMENT_BYTES as usize);
        for bucket in segment {
            for slot in 0..BUCKET_SLOTS {
                let word = key_word(bucket, slot);
                let moves = word != 0 && prefix(word, old.depth + 1) == upper;
                let pair = if moves { [word, value_word(bucket, slot)] } else { [0, 0] };
                image.extend(pair.iter().flat_map(|w| w.to_le_bytes()));
            }
        }
        self.pool.copy_flush(new, &image);
        self.pool.drain();
        Ok(())
    }
}
