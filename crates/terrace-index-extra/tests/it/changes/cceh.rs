//! CCEH: slots, splits in place, and the directory.

use terrace_base::Result;
use terrace_index::{HashIndex, PointIndex};
use terrace_index_extra::Cceh;
use terrace_pmem::Pool;
use terrace_sim::World;

use crate::conformance::{
    ByteCase, SEED, StructureChange, bears_values_of_all_lengths, colliding, crash_in_each_event_of, falls,
    inserts, long, removes, rises, short,
};
use crate::subjects::Extendible;

type Table<const B: usize, const P: usize> = Cceh<B, P>;
type Tables<const B: usize, const P: usize> = Extendible<B, P>;

/// Buckets of all segments, and bytes of the directory, of a table without records. Segments come in extents of whole
/// pages, and the header is as long as a line.
fn parts<const B: usize, const P: usize>(table: &Table<B, P>, _: &World) -> [u64; 2] {
    [table.figures().unwrap().buckets, table.pm_bytes() % 4096 - 64]
}

/// Buckets and keys.
fn content<const B: usize, const P: usize>(table: &Table<B, P>, _: &World) -> [u64; 2] {
    let figures = table.figures().unwrap();
    [figures.buckets, figures.keys]
}

/// Must catch a key whose value word is published before or after the key in a slot.
#[test]
fn a_slot_changes_in_one_step() {
    for (seed, key) in [(1, short as fn(u64) -> Vec<u8>), (2, long)] {
        let change = [
            inserts(10, (4..8).map(key)),
            inserts(20, (0..6).map(key)),
            removes((1..5).map(key)),
            inserts(30, (0..3).map(key)),
        ];
        crash_in_each_event_of::<Tables<4, 2>, _>(StructureChange {
            seed,
            before: inserts(1, (0..4).map(key)),
            change: change.concat(),
            sight: |table, world| (content(table, world), table.pm_bytes()),
            proof: |seen| {
                seen[0].0[1] == 4 && rises(seen.iter().map(|s| s.0[1])) && falls(seen.iter().map(|s| s.0[1]))
            },
        });
    }
}

/// The directory is doubled where the segment has as many bits as it has.
/// Must catch a directory that names a new segment before the segment has its keys.
#[test]
fn a_split_has_happened_or_not() {
    fn split(seed: u64, key: fn(u64) -> Vec<u8>) {
        crash_in_each_event_of::<Tables<2, 1>, _>(StructureChange {
            seed,
            before: inserts(1, (0..4).map(key)),
            change: inserts(5, (4..24).map(key)),
            sight: content,
            proof: |seen| seen.windows(2).filter(|s| s[1][0] > s[0][0]).count() > 3,
        });
    }
    split(1, short);
    split(2, long);
}

/// Beyond eight entries the directory is longer than the least there is. Other segments are split in a directory that
/// is large enough, some of them with many entries each.
/// Must catch a doubled directory that is in force before all its entries are durable.
#[test]
fn a_directory_is_doubled_or_not() {
    crash_in_each_event_of::<Tables<1, 1>, _>(StructureChange {
        seed: 1,
        before: inserts(1, (0..4).map(short)),
        change: inserts(5, (4..40).map(short)),
        sight: parts,
        proof: |seen| {
            let doubled = seen.windows(2).filter(|s| s[1][1] > s[0][1]).count();
            let split = seen.windows(2).filter(|s| s[1][1] == s[0][1] && s[1][0] > s[0][0]).count();
            doubled > 1 && split > 4
        },
    });
}

/// Four keys of one hash fill the only bucket that they may lie in.
/// Must catch a key that is in a bucket and in the overflow, or in neither.
#[test]
fn a_key_without_a_place_is_in_the_overflow_or_not() {
    crash_in_each_event_of::<Tables<1, 1>, _>(StructureChange {
        seed: 5,
        before: inserts(1, (0..3).map(colliding)),
        change: [
            inserts(20, (2..8).map(colliding)),
            inserts(40, (4..6).map(colliding)),
            removes((0..2).chain(4..6).map(colliding)),
            inserts(60, (5..9).map(colliding)),
            removes((0..9).map(colliding)),
        ]
        .concat(),
        sight: |table, _| {
            let figures = table.figures().unwrap();
            figures.usable_slots - 4 * figures.buckets
        },
        proof: |seen| seen[0] == 0 && rises(seen.iter().copied()) && falls(seen.iter().copied()),
    });
}

/// A table of bytes.
struct OfBytes;

impl ByteCase for OfBytes {
    type Table = Cceh<2, 2>;
    fn create(pool: &Pool) -> Result<Cceh<2, 2>> {
        Cceh::create_seeded(pool, "table", 0, SEED)
    }
    fn open(pool: &Pool) -> Result<Cceh<2, 2>> {
        Cceh::open(pool, "table")
    }
}

/// Must catch a value that is freed, or read with the length of another, while a crash can bring it back.
#[test]
fn values_change_their_lengths() {
    bears_values_of_all_lengths::<OfBytes>(2);
}
