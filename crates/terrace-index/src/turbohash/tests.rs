//! Every instruction set, on the same operations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrace_base::Error;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::rng::Rng;
use terrace_pmem::{Claim, Granularity, MemMedia, Pool, PoolOptions};
use terrace_sim::{World, WorldOptions};

use super::simd::Level;
use super::{Garbage, TurboHash, TurboHashOptions};
use crate::{ByteMap, HashIndex, PointIndex};

const SEED: u64 = 0x7465_7272_6163_6521;

fn seeded() -> TurboHashOptions {
    TurboHashOptions { seed: Some(SEED), ..TurboHashOptions::default() }
}

/// The extent in which a shard has a part.
fn extent_of(table: &TurboHash, shard: usize) -> u64 {
    let offset = table.offset_of(table.view(shard).address(0));
    assert!(table.blocks.is_part(table.view(shard).bytes()));
    offset - offset % table.pool.extent_bytes()
}

fn table(options: &TurboHashOptions) -> TurboHash {
    let max = 64 << 20;
    let media = MemMedia::new(1 << 20, max, Granularity::CacheLine).unwrap();
    let pool_options = PoolOptions { max_size: max, extent_bytes: 4096, ..PoolOptions::default() };
    let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &pool_options).unwrap();
    TurboHash::create(&pool, "table", options).unwrap()
}

#[test]
fn every_instruction_set_and_both_ways_to_read_agree_with_a_map() {
    let options = TurboHashOptions { shards: 4, initial_buckets: 1, probing_scope: 4, ..seeded() };
    for level in Level::all() {
        for has_fast_path in [false, true] {
            let mut table = table(&options);
            table.level = level;
            table.has_fast_path &= has_fast_path;
            let (mut map, mut rng) = (BTreeMap::new(), Rng::new(1));
            for i in 1..6000u64 {
                let key = rng.below(700);
                match rng.below(4) {
                    0 => assert_eq!(table.remove_u64(key).unwrap(), map.remove(&key)),
                    1 => assert_eq!(table.get_u64(key).unwrap(), map.get(&key).copied()),
                    _ => assert_eq!(table.insert(&key.to_le_bytes(), i).unwrap(), map.insert(key, i)),
                }
            }
            assert_eq!(table.check().unwrap(), Vec::<String>::new());
            (0..800)
                .for_each(|key| assert_eq!(table.get_u64(key).unwrap(), map.get(&key).copied(), "{level:?}"));
        }
    }
}

/// The mean of probes that are counted by their buckets.
fn mean(probes: &[u64]) -> f64 {
    let buckets: u64 = probes.iter().zip(1..).map(|(count, buckets)| count * buckets).sum();
    buckets as f64 / probes.iter().sum::<u64>() as f64
}

#[test]
fn a_table_made_for_its_keys_fills_well_and_probes_little() {
    let table = table(&TurboHashOptions {
        shards: 128,
        initial_buckets: 16,
        seed: Some(1),
        ..TurboHashOptions::default()
    });
    let mut peak: f64 = 0.0;
    for i in 0..32_000u64 {
        table.insert(&i.to_le_bytes(), i + 1).unwrap();
        if i.is_multiple_of(250) {
            peak = peak.max(table.figures().unwrap().load_factor());
        }
    }
    let figures = table.figures().unwrap();
    assert!(peak >= 0.85, "{peak}");
    assert!(mean(&figures.hits) < 1.02 && mean(&figures.misses) < 1.1, "{figures:?}");
    assert!(table.put(b"long", &[7; 1000]).is_ok_and(|existed| !existed));
}

#[test]
fn a_part_of_an_extent_that_is_lost_or_given_out_twice_is_found() {
    // Shards of 4 buckets have a quarter of an extent each.
    let table = table(&TurboHashOptions { shards: 8, initial_buckets: 4, ..seeded() });
    (0..100u64).for_each(|key| assert_eq!(table.insert(&key.to_le_bytes(), 7).unwrap(), None));
    let finding = |what: &str| {
        let findings = table.check().unwrap();
        assert!(matches!(&findings[..], [one] if one.contains(what)), "{findings:?}");
    };
    let bytes = table.view(0).bytes();
    assert_eq!((bytes, table.check().unwrap()), (1024, Vec::new()));
    let offset = table.blocks.reserve(bytes).unwrap().offset;
    finding("lost");
    // Parts that wait for readers are not lost.
    let reader = table.limbo.enter();
    table.limbo.retire(Garbage::Shard { offset, bytes });
    assert_eq!((table.drain(), table.check().unwrap()), (false, Vec::new()));
    drop(reader);
    assert_eq!((table.drain(), table.check().unwrap()), (true, Vec::new()));
    let named = table.offset_of(table.view(0).address(0));
    table.blocks.free(named, bytes).unwrap();
    finding("free too");
}

