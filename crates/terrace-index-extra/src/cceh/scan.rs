//! Unordered scans: segment after segment, each in the order of its hashes.

use terrace_base::Result;
use terrace_index::parts::Pair;
use terrace_index::{ScanBatch, ScanPosition};

use super::Cceh;
use super::directory::Route;

/// A copied pair: hash, key, word.
type Copied = (u64, Vec<u8>, u64);

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    pub(super) fn scan_from(
        &self,
        cursor: &mut ScanPosition,
        limit: usize,
        out: &mut ScanBatch,
    ) -> Result<()> {
        let (mut left, mut any) = (limit.max(1), false);
        while let Some(from) = cursor.hash() {
            if any && left == 0 {
                return Ok(());
            }
            let (pairs, next) = self.copy_from(from)?;
            let mut last = None;
            for (hash, key, word) in pairs {
                if left == 0 && last != Some(hash) {
                    // Keys of one hash come together, so that the cursor need not tell them apart.
                    *cursor = last.map_or(*cursor, ScanPosition::after);
                    return Ok(());
                }
                out.push(&key, word);
                (left, any, last) = (left.saturating_sub(1), true, Some(hash));
            }
            *cursor = next;
        }
        Ok(())
    }

    /// The pairs of the segment that `from` leads to whose hash is at least `from`, in order; and where the next
    /// segment begins.
    fn copy_from(&self, from: u64) -> Result<(Vec<Copied>, ScanPosition)> {
        let _here = self.limbo.enter();
        self.with_segment(from, |route| self.copy_segment(route, from))
    }

    fn copy_segment(&self, route: &Route, from: u64) -> Result<Vec<Copied>> {
        let mut pairs = Vec::new();
        self.pool.charge_read(route.entry.offset, Self::SEGMENT_BYTES);
        self.for_each_key(route.entry.offset, from, route.entry.depth, &mut |_, key, hash, value| {
            if hash >= from {
                pairs.push((hash, key.to_vec(), value.word()?));
            }
            Ok(())
        })?;
        for (hash, record) in self.overflow.records(Self::hashes_from(route.entry, from)) {
            // SAFETY: present in limbo, since before the overflow named it.
            let pair = unsafe { Pair::read(&self.pool, record)? };
            pairs.push((hash, pair.key.to_vec(), pair.word()?));
        }
        pairs.sort_unstable();
        Ok(pairs)
    }
}
