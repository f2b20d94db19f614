//! What opening leaves alone, what it clears away, and what it makes of options.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use terrace::{Db, EngineKind, ErrorKind, Options, PoolChoice, Profile};

use crate::harness::{ENGINES, assert_clean, engines_on_files};

fn options() -> Options {
    let mut options = Options { pm_bytes: 4 << 20, pool_extent_bytes: 4096, ..Options::default() };
    options.slm.memtable_bytes = 16 << 10;
    options
}

fn emulated(options: Options) -> Options {
    let profile = Profile::parse("dram").unwrap();
    Options { pool: PoolChoice::Emulated { path: None, profile }, ..options }
}

fn of(engine: EngineKind) -> Options {
    Options { engine, ..if engine.needs_memory() { emulated(options()) } else { options() } }
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let listed = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    listed.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn assert_untouched(dir: &Path, before: &BTreeMap<PathBuf, Vec<u8>>) {
    let now = files(dir);
    assert!(now.keys().eq(before.keys()), "files came or went");
    for (path, data) in before {
        let at = data.iter().zip(&now[path]).position(|(a, b)| a != b);
        assert_eq!((at, data.len()), (None, now[path].len()), "{}", path.display());
    }
}

fn fill(db: &Db) {
    (0..400u32).for_each(|i| db.put(&i.to_be_bytes(), &i.to_le_bytes().repeat(25)).unwrap());
}

/// Leaves the directory as a process does that is killed now: the same files, as a copy of a pool is not trusted.
fn kill(db: Db, dir: &Path) {
    let left = files(dir);
    drop(db);
    files(dir)
        .keys()
        .filter(|path| !left.contains_key(*path))
        .for_each(|path| std::fs::remove_file(path).unwrap());
    left.iter().for_each(|(path, data)| std::fs::write(path, data).unwrap());
}

/// What a database takes grows with what is in it, and does not with how often it was opened.
#[test]
fn little_takes_little() {
    for engine in engines_on_files() {
        let options = || Options { engine, ..Options::default() };
        // A table an opening, until a compaction has the time to end.
        let most = if engine == EngineKind::Lsm { 44 } else { 20 };
        let dir = tempfile::tempdir().unwrap();
        for i in 0..50u32 {
            let db = Db::open(dir.path(), options()).unwrap();
            db.put(i.to_be_bytes(), "a value").unwrap();
            db.close().unwrap();
            let files = files(dir.path());
            let taken: usize = files.values().map(Vec::len).sum();
            // By what the file system has given them, too.
            let given: u64 = files.keys().map(|path| std::fs::metadata(path).unwrap().blocks() * 512).sum();
            let most_bytes = if i == 0 { 256 << 10 } else { 384 << 10 };
            let taken = given.max(taken as u64);
            assert!(taken <= most_bytes, "{engine:?}: {taken} bytes after {} openings", i + 1);
            assert!(files.len() <= most, "{engine:?}: {:?}", files.keys());
        }
        let db = Db::open(dir.path(), options()).unwrap();
        let keys = db.iter().unwrap().map(|entry| entry.unwrap().0);
        assert!(keys.eq((0..50u32).map(|i| i.to_be_bytes().to_vec())), "{engine:?}");
        assert_clean(&db);
    }
}

/// A pool begins with room for its extents, be they larger than what it would begin with.
#[test]
fn extents_of_any_size() {
    for extent in [4 << 10, 128 << 10, 1 << 20, 8 << 20] {
        let options = || Options { pool_extent_bytes: extent, ..Options::default() };
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), options()).unwrap_or_else(|e| panic!("{extent}: {e}"));
        fill(&db);
        db.close().unwrap();
        drop(db);
        assert_clean(&Db::open(dir.path(), options()).unwrap());
    }
}

/// The variable that has [`a_process_may_change_its_directory`] work in the directory it names.
const MOVING: &str = "TERRACE_MOVING_IN";

