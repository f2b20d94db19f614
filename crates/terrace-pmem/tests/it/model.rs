//! The allocator against a model: what is reserved, active and free, through reopenings of both kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_base::ErrorKind;
use terrace_pmem::{Extent, Granularity, Kind, Media, MemMedia, Opened, Pool, PoolOptions, Slot};

use crate::support::{name, options};

#[derive(Debug, Clone)]
enum Op {
    Slot { kind: u8, bytes: u64, link: bool },
    Extent { kind: u8, bytes: u64, link: bool },
    Reserve { bytes: u64, cancel: bool },
    Free { nth: usize },
    FreeTwice { nth: usize },
    FreeWrongKind { nth: usize },
    Reopen { clean: bool },
    Reclaim,
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![1u64..64, 1u64..512, 500u64..9000];
    prop_oneof![
        8 => (1u8..4, bytes.clone(), prop::bool::weighted(0.8))
            .prop_map(|(kind, bytes, link)| Op::Slot { kind, bytes, link }),
        2 => (1u8..4, 1u64..40_000, prop::bool::weighted(0.8))
            .prop_map(|(kind, bytes, link)| Op::Extent { kind, bytes, link }),
        2 => (bytes, any::<bool>()).prop_map(|(bytes, cancel)| Op::Reserve { bytes, cancel }),
        6 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        1 => any::<usize>().prop_map(|nth| Op::FreeTwice { nth }),
        1 => any::<usize>().prop_map(|nth| Op::FreeWrongKind { nth }),
        1 => any::<bool>().prop_map(|clean| Op::Reopen { clean }),
        1 => Just(Op::Reclaim),
    ]
}

/// An active object.
#[derive(Debug, Clone, Copy)]
struct Object {
    bytes: u64,
    kind: Kind,
    whole: bool,
    /// Reachable by its owner; what is not is left over for reclaiming.
    linked: bool,
    /// Active before the last unclean end.
    old: bool,
    pattern: u8,
}

struct World {
    media: Arc<MemMedia>,
    pool: Pool,
    opens: u64,
    objects: BTreeMap<u64, Object>,
    next_pattern: u8,
}

impl World {
    fn new() -> Self {
        let o = Self::options(0);
        let media = Arc::new(MemMedia::new(o.size, o.max_size, Granularity::CacheLine).unwrap());
        let pool = Pool::create_on(media.clone(), name(), &o).unwrap();
        World { media, pool, opens: 0, objects: BTreeMap::new(), next_pattern: 0 }
    }

