//! Tests that need the inside of the table.

use std::path::Path;
use std::sync::Arc;

use terrace_pmem::{Granularity, MemMedia, PoolOptions};

use super::probe::Wanted;
use super::*;

const SEED: u64 = 0x4345_4843;

fn options() -> PoolOptions {
    PoolOptions {
        size: 1 << 20,
        max_size: 64 << 20,
        extent_bytes: 4096,
        prefault: false,
        ..PoolOptions::default()
    }
}

fn pool_on(media: &Arc<MemMedia>) -> Pool {
    Pool::create_on(media.clone(), Path::new("memory"), &options()).unwrap()
}

fn media() -> Arc<MemMedia> {
    Arc::new(MemMedia::new(1 << 20, 64 << 20, Granularity::CacheLine).unwrap())
}

fn sound<const B: usize, const P: usize>(pool: &Pool, table: &Cceh<B, P>) {
    assert_eq!(table.check().unwrap(), Vec::<String>::new());
    table.close().unwrap();
    let mut marks = pool.marks();
    table.mark(&mut marks).unwrap();
    assert!(pool.check(&marks).is_empty(), "{:?}", pool.check(&marks));
}

/// A key of 8 bytes for each hash that no inline slot can hold, found by undoing the hash.
fn awkward_keys(table: &Cceh<4, 2>) -> Vec<[u8; 8]> {
    let hashes = [0u64, 0xffff, u64::MAX, 0x1234_5678_9abc_ffff];
    hashes.iter().map(|h| table.hash.word_of(*h).to_le_bytes()).collect()
}

#[test]
fn keys_whose_hash_means_something_else_lie_in_records() {
    let pool = pool_on(&media());
    let table = Cceh::<4, 2>::create_seeded(&pool, "t", 0, SEED).unwrap();
    let keys = awkward_keys(&table);
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(table.insert(key, i as u64 + 1).unwrap(), None);
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(PointIndex::get(&table, key).unwrap(), Some(i as u64 + 1));
    }
    sound(&pool, &table);
    for key in &keys {
        assert!(table.remove(key).unwrap().is_some());
    }
    assert_eq!(table.len(), 0);
    sound(&pool, &table);
}

#[test]
fn a_value_may_change_its_length() {
    let pool = pool_on(&media());
    let table = Cceh::<4, 2>::create_seeded(&pool, "t", 0, SEED).unwrap();
    let mut value = Vec::new();
    for round in 0..3u8 {
        for key in 0..200u64 {
            let bytes = vec![round; 1 + (key as usize * 7 + usize::from(round)) % 20];
            assert_eq!(table.put(&key.to_le_bytes(), &bytes).unwrap(), round > 0);
            assert!(ByteMap::get(&table, &key.to_le_bytes(), &mut value).unwrap());
            assert_eq!(value, bytes);
        }
        assert_eq!(table.len(), 200);
        sound(&pool, &table);
    }
    assert!(PointIndex::get(&table, &0u64.to_le_bytes()).is_err(), "not a word");
    for key in 0..200u64 {
        assert!(table.delete(&key.to_le_bytes()).unwrap());
        assert!(!table.delete(&key.to_le_bytes()).unwrap());
    }
    sound(&pool, &table);
}

#[test]
fn segments_and_directories_come_back() {
    let media = media();
    let pool = pool_on(&media);
    let table = Cceh::<2, 1>::create_seeded(&pool, "t", 0, SEED).unwrap();
    (0..3000u64).for_each(|k| assert_eq!(table.insert(&k.to_le_bytes(), k + 1).unwrap(), None));
    let figures = table.figures().unwrap();
    assert_eq!((figures.keys, figures.misses.clone()), (3000, vec![figures.buckets]));
    assert!(figures.load_factor() > 0.2 && table.load_factor() > 0.2);
    sound(&pool, &table);
    table.close().unwrap();
    drop(table);
    pool.close().unwrap();
    drop(pool);
    let pool = Pool::open_on(media, Path::new("memory"), &options()).unwrap();
    assert!(Cceh::<4, 1>::open(&pool, "t").is_err(), "other segments");
    let table = Cceh::<2, 1>::open(&pool, "t").unwrap();
    for k in 0..3000u64 {
        assert_eq!(PointIndex::get(&table, &k.to_le_bytes()).unwrap(), Some(k + 1));
    }
    sound(&pool, &table);
}

#[test]
fn a_table_may_be_made_for_many_keys() {
    let pool = pool_on(&media());
    let table = Cceh::<2, 1>::create_seeded(&pool, "t", 1000, SEED).unwrap();
    assert_eq!(table.directory().unwrap().depth, 6);
    (0..500u64).for_each(|k| assert_eq!(table.insert(&k.to_le_bytes(), k + 1).unwrap(), None));
    assert_eq!(table.len(), 500);
    sound(&pool, &table);
}

#[test]
fn a_damaged_directory_is_told() {
    let pool = pool_on(&media());
    let table = Cceh::<2, 1>::create_seeded(&pool, "t", 64, SEED).unwrap();
    (0..40u64).for_each(|k| assert_eq!(table.insert(&k.to_le_bytes(), k + 1).unwrap(), None));
    let at = POff::new(table.directory().unwrap().offset);
    let word = pool.atomic(at).load(Ordering::Relaxed);
    pool.atomic(at).store(word ^ 1 << 20, Ordering::Relaxed);
    assert!(table.check().is_err());
    assert!((0..40u64).any(|k| PointIndex::get(&table, &k.to_le_bytes()).is_err()));
    assert!(Cceh::<2, 1>::open(&pool, "t").is_err());
    pool.atomic(at).store(word, Ordering::Relaxed);
    sound(&pool, &table);
}

