//! Replacing a node by one or two new ones: splits, and other skips.

use terrace_base::Result;
use terrace_pmem::POff;

use super::FastFair;
use super::build::{Fresh, Item, Plan};
use super::key::separator;
use super::layout::{FORWARD_AT, MERGE_AT, NOT_DURABLE};
use super::lock::Locked;
use super::node::NodeRef;

/// The entries of a node that are kept, and dead records.
pub(super) struct Gathered<'t> {
    pub items: Vec<Item<'t>>,
    /// Dead records.
    pub dropped: Vec<u64>,
}

impl<const N: usize> FastFair<N> {
    /// Replaces a locked node that its parent names by one or two with room for `extra`, and releases it.
    pub(super) fn restructure(&self, lock: Locked<'_, N>, extra: &[u8]) -> Result<()> {
        let old = lock.node;
        let Gathered { items, dropped } = self.gather(old)?;
        let mut fresh = Fresh::new(&self.pool);
        let replacement = match split_point(old, &items, extra, N) {
            None => self.build_one(&mut fresh, old, &items, extra)?,
            Some(at) => self.build_two(&mut fresh, old, &items, at, extra)?,
        };
        self.clear_hint(old)?;
        self.totals.add(0, fresh.keep() as i64);
        self.pool.drain();
        self.switch(old, replacement);
        let low = old.n.low;
        drop(lock);
        for record in dropped {
            self.retire_record(record)?;
        }
        let key = self.fence(low)?.unwrap_or_default();
        match self.repair_parent(key, old.level()) {
            // The tree is correct as it is; a later writer updates the parent when there is room.
            Err(e) if e.is_out_of_space() => Ok(()),
            other => other,
        }
    }

    /// The entries of a locked node in order, without dead records.
    pub(super) fn gather<'t>(&'t self, node: NodeRef<'t, N>) -> Result<Gathered<'t>> {
        let mut out = Gathered { items: Vec::with_capacity(N), dropped: Vec::new() };
        for i in 0..node.count() {
            let ptr = node.ptr(i);
            if node.level() > 0 {
                let key = self.low_key(self.node(ptr)?)?.unwrap_or_default();
                out.items.push(Item { key, ptr });
                continue;
            }
            // Verified first, also for a dead record: a word from elsewhere means nothing.
            let key = self.record_key(ptr)?;
            match self.cell(ptr)?.load(node.entry_at(i)) {
                0 => out.dropped.push(ptr),
                _ => out.items.push(Item { key, ptr }),
            }
        }
        Ok(out)
    }

    fn build_one(
        &self,
        fresh: &mut Fresh<'_>,
        old: NodeRef<'_, N>,
        items: &[Item<'_>],
        extra: &[u8],
    ) -> Result<u64> {
        let off = self.place(fresh)?;
        let plan = Plan {
            level: old.level(),
            low: old.n.low,
            low_key: self.low_key(old)?,
            high: old.n.high,
            high_key: self.high_key(old)?,
            next: old.next(),
        };
        self.build(fresh, off, &plan, items, Some(extra))?;
        Ok(off)
    }

    pub(super) fn build_two(
        &self,
        fresh: &mut Fresh<'_>,
        old: NodeRef<'_, N>,
        items: &[Item<'_>],
        at: usize,
        extra: &[u8],
    ) -> Result<u64> {
        let level = old.level();
        let (fence, fence_key) = if level == 0 {
            let key = separator(items[at - 1].key, items[at].key);
            (fresh.key(key)?, key)
        } else {
            // The separator is the child's own low fence.
            (self.node(items[at].ptr)?.n.low, items[at].key)
        };
        let (left, right) = (self.place(fresh)?, self.place(fresh)?);
        let (low_key, high_key) = (self.low_key(old)?, self.high_key(old)?);
        let (left_extra, right_extra) =
            if extra < fence_key { (Some(extra), None) } else { (None, Some(extra)) };
        let plan = Plan {
            level,
            low: fence,
            low_key: Some(fence_key),
            high: old.n.high,
            high_key,
            next: old.next(),
        };
        self.build(fresh, right, &plan, &items[at..], right_extra)?;
        let plan =
            Plan { level, low: old.n.low, low_key, high: fence, high_key: Some(fence_key), next: right };
        self.build(fresh, left, &plan, &items[..at], left_extra)?;
        Ok(left)
    }

    /// The moment at which `new` replaces the locked `old`. `new` and everything that it leads to are durable.
    pub(super) fn switch(&self, old: NodeRef<'_, N>, new: u64) {
        let at = POff::new(old.off + FORWARD_AT);
        self.pool.publish(at, new | NOT_DURABLE);
        self.pool.atomic(at).store(new, std::sync::atomic::Ordering::Release);
    }

    /// Takes back the hint that a crash within a merge may have left in the right sibling. Called before a locked node
    /// dies in any other way than by that merge.
    pub(super) fn clear_hint(&self, node: NodeRef<'_, N>) -> Result<()> {
        if node.next() == 0 {
            return Ok(());
        }
        let right = self.node(node.next())?;
        if right.n.merge.load(std::sync::atomic::Ordering::Acquire) == node.off {
            self.pool.publish(POff::new(right.off + MERGE_AT), 0);
        }
        Ok(())
    }
}

/// Where to split so that `extra` finds room on either side; `None` if one node will do.
fn split_point<const N: usize>(
    old: NodeRef<'_, N>,
    items: &[Item<'_>],
    extra: &[u8],
    fanout: usize,
) -> Option<usize> {
    if items.len() <= fanout * 3 / 4 {
        return None;
    }
    // Keys that arrive in order at the right edge: leave the left node full.
    let appending = old.n.high == 0 && items.last().is_some_and(|last| last.key < extra);
    Some(if appending { items.len() - 1 } else { items.len() / 2 })
}
