//! What is peculiar to the engine that parts items by size.

use terrace::{Db, EngineKind, ErrorKind, Options, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean};

const SPLIT: Engine = Engine::of(EngineKind::Split);

/// Sizes of values on both sides of the boundary, which is 160 with the key.
const SMALL: usize = 60;
const LARGE: usize = 700;

fn machine(name: &'static str) -> Machine {
    Machine::new(&Setup::tiny(name, &SPLIT))
}

fn contents(db: &Db) -> Map {
    db.all().into_iter().collect()
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

fn value(i: u32, version: u32, len: usize) -> Vec<u8> {
    let mut value = format!("{i} {version} ").into_bytes();
    value.resize(len, version as u8);
    value
}

#[test]
fn an_ordinary_file_is_no_place_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let options = Options { engine: EngineKind::Split, ..Options::default() };
    let error = Db::open(&path, options.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("emulated"), "{error}");
    assert_eq!(Db::open(&path, options).map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Each item is where its size says, changes its place with it, and is read from there: not at all of the SSD, exactly
/// its sectors, or one block.
#[test]
fn an_item_is_where_its_size_says() {
    let machine = machine("places");
    let options = Options { memory_budget: 16 << 20, ..machine.options() };
    let db = machine.open_with(options).unwrap();
    let read = || db.stats().ssd.bytes_read;
    for (version, (len, items, bytes)) in
        [(SMALL, 0, 0), (LARGE, 1, 1024), (SMALL, 0, 0), (LARGE, 1, 1024), (2 * LARGE, 1, 1536)]
            .into_iter()
            .enumerate()
    {
        let value = value(1, version as u32, len);
        db.put(&key(1), &value).unwrap();
        let before = read();
        assert_eq!(db.get(&key(1)).unwrap().as_deref(), Some(&value[..]));
        let split = db.stats().split;
        let live = split.item_bytes - split.retired_bytes;
        assert_eq!((live, read() - before), (bytes, bytes), "a value of {len} bytes");
        assert!(split.items >= items);
    }
    db.delete(&key(1)).unwrap();
    assert_eq!(db.stats().split.item_bytes, db.stats().split.retired_bytes);
    assert_clean(&db);
}

/// What is seldom used is migrated, what is read all the time stays, and all of it is found before and after.
#[test]
fn what_is_hot_stays() {
    let machine = machine("hot");
    let db = machine.open().unwrap();
    let mut map = Map::new();
    for i in 0..400u32 {
        db.put(&key(i), &value(i, 0, SMALL)).unwrap();
        map.insert(key(i), value(i, 0, SMALL));
        (0..3).for_each(|hot| drop(db.get(&key(hot)).unwrap()));
    }
    assert_clean(&db);
    let stats = db.stats();
    assert!(stats.split.migrated > 200, "{:?}", stats.split);
    assert!(stats.ssd.tables > 0 && stats.dram.tables > 0, "{:?}", stats.dram);
    let read = || db.stats().ssd.bytes_read;
    let before = read();
    (0..3).for_each(|hot| drop(db.get(&key(hot)).unwrap()));
    assert_eq!(read(), before, "they are in persistent memory");
    assert_eq!(contents(&db), map);
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    assert_eq!(contents(&db), map);
    assert_clean(&db);
}

/// Space comes back, of slots and of tables, while values are replaced over and over; and with a snapshot held nothing
/// of what it sees goes.
#[test]
fn space_comes_back() {
    let machine = Machine::new(&Setup::tiny("space", &SPLIT).threaded(2));
    let db = machine.open().unwrap();
    let (mut map, mut seen) = (Map::new(), None);
    let mut rng = Rng::new(11);
    for step in 0..6000u32 {
        let i = rng.below(150) as u32;
        let len = if rng.one_in(3) { LARGE } else { SMALL };
        let value = value(i, step, len);
        db.put(&key(i), &value).unwrap();
        map.insert(key(i), value);
        if step % 1000 == 0 {
            // It waits for the jobs under way: however busy the machine is, some of this is migrated.
            assert_clean(&db);
        }
        if step == 3000 {
            seen = Some((db.snapshot(), map.clone()));
        }
    }
    let (snapshot, before) = seen.unwrap();
    let found: Map =
        snapshot.iter().unwrap().map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    assert_eq!(found, before);
    drop(snapshot);
    db.compact_range(..).unwrap();
    assert_clean(&db);
    assert_eq!(contents(&db), map);
    let stats = db.stats();
    let live: u64 = map.iter().filter(|(_, v)| v.len() == LARGE).map(|_| 1024).sum();
    assert_eq!(stats.split.item_bytes, live, "{:?}", stats.split);
    assert_eq!((stats.split.dead_bytes, stats.counts.compactions > 0), (0, true), "{:?}", stats.ssd);
    let most = 4 * live + (6 << 20);
    assert!(stats.split.held_bytes < most && stats.split.file_bytes < most, "{:?}", stats.split);
}

/// The job that a snapshot's release starts may be at work on what the snapshot kept: a compaction waits for it.
#[test]
fn a_compaction_right_after_a_release_leaves_nothing() {
    let machine = Machine::new(&Setup::tiny("release", &SPLIT).threaded(2));
    let db = machine.open().unwrap();
    for round in 0..40u32 {
        let fill = |version| (0..400u32).for_each(|i| db.put(&key(i), &value(i, version, SMALL)).unwrap());
        fill(2 * round);
        assert_clean(&db);
        let snapshot = db.snapshot();
        fill(2 * round + 1);
        drop(snapshot);
        // The job has begun in some of the rounds.
        (0..round * 20).for_each(|_| std::thread::yield_now());
        db.compact_range(..).unwrap();
        assert_clean(&db);
        let stats = db.stats();
        assert_eq!(stats.split.dead_bytes, 0, "round {round}: {:?}", stats.ssd);
    }
}

/// A batch with items of both sorts is there or not, and so is one whose large items cannot be written.
#[test]
fn a_batch_has_both_sorts() {
    let machine = machine("batches");
    let db = machine.open().unwrap();
    let mut map = Map::new();
    for round in 0..20u32 {
        let mut batch = WriteBatch::new();
        for i in 0..12 {
            let len = if (i + round) % 3 == 0 { LARGE } else { SMALL };
            batch.put(&key(i), &value(i, round, len));
            map.insert(key(i), value(i, round, len));
        }
        batch.delete(&key(round % 12));
        map.remove(&key(round % 12));
        let held = db.snapshot();
        db.write(batch).unwrap();
        drop(held);
        assert_eq!(contents(&db), map);
    }
    let used = machine.fs().used_bytes();
    machine.fs().set_capacity(Some(used));
    let mut batch = WriteBatch::new();
    batch.put(&key(1), &value(1, 77, SMALL));
    batch.put(&key(2), &vec![7; 4 << 20]);
    let error = db.write(batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(contents(&db), map);
    machine.fs().set_capacity(None);
    assert_clean(&db);
}

/// A pool that is full of records that may go is no obstacle, and one that is full of keys is told.
#[test]
fn far_more_data_than_memory() {
    let mut setup = Setup::tiny("much", &SPLIT);
    setup.granularity = Granularity::CacheLine;
    let machine = Machine::new(&setup);
    let mut options = Options { pm_bytes: 1 << 20, memory_budget: 8 << 20, ..machine.options() };
    (options.split.boundary_bytes, options.split.records_bytes) = (4096, 0);
    (options.split.run_bytes, options.split.block_bytes, options.split.leaf_entries) = (1 << 20, 4096, 64);
    let db = machine.open_with(options).unwrap();
    let keys = 4000u32;
    for i in 0..keys {
        let i = i.wrapping_mul(0x9e37_79b1) % keys;
        db.put(&key(i), &value(i, 1, 2000)).unwrap();
    }
    assert_clean(&db);
    for i in 0..keys {
        let expected = (0..keys).any(|j| j.wrapping_mul(0x9e37_79b1) % keys == i).then(|| value(i, 1, 2000));
        assert_eq!(db.get(&key(i)).unwrap().as_deref(), expected.as_deref());
    }
    assert!(db.stats().pm.used <= 1 << 20);
    let refused = (keys..200_000).find_map(|i| db.put(&key(i), &value(i, 1, 20)).err());
    assert_eq!(refused.unwrap().kind(), ErrorKind::PoolFull);
    assert_clean(&db);
}
