//! Reserving, activating and freeing whole extents.

use std::collections::BTreeMap;

use terrace_base::{Error, Result};

use super::runs::Runs;
use super::table::{Shape, Unit};
use super::{Extent, Kind, owned};
use crate::pool::Pool;

/// The units of the pool: the free ones, and the uses of the others.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(super) runs: Runs,
    /// By first unit.
    pub(super) live: BTreeMap<u64, Live>,
    /// Units in the pool; zero until the table was loaded.
    pub(super) units: u64,
    /// Steps in which it grows at most, in units, since the medium has refused one; 0: as usual.
    pub(super) step_limit: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    pub units: u64,
    pub kind: u8,
    pub shape: Shape,
    pub phase: Phase,
    /// Active at an unclean open, and not accounted for since.
    pub inherited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Taken, and unknown to the pool.
    Reserved,
    /// Its word says that it is active.
    Active,
    /// Its word was cleared, and is being drained.
    Freeing,
    /// Its word was cleared by reclaiming; not given out again before it is freed or released.
    Reclaimed,
}

impl Pool {
    /// Reserves at least `bytes` in whole extents. Nothing in the pool changes until it is activated.
    ///
    /// Errors: [`Error::PoolFull`] if the pool can grow no further, [`Error::NoSpace`] if its disk is full.
    pub fn reserve_extent(&self, kind: Kind, bytes: u64) -> Result<Extent> {
        owned(kind)?;
        self.admit(bytes)?;
        let (unit, units) = self.reserve_units(kind.0, Shape::Extent, bytes)?;
        Ok(Extent { offset: unit * self.extent_bytes(), bytes: units * self.extent_bytes(), kind })
    }

    /// Frees an active extent: durably, at once. The caller has durably unlinked it and nobody reads it.
    ///
    /// Errors: [`Error::Corruption`] if no such extent of this kind is active.
    pub fn free_extent(&self, offset: u64, kind: Kind) -> Result<()> {
        self.free_units(offset, kind, Shape::Extent)
    }

    /// The active extents of a kind, ascending.
    pub fn extents(&self, kind: Kind) -> Vec<Extent> {
        let bytes = self.extent_bytes();
        let space = self.inner.alloc.space.lock();
        let mine = space
            .live
            .iter()
            .filter(|(_, l)| l.kind == kind.0 && l.shape == Shape::Extent && l.phase == Phase::Active);
        mine.map(|(unit, l)| Extent { offset: unit * bytes, bytes: l.units * bytes, kind }).collect()
    }

    /// Whether nothing was ever put into it, or nothing is left of that.
    pub fn is_unused(&self) -> bool {
        self.used_units().is_empty()
    }

    /// The units that owners have in use, ascending.
    pub(crate) fn used_units(&self) -> Vec<u64> {
        let space = self.inner.alloc.space.lock();
        let owned = space.live.iter().filter(|(_, l)| l.kind != 0 && l.phase == Phase::Active);
        owned.flat_map(|(&unit, l)| unit..unit + l.units).collect()
    }

    /// Bytes free in the pool at its present size: whole extents and slots of slabs. The pool may grow by
    /// `max_size() - size()` beyond.
    pub fn free_bytes(&self) -> u64 {
        let units = self.inner.alloc.space.lock().runs.total();
        units * self.extent_bytes() + self.inner.alloc.slabs.free_bytes()
    }

    /// Bytes in use: the pool's size less what is free.
    pub fn used_bytes(&self) -> u64 {
        self.size().saturating_sub(self.free_bytes())
    }

    pub(super) fn reserve_units(&self, kind: u8, shape: Shape, bytes: u64) -> Result<(u64, u64)> {
        let units = bytes.div_ceil(self.extent_bytes()).max(1);
        match self.try_reserve_units(kind, shape, units) {
            Err(e) if e.is_out_of_space() && self.trim_slabs()? => self.try_reserve_units(kind, shape, units),
            other => other,
        }
    }

    fn try_reserve_units(&self, kind: u8, shape: Shape, units: u64) -> Result<(u64, u64)> {
        let leave = self.inner.alloc.kept.to_leave();
        let rows = self.inner.alloc.kept.rows_to_leave();
        let mut space = self.inner.alloc.space.lock();
        if let Some((in_rows, row)) = rows
            && space.units >= self.max_size() / self.extent_bytes()
            && space.runs.in_rows_without(units, row) < in_rows.min(space.runs.in_rows(row))
        {
            return Err(self.full(units));
        }
        let unit = match space.take(units, leave) {
            Some(unit) => {
                self.try_to_grow_again(&mut space);
                unit
            }
            None => {
                let refusal = self.grow_for(&mut space, units, leave)?;
                space.take(units, leave).ok_or_else(|| refusal.unwrap_or_else(|| self.full(units)))?
            }
        };
        debug_assert!(space.are_nobodys(unit, units), "invariant 1: one word for each unit in use");
        // The first is looked at alone: an extent may have very many.
        let is_head = || matches!(self.read_unit(unit), Ok(Unit::Head { .. }));
        debug_assert!(!is_head(), "invariant 3: a cleared word before another");
        space.live.insert(unit, Live { units, kind, shape, phase: Phase::Reserved, inherited: false });
        Ok((unit, units))
    }

