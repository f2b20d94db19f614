//! Counters of a pool's stores, flushes and reads.
//!
//! Counters are sharded by thread number: the only writer of an exclusive shard is its thread, so counting is
//! a load, an add and a store, about a nanosecond; the one shard that further threads share is added to
//! atomically. Snapshots are not taken at one instant.

mod xpline;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use crate::media::{LINE_BYTES, XPLINE_BYTES};
use crate::thread_slot;

use xpline::CombiningBuffer;

/// Counters of one pool since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PmStats {
    /// Flushed ranges.
    pub flushes: u64,
    /// Cache lines in them.
    pub lines: u64,
    /// Drains, those of publishing included.
    pub drains: u64,
    /// Publishes.
    pub publishes: u64,
    /// Bytes in the flushed ranges.
    pub bytes_flushed: u64,
    /// Blocks of 256 bytes that a medium with a 16 KiB write-combining buffer would have written. Not counted
    /// on `Page` media.
    pub xpline_writes: u64,
    /// Bytes read where code followed a pointer into the pool.
    pub bytes_read_charged: u64,
    /// Blocks of 256 bytes that those reads touched.
    pub xpline_reads: u64,
}

const COUNTERS: usize = 8;

impl PmStats {
    /// The counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &PmStats) -> PmStats {
        let (now, then) = (self.to_array(), earlier.to_array());
        PmStats::from_array(std::array::from_fn(|i| now[i].wrapping_sub(then[i])))
    }

    /// Bytes of the 256-byte blocks written, see [`xpline_writes`](Self::xpline_writes).
    pub fn xpline_bytes(&self) -> u64 {
        self.xpline_writes * XPLINE_BYTES
    }

    fn to_array(self) -> [u64; COUNTERS] {
        [
            self.flushes,
            self.lines,
            self.drains,
            self.publishes,
            self.bytes_flushed,
            self.xpline_writes,
            self.bytes_read_charged,
            self.xpline_reads,
        ]
    }

    fn from_array(a: [u64; COUNTERS]) -> Self {
        let [
            flushes,
            lines,
            drains,
            publishes,
            bytes_flushed,
            xpline_writes,
            bytes_read_charged,
            xpline_reads,
        ] = a;
        PmStats {
            flushes,
            lines,
            drains,
            publishes,
            bytes_flushed,
            xpline_writes,
            bytes_read_charged,
            xpline_reads,
        }
    }
}

/// Media blocks that a range touches. Offsets may come from a damaged pool.
#[inline]
pub(crate) fn blocks_of(offset: u64, len: u64) -> u64 {
    offset.saturating_add(len).div_ceil(XPLINE_BYTES) - offset / XPLINE_BYTES
}

#[derive(Default)]
struct Shard([AtomicU64; COUNTERS]);

/// The live counters behind [`PmStats`].
pub(crate) struct Recorder {
    shards: Box<[CachePadded<Shard>]>,
    buffer: Option<CombiningBuffer>,
}

impl Recorder {
    /// Counters at zero; `xplines` turns the model of the combining buffer on.
    pub(crate) fn new(xplines: bool) -> Self {
        Recorder {
            shards: (0..thread_slot::COUNT).map(|_| CachePadded::default()).collect(),
            buffer: xplines.then(CombiningBuffer::default),
        }
    }

    /// A range was flushed.
    #[inline]
    pub(crate) fn flushed(&self, offset: u64, len: u64) {
        let lines = (offset + len).div_ceil(LINE_BYTES) - offset / LINE_BYTES;
        let written = self.buffer.as_ref().map_or(0, |b| b.write(offset, len));
        self.add([(0, 1), (1, lines), (4, len), (5, written)]);
    }

    /// This thread drained.
    #[inline]
    pub(crate) fn drained(&self) {
        self.add([(2, 1)]);
    }

    /// An aligned word was flushed, drained and published.
    #[inline]
    pub(crate) fn published_word(&self, offset: u64) {
        let written = self.buffer.as_ref().map_or(0, |b| b.write(offset, 8));
        self.add([(0, 1), (1, 1), (2, 1), (3, 1), (4, 8), (5, written)]);
    }

    /// A pointer was followed.
    #[inline]
    pub(crate) fn read(&self, offset: u64, len: u64) {
        self.add([(6, len), (7, blocks_of(offset, len))]);
    }

    #[inline]
    fn add<const N: usize>(&self, counts: [(usize, u64); N]) {
        let number = thread_slot::current();
        let shard = &self.shards[number];
        for (counter, n) in counts {
            let cell = &shard.0[counter];
            if number < thread_slot::EXCLUSIVE {
                cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
            } else {
                cell.fetch_add(n, Relaxed);
            }
        }
    }

    /// The counters now.
    pub(crate) fn snapshot(&self) -> PmStats {
        let mut sum = [0u64; COUNTERS];
        for shard in &self.shards {
            for (total, cell) in sum.iter_mut().zip(&shard.0) {
                *total = total.wrapping_add(cell.load(Relaxed));
            }
        }
        PmStats::from_array(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_blocks_count_what_a_range_touches() {
        let r = Recorder::new(true);
        r.flushed(60, 8);
        r.read(255, 2);
        r.drained();
        r.published_word(0);
        let s = r.snapshot();
        assert_eq!((s.flushes, s.lines, s.bytes_flushed, s.xpline_writes), (2, 3, 16, 1));
        assert_eq!((s.drains, s.publishes, s.bytes_read_charged, s.xpline_reads), (2, 1, 2, 2));
        r.drained();
        assert_eq!(r.snapshot().since(&s), PmStats { drains: 1, ..PmStats::default() });
    }

    #[test]
    fn no_count_is_lost_between_threads() {
        let r = Recorder::new(false);
        std::thread::scope(|scope| {
            for _ in 0..80 {
                scope.spawn(|| (0..1000).for_each(|_| r.drained()));
            }
        });
        assert_eq!(r.snapshot().drains, 80_000);
    }
}