/// A database that was opened by a relative path is where it was when the process goes elsewhere, be another one of
/// that name there.
#[test]
fn a_process_may_change_its_directory() {
    if std::env::var_os(MOVING).is_some() {
        return move_about();
    }
    for &engine in EngineKind::ALL {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = home.path().join("elsewhere");
        std::fs::create_dir_all(&elsewhere).unwrap();
        let other = Db::open(elsewhere.join("db"), of(engine)).unwrap();
        fill(&other);
        other.close().unwrap();
        drop(other);
        let before = files(&elsewhere.join("db"));
        let test =
            format!("{}::a_process_may_change_its_directory", module_path!().split_once("::").unwrap().1);
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--test-threads=1"])
            .current_dir(home.path())
            .env(MOVING, engine.name())
            .status()
            .unwrap();
        assert!(status.success(), "{engine:?}");
        assert_untouched(&elsewhere.join("db"), &before);
    }
}

/// Opens the database `db`, goes elsewhere, and goes on with it. In a process of its own.
fn move_about() {
    let engine = EngineKind::parse(&std::env::var(MOVING).unwrap()).unwrap();
    let options = of(engine);
    let key = |i: u32| (1000 + i).to_be_bytes();
    let db = Db::open("db", options.clone()).unwrap();
    (0..100).for_each(|i| db.put(&key(i), b"before").unwrap());
    db.flush().unwrap();
    drop(db);
    let db = Db::open("db", options.clone()).unwrap();
    std::env::set_current_dir("elsewhere").unwrap();
    (0..100).for_each(|i| assert_eq!(db.get(&key(i)).unwrap().as_deref(), Some(&b"before"[..])));
    (50..200).for_each(|i| db.put(&key(i), b"after").unwrap());
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    assert_clean(&db);
    db.close().unwrap();
    drop(db);
    let db = Db::open("../db", options).unwrap();
    (0..200).for_each(|i| assert_eq!(db.get(&key(i)).unwrap().unwrap().len(), if i < 50 { 6 } else { 5 }));
}

/// What was killed is read as it will be found, and reading changes not a byte of it.
#[test]
fn reading_only_what_was_killed_finds_everything_and_writes_nothing() {
    for options in [options(), emulated(options())] {
        let left = tempfile::tempdir().unwrap();
        let db = Db::open(left.path(), options.clone()).unwrap();
        fill(&db);
        // Nothing runs in the background while its files are read.
        db.compact_range(..).unwrap();
        (0..40u32).for_each(|i| db.put(&i.to_be_bytes(), &i.to_le_bytes().repeat(25)).unwrap());
        kill(db, left.path());
        let before = files(left.path());
        let read_only = Options { read_only: true, ..options.clone() };
        for _ in 0..2 {
            let db = Db::open(left.path(), read_only.clone()).unwrap();
            // Readers do not mind each other.
            let beside = Db::open(left.path(), read_only.clone()).unwrap();
            assert_eq!((db.iter().unwrap().count(), beside.iter().unwrap().count()), (400, 400));
            assert_eq!(db.put(b"k", b"v").unwrap_err().kind(), ErrorKind::ReadOnly);
            assert_eq!(Db::open(left.path(), options.clone()).unwrap_err().kind(), ErrorKind::Locked);
            assert_clean(&db);
            db.close().unwrap();
        }
        assert_untouched(left.path(), &before);

        let db = Db::open(left.path(), options).unwrap();
        assert_eq!(db.iter().unwrap().count(), 400);
        assert_eq!(Db::open(left.path(), read_only.clone()).unwrap_err().kind(), ErrorKind::Locked);
        assert_clean(&db);
        db.close().unwrap();
        drop(db);
        let db = Db::open(left.path(), read_only).unwrap();
        assert_eq!(db.iter().unwrap().count(), 400);
    }
}

/// Neither the reader nor its end, in order or not, changes a byte.
#[test]
fn reading_only_writes_nothing() {
    for options in [options(), emulated(options())] {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), options.clone()).unwrap();
        fill(&db);
        db.close().unwrap();
        drop(db);
        let before = files(dir.path());
        let read_only = Options { read_only: true, ..options };
        for close in [true, false, true] {
            let db = Db::open(dir.path(), read_only.clone()).unwrap();
            assert_eq!(db.iter().unwrap().count(), 400);
            assert_eq!(db.get(&7u32.to_be_bytes()).unwrap().unwrap(), 7u32.to_le_bytes().repeat(25));
            assert_clean(&db);
            if close {
                db.close().unwrap();
            }
            drop(db);
            assert_untouched(dir.path(), &before);
        }
    }
}

