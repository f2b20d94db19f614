//! The commit log in files: what a failed sync and a full disk leave of a database.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace::{Db, EngineKind, ErrorKind, WriteOptions};
use terrace_disk::Fs;
use terrace_pmem::Granularity;
use terrace_sim::{EventKind, World};

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean, engines_on_files};

/// Engines that log in files where there is no persistent memory.
pub fn roomy(kind: EngineKind) -> Machine {
    Machine::new(&Setup::roomy(&Engine::of(kind), Granularity::Page))
}

pub fn put(db: &Db, map: &mut Map, key: &str, len: usize, sync: bool) -> terrace::Result<()> {
    let value = vec![key.len() as u8 ^ len as u8; len];
    db.put_with(key.as_bytes(), &value, WriteOptions { sync })?;
    map.insert(key.into(), value);
    Ok(())
}

pub fn all(db: &Db) -> Map {
    db.all().into_iter().collect()
}

/// The same of a database that is closed.
fn held(db: &Db) -> Map {
    db.snapshot().all().into_iter().collect()
}

pub fn logs(machine: &Machine) -> Vec<PathBuf> {
    let files = machine.fs().list(machine.dir()).unwrap();
    files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "log")).collect()
}

/// Makes syncs of logs fail as long as it is `on`, and counts what logs are asked to do.
#[derive(Default)]
struct Watch {
    on: AtomicBool,
    once: AtomicBool,
    /// So many syncs succeed before.
    spared: AtomicU64,
    created: AtomicU64,
    written: AtomicU64,
}

impl Watch {
    fn over(world: &World) -> Arc<Watch> {
        let watch = Arc::new(Watch::default());
        let seen = watch.clone();
        world.on_event(Box::new(move |event, world| seen.see(&event.kind, world)));
        watch
    }