    fn options(opens: u64) -> PoolOptions {
        let boot_id = Some(format!("boot {opens}"));
        PoolOptions { size: 64 << 10, max_size: 600 << 10, boot_id, ..options() }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Slot { kind, bytes, link } => match self.pool.reserve(Kind(kind), bytes) {
                Ok(slot) => {
                    assert!(slot.bytes >= bytes);
                    self.pool.activate(&slot);
                    self.add(slot.offset, slot.bytes, slot.kind, false, link);
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::PoolFull),
            },
            Op::Extent { kind, bytes, link } => match self.pool.reserve_extent(Kind(kind), bytes) {
                Ok(extent) => {
                    assert!(extent.bytes >= bytes);
                    self.pool.activate(&extent);
                    self.add(extent.offset, extent.bytes, extent.kind, true, link);
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::PoolFull),
            },
            Op::Reserve { bytes, cancel } => self.reserve_in_vain(bytes, cancel),
            Op::Free { nth } => {
                if let Some((offset, object)) = self.nth(nth) {
                    self.free(offset, object, object.kind).unwrap();
                    self.objects.remove(&offset);
                }
            }
            Op::FreeTwice { nth } => {
                if let Some((offset, object)) = self.nth(nth) {
                    self.free(offset, object, object.kind).unwrap();
                    self.objects.remove(&offset);
                    let again = self.free(offset, object, object.kind).unwrap_err();
                    assert_eq!(again.kind(), ErrorKind::Corruption);
                }
            }
            Op::FreeWrongKind { nth } => {
                if let Some((offset, object)) = self.nth(nth) {
                    let wrong = self.free(offset, object, Kind(99)).unwrap_err();
                    assert_eq!(wrong.kind(), ErrorKind::Corruption);
                }
            }
            Op::Reopen { clean } => self.reopen(clean),
            Op::Reclaim => self.reclaim(),
        }
    }

    fn reserve_in_vain(&mut self, bytes: u64, cancel: bool) {
        let before = self.pool.used_bytes();
        let extent: Option<Extent> = self.pool.reserve_extent(Kind(1), bytes).ok();
        let slot: Option<Slot> = self.pool.reserve(Kind(2), bytes).ok();
        if cancel {
            slot.into_iter().for_each(|s| self.pool.cancel(s));
            extent.into_iter().for_each(|e| self.pool.cancel(e));
            // A slab made for the slot may stay, empty.
            assert!(self.pool.used_bytes() <= before + 1024);
        } else {
            // Forgotten reservations live until the pool is opened again.
            self.reopen(true);
        }
    }

    fn add(&mut self, offset: u64, bytes: u64, kind: Kind, whole: bool, linked: bool) {
        let neighbour = self.objects.range(..offset + bytes).next_back();
        assert!(neighbour.is_none_or(|(&o, obj)| o + obj.bytes <= offset), "{offset:#x} is in use");
        self.next_pattern = self.next_pattern.wrapping_add(1);
        let pattern = self.next_pattern;
        self.pool.copy_persist(offset, &vec![pattern; bytes as usize]);
        self.objects.insert(offset, Object { bytes, kind, whole, linked, old: false, pattern });
    }

    fn nth(&self, nth: usize) -> Option<(u64, Object)> {
        let at = nth.checked_rem(self.objects.len())?;
        self.objects.iter().nth(at).map(|(&o, &obj)| (o, obj))
    }

    fn free(&self, offset: u64, object: Object, kind: Kind) -> terrace_base::Result<()> {
        if object.whole { self.pool.free_extent(offset, kind) } else { self.pool.free(offset, kind) }
    }

    fn reopen(&mut self, clean: bool) {
        self.reopen_owing(clean, self.pool.needs_reclaim());
    }

    fn reopen_owing(&mut self, clean: bool, debt: bool) {
        if clean {
            self.pool.close().unwrap();
        }
        self.opens += 1;
        self.pool = Pool::open_on(self.media.clone(), name(), &Self::options(self.opens)).unwrap();
        assert_eq!(self.pool.opened(), if clean { Opened::Clean } else { Opened::Crashed });
        assert_eq!(self.pool.needs_reclaim(), debt || !clean);
        let debt = self.pool.needs_reclaim();
        self.objects.values_mut().for_each(|o| o.old = debt);
    }

    fn marks(&self, which: impl Fn(&Object) -> bool) -> terrace_pmem::Marks {
        let mut marks = self.pool.marks();
        for (&offset, object) in self.objects.iter().filter(|(_, o)| which(o)) {
            if object.whole { marks.extent(offset).unwrap() } else { marks.slot(offset).unwrap() }
        }
        marks
    }

    fn reclaim(&mut self) {
        let freed = self.pool.reclaim(&self.marks(|o| o.linked)).unwrap();
        let lost: u64 = self.objects.values().filter(|o| o.old && !o.linked).map(|o| o.bytes).sum();
        assert_eq!(freed, lost);
        // Nothing of it is used again before it is released.
        assert_eq!(self.pool.release_reclaimed().unwrap(), lost);
        assert_eq!(self.pool.release_reclaimed().unwrap(), 0);
        self.objects.retain(|_, o| !o.old || o.linked);
        self.objects.values_mut().for_each(|o| o.old = false);
        assert!(!self.pool.needs_reclaim());
    }

    fn verify(&self) {
        assert_eq!(self.pool.check(&self.marks(|_| true)), []);
        for kind in 1..4 {
            let of = |whole: bool| {
                self.objects.iter().filter(move |(_, o)| o.kind == Kind(kind) && o.whole == whole)
            };
            let slots: Vec<_> = self.pool.slots(Kind(kind)).collect();
            assert_eq!(slots, of(false).map(|(&at, o)| (at, o.bytes)).collect::<Vec<_>>());
            let extents: Vec<_> = self.pool.extents(Kind(kind)).iter().map(|e| (e.offset, e.bytes)).collect();
            assert_eq!(extents, of(true).map(|(&at, o)| (at, o.bytes)).collect::<Vec<_>>());
        }
        for (&offset, object) in &self.objects {
            // SAFETY: nothing stores to the pool here.
            let bytes = unsafe { self.pool.bytes(offset, object.bytes) }.unwrap();
            assert!(bytes.iter().all(|&b| b == object.pattern), "{offset:#x} was overwritten");
        }
        let held: u64 = self.objects.values().map(|o| o.bytes).sum();
        assert!(self.pool.used_bytes() >= held);
        assert_eq!(self.pool.used_bytes() + self.pool.free_bytes(), self.pool.size());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn the_allocator_does_what_the_model_does(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
        world.verify();
        world.reopen(false);
        world.verify();
        world.reclaim();
        world.verify();
        for (offset, object) in world.objects.clone() {
            world.free(offset, object, object.kind).unwrap();
        }
        world.objects.clear();
        world.verify();
    }
}

