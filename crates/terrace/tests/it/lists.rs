//! The lists of the engine `tlsm`: what is copied and what is not, what leaves the pool and when, what a crash leaves
//! of a merge.

use std::sync::{Arc, Mutex};

use terrace::{Db, EngineKind, ErrorKind, ListDesign, Options, TieringKind};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean};

const TLSM: Engine = Engine::of(EngineKind::Tlsm);

fn setup() -> Setup {
    Setup::tiny("lists", &TLSM)
}

fn options(machine: &Machine, tiering: TieringKind, list_bytes: u64) -> Options {
    let mut options = machine.options();
    (options.tlsm.tiering, options.tlsm.list_bytes) = (tiering, list_bytes);
    options
}

/// Writes keys drawn from so many, with values of so many bytes.
fn write_some(db: &Db, map: &mut Map, seed: u64, (writes, keys, bytes): (u64, u64, usize)) {
    let mut rng = Rng::new(seed);
    for i in 0..writes {
        let key = format!("user{:08}", rng.below(keys)).into_bytes();
        let value = vec![(seed ^ i) as u8; bytes];
        db.put(&key, &value).unwrap();
        map.insert(key, value);
    }
    db.flush().unwrap();
}

fn assert_holds(db: &Db, map: &Map) {
    let found: Map = db.all().into_iter().collect();
    assert!(found == *map, "{} keys are found, {} are right", found.len(), map.len());
    map.iter().for_each(|(key, value)| assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..])));
    assert_eq!(db.get(b"user").unwrap(), None);
    assert_clean(db);
}

#[test]
fn compactions_move_places_and_copy_no_records() {
    let [moved, copied] = [ListDesign::Seqcopy, ListDesign::Ps].map(|design| {
        let machine = Machine::new(&setup());
        let mut options = options(&machine, TieringKind::None, 0);
        options.tlsm.design = design;
        let (db, mut map) = (machine.open_with(options.clone()).unwrap(), Map::new());
        // Every key once: nothing becomes garbage.
        for i in 0..600u64 {
            let (key, value) = (format!("user{:08}", i * 7919 % 600).into_bytes(), vec![i as u8; 300]);
            db.put(&key, &value).unwrap();
            map.insert(key, value);
        }
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        assert_holds(&db, &map);
        let stats = db.stats();
        assert!(stats.counts.compactions > 3 && stats.ssd.tables == 0, "{:?}", stats.counts);
        for machine in [machine.kill(), machine.power_cut(5)] {
            assert_holds(&machine.open_with(options.clone()).unwrap(), &map);
        }
        stats
    });
    assert!(moved.lists.copied_bytes < 600 * 400, "{:?}", moved.lists);
    assert!(copied.lists.copied_bytes > 2 * moved.lists.copied_bytes, "{:?}", copied.lists);
}

#[test]
fn persistent_memory_holds_little_more_than_what_lives_there() {
    let machine = Machine::new(&setup());
    let db = machine.open_with(options(&machine, TieringKind::None, 0)).unwrap();
    let mut map = Map::new();
    for seed in 0..40 {
        write_some(&db, &mut map, seed, (100, 300, 500));
        db.compact_range("user00000000"..="user00000001").unwrap();
        let lists = db.stats().lists;
        let slack = 32 * 4096;
        assert!(lists.bytes <= lists.live_bytes + lists.live_bytes / 2 + slack, "{lists:?}");
    }
    assert_holds(&db, &map);
}

/// Values are replaced that lie far apart, so that merges leave a little alive in every buffer.
#[test]
fn buffers_of_which_little_lives_are_emptied() {
    let machine = Machine::new(&setup());
    let mut options = options(&machine, TieringKind::None, 0);
    options.tlsm.levels.memtable_bytes = 64 << 10;
    options.tlsm.levels.table_bytes = 8 << 10;
    options.tlsm.levels.base_level_bytes = 512 << 10;
    let (db, mut map) = (machine.open_with(options).unwrap(), Map::new());
    for seed in 0..40 {
        write_some(&db, &mut map, seed, (100, 400, 1000));
        db.compact_range("user00000000"..="user00000001").unwrap();
        // A check does the jobs that were sent.
        assert_clean(&db);
    }
    let lists = db.stats().lists;
    assert!(lists.bytes <= lists.live_bytes + lists.live_bytes / 2 + 32 * 4096, "{lists:?}");
    assert!(lists.emptied > 0, "{lists:?}");
    assert_holds(&db, &map);
}

