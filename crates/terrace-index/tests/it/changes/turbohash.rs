//! TurboHash: first buckets, rehashes, and what is published in a bucket.

use terrace_base::Result;
use terrace_index::{HashFigures, HashIndex, PointIndex, TurboHash, TurboHashOptions};
use terrace_pmem::Pool;
use terrace_sim::World;

use crate::bed::memory_pool;
use crate::conformance::{
    ByteCase, Case, SEED, StructureChange, bears_values_of_all_lengths, colliding, crash_in_each_event_of,
    falls, inserts, long, removes, rises, short,
};
use crate::subjects::Turbo;

type Table = TurboHash;
/// Two shards of one bucket at first.
type Tiny = Turbo<2, 1, 4>;

fn figures(table: &Table, _: &World) -> HashFigures {
    table.figures().unwrap()
}

fn events(_: &Table, world: &World) -> u64 {
    world.events()
}

/// Events of each operation.
fn each(events: &[u64]) -> Vec<u64> {
    events.windows(2).map(|e| e[1] - e[0]).collect()
}

/// Must catch a descriptor that names buckets before they are empty, durably.
#[test]
fn a_shard_has_its_first_buckets_or_none() {
    crash_in_each_event_of::<Tiny, _>(StructureChange {
        seed: 1,
        before: Vec::new(),
        change: inserts(1, (0..3).flat_map(|i| [short(i), long(i)])),
        sight: figures,
        proof: |seen| seen[0].buckets == 0 && seen.last().is_some_and(|f| f.buckets == 2),
    });
}

/// Must catch larger buckets that are in force before every key is in them.
#[test]
fn a_shard_that_grows_is_the_old_one_or_the_new_one() {
    fn grow<C: Case<Index = Table>>(seed: u64, key: fn(u64) -> Vec<u8>) {
        crash_in_each_event_of::<C, _>(StructureChange {
            seed,
            before: inserts(1, (0..18).map(key)),
            change: inserts(19, (18..30).map(key)),
            sight: figures,
            proof: |seen| seen.windows(2).any(|f| f[0].buckets > 0 && f[1].buckets > f[0].buckets),
        });
    }
    grow::<Tiny>(1, short);
    grow::<Tiny>(2, long);
    grow::<Turbo<2, 1, 1>>(3, |i| if i % 2 == 0 { short(i) } else { long(i) });
}

/// Of four and eight buckets several shards share an extent.
/// Must catch an extent that is freed with one shard while another still has buckets in it.
#[test]
fn shards_that_share_extents_grow() {
    crash_in_each_event_of::<Tiny, _>(StructureChange {
        seed: 1,
        before: inserts(1, (0..40).map(short)),
        change: inserts(41, (40..92).map(short)),
        sight: figures,
        proof: |seen| seen[0].buckets < 8 && seen.last().is_some_and(|f| f.buckets >= 8),
    });
}

/// Must catch a key that is lost, or a deleted one that is back, when a shard is written anew.
#[test]
fn a_shard_rid_of_deleted_keys_is_the_old_one_or_the_new_one() {
    for (seed, key) in [(1, short as fn(u64) -> Vec<u8>), (2, long)] {
        crash_in_each_event_of::<Tiny, _>(StructureChange {
            seed,
            before: inserts(1, (0..24).map(key)),
            change: removes((0..24).map(key)),
            sight: figures,
            proof: |seen| seen.windows(2).any(|f| f[0].deleted > 2 && f[1].deleted == 0 && f[1].keys > 0),
        });
    }
}

/// Few keys are left, and most of the slots are of deleted ones: that takes full buckets, whose keys go last.
/// Must catch smaller buckets that are in force before every key is in them.
#[test]
fn a_shard_that_shrinks_is_the_old_one_or_the_new_one() {
    let table = Tiny::create(&memory_pool()).unwrap();
    let keys = (0..110).map(short);
    keys.clone().for_each(|key| drop(table.insert(&key, 1)));
    let (first, last): (Vec<_>, _) = keys.clone().partition(|key| goes_without_trace(&table, key));
    crash_in_each_event_of::<Tiny, _>(StructureChange {
        seed: 1,
        before: [inserts(1, keys), removes(first)].concat(),
        change: removes(last),
        sight: figures,
        proof: |seen| seen.windows(2).any(|f| f[1].buckets < f[0].buckets),
    });
}

/// Removes a key, unless its slot would be one of a deleted key.
fn goes_without_trace(table: &TurboHash, key: &[u8]) -> bool {
    let deleted = || table.figures().unwrap().deleted;
    let (before, word) = (deleted(), table.remove(key).unwrap());
    let without_trace = deleted() == before;
    if !without_trace {
        table.insert(key, word.unwrap()).unwrap();
    }
    without_trace
}

