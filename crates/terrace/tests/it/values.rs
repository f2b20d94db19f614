//! The tree of values of the engine `lab`: what comes into it, what it hides, and what leaves it.

use terrace::{Db, EngineKind, ErrorKind, LabOptions, LabTrees, Options, PoolChoice, Profile, Stats};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean};

const LAB: Engine = Engine::of(EngineKind::Lab);

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
    db.compact_range(..).unwrap();
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
            db.compact_range(..).unwrap();
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

/// Writes keys in turns, so that they leave the tree of values and come back; what was written then.
fn write_in_turns(db: &Db, map: &mut Map) {
    let mut rng = Rng::new(3);
    for i in 0..12_000u32 {
        // A hundred keys are written often for a while, and then another hundred.
        let turn = i / 1500 % 3 * 100;
        let key = if rng.one_in(4) { 1000 + rng.below(3000) } else { u64::from(turn) + rng.below(100) };
        let (key, value) = ((key as u32).to_be_bytes(), i.to_le_bytes().repeat(20));
        db.put(&key, &value).unwrap();
        map.insert(key.to_vec(), value);
    }
    db.flush().unwrap();
}

/// Every set of trees holds the same; hints know what is stale, and blocks are left out.
#[test]
fn hints_tell_what_is_stale() {
    let with = |trees: LabTrees| -> Stats {
        let machine = Machine::new(&setup());
        let mut options = machine.options();
        options.lab.trees = trees;
        (options.lab.value_tree_bytes, options.lab.hint_tree_bytes) = (16 << 10, 64 << 10);
        let (db, mut map) = (machine.open_with(options.clone()).unwrap(), Map::new());
        write_in_turns(&db, &mut map);
        let stats = db.stats();
        assert_holds(&db, &map);
        let after = machine.kill().open_with(options).unwrap();
        assert_holds(&after, &map);
        stats
    };
    let [none, values, both] = [LabTrees::None, LabTrees::Values, LabTrees::Both].map(with);
    let written = |stats: &Stats| (stats.counts.flush_bytes, stats.counts.compaction_bytes);
    println!("none {:?}\nvalues {:?}\nboth {:?}", written(&none), written(&values), written(&both));
    println!("{:?} {:?}", both.values, both.hints);
    assert_eq!((none.values.keys, values.hints.keys), (0, 0));
    assert!(values.values.evicted > 100, "{:?}", values.values);
    let hints = both.hints;
    assert!(hints.keys > 50 && hints.outdated > 100 && hints.passed_blocks > 0, "{hints:?}");
    // A node may be split by the last one that there is room for.
    assert!(hints.bytes <= hints.bound + (2 << 10), "{hints:?}");
}

/// Trees that are not wanted any more empty, and fill again.
#[test]
fn hints_that_are_not_wanted_go() {
    let machine = Machine::new(&setup());
    let mut map = Map::new();
    for trees in [LabTrees::Both, LabTrees::Values, LabTrees::Both, LabTrees::None, LabTrees::Both] {
        let mut options = machine.options();
        options.lab.trees = trees;
        options.lab.hint_tree_bytes = 64 << 10;
        let db = machine.open_with(options).unwrap();
        write_in_turns(&db, &mut map);
        assert_eq!(db.stats().hints.keys > 0, trees == LabTrees::Both, "{trees:?}: {:?}", db.stats().hints);
        assert_eq!(db.stats().values.keys > 0, trees != LabTrees::None, "{trees:?}: {:?}", db.stats().values);
        assert_holds(&db, &map);
        db.close().unwrap();
    }
}

/// A get of a key that the tree does not have looks into it seldom, and so costs hardly a read of persistent memory.
#[test]
fn a_get_of_an_absent_key_walks_through_no_tree() {
    let dir = tempfile::tempdir().unwrap();
    let profile = Profile::parse("read=1").unwrap();
    let mut options = Options {
        engine: EngineKind::Lab,
        pool: PoolChoice::Emulated { path: None, profile },
        ..Options::default()
    };
    options.lab.value_tree_bytes = 16 << 20;
    options.lab.levels.memtable_bytes = 64 << 10;
    let db = Db::open(dir.path(), options).unwrap();
    let key = |i: u32| format!("key {i:06}").into_bytes();
    for _ in 0..3 {
        (0..4000).for_each(|i| db.put(&key(2 * i), &[1; 40]).unwrap());
    }
    db.flush().unwrap();
    assert!(db.stats().values.keys > 3000, "{:?}", db.stats().values);
    let reads = |wanted: &dyn Fn(u32) -> Vec<u8>| {
        let before = db.stats().pm.traffic.xpline_reads;
        (0..4000).for_each(|i| drop(db.get(&wanted(i)).unwrap()));
        db.stats().pm.traffic.xpline_reads - before
    };
    let (there, absent) = (reads(&|i| key(2 * i)), reads(&|i| key(2 * i + 1)));
    println!("{there} reads for keys that are there, {absent} for others");
    assert!(there > 4000 && absent * 10 < there, "{there} and {absent}");
}
