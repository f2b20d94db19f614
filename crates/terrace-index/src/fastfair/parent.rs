//! Updates parents, root and left siblings after changes below and beside them.
//!
//! None of it is needed for correct answers: a reader finds its way through forward links and siblings. The thread that
//! changed a node does it right afterwards; any writer that finds it undone, as after a crash, does it too.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::POff;

use super::FastFair;
use super::build::{Fresh, Item, Plan};
use super::key::{Target, slice};
use super::layout::ROOT_AT;
use super::node::NodeRef;
use super::search::Restarts;
use super::write::{Held, Parent};

impl<const N: usize> FastFair<N> {
    /// Makes the parent of the node of `level` that `key` belongs to name that node, and its new siblings.
    pub(super) fn repair_parent(&self, key: &[u8], level: u8) -> Result<()> {
        let above = self.above(level)?;
        let mut restarts = Restarts::new();
        loop {
            let Some(held) = self.try_hold(key, above)? else {
                return self.repair_root();
            };
            if self.repair_entry(held, key)? {
                return Ok(());
            }
            self.restart(&mut restarts)?;
        }
    }

    /// The level above another.
    fn above(&self, level: u8) -> Result<u8> {
        let above = level.checked_add(1);
        above.ok_or_else(|| self.damaged(self.header_off, "a tree of less than 256 levels", "more"))
    }

    /// Repairs the entry of the held parent that leads to `key`; false if it had to be restructured first.
    fn repair_entry(&self, held: Held<'_, N>, key: &[u8]) -> Result<bool> {
        let parent = held.lock.node;
        let (at, _) = self.route(parent, Target::At(key))?;
        let child = self.child(parent, at)?;
        let target = self.live(child.off)?;
        if target.off == child.off {
            return Ok(true);
        }
        if target.n.low != child.n.low {
            return Err(self.damaged(parent.off, "a parent that knows of merges", "one that does not"));
        }
        // First the new siblings, from the right, and only then the node itself: no entry may lead to a node
        // whose high fence lies before the next separator (invariant 4).
        let missing = self.missing_siblings(parent, at, target)?;
        let mut count = parent.count();
        if at >= count {
            return Err(self.damaged(
                parent.off,
                "a parent that nobody else changes",
                "one that lies under others",
            ));
        }
        let lows = missing.iter().map(|n| Ok(self.low_key(*n)?.unwrap_or_default()));
        let lows = lows.collect::<Result<Vec<_>>>()?;
        for low in &lows {
            if count + missing.len() > N || !self.suits(parent, low)? {
                if held.parent == Parent::Aware {
                    self.restructure(held.lock, low)?;
                } else {
                    drop(held);
                    self.repair_parent(key, parent.level())?;
                }
                return Ok(false);
            }
        }
        for (sibling, low) in missing.iter().zip(&lows).rev() {
            self.shift_in(&held.lock, count, at + 1, slice(low, parent.skip()), sibling.off);
            count += 1;
        }
        // The parent's entry is the last to name the dead node: the thread that changes it retires the node, and after
        // a crash before that the node is found here again.
        self.repair_left(child)?;
        self.pool.publish(POff::new(parent.entry_at(at) + 8), parent.sealed(at, target.off));
        drop(held);
        self.retire_node(child, false)?;
        Ok(true)
    }

    /// The living nodes from `first` on, itself left out, that belong under entry `at` of the locked `parent`.
    fn missing_siblings<'t>(
        &'t self,
        parent: NodeRef<'t, N>,
        at: usize,
        first: NodeRef<'t, N>,
    ) -> Result<Vec<NodeRef<'t, N>>> {
        let end = match parent.ptr(at + 1) {
            0 => self.high_key(parent)?,
            next => self.low_key(self.node(next)?)?,
        };
        let mut out = Vec::new();
        let mut restarts = Restarts::new();
        let mut node = first;
        while let Some(high) = self.high_key(node)? {
            if end.is_some_and(|end| high >= end) {
                break;
            }
            self.restart(&mut restarts)?;
            node = self.live(node.next())?;
            out.push(node);
        }
        Ok(out)
    }

    /// Makes the living left sibling of the dead `node` skip it.
    pub(super) fn repair_left(&self, node: NodeRef<'_, N>) -> Result<()> {
        let Some(low) = self.low_key(node)? else { return Ok(()) };
        let mut restarts = Restarts::new();
        loop {
            self.restart(&mut restarts)?;
            let Some(arrival) = self.descend(Target::Before(low), node.level())? else { return Ok(()) };
            let lock = self.lock(arrival.node)?;
            if self.is_dead(arrival.node)? {
                continue;
            }
            self.repair_next(lock.node)?;
            return Ok(());
        }
    }

    /// Makes a locked node's `next` name a living node.
    pub(super) fn repair_next(&self, node: NodeRef<'_, N>) -> Result<()> {
        let next = node.next();
        if next != 0 {
            let living = self.live(next)?;
            if living.off != next {
                self.pool.publish(POff::new(node.off + super::layout::NEXT_AT), living.off);
            }
        }
        Ok(())
    }

    /// Makes the root pointer name the living root, or a new one over the parts into which it has been split.
    pub(super) fn repair_root(&self) -> Result<()> {
        let _alone = self.root_lock.lock();
        let old = self.node(self.header()?.root.load(Ordering::Acquire))?;
        let first = self.live(old.off)?;
        if first.off == old.off && first.next() == 0 {
            return Ok(());
        }
        let root = if first.next() == 0 { first.off } else { self.build_root(first)? };
        self.pool.publish(POff::new(self.header_off + ROOT_AT), root);
        if old.off != first.off {
            self.retire_node(old, false)?;
        }
        Ok(())
    }

    /// A durable inner node over `first` and its right siblings.
    fn build_root(&self, first: NodeRef<'_, N>) -> Result<u64> {
        let mut items = vec![Item { key: &[], ptr: first.off }];
        let mut node = first;
        while node.next() != 0 && items.len() < N {
            node = self.live(node.next())?;
            items.push(Item { key: self.low_key(node)?.unwrap_or_default(), ptr: node.off });
        }
        let mut fresh = Fresh::new(&self.pool);
        let off = self.place(&mut fresh)?;
        let level = self.above(first.level())?;
        let plan = Plan { level, low: 0, low_key: None, high: 0, high_key: None, next: 0 };
        self.build(&mut fresh, off, &plan, &items, None)?;
        self.totals.add(0, fresh.keep() as i64);
        self.pool.drain();
        Ok(off)
    }
}
