//! The database and its disk.

use terrace::{Db, Options, WriteBatch};
use terrace_base::ErrorKind;
use terrace_disk::{Fault, Fs};

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean, setups};

fn table_files(machine: &Machine) -> usize {
    let files = machine.fs().list(machine.dir()).unwrap();
    files.iter().filter(|path| path.extension().is_some_and(|e| e == "sst")).count()
}

/// Overwriting the same keys for ever takes bounded room, and no file is left behind.
pub fn compaction_frees_the_disk(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() {
        return replacing_frees_the_pool(engine);
    }
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        for round in 0..30u8 {
            for i in 0..100u32 {
                db.put(&i.to_be_bytes(), &[round; 100]).unwrap();
            }
        }
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        let stats = db.stats();
        let is_split = engine.kind == terrace::EngineKind::Split;
        // Some are in persistent memory where small items stay there, and not among them.
        let live = if is_split { stats.ssd.live_entries } else { 100 };
        assert_eq!(stats.ssd.live_entries + stats.lists.entries, live);
        assert_eq!(
            stats.ssd.table_entries + stats.lists.entries,
            live,
            "all garbage is gone under {}",
            setup.name
        );
        // Waits for jobs that may still look at what was merged.
        assert_clean(&db);
        // Jobs that waited may have made some.
        let tables = if is_split { db.stats() } else { stats }.ssd.tables;
        assert_eq!(table_files(&machine), tables as usize, "no table is left behind");
        (0..100u32).for_each(|i| db.delete(&i.to_be_bytes()).unwrap());
        db.compact_range(..).unwrap();
        let stats = db.stats();
        assert_eq!(stats.ssd.table_entries + stats.lists.entries, 0, "tombstones go too");
        assert_clean(&db);
        assert_eq!(table_files(&machine), 0);
    }
}

/// Writes until an error, with every acknowledged write in the map.
fn write_until_refused(db: &Db, map: &mut Map, round: u8) -> Option<ErrorKind> {
    for i in 0..3000u32 {
        let (key, value) = (i.to_be_bytes(), [round; 200]);
        match db.put(&key, &value) {
            Ok(()) => drop(map.insert(key.to_vec(), value.to_vec())),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                return Some(error.kind());
            }
        }
    }
    None
}

fn assert_holds(db: &Db, map: &Map) {
    let found: Map = db.all().into_iter().collect();
    assert!(found == *map, "{} entries found, {} expected", found.len(), map.len());
}

pub fn a_full_disk_refuses_and_recovers(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() {
        return a_full_pool_refuses_and_recovers(engine);
    }
    let machine = Machine::new(&Setup::tiny("full disk", engine));
    let db = machine.open().unwrap();
    let mut map = Map::new();
    machine.fs().set_capacity(Some(100_000));
    assert_eq!(write_until_refused(&db, &mut map, 1), Some(ErrorKind::NoSpace));
    assert_holds(&db, &map);
    machine.fs().set_capacity(None);
    assert_eq!(write_until_refused(&db, &mut map, 2), None, "there is room again");
    assert_holds(&db, &map);
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    assert_holds(&db, &map);
    assert_clean(&db);
}

/// Any one operation of the disk fails, at any time: reads stay right, and a new process finds it all.
pub fn failing_operations_are_errors(engine: &Engine) {
    for after in (0..60).chain((60..400).step_by(17)) {
        let machine = Machine::new(&Setup::tiny("failing", engine));
        let db = machine.open().unwrap();
        let sticky = after % 2 == 0;
        machine.fs().inject(Some(Fault { after, only_changes: true, sticky }));
        let mut map = Map::new();
        let mut undecided: Vec<Vec<u8>> = Vec::new();
        for i in 0..120u32 {
            let (key, value) = ((i % 40).to_be_bytes(), [i as u8; 150]);
            match db.put(&key, &value) {
                Ok(()) => drop(map.insert(key.to_vec(), value.to_vec())),
                Err(_) => undecided.push(key.to_vec()),
            }
        }
        let found: Map = db.all().into_iter().collect();
        let same = |found: &Map| {
            let decided = |m: &Map| -> Map {
                m.iter()
                    .filter(|(k, _)| !undecided.contains(k))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect()
            };
            decided(found) == decided(&map)
        };
        assert!(same(&found), "fault after {after}");
        let again = machine.kill();
        again.fs().inject(None);
        drop(db);
        let db = again.open().unwrap_or_else(|e| panic!("fault after {after}: {e}"));
        let found: Map = db.all().into_iter().collect();
        assert!(same(&found), "fault after {after}, reopened");
        assert_clean(&db);
    }
}

/// Where everything is in the pool, what is replaced and what is deleted gives its room back, and no file is written.
fn replacing_frees_the_pool(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let fill = |round: u8| (0..100u32).for_each(|i| db.put(&i.to_be_bytes(), &[round; 1000]).unwrap());
        fill(0);
        let once = db.stats().pm.used;
        (1..30).for_each(fill);
        db.compact_range(..).unwrap();
        let often = db.stats().pm.used;
        assert!(often < once * 3 / 2, "{once} bytes once, {often} in the end, under {}", setup.name);
        (0..100u32).for_each(|i| db.delete(&i.to_be_bytes()).unwrap());
        db.compact_range(..).unwrap();
        let gone = db.stats().pm.used;
        assert!(gone + 300_000 < once, "{once} bytes once, {gone} without any, under {}", setup.name);
        assert_clean(&db);
        assert_eq!(table_files(&machine), 0);
    }
}

fn a_full_pool_refuses_and_recovers(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open_with(Options { pm_bytes: 4 << 20, ..machine.options() }).unwrap();
        let (mut map, mut full) = (Map::new(), None);
        for i in 0..20_000u32 {
            let (key, value) = (i.to_be_bytes(), vec![i as u8; 500]);
            match db.put(&key, &value) {
                Ok(()) => drop(map.insert(key.to_vec(), value)),
                Err(error) => {
                    full = Some(error);
                    break;
                }
            }
        }
        assert_eq!(full.unwrap().kind(), ErrorKind::PoolFull, "under {}", setup.name);
        let mut batch = WriteBatch::new();
        (0..9u32).for_each(|i| batch.put(&(50_000 + i).to_be_bytes(), &[1; 60_000]));
        assert_eq!(db.write(batch).unwrap_err().kind(), ErrorKind::PoolFull);
        assert_holds(&db, &map);
        assert_clean(&db);
        let gone: Vec<_> = map.keys().step_by(2).cloned().collect();
        for key in &gone {
            db.delete(key).unwrap();
            map.remove(key);
        }
        for key in gone.iter().step_by(2) {
            db.put(key, &[7; 500]).unwrap();
            map.insert(key.clone(), vec![7; 500]);
        }
        assert_holds(&db, &map);
        assert_clean(&db);
        db.close().unwrap();
        drop(db);
        let db = machine.open().unwrap();
        assert_holds(&db, &map);
        assert_clean(&db);
    }
}
