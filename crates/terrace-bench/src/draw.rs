//! The operations and values of a workload's threads. The same plan always gives the same ones.

use std::sync::Arc;

use terrace_base::checksum::hash64;
use terrace_base::rng::Rng;

use crate::run::Plan;
use crate::space::KeySpace;
use crate::stream::{Stream, StreamMaker};
use crate::values::ValuePool;
use crate::workload::{Action, ONE_RECORD, READ, Workload};

/// The operations and the values of a workload under a plan.
#[derive(Debug)]
pub(crate) struct Draw {
    streams: Option<StreamMaker>,
    /// The bytes that are written.
    pub values: ValuePool,
    /// The seed of this workload's random numbers.
    pub seed: u64,
}

impl Draw {
    pub fn new(workload: &Workload, plan: &Plan, space: &Arc<KeySpace>) -> Self {
        // With the writer's seed, reads would visit the keys in the order in which they were written.
        let seed = plan.seed ^ hash64(workload.name.as_bytes());
        let longest = plan.trace.as_ref().map_or(0, |trace| trace.longest_value()).max(plan.value_size);
        let values = match workload.action {
            Action::Replay => ValuePool::new(longest, plan.random_share, plan.seed),
            _ => ValuePool::mixed(workload.sizes, plan.value_size, plan.random_share, plan.seed),
        };
        Draw { streams: streams(workload, plan, space), values, seed }
    }

    /// The operations of thread `index`, whose stretch begins at number `first`; `None` where the workload draws none.
    pub fn stream(&self, index: usize, first: u64) -> Option<Stream> {
        // The seeds are far apart, so that threads draw different numbers.
        let mut seed = Rng::new(self.seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Some(self.streams.as_ref()?.stream(seed.next_u64(), first))
    }
}

fn streams(workload: &Workload, plan: &Plan, space: &Arc<KeySpace>) -> Option<StreamMaker> {
    let (mix, keys, scan_records) = match workload.action {
        Action::Operations { mix, keys, scan_records } => (mix, keys, scan_records),
        Action::MultiRead(keys) => (READ, keys, ONE_RECORD),
        Action::Walk(_) | Action::Replay | Action::Flush | Action::Compact => return None,
    };
    let operations = plan.operations(workload);
    let expected = if operations == u64::MAX { 0 } else { operations };
    let fill = workload.fills().then_some(plan.num);
    let seek = (plan.seek_records, plan.seek_records);
    let scan_records = if scan_records == ONE_RECORD { seek } else { scan_records };
    Some(StreamMaker::new(mix, keys, scan_records, space.clone(), expected, fill, plan.key_size))
}

/// Splits `total` operations: where each thread's stretch begins, and its length.
pub(crate) fn shares(total: u64, threads: usize) -> Vec<(u64, u64)> {
    let threads = threads as u64;
    let (each, more) = (total / threads, total % threads);
    (0..threads).map(|t| (t * each + t.min(more), each + u64::from(t < more))).collect()
}