#[test]
fn a_segment_that_is_lost_or_given_out_twice_is_found() {
    let pool = pool_on(&media());
    let table = Cceh::<2, 1>::create_seeded(&pool, "t", 64, SEED).unwrap();
    (0..100u64).for_each(|k| assert_eq!(table.insert(&k.to_le_bytes(), k + 1).unwrap(), None));
    let finding = |what: &str| {
        let findings = table.check().unwrap();
        assert!(matches!(&findings[..], [one] if one.contains(what)), "{findings:?}");
    };
    let segment = table.space.take().unwrap();
    finding("is lost");
    // Segments that wait for readers are not lost.
    let reader = table.limbo.enter();
    table.limbo.retire(Garbage::Segment(segment));
    table.limbo.drain();
    assert_eq!((table.limbo.is_empty(), table.check().unwrap()), (false, Vec::new()));
    drop(reader);
    sound(&pool, &table);
    let named = table.entry_at(table.directory().unwrap(), 0).unwrap().offset;
    table.space.give(named);
    finding("is free and named");
    while table.space.take().unwrap() != named {}
    assert!(table.check().unwrap().iter().all(|finding| finding.contains("is lost")));
}

/// Keys of 8 bytes whose hashes have the same 40 first bits, and the same home.
fn crowding<const B: usize, const P: usize>(table: &Cceh<B, P>) -> impl Iterator<Item = [u8; 8]> {
    let hash = table.hash;
    (1..1000u64).map(move |i| hash.word_of(0xABCD_EF12_3400_0000 | i).to_le_bytes())
}

#[test]
fn keys_without_a_place_go_to_the_overflow_and_leave_it() {
    let media = media();
    let pool = pool_on(&media);
    let table = Cceh::<2, 1>::create_seeded(&pool, "t", 0, SEED).unwrap();
    let keys: Vec<_> = crowding(&table).take(300).collect();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(table.insert(key, i as u64 + 1).unwrap(), None);
    }
    assert_eq!((table.len(), table.overflow.keys()), (300, 296));
    assert!(table.space.bytes() < 1 << 20, "{} bytes of segments", table.space.bytes());
    sound(&pool, &table);
    // Each of the first four has a slot, and no room for a record.
    let long = |i: usize| vec![i as u8; 100];
    for (i, key) in keys.iter().enumerate().take(8) {
        assert!(table.put(key, &long(i)).unwrap());
    }
    assert_eq!((table.len(), table.overflow.keys()), (300, 297), "each finds the slot of the one before");
    sound(&pool, &table);
    drop((table, pool));

    let pool = Pool::open_on(media.clone(), Path::new("memory"), &options()).unwrap();
    let table = Cceh::<2, 1>::open(&pool, "t").unwrap();
    let mut found = Vec::new();
    for (i, key) in keys.iter().enumerate() {
        assert!(ByteMap::get(&table, key, &mut found).unwrap());
        let wanted = if i < 8 { long(i) } else { (i as u64 + 1).to_le_bytes().to_vec() };
        assert_eq!(found, wanted, "key {i}");
        assert!(table.delete(key).unwrap());
        assert!(!table.delete(key).unwrap());
    }
    assert_eq!((table.len(), table.overflow.keys(), table.overflow.places()), (0, 0, 0));
    sound(&pool, &table);
}

#[test]
fn a_key_that_a_crash_left_in_its_segment_and_in_the_overflow_is_in_its_segment() {
    let media = media();
    let pool = pool_on(&media);
    let table = Cceh::<2, 1>::create_seeded(&pool, "t", 0, SEED).unwrap();
    let keys: Vec<_> = crowding(&table).take(6).collect();
    keys.iter().for_each(|key| assert_eq!(table.insert(key, 7).unwrap(), None));
    let wanted = Wanted::new(&keys[0], table.hash.of(&keys[0]));
    table.put_overflowed(&wanted, b"later").unwrap();
    assert_eq!((table.overflow.keys(), table.check().unwrap().len()), (3, 1));
    drop((table, pool));
    let pool = Pool::open_on(media.clone(), Path::new("memory"), &options()).unwrap();
    let table = Cceh::<2, 1>::open(&pool, "t").unwrap();
    assert_eq!((table.overflow.keys(), PointIndex::get(&table, &keys[0]).unwrap()), (2, Some(7)));
    table.limbo.drain();
    let mut marks = pool.marks();
    table.mark(&mut marks).unwrap();
    pool.reclaim(&marks).unwrap();
    sound(&pool, &table);
}

#[test]
fn an_older_version_is_told_by_name() {
    let pool = pool_on(&media());
    Cceh::<2, 1>::create(&pool, "t").unwrap();
    let header = pool.root("t").unwrap().unwrap();
    let mut head = [0; 64];
    // SAFETY: within the pool; nobody writes it meanwhile.
    head.copy_from_slice(unsafe { pool.bytes(header, 64).unwrap() });
    head[5] = 1;
    let crc = terrace_base::checksum::crc32c(&head[..24]);
    head[24..28].copy_from_slice(&crc.to_le_bytes());
    pool.write(header, &head);
    let error = Cceh::<2, 1>::open(&pool, "t").unwrap_err();
    assert!(matches!(&error, Error::InvalidFormat { found, .. } if found.contains("version 1")), "{error}");
}

#[test]
fn every_table_has_a_seed_of_its_own() {
    let pool = pool_on(&media());
    let seeds: std::collections::BTreeSet<u64> = (0..8)
        .map(|i| {
            let name = format!("t{i}");
            Cceh::<2, 1>::create(&pool, &name).unwrap().header().unwrap().seed
        })
        .collect();
    assert_eq!(seeds.len(), 8);
}
