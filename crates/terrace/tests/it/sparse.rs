//! Slabs in which little is left: what had one size makes room for what has another, whoever reads, writes or holds
//! snapshots meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, EngineKind, ErrorKind, Options};
use terrace_base::rng::Rng;

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean, engines_in_memory};

const POOL: u64 = 1 << 20;

/// Hundredths of what an empty pool takes that are there when a tenth of something else is left.
const PROMISED: usize = 45;

/// What a test is run on: an engine, the bytes of its extents and of its keys.
#[derive(Debug, Clone, Copy)]
struct Case {
    engine: Engine,
    extent_bytes: u64,
    key_bytes: usize,
}

impl Case {
    fn machine(&self) -> Machine {
        Machine::new(&Setup::tiny("sparse", &self.engine))
    }

    fn open(&self, machine: &Machine) -> Db {
        self.open_of(machine, POOL)
    }

    fn open_of(&self, machine: &Machine, pm_bytes: u64) -> Db {
        let mut options = Options { pm_bytes, pool_extent_bytes: self.extent_bytes, ..machine.options() };
        (options.sptree.leaf_entries, options.turbo.shards) = (64, 16);
        machine.open_with(options).unwrap()
    }

    /// The `i`th key. Keys in the order of their numbers are in no order; long ones begin alike.
    fn key(&self, i: u32) -> Vec<u8> {
        let mut key = vec![b'k'; self.key_bytes - 4];
        key.extend(i.wrapping_mul(0x9e37_79b1).to_be_bytes());
        key
    }

    /// Puts values of `bytes` under the keys from `first` on until there is no room; how many.
    fn fill(&self, db: &Db, first: u32, bytes: usize, map: &mut Map) -> usize {
        for i in first.. {
            let (key, value) = (self.key(i), vec![i as u8; bytes]);
            match db.put(&key, &value) {
                Ok(()) => drop(map.insert(key, value)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::PoolFull, "{e}");
                    return (i - first) as usize;
                }
            }
        }
        0
    }
}

/// Deletes all but about one of `one_in`.
fn thin(db: &Db, map: &mut Map, rng: &mut Rng, one_in: u64) {
    let gone: Vec<_> = map.keys().filter(|_| !rng.one_in(one_in)).cloned().collect();
    for key in gone {
        db.delete(&key).unwrap();
        map.remove(&key);
    }
}

/// Pairs of sizes, of records that lie in slabs and of such as do not.
fn pairs() -> impl Iterator<Item = (usize, usize)> {
    let befores = [20usize, 100, 300, 440];
    befores.into_iter().flat_map(|before| [24usize, 200, 380, 1500, 6000].map(|after| (before, after)))
}

/// Of values of one size nine of ten are deleted at random: there is room for such of another, also while a snapshot
/// holds versions of what is left.
#[test]
fn what_is_left_of_one_size_makes_room_for_another() {
    for engine in engines_in_memory().map(Engine::of) {
        for (i, (before, after)) in pairs().enumerate() {
            let key_bytes = [4, 8, 20][i % 3];
            // A leaf of `sptree` is to have room in a slab.
            let extents = if engine.kind == EngineKind::Turbo { [4096, 16 << 10] } else { [16 << 10; 2] };
            let case = Case { engine, extent_bytes: extents[i / 2 % 2], key_bytes };
            let mut rng = Rng::new(i as u64);
            let machine = case.machine();
            let db = case.open(&machine);
            let mut map = Map::new();
            let first = case.fill(&db, 0, before, &mut map);
            thin(&db, &mut map, &mut rng, 10);
            let snapshot = (i % 4 == 3).then(|| (db.snapshot(), map.clone()));
            if snapshot.is_some() {
                // What the snapshot sees of these lies under what replaces it.
                for (_, (key, value)) in map.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0) {
                    *value = vec![7; before];
                    db.put(key, value).unwrap();
                }
            }
            let filled = case.fill(&db, 1 << 20, after, &mut map);
            if let Some((snapshot, then)) = &snapshot {
                assert!(snapshot.all().into_iter().collect::<Map>() == *then);
            }
            let room = case.fill(&case.open(&case.machine()), 1 << 20, after, &mut Map::new());
            let told = format!("{before} then {after}, {case:?}: {filled} of {room} after {first}");
            println!("{told}, a snapshot: {}", snapshot.is_some());
            assert!(filled * 100 >= room * PROMISED, "{told}");
            assert!(db.all().into_iter().collect::<Map>() == map, "{told}");
            assert_clean(&db);
            let killed = case.open(&machine.kill());
            assert!(killed.all().into_iter().collect::<Map>() == map, "{told}, killed");
            assert_clean(&killed);
        }
    }
}

