//! Growing the pool, and the extent table with it.
//!
//! Order of a growth: the medium, the new table segments (drained), then the size word. A crash before the size word
//! leaves a longer medium and the old pool; bytes behind the old pool's end are overwritten by the next growth.

use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};

use super::extents::{Live, Phase, Space};
use super::table::{Shape, Unit};
use crate::layout::SIZE_WORD_AT;
use crate::media::Granularity;
use crate::offset::POff;
use crate::pool::Pool;
use crate::word::{self, Tag};

/// The pool grows by a quarter of itself, but by no more than this at a time unless more is needed.
const STEP_MAX_BYTES: u64 = 1 << 30;

/// A small pool in an ordinary file grows by as much as it has, up to this: each growth waits for the drive. A tiny one
/// does not: little takes little.
const STEP_MIN_BYTES: u64 = 8 << 20;

/// A pool in an ordinary file that has grown past this ends at a multiple of it. The system maps a file in pages of
/// this size as far as the file fills them, and a store into the rest faults twice for each page of 4 KiB.
const HUGE_BYTES: u64 = 2 << 20;

/// How often a pool whose medium is full gives out an extent before it tries to grow again.
const TAKEN_BEFORE_A_TRY: u32 = 16;

impl Pool {
    /// Grows so that `units` in a row are free, and `more` somewhere; as far as it may if that is less. Then it
    /// returns why it is less.
    pub(super) fn grow_for(&self, space: &mut Space, units: u64, more: u64) -> Result<Option<Error>> {
        let limit = self.max_size() / self.extent_bytes();
        match self.grow_for_row(space, units.saturating_add(more)) {
            // Scattered units may suffice for the rest.
            Err(e) if e.is_out_of_space() && more > 0 && space.units < limit => {
                self.grow_for_row(space, units)?;
                if let Error::NoSpace { .. } = &e {
                    // The medium gives so much, and no more.
                    self.inner.alloc.taken_while_short.store(1, Ordering::Relaxed);
                }
                Ok(Some(e))
            }
            other => other.map(|()| None),
        }
    }

    fn grow_for_row(&self, space: &mut Space, units: u64) -> Result<()> {
        if space.units == 0 {
            return Err(self.corruption(0, "a pool that can be trusted", "one torn by a power cut"));
        }
        let limit = self.max_size() / self.extent_bytes();
        let needed =
            self.end_for(space, units).filter(|&end| end <= limit).ok_or_else(|| self.full(units))?;
        let [least, most] =
            [STEP_MIN_BYTES, STEP_MAX_BYTES].map(|bytes| (bytes / self.extent_bytes()).max(1));
        // Growing persistent memory waits for nothing.
        let in_file = self.granularity() == Granularity::Page;
        let is_tiny = space.units * self.extent_bytes() < HUGE_BYTES / 2;
        let least = if in_file && !is_tiny { least.min(space.units) } else { 1 };
        let mut step = (space.units / 4).clamp(least, most);
        if space.step_limit > 0 {
            step = step.min(space.step_limit);
        }
        let target = needed.max(space.units + step);
        let target = if in_file && space.step_limit == 0 { self.whole_pages(target) } else { target };
        let generous = target.min(limit);
        let generous = self.whole_segments(generous).max(needed);
        match self.grow_to(space, generous) {
            // The medium cannot give that much; perhaps it can give the needed amount. Others need room there, too: the
            // next steps begin small.
            Err(e) if e.is_out_of_space() && generous > needed => {
                space.step_limit = 1;
                // There may be such a row already, and too little beside it.
                if needed > space.units { self.grow_to(space, needed) } else { Err(e) }
            }
            other => {
                space.step_limit = space.step_limit.saturating_mul(2);
                other
            }
        }
    }

    /// Bytes that the pool may come to have, as far as is known: where its medium has refused to grow, those that it
    /// has.
    pub fn reachable_bytes(&self) -> u64 {
        match self.inner.alloc.taken_while_short.load(Ordering::Relaxed) {
            0 => self.max_size(),
            _ => self.size(),
        }
    }

    /// Whether whole extents of `bytes` in all are free, those included that the pool may come to have. Before it says
    /// no it does what a reservation does: it gives back empty slabs, and asks a medium that has refused to grow again.
    pub fn has_free_extents(&self, bytes: u64) -> bool {
        self.has_free_rows(bytes, 1)
    }

    /// The same for rows of extents that are side by side, each of `row` bytes.
    pub fn has_free_rows(&self, bytes: u64, row: u64) -> bool {
        let row = row.div_ceil(self.extent_bytes()).max(1);
        let has = || {
            let space = self.inner.alloc.space.lock();
            let to_come = (self.reachable_bytes() / self.extent_bytes()).saturating_sub(space.units);
            bytes <= (space.runs.in_rows(row) + to_come) * self.extent_bytes()
        };
        has() || {
            // A slab that cannot be given back is told of by who uses it.
            let _ = self.trim_slabs();
            self.is_still_short();
            has()
        }
    }

