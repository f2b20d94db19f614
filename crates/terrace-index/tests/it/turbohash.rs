//! What is particular to TurboHash: persists, durability of what is read, records, deleted slots, damage, full pools.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::ErrorKind;
use terrace_base::rng::Rng;
use terrace_index::{ByteMap, HashIndex, PointIndex, TurboHash, TurboHashOptions, kinds};
use terrace_pmem::{Granularity, MemMedia, Pool};
use terrace_sim::{Change, Explorer, KvModel, Map, Recorder, World, WorldOptions, kv_scenario};

use crate::bed::{assert_marked, create_in, memory_pool, memory_pool_of, open_in, options, survivors};
use crate::conformance::{SEED, reclaims_beside_writers};
use crate::subjects::Turbo;

fn seeded() -> TurboHashOptions {
    TurboHashOptions { seed: Some(SEED), ..TurboHashOptions::default() }
}

fn tiny() -> TurboHashOptions {
    TurboHashOptions { shards: 2, initial_buckets: 1, probing_scope: 2, ..seeded() }
}

fn make(pool: &Pool, options: &TurboHashOptions) -> TurboHash {
    TurboHash::create(pool, "table", options).unwrap()
}

fn key(i: u64) -> Vec<u8> {
    format!("key-{i:05}").into_bytes()
}

fn check(table: &TurboHash) {
    assert_eq!(table.check().unwrap(), Vec::<String>::new());
}

fn value_of(table: &TurboHash, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = b"before".to_vec();
    ByteMap::get(table, key, &mut value).unwrap().then_some(value)
}

#[test]
fn a_write_has_two_persists_and_a_delete_one() {
    let pool = memory_pool();
    let table = make(&pool, &TurboHashOptions { shards: 2, initial_buckets: 64, ..seeded() });
    // Both shards have their buckets.
    (1000..1020u64).for_each(|i| table.insert(&i.to_le_bytes(), 1).map(drop).unwrap());
    let drains = |f: &dyn Fn()| {
        let before = pool.stats();
        f();
        pool.stats().since(&before).drains
    };
    for i in 10..500u64 {
        assert!((1..=2).contains(&drains(&|| table.insert(&i.to_le_bytes(), 1).map(drop).unwrap())));
        assert!((1..=2).contains(&drains(&|| table.insert(&i.to_le_bytes(), 2).map(drop).unwrap())));
        assert_eq!(drains(&|| PointIndex::get(&table, &i.to_le_bytes()).map(drop).unwrap()), 0);
    }
    for i in 10..500u64 {
        assert_eq!(drains(&|| table.remove(&i.to_le_bytes()).map(drop).unwrap()), 1);
        assert_eq!(drains(&|| table.remove(&i.to_le_bytes()).map(drop).unwrap()), 0);
    }
}

/// A reader must not return what a power cut can take back: at each event of a writer another reads, then the
/// power goes.
#[test]
fn what_a_reader_has_seen_is_durable() {
    let long = |i: u64| if i.is_multiple_of(3) { key(i) } else { i.to_le_bytes().to_vec() };
    for seed in 0..3 {
        let world = World::new(seed, WorldOptions::default());
        let table = Arc::new(make(&create_in(&world).unwrap(), &tiny()));
        (0..10).for_each(|i| table.insert(&long(i), 1).map(drop).unwrap());
        let reads = Arc::new(parking_lot::Mutex::new(0));
        let (reader, seen) = (table.clone(), reads.clone());
        world.on_event(Box::new(move |_, world| {
            // The reader's own drains are events too; they are not reported from within one.
            let words: Vec<_> = (0..40).map(|i| PointIndex::get(&*reader, &long(i)).unwrap()).collect();
            for survivor in survivors(&world.capture(), 2) {
                let table = TurboHash::open(&open_in(&survivor).unwrap(), "table").unwrap();
                for (i, word) in (0..).zip(&words) {
                    let now = PointIndex::get(&table, &long(i)).unwrap();
                    assert_eq!(now, *word, "key {i} was read so before the cut");
                }
            }
            *seen.lock() += 1;
        }));
        for i in 0..12 {
            table.insert(&long(i * 3 + 1), 50 + i).unwrap();
            table.insert(&long(i * 2), 70 + i).unwrap();
            table.remove(&long(i)).unwrap();
        }
        world.ignore_events();
        assert!(*reads.lock() > 36);
    }
}

