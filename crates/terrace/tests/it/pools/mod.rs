//! What a power cut leaves of an ordinary file in the place of the pool may be anything at all: tables and logs
//! give a prefix of the history that holds every synced write, by opening and by repair.

mod repairs;

use std::path::Path;

use terrace::{Db, EngineKind, ErrorKind, Options, PoolChoice, Profile, Result};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::harness::{Contents, ENGINES, Engine, Machine, Map, Setup, assert_clean, booted, copy_files};

const OPS: u32 = 500;
const SYNCED: u32 = 420;

fn options() -> Options {
    let mut options = Options { pm_bytes: 4 << 20, pool_extent_bytes: 4096, ..Options::default() };
    options.slm.memtable_bytes = 16 << 10;
    options.slm.table_bytes = 16 << 10;
    options.slm.block_bytes = 512;
    options
}

/// A pool as it was in the middle of a session.
struct Copied {
    /// Writes that were made until then.
    writes: u32,
    /// Flushes that were.
    flushes: u64,
    pool: Vec<u8>,
}

/// A directory as a process left it in the middle of its work, all its states, and the pool of long ago.
struct Left {
    dir: tempfile::TempDir,
    states: Vec<Map>,
    flushes: u64,
    copies: Vec<Copied>,
    old_pool: Vec<u8>,
}

fn leave() -> Left {
    leave_with(options())
}

fn leave_with(options: Options) -> Left {
    let live = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open_in(booted("one"), live.path(), options).unwrap();
    let (mut map, mut states, mut old_pool) = (Map::new(), vec![Map::new()], Vec::new());
    let (mut copies, flushes) = (Vec::new(), || db.stats().counts.flushes);
    let pool = || std::fs::read(live.path().join("pool")).unwrap();
    let mut rng = Rng::new(5);
    for i in 0..OPS {
        let key = format!("key{:03}", rng.below(90)).into_bytes();
        if rng.one_in(5) {
            db.delete(&key).unwrap();
            map.remove(&key);
        } else {
            let value = i.to_le_bytes().repeat(1 + rng.below(60) as usize);
            db.put(&key, &value).unwrap();
            map.insert(key, value);
        }
        states.push(map.clone());
        match i {
            100 => old_pool = pool(),
            SYNCED => db.sync().unwrap(),
            _ => {}
        }
        if i % 7 == 3 {
            copies.push(Copied { writes: i + 1, flushes: flushes(), pool: pool() });
        }
    }
    copy_files(live.path(), dir.path());
    Left { dir, states, flushes: flushes(), copies, old_pool }
}

fn contents(db: &Db) -> Map {
    db.all().into_iter().collect()
}

/// The contents are a state not older than `least`.
fn assert_prefix(db: &Db, states: &[Map], least: u32, what: &str) {
    let found = contents(db);
    let at = states.iter().rposition(|state| *state == found);
    let at = at.unwrap_or_else(|| panic!("{what}: no state of the history"));
    assert!(at as u32 > least, "{what}: state {at}, and {least} was synced");
    assert_clean(db);
    db.put(b"more", b"of it").unwrap();
    db.flush().unwrap();
}

type Spoil = fn(&Left, &mut Vec<u8>);

/// What may lie in the pool's place.
const POOLS: [(&str, Spoil); 10] = [
    ("untouched", |_, _| {}),
    ("empty", |_, pool| pool.clear()),
    ("a byte", |_, pool| pool.truncate(1)),
    ("a page", |_, pool| pool.truncate(4096)),
    ("cut in half", |_, pool| pool.truncate(pool.len() / 2)),
    ("longer", |_, pool| pool.extend([0; 100_000])),
    ("zeroes", |_, pool| pool.fill(0)),
    ("noise", |_, pool| Rng::new(1).fill(pool)),
    ("of long ago", |left, pool| pool.clone_from(&left.old_pool)),
    ("every third page missing or of long ago", |left, pool| {
        let pages = pool.chunks_mut(4096).zip(left.old_pool.chunks(4096)).enumerate();
        for (i, (page, old)) in pages.filter(|(i, _)| i % 3 != 0) {
            if i % 3 == 1 { page.fill(0) } else { page[..old.len()].copy_from_slice(old) }
        }
    }),
];

