//! The top layer in PM: a FAST&FAIR tree from low keys to leaves, for the next open.
//!
//! New leaves enter it in the background. Every leaf that it names is in the chain at every moment: a leaf is removed
//! from it, durably, before it leaves the chain. Other leaves are found by walking right from named ones, so nothing is
//! lost with the queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use terrace_base::Result;

use super::Core;
use super::bound::Bound;
use super::key::Probe;
use super::mnode::Locked;
use crate::point::PointIndex;

/// With more waiting leaves than this, writers help.
const MAX_WAITING: usize = 4096;

/// Leaves that the top layer does not name yet.
#[derive(Default)]
pub(super) struct Waiting {
    queue: Mutex<VecDeque<(Bound, u64)>>,
    /// Whether a job is on its way to empty the queue.
    scheduled: AtomicBool,
}

impl Core {
    /// Lets the background enter a new leaf into the top layer.
    pub(super) fn announce(&self, low: Bound, leaf: u64) {
        if self.read_only {
            return;
        }
        let waiting = {
            let mut queue = self.waiting.queue.lock();
            queue.push_back((low, leaf));
            queue.len()
        };
        // Many at a time: waking a thread for each would cost a writer more than it saves.
        if waiting >= self.capacity && !self.waiting.scheduled.swap(true, Ordering::AcqRel) {
            self.spawn(|core| {
                core.waiting.scheduled.store(false, Ordering::Release);
                core.enter_waiting();
            });
        }
        if waiting > MAX_WAITING {
            self.enter_one();
        }
    }

    /// Enters what is waiting, until the tree is closed.
    pub(super) fn enter_waiting(&self) {
        while !self.jobs.is_closed() && self.enter_one() {}
    }

    /// Enters one leaf; false if none is waiting. The next open finds a leaf that cannot be entered now.
    fn enter_one(&self) -> bool {
        let Some((low, leaf)) = self.waiting.queue.lock().pop_front() else { return false };
        // The pool is full, or there is damage that others will report: the top layer is no worse than before.
        let _ = self.enter_top(&low, leaf);
        true
    }

    fn enter_top(&self, low: &Bound, leaf: u64) -> Result<()> {
        let _here = self.limbo.enter();
        let key = low.to_vec().unwrap_or_default();
        let (node, _) = self.locate(&Probe::new(&key))?;
        let locked = node.lock();
        // The leaf was merged away, perhaps with another leaf in its place, or was entered by another thread: nothing
        // to do.
        let is_it = node.leaf() == leaf && node.low() == *low;
        if !node.is_dead() && is_it && !node.in_top() && !key.is_empty() {
            self.top.insert(&key, leaf)?;
            locked.set_in_top(true);
        }
        Ok(())
    }

    /// Takes a leaf out of the top layer, durably.
    pub(super) fn forget(&self, locked: &Locked<'_>, low: &Bound) -> Result<()> {
        if locked.0.in_top() {
            self.top.remove(&low.to_vec().unwrap_or_default())?;
            locked.set_in_top(false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound as RangeBound;
    use std::path::Path;
    use std::sync::Arc;

    use terrace_pmem::{Granularity, MemMedia, Pool, PoolOptions};

    use super::*;
    use crate::ordered::OrderedIndex;
    use crate::scan_batch::ScanBatch;
    use crate::sptree::{SpOptions, SpTree};

    #[test]
    fn a_leaf_in_the_place_of_one_that_waited_is_not_entered_by_the_other_key() {
        let media = MemMedia::new(1 << 20, 16 << 20, Granularity::CacheLine).unwrap();
        let options = PoolOptions { max_size: 16 << 20, extent_bytes: 4096, ..PoolOptions::default() };
        let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap();
        let tree =
            SpTree::create(&pool, "tree", &SpOptions { leaf_entries: 4, ..SpOptions::default() }).unwrap();
        for i in 1..100u64 {
            tree.insert(&(i * 10).to_be_bytes(), i).unwrap();
        }
        let core = &tree.core;
        core.enter_waiting();
        let mut named = ScanBatch::new();
        core.top.scan(RangeBound::Unbounded, false, 2, &mut named).unwrap();
        let leaf = named.word(1);
        let low = named.key(1).to_vec();
        // As if the leaf, not entered yet, were new in the place of one that began further right.
        let node = core.locate(&Probe::new(&low)).unwrap().0;
        core.forget(&node.lock(), &Bound::new(&low)).unwrap();
        let stale = u64::from_be_bytes(low.as_slice().try_into().unwrap()) + 1;
        core.announce(Bound::new(&stale.to_be_bytes()), leaf);
        core.announce(Bound::new(&low), leaf);
        core.enter_waiting();
        assert!(node.in_top());
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    }
}
