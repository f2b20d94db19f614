//! Attaching to a list: one walk along the chain that checks, drops and rebuilds.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::{Extent, POff};

use super::Inner;
use super::layout::{EXTENT_HEADER_BYTES, FIRST_DATA, OWNER_BYTES};
use super::read::{Node, compare};
use crate::guide::Target;

/// What the walk has found.
struct Walk {
    /// Extents by offset.
    extents: Vec<Extent>,
    /// For each extent of `extents`, the end of what is used in it.
    ends: Vec<u64>,
    used: u64,
}

impl Inner {
    /// Checks the chain and rebuilds what is volatile. Batches are dropped if they are not whole and
    /// `with_batches`.
    pub fn recover(&self, with_batches: bool) -> Result<()> {
        let mut walk = self.start_walk()?;
        if with_batches {
            self.drop_partial_batches(&walk)?;
        }
        let mut prev: Option<Node<'_>> = None;
        let mut at = self.after(self.head);
        while at != 0 {
            let node = self.checked_node(&walk.extents, at, prev)?;
            walk.take(self, &node)?;
            self.count(node.head.seq);
            // What a killed process stored may not have been written back; later records rely on it.
            self.pool.flush(at, 8);
            prev = Some(node);
            at = node.head.next.load(Ordering::Acquire);
        }
        self.pool.flush(self.head, 8);
        self.pool.drain();
        walk.finish(self);
        Ok(())
    }

    fn start_walk(&self) -> Result<Walk> {
        let mut extents = self.arena.extents()?;
        extents.sort_by_key(|e| e.offset);
        let begin = |e: &Extent| {
            e.offset + if e.offset == self.arena.first() { FIRST_DATA } else { EXTENT_HEADER_BYTES }
        };
        let ends = extents.iter().map(begin).collect();
        Ok(Walk { extents, ends, used: 0 })
    }

    /// The node at `at`, wholly inside the arena, sound, and after `prev`.
    fn checked_node(&self, extents: &[Extent], at: u64, prev: Option<Node<'_>>) -> Result<Node<'_>> {
        let inside = |from: u64, to: u64| {
            let i = extents.partition_point(|e| e.offset <= from);
            i > 0
                && from >= extents[i - 1].offset + EXTENT_HEADER_BYTES
                && to <= extents[i - 1].offset + extents[i - 1].bytes
        };
        if !at.is_multiple_of(8) || at == self.head || !inside(at, at) {
            return Err(self.damaged(at, "a link into the list's arena", "a link out of it"));
        }
        let node = self.node(at)?;
        let fields = node.head.fields();
        if !inside(at - OWNER_BYTES, at + fields.above()) || !self.is_sound(&node)? {
            return Err(self.damaged(at, "a record with its checksum", "other bytes"));
        }
        if prev.is_some_and(|prev| !compare(&prev, node.key, node.head.seq).is_lt()) {
            return Err(self.damaged(at, "records in ascending order", "a record out of order"));
        }
        Ok(node)
    }

    /// Unlinks the records of every batch that is not wholly in the chain. A crash in the middle leaves such
    /// batches as partial as they were.
    fn drop_partial_batches(&self, walk: &Walk) -> Result<()> {
        let mut linked: HashMap<u64, u32> = HashMap::new();
        let mut partial = 0u64;
        self.for_each_checked(walk, |node| {
            if node.head.batch_len > 1 {
                let n = linked.entry(node.head.batch_first).or_default();
                *n += 1;
                partial += u64::from(*n == 1);
                partial -= u64::from(*n == node.head.batch_len);
            }
        })?;
        if partial == 0 {
            return Ok(());
        }
        let whole = |node: &Node<'_>| {
            node.head.batch_len <= 1 || linked.get(&node.head.batch_first) == Some(&node.head.batch_len)
        };
        let (mut keep, mut at) = (self.head, self.after(self.head));
        while at != 0 {
            let node = self.node(at)?;
            if whole(&node) {
                self.relink(keep, at);
                keep = at;
            }
            at = node.head.next.load(Ordering::Acquire);
        }
        self.relink(keep, 0);
        self.pool.drain();
        Ok(())
    }

    fn relink(&self, from: u64, to: u64) {
        if self.after(from) != to {
            self.pool.store_flush(POff::new(from), to);
        }
    }

    fn for_each_checked(&self, walk: &Walk, mut visit: impl FnMut(&Node<'_>)) -> Result<()> {
        let mut prev = None;
        let mut at = self.after(self.head);
        while at != 0 {
            let node = self.checked_node(&walk.extents, at, prev)?;
            visit(&node);
            prev = Some(node);
            at = node.head.next.load(Ordering::Acquire);
        }
        Ok(())
    }
}

impl Walk {
    /// Adds `node`, the next of the chain, to the guide and to what is used.
    fn take(&mut self, list: &Inner, node: &Node<'_>) -> Result<()> {
        list.mark_settled(node.offset);
        list.guide.append(Target { key: node.key, seq: node.head.seq }, node.offset)?;
        let fields = node.head.fields();
        let end = (node.offset + fields.above()).next_multiple_of(8);
        self.used += end - (node.offset - OWNER_BYTES);
        let i = self.extents.partition_point(|e| e.offset <= node.offset) - 1;
        self.ends[i] = self.ends[i].max(end);
        Ok(())
    }

    /// Lets allocation go on where most room is left.
    fn finish(self, list: &Inner) {
        let room =
            |i: &usize| (self.extents[*i].offset + self.extents[*i].bytes).saturating_sub(self.ends[*i]);
        if let Some(i) = (0..self.extents.len()).max_by_key(room) {
            let end = self.extents[i].offset + self.extents[i].bytes;
            list.arena.resume(self.ends[i], end, self.used);
        }
    }
}