/// What sparse slabs hold goes without anybody's finding no room, and no more is done than that.
#[test]
fn much_that_is_free_in_slabs_comes_back_in_the_background() {
    for engine in engines_in_memory().map(Engine::of) {
        let case = Case { engine, extent_bytes: 4096, key_bytes: 20 };
        let db = case.open(&case.machine());
        let mut map = Map::new();
        case.fill(&db, 0, 100, &mut map);
        thin(&db, &mut map, &mut Rng::new(3), 20);
        // A thread that waits for jobs does them.
        let drains = || {
            let before = db.stats().pm.traffic.drains;
            assert_clean(&db);
            db.stats().pm.traffic.drains - before
        };
        let first = drains();
        assert!(first >= 2 * map.len() as u64 / 3, "{first} drains for {} records, {engine:?}", map.len());
        assert_eq!(drains(), 0, "work without need");
        // Nothing more is to be had by looking for it.
        let before = db.stats().pm.traffic.drains;
        db.compact_range(..).unwrap();
        let more = db.stats().pm.traffic.drains - before;
        assert!(more * 2 < first, "{more} drains after {first}");
        assert!(db.all().into_iter().collect::<Map>() == map);
    }
}

/// Everybody reads and writes keys of his own while slabs are emptied.
#[test]
fn slabs_are_emptied_beside_readers_and_writers() {
    const KEYS: u32 = 600;
    for engine in engines_in_memory().map(Engine::of) {
        let case = Case { engine, extent_bytes: 4096, key_bytes: 20 };
        let machine = Machine::new(&Setup::tiny("sparse", &engine).threaded(2));
        let db = case.open_of(&machine, 8 * POOL);
        let done = AtomicBool::new(false);
        let maps: Vec<Map> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u32)
                .map(|thread| {
                    let (db, case) = (&db, &case);
                    scope.spawn(move || {
                        let (mut map, mut rng) = (Map::new(), Rng::new(u64::from(thread)));
                        for round in 0..6u32 {
                            let bytes = [40, 170, 400][(round + thread) as usize % 3];
                            for i in 0..KEYS {
                                let (key, value) = (case.key(thread << 16 | i), vec![round as u8; bytes]);
                                db.put(&key, &value).unwrap();
                                map.insert(key, value);
                            }
                            thin(db, &mut map, &mut rng, 8);
                            for (key, value) in &map {
                                assert_eq!(
                                    db.get(key).unwrap().as_deref(),
                                    Some(&value[..]),
                                    "thread {thread}"
                                );
                            }
                        }
                        map
                    })
                })
                .collect();
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot();
                    let seen: Map = snapshot.all().into_iter().collect();
                    db.compact_range(..).unwrap();
                    assert!(snapshot.all().into_iter().collect::<Map>() == seen);
                    assert_clean(db);
                }
            });
            let maps = writers.into_iter().map(|writer| writer.join()).collect::<Vec<_>>();
            done.store(true, Ordering::Relaxed);
            maps.into_iter().map(Result::unwrap).collect()
        });
        let all: Map = maps.into_iter().flatten().collect();
        assert!(db.all().into_iter().collect::<Map>() == all);
        assert_clean(&db);
        db.compact_range(..).unwrap();
        assert_clean(&db);
    }
}