#[test]
fn the_oldest_lists_become_tables_where_there_is_no_more_room() {
    let machine = Machine::new(&setup());
    let options = options(&machine, TieringKind::Lru, 160 << 10);
    let (db, mut map) = (machine.open_with(options.clone()).unwrap(), Map::new());
    for seed in 0..20 {
        write_some(&db, &mut map, seed, (100, 100_000, 300));
        let lists = db.stats().lists;
        assert!(lists.bytes <= 160 << 10, "{lists:?}");
    }
    let stats = db.stats();
    assert!(stats.lists.evicted > 0 && stats.ssd.tables > 0 && stats.lists.lists > 0, "{:?}", stats.lists);
    assert_holds(&db, &map);
    assert_holds(&machine.power_cut(3).open_with(options).unwrap(), &map);
}

#[test]
fn levels_lie_where_they_are_asked_to() {
    let machine = Machine::new(&setup());
    let (mut map, mut rng) = (Map::new(), Rng::new(1));
    // Each life asks for another place; what is there stays until it is merged.
    for seed in 0..8 {
        let tiering = [TieringKind::None, TieringKind::Leveled, TieringKind::Lru][rng.below(3) as usize];
        let mut options = options(&machine, tiering, 0);
        options.tlsm.pm_levels = 1 + rng.below(3) as usize;
        let db = machine.open_with(options).unwrap();
        assert_holds(&db, &map);
        write_some(&db, &mut map, seed, (300, 2000, 100));
        assert_holds(&db, &map);
        db.close().unwrap();
    }
    let db = machine.open_with(options(&machine, TieringKind::None, 0)).unwrap();
    db.compact_range(..).unwrap();
    assert_holds(&db, &map);
}

#[test]
fn walks_and_snapshots_keep_what_they_read() {
    let machine = Machine::new(&setup());
    let (db, mut map) = (machine.open_with(options(&machine, TieringKind::None, 0)).unwrap(), Map::new());
    write_some(&db, &mut map, 1, (300, 200, 300));
    let (snapshot, right) = (db.snapshot(), map.clone());
    let mut walk = db.iter().unwrap();
    let mut seen: Vec<_> = walk.by_ref().take(5).map(Result::unwrap).collect();
    for seed in 2..12 {
        write_some(&db, &mut map, seed, (300, 200, 300));
    }
    db.compact_range(..).unwrap();
    seen.extend(walk.map(Result::unwrap));
    assert!(seen.iter().map(|(k, v)| (&k[..], &v[..])).eq(right.iter().map(|(k, v)| (&k[..], &v[..]))));
    assert!(snapshot.all().into_iter().collect::<Map>() == right);
    drop(snapshot);
    db.compact_range(..).unwrap();
    assert_holds(&db, &map);
    let lists = db.stats().lists;
    assert!(lists.bytes <= lists.live_bytes + lists.live_bytes / 2 + 32 * 4096, "{lists:?}");
    assert_eq!(lists.entries, map.len() as u64);
}

/// Cuts a merge into many lists short at each of its events: it goes on with what it had, and with nothing else.
#[test]
fn a_merge_that_is_cut_short_goes_on() {
    let machine = Machine::new(&setup());
    let mut options = options(&machine, TieringKind::None, 0);
    options.tlsm.levels.l0_tables = 100;
    options.tlsm.levels.l0_slowdown_tables = 200;
    options.tlsm.levels.l0_stop_tables = 300;
    let (db, mut map) = (machine.open_with(options.clone()).unwrap(), Map::new());
    for seed in 0..6 {
        write_some(&db, &mut map, seed, (120, 300, 200));
    }
    let shots = Arc::new(Mutex::new(Vec::new()));
    let kept = shots.clone();
    let mut events = 0;
    machine.world().on_event(Box::new(move |_, world| {
        events += 1;
        if events % 4 == 0 {
            kept.lock().unwrap().push(world.capture());
        }
    }));
    db.compact_range(..).unwrap();
    machine.world().ignore_events();
    drop(db);
    let shots = std::mem::take(&mut *shots.lock().unwrap());
    assert!(shots.len() > 30, "{} events", shots.len());
    let mut resumed = 0;
    for (i, shot) in shots.iter().enumerate() {
        let world =
            if i % 2 == 0 { shot.kill() } else { shot.power_cut(terrace_sim::Survival::Seeded(i as u64)) };
        let after = machine.on(world);
        let db = after.open_with(options.clone()).unwrap();
        assert_holds(&db, &map);
        db.put(b"zz", b"later").unwrap();
        db.flush().unwrap();
        resumed += db.stats().lists.resumed;
        db.delete(b"zz").unwrap();
        db.compact_range(..).unwrap();
        assert_holds(&db, &map);
    }
    assert!(resumed > 10, "{resumed} merges went on");
}