    fn see(&self, event: &EventKind, world: &World) {
        let is_log = |path: &Path| path.to_string_lossy().contains(".log");
        match event {
            EventKind::Sync(path) if is_log(path) && self.on.load(Ordering::Relaxed) => {
                let spare = |left: u64| left.checked_sub(1);
                if self.spared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spare).is_ok() {
                    return;
                }
                if self.once.load(Ordering::Relaxed) {
                    self.on.store(false, Ordering::Relaxed);
                }
                world.fail_nth(0);
            }
            EventKind::Create(path) if is_log(path) => drop(self.created.fetch_add(1, Ordering::Relaxed)),
            EventKind::Write(path, bytes) if is_log(path) => {
                self.written.fetch_add(*bytes, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// One sync fails, be it with a full disk or having dropped what it was to make durable. The write is refused, does not
/// come back, and the next is well.
#[test]
fn one_failed_sync_refuses_one_write() {
    for (kind, before) in engines_on_files().flat_map(|kind| (0..7).map(move |before| (kind, before))) {
        let machine = roomy(kind);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        put(&db, &mut map, "synced", 100, true).unwrap();
        for i in 0..before {
            put(&db, &mut map, &format!("handed over {i}"), 5000, false).unwrap();
        }
        let watch = Watch::over(machine.world());
        watch.once.store(true, Ordering::Relaxed);
        watch.on.store(true, Ordering::Relaxed);
        let refused = put(&db, &mut map, "refused", 100, true).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Io | ErrorKind::NoSpace), "{refused}");
        assert!(!watch.on.load(Ordering::Relaxed) && all(&db) == map);
        let killed = machine.kill();
        assert!(all(&killed.open().unwrap()) == map, "{kind:?} {before}: killed after the refusal");
        put(&db, &mut map, "after", 100, false).unwrap();
        let killed = machine.kill();
        assert!(all(&killed.open().unwrap()) == map, "{kind:?} {before}: killed after another write");
        put(&db, &mut map, "synced after", 100, true).unwrap();
        for seed in 0..10 {
            let cut = machine.power_cut(seed);
            let db = cut.open().unwrap();
            assert!(all(&db) == map, "{kind:?} {before}: power cut {seed}");
            assert_clean(&db);
        }
    }
}

/// No sync of a log succeeds for a while: every write is refused, none comes back, and then all is well.
#[test]
fn while_syncs_fail_refused_writes_do_not_come_back() {
    for (kind, before) in engines_on_files().flat_map(|kind| (0..7).map(move |before| (kind, before))) {
        let machine = roomy(kind);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        put(&db, &mut map, "synced", 100, true).unwrap();
        let synced = map.clone();
        for i in 0..before {
            put(&db, &mut map, &format!("handed over {i}"), 5000, false).unwrap();
        }
        let watch = Watch::over(machine.world());
        watch.on.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            put(&db, &mut map, "refused", 100, true).unwrap_err();
            assert!(all(&db) == map);
            let killed = machine.kill();
            match killed.open() {
                Ok(db) => assert!(all(&db) == map, "{kind:?} {before}: killed"),
                // What had been handed over is gone from the page cache: that is told, and the rest brought back.
                Err(e) => {
                    assert!(killed.fs().has_dropped_pages() && e.kind() == ErrorKind::Corruption, "{e}");
                    let report = Db::repair_in(killed.env(), killed.dir(), killed.options()).unwrap();
                    let found = all(&killed.open().unwrap());
                    assert!(!report.lost.is_empty() && synced.iter().all(|(k, v)| found.get(k) == Some(v)));
                    assert!(!found.contains_key(&b"refused"[..]));
                }
            }
        }
        put(&db, &mut map, "refused, and not to be synced", 100, false).unwrap_err();
        watch.on.store(false, Ordering::Relaxed);
        put(&db, &mut map, "well", 100, true).unwrap();
        assert!(all(&db) == map);
        assert_clean(&db);
        for world in [machine.kill(), machine.power_cut(1), machine.power_cut(2)] {
            assert!(all(&world.open().unwrap()) == map, "{kind:?} {before}: in the end");
        }
    }
}

/// A sync fails while the database is closed: what was handed over goes to another log, and that is closed in order.
#[test]
fn a_sync_that_fails_at_the_close_takes_nothing() {
    let cases = (0..6).flat_map(|before| (0..2).map(move |spared| (before, spared)));
    for (kind, (before, spared)) in engines_on_files().flat_map(|k| cases.clone().map(move |c| (k, c))) {
        let (machine, case) = (roomy(kind), format!("{kind:?} {before} {spared}"));
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        put(&db, &mut map, "synced", 100, true).unwrap();
        for i in 0..=before {
            put(&db, &mut map, &format!("handed over {i}"), 5000, false).unwrap();
        }
        let watch = Watch::over(machine.world());
        watch.once.store(true, Ordering::Relaxed);
        watch.spared.store(spared, Ordering::Relaxed);
        watch.on.store(true, Ordering::Relaxed);
        db.close().unwrap_or_else(|e| panic!("{case}: {e}"));
        assert!(!watch.on.load(Ordering::Relaxed) && held(&db) == map, "{case}");
        machine.world().ignore_events();
        for world in [machine.kill(), machine.power_cut(1), machine.power_cut(2)] {
            let db = world.open().unwrap_or_else(|e| panic!("{case}: {e}"));
            assert!(all(&db) == map, "{case}");
            assert_clean(&db);
        }
    }
}

/// A log has lost pages to a failed sync, and the process is killed while another log takes its place or after that.
/// The other one has everything from some moment on, and the lost one is no damage any more, though it is still there.
#[test]
fn a_log_that_another_has_replaced_is_no_damage() {
    let cases = (0..6).flat_map(|before| (0..2).map(move |spared| (before, spared)));
    for (kind, (before, spared)) in engines_on_files().flat_map(|k| cases.clone().map(move |c| (k, c))) {
        let machine = roomy(kind);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        for i in 0..=before {
            put(&db, &mut map, &format!("handed over {i}"), 50, false).unwrap();
        }
        let watch = Watch::over(machine.world());
        watch.once.store(true, Ordering::Relaxed);
        watch.spared.store(spared, Ordering::Relaxed);
        watch.on.store(true, Ordering::Relaxed);
        let killed: Arc<Mutex<Vec<World>>> = Arc::default();
        let (seen, kept) = (watch.clone(), killed.clone());
        machine.world().on_event(Box::new(move |event, world| {
            seen.see(&event.kind, world);
            if !seen.on.load(Ordering::Relaxed) {
                kept.lock().push(world.capture().kill());
            }
        }));
        db.close().unwrap();
        machine.world().ignore_events();
        for (at, world) in killed.lock().drain(..).enumerate() {
            let (killed, case) = (machine.on(world), format!("{kind:?} {before} {spared} {at}"));
            let db = match killed.open() {
                Err(e) if killed.fs().has_dropped_pages() && e.kind() == ErrorKind::Corruption => continue,
                opened => opened.unwrap_or_else(|e| panic!("{case}: {e}")),
            };
            assert!(all(&db) == map || killed.fs().has_dropped_pages(), "{case}");
            let report = db.check().unwrap();
            assert!(report.is_clean(), "{case}: {:?}", report.problems);
        }
    }
}

/// A close that could not bring the log's contents anywhere says so, however often it is asked. The engine `wip` brings
/// them to tables, for which it needs no log.
#[test]
fn a_close_that_failed_does_not_turn_into_one_that_succeeded() {
    for kind in engines_on_files().filter(|kind| *kind != EngineKind::Wip) {
        let machine = roomy(kind);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        put(&db, &mut map, "synced", 100, true).unwrap();
        put(&db, &mut map, "handed over", 5000, false).unwrap();
        let watch = Watch::over(machine.world());
        watch.on.store(true, Ordering::Relaxed);
        let error = db.close().unwrap_err();
        watch.on.store(false, Ordering::Relaxed);
        assert_eq!(db.close().unwrap_err().to_string(), error.to_string(), "{kind:?}");
        assert!(held(&db) == map, "{kind:?}");
    }
}

/// A full disk refuses what does not fit. It does not make the log begin anew with everything that memtables hold, and
/// after a failed sync nothing is begun before there is room for that.
#[test]
fn on_a_full_disk_no_log_is_begun() {
    for kind in engines_on_files() {
        let machine = roomy(kind);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        for i in 0..60 {
            put(&db, &mut map, &format!("key {i}"), 5000, false).unwrap();
        }
        db.sync().unwrap();
        let fs = machine.fs();
        fs.set_capacity(Some(fs.used_bytes() + 3000));
        let watch = Watch::over(machine.world());
        for i in 0..20 {
            let refused = put(&db, &mut map, &format!("refused {i}"), 5000, true).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
        }
        assert_eq!(watch.created.load(Ordering::Relaxed), 0, "{kind:?}");
        assert!(watch.written.load(Ordering::Relaxed) < 20 * 5100, "{kind:?}");
        put(&db, &mut map, "small", 100, true).unwrap();
        watch.on.store(true, Ordering::Relaxed);
        watch.once.store(true, Ordering::Relaxed);
        for i in 0..20 {
            let refused = put(&db, &mut map, &format!("refused {i}"), 100, true).unwrap_err();
            assert!(i == 0 || refused.kind() == ErrorKind::NoSpace, "{refused}");
        }
        assert_eq!(watch.created.load(Ordering::Relaxed), 0, "{kind:?}");
        assert!(all(&db) == map);
        fs.set_capacity(None);
        put(&db, &mut map, "room", 5000, true).unwrap();
        assert_clean(&db);
        for world in [machine.kill(), machine.power_cut(1), machine.power_cut(2)] {
            assert!(all(&world.open().unwrap()) == map, "{kind:?}");
        }
    }
}
