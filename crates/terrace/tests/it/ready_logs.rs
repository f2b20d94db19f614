//! The next commit log in a file is ready before it is needed, and counts for nothing until it is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use terrace::{Db, EngineKind, ErrorKind};
use terrace_disk::Fs;
use terrace_pmem::Granularity;
use terrace_sim::EventKind;

use crate::harness::{Deferred, Engine, Machine, Map, Pausable, Setup, assert_clean, engines_on_files};
use crate::logs::{all, logs, put};

/// Engines whose log files have every acknowledged write; `slm` keeps some back in DRAM, and has them in its pool.
const UNBUFFERED: [EngineKind; 2] = [EngineKind::Lsm, EngineKind::Wip];

/// Whether a log has more than its header and its first record, or had, and is gone.
fn is_written(machine: &Machine, log: &Path) -> bool {
    machine.fs().read(log).map_or(true, |bytes| bytes.iter().skip(200).any(|&byte| byte != 0))
}

fn unwritten(machine: &Machine) -> Vec<PathBuf> {
    logs(machine).into_iter().filter(|log| !is_written(machine, log)).collect()
}

/// A database whose first memtables were flushed in the background, and whose last log is ready while the one before it
/// is written. What comes from now on is done by whoever waits for it.
fn with_a_ready_log(kind: EngineKind) -> (Machine, Db, Map) {
    let setup = Setup::tiny("page", &Engine::of(kind)).on(Granularity::Page);
    let (machine, executor) = (Machine::new(&setup), Arc::new(Pausable::new(1)));
    let db = Db::open_in(machine.env_on(executor.clone()), machine.dir(), machine.options()).unwrap();
    let (mut map, mut number) = (Map::new(), 0);
    let wanted = if UNBUFFERED.contains(&kind) { 1 } else { 2 };
    while db.stats().counts.flushes == 0 || unwritten(&machine).len() < wanted {
        put(&db, &mut map, &format!("key {:03}", number * 37 % 1000), 100, number % 20 == 3).unwrap();
        number += 1;
        assert!(number < 10_000, "{kind:?}: no log is ready");
    }
    executor.pause();
    (machine, db, map)
}

#[test]
fn what_is_written_beside_a_ready_log_survives() {
    for kind in engines_on_files() {
        let (machine, db, mut map) = with_a_ready_log(kind);
        for i in 0..60 {
            let is_synced = i % 8 == 5;
            put(&db, &mut map, &format!("later {i:02}"), 100, is_synced).unwrap();
            assert!(all(&machine.kill().open().unwrap()) == map, "{kind:?} {i}: killed");
            for seed in 0..if is_synced { 5 } else { 0 } {
                let cut = machine.power_cut(seed);
                let db = cut.open().unwrap();
                assert!(all(&db) == map, "{kind:?} {i}: power cut {seed}");
                assert_clean(&db);
            }
        }
        assert_clean(&db);
        db.close().unwrap();
        drop(db);
        if UNBUFFERED.contains(&kind) {
            assert_eq!(
                unwritten(&machine),
                [""; 0].map(PathBuf::from),
                "{kind:?}: a log stays that nobody wrote"
            );
        }
        let db = machine.open().unwrap();
        assert!(all(&db) == map, "{kind:?}: closed and opened");
        assert_clean(&db);
    }
}

/// Must catch an opening whose first memtable is full before the next log is ready.
#[test]
fn a_memtable_that_is_half_full_has_the_next_log_made_ready() {
    for kind in engines_on_files() {
        let setup = Setup::tiny("page", &Engine::of(kind)).on(Granularity::Page);
        let (machine, executor) = (Machine::new(&setup), Arc::new(Deferred::default()));
        let db = Db::open_in(machine.env_on(executor.clone()), machine.dir(), machine.options()).unwrap();
        let mut map = Map::new();
        while logs(&machine).len() < 2 {
            let number = map.len();
            put(&db, &mut map, &format!("key {number:03}"), 100, false).unwrap();
            while executor.tidy() {}
        }
        assert_eq!((db.stats().counts.flushes, map.len() > 2), (0, true), "{kind:?}");
        assert!(!is_written(&machine, &logs(&machine)[1]), "{kind:?}: the log is in use");
        assert!(all(&machine.kill().open().unwrap()) == map, "{kind:?}: killed");
        db.close().unwrap();
    }
}