    /// The same for extents beside those that the calling thread must leave.
    pub fn has_extents(&self, bytes: u64) -> bool {
        self.has_free_extents(bytes.saturating_add(self.inner.alloc.kept.to_leave() * self.extent_bytes()))
    }

    /// Whether the medium refuses to let the pool grow. One that has refused is asked again: who would be told that
    /// there is no room takes nothing of the pool, so that nothing else asks.
    pub fn is_still_short(&self) -> bool {
        let is_short = || self.inner.alloc.taken_while_short.load(Ordering::Relaxed) > 0;
        is_short() && {
            self.grow_a_little(&mut self.inner.alloc.space.lock());
            is_short()
        }
    }

    /// Why `bytes` are refused that are there, and kept back.
    pub fn refusal(&self, bytes: u64) -> Error {
        let path = self.path().to_path_buf();
        match self.reachable_bytes() < self.max_size() {
            true => Error::NoSpace { path },
            false => Error::PoolFull { path, requested: bytes, size: self.max_size() },
        }
    }

    /// Grows a little now and then where the medium has refused to: see [`grow_a_little`](Self::grow_a_little).
    pub(super) fn try_to_grow_again(&self, space: &mut Space) {
        let taken = &self.inner.alloc.taken_while_short;
        match taken.load(Ordering::Relaxed) {
            0 => {}
            TAKEN_BEFORE_A_TRY => self.grow_a_little(space),
            times => taken.store(times + 1, Ordering::Relaxed),
        }
    }

    /// Of no use but to see whether there is room again.
    fn grow_a_little(&self, space: &mut Space) {
        let tail = space.units - space.runs.tail(space.units);
        let limit = self.max_size() / self.extent_bytes();
        if let Some(more) = self.end_for(space, tail + 1).filter(|&more| more <= limit) {
            // Refused again, it begins to count anew.
            let _ = self.grow_to(space, more);
        }
    }

    /// Smallest size in units at which `units` in a row are free behind the used ones. A table segment that comes to
    /// lie in between pushes the run behind itself.
    fn end_for(&self, space: &Space, units: u64) -> Option<u64> {
        let table = &self.inner.alloc.table;
        let mut start = space.runs.tail(space.units);
        let mut covered = table.covered(space.units);
        loop {
            let end = start.checked_add(units)?;
            if end <= covered {
                return Some(end);
            }
            let segment = table.segment_at(covered);
            start = segment.unit + segment.units;
            covered = covered.checked_mul(2)?;
        }
    }

    /// `units`, or more so that a large pool ends with a huge page.
    fn whole_pages(&self, units: u64) -> u64 {
        let page = HUGE_BYTES / self.extent_bytes();
        if page > 1 && units > page { units.next_multiple_of(page) } else { units }
    }

    /// `units`, or less so that the table segments up to it lie wholly inside.
    fn whole_segments(&self, units: u64) -> u64 {
        let cut = self.inner.alloc.table.segments(units).find(|s| units < s.unit + s.units);
        cut.map_or(units, |s| s.first)
    }

    /// Clears the words of a unit that the pool is about to reach: nobody has read them yet.
    fn format_unit(&self, unit: u64) {
        let table = &self.inner.alloc.table;
        let (word, digest) = (table.word(unit), table.digest(unit));
        for (at, value) in [(word, Unit::Free.encode(word.get())), (digest, 0)] {
            if self.atomic(at).load(Ordering::Relaxed) != value {
                self.store_flush(at, value);
            }
        }
    }

    fn grow_to(&self, space: &mut Space, units: u64) -> Result<()> {
        let alloc = &self.inner.alloc;
        let len = units * self.extent_bytes();
        if self.media().len() < len {
            let grown = self.grow_media(len);
            let is_short = matches!(grown, Err(Error::NoSpace { .. }));
            alloc.taken_while_short.store(is_short.into(), Ordering::Relaxed);
            grown?;
        }
        self.extend_len(len);
        let old = space.units;
        let added: Vec<_> = alloc.table.segments(units).filter(|s| s.first >= old.max(1)).collect();
        for segment in &added {
            self.copy_flush(segment.at, &alloc.table.format(segment));
        }
        let formatted = added.first().map_or(units, |segment| segment.first);
        (old..formatted).for_each(|unit| self.format_unit(unit));
        self.drain();
        self.publish(POff::new(SIZE_WORD_AT), word::seal(Tag::Size, SIZE_WORD_AT, units));
        let mut start = old;
        for s in added {
            space.runs.give(start, s.unit - start);
            let live = Live {
                units: s.units,
                kind: 0,
                shape: Shape::Extent,
                phase: Phase::Active,
                inherited: false,
            };
            space.live.insert(s.unit, live);
            start = s.unit + s.units;
        }
        space.runs.give(start, units - start);
        space.units = units;
        Ok(())
    }
}
