//! Write buffers: merges into each base, in place and out of place, and the log's rotations, cuts and resets.

use terrace_index::{FastFair, HashIndex, PointIndex, SkipIndex};
use terrace_index_extra::Cceh;
use terrace_index_extra::buffered::{Base, BufferedIndex};
use terrace_sim::World;

use crate::conformance::{
    Case, Op, StructureChange, crash_in_each_event_of, falls, inserts, long, removes, rises, short,
};
use crate::subjects::{Buffered, Replaced};

/// What is seen of an index behind write buffers.
#[derive(Debug)]
struct Seen {
    /// Keys that the base has.
    merged: u64,
    /// Bytes of logs: twice as many while there is a previous generation.
    log_bytes: u64,
}

fn seen<B: Base>(index: &BufferedIndex<B>, _: &World) -> Seen {
    Seen { merged: index.base().len(), log_bytes: index.pm_bytes() - index.base().pm_bytes() }
}

/// Buffers are merged, the log is rotated and cut; at last everything is merged and the log is reset.
fn merged_turned_cut_and_reset(seen: &[Seen]) -> bool {
    let Some((last, seen)) = seen.split_last() else { return false };
    let log = seen.iter().map(|s| s.log_bytes);
    let buffered = seen.last().is_some_and(|s| s.merged != last.merged);
    rises(seen.iter().map(|s| s.merged)) && rises(log.clone()) && falls(log) && buffered
}

fn change_everything<C: Case>(sight: fn(&C::Index, &World) -> Seen) {
    for (seed, key) in [(1, short as fn(u64) -> Vec<u8>), (2, long)] {
        let first = [inserts(5, (4..17).map(key)), removes((2..6).map(key))].concat();
        let again = [inserts(50, (6..18).map(key)), inserts(70, (6..12).map(key))].concat();
        let change = [first, again, inserts(30, (15..23).map(key))];
        crash_in_each_event_of::<C, _>(StructureChange {
            seed,
            before: inserts(1, (0..4).map(key)),
            change: [change.concat(), vec![Op::Close]].concat(),
            sight,
            proof: merged_turned_cut_and_reset,
        });
    }
}

/// The least that has it all: a list's arena is searched through at every opening, which takes long here.
fn change_a_list<C: Case>(sight: fn(&C::Index, &World) -> Seen) {
    let change = [inserts(3, (2..9).map(long)), removes([long(0)]), inserts(30, (5..11).map(long))];
    crash_in_each_event_of::<C, _>(StructureChange {
        seed: 1,
        before: inserts(1, (0..2).map(long)),
        change: [change.concat(), vec![Op::Close]].concat(),
        sight,
        proof: merged_turned_cut_and_reset,
    });
}

/// Must catch a merge that is cut short and leaves an entry neither in the log nor in the base.
#[test]
fn fastfair_in_place() {
    change_everything::<Buffered<FastFair<4>>>(seen);
}

/// Must catch a merge out of place whose result is in force before it is durable.
#[test]
fn fastfair_out_of_place() {
    change_everything::<Replaced<FastFair<4>>>(seen);
}

/// Must catch the same as of FAST&FAIR, over a list.
#[test]
fn skiplist_in_place() {
    change_a_list::<Buffered<SkipIndex>>(seen);
}

/// Must catch the same as of FAST&FAIR, over a list.
#[test]
fn skiplist_out_of_place() {
    change_a_list::<Replaced<SkipIndex>>(seen);
}

/// Must catch the same as of FAST&FAIR, over a hash table.
#[test]
fn cceh_in_place() {
    change_everything::<Buffered<Cceh<2, 1>>>(seen);
}

/// Must catch the same as of FAST&FAIR, over a hash table.
#[test]
fn cceh_out_of_place() {
    change_everything::<Replaced<Cceh<2, 1>>>(seen);
}

/// Keys and buckets of the base.
fn content<const B: usize, const P: usize>(index: &BufferedIndex<Cceh<B, P>>, _: &World) -> [u64; 2] {
    let figures = index.base().figures().unwrap();
    [figures.keys, figures.buckets]
}

/// A merge out of place writes the segment anew, in two halves if one has no room; other segments' entries and the
/// directory are as they were. A segment takes eight keys, and each buffer three.
/// Must catch a directory that names a part of the segments which replace one.
#[test]
fn a_segment_that_is_replaced_is_the_old_one_or_the_new_ones() {
    for (seed, key) in [(1, short as fn(u64) -> Vec<u8>), (2, long)] {
        crash_in_each_event_of::<Replaced<Cceh<2, 2>>, _>(StructureChange {
            seed,
            before: inserts(1, (0..3).map(key)),
            change: [inserts(4, (3..26).map(key)), inserts(40, (0..9).map(key)), vec![Op::Close]].concat(),
            sight: content,
            proof: |seen| {
                let merges = |is_split: bool| {
                    seen.windows(2).filter(|s| s[1][0] > s[0][0] && (s[1][1] > s[0][1]) == is_split).count()
                };
                merges(false) > 1 && merges(true) > 1
            },
        });
    }
}
