//! Tables that are read through mappings: on this machine's files, and on a simulated disk that fails under them.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, EngineKind, Env, ErrorKind, Options, TableReads};
use terrace_base::clock::ManualClock;
use terrace_disk::Fault;
use terrace_pmem::Granularity;

use crate::harness::{Engine, Machine, Map, Setup, assert_clean, engines_on_files, stepped};
use crate::logs::{all, put};

fn options(engine: EngineKind, table_reads: TableReads) -> Options {
    let mut options =
        Options { engine, table_reads, pm_bytes: 64 << 20, memory_budget: 32 << 20, ..Options::default() };
    (options.slm.table_bytes, options.lsm.table_bytes) = (64 << 10, 64 << 10);
    options
}

fn tables(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect()
}

/// A database in `dir` whose records are all in tables.
fn filled(dir: &Path, options: Options) -> (Db, Map) {
    let (db, mut map) = (Db::open(dir, options).unwrap(), Map::new());
    for i in 0..600 {
        put(&db, &mut map, &format!("key {i}"), i * 37 % 1500, false).unwrap();
    }
    db.flush().unwrap();
    (db, map)
}

fn assert_found(db: &Db, map: &Map) {
    for (key, value) in map {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    assert_eq!(db.get(b"key").unwrap(), None);
    assert!(all(db) == *map);
}

#[test]
fn how_tables_are_read_is_told_and_can_be_chosen() {
    for engine in engines_on_files() {
        for reads in [TableReads::Auto, TableReads::Mapped, TableReads::Calls] {
            let dir = tempfile::tempdir().unwrap();
            let (db, map) = filled(dir.path(), options(engine, reads));
            assert_found(&db, &map);
            let stats = db.stats();
            let (is_mapped, told) = (reads != TableReads::Calls, &stats.table_reads);
            assert!(told.starts_with(if is_mapped { "through mappings" } else { "by calls" }), "{told}");
            let ssd = &stats.ssd;
            assert_eq!((ssd.mapped_tables > 0, ssd.failed_maps), (is_mapped, 0));
            assert!(ssd.mapped_resident <= ssd.mapped_bytes && ssd.mapped_tables <= ssd.tables);
            assert_clean(&db);
            assert_found(&db, &map);
        }
    }
}

/// A value that is held outlives its table, the table's file and the database.
#[test]
fn values_outlive_what_they_were_read_from() {
    for engine in engines_on_files() {
        let dir = tempfile::tempdir().unwrap();
        let (db, mut map) = filled(dir.path(), options(engine, TableReads::Mapped));
        let held: Vec<_> = map.keys().map(|key| (key.clone(), db.get(key).unwrap().unwrap())).collect();
        let before = map.clone();
        for i in 0..600 {
            put(&db, &mut map, &format!("key {i}"), 900, false).unwrap();
        }
        db.compact_range(..).unwrap();
        assert_found(&db, &map);
        drop(db);
        drop(dir);
        assert!(held.iter().all(|(key, value)| before[key][..] == value[..]));
    }
}

/// Somebody cuts tables under their mappings. A reader gets what is right or an error, and the process goes on.
#[test]
fn tables_that_are_cut_under_their_mappings_are_errors_and_not_the_end() {
    for engine in engines_on_files() {
        let dir = tempfile::tempdir().unwrap();
        let (db, map) = filled(dir.path(), options(engine, TableReads::Mapped));
        assert_found(&db, &map);
        for table in tables(dir.path()) {
            let len = fs::metadata(&table).unwrap().len();
            OpenOptions::new().write(true).open(table).unwrap().set_len(len / 3 / 4096 * 4096).unwrap();
        }
        let (mut right, mut errors) = (0, 0);
        for (key, value) in &map {
            match db.get(key) {
                Ok(found) => {
                    assert_eq!(found.as_deref(), Some(&value[..]));
                    right += 1;
                }
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Io), "{e}");
                    errors += 1;
                }
            }
        }
        assert!(errors > 0, "{engine:?}: {right} right");
        for record in db.iter().unwrap() {
            match record {
                Ok((key, value)) => assert!(map[&key[..]][..] == value[..]),
                Err(e) => assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Io), "{e}"),
            }
        }
        assert!(db.stats().ssd.failed_maps > 0);
        assert!(!db.check().unwrap().problems.is_empty());
    }
}

