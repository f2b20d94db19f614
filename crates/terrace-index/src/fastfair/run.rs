//! Merging a run of changes into leaves, in place one by one or out of place: the leaf and the changes become one
//! or more new leaves, which take its place by one publish.

use terrace_base::Result;

use super::FastFair;
use super::build::{Fresh, Item, Plan};
use super::key::separator;
use super::lock::Locked;
use super::restructure::Gathered;
use super::search::Restarts;
use super::write::Parent;
use crate::change::Change;
use crate::point::PointIndex;

/// The replacement of a leaf.
struct Merged<'t> {
    items: Vec<Item<'t>>,
    /// Records that were made for it.
    new: Vec<u64>,
}

impl<const N: usize> FastFair<N> {
    /// Makes all `changes`, which ascend by key, one by one. Calls `edge` with the fences of the changed leaves.
    pub fn merge_in_place(&self, changes: &[Change<'_>], edge: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut done: Option<Vec<u8>> = None;
        for &Change { key, word, .. } in changes {
            match word {
                Some(word) => drop(self.insert(key, word)?),
                None => drop(self.remove(key)?),
            }
            if done.as_deref().is_none_or(|high| key >= high) {
                done = self.tell_fences(key, edge)?;
            }
        }
        Ok(())
    }

    /// Makes all `changes`, which ascend by key, those of a leaf at once. Calls `edge` with the fences of the changed
    /// leaves.
    pub fn merge_out_of_place(&self, changes: &[Change<'_>], edge: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut sets = Vec::with_capacity(changes.len());
        for change in changes {
            match change.word {
                None if change.is_new => {}
                None => drop(self.remove(change.key)?),
                Some(_) => sets.push(*change),
            }
        }
        let (mut left, mut restarts) = (&sets[..], Restarts::new());
        while let Some(first) = left.first() {
            let taken = self.merge_into_leaf(first.key, left, edge)?;
            left = &left[taken..];
            if taken == 0 {
                self.restart(&mut restarts)?;
            } else {
                restarts = Restarts::new();
            }
        }
        Ok(())
    }

    /// The high fence of the leaf that `key` belongs to.
    fn tell_fences(&self, key: &[u8], edge: &mut dyn FnMut(&[u8])) -> Result<Option<Vec<u8>>> {
        let _here = self.limbo.enter();
        let Some(leaf) = self.leaf_of(key)? else { return Ok(None) };
        if let Some(low) = self.low_key(leaf)? {
            edge(low);
        }
        let high = self.high_key(leaf)?;
        high.iter().for_each(|high| edge(high));
        Ok(high.map(<[u8]>::to_vec))
    }

    /// Leaves that one may become: with no more new siblings a parent that was just split has room for them.
    const MOST_LEAVES: usize = N / 4 + 1;

    /// Entries of each of several new leaves at most.
    const FULL: usize = N * 3 / 4;

    /// Makes the first of `changes`, whose first key is `key`, in its leaf; how many.
    fn merge_into_leaf(
        &self,
        key: &[u8],
        changes: &[Change<'_>],
        edge: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let _writing = self.totals.writing();
        let _here = self.limbo.enter();
        let held = self.hold(key, 0)?;
        if held.parent != Parent::Aware {
            drop(held);
            self.repair_parent(key, 0)?;
            return Ok(0);
        }
        let leaf = held.lock.node;
        let (low, high) = (self.low_key(leaf)?, self.high_key(leaf)?);
        low.iter().chain(&high).for_each(|fence| edge(fence));
        let own = changes.iter().take_while(|change| high.is_none_or(|high| change.key < high));
        let count = own.count().min(Self::MOST_LEAVES * Self::FULL - N);
        if count == 0 {
            return Err(self.damaged(leaf.off, "a leaf that ends behind its keys", "one that ends before"));
        }
        self.replace_leaf(held.lock, &changes[..count], edge)?;
        Ok(count)
    }

    /// Replaces a locked leaf that its parent names by one or more with `run` in them, and releases it.
    fn replace_leaf(
        &self,
        lock: Locked<'_, N>,
        run: &[Change<'_>],
        edge: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let old = lock.node;
        let Gathered { items, dropped } = self.gather(old)?;
        let mut fresh = Fresh::new(&self.pool);
        let Merged { items, new } = self.merge_items(&mut fresh, &items, run)?;
        if new.is_empty() {
            // Words have changed in their records, and that is all.
            return Ok(());
        }
        let first = self.build_leaves(&mut fresh, &lock, &items, edge)?;
        self.clear_hint(old)?;
        self.totals.add(0, fresh.keep() as i64);
        self.pool.drain();
        self.switch(old, first);
        let low = old.n.low;
        drop(lock);
        self.totals.add(new.len() as i64, 0);
        for record in new {
            self.cell(record)?.end();
        }
        for record in dropped {
            self.retire_record(record)?;
        }
        let key = self.fence(low)?.unwrap_or_default();
        match self.repair_parent(key, 0) {
            // The tree is correct as it is; a later writer updates the parent when there is room.
            Err(e) if e.is_out_of_space() => Ok(()),
            other => other,
        }
    }

    /// The entries of a locked leaf with those of `run` among them. Words of keys that are there are swapped.
    fn merge_items<'t>(
        &'t self,
        fresh: &mut Fresh<'_>,
        items: &[Item<'t>],
        run: &[Change<'t>],
    ) -> Result<Merged<'t>> {
        let mut out = Merged { items: Vec::with_capacity(items.len() + run.len()), new: Vec::new() };
        let mut rest = items;
        for &Change { key, word, .. } in run {
            let Some(word) = word else { continue };
            let before = rest.partition_point(|item| item.key < key);
            out.items.extend_from_slice(&rest[..before]);
            rest = &rest[before..];
            match rest.first() {
                Some(item) if item.key == key => self.set_word(item.ptr, word)?,
                _ => {
                    let ptr = fresh.record(key, word, self.generation)?;
                    out.items.push(Item { key, ptr });
                    out.new.push(ptr);
                }
            }
        }
        out.items.extend_from_slice(rest);
        Ok(out)
    }

    /// Swaps the word of a record in a locked leaf; one that has just been removed is revived.
    fn set_word(&self, record: u64, word: u64) -> Result<()> {
        let cell = self.cell(record)?;
        loop {
            let now = cell.load(0);
            if now == word || cell.compare_exchange(now, word, 0).is_ok() {
                self.totals.add(i64::from(now == 0), 0);
                return Ok(());
            }
        }
    }

    /// Builds leaves of `items` in the place of the locked one, and calls `edge` with their bounds; returns the first
    /// of them.
    fn build_leaves(
        &self,
        fresh: &mut Fresh<'_>,
        lock: &Locked<'_, N>,
        items: &[Item<'_>],
        edge: &mut dyn FnMut(&[u8]),
    ) -> Result<u64> {
        let old = lock.node;
        let low_key = self.low_key(old)?;
        let (mut high, mut high_key, mut next) = (old.n.high, self.high_key(old)?, old.next());
        let leaves = items.len().div_ceil(Self::FULL).max(1);
        // From right to left, since each names the next.
        for leaf in (0..leaves).rev() {
            let (from, to) = (items.len() * leaf / leaves, items.len() * (leaf + 1) / leaves);
            let (low, low_key) = match leaf {
                0 => (old.n.low, low_key),
                _ => {
                    let fence = separator(items[from - 1].key, items[from].key);
                    edge(fence);
                    (fresh.key(fence)?, Some(fence))
                }
            };
            let off = self.place(fresh)?;
            let plan = Plan { level: 0, low, low_key, high, high_key, next };
            self.build(fresh, off, &plan, &items[from..to], None)?;
            (high, high_key, next) = (low, low_key, off);
        }
        Ok(next)
    }
}