#[test]
fn empty_slabs_go_back_when_extents_are_wanted() {
    let mut world = World::new();
    let slots: Vec<_> = std::iter::from_fn(|| world.pool.reserve(Kind(1), 64).ok()).collect();
    assert!(slots.len() > 7000, "{}", slots.len());
    assert_eq!(world.pool.reserve_extent(Kind(2), 1).unwrap_err().kind(), ErrorKind::PoolFull);
    slots.into_iter().for_each(|s| world.pool.cancel(s));
    while let Ok(extent) = world.pool.reserve_extent(Kind(2), 4096) {
        world.pool.activate(&extent);
        world.add(extent.offset, extent.bytes, extent.kind, true, true);
    }
    world.verify();
    assert!(world.pool.free_bytes() == 0);
}

#[test]
fn what_was_reclaimed_may_be_freed_late_and_once() {
    let mut world = World::new();
    for op in [
        Op::Slot { kind: 1, bytes: 100, link: false },
        Op::Slot { kind: 1, bytes: 100, link: false },
        Op::Extent { kind: 1, bytes: 100, link: false },
        Op::Slot { kind: 1, bytes: 10_000, link: false },
        Op::Reopen { clean: false },
    ] {
        world.apply(&op);
    }
    let objects: Vec<_> = world.objects.clone().into_iter().collect();
    let used = world.pool.used_bytes();
    assert_eq!(world.pool.reclaim(&world.pool.marks()).unwrap(), 128 + 128 + 4096 + 12288);
    assert_eq!(world.pool.slots(Kind(1)).count() + world.pool.extents(Kind(1)).len(), 0);
    // Not given out again yet.
    assert_eq!(world.pool.used_bytes(), used);
    for bytes in [100, 100, 10_000] {
        let slot = world.pool.reserve(Kind(1), bytes).unwrap();
        assert!(objects.iter().all(|&(offset, _)| offset != slot.offset));
        world.pool.cancel(slot);
    }
    let late: Vec<_> = objects.iter().filter(|(offset, _)| *offset != objects[0].0).collect();
    for &&(offset, object) in &late {
        world.free(offset, object, object.kind).unwrap();
        let again = world.free(offset, object, object.kind).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Corruption);
    }
    assert_eq!(world.pool.release_reclaimed().unwrap(), objects[0].1.bytes);
    assert_eq!(world.pool.check(&world.pool.marks()), []);
}

#[test]
fn a_debt_outlives_a_clean_close() {
    let mut world = World::new();
    world.apply(&Op::Slot { kind: 1, bytes: 100, link: false });
    world.reopen(false);
    world.reopen(true);
    assert!(world.pool.needs_reclaim());
    world.reclaim();
    world.reopen(true);
    assert!(!world.pool.needs_reclaim());
}

/// Where the pool is only read what it was closed with stays, and is not called lost: but what is gone is, and what is
/// lost where nothing was owed.
#[test]
fn a_debt_is_no_loss_to_a_reader() {
    let mut world = World::new();
    for link in [false, true] {
        world.apply(&Op::Slot { kind: 1, bytes: 100, link });
        world.apply(&Op::Extent { kind: 1, bytes: 100, link });
    }
    for owed in [true, false] {
        world.reopen(!owed);
        world.pool.close().unwrap();
        let read_only = PoolOptions { read_only: true, ..World::options(world.opens) };
        world.pool = Pool::open_on(world.media.clone(), name(), &read_only).unwrap();
        assert_eq!(world.pool.needs_reclaim(), owed);
        assert_eq!(world.pool.check(&world.marks(|o| o.linked)).len(), if owed { 0 } else { 2 });
        assert_eq!(world.pool.check(&world.marks(|_| true)), []);
        let mut gone = world.marks(|o| o.linked);
        let (&slot, object) = world.objects.iter().find(|(_, o)| !o.whole && o.linked).unwrap();
        gone.slot(slot + object.bytes).unwrap();
        assert_eq!(world.pool.check(&gone).len(), if owed { 1 } else { 3 });
        world.reopen(true);
        if owed {
            world.reclaim();
            world.apply(&Op::Slot { kind: 1, bytes: 100, link: false });
            world.apply(&Op::Extent { kind: 1, bytes: 100, link: false });
        }
    }
}

