//! Reserving, activating and freeing slots.
//!
//! Each kind and class has a shelf: the slabs with free slots, on a few lists between which threads spread.
//! Freeing finds the slab by its unit. A slab that becomes empty goes back to the extents unless it is the
//! last on its list; when the pool is full the last ones go too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrace_base::Result;

use super::class::{CLASSES, Geometry, class_for};
use super::slab::{Slab, SlabState, bit, slots_in};
use super::table::Shape;
use super::{Kind, Reservation, Slot, owned};
use crate::pool::Pool;
use crate::thread_slot;

const STRIPES: usize = 4;

type List = Mutex<Vec<Arc<Slab>>>;

/// The lists of one kind, by class.
#[derive(Default)]
pub(super) struct KindShelves([Shelf; CLASSES.len()]);

/// Slabs of one class with free slots, and perhaps some without that were not taken off yet.
#[derive(Default)]
struct Shelf {
    stripes: [CachePadded<List>; STRIPES],
    /// Slabs that are set aside.
    aside: List,
}

impl Pool {
    /// Bytes of extents of its own that a reservation of `bytes` takes; zero where that takes a slot of a slab.
    pub fn own_extent_bytes(&self, bytes: u64) -> u64 {
        match class_for(bytes, self.extent_bytes()) {
            Some(_) => 0,
            None => bytes.next_multiple_of(self.extent_bytes()),
        }
    }

    /// Reserves at least `bytes`: a slot of the next class, or extents if they are more than the largest.
    /// Nothing in the pool changes until it is activated.
    ///
    /// Errors: [`PoolFull`](terrace_base::Error::PoolFull) if the pool can grow no further,
    /// [`NoSpace`](terrace_base::Error::NoSpace) if its disk is full.
    pub fn reserve(&self, kind: Kind, bytes: u64) -> Result<Slot> {
        owned(kind)?;
        self.admit(bytes)?;
        let Some(class) = class_for(bytes, self.extent_bytes()) else {
            let (unit, units) = self.reserve_units(kind.0, Shape::Large, bytes)?;
            let extent = self.extent_bytes();
            return Ok(Slot { offset: unit * extent, bytes: units * extent, kind });
        };
        if let Some(slot) = self.take_slot(kind, class) {
            return Ok(slot);
        }
        match self.more_slots(kind, class) {
            Ok(()) => {}
            Err(e) if e.is_out_of_space() => {}
            Err(e) => return Err(e),
        }
        // Another thread may have taken every slot of the new slab, or freed one where there was none.
        match self.take_slot(kind, class) {
            Some(slot) => Ok(slot),
            None => self.reserve_again(kind, class),
        }
    }

    #[cold]
    fn reserve_again(&self, kind: Kind, class: usize) -> Result<Slot> {
        loop {
            self.more_slots(kind, class)?;
            if let Some(slot) = self.take_slot(kind, class) {
                return Ok(slot);
            }
        }
    }

    /// Provides slots of a kind and class: by a slab that was set aside, or else by a new one.
    fn more_slots(&self, kind: Kind, class: usize) -> Result<()> {
        if !self.may_add_slab(kind) {
            return Err(self.full(1));
        }
        if self.take_back_aside(kind, class) { Ok(()) } else { self.new_slab(kind, class) }
    }

    /// Stores and flushes the word that makes a reservation active. The caller drains, and only then publishes a link
    /// to it. Panics if it is not reserved.
    pub fn activate<R: Reservation>(&self, reservation: &R) {
        let (offset, _) = reservation.place();
        match self.slab_of(offset) {
            Some((slab, slot)) => {
                let state = slab.state.lock();
                let (word, bit) = bit(slot);
                let active = slab.active(self, word);
                let Ok(active) = active else { panic!("a slab in use was overwritten: {active:?}") };
                assert!(
                    state.is_taken(slot) && active & bit == 0,
                    "slot {offset:#x} is activated without being reserved"
                );
                slab.set_active(self, word, active | bit);
            }
            None => self.activate_units(offset / self.extent_bytes()),
        }
    }

