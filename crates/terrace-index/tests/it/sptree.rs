//! SPTrees as the suites see them, and what is particular to them.

use std::sync::Arc;

use terrace_base::Result;
use terrace_base::exec::{Executor, Inline, Job};
use terrace_index::{SpOptions, SpTree};
use terrace_pmem::Pool;

use crate::conformance::Constructor;

/// Runs every job on the spot.
#[derive(Debug)]
pub struct AtOnce;

impl Executor for AtOnce {
    fn spawn(&self, job: Job) {
        job();
    }

    fn help(&self) -> bool {
        false
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        first();
        second();
    }
}

/// An SPTree with leaves of `N` entries and buffers of `BUFFER`, none if 0. Its background work is done on the
/// spot, or not at all if it `LAGS`.
pub struct Sp<const N: usize, const LAGS: bool, const BUFFER: usize>;

impl<const N: usize, const LAGS: bool, const BUFFER: usize> Sp<N, LAGS, BUFFER> {
    fn options() -> SpOptions {
        let executor: Arc<dyn Executor> = if LAGS { Arc::new(Inline::default()) } else { Arc::new(AtOnce) };
        SpOptions {
            leaf_entries: N,
            buffered: BUFFER > 0,
            buffer_entries: BUFFER.max(1),
            log_bytes: 400,
            executor: Some(executor),
            ..SpOptions::default()
        }
    }
}

impl<const N: usize, const LAGS: bool, const BUFFER: usize> Constructor for Sp<N, LAGS, BUFFER> {
    type Index = SpTree;
    fn create(pool: &Pool) -> Result<SpTree> {
        SpTree::create(pool, "index", &Self::options())
    }
    fn open(pool: &Pool) -> Result<SpTree> {
        SpTree::open(pool, "index", &Self::options())
    }
}