/// The writer that fills a memtable makes no log: it has been made.
#[test]
fn a_full_memtable_makes_no_log() {
    for kind in UNBUFFERED {
        let (machine, db, mut map) = with_a_ready_log(kind);
        let made: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
        let seen = made.clone();
        machine.world().on_event(Box::new(move |event, _| {
            if let EventKind::Create(path) = &event.kind
                && path.to_string_lossy().contains(".log")
            {
                seen.lock().push(path.clone());
            }
        }));
        let ready = logs(&machine).pop().unwrap();
        for i in 0..1000 {
            if is_written(&machine, &ready) {
                break;
            }
            assert_eq!(*made.lock(), [""; 0].map(PathBuf::from), "{kind:?}: made by a writer");
            put(&db, &mut map, &format!("later {i:02}"), 100, false).unwrap();
        }
        assert!(is_written(&machine, &ready) && all(&db) == map, "{kind:?}");
    }
}

/// A log is begun and cannot be announced; a flush makes the next one ready, and then the first is announced. The one that
/// is ready was forgotten by that, and is announced again before it takes a group.
#[test]
fn a_ready_log_that_was_forgotten_is_announced_again() {
    for kind in UNBUFFERED {
        let setup = Setup::tiny("page", &Engine::of(kind)).on(Granularity::Page);
        let (machine, executor) = (Machine::new(&setup), Arc::new(Pausable::new(1)));
        executor.pause();
        let db = Db::open_in(machine.env_on(executor), machine.dir(), machine.options()).unwrap();
        let mut map = Map::new();
        put(&db, &mut map, "first", 100, false).unwrap();
        // From here on a writer tells the manifest of the next log alone.
        let is_armed = Arc::new(AtomicBool::new(true));
        let armed = is_armed.clone();
        machine.world().on_event(Box::new(move |event, world| {
            if let EventKind::Write(path, _) = &event.kind
                && path.to_string_lossy().contains("MANIFEST")
                && armed.swap(false, Ordering::Relaxed)
            {
                world.fail_nth(0);
            }
        }));
        let refused = (0..1000).any(|i| put(&db, &mut map, &format!("key {i:03}"), 100, false).is_err());
        assert!(refused && !is_armed.load(Ordering::Relaxed), "{kind:?}: nothing was refused");
        db.flush().unwrap();
        let ready = logs(&machine).pop().unwrap();
        for i in 0..1000 {
            if is_written(&machine, &ready) {
                break;
            }
            put(&db, &mut map, &format!("later {i:03}"), 100, true).unwrap();
        }
        assert!(all(&machine.kill().open().unwrap()) == map, "{kind:?}");
        let killed = machine.kill();
        killed.fs().remove(&ready).unwrap();
        let opened = killed.open().map(drop);
        let is_noticed = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corruption);
        assert!(is_noticed, "{kind:?} {}: {opened:?}", ready.display());
    }
}

/// Neither the log that is written may be missing nor the one that is ready: the manifest knows both.
#[test]
fn a_log_that_is_missing_before_or_as_the_ready_one_is_noticed() {
    for kind in UNBUFFERED {
        let (machine, _db, _) = with_a_ready_log(kind);
        let there = logs(&machine);
        for log in there.iter().rev().take(2) {
            let killed = machine.kill();
            killed.fs().remove(log).unwrap();
            let opened = killed.open().map(drop);
            let is_noticed = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corruption);
            assert!(is_noticed, "{kind:?} {} of {there:?}: {opened:?}", log.display());
        }
    }
}