/// After a crash: a shard whose buckets are marked moves into the extent of another, which then moves out of it before
/// the walk comes by.
#[test]
fn reclaiming_keeps_an_extent_that_a_marked_shard_has_moved_into() {
    let options = TurboHashOptions { shards: 4, initial_buckets: 2, probing_scope: 2, ..seeded() };
    let world = World::new(1, WorldOptions::default());
    let pool = Pool::create_on(world.media(), Path::new("pm"), &world.pool_options()).unwrap();
    let table = TurboHash::create(&pool, "table", &options).unwrap();
    let keys_of = |shard: usize| {
        let hash = table.hash;
        (0u64..).filter(move |key| super::layout::shard_of(hash.of_word(*key), 2) == shard)
    };
    let (first, last): (Vec<_>, Vec<_>) = (keys_of(0).take(300).collect(), keys_of(3).take(300).collect());
    // The first has a slot of its own, the last a quarter of an extent.
    table.insert(&first[0].to_le_bytes(), 7).unwrap();
    let grow = |table: &TurboHash, keys: &[u64], shard: usize, buckets: usize| {
        let done = keys.iter().position(|key| {
            table.insert(&key.to_le_bytes(), 7).unwrap();
            table.view(shard).len() >= buckets
        });
        done.unwrap()
    };
    let mut grown = grow(&table, &last, 3, 4);
    let extent = extent_of(&table, 3);
    drop((table, pool));

    let world = world.kill();
    let pool = Pool::open_on(world.media(), Path::new("pm"), &world.pool_options()).unwrap();
    let table = Arc::new(TurboHash::open(&pool, "table").unwrap());
    let (theirs, mut moved) = (table.clone(), 0);
    let (keys, others) = (first.clone(), last.clone());
    let moves = parking_lot::Mutex::new(Some(move || {
        moved += grow(&theirs, &keys, 0, 4);
        grown += grow(&theirs, &others, 3, 8);
        (moved, grown)
    }));
    let at = table.offset_of(table.view(0).address(0));
    world.media().at_marks(Some(Arc::new(move |offset| {
        if let Some(mut moves) = (offset == at).then(|| moves.lock().take()).flatten() {
            moves();
        }
    })));
    let mut marks = pool.marks();
    table.mark(&mut marks).unwrap();
    world.media().at_marks(None);
    assert_eq!(extent_of(&table, 0), extent);
    pool.reclaim(&marks).unwrap();
    let world = world.kill();
    let pool = Pool::open_on(world.media(), Path::new("pm"), &world.pool_options()).unwrap();
    let table = TurboHash::open(&pool, "table").unwrap();
    let mut marks = pool.marks();
    table.mark(&mut marks).unwrap();
    // Memory that waited for readers at the second crash.
    pool.reclaim(&marks).unwrap();
    assert_eq!(pool.check(&marks), [], "every shard lies in what is the table's");
}

/// Keys chosen by an attacker that knows the seed cost a search in the overflow, and no more room than they need.
#[test]
fn keys_of_one_hash_take_little_room_and_leave_none_behind() {
    let table = table(&TurboHashOptions { shards: 2, initial_buckets: 4, ..seeded() });
    let key = |i: u64| terrace_sim::colliding(SEED, i);
    for i in 0..3000u64 {
        assert_eq!(table.insert(&key(i), i + 1).unwrap(), None);
    }
    let in_table = 16 * super::layout::USABLE_SLOTS as u64;
    assert_eq!((table.len(), table.overflow.keys()), (3000, 3000 - in_table));
    assert!(table.pm_bytes() < 400 << 10, "{} bytes", table.pm_bytes());
    assert_eq!(table.check().unwrap(), Vec::<String>::new());
    for i in (0..3000).rev() {
        assert_eq!(table.remove(&key(i)).unwrap(), Some(i + 1));
    }
    assert_eq!((table.len(), table.overflow.keys(), table.overflow.places()), (0, 0, 0));
    assert!(table.drain());
    let mut marks = table.pool.marks();
    table.mark(&mut marks).unwrap();
    assert_eq!(table.pool.check(&marks), []);
}

/// What frees room finds a place where a shard cannot grow.
#[test]
fn a_full_pool_has_room_for_keys_that_claim_some() {
    let media = MemMedia::new(1 << 20, 1 << 20, Granularity::CacheLine).unwrap();
    let options = PoolOptions { max_size: 1 << 20, extent_bytes: 4096, ..PoolOptions::default() };
    let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options).unwrap();
    pool.keep_back(16 << 10, 0);
    let options = TurboHashOptions { shards: 2, initial_buckets: 4, ..seeded() };
    let table = TurboHash::create(&pool, "table", &options).unwrap();
    let mut keys = 0..;
    // As long as one of so many finds a place.
    while keys.by_ref().take(100).any(|i: u64| table.insert(&i.to_le_bytes(), 1).is_ok()) {}
    let len = table.len();
    let key = |i: u64| format!("frees room {i}");
    let insert = |i: u64| pool.claiming(Claim::Some, || table.insert(key(i).as_bytes(), i + 1));
    (0..20).for_each(|i| assert_eq!(insert(i).unwrap(), None));
    assert_eq!((table.len(), table.overflow.keys()), (len + 20, 20));
    assert!((0..20).all(|i| PointIndex::get(&table, key(i).as_bytes()).unwrap() == Some(i + 1)));
    assert_eq!(table.check().unwrap(), Vec::<String>::new());
    (0..20).for_each(|i| assert_eq!(table.remove(key(i).as_bytes()).unwrap(), Some(i + 1)));
    assert_eq!((table.len(), table.overflow.places()), (len, 0));
}

#[test]
fn every_table_has_a_seed_of_its_own() {
    let seeds: std::collections::BTreeSet<u64> = (0..8)
        .map(|_| table(&TurboHashOptions { shards: 2, ..TurboHashOptions::default() }).header.seed)
        .collect();
    assert_eq!(seeds.len(), 8);
}

#[test]
fn an_older_version_is_told_by_name() {
    let table = table(&seeded());
    let (pool, at) = (table.pool.clone(), table.header_at);
    for covers_its_place in [false, true] {
        let mut bytes = table.header.encode(pool.place(at));
        bytes[6] = 3;
        let crc = if covers_its_place {
            crc32c_append(crc32c(&pool.place(at).to_le_bytes()), &bytes[..36])
        } else {
            crc32c(&bytes[..36])
        };
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        pool.write(at, &bytes);
        let error = TurboHash::open(&pool, "table").unwrap_err();
        assert!(
            matches!(&error, Error::InvalidFormat { found, supported, .. }
                if found.contains("version 3") && supported.contains("version 4")),
            "{error}"
        );
    }
}
