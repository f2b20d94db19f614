//! Commit logs that are written through a mapping, on this machine's files.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use terrace::{Db, EngineKind, Options, WriteOptions};

use crate::harness::{Map, assert_clean, copy_files, engines_on_files};
use crate::logs::{all, put};

fn options(engine: EngineKind, map_logs: bool) -> Options {
    Options { engine, map_logs, pm_bytes: 64 << 20, memory_budget: 32 << 20, ..Options::default() }
}

fn logs(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
    logs.sort();
    logs
}

/// Whether logs in `dir` are mapped where that is asked for.
fn are_mapped(db: &Db) -> bool {
    db.stats().log.contains("through a mapping")
}

#[test]
fn how_the_log_is_written_is_told_and_can_be_chosen() {
    for engine in engines_on_files() {
        for map_logs in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (db, mut map) = (Db::open(dir.path(), options(engine, map_logs)).unwrap(), Map::new());
            for i in 0..200 {
                put(&db, &mut map, &format!("key {i}"), 500, i % 50 == 0).unwrap();
            }
            let gathers = engine == EngineKind::Slm;
            assert!((map_logs && !gathers) || !are_mapped(&db), "{}", db.stats().log);
            let log = logs(dir.path()).pop().unwrap();
            if are_mapped(&db) {
                assert!(fs::metadata(&log).unwrap().len().is_multiple_of(4096));
            }
            db.close().unwrap();
            drop(db);
            // What is left has no room.
            let bytes = fs::read(&log).unwrap();
            assert_ne!(bytes.last(), Some(&0));
            let db = Db::open(dir.path(), options(engine, !map_logs)).unwrap();
            assert!(all(&db) == map);
            assert_clean(&db);
        }
    }
}

/// The files of a running database, as they are, are those of a killed one.
#[test]
fn what_a_running_process_has_written_is_in_its_files() {
    for engine in [EngineKind::Lsm, EngineKind::Wip] {
        for map_logs in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (db, mut map) = (Db::open(dir.path(), options(engine, map_logs)).unwrap(), Map::new());
            for i in 0..300 {
                put(&db, &mut map, &format!("key {i}"), i % 90 * 30, false).unwrap();
                if i % 60 != 59 {
                    continue;
                }
                let copy = tempfile::tempdir().unwrap();
                copy_files(dir.path(), copy.path());
                let killed = Db::open(copy.path(), options(engine, map_logs)).unwrap();
                assert!(all(&killed) == map);
                assert_clean(&killed);
            }
        }
    }
}

/// Somebody cuts the log under its mapping. That costs one write, which is refused, and not the process.
#[test]
fn a_log_that_is_cut_under_its_mapping_refuses_one_write_and_loses_none() {
    for engine in engines_on_files() {
        let dir = tempfile::tempdir().unwrap();
        let (db, mut map) = (Db::open(dir.path(), options(engine, true)).unwrap(), Map::new());
        for i in 0..100 {
            put(&db, &mut map, &format!("key {i}"), 300, i == 50).unwrap();
        }
        if !are_mapped(&db) {
            return;
        }
        OpenOptions::new().write(true).open(logs(dir.path()).pop().unwrap()).unwrap().set_len(0).unwrap();
        let error = db.put_with(b"refused", b"value", WriteOptions { sync: true }).unwrap_err();
        assert!(error.to_string().contains("through its mapping"), "{error}");
        put(&db, &mut map, "after", 300, true).unwrap();
        assert!(all(&db) == map);
        assert_clean(&db);
        db.close().unwrap();
        drop(db);
        let db = Db::open(dir.path(), options(engine, true)).unwrap();
        assert!(all(&db) == map);
        assert_clean(&db);
    }
}

/// What a small database takes on the disk.
#[test]
fn a_small_database_has_a_small_log() {
    for engine in [EngineKind::Lsm, EngineKind::Wip] {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), options(engine, true)).unwrap();
        db.put(b"key", b"value").unwrap();
        let bytes = |path: &PathBuf| fs::metadata(path).unwrap().len();
        assert!(logs(dir.path()).iter().map(bytes).sum::<u64>() <= 64 << 10);
        db.close().unwrap();
        assert!(logs(dir.path()).iter().map(bytes).sum::<u64>() < 1000);
    }
}
