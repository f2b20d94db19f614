//! Checks the chain of a list that is not in use yet, in several places at once.
//!
//! Records lie in the order in which they came, so that each step along the chain waits for memory; steps that do
//! not depend on each other wait together. So the chain is walked in stretches, each from a record that was found
//! by looking for one in some place of the arena, up to the next such record.
//!
//! 1. A record found in that way is sound, but perhaps not of the chain. Its stretch counts only if the chain leads to
//!    it; errors in other stretches do not matter.
//! 2. Every record of the chain is in the one stretch by which the chain goes on: a stretch ends where another begins.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::Extent;

use super::Inner;
use super::layout::{EXTENT_HEADER_BYTES, NODE_BYTES, OWNER_BYTES};
use super::read::{Node, compare};

/// Places of the arena in which a record to begin at is looked for.
const PLACES: u64 = 96;

/// Bytes in which it is looked for. In a list of larger records some places have none.
const LOOK_BYTES: u64 = 4 << 10;

/// Stretches walked at a time: more would displace what they have loaded for each other.
const AT_ONCE: usize = 12;

/// The bytes of the next record that are loaded while others are being checked: all of a small record.
const PREFETCH_BYTES: u64 = 256;

/// A part of the chain, or of something that looks like it.
struct Stretch<'a> {
    /// Its records so far, in order.
    records: Vec<u64>,
    /// The last of them.
    last: Option<Node<'a>>,
    /// The record to look at next; at the end, the one with which another stretch begins, or 0.
    at: u64,
}

impl Inner {
    /// All records of the chain in order; each is sound and after the one before it. An error says which is not.
    pub(super) fn checked_chain(&self, extents: &[Extent]) -> Result<Vec<u64>> {
        let first = self.after(self.head);
        if first == 0 {
            return Ok(Vec::new());
        }
        let mut begins = self.records_in_places(extents);
        begins.push(first);
        begins.sort_unstable();
        begins.dedup();
        let mut stretches = self.walk_stretches(extents, &begins);
        let mut chain: Vec<u64> = Vec::new();
        let mut at = first;
        while at != 0 {
            let Some(stretch) = stretches.remove(&at) else {
                return Err(self.damaged(at, "a chain with an end", "a chain that leads in circles"));
            };
            let (records, next) = stretch?;
            if let Some(&last) = chain.last() {
                self.check_order(&self.node(last)?, &self.node(at)?)?;
            }
            chain.extend(records);
            at = next;
        }
        Ok(chain)
    }

    /// Walks along from each record of `begins`, which are sorted, to the next of them or the chain's end. Returns, by
    /// first record, the records met and the end.
    fn walk_stretches(&self, extents: &[Extent], begins: &[u64]) -> HashMap<u64, Result<(Vec<u64>, u64)>> {
        let mut ended = HashMap::with_capacity(begins.len());
        let mut waiting = begins.iter();
        let mut begin = || waiting.next().map(|&at| Stretch { records: Vec::new(), last: None, at });
        let mut walking: Vec<Stretch<'_>> = std::iter::from_fn(&mut begin).take(AT_ONCE).collect();
        let mut i = 0;
        while !walking.is_empty() {
            i = (i + 1) % walking.len();
            let stretch = &mut walking[i];
            let outcome = match self.step(extents, stretch) {
                Ok(()) if stretch.at != 0 && begins.binary_search(&stretch.at).is_err() => continue,
                outcome => outcome,
            };
            let from = stretch.records.first().copied().unwrap_or(stretch.at);
            let stretch = match begin() {
                Some(next) => std::mem::replace(stretch, next),
                None => walking.swap_remove(i),
            };
            ended.insert(from, outcome.map(|()| (stretch.records, stretch.at)));
        }
        ended
    }

    /// Checks the record that `stretch` is at and moves on to the next.
    fn step<'a>(&'a self, extents: &[Extent], stretch: &mut Stretch<'a>) -> Result<()> {
        let node = self.checked_node(extents, stretch.at)?;
        if let Some(last) = &stretch.last {
            self.check_order(last, &node)?;
        }
        stretch.records.push(stretch.at);
        stretch.last = Some(node);
        stretch.at = node.head.next.load(Ordering::Acquire);
        self.pool.prefetch(stretch.at, PREFETCH_BYTES);
        Ok(())
    }

    fn check_order(&self, prev: &Node<'_>, node: &Node<'_>) -> Result<()> {
        match compare(prev, node.key, node.head.seq).is_lt() {
            true => Ok(()),
            false => Err(self.damaged(node.offset, "records in ascending order", "a record out of order")),
        }
    }

    /// The node at `at`, wholly inside the arena and sound.
    fn checked_node(&self, extents: &[Extent], at: u64) -> Result<Node<'_>> {
        if !self.may_be_node(extents, at) {
            return Err(self.damaged(at, "a link into the list's arena", "a link out of it"));
        }
        self.sound_node(extents, at)
            .ok_or_else(|| self.damaged(at, "a record with its checksum", "other bytes"))
    }

    pub(super) fn may_be_node(&self, extents: &[Extent], at: u64) -> bool {
        at.is_multiple_of(8) && at != self.head && is_inside(extents, at, at)
    }

    /// The node at a place that may be one's, if it is wholly inside the arena and sound.
    pub(super) fn sound_node(&self, extents: &[Extent], at: u64) -> Option<Node<'_>> {
        let node = self.node(at).ok()?;
        let above = node.head.fields().above();
        let inside = is_inside(extents, at - OWNER_BYTES, at + above);
        (inside && self.is_sound(&node).is_ok_and(|sound| sound)).then_some(node)
    }

    /// Records all over the arena: the first in each of some places that has one.
    fn records_in_places(&self, extents: &[Extent]) -> Vec<u64> {
        let bytes: u64 = extents.iter().map(|e| e.bytes).sum();
        let apart = (bytes / PLACES).max(LOOK_BYTES).next_multiple_of(8);
        let places = extents.iter().flat_map(|extent| {
            let begin = self.first_byte(extent) + OWNER_BYTES;
            (begin..extent.offset + extent.bytes).step_by(apart as usize).map(move |place| (extent, place))
        });
        places.filter_map(|(extent, place)| self.record_from(extent, place)).collect()
    }

    /// The first record of `extent` at `place` or within [`LOOK_BYTES`] after it.
    fn record_from(&self, extent: &Extent, place: u64) -> Option<u64> {
        let extents = std::slice::from_ref(extent);
        let end = (extent.offset + extent.bytes).saturating_sub(NODE_BYTES).min(place + LOOK_BYTES);
        (place..end).step_by(8).find(|&at| {
            // The link already rules out most places that are not records, before the checksum is computed.
            let next = self.after(at);
            let may_be = next < self.pool.size() && next.is_multiple_of(8);
            may_be && self.may_be_node(extents, at) && self.sound_node(extents, at).is_some()
        })
    }
}

/// Whether `from` and `to` are within the data of one of `extents`, which are sorted.
fn is_inside(extents: &[Extent], from: u64, to: u64) -> bool {
    let i = extents.partition_point(|e| e.offset <= from);
    i > 0
        && from >= extents[i - 1].offset + EXTENT_HEADER_BYTES
        && to <= extents[i - 1].offset + extents[i - 1].bytes
}
