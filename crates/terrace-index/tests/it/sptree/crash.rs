//! Structure changes cut off at each event, and what readers have seen before a cut.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace_index::{PointIndex, SpTree};
use terrace_sim::{World, WorldOptions};

use super::{Lagging, Sp, all, check, key, long_key};
use crate::bed::{assert_no_leaks, create_in, open_in, survivors};
use crate::conformance::{Case, Op, StructureChange, crash_again, crash_in_each_event_of, inserts, removes};

type Tree<const N: usize, const LAGS: bool, const BUFFER: usize> = Sp<N, LAGS, BUFFER>;

fn leaves(tree: &SpTree, _: &World) -> u64 {
    tree.leaves().unwrap()
}

/// Prototype: a split was not atomic, and a leaf still on its way to the top layer was lost.
/// Must catch a leaf that is linked before it has its keys, and keys that both halves have.
#[test]
fn a_split_is_there_or_not_wherever_it_is_cut_off() {
    fn split<C: Case<Index = SpTree>>(seed: u64, name: fn(u64) -> Vec<u8>, split_by: Vec<u8>) {
        crash_in_each_event_of::<C, _>(StructureChange {
            seed,
            before: inserts(1, (0..4).map(name)),
            change: inserts(10, [split_by]),
            sight: leaves,
            proof: |leaves| leaves[1] > leaves[0],
        });
    }
    split::<Tree<4, false, 0>>(7, key, key(9));
    split::<Tree<4, true, 0>>(8, key, b"k00001+".to_vec());
    split::<Tree<4, false, 0>>(9, long_key, [&long_key(2)[..], b"+"].concat());
}

/// Must catch an update of a full leaf that splits it, or loses the old word before the new one is durable.
#[test]
fn a_word_in_a_full_leaf_is_the_old_one_or_the_new_one() {
    crash_in_each_event_of::<Tree<4, false, 0>, _>(StructureChange {
        seed: 7,
        before: inserts(1, (0..4).map(long_key)),
        change: inserts(10, [long_key(2)]),
        sight: |tree, world| (leaves(tree, world), tree.get(&long_key(2)).unwrap()),
        proof: |seen| *seen == [(1, Some(3)), (1, Some(10))],
    });
}

/// Must catch a leaf that is unlinked before its neighbour has its keys, and keys that both have.
#[test]
fn a_merge_is_there_or_not_wherever_it_is_cut_off() {
    fn merge<C: Case<Index = SpTree>>(seed: u64, name: fn(u64) -> Vec<u8>) {
        crash_in_each_event_of::<C, _>(StructureChange {
            seed,
            before: inserts(1, (0..12).map(name)),
            change: removes((2..11).map(name)),
            sight: leaves,
            proof: |leaves| leaves.last() < leaves.first(),
        });
    }
    merge::<Tree<4, false, 0>>(7, key);
    merge::<Tree<4, true, 0>>(8, key);
    merge::<Tree<4, false, 0>>(9, long_key);
    merge::<Tree<4, true, 0>>(10, long_key);
}

/// Leaves that removals have left alone, as they are not sparse enough for that, become few.
/// Must catch what a merge of one removal must not do either, when many follow one another.
#[test]
fn a_shrinking_is_cut_off_anywhere() {
    fn shrink<C: Case<Index = SpTree>>(seed: u64, name: fn(u64) -> Vec<u8>, leaf: u64) {
        // So many keys come to lie in a leaf if they ascend; two stay.
        let sparse = removes((0..35).filter(|i| i % leaf > 1).map(name));
        crash_in_each_event_of::<C, _>(StructureChange {
            seed,
            // What waits in buffers comes to the leaves.
            before: [inserts(1, (0..35).map(name)), vec![Op::Close], sparse, vec![Op::Close]].concat(),
            change: vec![Op::Shrink],
            sight: leaves,
            proof: |leaves| leaves[1] < leaves[0],
        });
    }
    shrink::<Tree<8, false, 0>>(7, key, 7);
    shrink::<Tree<8, true, 0>>(8, key, 7);
    shrink::<Tree<8, false, 0>>(9, long_key, 7);
    shrink::<Tree<8, false, 3>>(10, key, 7);
}

/// A leaf was cleaned of what a split had left in it, and the cleaning cut off: the leaf counted as whole.
/// Must catch a leaf that counts as cleaned and still has keys beyond its range.
#[test]
fn a_cleaning_that_is_cut_off_is_begun_again() {
    let ops = [inserts(1, (0..12).map(long_key)), removes((2..11).map(long_key))].concat();
    crash_again::<Tree<4, false, 0>>(ops, "seed=9 event=39/5 image=13/7");
}

