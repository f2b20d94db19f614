//! Slots of every size, at the edges of the classes, and space that slots of one size give back to those of others.

use std::sync::Arc;

use terrace_pmem::{Granularity, Kind, MemMedia, Pool, PoolOptions, Slot};

use crate::support::{name, options};

const EXTENT: u64 = 64 << 10;
const POOL: u64 = 2 << 20;

fn pool() -> Pool {
    let media = MemMedia::new(POOL, POOL, Granularity::CacheLine).unwrap();
    let options = PoolOptions { size: POOL, max_size: POOL, extent_bytes: EXTENT, ..options() };
    Pool::create_on(Arc::new(media), name(), &options).unwrap()
}

/// Takes slots of `bytes` until there is no room, of one kind.
fn fill(pool: &Pool, kind: Kind, bytes: u64) -> Vec<Slot> {
    std::iter::from_fn(|| {
        let slot = pool.reserve(kind, bytes).ok()?;
        pool.activate(&slot);
        Some(slot)
    })
    .collect()
}

fn give(pool: &Pool, slots: impl IntoIterator<Item = Slot>) {
    slots.into_iter().for_each(|slot| pool.free(slot.offset, slot.kind).unwrap());
}

/// The edges of every class: one byte less, the class, one more; and those of extents.
fn edges() -> Vec<u64> {
    let pool = pool();
    let mut edges = vec![1];
    for bytes in 1..=3 * EXTENT {
        // The least of each class has a slot larger than what came before.
        if bytes.is_multiple_of(16) && bytes <= EXTENT / 8 || bytes.is_multiple_of(EXTENT) {
            let slot = pool.reserve(Kind(1), bytes).unwrap();
            if slot.bytes == bytes {
                edges.extend([bytes - 1, bytes, bytes + 1]);
            }
            pool.cancel(slot);
        }
    }
    edges
}

#[test]
fn slots_hold_what_was_asked_for_and_do_not_overlap() {
    let pool = pool();
    let edges = edges();
    assert!(edges.len() > 3 * 28, "{edges:?}");
    let mut slots: Vec<(u64, Slot)> = Vec::new();
    for bytes in edges {
        for kind in [Kind(1), Kind(2)] {
            let Ok(slot) = pool.reserve(kind, bytes) else { break };
            pool.activate(&slot);
            assert!(
                slot.bytes >= bytes && (bytes <= 256 || slot.bytes * 3 <= bytes * 4 || bytes > EXTENT / 8)
            );
            pool.write(slot.offset, &vec![slots.len() as u8; bytes as usize]);
            slots.push((bytes, slot));
        }
    }
    for (i, (bytes, slot)) in slots.iter().enumerate() {
        // SAFETY: nobody stores there meanwhile.
        let found = unsafe { pool.bytes(slot.offset, *bytes).unwrap() };
        assert!(found.iter().all(|byte| *byte == i as u8), "{bytes} bytes at {:#x}", slot.offset);
    }
    give(&pool, slots.into_iter().map(|(_, slot)| slot));
    assert_eq!(pool.check(&pool.marks()), []);
}

/// Of slots in the order in which they were taken most of the older are given back: what they had is there for others.
#[test]
fn most_is_given_back_and_other_sizes_come() {
    for (before, after) in
        [(24u64, 1000u64), (100, 8192), (100, 3 * EXTENT), (5000, 24), (70_000, 100), (448, 24)]
    {
        let pool = pool();
        let slots = fill(&pool, Kind(1), before);
        let kept = slots.len() / 10;
        give(&pool, slots[kept..].to_vec());
        let others = fill(&pool, Kind(2), after);
        let room = fill(&self::pool(), Kind(2), after).len();
        assert!(others.len() * 10 >= room * 8, "{} of {room} slots of {after} after {before}", others.len());
    }
}

