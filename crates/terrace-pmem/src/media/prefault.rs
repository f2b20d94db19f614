//! Touching a mapping's pages ahead of their use, in the background.
//!
//! The first store to a page costs microseconds; a pool that is about to be filled takes its pages beforehand.
//! One thread works through the ranges in steps of 2 MiB and looks between steps whether it should stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::mm::{Advice, madvise};
use terrace_base::exec::{Executor, ThreadPool};

const STEP_BYTES: usize = 2 << 20;

/// Below this the pages are cheaper than the thread.
const WORTH_BYTES: u64 = 4 << 20;

/// A background prefault. Dropping it stops it and waits for its thread: no access outlives the value.
#[derive(Debug)]
pub(super) struct Prefault {
    stop: Arc<AtomicBool>,
    // Dropped after `stop` was set in `drop`; joins the thread.
    threads: ThreadPool,
}

impl Prefault {
    /// Starts on the first `len` bytes at `base` if that is worth it.
    ///
    /// # Safety
    ///
    /// The range stays mapped until the value is dropped.
    pub(super) unsafe fn start(base: *mut u8, len: u64) -> Option<Prefault> {
        if len < WORTH_BYTES {
            return None;
        }
        let prefault = Prefault { stop: Arc::default(), threads: ThreadPool::new("terrace-prefault", 1) };
        // SAFETY: the caller's.
        unsafe { prefault.range(base, len) };
        Some(prefault)
    }

    /// Goes on with another range.
    ///
    /// # Safety
    ///
    /// As [`start`](Self::start).
    pub(super) unsafe fn range(&self, base: *mut u8, len: u64) {
        let stop = self.stop.clone();
        let (start, end) = (base as usize, base as usize + len as usize);
        self.threads.spawn(Box::new(move || {
            let mut at = start;
            while at < end && !stop.load(Relaxed) {
                let step = STEP_BYTES.min(end - at);
                // SAFETY: the range is mapped until the value that owns this thread has joined it; populating
                // changes no contents. A full medium is reported here and not by a signal.
                if unsafe { madvise(at as *mut _, step, Advice::LinuxPopulateWrite) }.is_err() {
                    return;
                }
                at += step;
            }
        }));
    }

    /// Stops soon, without waiting.
    pub(super) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }
}

impl Drop for Prefault {
    fn drop(&mut self) {
        self.stop();
    }
}
