//! Merging neighbours that have become too empty, and lowering the root.
//!
//! Two siblings L and R under one parent, all three locked, are replaced by one new node M:
//!
//! ```text
//! R.merge = L      a hint, durable: "if L has been replaced, so have I"
//! L.forward = M    the switch: from here on both are dead
//! R.forward = M    for those who come to R later
//! left sibling of L: next = M; parent: without R, then M in the place of L
//! ```
//!
//! The hint is taken back before L dies in any other way. A crash before the switch leaves a stale hint, which
//! harms nobody while L lives; one after it leaves a parent that names L and R, which the first writer to
//! lock it puts right (`lock`).

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::POff;

use super::FastFair;
use super::build::{Fresh, Item, Plan};
use super::key::Target;
use super::layout::{FORWARD_AT, MERGE_AT, ROOT_AT};
use super::node::NodeRef;
use super::write::Held;

impl<const N: usize> FastFair<N> {
    /// Merges the node of `level` that `key` belongs to with a sibling, if they fit into one with room to spare, and
    /// goes on upward. Without room for the new node nothing is merged.
    pub(super) fn try_merge(&self, key: &[u8], level: u8) -> Result<()> {
        match self.merge_upward(key, level) {
            Err(e) if e.is_out_of_space() => Ok(()),
            other => other,
        }
    }

    fn merge_upward(&self, key: &[u8], mut level: u8) -> Result<()> {
        while let Some(parent) = self.try_hold(key, level + 1)? {
            let (node, is_root) =
                (parent.lock.node, parent.lock.node.n.low == 0 && parent.lock.node.n.high == 0);
            if node.count() >= 2 && !self.merge_under(&parent, key)? {
                return Ok(());
            }
            let left = node.count();
            drop(parent);
            if left == 1 && is_root {
                return self.lower_root();
            }
            if left >= N / 4 && left > 1 {
                return Ok(());
            }
            level += 1;
        }
        Ok(())
    }

    /// Merges the child that `key` belongs to with a sibling under the held parent; false if it may not be.
    fn merge_under(&self, parent: &Held<'_, N>, key: &[u8]) -> Result<bool> {
        let above = parent.lock.node;
        let (at, _) = self.route(above, Target::At(key))?;
        let first = if at + 1 < above.count() { at } else { at - 1 };
        let (l, r) = (self.child(above, first)?, self.child(above, first + 1)?);
        if l.off == r.off {
            return Err(self.damaged(above.off, "a parent of different children", "one of the same twice"));
        }
        let (left, right) = (self.lock(l)?, self.lock(r)?);
        if self.is_dead(l)? || self.is_dead(r)? {
            return Ok(false);
        }
        self.repair_next(l)?;
        if l.next() != r.off {
            return Ok(false);
        }
        let (mut items, more) = (self.gather(l)?, self.gather(r)?);
        let either_empty = items.items.is_empty() || more.items.is_empty();
        items.items.extend(more.items);
        items.dropped.extend(more.dropped);
        let total = items.items.len();
        if total > N * 3 / 4 && !(either_empty && total < N) {
            return Ok(false);
        }
        let merged = self.build_merged(l, r, &items.items)?;
        self.clear_hint(r)?;
        self.pool.publish(POff::new(r.off + MERGE_AT), l.off);
        self.switch(l, merged);
        self.pool.publish(POff::new(r.off + FORWARD_AT), merged);
        drop((left, right));
        self.repair_left(l)?;
        self.shift_out(&parent.lock, first + 1);
        self.pool.publish(POff::new(above.entry_at(first) + 8), above.sealed(first, merged));
        for record in items.dropped {
            self.retire_record(record)?;
        }
        self.retire_node(l, false)?;
        self.retire_node(r, true)?;
        Ok(true)
    }

    /// Child `i` of the locked `parent`, proven to be of a lower level: locks are taken downward.
    pub(super) fn child(&self, parent: NodeRef<'_, N>, i: usize) -> Result<NodeRef<'_, N>> {
        let child = self.node(parent.ptr(i))?;
        if child.level() >= parent.level() {
            return Err(self.damaged(child.off, "a node of a lower level", "one as high as its parent"));
        }
        Ok(child)
    }

    /// A durable node with the entries of `l` and `r`.
    fn build_merged(&self, l: NodeRef<'_, N>, r: NodeRef<'_, N>, items: &[Item<'_>]) -> Result<u64> {
        let mut fresh = Fresh::new(&self.pool);
        let off = self.place(&mut fresh)?;
        let plan = Plan {
            level: l.level(),
            low: l.n.low,
            low_key: self.low_key(l)?,
            high: r.n.high,
            high_key: self.high_key(r)?,
            next: r.next(),
        };
        self.build(&mut fresh, off, &plan, items, None)?;
        self.totals.add(0, fresh.keep() as i64);
        self.pool.drain();
        Ok(off)
    }

    /// Replaces a root of one child by that child, as often as that is so.
    fn lower_root(&self) -> Result<()> {
        let _alone = self.root_lock.lock();
        loop {
            let root = self.node(self.header()?.root.load(Ordering::Acquire))?;
            if root.level() == 0 {
                return Ok(());
            }
            let lock = self.lock(root)?;
            if self.is_dead(root)? || root.count() != 1 {
                return Ok(());
            }
            let child = self.child(root, 0)?;
            if self.is_dead(child)? {
                return Ok(());
            }
            self.pool.publish(POff::new(self.header_off + ROOT_AT), child.off);
            // A writer that holds the old root must not take it for a parent any more.
            self.switch(root, child.off);
            drop(lock);
            self.retire_node(root, false)?;
        }
    }
}