#[test]
fn reading_only_writes_nothing_whatever_the_engine() {
    let all = ENGINES.into_iter().map(|engine| (engine, false));
    for (engine, buffered) in all.chain([(EngineKind::Sptree, true)]) {
        let mut options = emulated(Options { engine, pm_bytes: 16 << 20, ..options() });
        (options.sptree.buffered, options.sptree.log_bytes) = (buffered, 4096);
        (options.turbo.shards, options.turbo.initial_buckets) = (4, 16);
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), options.clone()).unwrap();
        fill(&db);
        fill(&db);
        db.close().unwrap();
        drop(db);
        let before = files(dir.path());
        let read_only = Options { read_only: true, ..options };
        for _ in 0..2 {
            let db = Db::open(dir.path(), read_only.clone()).unwrap();
            assert_eq!(db.entries().unwrap().count(), 400, "{engine:?}");
            assert_eq!(db.get(&7u32.to_be_bytes()).unwrap().unwrap(), 7u32.to_le_bytes().repeat(25));
            assert_clean(&db);
            db.close().unwrap();
            drop(db);
            assert_untouched(dir.path(), &before);
        }
    }
}

#[test]
fn logs_that_were_only_begun_are_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    fill(&db);
    drop(db);
    let (begun, foreign) = (dir.path().join("000990.log.new"), dir.path().join("mine.log.new"));
    std::fs::write(&begun, b"TERRALOG").unwrap();
    std::fs::write(&foreign, b"mine").unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    assert!(!begun.exists());
    assert_eq!(std::fs::read(&foreign).unwrap(), b"mine");
    assert_eq!(db.iter().unwrap().count(), 400);
    fill(&db);
}

/// Memtables for a large pool do not fit into a small one: they become smaller.
#[test]
fn the_usual_memtables_in_a_small_pool() {
    let dir = tempfile::tempdir().unwrap();
    let pm_bytes = 8 << 20;
    let options = emulated(Options { pm_bytes, ..Options::default() });
    assert!(options.slm.memtable_bytes >= pm_bytes);
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let value = vec![7; 4000];
    for i in 0..6000u32 {
        db.put(&(i % 1000).to_be_bytes(), &[&i.to_le_bytes()[..], &value].concat()).unwrap();
    }
    for i in 5000..6000u32 {
        assert_eq!(db.get(&(i % 1000).to_be_bytes()).unwrap().unwrap()[..4], i.to_le_bytes());
    }
    assert_clean(&db);
    assert!(db.stats().counts.flushes > 20, "{:?}", db.stats().counts);
}

/// What an opening makes before it finds that there can be no database goes again, and nothing else.
#[test]
fn a_creation_that_is_refused_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Options { engine: EngineKind::Turbo, ..options() };
    let kind = |path: &Path, options| Db::open(path, options).map(drop).unwrap_err().kind();
    // A pool in a file, for an engine that needs memory.
    assert_eq!(kind(&dir.path().join("some/where/db"), refused.clone()), ErrorKind::Unsupported);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let wrong = Options { pm_bytes: 0, ..options() };
    assert_eq!(kind(&dir.path().join("db"), wrong), ErrorKind::InvalidArgument);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    // A directory that was there stays, with what is in it.
    let own = dir.path().join("own");
    std::fs::create_dir(&own).unwrap();
    assert_eq!(kind(&own, refused.clone()), ErrorKind::Unsupported);
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0);
    assert_eq!(kind(&own, Options { create_if_missing: false, ..options() }), ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0);
    Db::open(&own, options()).unwrap().close().unwrap();
    let before = files(&own);
    assert_eq!(kind(&own, refused), ErrorKind::InvalidArgument);
    assert_untouched(&own, &before);
}