#[test]
fn pairs_of_any_length_come_back() {
    let pool = memory_pool_of(256 << 20);
    let table = make(&pool, &tiny());
    let (mut map, mut rng) = (BTreeMap::new(), Rng::new(3));
    for _ in 0..3000 {
        let mut key = vec![0; [0, 1, 7, 8, 8, 8, 9, 15, 300][rng.below(9) as usize]];
        if let Some(last) = key.last_mut() {
            *last = rng.below(30) as u8;
        }
        if rng.one_in(3) {
            assert_eq!(table.delete(&key).unwrap(), map.remove(&key).is_some());
        } else {
            let mut value = vec![0; [0, 1, 8, 8, 8, 15, 600, 9000][rng.below(8) as usize]];
            rng.fill(&mut value);
            assert_eq!(table.put(&key, &value).unwrap(), map.insert(key.clone(), value).is_some());
        }
        assert_eq!(value_of(&table, &key), map.get(&key).cloned());
    }
    assert!(table.put(&[0; 65_536], b"").is_err());
    assert!(table.put(&[1; 65_535], &vec![2; 3 << 20]).is_ok());
    assert_eq!(value_of(&table, &[1; 65_535]), Some(vec![2; 3 << 20]));
    assert_eq!(PointIndex::get(&table, &[1; 65_535]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    map.insert(vec![1; 65_535], vec![2; 3 << 20]);
    let mut found = BTreeMap::new();
    let mut cursor = terrace_index::ScanPosition::START;
    while !cursor.is_end() {
        table
            .scan_pairs(&mut cursor, 5, &mut |k, v| {
                assert_eq!(found.insert(k.to_vec(), v.to_vec()), None);
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(found, map);
    check(&table);
    assert!(table.drain());
    assert_marked(&pool, |marks| table.mark(marks));
}

type Op = (Vec<u8>, Option<Vec<u8>>);

fn run(world: &World, recorder: &mut Recorder<KvModel>, ops: &[Op]) -> Result<(), String> {
    let text = |e: terrace_base::Error| e.to_string();
    let table = TurboHash::create(&create_in(world).map_err(text)?, "table", &tiny()).map_err(text)?;
    for (key, value) in ops {
        let change = match value {
            Some(value) => Change::put(key.clone(), value.clone()),
            None => Change::delete(key.clone()),
        };
        let apply = || match value {
            Some(value) => table.put(key, value).map(drop),
            None => table.delete(key).map(drop),
        };
        recorder.apply(change, apply).map_err(text)?;
    }
    Ok(())
}

fn verify(world: &World, model: &KvModel) -> Result<(), String> {
    let named = open_in(world).ok().filter(|pool| pool.root("table").is_ok_and(|root| root.is_some()));
    let Some(pool) = named else { return model.accepts_in(world, &Map::new()) };
    let table = TurboHash::open(&pool, "table").map_err(|e| e.to_string())?;
    let mut found = Map::new();
    let mut cursor = terrace_index::ScanPosition::START;
    let mut visit = |k: &[u8], v: &[u8]| {
        found.insert(k.to_vec(), v.to_vec());
        Ok(())
    };
    table.scan_pairs(&mut cursor, usize::MAX, &mut visit).map_err(|e| e.to_string())?;
    model.accepts_in(world, &found)?;
    let problems = table.check().unwrap();
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    world.recovery_done();
    table.close().unwrap();
    assert_marked(&pool, |marks| table.mark(marks));
    found.keys().for_each(|k| assert!(table.delete(k).unwrap()));
    check(&table);
    table.close().unwrap();
    assert_marked(&pool, |marks| table.mark(marks));
    Ok(())
}

#[test]
fn records_survive_crashes() {
    let mut rng = Rng::new(9);
    let ops: Vec<Op> = (0..60)
        .map(|i| {
            let key = if rng.one_in(2) { rng.below(12).to_le_bytes().to_vec() } else { key(rng.below(12)) };
            let value = vec![i as u8; [0, 8, 8, 40, 700][rng.below(5) as usize]];
            (key, (!rng.one_in(4)).then_some(value))
        })
        .collect();
    Explorer::new(4).images(900).nested(1, 1).must_pass(kv_scenario(run, verify), ops);
}

/// Published remedy: slots of deleted keys lengthen paths until a rehash collects them.
#[test]
fn slots_of_deleted_keys_are_collected() {
    let pool = memory_pool_of(256 << 20);
    let table = make(&pool, &TurboHashOptions { shards: 2, initial_buckets: 1, ..seeded() });
    let live = 3000u64;
    for i in 0..40 * live {
        table.insert(&i.to_le_bytes(), i + 1).unwrap();
        if let Some(old) = i.checked_sub(live) {
            assert_eq!(table.remove(&old.to_le_bytes()).unwrap(), Some(old + 1));
        }
    }
    let figures = table.figures().unwrap();
    assert_eq!((figures.keys, table.len()), (live, live));
    assert!(
        figures.usable_slots < 8 * live && figures.deleted < figures.usable_slots * 6 / 10,
        "{figures:?}"
    );
    check(&table);
    for i in 39 * live..40 * live {
        assert_eq!(PointIndex::get(&table, &i.to_le_bytes()).unwrap(), Some(i + 1));
        table.remove(&i.to_le_bytes()).unwrap();
    }
    assert!(table.is_empty());
    table.close().unwrap();
    assert_marked(&pool, |marks| table.mark(marks));
}

#[test]
fn a_full_pool_is_an_error_and_loses_nothing() {
    for value_bytes in [8, 100] {
        let pool = memory_pool_of(2 << 20);
        let table = make(&pool, &TurboHashOptions { shards: 4, initial_buckets: 1, ..seeded() });
        let value = |i: u64| {
            let mut value = vec![3; value_bytes];
            value[..8].copy_from_slice(&i.to_le_bytes());
            value
        };
        let mut n = 0u64;
        let full = loop {
            match table.put(&n.to_le_bytes(), &value(n)) {
                Ok(_) => n += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), ErrorKind::PoolFull);
        assert!(n > 5000, "{n}");
        check(&table);
        assert_eq!(table.len(), n);
        for i in 0..n {
            assert_eq!(value_of(&table, &i.to_le_bytes()), Some(value(i)));
            assert!(table.delete(&i.to_le_bytes()).unwrap());
        }
        table.close().unwrap();
        (0..n / 2).for_each(|i| assert!(!table.put(&i.to_le_bytes(), &value(i + 1)).unwrap()));
        check(&table);
        table.close().unwrap();
        assert_marked(&pool, |marks| table.mark(marks));
    }
}

/// Any bit of anything the table has in the pool may be flipped: the right answer or an error.
#[test]
fn a_flipped_bit_is_an_error_or_harmless() {
    let pool = memory_pool();
    let table = make(&pool, &TurboHashOptions { shards: 2, initial_buckets: 1, ..seeded() });
    let long = |i: u64| if i.is_multiple_of(4) { key(i) } else { i.to_le_bytes().to_vec() };
    (0..60).for_each(|i| table.insert(&long(i), i + 1).map(drop).unwrap());
    (0..60).step_by(5).for_each(|i| table.insert(&long(i), i + 100).map(drop).unwrap());
    (0..60).step_by(7).for_each(|i| table.remove(&long(i)).map(drop).unwrap());
    table.close().unwrap();
    let wanted: Vec<_> = (0..80).map(|i| PointIndex::get(&table, &long(i)).unwrap()).collect();
    let places: Vec<_> = pool.slots(kinds::TURBOHASH).chain(pool.slots(kinds::TURBOHASH_PAIR)).collect();
    let (mut told, mut harmless) = (0, 0);
    for (at, bytes) in places {
        for offset in (at..at + bytes).step_by(8) {
            let mut old = [0; 8];
            // SAFETY: within the pool; nobody writes it meanwhile.
            old.copy_from_slice(unsafe { pool.bytes(offset, 8).unwrap() });
            for bit in 0..64 {
                pool.write(offset, &(u64::from_le_bytes(old) ^ 1 << bit).to_le_bytes());
                let mut errors = 0;
                match TurboHash::open(&pool, "table") {
                    Ok(table) => {
                        for (i, wanted) in (0..).zip(&wanted) {
                            match PointIndex::get(&table, &long(i)) {
                                Ok(word) => assert_eq!(word, *wanted, "key {i}, bit {bit} of {offset:#x}"),
                                Err(_) => errors += 1,
                            }
                        }
                        drop(table.check());
                    }
                    Err(_) => errors += 1,
                }
                told += u64::from(errors > 0);
                harmless += u64::from(errors == 0);
                pool.write(offset, &old);
            }
        }
    }
    assert!(told > 10_000 && harmless > 100, "{told} told, {harmless} harmless");
    check(&table);
}

#[test]
fn damaged_and_foreign_tables_are_errors() {
    let pool = memory_pool();
    let table = make(&pool, &tiny());
    (0..100u64).for_each(|i| table.insert(&i.to_le_bytes(), i + 1).map(drop).unwrap());
    assert_eq!(TurboHash::open(&pool, "other").unwrap_err().kind(), ErrorKind::Corruption);
    pool.set_root("other", 8192).unwrap();
    assert_eq!(TurboHash::open(&pool, "other").unwrap_err().kind(), ErrorKind::Corruption);
    pool.clear_root("other").unwrap();
    let shards: Vec<_> = pool.slots(kinds::TURBOHASH).filter(|(_, bytes)| *bytes >= 256).collect();
    for (at, bytes) in shards {
        let mut old = vec![0; bytes as usize];
        // SAFETY: within the pool; nobody writes it meanwhile.
        old.copy_from_slice(unsafe { pool.bytes(at, bytes).unwrap() });
        for wrong in [0u8, 0xff] {
            pool.write(at, &vec![wrong; bytes as usize]);
            if let Ok(table) = TurboHash::open(&pool, "table") {
                for i in 0..200u64 {
                    assert!(
                        PointIndex::get(&table, &i.to_le_bytes())
                            .map_or(true, |found| found == (i < 100).then_some(i + 1))
                    );
                    // Writers that come by change nothing.
                    drop(table.compare_exchange(&i.to_le_bytes(), Some(1 << 40), Some(7)));
                    drop(table.remove(&(i + 1000).to_le_bytes()));
                }
                drop(table.figures());
                drop(table.mark(&mut pool.marks()));
            }
            pool.write(at, &old);
        }
    }
    check(&table);
}

/// A reader sees each value whole and never an older one after a newer, through updates, rehashes and deletions
/// around it.
#[test]
fn readers_see_whole_values_and_time_passes_forward() {
    let pool = memory_pool_of(256 << 20);
    let table = make(&pool, &tiny());
    let keys = 24u64;
    let name = |i: u64| if i.is_multiple_of(2) { key(i) } else { i.to_le_bytes().to_vec() };
    let value = |round: u64| round.to_le_bytes().repeat(1 + (round % 40) as usize);
    (0..keys).for_each(|i| table.put(&name(i), &value(1)).map(drop).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..2 {
            let (table, stop) = (&table, &stop);
            s.spawn(move || {
                let (mut last, mut out) = (vec![0; keys as usize], Vec::new());
                let mut rng = Rng::new(t);
                while !stop.load(Ordering::Relaxed) {
                    let i = rng.below(keys);
                    assert!(ByteMap::get(table, &name(i), &mut out).unwrap());
                    let round = u64::from_le_bytes(out[..8].try_into().unwrap());
                    assert_eq!(out, value(round));
                    assert!(round >= last[i as usize], "key {i}: {round} after {}", last[i as usize]);
                    last[i as usize] = round;
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|t| {
                let table = &table;
                s.spawn(move || {
                    for round in 2..400 {
                        for i in (t..keys).step_by(2) {
                            assert!(table.put(&name(i), &value(round)).unwrap());
                            // Others come and go, so that shards are rehashed.
                            let other = 1000 + 2 * (round * 7 + i) + t;
                            table.insert(&other.to_le_bytes(), 1).unwrap();
                            table
                                .remove(&(other - if round % 5 == 0 { 0 } else { 14 }).to_le_bytes())
                                .unwrap();
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    check(&table);
    table.close().unwrap();
    assert_marked(&pool, |marks| table.mark(marks));
}

/// Shards of three sizes, of which two share extents: while marks are made some move into extents of others, and others
/// leave them.
#[test]
fn reclaiming_keeps_shards_that_move_into_shared_extents() {
    for keys in [500, 600, 700, 800] {
        reclaims_beside_writers::<Turbo<16, 2, 3>>(keys);
    }
}

/// A shard of many extents is written to in the middle before anything else has looked there since the pool was closed.
#[test]
fn large_shards_are_written_to_after_a_close() {
    let media = Arc::new(MemMedia::new(1 << 20, 8 << 20, Granularity::CacheLine).unwrap());
    let pool = Pool::create_on(media.clone(), Path::new("memory"), &options()).unwrap();
    let table = make(&pool, &tiny());
    (0..4000u64).for_each(|i| table.insert(&i.to_le_bytes(), i + 1).map(drop).unwrap());
    table.close().unwrap();
    drop(table);
    pool.close().unwrap();
    drop(pool);
    let pool = Pool::open_on(media, Path::new("memory"), &options()).unwrap();
    let table = TurboHash::open(&pool, "table").unwrap();
    for i in 0..4000u64 {
        assert_eq!(table.insert(&i.to_le_bytes(), i + 2).unwrap(), Some(i + 1));
        pool.intact().unwrap_or_else(|e| panic!("write {i}: {e}"));
    }
    check(&table);
    let altered = pool.altered();
    assert!(altered.is_empty(), "{altered:?}");
}