fn with_pool(left: &Left, spoil: Spoil) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_files(left.dir.path(), dir.path());
    let path = dir.path().join("pool");
    let mut pool = std::fs::read(&path).unwrap();
    spoil(left, &mut pool);
    std::fs::write(path, pool).unwrap();
    dir
}

#[test]
fn whatever_lies_in_the_pools_place_a_prefix_comes_back() {
    let left = leave();
    for (what, spoil) in POOLS {
        let dir = with_pool(&left, spoil);
        let db = Db::open_in(booted("two"), dir.path(), options()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let opened = db.stats().opened;
        assert!(opened.contains("rebuilt") && opened.lines().count() == 1, "{what}: {opened:?}");
        assert_prefix(&db, &left.states, SYNCED, what);
        let found = contents(&db);
        db.close().unwrap();
        drop(db);
        let db = Db::open_in(booted("three"), dir.path(), options()).unwrap();
        assert!(db.stats().opened.contains("clean"), "{what}: {}", db.stats().opened);
        assert!(contents(&db) == found, "{what}, closed and opened");
    }
    let missing = with_pool(&left, |_, _| {});
    std::fs::remove_file(missing.path().join("pool")).unwrap();
    let db = Db::open_in(booted("two"), missing.path(), options()).unwrap();
    assert_prefix(&db, &left.states, SYNCED, "missing");
}

/// What was found in tables and logs is in the line that opening says.
#[test]
fn opening_says_what_it_replayed() {
    let (live, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let db = Db::open_in(booted("one"), live.path(), options()).unwrap();
    (0..20u8).for_each(|i| db.put(&[i], b"in a table").unwrap());
    db.flush().unwrap();
    (20..27u8).for_each(|i| db.put(&[i], b"in a log").unwrap());
    db.sync().unwrap();
    copy_files(live.path(), dir.path());
    let opened = Db::open_in(booted("two"), dir.path(), options()).unwrap().stats().opened;
    assert!(opened.ends_with(": 20 keys in 1 tables, 7 writes in 1 logs"), "{opened}");
}

#[test]
fn in_the_same_boot_the_pool_is_all_there() {
    let left = leave();
    let db = Db::open_in(booted("one"), left.dir.path(), options()).unwrap();
    assert!(db.stats().opened.contains("attached"), "{}", db.stats().opened);
    assert_prefix(&db, &left.states, OPS - 1, "the same boot");
}

/// A process that was killed leaves in the pool what its logs do not have yet. Where the pool is damaged then, that is
/// told, and not made good from the logs as after a power cut.
#[test]
fn in_the_same_boot_damage_to_the_pool_is_told() {
    let left = leave();
    let mut told = 0;
    for (what, spoil) in POOLS {
        let dir = with_pool(&left, spoil);
        match Db::open_in(booted("one"), dir.path(), options()) {
            Ok(db) => {
                let found = contents(&db);
                assert!(left.states.last() == Some(&found), "{what}: {}", db.stats().opened);
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e}");
                told += 1;
            }
        }
    }
    assert_eq!(told, POOLS.len() - 2, "all but the untouched and the longer one");
    let missing = with_pool(&left, |_, _| {});
    std::fs::remove_file(missing.path().join("pool")).unwrap();
    let error = Db::open_in(booted("one"), missing.path(), options()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
}

/// What a session has acknowledged before it was killed is missed in a copy of the pool from before it.
#[test]
fn an_older_copy_of_the_pool_is_told_after_a_kill() {
    for &engine in EngineKind::ALL {
        let home = tempfile::tempdir().unwrap();
        let (dir, killed) = (home.path().join("db"), home.path().join("killed"));
        let pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
        let options = Options { engine, pool, ..options() };
        let open = |dir: &Path| Db::open_in(booted("one"), dir, options.clone());
        let db = open(&dir).unwrap();
        db.put(b"key", b"of the first session").unwrap();
        db.close().unwrap();
        drop(db);
        let older = std::fs::read(dir.join("pool")).unwrap();
        let db = open(&dir).unwrap();
        db.put(b"key", b"of the second session").unwrap();
        copy_files(&dir, &killed);
        assert_eq!(
            open(&killed).unwrap().get(b"key").unwrap().as_deref(),
            Some(&b"of the second session"[..])
        );
        copy_files(&dir, &killed);
        std::fs::write(killed.join("pool"), older).unwrap();
        let error = open(&killed).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Corruption && error.to_string().contains("older copy"), "{error}");
    }
}

/// A copy of the pool from within the session that was killed bears its number. It is told if a memtable was flushed
/// since, or more than one group was logged. A repair brings back what tables and logs have.
#[test]
fn an_older_copy_from_within_the_session_is_told_by_what_it_lacks() {
    let emulated = PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
    for (choice, logged) in [(PoolChoice::Auto, SYNCED + 1), (emulated, 0)] {
        let options = Options { pool: choice, ..options() };
        let left = leave_with(options.clone());
        let mut told = 0;
        for copied in &left.copies {
            let what = format!("{:?}: a copy after {} writes", options.pool, copied.writes);
            let dir = tempfile::tempdir().unwrap();
            copy_files(left.dir.path(), dir.path());
            std::fs::write(dir.path().join("pool"), &copied.pool).unwrap();
            let open = || Db::open_in(booted("one"), dir.path(), options.clone());
            let error = match open() {
                Ok(db) => {
                    assert!(
                        copied.flushes == left.flushes && copied.writes + 1 >= logged,
                        "{what} was not told"
                    );
                    assert!(contents(&db) == left.states[copied.writes as usize], "{what}");
                    continue;
                }
                Err(e) => e,
            };
            assert!(
                error.kind() == ErrorKind::Corruption && error.to_string().contains("older copy"),
                "{error}"
            );
            told += 1;
            let report = Db::repair_in(booted("one"), dir.path(), options.clone()).unwrap();
            assert!(report.lost.iter().any(|line| line.contains("older copy")), "{what}: {report:?}");
            assert_prefix(&open().unwrap(), &left.states, copied.writes.max(logged) - 1, &what);
        }
        assert!(told > left.copies.len() / 2, "{told} of {}", left.copies.len());
    }
}

/// Later syncs may succeed, and say nothing of pages that are lost.
#[test]
fn a_pool_that_could_not_be_written_back_is_told() {
    let in_a_file = Setup::tiny("a pool in a file", &Engine::of(EngineKind::Slm)).on(Granularity::Page);
    let mut told = 0;
    for nth in 0..60 {
        let machine = Machine::new(&in_a_file);
        let db = machine.open().unwrap();
        (0..30u8).for_each(|i| db.put([i], [i; 100]).unwrap());
        assert_eq!(db.stats().failure, None);
        machine.world().fail_nth(nth);
        let closed = db.close();
        machine.world().heal();
        if machine.world().media().has_failed_sync() {
            assert!(closed.is_err(), "{nth}");
            // The sync of the header alone, once all else is on the disk, leaves no doubt.
            let failure = db.stats().failure.unwrap_or_default();
            told += usize::from(failure.contains("the next opening will not trust"));
        }
    }
    assert!(told > 0, "no sync of the pool failed");
}

/// A log that is damaged in the middle stops opening; a repair keeps what came before.
#[test]
fn a_damaged_log_is_repaired_up_to_the_damage() {
    let left = leave();
    let dir = with_pool(&left, |_, _| {});
    let mut logs: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().path()).collect();
    logs.retain(|path| path.extension().is_some_and(|e| e == "log"));
    logs.sort();
    let path = logs.first().unwrap();
    let mut log = std::fs::read(path).unwrap();
    let middle = log.len() / 3;
    log[middle] ^= 0x20;
    std::fs::write(path, log).unwrap();
    let refused = Db::open_in(booted("two"), dir.path(), options()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
    let report = Db::repair_in(booted("two"), dir.path(), options()).unwrap();
    assert!(report.lost.iter().any(|line| line.contains(".log")), "{:?}", report.lost);
    let db = Db::open_in(booted("two"), dir.path(), options()).unwrap();
    assert_prefix(&db, &left.states, 0, "a damaged log");
}

/// What lies outside of a database's directory and is not its own: a file that is no pool at all.
fn letter(home: &Path) -> std::path::PathBuf {
    let letter = home.join("letter");
    std::fs::write(&letter, b"This is a letter to nobody in particular. ".repeat(200)).unwrap();
    letter
}

#[track_caller]
fn assert_left_alone<T>(file: &Path, work: impl FnOnce() -> Result<T>) {
    let before = std::fs::read(file).unwrap();
    let error = work().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(std::fs::read(file).unwrap() == before, "{} was changed", file.display());
}

/// A repair that is told of a pool which is not the database's, or of a file which is no pool at all, does nothing to
/// it.
#[test]
fn a_repair_leaves_what_is_not_its_own() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let letter = letter(home.path());
    let with = |engine, pool: &Path| {
        let pool = PoolChoice::Emulated { path: Some(pool.into()), profile: Profile::parse("dram").unwrap() };
        Options { engine, pool, ..options() }
    };
    let dbs = ENGINES.map(|engine| (engine, at(&format!("{engine:?}")), at(&format!("{engine:?}.pool"))));
    for (engine, dir, pool) in &dbs {
        let db = Db::open(dir, with(*engine, pool)).unwrap();
        db.put(b"whose", format!("{engine:?}").as_bytes()).unwrap();
    }
    for (engine, dir, own) in &dbs {
        for other in dbs.iter().map(|(_, _, pool)| pool).filter(|pool| *pool != own).chain([&letter]) {
            assert_left_alone(other, || Db::repair(dir, with(*engine, other)));
            let around = dir.join("..").join(other.file_name().unwrap());
            assert_left_alone(other, || Db::repair(dir, with(*engine, &around)));
        }
        let around = dir.join("..").join(own.file_name().unwrap());
        for own in [own, &around] {
            assert_eq!(Db::repair(dir, with(*engine, own)).unwrap().lost, Vec::<String>::new());
        }
        let db = Db::open(dir, with(*engine, own)).unwrap();
        assert_eq!(db.get(b"whose").unwrap().as_deref(), Some(format!("{engine:?}").as_bytes()));
    }
}

