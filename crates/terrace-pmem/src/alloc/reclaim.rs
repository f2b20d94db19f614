//! Freeing what an unclean end left active without an owner.
//!
//! Everything active at such an open is *inherited*. Freeing an object ends its inheritance, so whatever takes
//! its place is not inherited; `retire` ends it early. What is inherited when the owners have marked all they
//! reach, and is not marked, belongs to nobody: no mutator can reach it, and nothing else can free it. So
//! reclaiming runs beside mutators, as long as these keep two rules while the owners walk: an object is
//! retired before it is unlinked, and one that is moved within a structure is either not missed by the walk of
//! that structure or retired too.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::Kind;
use super::extents::Phase;
use super::marks::Marks;
use super::table::Shape;
use crate::pool::Pool;

impl Pool {
    /// Frees everything that was active when the pool was opened after an unclean end, is not marked, and was
    /// not freed or retired since. Bytes freed; zero after a clean open. Afterwards everything is accounted
    /// for, and another call does nothing.
    pub fn reclaim(&self, marks: &Marks) -> Result<u64> {
        if !self.inner.alloc.inherits.swap(false, Ordering::AcqRel) {
            return Ok(0);
        }
        let freed = self.reclaim_extents(marks)? + self.reclaim_slots(marks)?;
        self.drain();
        self.reclaimed();
        Ok(freed)
    }

    fn reclaim_extents(&self, marks: &Marks) -> Result<u64> {
        let bytes = self.extent_bytes();
        let orphans: Vec<(u64, u64, Kind, Shape)> = {
            let mut space = self.inner.alloc.space.lock();
            let inherited = space.live.iter_mut().filter(|(_, l)| l.inherited && l.phase == Phase::Active);
            let orphans = inherited.filter_map(|(unit, l)| {
                l.inherited = false;
                let orphan = !marks.whole.contains(&(unit * bytes));
                orphan.then_some((unit * bytes, l.units * bytes, Kind(l.kind), l.shape))
            });
            orphans.collect()
        };
        let mut freed = 0;
        for (offset, len, kind, shape) in orphans {
            self.free_units(offset, kind, shape)?;
            freed += len;
        }
        Ok(freed)
    }

    fn reclaim_slots(&self, marks: &Marks) -> Result<u64> {
        let mut freed = 0;
        for slab in self.inner.alloc.slabs.all() {
            let orphans = {
                let mut state = slab.state.lock();
                let orphans = state.orphans(marks.slots.get(&slab.unit).map(Vec::as_slice));
                state.forget_inheritance();
                orphans
            };
            for slot in orphans {
                self.give_slot(&slab, slot, true)?;
                freed += u64::from(slab.geometry.class_bytes);
            }
        }
        Ok(freed)
    }
}