/// Nobody knows whether the marks have seen what an owner lost beside them.
#[test]
fn a_debt_that_is_noted_beside_the_marking_outlives_the_reclaim() {
    let mut world = World::new();
    world.apply(&Op::Slot { kind: 1, bytes: 100, link: false });
    world.reopen(false);
    let marks = world.marks(|_| true);
    world.pool.leave_unreclaimed();
    assert_eq!(world.pool.reclaim(&marks).unwrap(), 0);
    assert_eq!(world.pool.check(&world.pool.marks()), [], "the debt may be anything");
    world.reopen_owing(true, true);
    assert_eq!(world.pool.check(&world.pool.marks()).len(), 1, "it is to be paid first");
    world.reclaim();
    world.reopen(true);
    assert_eq!(world.pool.check(&world.pool.marks()), []);
}

/// Where a reclaim cannot be yet, what was inherited is not called lost; what is lost since is, and so is all after it.
#[test]
fn a_reclaim_that_is_put_off_is_still_owed() {
    let mut world = World::new();
    let lose = |world: &mut World| {
        world.apply(&Op::Slot { kind: 1, bytes: 100, link: false });
        world.apply(&Op::Extent { kind: 1, bytes: 100, link: false });
    };
    lose(&mut world);
    world.reopen(false);
    assert_eq!(world.pool.check(&world.pool.marks()).len(), 2);
    world.pool.put_off_reclaim();
    assert!(world.pool.is_reclaim_put_off());
    assert_eq!(world.pool.check(&world.pool.marks()), []);
    lose(&mut world);
    assert_eq!(world.pool.check(&world.pool.marks()).len(), 2);
    world.reclaim();
    assert!(!world.pool.is_reclaim_put_off());
    assert_eq!(world.pool.check(&world.pool.marks()).len(), 2);
}

#[test]
fn a_reclaim_that_fails_can_be_tried_again() {
    let mut world = World::new();
    // Of one slab, in several words of its bitmap.
    (0..100).for_each(|_| world.apply(&Op::Slot { kind: 1, bytes: 16, link: false }));
    world.reopen(false);
    let slab = world.pool.slots(Kind(1)).next().unwrap().0 & !4095;
    // SAFETY: a word of the slab's bitmap, which only this thread uses.
    let word = unsafe { &mut *world.media.base().add(slab as usize + 64 + 8).cast::<u64>() };
    *word ^= 1 << 50;
    assert_eq!(world.pool.reclaim(&world.pool.marks()).unwrap_err().kind(), ErrorKind::Corruption);
    assert!(world.pool.needs_reclaim());
    *word ^= 1 << 50;
    world.pool.reclaim(&world.pool.marks()).unwrap();
    assert_eq!(world.pool.check(&world.pool.marks()), []);
    assert_eq!(world.pool.release_reclaimed().unwrap(), 1600);
}

#[test]
fn check_finds_what_is_lost_doubled_or_gone() {
    let mut world = World::new();
    world.apply(&Op::Slot { kind: 1, bytes: 16, link: true });
    world.apply(&Op::Extent { kind: 1, bytes: 16, link: true });
    let (slot, extent) = (world.pool.slots(Kind(1)).next().unwrap().0, world.pool.extents(Kind(1))[0].offset);
    assert_eq!(world.pool.check(&world.pool.marks()).len(), 2);
    let mut twice = world.marks(|_| true);
    twice.slot(slot).unwrap();
    twice.extent(extent).unwrap();
    assert_eq!(world.pool.check(&twice).len(), 2);
    let all = world.marks(|_| true);
    world.pool.free(slot, Kind(1)).unwrap();
    world.pool.free_extent(extent, Kind(1)).unwrap();
    assert_eq!(world.pool.check(&all).len(), 2);
    assert!(world.pool.marks().extent(extent + 1).is_err());
    assert!(world.pool.marks().extent(1 << 40).is_err());
}
