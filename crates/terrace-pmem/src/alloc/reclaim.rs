//! Freeing objects that an unclean end left active without an owner.
//!
//! Everything active at such an open is *inherited*. Freeing an object ends its inheritance, so an object that takes
//! its place is not inherited. An object that is still inherited and not marked when the owners have marked all they
//! reach belongs to nobody, or to a mutator that unlinked it and has not freed it yet. In the pool it becomes free in
//! both cases, as after a crash. In DRAM it stays taken: a late free by the mutator that unlinked it is then in order,
//! and never hits another owner's object. Its memory is used again after that free, after a release, or after the next
//! open.
//!
//! So reclaiming runs beside mutators. The owners' walks obey one rule: an object that is reachable throughout a walk
//! is marked by it, even if it is moved meanwhile.
//!
//! Two debts are kept apart, because they end in different ways:
//!
//! - what was inherited. It ends when a reclaim has freed all of it, and not before: a reclaim that fails leaves it.
//! - what an owner has [noted](Pool::leave_unreclaimed) since the pool was opened. It stays until the close. Marks may
//!   have passed an object before its owner lost it, and one that was made since then is not inherited: so no reclaim
//!   before the close proves that it is gone.
//!
//! The close writes down whether there is either. Nothing has to be durable before: until then the state says that the
//! pool is not closed, and everything active at a crash is inherited by the next session. Flag and bitmaps cannot
//! contradict each other either: everything that was stored is durable before the close writes the flag.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::Kind;
use super::extents::Phase;
use super::marks::Marks;
use super::slab::{Slab, bit};
use super::table::{Shape, Unit};
use crate::pool::Pool;

impl Pool {
    /// Frees, in the pool, all objects that were active when it was opened after an unclean end, are not marked, and
    /// were not freed since. Returns their bytes; zero after a clean open. Afterwards everything is accounted for, and
    /// another call does nothing. After an error some may be left, for another call or for the next session.
    ///
    /// The memory is not given out again at once, since mutators may still hold what they unlinked: see
    /// [`release_reclaimed`](Self::release_reclaimed).
    pub fn reclaim(&self, marks: &Marks) -> Result<u64> {
        if !self.needs_reclaim() {
            return Ok(0);
        }
        let mut found = self.reclaim_extents(marks);
        for slab in self.inner.alloc.slabs.all() {
            found += self.reclaim_slots(&slab, marks.slots.get(&slab.unit).map(Vec::as_slice))?;
        }
        self.drain();
        // Only now: a thread that closes the pool beside this, or after an error, still finds the debt.
        self.inner.alloc.inherits.store(false, Ordering::Release);
        Ok(found)
    }

    /// Makes reclaimed memory available again. To be called once all objects that had been unlinked before the
    /// reclaiming were freed, so that no late free can come. The next open does it by itself. Returns the bytes.
    pub fn release_reclaimed(&self) -> Result<u64> {
        let mut released = 0;
        let extents: Vec<(u64, u64, Kind, Shape)> = {
            let space = self.inner.alloc.space.lock();
            let reclaimed = space.live.iter().filter(|(_, l)| l.phase == Phase::Reclaimed);
            reclaimed.map(|(&unit, l)| (unit, l.units, Kind(l.kind), l.shape)).collect()
        };
        for (unit, units, kind, shape) in extents {
            self.free_units(unit * self.extent_bytes(), kind, shape)?;
            released += units * self.extent_bytes();
        }
        for slab in self.inner.alloc.slabs.all() {
            let reclaimed = slab.state.lock().all_reclaimed();
            for slot in reclaimed {
                self.give_slot(&slab, slot, true)?;
                released += u64::from(slab.geometry.class_bytes);
            }
        }
        Ok(released)
    }

    fn reclaim_extents(&self, marks: &Marks) -> u64 {
        let bytes = self.extent_bytes();
        let mut found = 0;
        let mut space = self.inner.alloc.space.lock();
        for (&unit, live) in space.live.iter_mut().filter(|(_, l)| l.inherited && l.phase == Phase::Active) {
            live.inherited = false;
            if !marks.whole.contains(&(unit * bytes)) {
                live.phase = Phase::Reclaimed;
                self.store_word(unit, Unit::Free);
                found += live.units * bytes;
            }
        }
        found
    }

    fn reclaim_slots(&self, slab: &Slab, marked: Option<&[u64]>) -> Result<u64> {
        let mut state = slab.state.lock();
        let orphans = state.orphans(marked);
        for &slot in &orphans {
            let (word, bit) = bit(slot);
            let active = slab.active(self, word)?;
            slab.set_active(self, word, active & !bit);
            state.reclaim(slot);
        }
        state.forget_inheritance();
        Ok(orphans.len() as u64 * u64::from(slab.geometry.class_bytes))
    }
}