/// Somebody cuts tables while a value in one of them is shown: what is shown as right is right.
#[test]
fn a_table_that_is_cut_while_its_value_is_shown_is_an_error() {
    for engine in engines_on_files() {
        for from_back in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (db, map) = filled(dir.path(), options(engine, TableReads::Mapped));
            let mut iter = db.iter().unwrap();
            for _ in 0..100 {
                stepped(&mut iter, from_back, true).unwrap().unwrap();
            }
            let cut = |key: &[u8], value: &[u8]| {
                for table in tables(dir.path()) {
                    OpenOptions::new().write(true).open(table).unwrap().set_len(0).unwrap();
                }
                (key.to_vec(), value.to_vec())
            };
            let shown = if from_back { iter.next_back_with(cut) } else { iter.next_with(cut) };
            match shown.unwrap() {
                Ok((key, value)) => assert!(map[&key] == value, "{engine:?}"),
                Err(e) => {
                    assert!(e.to_string().contains("while a value was shown"), "{e}");
                    assert!(iter.next().is_none() && iter.next_with(|_, _| ()).is_none());
                }
            }
        }
    }
}

fn machine(engine: EngineKind) -> Machine {
    Machine::new(&Setup::tiny("mapped", &Engine::of(engine)).on(Granularity::Page))
}

/// A disk that fails once, at any read, or from then on: answers are right or errors, and right when it is well again.
#[test]
fn a_disk_that_fails_under_mappings_gives_errors_or_what_is_right() {
    for engine in engines_on_files() {
        let machine = machine(engine);
        machine.fs().set_maps(true);
        let (mut db, mut map) = (machine.open().unwrap(), Map::new());
        for i in 0..120 {
            put(&db, &mut map, &format!("key {}", i % 70), i * 13 % 400, false).unwrap();
        }
        db.flush().unwrap();
        let (mut errors, mut failed) = (0, 0);
        for case in 0..120u64 {
            if case % 10 == 0 {
                db.close().unwrap();
                drop(db);
                db = machine.open().unwrap();
            }
            machine.fs().inject(Some(Fault { after: case * 3, only_changes: false, sticky: case % 3 == 0 }));
            for (key, value) in &map {
                match db.get(key) {
                    Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                    Err(_) => errors += 1,
                }
            }
            let mut walked = db.iter().unwrap();
            while let Some(Ok((key, value))) = stepped(&mut walked, case % 4 >= 2, case % 2 == 0) {
                assert!(map[&key[..]][..] == value[..]);
            }
            machine.fs().inject(None);
            assert_found(&db, &map);
            failed += db.stats().ssd.failed_maps;
        }
        assert!(errors > 0 && failed > 0, "{engine:?}: {errors} errors, {failed} mappings");
    }
}

#[test]
fn tables_that_do_not_fit_into_memory_are_read_by_calls() {
    for engine in engines_on_files() {
        let machine = machine(engine);
        machine.fs().set_maps(true);
        machine.fs().set_available_memory(Some(1000));
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        for i in 0..100 {
            put(&db, &mut map, &format!("key {i}"), 100, false).unwrap();
        }
        db.flush().unwrap();
        assert_found(&db, &map);
        let stats = db.stats();
        assert!(
            stats.ssd.table_bytes > 1250 && stats.table_reads.starts_with("by calls"),
            "{}",
            stats.table_reads
        );
        machine.fs().set_available_memory(Some(1 << 30));
        for i in 100..200 {
            put(&db, &mut map, &format!("key {i}"), 100, false).unwrap();
        }
        db.flush().unwrap();
        assert_found(&db, &map);
        let stats = db.stats();
        assert!(
            stats.ssd.mapped_tables > 0 && stats.table_reads.starts_with("through"),
            "{}",
            stats.table_reads
        );
        assert_clean(&db);
    }
}

/// Other programs take memory and give it back while a database is only read: it has that looked at now and then.
#[test]
fn how_tables_are_read_follows_what_memory_there_is_also_where_nobody_writes() {
    let (machine, clock) = (machine(EngineKind::Lsm), Arc::new(ManualClock::default()));
    machine.fs().set_maps(true);
    machine.fs().set_available_memory(Some(1 << 30));
    let env = Env { clock: clock.clone(), ..machine.env() };
    let (db, mut map) = (Db::open_in(env, machine.dir(), machine.options()).unwrap(), Map::new());
    for i in 0..100 {
        put(&db, &mut map, &format!("key {i}"), 100, false).unwrap();
    }
    db.flush().unwrap();
    for (available, how) in [(1000, "by calls"), (1 << 30, "through")] {
        machine.fs().set_available_memory(Some(available));
        assert_found(&db, &map);
        assert!(!db.stats().table_reads.starts_with(how), "{}", db.stats().table_reads);
        clock.advance(Duration::from_secs(10));
        drop(db.snapshot());
        machine.fs().set_available_memory(None);
        assert!(db.stats().table_reads.starts_with(how), "{}", db.stats().table_reads);
        assert_found(&db, &map);
    }
}
