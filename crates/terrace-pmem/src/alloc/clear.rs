//! Nearly empty slabs: their owners move the remaining objects elsewhere, and the extents become free for everybody.
//!
//! A slab that is *set aside* is on no list, so nobody takes slots from it, and each freed slot makes it emptier. While
//! somebody *holds* it, it is not given back, and its active slots stay as they are. Once it is released, its extent is
//! given back with the last slot that is freed. If slots of its size run out before, it is put on its list again, in
//! place of a new slab. All of this is in DRAM: after a crash it is a slab like any other.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_base::Result;

use super::Kind;
use super::slab::{Slab, slots_in};
use crate::pool::Pool;

thread_local! {
    /// The kind that the calling thread moves, and its pool.
    static MOVING: Cell<Option<Moving>> = const { Cell::new(None) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moving {
    /// The address of the state that the pool's handles share.
    pool: usize,
    kind: Kind,
}

/// Restores the former value, also after a panic.
struct Before(Option<Moving>);

impl Drop for Before {
    fn drop(&mut self) {
        MOVING.set(self.0);
    }
}

/// A slab that is set aside and held, so that its owner can move its objects. Dropping it releases the slab.
#[derive(Debug)]
pub struct Clearing {
    pool: Pool,
    slab: Arc<Slab>,
    is_held: bool,
}

/// Figures about the slots of one kind and size.
#[derive(Debug, Default)]
struct Shelved {
    /// Slots that are free in slabs that are on a list.
    free: u64,
    slabs: Vec<Filled>,
}

/// How full a slab is.
#[derive(Debug, Clone, Copy)]
struct Filled {
    used: u64,
    slots: u64,
    offset: u64,
    /// The slab is set aside already.
    aside: bool,
}

impl Pool {
    /// Slabs of these kinds that could be emptied into others of their kind and size, those with the least in them
    /// first: their offsets. At most `most` hundredths of each are in use.
    pub fn sparse_slabs(&self, kinds: &[Kind], most: u64) -> Vec<u64> {
        let mut shelves: BTreeMap<(Kind, usize), Shelved> = BTreeMap::new();
        for slab in self.inner.alloc.slabs.all().iter().filter(|slab| kinds.contains(&slab.kind)) {
            let state = slab.state.lock();
            if !state.retired && !state.held {
                let shelved = shelves.entry((slab.kind, slab.class)).or_default();
                let (slots, free) = (u64::from(slab.geometry.slots), u64::from(state.free));
                shelved.free += if state.aside { 0 } else { free };
                let (offset, aside) = (slab.offset, state.aside);
                shelved.slabs.push(Filled { used: slots - free, slots, offset, aside });
            }
        }
        let mut chosen: Vec<(u64, u64)> = shelves.into_values().flat_map(|s| choose(s, most)).collect();
        chosen.sort_unstable();
        chosen.into_iter().map(|(_, offset)| offset).collect()
    }

    /// Sets the slab at `offset` aside and holds it; `None` if there is none, or somebody else holds it.
    pub fn clear_slab(&self, offset: u64) -> Option<Clearing> {
        let slab = self.inner.alloc.slabs.get(offset / self.extent_bytes())?;
        self.set_aside(&slab).then(|| Clearing { pool: self.clone(), slab, is_held: true })
    }

    /// Runs `work`, which moves objects of `kind`, on this thread. Their slots are taken from existing slabs; if these
    /// have none the pool counts as full.
    pub fn moving<T>(&self, kind: Kind, work: impl FnOnce() -> T) -> T {
        let _before = Before(MOVING.replace(Some(self.moving_of(kind))));
        work()
    }

    fn moving_of(&self, kind: Kind) -> Moving {
        Moving { pool: Arc::as_ptr(&self.inner).addr(), kind }
    }

    /// Whether the calling thread may add a slab to those of this kind: a thread that empties some of a kind adds none
    /// to it.
    pub(super) fn may_add_slab(&self, kind: Kind) -> bool {
        MOVING.get() != Some(self.moving_of(kind))
    }

    /// Bytes of all slabs, and of the slots that are free in them.
    pub fn slab_bytes(&self) -> (u64, u64) {
        let slabs = &self.inner.alloc.slabs;
        (slabs.count() * self.extent_bytes(), slabs.free_bytes())
    }
}

/// The slabs of one shelf that can be emptied into the others, with the hundredths of each that are in use.
fn choose(shelved: Shelved, most: u64) -> Vec<(u64, u64)> {
    let Shelved { mut free, mut slabs } = shelved;
    // Of two equally full slabs the one further behind is chosen, so that the remaining ones are at the front.
    slabs.sort_unstable_by_key(|slab| (slab.used, Reverse(slab.offset)));
    let mut chosen = Vec::new();
    for Filled { used, slots, offset, aside } in slabs {
        // Its own free slots disappear with it, and its used slots take free ones elsewhere.
        let taken = if aside { used } else { slots };
        if used == 0 {
            // If there is no room for its slots elsewhere, it stays.
            continue;
        }
        if used * 100 > most * slots {
            break;
        }
        if free >= taken {
            free -= taken;
            chosen.push((used * 100 / slots, offset));
        }
    }
    chosen
}

impl Clearing {
    /// The kind of its slots.
    pub fn kind(&self) -> Kind {
        self.slab.kind
    }

    /// The slots that are active in it. Until the slab is released they may be freed, but not reused.
    pub fn slots(&self) -> Vec<u64> {
        let _state = self.slab.state.lock();
        let active = |word: usize| self.slab.active(&self.pool, word as u32).unwrap_or(0);
        let found = slots_in(self.slab.geometry.words() as usize, active);
        found.into_iter().map(|slot| self.slab.offset_of(slot)).collect()
    }

    /// Releases the slab: it is given back when the last slot in it is freed, or now.
    pub fn let_go(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_held) {
            return Ok(());
        }
        let is_empty = {
            let mut state = self.slab.state.lock();
            state.held = false;
            self.slab.is_empty(&state)
        };
        if is_empty { self.pool.retire_aside(&self.slab) } else { Ok(()) }
    }

    /// Whether the slab has gone back to the extents.
    pub fn is_gone(&self) -> bool {
        self.slab.state.lock().retired
    }
}

impl Drop for Clearing {
    fn drop(&mut self) {
        // A slab that cannot be given back now is tried again when slots of its size run out.
        drop(self.let_go());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];

    /// Slabs of ten slots: used slots of each and its place; the last `aside` slabs are set aside.
    fn chosen(slabs: &[(u64, u64)], aside: usize, most: u64) -> Vec<u64> {
        let on_lists = slabs.len() - aside;
        let free = slabs[..on_lists].iter().map(|(used, _)| 10 - used).sum();
        let filled = slabs.iter().enumerate().map(|(i, &(used, offset))| Filled {
            used,
            slots: 10,
            offset,
            aside: i >= on_lists,
        });
        let slabs = filled.collect();
        choose(Shelved { free, slabs }, most).into_iter().map(|(_, offset)| offset).collect()
    }

    #[test]
    fn as_many_slabs_go_as_the_others_can_take_in() {
        assert_eq!(chosen(&[(1, 7)], 0, 100), NONE);
        assert_eq!(chosen(&[(1, 7), (1, 8)], 0, 100), [8]);
        assert_eq!(chosen(&[(1, 7), (9, 8), (1, 9)], 0, 100), [9]);
        assert_eq!(chosen(&[(1, 7), (8, 8), (1, 9)], 0, 100), [9, 7]);
        assert_eq!(chosen(&[(9, 1), (1, 2), (10, 3)], 0, 100), [2]);
        assert_eq!(chosen(&[(0, 1), (9, 2)], 0, 100), [2]);
        assert_eq!(chosen(&[(0, 1), (10, 2)], 0, 100), [2]);
        assert_eq!(chosen(&[(9, 1), (2, 2), (10, 3)], 0, 100), NONE);
        assert_eq!(chosen(&[(1, 1), (1, 2), (1, 3), (1, 4)], 0, 100), [4, 3, 2]);
    }

    #[test]
    fn what_is_set_aside_takes_nothing_in() {
        assert_eq!(chosen(&[(1, 7), (1, 8)], 1, 100), [8]);
        assert_eq!(chosen(&[(9, 7), (2, 8), (1, 9)], 2, 100), [9]);
        assert_eq!(chosen(&[(1, 7), (1, 8)], 2, 100), NONE);
    }

    #[test]
    fn what_is_too_full_stays() {
        assert_eq!(chosen(&[(4, 1), (4, 2)], 0, 50), [2]);
        assert_eq!(chosen(&[(4, 1), (4, 2)], 0, 39), NONE);
        assert_eq!(chosen(&[(6, 1), (2, 2), (2, 3)], 0, 50), [3, 2]);
    }
}