/// Must catch a log that forgets an entry before its leaf has it durably.
#[test]
fn a_flush_of_a_buffer_is_there_or_not_wherever_it_is_cut_off() {
    for (seed, name) in [(7, key as fn(u64) -> Vec<u8>), (8, long_key)] {
        let mut change = removes([name(1)]);
        change.extend(inserts(40, [name(3)]));
        change.extend(inserts(9, (8..11).map(name)));
        crash_in_each_event_of::<Tree<6, false, 3>, _>(StructureChange {
            seed,
            before: inserts(1, (0..7).map(name)),
            change,
            // What is in a buffer has taken one drain; a leaf is written with several.
            sight: |_, world| world.events(),
            proof: |events| {
                events.windows(2).any(|e| e[1] - e[0] == 1) && events.windows(2).any(|e| e[1] - e[0] > 2)
            },
        });
    }
}

/// Long enough that logs are begun, flushed and freed several times; then everything goes to the leaves.
/// Must catch a log that is freed with entries that are nowhere else.
#[test]
fn no_log_is_cut_before_its_entries_are_in_leaves() {
    let again = (0..40).map(|i| Op::Insert(key(i % 13), 100 + i));
    crash_in_each_event_of::<Tree<8, false, 6>, _>(StructureChange {
        seed: 7,
        before: inserts(1, (0..10).map(key)),
        change: again.chain([Op::Close]).collect(),
        sight: |tree, _| tree.pm_bytes(),
        // Begun twice, and freed.
        proof: |bytes| {
            bytes.windows(2).filter(|b| b[1] > b[0]).count() > 1 && bytes.windows(2).any(|b| b[1] < b[0])
        },
    });
}

/// What is in logs belongs to the tree whatever options it is opened with.
/// Must catch an opening without buffers that leaves out what only logs have.
#[test]
fn a_tree_with_entries_in_logs_may_be_opened_without_buffers() {
    let world = World::new(3, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let tree = Sp::<16, false, 14>::create(&pool).unwrap();
    (0..10).for_each(|i| {
        tree.insert(&key(i), i + 1).unwrap();
    });
    tree.remove(&key(4)).unwrap();
    let want = all(&tree);
    for survivor in survivors(&world.capture(), 3) {
        let pool = open_in(&survivor).unwrap();
        let tree = Sp::<16, false, 0>::open(&pool).unwrap();
        assert_eq!(all(&tree), want);
        check(&tree);
        assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
    }
}

/// A reader must not return what a power cut can take back: at each event of a writer another thread reads,
/// then the power goes.
/// Must catch a word that a reader gets before it is durable.
#[test]
fn what_a_reader_has_seen_is_durable() {
    /// Keys that are there before, and writes at whose events is read.
    struct Looks {
        start: u64,
        writes: u64,
    }
    fn look<C: Case<Index = SpTree>>(Looks { start, writes }: Looks) {
        let world = World::new(start, WorldOptions::default());
        let pool = create_in(&world).unwrap();
        let tree = Arc::new(C::create(&pool).unwrap());
        (0..start).for_each(|i| {
            tree.insert(&key(i * 2), 1).unwrap();
        });
        let reader = tree.clone();
        // What is being done: it may be done after the cut, also where it was not seen before.
        let doing = Arc::new(Mutex::new((0, None)));
        let done = doing.clone();
        let looks = Arc::new(Mutex::new(0));
        let counted = looks.clone();
        world.on_event(Box::new(move |_, world| {
            let words: Vec<_> = (0..30).map(|i| reader.get(&key(i)).unwrap()).collect();
            let scanned = all(&reader);
            *counted.lock() += 1;
            for survivor in survivors(&world.capture(), 2) {
                let pool = open_in(&survivor).unwrap();
                let tree = C::open(&pool).unwrap();
                let (changing, new) = *done.lock();
                for (i, word) in (0..).zip(&words) {
                    let found = tree.get(&key(i)).unwrap();
                    let is_done = i == changing && found == new;
                    assert!(is_done || found == *word, "key {i} was {word:?} before the cut, then {found:?}");
                }
                let found = all(&tree);
                let lost = scanned.iter().filter(|e| e.0 != key(changing) && !found.contains(e));
                assert_eq!(lost.count(), 0);
            }
        }));
        for i in 0..writes {
            // Inserts, updates and removals among what is there.
            *doing.lock() = (i, (i % 3 != 2).then_some(5));
            if i % 3 == 2 {
                tree.remove(&key(i)).unwrap();
            } else {
                tree.insert(&key(i), 5).unwrap();
            }
        }
        world.ignore_events();
        assert!(*looks.lock() > writes);
    }
    look::<Sp<4, false, 0>>(Looks { start: 3, writes: 8 });
    look::<Lagging<4, 0>>(Looks { start: 12, writes: 14 });
    look::<Sp<5, false, 3>>(Looks { start: 9, writes: 14 });
}
