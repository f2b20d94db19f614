//! The memory of segments: extents of the pool, cut into as many segments as fit.
//!
//! The used segments of an extent are not recorded in the pool, since the directory names them. This module's state is
//! volatile; it is made from the directory when the table is opened.
//!
//! 1. An extent is the table's as long as it is listed here. It is activated and drained before a directory entry
//!    that names one of its segments is published.
//! 2. When the last segment of an extent is given back, the extent goes back to the pool.
//! 3. While writers are at rest each segment of these extents is free, or named by the directory, or in limbo.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_index::kinds;
use terrace_pmem::Pool;

/// The extents of a table.
pub(super) struct Space {
    pool: Pool,
    segment_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The free segments of each extent.
    free: BTreeMap<u64, Vec<u64>>,
    /// Extents with such segments.
    partial: BTreeSet<u64>,
}

impl Space {
    /// A space that holds nothing.
    pub fn new(pool: &Pool, segment_bytes: u64) -> Self {
        Space { pool: pool.clone(), segment_bytes, state: Mutex::default() }
    }

    fn extent_bytes(&self) -> u64 {
        self.segment_bytes.next_multiple_of(self.pool.extent_bytes())
    }

    /// The extent that a segment lies in.
    pub fn extent_of(&self, segment: u64) -> u64 {
        if self.segment_bytes >= self.pool.extent_bytes() {
            segment
        } else {
            segment - segment % self.pool.extent_bytes()
        }
    }

    fn segments_of(&self, extent: u64) -> impl Iterator<Item = u64> + use<> {
        let step = self.segment_bytes;
        (extent..extent + self.extent_bytes() / step * step).step_by(step as usize)
    }

    /// Whether a segment may lie at `segment`, given the offset and length of each extent that the pool knows as one of
    /// tables like this.
    pub fn admits(&self, segment: u64, extents: &BTreeMap<u64, u64>) -> bool {
        let extent = self.extent_of(segment);
        let place = segment - extent;
        extents.get(&extent) == Some(&self.extent_bytes())
            && place.is_multiple_of(self.segment_bytes)
            && place + self.segment_bytes <= self.extent_bytes()
    }

    /// Takes over the extents of the segments in `used`, with everything else in them free.
    pub fn adopt(&self, used: &BTreeSet<u64>) {
        let mut state = self.state.lock();
        let extents: BTreeSet<u64> = used.iter().map(|s| self.extent_of(*s)).collect();
        for extent in extents {
            let free: Vec<u64> = self.segments_of(extent).filter(|s| !used.contains(s)).collect();
            if !free.is_empty() {
                state.partial.insert(extent);
            }
            state.free.insert(extent, free);
        }
    }

    /// A free segment with arbitrary contents. The caller drains before it publishes a link to it.
    pub fn take(&self) -> Result<u64> {
        let mut state = self.state.lock();
        let extent = match state.partial.first() {
            Some(&extent) => extent,
            None => {
                let extent = self.pool.reserve_extent(kinds::CCEH, self.extent_bytes())?;
                let before = state.free.range(..extent.offset + extent.bytes).next_back();
                if before.is_some_and(|(held, _)| held + self.extent_bytes() > extent.offset) {
                    self.pool.cancel(extent);
                    return Err(self.pool.corruption(extent.offset, "a free extent", "one with segments"));
                }
                self.pool.activate(&extent);
                let mut free: Vec<u64> = self.segments_of(extent.offset).collect();
                free.reverse();
                state.free.insert(extent.offset, free);
                state.partial.insert(extent.offset);
                extent.offset
            }
        };
        let free = state.free.entry(extent).or_default();
        let segment = free.pop();
        if free.is_empty() {
            state.partial.remove(&extent);
        }
        segment.ok_or_else(|| self.pool.corruption(extent, "an extent with a free segment", "none"))
    }

    /// Gives back a segment that no durable link leads to and no thread reads.
    pub fn give(&self, segment: u64) {
        let mut state = self.state.lock();
        let extent = self.extent_of(segment);
        let Some(free) = state.free.get_mut(&extent) else { return };
        free.push(segment);
        if (free.len() as u64) < self.extent_bytes() / self.segment_bytes {
            state.partial.insert(extent);
            return;
        }
        state.free.remove(&extent);
        state.partial.remove(&extent);
        // Memory that cannot be freed is unreachable, and the pool's check finds it.
        let _ = self.pool.free_extent(extent, kinds::CCEH);
    }

    /// Gives all extents back: those of a table that nothing leads to.
    pub fn give_all(&self) {
        let held = std::mem::take(&mut *self.state.lock());
        for extent in held.free.into_keys() {
            // Memory that cannot be freed is unreachable, and the pool's check finds it.
            let _ = self.pool.free_extent(extent, kinds::CCEH);
        }
    }

    /// The problems of the segments of the extents held: each must be free, named by the directory, or waiting in
    /// limbo, and none may be in use outside of these extents.
    pub fn check(&self, named: &[u64], waiting: &[u64]) -> Vec<String> {
        let state = self.state.lock();
        let segments = state.free.keys().flat_map(|extent| self.segments_of(*extent));
        let mut uses: BTreeMap<u64, Vec<&str>> = segments.map(|segment| (segment, Vec::new())).collect();
        let free: Vec<u64> = state.free.values().flatten().copied().collect();
        let mut findings = Vec::new();
        for (how, those) in [("free", &free[..]), ("named", named), ("in limbo", waiting)] {
            for segment in those {
                match uses.get_mut(segment) {
                    Some(uses) => uses.push(how),
                    None => findings.push(format!("segment {segment:#x} is {how} and nobody's")),
                }
            }
        }
        uses.retain(|_, uses| uses.len() != 1);
        findings.extend(uses.into_iter().map(|(segment, uses)| match uses[..] {
            [] => format!("segment {segment:#x} is lost: it is neither free nor named nor in limbo"),
            _ => format!("segment {segment:#x} is {}", uses.join(" and ")),
        }));
        findings
    }

    /// The extents held, ascending.
    pub fn extents(&self) -> Vec<u64> {
        self.state.lock().free.keys().copied().collect()
    }

    /// Bytes of the pool held.
    pub fn bytes(&self) -> u64 {
        self.state.lock().free.len() as u64 * self.extent_bytes()
    }
}
