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
