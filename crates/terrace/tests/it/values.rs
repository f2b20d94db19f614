//! The tree of values of the engine `lab`: what comes into it, what it hides, and what leaves it.

use terrace::{Db, EngineKind, ErrorKind, LabOptions, Options};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean};

const LAB: Engine = Engine { kind: EngineKind::Lab, drains_per_group: None };

fn setup() -> Setup {
    Setup::tiny("values", &LAB)
}

/// The database of a machine whose tree may hold so many bytes.
fn open(machine: &Machine, value_tree_bytes: u64) -> Db {
    let mut options = machine.options();
    options.lab.value_tree_bytes = value_tree_bytes;
    machine.open_with(options).unwrap()
}

/// Writes a few keys again and again, and many once.
fn write_some_often(db: &Db, map: &mut Map, rounds: u32) {
    for round in 0..rounds {
        let hot = (0..30u32).map(|i| (i * 1000, round));
        let cold = (0..20u32).map(|i| (round * 20 + i + 50_000, 0));
        for (key, version) in hot.chain(cold) {
            let (key, value) = (key.to_be_bytes(), (key ^ version).to_le_bytes().repeat(20));
            db.put(&key, &value).unwrap();
            map.insert(key.to_vec(), value);
        }
    }
    db.flush().unwrap();
}

fn assert_holds(db: &Db, map: &Map) {
    let found: Map = db.all().into_iter().collect();
    assert!(found == *map, "{} keys are found, {} are right", found.len(), map.len());
    map.iter().for_each(|(key, value)| assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..])));
    assert_clean(db);
}

#[test]
fn keys_that_are_written_often_are_not_written_to_tables_each_time() {
    let [with, without] = [1 << 20, 1].map(|bytes| {
        let machine = Machine::new(&setup());
        let (db, mut map) = (open(&machine, bytes), Map::new());
        write_some_often(&db, &mut map, 60);
        assert_holds(&db, &map);
        let stats = db.stats();
        for machine in [machine.kill(), machine.power_cut(5)] {
            assert_holds(&open(&machine, bytes), &map);
        }
        stats
    });
    assert!(with.values.keys >= 30 && with.values.updated > 200, "{:?}", with.values);
    assert_eq!((without.values.keys, without.values.admitted), (0, 0));
    let (few, many) = (with.counts.flush_bytes, without.counts.flush_bytes);
    assert!(few * 3 < many * 2, "{few} bytes were flushed, and {many} without values in the pool");
}

#[test]
fn what_is_too_much_leaves() {
    let machine = Machine::new(&setup());
    let (db, mut map) = (open(&machine, 8 << 10), Map::new());
    write_some_often(&db, &mut map, 40);
    let mut rng = Rng::new(1);
    for i in 0..3000u32 {
        let key = (rng.below(300) as u32).to_be_bytes();
        let value = i.to_le_bytes().repeat(20);
        db.put(&key, &value).unwrap();
        map.insert(key.to_vec(), value);
    }
    db.flush().unwrap();
    let values = db.stats().values;
    assert!(values.evicted > 50 && values.bound == 8 << 10, "{values:?}");
    assert!(values.bytes <= values.bound + (values.bound >> 3), "{values:?}");
    assert_holds(&db, &map);
    db.compact_range::<&[u8]>(..).unwrap();
    assert_eq!(db.stats().values.keys, 0, "whoever wants all merged gets it");
    assert_holds(&db, &map);
}

/// A tree that was filled is opened with one that may hold nothing: it empties, and all is there meanwhile.
#[test]
fn a_tree_that_may_hold_nothing_empties() {
    let machine = Machine::new(&setup());
    let mut map = Map::new();
    let db = open(&machine, 1 << 20);
    write_some_often(&db, &mut map, 20);
    assert!(db.stats().values.keys > 20);
    db.close().unwrap();
    drop(db);
    let db = machine
        .open_with(Options {
            lab: LabOptions { value_tree_share: 0.0, value_tree_bytes: 0, ..machine.options().lab },
            ..machine.options()
        })
        .unwrap();
    assert_holds(&db, &map);
    write_some_often(&db, &mut map, 20);
    write_some_often(&db, &mut map, 20);
    assert_eq!(db.stats().values.keys, 0);
    assert_holds(&db, &map);
}

/// A key in the tree gets values that have no place there, and others again.
#[test]
fn values_that_are_too_large_go_below_and_come_back() {
    let machine = Machine::new(&setup());
    let (db, mut map) = (open(&machine, 1 << 20), Map::new());
    write_some_often(&db, &mut map, 10);
    for round in 0..12u8 {
        for key in (0..30u32).map(|i| (i * 1000).to_be_bytes()) {
            let value = vec![round; if round % 3 == 1 { 3000 } else { 30 }];
            match round % 4 {
                3 => {
                    db.delete(&key).unwrap();
                    map.remove(&key[..]);
                }
                _ => {
                    db.put(&key, &value).unwrap();
                    map.insert(key.to_vec(), value);
                }
            }
        }
        db.flush().unwrap();
        assert_holds(&db, &map);
        assert_holds(&open(&machine.power_cut(u64::from(round)), 1 << 20), &map);
    }
}

#[test]
fn snapshots_and_walks_see_what_was_replaced_and_what_has_left() {
    let machine = Machine::new(&setup());
    let (db, mut map) = (open(&machine, 8 << 10), Map::new());
    let mut held = Vec::new();
    for round in 0..8 {
        write_some_often(&db, &mut map, 6);
        let mut walk = db.iter().unwrap();
        let first: Vec<_> = walk.by_ref().take(10).map(|entry| entry.unwrap().0.to_vec()).collect();
        held.push((db.snapshot(), map.clone(), walk, first));
        if round % 3 == 2 {
            db.compact_range::<&[u8]>(..).unwrap();
        }
    }
    for (snapshot, right, walk, mut keys) in held {
        let found: Map = snapshot.all().into_iter().collect();
        assert!(found == right);
        keys.extend(walk.map(|entry| entry.unwrap().0.to_vec()));
        assert!(keys.iter().eq(right.keys()), "{} keys of {}", keys.len(), right.len());
        for (key, value) in &right {
            assert_eq!(snapshot.get(key).unwrap().as_deref(), Some(&value[..]));
        }
    }
    assert_holds(&db, &map);
}

#[test]
fn without_persistent_memory_it_is_refused_and_told_how_to_go_on() {
    let machine = Machine::new(&setup().on(Granularity::Page));
    let error = machine.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("lab") && error.to_string().contains("emulated"), "{error}");
}
