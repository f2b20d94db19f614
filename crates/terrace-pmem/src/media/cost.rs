//! The costs of emulated media. A drain takes at least the profile's `write_ns`, and not less than the medium needs to
//! absorb the flushed lines. Bandwidth is one queue for all threads: flushed lines wait in the thread's own account
//! until it drains, then queue behind the lines that others drained before. Following a pointer costs `read_ns` for the
//! first 256-byte block and an eighth of it for each further one. All of it is spent spinning on the thread that asks.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::spin::Ticks;
use super::{LINE_BYTES, Profile};
use crate::cpu;
use crate::stats::blocks_of;
use crate::thread_slot;

/// Spends a medium's time on the calling thread.
#[derive(Debug)]
pub struct CostModel {
    ticks: Ticks,
    profile: Profile,
    /// When the medium has absorbed everything drained so far.
    busy_until: CachePadded<AtomicU64>,
    /// Bytes of lines flushed and not drained, by thread number.
    pending: Box<[CachePadded<AtomicU64>]>,
}

impl CostModel {
    /// The costs of `profile`.
    pub fn new(profile: Profile) -> Self {
        let pending = (0..thread_slot::COUNT).map(|_| CachePadded::default()).collect();
        CostModel { ticks: Ticks::calibrated(), profile, busy_until: CachePadded::default(), pending }
    }

    /// Lines were flushed, for the next drain of this thread to wait for.
    pub fn flushed(&self, offset: u64, len: u64) {
        if self.profile.write_bytes_per_sec.is_some() && len > 0 {
            let lines = (offset + len).div_ceil(LINE_BYTES) - offset / LINE_BYTES;
            self.pending[thread_slot::current()].fetch_add(lines * LINE_BYTES, Ordering::Relaxed);
        }
    }

    /// Takes as long as a drain of the lines that this thread has flushed.
    pub fn drain(&self) {
        let start = self.ticks.now();
        cpu::fence();
        let mut deadline = start + self.ticks.of_ns(self.profile.write_ns);
        if let Some(rate) = self.profile.write_bytes_per_sec {
            let bytes = self.pending[thread_slot::current()].swap(0, Ordering::Relaxed);
            deadline = deadline.max(self.absorb(start, bytes, rate));
        }
        self.ticks.wait_until(deadline);
    }

    /// Queues `bytes` behind those that are being absorbed; returns when they will be done.
    fn absorb(&self, now: u64, bytes: u64, rate: u64) -> u64 {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let cost = self.ticks.of_ns(nanos as u64);
        let mut busy = self.busy_until.load(Ordering::Relaxed);
        loop {
            let done = busy.max(now) + cost;
            match self.busy_until.compare_exchange_weak(busy, done, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return done,
                Err(seen) => busy = seen,
            }
        }
    }

    /// Takes as long as following a pointer to these bytes.
    pub fn read(&self, offset: u64, len: u64) {
        if len > 0 {
            self.reads(1, blocks_of(offset, len));
        }
    }

    pub(super) fn reads(&self, reads: u64, blocks: u64) {
        if self.profile.read_ns > 0 && reads > 0 {
            let start = self.ticks.now();
            self.ticks.wait_until(start + self.ticks.of_ns(self.read_nanos(reads, blocks)));
        }
    }

    /// When a read that begins now will be done.
    pub(super) fn start_read(&self, blocks: u64) -> u64 {
        self.ticks.now() + self.ticks.of_ns(self.read_nanos(1, blocks))
    }

    pub(super) fn await_read(&self, done: u64) {
        self.ticks.wait_until(done);
    }

    /// Takes as long as further blocks behind a read's first.
    pub(super) fn rest(&self, blocks: u64) {
        let nanos = self.profile.read_ns * blocks / 8;
        self.ticks.wait_until(self.ticks.now() + self.ticks.of_ns(nanos));
    }

    /// A block next to the one before takes an eighth of a read's latency, another place that was asked for at the same
    /// time a third: a module's bandwidth allows so much in each case.
    fn read_nanos(&self, reads: u64, blocks: u64) -> u64 {
        self.profile.read_ns * (24 + 8 * (reads - 1) + 3 * (blocks - reads)) / 24
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_one_queue() {
        let model = CostModel::new(Profile::OPTANE);
        let first = model.absorb(1000, 2_000_000, 2_000_000_000);
        let second = model.absorb(1000, 2_000_000, 2_000_000_000);
        assert_eq!(first - 1000, model.ticks.of_ns(1_000_000));
        assert_eq!(second - first, first - 1000);
    }
}