/// Moves everything in slabs that can be emptied into others, as an owner would; the slots as they are then.
fn clear(pool: &Pool, slots: Vec<Slot>) -> Vec<Slot> {
    let mut slots: std::collections::BTreeMap<u64, Slot> = slots.into_iter().map(|s| (s.offset, s)).collect();
    for slab in pool.sparse_slabs(&[Kind(1)], 100) {
        let mut clearing = pool.clear_slab(slab).unwrap();
        assert!(pool.clear_slab(slab).is_none(), "two hold one slab");
        let there = clearing.slots();
        let moved: Vec<Slot> = pool.moving(clearing.kind(), || {
            let copy = |at: &u64| pool.reserve(Kind(1), slots[at].bytes).unwrap();
            there.iter().map(copy).inspect(|slot| pool.activate(slot)).collect()
        });
        assert!(moved.iter().all(|slot| slot.offset / EXTENT != slab / EXTENT));
        give(pool, there.iter().map(|at| slots.remove(at).unwrap()));
        slots.extend(moved.into_iter().map(|slot| (slot.offset, slot)));
        assert!(!clearing.is_gone());
        clearing.let_go().unwrap();
        assert!(clearing.is_gone());
    }
    slots.into_values().collect()
}

/// Of slots in no order nine of ten are given back: what they had is there for others once the rest has moved together,
/// for every pair of sizes.
#[test]
fn what_is_left_of_many_moves_together() {
    let sizes = [24u64, 100, 448, 1000, 5000, 8192];
    let mut rng = terrace_base::rng::Rng::new(1);
    for (before, after) in sizes.iter().flat_map(|a| [16, 300, 4000, 60_000].map(|b| (*a, b))) {
        let pool = pool();
        let slots = fill(&pool, Kind(1), before);
        let used = |slots: &[Slot]| slots.iter().map(|slot| slot.bytes).sum::<u64>();
        let (kept, gone): (Vec<Slot>, Vec<Slot>) = slots.into_iter().partition(|_| rng.one_in(10));
        give(&pool, gone);
        let sparse = fill(&pool, Kind(2), after);
        give(&pool, sparse.iter().copied());
        let kept = clear(&pool, kept);
        assert_eq!(pool.sparse_slabs(&[Kind(1)], 100), [] as [u64; 0]);
        let others = fill(&pool, Kind(2), after);
        let room = fill(&self::pool(), Kind(2), after).len();
        // All that is lost is the rest of one slab, and what does not fit at the ends of slabs.
        let left = (POOL - used(&kept) - 2 * EXTENT) as f64 / POOL as f64;
        let told = format!("{} of {room} slots of {after} after {before}, {}", others.len(), sparse.len());
        assert!(others.len() as f64 >= room as f64 * left * 0.94, "{told}");
        let mut marks = pool.marks();
        kept.iter().chain(&others).for_each(|slot| marks.slot(slot.offset).unwrap());
        assert_eq!(pool.check(&marks), []);
    }
}

/// A slab that is set aside is taken from again before another is made, but not while it is held.
#[test]
fn what_is_set_aside_is_not_lost() {
    let pool = pool();
    let slots = fill(&pool, Kind(1), 1000);
    let a_slab = slots.iter().filter(|slot| slot.offset / EXTENT == slots[0].offset / EXTENT).count();
    let (first, others) = slots.split_at(a_slab);
    give(&pool, first[1..].to_vec());
    let mut clearing = pool.clear_slab(first[0].offset / EXTENT * EXTENT).unwrap();
    assert_eq!(clearing.slots(), [first[0].offset]);
    assert!(fill(&pool, Kind(1), 1000).is_empty(), "a slab that is held");
    clearing.let_go().unwrap();
    assert!(!clearing.is_gone());
    let again = fill(&pool, Kind(1), 1000);
    assert_eq!(again.len(), a_slab - 1);
    // Given back while it is held, it goes when it is let go of.
    let clearing = pool.clear_slab(first[0].offset / EXTENT * EXTENT).unwrap();
    give(&pool, again);
    give(&pool, [first[0]]);
    assert!(!clearing.is_gone());
    drop(clearing);
    assert_eq!(fill(&pool, Kind(2), EXTENT).len(), 1);
    give(&pool, others.to_vec());
}
