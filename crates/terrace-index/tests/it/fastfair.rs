//! What is particular to the FAST&FAIR tree: the bugs that its prototypes are known for, damage, totals,
//! full pools.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrace_base::ErrorKind;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_index::{FastFair, OrderedIndex, PointIndex, ScanBatch, kinds};
use terrace_pmem::{Granularity, MemMedia, Pool, PoolOptions};
use terrace_sim::{Survival, World, WorldOptions};

use crate::bed::{assert_no_leaks, create_in, memory_pool, memory_pool_of, open_in, options, survivors};
use crate::conformance::{Case, StructureChange, crash_in_each_event_of, inserts, removes};

type Small = FastFair<4>;

fn key(i: u64) -> Vec<u8> {
    format!("k{i:05}").into_bytes()
}

fn all(index: &impl OrderedIndex) -> Vec<(Vec<u8>, u64)> {
    let mut batch = ScanBatch::new();
    index.scan(Bound::Unbounded, false, usize::MAX, &mut batch).unwrap();
    batch.iter().map(|(k, w)| (k.to_vec(), w)).collect()
}

fn check(index: &impl OrderedIndex) {
    assert_eq!(index.check().unwrap(), Vec::<String>::new());
}

/// Prototype: two inner splits at once lost a separator, and with it keys.
#[test]
fn inner_nodes_that_split_at_once_lose_no_child() {
    for round in 0..5u64 {
        let pool = memory_pool();
        let tree = Small::create(&pool, "tree").unwrap();
        let n = 600u64;
        std::thread::scope(|s| {
            for t in 0..3 {
                let tree = &tree;
                // All threads split the same few inner nodes from different ends.
                s.spawn(move || {
                    for i in 0..n {
                        let at = match t {
                            0 => i * 3,
                            1 => (n - 1 - i) * 3 + 1,
                            _ => (i * 7919 + round) % n * 3 + 2,
                        };
                        tree.insert(&key(at), at + 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(all(&tree).len() as u64, 3 * n);
        (0..3 * n).for_each(|i| assert_eq!(tree.get(&key(i)).unwrap(), Some(i + 1)));
        check(&tree);
    }
}

/// Prototype: the lock-free search of an inner node under change returned the wrong child.
#[test]
fn inner_searches_beside_inner_inserts_and_deletes_find_the_right_child() {
    let pool = memory_pool_of(256 << 20);
    let tree = Small::create(&pool, "tree").unwrap();
    (0..400).for_each(|i| tree.insert(&key(i * 10), i + 1).map(drop).unwrap());
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            for round in 0..30 {
                for i in (0..4000).filter(|i| i % 10 != 0) {
                    // Whole leaves come and go, so that parents change all the time.
                    if round % 2 == 0 {
                        tree.insert(&key(i), 9).unwrap();
                    } else {
                        tree.remove(&key(i)).unwrap();
                    }
                }
            }
        });
        let mut i = 0u64;
        while !writer.is_finished() {
            i = (i * 31 + 7) % 400;
            assert_eq!(tree.get(&key(i * 10)).unwrap(), Some(i + 1));
        }
    });
    check(&tree);
    assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
}

/// Prototype: delete flushed the line after the one it had changed.
#[test]
fn what_a_delete_has_shifted_is_durable() {
    // Of 28 entries in seven lines, each is deleted in turn; the rest must be there whatever survives.
    for victim in 0..28 {
        let world = World::new(victim, WorldOptions::default());
        let pool = create_in(&world).unwrap();
        let tree: FastFair = FastFair::create(&pool, "tree").unwrap();
        (0..28).for_each(|i| tree.insert(&key(i), i + 1).map(drop).unwrap());
        assert_eq!(tree.remove(&key(victim)).unwrap(), Some(victim + 1));
        let want: Vec<_> = (0..28).filter(|i| *i != victim).map(|i| (key(i), i + 1)).collect();
        for survivor in survivors(&world.capture(), 4) {
            let pool = open_in(&survivor).unwrap();
            let tree: FastFair = FastFair::open(&pool, "tree").unwrap();
            assert_eq!(all(&tree), want);
            check(&tree);
        }
    }
}

type Tree = crate::subjects::Fair<4>;

fn bytes(tree: &<Tree as Case>::Index, _: &World) -> u64 {
    tree.pm_bytes()
}

/// Prototype: after a crash in a root split the right half had no parent, and was lost when the left half grew.
#[test]
fn a_root_split_that_was_cut_off_is_taken_up_again() {
    crash_in_each_event_of::<Tree, _>(StructureChange {
        seed: 7,
        before: inserts(1, (0..4).map(key)),
        change: inserts(5, [key(4)]),
        sight: bytes,
        proof: |bytes| bytes[1] > bytes[0],
    });
}

/// The root becomes the parent of two inner nodes.
#[test]
fn a_split_of_an_inner_root_is_taken_up_again() {
    crash_in_each_event_of::<Tree, _>(StructureChange {
        seed: 8,
        before: inserts(1, (0..12).map(key)),
        change: inserts(13, (12..18).map(key)),
        sight: bytes,
        // At least once more nodes than a leaf and its half.
        proof: |bytes| bytes.windows(2).any(|b| b[1] - b[0] > bytes[1] - bytes[0]),
    });
}

/// Prototype: merging was not atomic.
#[test]
fn a_merge_is_there_or_not() {
    crash_in_each_event_of::<Tree, _>(StructureChange {
        seed: 7,
        before: inserts(1, (0..40).map(key)),
        change: removes((4..30).map(key)),
        sight: bytes,
        proof: |bytes| bytes.last() < bytes.first(),
    });
}

/// Prototype: a key inserted where another was just deleted was lost by a crash between the two.
#[test]
fn a_crash_between_delete_and_insert_takes_neither_neighbour() {
    crash_in_each_event_of::<Tree, _>(StructureChange {
        seed: 7,
        before: inserts(1, (0..4).map(|i| key(i * 10))),
        change: [removes([key(10)]), inserts(6, [key(5)])].concat(),
        sight: |tree, _| tree.len(),
        proof: |len| *len == [4, 3, 4],
    });
}

/// A reader must not return what a power cut can take back: at each event of a writer another thread reads,
/// then the power goes.
#[test]
fn what_a_reader_has_seen_is_durable() {
    for (seed, start, writes) in [(1, 3u64, 3u64), (2, 0, 6), (3, 20, 12)] {
        let world = World::new(seed, WorldOptions::default());
        let pool = create_in(&world).unwrap();
        let tree = Arc::new(Small::create(&pool, "tree").unwrap());
        (0..start).for_each(|i| tree.insert(&key(i * 2), 1).map(drop).unwrap());
        let reads = Arc::new(parking_lot::Mutex::new(0));
        let (reader, seen) = (tree.clone(), reads.clone());
        world.on_event(Box::new(move |_, world| {
            // The reader's own drains are events too; they are not reported from within one.
            let words: Vec<_> = (0..40).map(|i| reader.get(&key(i)).unwrap()).collect();
            for survivor in survivors(&world.capture(), 2) {
                let pool = open_in(&survivor).unwrap();
                let tree = Small::open(&pool, "tree").unwrap();
                for (i, word) in words.iter().enumerate() {
                    assert_eq!(
                        tree.get(&key(i as u64)).unwrap(),
                        *word,
                        "key {i} was read so before the cut"
                    );
                }
            }
            *seen.lock() += 1;
        }));
        for i in 0..writes {
            tree.insert(&key(i * 3 + 1), 50 + i).unwrap();
            tree.insert(&key(i * 2), 70 + i).unwrap();
            tree.remove(&key(i)).unwrap();
        }
        world.ignore_events();
        assert!(*reads.lock() > writes);
    }
}

#[test]
fn totals_are_exact_after_a_close_and_after_a_crash() {
    let world = World::new(3, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let tree = Small::create(&pool, "tree").unwrap();
    (0..500).for_each(|i| tree.insert(&key(i), 1).map(drop).unwrap());
    (0..100).for_each(|i| tree.remove(&key(i)).map(drop).unwrap());
    let bytes = tree.pm_bytes();
    let crashed = world.capture().power_cut(Survival::Everything);
    tree.close().unwrap();
    drop(tree);
    pool.close().unwrap();
    drop(pool);
    for world in [world, crashed] {
        let pool = open_in(&world).unwrap();
        let tree = Small::open(&pool, "tree").unwrap();
        // Writers before the first question: counted once.
        tree.insert(&key(1000), 1).unwrap();
        tree.remove(&key(100)).unwrap();
        assert_eq!(tree.len(), 400);
        assert!(tree.pm_bytes().abs_diff(bytes) < 2000, "{} and {bytes}", tree.pm_bytes());
        check(&tree);
    }
}

#[test]
fn a_full_pool_is_an_error_and_loses_nothing() {
    let pool = memory_pool_of(1 << 20);
    let tree = Small::create(&pool, "tree").unwrap();
    let mut n = 0;
    let full = loop {
        match tree.insert(&[&key(n)[..], &[b'x'; 40]].concat(), n + 1) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind(), ErrorKind::PoolFull);
    assert!(n > 100);
    check(&tree);
    assert_eq!(tree.len(), n);
    for i in 0..n {
        assert_eq!(tree.remove(&[&key(i)[..], &[b'x'; 40]].concat()).unwrap(), Some(i + 1));
    }
    tree.close().unwrap();
    (0..n / 2).for_each(|i| tree.insert(&key(i), i + 1).map(drop).unwrap());
    check(&tree);
}

#[test]
fn damaged_and_foreign_trees_are_errors() {
    let pool = memory_pool();
    let tree = Small::create(&pool, "tree").unwrap();
    (0..100).for_each(|i| tree.insert(&key(i), 1).map(drop).unwrap());
    assert_eq!(FastFair::<5>::open(&pool, "tree").unwrap_err().kind(), ErrorKind::InvalidFormat);
    assert_eq!(Small::open(&pool, "other").unwrap_err().kind(), ErrorKind::Corruption);
    let header = pool.root("tree").unwrap().unwrap();
    pool.write(header + 2, &[0]);
    assert_eq!(Small::open(&pool, "tree").unwrap_err().kind(), ErrorKind::Corruption);
    pool.write(header + 2, b"A");
    // Another version is one only with its checksum.
    // SAFETY: within the pool; nobody writes it meanwhile.
    let own = unsafe { pool.bytes(header, 24).unwrap() }.to_vec();
    pool.write(header + 6, &[1]);
    assert_eq!(Small::open(&pool, "tree").unwrap_err().kind(), ErrorKind::Corruption);
    let crc = crc32c_append(crc32c(b"TFASTF\x01\0"), &4u32.to_le_bytes());
    pool.write(header + 20, &crc.to_le_bytes());
    let e = Small::open(&pool, "tree").unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidFormat && e.to_string().contains("version 1"), "{e}");
    pool.write(header, &own);
    Small::open(&pool, "tree").unwrap();
    // Any word of any node may hold anything: an error or an answer, never a panic or a loop.
    let nodes: Vec<_> = pool.slots(kinds::FASTFAIR_NODE).map(|(off, _)| off).collect();
    for node in nodes.iter().step_by(11) {
        for word in 0..16u64 {
            let at = node + word * 8;
            let mut old = [0; 8];
            // SAFETY: within the pool; nobody writes it meanwhile.
            old.copy_from_slice(unsafe { pool.bytes(at, 8).unwrap() });
            for wrong in [u64::MAX, 8, 0x1234_5678, header, *node, nodes[nodes.len() / 2]] {
                pool.write(at, &wrong.to_le_bytes());
                let tree = Small::open(&pool, "tree");
                if let Ok(tree) = tree {
                    for i in (0..100).step_by(9) {
                        drop(tree.get(&key(i)));
                    }
                    drop(tree.check());
                    let mut batch = ScanBatch::new();
                    drop(tree.scan(Bound::Unbounded, word % 2 == 0, 1000, &mut batch));
                }
                pool.write(at, &old);
            }
        }
    }
}

#[test]
fn keys_at_the_limits() {
    let pool = memory_pool();
    let tree = Small::create(&pool, "tree").unwrap();
    assert!(tree.insert(&[0; 65_536], 1).is_err());
    assert!(tree.insert(b"a", 0).is_err());
    let keys: Vec<Vec<u8>> =
        (0..40).map(|i| vec![0; i * 7]).chain((0..12).map(|i| vec![0xff; 65_535 - i])).collect();
    keys.iter().enumerate().for_each(|(i, k)| tree.insert(k, i as u64 + 1).map(drop).unwrap());
    check(&tree);
    keys.iter().enumerate().for_each(|(i, k)| assert_eq!(tree.get(k).unwrap(), Some(i as u64 + 1)));
    keys.iter().for_each(|k| assert!(tree.remove(k).unwrap().is_some()));
    check(&tree);
    assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
}

#[test]
fn opening_takes_the_same_few_reads_whatever_the_size() {
    let media = Arc::new(MemMedia::new(1 << 20, 64 << 20, Granularity::CacheLine).unwrap());
    let options = PoolOptions { max_size: 64 << 20, ..options() };
    let pool = Pool::create_on(media.clone(), Path::new("memory"), &options).unwrap();
    let tree = Small::create(&pool, "tree").unwrap();
    (0..3000).for_each(|i| tree.insert(&key(i), 1).map(drop).unwrap());
    drop(tree);
    drop(pool);
    let pool = Pool::open_on(media, Path::new("memory"), &options).unwrap();
    let before = pool.stats();
    let tree = Small::open(&pool, "tree").unwrap();
    assert!(pool.stats().lines - before.lines <= 2, "opening repairs nothing by itself");
    assert_eq!(tree.get(&key(2999)).unwrap(), Some(1));
}