    /// Takes a reservation back. One that was activated is freed, so it must not have been linked. After a panic nobody
    /// knows that: it stays, and the next writer's [`reclaim`](Pool::reclaim) decides.
    pub fn cancel<R: Reservation>(&self, reservation: R) {
        if std::thread::panicking() {
            return self.leave_unreclaimed();
        }
        let (offset, kind) = reservation.place();
        let Some((slab, slot)) = self.slab_of(offset) else {
            let shape = self.shape_of(offset).unwrap_or(Shape::Extent);
            return self.cancel_units(offset, kind, shape);
        };
        let reserved = {
            let state = slab.state.lock();
            let (word, bit) = bit(slot);
            assert!(state.is_taken(slot), "slot {offset:#x} is cancelled without being reserved");
            slab.active(self, word).is_ok_and(|active| active & bit == 0)
        };
        let freed =
            if reserved { self.give_slot(&slab, slot, false) } else { self.give_slot(&slab, slot, true) };
        assert!(freed.is_ok(), "what is cancelled was reserved: {freed:?}");
    }

    /// Frees an active slot. The caller has durably unlinked it and nobody reads it. The change is flushed, not
    /// drained: a crash before this thread's next drain may leave the slot active, for
    /// [`reclaim`](Pool::reclaim) to find.
    ///
    /// Errors: [`Corruption`](terrace_base::Error::Corruption) if no such slot of this kind is active.
    pub fn free(&self, offset: u64, kind: Kind) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        match self.slab_of(offset) {
            Some((slab, slot)) if slab.kind == kind => self.give_slot(&slab, slot, true),
            Some((slab, _)) => {
                Err(self.corruption(offset, format!("a slot of {kind:?}"), format!("one of {:?}", slab.kind)))
            }
            None => self.free_units(offset, kind, Shape::Large),
        }
    }

    /// Whether an active slot of a kind begins at `offset`, which may be any.
    pub fn is_active(&self, offset: u64, kind: Kind) -> bool {
        match self.slab_of(offset) {
            Some((slab, slot)) => {
                let _state = slab.state.lock();
                let (word, bit) = bit(slot);
                slab.kind == kind && slab.active(self, word).is_ok_and(|active| active & bit != 0)
            }
            None => self.is_active_large(offset, kind),
        }
    }

    /// Offset and usable bytes of every active slot of a kind, ascending. Slots that come and go meanwhile may
    /// or may not be among them.
    pub fn slots(&self, kind: Kind) -> impl Iterator<Item = (u64, u64)> + use<> {
        let mut slots = Vec::new();
        for slab in self.inner.alloc.slabs.all().iter().filter(|s| s.kind == kind) {
            let _state = slab.state.lock();
            let active = |word: usize| slab.active(self, word as u32).unwrap_or(0);
            let found = slots_in(slab.geometry.words() as usize, active);
            slots
                .extend(found.into_iter().map(|s| (slab.offset_of(s), u64::from(slab.geometry.class_bytes))));
        }
        slots.extend(self.large_slots(kind));
        slots.sort_unstable();
        slots.into_iter()
    }

    /// Bytes of the slots of these kinds that are taken, active or reserved.
    pub fn taken_bytes(&self, kinds: &[Kind]) -> u64 {
        let slabs = self.inner.alloc.slabs.all();
        let taken = |slab: &Slab| {
            let slots = slab.geometry.slots - slab.state.lock().free.min(slab.geometry.slots);
            u64::from(slots) * u64::from(slab.geometry.class_bytes)
        };
        let in_slabs: u64 =
            slabs.iter().filter(|slab| kinds.contains(&slab.kind)).map(|slab| taken(slab)).sum();
        let large = kinds.iter().flat_map(|kind| self.large_slots(*kind));
        in_slabs + large.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Offsets of about `wanted` of the active slots of these kinds, from all over the pool; of all where there are no
    /// more.
    pub fn some_slots(&self, kinds: &[Kind], wanted: usize) -> Vec<u64> {
        let slabs = self.inner.alloc.slabs.all();
        let of_kinds: Vec<_> = slabs.iter().filter(|slab| kinds.contains(&slab.kind)).collect();
        let taken =
            |slab: &Slab| (slab.geometry.slots - slab.state.lock().free.min(slab.geometry.slots)) as usize;
        let all: usize = of_kinds.iter().map(|slab| taken(slab)).sum();
        let mut found = Vec::new();
        for slab in of_kinds.into_iter().step_by((all / wanted.max(1)).max(1)) {
            let _state = slab.state.lock();
            let active = |word: usize| slab.active(self, word as u32).unwrap_or(0);
            found.extend(
                slots_in(slab.geometry.words() as usize, active).into_iter().map(|s| slab.offset_of(s)),
            );
        }
        let large = kinds.iter().flat_map(|kind| self.large_slots(*kind));
        found.extend(large.take(wanted).map(|(offset, _)| offset));
        found
    }

    /// The slab that holds the slot at `offset`; `None` if there is no slab or no slot begins there.
    pub(super) fn slab_of(&self, offset: u64) -> Option<(Arc<Slab>, u32)> {
        let slab = self.inner.alloc.slabs.get(offset / self.extent_bytes())?;
        let slot = slab.slot_at(offset)?;
        Some((slab, slot))
    }

    /// Registers a slab and puts it on a list.
    pub(super) fn adopt_slab(&self, slab: Slab) {
        let slabs = &self.inner.alloc.slabs;
        let free = u64::from(slab.state.lock().free) * u64::from(slab.geometry.class_bytes);
        slabs.add_free(free as i64);
        let stripe = thread_slot::current() % STRIPES;
        slab.stripe.store(stripe as u8, Ordering::Relaxed);
        let slab = Arc::new(slab);
        slabs.insert(slab.clone());
        self.list(&slab);
    }

    fn stripe(&self, kind: Kind, class: usize, stripe: usize) -> &List {
        &self.inner.alloc.shelves(kind).0[class].stripes[stripe]
    }

    /// Takes a slot from this thread's list, or else from another's.
    fn take_slot(&self, kind: Kind, class: usize) -> Option<Slot> {
        let own = thread_slot::current() % STRIPES;
        (0..STRIPES).find_map(|i| self.take_slot_from(kind, class, (own + i) % STRIPES))
    }

    fn take_slot_from(&self, kind: Kind, class: usize, stripe: usize) -> Option<Slot> {
        let (offset, bytes) = {
            let mut list = self.stripe(kind, class, stripe).lock();
            loop {
                let slab = list.last()?.clone();
                let mut state = slab.state.lock();
                let slot = state.take(&slab.geometry);
                if state.free == 0 {
                    state.listed = false;
                    list.pop();
                }
                if let Some(slot) = slot {
                    break (slab.offset_of(slot), u64::from(slab.geometry.class_bytes));
                }
            }
        };
        self.inner.alloc.slabs.add_free(-(bytes as i64));
        Some(Slot { offset, bytes, kind })
    }

    /// Makes a slab: its head is durable before its table word says that there is one.
    fn new_slab(&self, kind: Kind, class: usize) -> Result<()> {
        let (unit, _) = self.reserve_units(kind.0, Shape::Slab, 1)?;
        let geometry = Geometry::new(CLASSES[class], self.extent_bytes());
        let slab = Slab::format(self, unit, kind, class, geometry);
        self.activate_units(unit);
        self.drain();
        self.adopt_slab(slab);
        Ok(())
    }

    /// Gives a slot back, clearing its bit if it is active.
    pub(super) fn give_slot(&self, slab: &Arc<Slab>, slot: u32, active: bool) -> Result<()> {
        let (is_off, is_aside, empty) = {
            let mut state = slab.state.lock();
            let (word, bit) = bit(slot);
            if active && !state.forget_reclaimed(slot) {
                let bits = slab.active(self, word)?;
                if bits & bit == 0 || state.retired {
                    return Err(self.corruption(slab.offset_of(slot), "an active slot", "a free one"));
                }
                slab.set_active(self, word, bits & !bit);
            }
            state.give(slot);
            (!state.listed, state.aside, slab.is_empty(&state))
        };
        self.inner.alloc.slabs.add_free(i64::from(slab.geometry.class_bytes));
        match (is_aside, empty) {
            (true, true) => return self.retire_aside(slab),
            (true, false) => return Ok(()),
            (false, _) if is_off => self.list(slab),
            (false, _) => {}
        }
        if empty {
            self.retire_slab(slab, 1)?;
        }
        Ok(())
    }

    /// Puts a slab on its list unless it is there.
    fn list(&self, slab: &Arc<Slab>) {
        let stripe = usize::from(slab.stripe.load(Ordering::Relaxed));
        let mut list = self.stripe(slab.kind, slab.class, stripe).lock();
        let mut state = slab.state.lock();
        if !state.listed && !state.retired && !state.aside && state.free > 0 {
            state.listed = true;
            list.push(slab.clone());
            // It goes behind the slab in use, so that emptier slabs have time to become empty.
            let last = list.len() - 1;
            list.swap(last, last.saturating_sub(1));
            for at in [last.saturating_sub(1), last] {
                list[at].place.store(at, Ordering::Relaxed);
            }
        }
    }

    /// Gives an empty slab's extent back if more than `keep` slabs are on its list; whether it did.
    fn retire_slab(&self, slab: &Arc<Slab>, keep: usize) -> Result<bool> {
        {
            let stripe = usize::from(slab.stripe.load(Ordering::Relaxed));
            let mut list = self.stripe(slab.kind, slab.class, stripe).lock();
            let mut state = slab.state.lock();
            if state.retired || !state.listed || list.len() <= keep || !slab.is_empty(&state) {
                return Ok(false);
            }
            state.retired = true;
            unlist(&mut list, slab, &mut state);
        }
        self.give_extent(slab)?;
        Ok(true)
    }

    /// Gives back the extent of a slab that has just been retired.
    fn give_extent(&self, slab: &Slab) -> Result<()> {
        let slabs = &self.inner.alloc.slabs;
        slabs.remove(slab.unit);
        slabs.add_free(-(i64::from(slab.geometry.slots) * i64::from(slab.geometry.class_bytes)));
        self.free_units(slab.offset, slab.kind, Shape::Slab)
    }

    /// Sets a slab aside and holds it, unless somebody else does, or it is gone.
    pub(super) fn set_aside(&self, slab: &Arc<Slab>) -> bool {
        let shelf = &self.inner.alloc.shelves(slab.kind).0[slab.class];
        let mut aside = shelf.aside.lock();
        let stripe = usize::from(slab.stripe.load(Ordering::Relaxed));
        let mut list = shelf.stripes[stripe].lock();
        let mut state = slab.state.lock();
        if state.retired || state.held {
            return false;
        }
        if state.listed {
            unlist(&mut list, slab, &mut state);
        }
        if !state.aside {
            aside.push(slab.clone());
        }
        (state.aside, state.held) = (true, true);
        true
    }

    /// Gives back the extent of a slab that is set aside, if it is empty and nobody holds it.
    pub(super) fn retire_aside(&self, slab: &Arc<Slab>) -> Result<()> {
        {
            let mut aside = self.inner.alloc.shelves(slab.kind).0[slab.class].aside.lock();
            let mut state = slab.state.lock();
            if state.retired || state.held || !state.aside || !slab.is_empty(&state) {
                return Ok(());
            }
            state.retired = true;
            aside.retain(|other| !Arc::ptr_eq(other, slab));
        }
        self.give_extent(slab)
    }

    /// Puts a slab that was set aside, and that nobody holds, on its list again; whether there was one with a free
    /// slot.
    fn take_back_aside(&self, kind: Kind, class: usize) -> bool {
        let slab = {
            let mut aside = self.inner.alloc.shelves(kind).0[class].aside.lock();
            let free = aside.iter().position(|slab| {
                let mut state = slab.state.lock();
                let may = !state.held && state.free > 0;
                state.aside &= !may;
                may
            });
            free.map(|i| aside.swap_remove(i))
        };
        slab.inspect(|slab| self.list(slab)).is_some()
    }

    /// Gives back every empty slab that is on a list; whether there was one.
    pub(super) fn trim_slabs(&self) -> Result<bool> {
        let mut any = false;
        for slab in self.inner.alloc.slabs.all() {
            let empty = slab.is_empty(&slab.state.lock());
            any |= empty && self.retire_slab(&slab, 0)?;
        }
        Ok(any)
    }
}

/// Takes a slab off the list on which it is.
fn unlist(list: &mut Vec<Arc<Slab>>, slab: &Slab, state: &mut SlabState) {
    state.listed = false;
    let place = slab.place.load(Ordering::Relaxed);
    list.swap_remove(place);
    if let Some(moved) = list.get(place) {
        moved.place.store(place, Ordering::Relaxed);
    }
}
