//! The partitions that each generation of the log waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::partition::Partition;

/// Partitions with entries that the log has to keep.
///
/// 1. A partition whose oldest entry is of the current generation is `dirty`; one whose oldest entry is of the previous
///    one is `stale`, or a thread has taken it to merge it and is counted in `left`.
/// 2. Partitions are stale before other threads see the rotated log: [`rotate`](Self::rotate) is called while the log
///    stands still.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    state: Mutex<State>,
    /// A copy of `State::left`, for reads without the lock.
    left: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// With the generation of the oldest entry when they were noted. They may have been merged since.
    dirty: Vec<(u64, Arc<Partition>)>,
    /// The previous generation, partitions that it waits for, and how many: those taken on included.
    generation: u64,
    stale: Vec<Arc<Partition>>,
    left: usize,
}

impl Backlog {
    /// Notes a partition whose first entry is of `generation`.
    pub fn note(&self, generation: u64, partition: Arc<Partition>) {
        self.state.lock().dirty.push((generation, partition));
    }

    /// Makes `old`, which is not appended to any more, the generation to be merged; returns whether it waits for any
    /// partition.
    pub fn rotate(&self, old: u64) -> bool {
        let mut state = self.state.lock();
        let (stale, dirty): (Vec<_>, Vec<_>) =
            state.dirty.drain(..).partition(|(generation, _)| *generation <= old);
        state.dirty = dirty;
        state.stale = stale.into_iter().map(|(_, partition)| partition).collect();
        (state.generation, state.left) = (old, state.stale.len());
        self.left.store(state.left, Ordering::Release);
        state.left > 0
    }

    /// How many partitions the previous generation waits for.
    #[inline]
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// A partition for the caller to merge if it has entries of that generation still. It is either
    /// [`put_back`](Self::put_back) or [`merged`](Self::merged).
    pub fn take(&self) -> Option<(u64, Arc<Partition>)> {
        let mut state = self.state.lock();
        let partition = state.stale.pop()?;
        Some((state.generation, partition))
    }

    /// The partition that was taken could not be merged. Others come first.
    pub fn put_back(&self, partition: Arc<Partition>) {
        self.state.lock().stale.insert(0, partition);
    }

    /// The partition that was taken has been merged; whether it was the last.
    pub fn merged(&self) -> bool {
        let mut state = self.state.lock();
        state.left -= 1;
        self.left.store(state.left, Ordering::Release);
        state.left == 0
    }

    /// Forgets partitions without entries, if none has any. The log stands still meanwhile.
    pub fn clear_if_clean(&self) -> bool {
        let mut state = self.state.lock();
        // A writer has its partition locked now, or has noted it together with its entry.
        let clean = |p: &Partition| p.body.try_read().is_some_and(|body| body.oldest.is_none());
        let all_clean = state.left == 0 && state.dirty.iter().all(|(_, partition)| clean(partition));
        if all_clean {
            state.dirty.clear();
        }
        all_clean
    }
}