/// An ordinary file is made anew where it cannot be trusted, but only if it is the database's own.
#[test]
fn opening_replaces_no_file_that_is_not_its_own() {
    let home = tempfile::tempdir().unwrap();
    let with = |pool: &Path| Options { pool: PoolChoice::Path(pool.into()), ..options() };
    let [one, two] =
        ["one", "two"].map(|name| (home.path().join(name), home.path().join(name).with_extension("pool")));
    for (dir, pool) in [&one, &two] {
        Db::open(dir, with(pool)).unwrap().put(b"whose", dir.as_os_str().as_encoded_bytes()).unwrap();
    }
    let letter = letter(home.path());
    assert_left_alone(&letter, || Db::open(&one.0, with(&letter)));
    assert_left_alone(&letter, || Db::repair(&one.0, with(&letter)));
    assert_left_alone(&two.1, || Db::repair(&one.0, with(&two.1)));
    let error = Db::open(&one.0, with(&two.1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    for (dir, pool) in [&one, &two] {
        let db = Db::open(dir, with(pool)).unwrap();
        assert!(db.stats().opened.contains("clean"), "{}", db.stats().opened);
        assert_eq!(db.get(b"whose").unwrap().as_deref(), Some(dir.as_os_str().as_encoded_bytes()));
    }
}
