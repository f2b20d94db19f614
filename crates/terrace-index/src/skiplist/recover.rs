//! Attaching to a list: one walk along the chain checks it (`chain`), another drops and rebuilds.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::{Extent, POff};

use super::Inner;
use super::layout::{EXTENT_HEADER_BYTES, FIRST_DATA, NODE_BYTES, OWNER_BYTES};
use super::read::Node;
use crate::btree::Target;

/// Records ahead of the one being rebuilt whose heads and keys are loaded.
const AHEAD: usize = 16;
const AHEAD_BYTES: u64 = NODE_BYTES + 24;

/// The findings of the walk.
struct Reached<'e> {
    /// Extents by offset.
    extents: &'e [Extent],
    /// For each extent of `extents`, the end of what is used in it.
    ends: Vec<u64>,
    used: u64,
}

/// Batches of several records met on the walk, by their first numbers: how many records of each, and of how many.
#[derive(Default)]
struct Batches(HashMap<u64, (u32, u32)>);

impl Batches {
    /// Counts a record; false if it does not agree with others of its batch.
    fn take(&mut self, node: &Node<'_>) -> bool {
        if node.head.batch_len <= 1 {
            return true;
        }
        let (linked, of) = self.0.entry(node.head.batch_first).or_insert((0, node.head.batch_len));
        *linked += 1;
        *of == node.head.batch_len
    }

    fn are_whole(&self) -> bool {
        self.0.values().all(|(linked, of)| linked == of)
    }

    fn is_whole(&self, node: &Node<'_>) -> bool {
        node.head.batch_len <= 1
            || self.0.get(&node.head.batch_first).is_some_and(|(linked, of)| linked == of)
    }
}

/// The state of a list after the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovered {
    /// It is ready for use.
    Ready,
    /// Batches that were not whole have been dropped; it is to be attached anew.
    Shorter,
}

impl Inner {
    /// Checks the chain and rebuilds the volatile parts; stores nothing if there are no traces of a crash. With
    /// `with_batches`, batches that are not whole are dropped.
    pub fn recover(&self, with_batches: bool, visit: &mut dyn FnMut(&[u8])) -> Result<Recovered> {
        let extents = self.extents_by_offset()?;
        let chain = self.checked_chain(&extents)?;
        self.flush_links(&chain);
        let mut walk = self.start_walk(&extents);
        let mut upper = self.upper.appender();
        let mut batches = Batches::default();
        for (i, &at) in chain.iter().enumerate() {
            if let Some(&later) = chain.get(i + AHEAD) {
                self.pool.prefetch(later, AHEAD_BYTES);
            }
            let node = self.node(at)?;
            if with_batches && !batches.take(&node) {
                let found = "one of another length with its number";
                return Err(self.damaged(at, "a record of the batch that others belong to", found));
            }
            upper.append(Target { key: node.key, seq: node.head.seq }, at)?;
            walk.take(self, &node, with_batches);
            visit(node.key);
            self.count(node.head.seq);
        }
        drop(upper);
        if !batches.are_whole() {
            self.drop_partial_batches(&batches)?;
            return Ok(Recovered::Shorter);
        }
        if with_batches {
            // Later records have higher numbers. The owners that dead threads have left need not be cleared.
            self.durable_below
                .store(self.max_seq.load(Ordering::Relaxed).saturating_add(1), Ordering::Release);
        }
        walk.finish(self)?;
        Ok(Recovered::Ready)
    }

    /// Makes all links durable: stores of a killed process may not have been written back, and later records rely on
    /// them. This is done separately, since atomic operations in between would each wait for a flush.
    fn flush_links(&self, chain: &[u64]) {
        self.pool.flush(self.head, 8);
        chain.iter().for_each(|&at| self.pool.flush(at, 8));
        self.pool.drain();
    }

    /// The extents, by where they lie.
    fn extents_by_offset(&self) -> Result<Vec<Extent>> {
        let mut extents = self.arena.extents()?;
        extents.sort_by_key(|e| e.offset);
        Ok(extents)
    }

    fn start_walk<'e>(&self, extents: &'e [Extent]) -> Reached<'e> {
        let ends = extents.iter().map(|e| self.first_byte(e)).collect();
        Reached { extents, ends, used: 0 }
    }

    /// Where records begin in `extent`.
    pub(super) fn first_byte(&self, extent: &Extent) -> u64 {
        let is_first = extent.offset == self.arena.first();
        extent.offset + if is_first { FIRST_DATA } else { EXTENT_HEADER_BYTES }
    }

    /// Unlinks the records of every batch that is not wholly in the chain. A crash in the middle leaves such
    /// batches as partial as they were.
    fn drop_partial_batches(&self, batches: &Batches) -> Result<()> {
        let (mut keep, mut at) = (self.head, self.after(self.head));
        while at != 0 {
            let node = self.node(at)?;
            if batches.is_whole(&node) {
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
}

impl Reached<'_> {
    /// Adds `node`, the next of the chain, to the used parts.
    fn take(&mut self, list: &Inner, node: &Node<'_>, with_batches: bool) {
        if !with_batches {
            list.mark_durable(node.offset);
        }
        let fields = node.head.fields();
        let end = (node.offset + fields.above()).next_multiple_of(8);
        self.used += end - (node.offset - OWNER_BYTES);
        let i = self.extents.partition_point(|e| e.offset <= node.offset) - 1;
        self.ends[i] = self.ends[i].max(end);
    }

    /// Gives back the space of a failed group, and continues allocation where most room is left.
    fn finish(self, list: &Inner) -> Result<()> {
        let at = |extent: &Extent| self.extents.partition_point(|e| e.offset < extent.offset);
        if !list.pool.is_read_only() {
            list.arena.trim(|extent| self.ends[at(extent)] == list.first_byte(extent))?;
        }
        let left = list.arena.extents()?;
        let room = |extent: &&Extent| (extent.offset + extent.bytes).saturating_sub(self.ends[at(extent)]);
        if let Some(extent) = left.iter().max_by_key(room) {
            list.arena.resume(self.ends[at(extent)], extent.offset + extent.bytes, self.used);
        }
        Ok(())
    }
}