#[test]
fn a_full_pool_refuses_writes_and_loses_nothing() {
    let machine = Machine::new(&setup());
    let options = options(&machine, TieringKind::None, 128 << 10);
    let (db, mut map) = (machine.open_with(options.clone()).unwrap(), Map::new());
    let mut refused = None;
    for i in 0..2000u32 {
        let (key, value) = (i.to_be_bytes().to_vec(), vec![i as u8; 300]);
        match db.put(&key, &value) {
            Ok(()) => drop(map.insert(key, value)),
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
    }
    assert_eq!(refused.unwrap().kind(), ErrorKind::PoolFull);
    let found: Map = db.all().into_iter().collect();
    assert!(found == map);
    drop(db);
    // With room it goes on.
    let mut larger = options;
    larger.tlsm.tiering = TieringKind::Lru;
    let db = machine.kill().open_with(larger).unwrap();
    write_some(&db, &mut map, 7, (500, 1000, 300));
    assert_holds(&db, &map);
}

#[test]
fn without_persistent_memory_it_is_refused_and_told_how_to_go_on() {
    let machine = Machine::new(&setup().on(Granularity::Page));
    let error = machine.open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("tlsm") && error.to_string().contains("emulated"), "{error}");
}

/// The file of the manifest in force.
fn manifest_of(machine: &Machine) -> std::path::PathBuf {
    let name = machine.fs().image()[&machine.dir().join("CURRENT")].clone();
    machine.dir().join(String::from_utf8(name).unwrap().split_whitespace().next().unwrap())
}

/// A manifest that has lost its newest groups is refused beside lists that only these named, and nothing of them goes;
/// a repair brings them back with the logs behind them.
#[test]
fn lists_that_a_manifest_has_lost_are_told_and_brought_back() {
    let tierings = [TieringKind::None, TieringKind::Leveled, TieringKind::Lru];
    for (tiering, later) in tierings.into_iter().flat_map(|tiering| [(tiering, 0), (tiering, 30)]) {
        let machine = Machine::new(&setup());
        let mut options = options(&machine, tiering, 0);
        options.tlsm.levels.memtable_bytes = 64 << 10;
        let (db, mut map) = (machine.open_with(options.clone()).unwrap(), Map::new());
        write_some(&db, &mut map, 1, (60, 200, 100));
        let (manifest, told) = (manifest_of(&machine), machine.fs().image());
        write_some(&db, &mut map, 2, (60, 200, 100));
        for i in 0..later {
            let key = format!("later{i:04}").into_bytes();
            db.put(&key, b"in a log").unwrap();
            map.insert(key, b"in a log".to_vec());
        }
        let killed = machine.kill();
        std::mem::forget(db);
        assert_eq!(manifest_of(&killed), manifest);
        killed.fs().damage(&manifest, |bytes| bytes.truncate(told[&manifest].len())).unwrap();
        let refused = killed.open_with(options.clone()).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Corruption && refused.to_string().contains("repair"),
            "{refused}"
        );
        let report = Db::repair_in(killed.env(), killed.dir(), options.clone()).unwrap();
        assert!(report.lost.is_empty() && !report.doubts.is_empty(), "{tiering:?}: {report:?}");
        assert_holds(&killed.open_with(options).unwrap(), &map);
    }
}
