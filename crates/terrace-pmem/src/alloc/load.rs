//! Rebuilding the free state at open, from the table and the slabs' heads and bitmaps.
//!
//! Every word is verified: a free unit that was in use, or the other way round, would be found only when two owners
//! write to it. Any mismatch is corruption, and the pool does not open.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::extents::{Live, Phase, Space};
use super::slab::Slab;
use super::table::{Shape, Unit};
use crate::pool::Pool;

impl Pool {
    /// Loads the table. `inherit` marks everything active as unaccounted for, see [`Pool::reclaim`].
    pub(crate) fn load_allocator(&self, inherit: bool) -> Result<()> {
        let mut space = Space { units: self.size() / self.extent_bytes(), ..Space::default() };
        let mut unit = 0;
        let mut free_from = 0;
        while unit < space.units {
            let Unit::Head { shape, kind, units } = self.read_unit(unit)? else {
                unit += 1;
                continue;
            };
            self.check_head(&space, unit, kind, shape, units)?;
            space.runs.give(free_from, unit - free_from);
            let inherited = inherit && kind != 0 && shape != Shape::Slab;
            space.live.insert(unit, Live { units, kind, shape, phase: Phase::Active, inherited });
            unit += units;
            free_from = unit;
        }
        space.runs.give(free_from, unit - free_from);
        self.check_segments(&space)?;
        for (&unit, _) in space.live.iter().filter(|(_, l)| l.shape == Shape::Slab) {
            self.adopt_slab(Slab::load(self, unit, inherit)?);
        }
        for (&unit, live) in space.live.iter().filter(|(_, l)| l.shape == Shape::Slab) {
            self.check_slab_kind(unit, live.kind)?;
        }
        self.inner.alloc.inherits.store(inherit, Ordering::Release);
        *self.inner.alloc.space.lock() = space;
        Ok(())
    }

    /// Loads the sound parts of the table and of the slabs. Extents that seem to be free are not given out.
    pub(crate) fn load_what_is_sound(&self) {
        let mut space = Space { units: self.size() / self.extent_bytes(), ..Space::default() };
        for unit in 0..space.units {
            let Ok(Unit::Head { shape, kind, units }) = self.read_unit(unit) else { continue };
            if self.check_head(&space, unit, kind, shape, units).is_err() {
                continue;
            }
            if shape == Shape::Slab {
                match Slab::load(self, unit, false) {
                    Ok(slab) if slab.kind.0 == kind => self.adopt_slab(slab),
                    _ => continue,
                }
            }
            let live = Live { units, kind, shape, phase: Phase::Active, inherited: false };
            space.live.insert(unit, live);
        }
        *self.inner.alloc.space.lock() = space;
    }

    pub(super) fn read_unit(&self, unit: u64) -> Result<Unit> {
        let at = self.inner.alloc.table.word(unit);
        let stored = self.atomic_checked(at)?.load(Ordering::Acquire);
        Unit::decode(at.get(), stored)
            .ok_or_else(|| self.corruption(at.get(), "a sound extent table word", format!("{stored:#018x}")))
    }

    fn check_head(&self, space: &Space, unit: u64, kind: u8, shape: Shape, units: u64) -> Result<()> {
        let at = self.inner.alloc.table.word(unit).get();
        let shape_ok = match shape {
            Shape::Extent => true,
            Shape::Slab => units == 1 && kind != 0,
            Shape::Large => kind != 0,
        };
        if units > space.units - unit || !shape_ok {
            let found = format!("{shape:?} of kind {kind}, {units} extents long");
            return Err(self.corruption(at, "an extent that fits into the pool", found));
        }
        for inside in unit + 1..unit + units {
            if self.read_unit(inside)? != Unit::Free {
                let at = self.inner.alloc.table.word(inside).get();
                return Err(self.corruption(at, "the inside of an extent", "the head of another"));
            }
        }
        Ok(())
    }

    fn check_segments(&self, space: &Space) -> Result<()> {
        for s in self.inner.alloc.table.segments(space.units) {
            if !space.live.get(&s.unit).is_some_and(|l| l.kind == 0 && l.units == s.units) {
                let at = self.inner.alloc.table.word(s.unit).get();
                return Err(self.corruption(at, "the extent of a table segment", "something else"));
            }
        }
        Ok(())
    }

    fn check_slab_kind(&self, unit: u64, kind: u8) -> Result<()> {
        match self.inner.alloc.slabs.get(unit) {
            Some(slab) if slab.kind.0 == kind => Ok(()),
            _ => {
                Err(self.corruption(unit * self.extent_bytes(), format!("a slab of kind {kind}"), "another"))
            }
        }
    }
}