    /// Stores and flushes the word that makes a reserved extent active.
    pub(super) fn activate_units(&self, unit: u64) {
        let mut space = self.inner.alloc.space.lock();
        let live = space.live.get_mut(&unit).filter(|l| l.phase == Phase::Reserved);
        let Some(live) = live else { panic!("extent {unit} is activated without being reserved") };
        live.phase = Phase::Active;
        let at = self.inner.alloc.table.word(unit);
        let head = Unit::Head { shape: live.shape, kind: live.kind, units: live.units };
        self.store_flush(at, head.encode(at.get()));
    }

    /// Takes a reservation back; an activated one is freed.
    pub(super) fn cancel_units(&self, offset: u64, kind: Kind, shape: Shape) {
        let unit = offset / self.extent_bytes();
        let mut space = self.inner.alloc.space.lock();
        if space.live.get(&unit).is_some_and(|l| l.phase == Phase::Reserved) {
            space.release(unit);
            return;
        }
        drop(space);
        let freed = self.free_units(offset, kind, shape);
        assert!(freed.is_ok(), "what is cancelled was reserved: {freed:?}");
    }

    pub(super) fn free_units(&self, offset: u64, kind: Kind, shape: Shape) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        let unit = offset / self.extent_bytes();
        let units = {
            let mut space = self.inner.alloc.space.lock();
            let live = space.live.get_mut(&unit).filter(|_| offset.is_multiple_of(self.extent_bytes()));
            let units = match live {
                Some(l)
                    if l.kind == kind.0
                        && l.shape == shape
                        && matches!(l.phase, Phase::Active | Phase::Reclaimed) =>
                {
                    (l.phase, l.inherited) = (Phase::Freeing, false);
                    l.units
                }
                other => {
                    let found = format!("{other:?}");
                    return Err(self.corruption(offset, format!("an active {shape:?} of {kind:?}"), found));
                }
            };
            self.store_word(unit, Unit::Free);
            units
        };
        // Before anyone can take the units again: a new head inside them must not meet the old one.
        self.drain();
        self.give_up_units(unit..unit + units);
        self.inner.alloc.space.lock().release(unit);
        Ok(())
    }

    pub(super) fn shape_of(&self, offset: u64) -> Option<Shape> {
        let space = self.inner.alloc.space.lock();
        space.live.get(&(offset / self.extent_bytes())).map(|l| l.shape)
    }

    pub(super) fn is_active_large(&self, offset: u64, kind: Kind) -> bool {
        let space = self.inner.alloc.space.lock();
        let live = space.live.get(&(offset / self.extent_bytes()));
        let is_start = offset.is_multiple_of(self.extent_bytes());
        is_start
            && live.is_some_and(|l| l.kind == kind.0 && l.shape == Shape::Large && l.phase == Phase::Active)
    }

    pub(super) fn large_slots(&self, kind: Kind) -> Vec<(u64, u64)> {
        let bytes = self.extent_bytes();
        let space = self.inner.alloc.space.lock();
        let mine = space
            .live
            .iter()
            .filter(|(_, l)| l.kind == kind.0 && l.shape == Shape::Large && l.phase == Phase::Active);
        mine.map(|(unit, l)| (unit * bytes, l.units * bytes)).collect()
    }

    pub(super) fn store_word(&self, unit: u64, value: Unit) {
        let at = self.inner.alloc.table.word(unit);
        self.store_flush(at, value.encode(at.get()));
    }

    pub(super) fn full(&self, units: u64) -> Error {
        let requested = units.saturating_mul(self.extent_bytes());
        Error::PoolFull { path: self.path().to_path_buf(), requested, size: self.max_size() }
    }
}

impl Space {
    /// Takes so many units in a row if `leave` others stay free.
    fn take(&mut self, units: u64, leave: u64) -> Option<u64> {
        let left = self.runs.total().checked_sub(units)?;
        if left >= leave { self.runs.take(units) } else { None }
    }

    /// Whether nothing in use has one of these units.
    fn are_nobodys(&self, unit: u64, units: u64) -> bool {
        let before = self.live.range(..unit + units).next_back();
        before.is_none_or(|(first, live)| first + live.units <= unit)
    }

    pub(super) fn release(&mut self, unit: u64) {
        if let Some(live) = self.live.remove(&unit) {
            self.runs.give(unit, live.units);
        }
    }
}
