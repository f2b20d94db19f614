//! The outcome of one phase.

use serde::{Deserialize, Serialize};
use terrace_pmem::PmStats;

use super::phase::Op;
use crate::outcome::Latency;

/// The index when so many pairs were in it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Point {
    /// Pairs inserted.
    pub pairs: u64,
    /// Share of the slots in use.
    pub load_factor: Option<f64>,
    /// Bytes of pairs per byte of the pool that the index holds.
    pub space_factor: f64,
}

/// The outcome of one phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PhaseOutcome {
    /// The kind of operation.
    pub op: Op,
    /// Threads.
    pub threads: usize,
    /// Operations of all threads.
    pub operations: u64,
    /// From the first to the last, in seconds.
    pub seconds: f64,
    /// Operations whose answer was not what was written, or not found. Always 0 for a sound index.
    pub wrong: u64,
    /// Pairs that scans returned.
    pub scanned: u64,
    /// Latency of one operation in 64.
    pub latency: Latency,
    /// The longest that 64 operations in a row took, in nanoseconds.
    pub longest_block_ns: u64,
    /// 256-byte blocks of PM written.
    pub xpline_writes: u64,
    /// 256-byte blocks of PM read where code followed a pointer.
    pub xpline_reads: u64,
    /// Drains.
    pub drains: u64,
    /// Bytes in flushed ranges.
    pub bytes_flushed: u64,
    /// Load factors after every million inserts.
    pub timeline: Vec<Point>,
}

impl PhaseOutcome {
    /// Operations a second.
    pub fn throughput(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    /// Counts traffic that the operations have caused later.
    pub(super) fn add_traffic(&mut self, stats: &PmStats) {
        self.xpline_writes += stats.xpline_writes;
        self.xpline_reads += stats.xpline_reads;
        self.drains += stats.drains;
        self.bytes_flushed += stats.bytes_flushed;
    }

    /// `total` of a counter, an operation.
    pub fn each(&self, total: u64) -> f64 {
        total as f64 / self.operations.max(1) as f64
    }
}