/// Slots beside the header are written with it, others before it; updates empty and fill both. A record is written
/// before its slot in any case.
/// Must catch a slot that is emptied before the one that replaces it is durable.
#[test]
fn an_updated_key_has_its_old_word_or_its_new_one() {
    fn update(seed: u64, key: fn(u64) -> Vec<u8>, proof: fn(&[u64]) -> bool) {
        crash_in_each_event_of::<Tiny, _>(StructureChange {
            seed,
            before: inserts(1, (0..14).map(key)),
            change: inserts(100, (0..14).chain(0..4).map(key)),
            sight: events,
            proof,
        });
    }
    update(1, short, |seen| [1, 2].iter().all(|n| each(seen).contains(n)));
    update(2, long, |seen| each(seen).iter().all(|n| *n >= 2));
}

/// Where no path goes on a deleted key's slot becomes empty at once.
/// Must catch a tag without its slot, or a slot without its tag, that makes a deleted key half there.
#[test]
fn a_deleted_key_is_there_or_not() {
    for (seed, key) in [(1, short as fn(u64) -> Vec<u8>), (2, long)] {
        crash_in_each_event_of::<Tiny, _>(StructureChange {
            seed,
            before: inserts(1, (0..10).map(key)),
            change: [removes((0..6).map(key)), inserts(50, (2..5).map(key))].concat(),
            sight: figures,
            proof: |seen| seen.iter().all(|f| f.deleted == 0) && seen[6].keys == 4 && seen[9].keys == 7,
        });
    }
}

/// The filters of the buckets before it are durable before a key is behind them, also where it takes the place of a
/// deleted key beside the header.
/// Must catch a key behind a bucket whose filter does not lead on to it.
#[test]
fn a_key_away_from_its_home_is_found() {
    fn place<C: Case<Index = Table>>(seed: u64, key: fn(u64) -> Vec<u8>) {
        let turns = (0..30).flat_map(|i| [removes([key(i)]), inserts(100 + i, [key(100 + i)])]);
        crash_in_each_event_of::<C, _>(StructureChange {
            seed,
            before: inserts(1, (0..36).map(key)),
            change: [inserts(37, (36..46).map(key)), turns.flatten().collect()].concat(),
            sight: figures,
            proof: |seen| {
                let away = |f: &HashFigures| f.hits.iter().skip(1).sum::<u64>();
                let is_reused = |f: &[HashFigures]| f[1].deleted < f[0].deleted && away(&f[1]) > away(&f[0]);
                seen.windows(2).any(is_reused)
            },
        });
    }
    // Of these two come to a slot beside the header, which is written in one go with what publishes it.
    place::<Turbo<2, 2, 4>>(1, |i| short(2000 + i));
    place::<Turbo<2, 2, 4>>(2, long);
}

/// Thirteen keys of one hash fill the only bucket that they may lie in.
/// Must catch a key that is in a bucket and in the overflow, or in neither.
#[test]
fn a_key_without_a_place_is_in_the_overflow_or_not() {
    crash_in_each_event_of::<Turbo<2, 1, 1>, _>(StructureChange {
        seed: 5,
        before: inserts(1, (0..12).map(colliding)),
        change: [
            inserts(20, (10..17).map(colliding)),
            inserts(40, (12..15).map(colliding)),
            removes((0..2).chain(12..15).map(colliding)),
            inserts(60, (14..18).map(colliding)),
            removes((0..18).map(colliding)),
        ]
        .concat(),
        sight: |table, _| {
            let figures = table.figures().unwrap();
            figures.usable_slots - 13 * figures.buckets
        },
        proof: |seen| seen[0] == 0 && rises(seen.iter().copied()) && falls(seen.iter().copied()),
    });
}

/// A table of bytes.
struct OfBytes;

impl ByteCase for OfBytes {
    type Table = TurboHash;
    fn create(pool: &Pool) -> Result<TurboHash> {
        let options = TurboHashOptions {
            shards: 2,
            initial_buckets: 1,
            seed: Some(SEED),
            ..TurboHashOptions::default()
        };
        TurboHash::create(pool, "table", &options)
    }
    fn open(pool: &Pool) -> Result<TurboHash> {
        TurboHash::open(pool, "table")
    }
}

/// Must catch a value that is freed, or read with the length of another, while a crash can bring it back.
#[test]
fn values_change_their_lengths() {
    bears_values_of_all_lengths::<OfBytes>(1);
}
