//! `check` and `repair` on files and pools with the system's own locks: what is brought back, kept, refused and said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use terrace::{Db, EngineKind, Options, PoolChoice, Profile};

use crate::support::Bed;

/// Keys of a small database.
const KEYS: u32 = 200;

fn pool(engine: EngineKind) -> PoolChoice {
    match engine.needs_memory() {
        true => PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() },
        false => PoolChoice::Auto,
    }
}

fn options(engine: EngineKind) -> Options {
    Options { engine, pool: pool(engine), ..Options::default() }
}

/// Those of which a flush makes a table.
fn with_tables() -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.iter().copied().filter(|engine| !engine.needs_memory())
}

/// Those that keep everything in the pool.
fn all_in_memory() -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.iter().copied().filter(|engine| engine.keeps_all_in_memory())
}

/// The flags that open a database of `engine` whose manifest does not tell how.
fn flags(engine: EngineKind) -> &'static [&'static str] {
    if engine.needs_memory() { &["--pool", "emulated:dram"] } else { &[] }
}

fn key(i: u32) -> String {
    format!("key/{i:05}")
}

/// Writes keys; those from a flush on lie in tables where the engine has such.
fn fill(dir: &Path, engine: EngineKind, keys: std::ops::Range<u32>, flush: bool) {
    let db = Db::open(dir, options(engine)).unwrap();
    keys.for_each(|i| db.put(key(i).as_bytes(), &[b'v'; 100]).unwrap());
    if flush {
        db.flush().unwrap();
    }
    db.close().unwrap();
}

fn count(bed: &Bed, engine: EngineKind) -> usize {
    let db = Db::open(&bed.db, Options { create_if_missing: false, ..options(engine) }).unwrap();
    assert_eq!(db.check().unwrap().problems, Vec::<String>::new());
    let all: Result<Vec<_>, _> = db.entries().unwrap().collect();
    db.close().unwrap();
    all.unwrap().len()
}

/// Names, bytes and times of change of all files but the lock's.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file() && !path.ends_with("LOCK"));
    let seen = |path: PathBuf| {
        let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
        (path.clone(), (std::fs::read(&path).unwrap(), changed))
    };
    files.map(seen).collect()
}

fn named(dir: &Path, part: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = entries.filter(|path| path.to_string_lossy().contains(part)).collect();
    found.sort();
    found
}

fn spoil(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_engine_is_found_without_the_manifest() {
    for &engine in EngineKind::ALL {
        for flush in [false, true] {
            let bed = Bed::new();
            fill(&bed.db, engine, 0..KEYS, flush);
            named(&bed.db, "MANIFEST").iter().for_each(|path| std::fs::write(path, [0; 300]).unwrap());
            let other = if engine == EngineKind::Lsm { "slm" } else { "lsm" };
            let before = picture(&bed.db);
            let refused = bed.run("repair", &[flags(engine), &["--engine", other]].concat());
            refused.fails(2, &["belongs to engine", engine.name()]);
            assert!(picture(&bed.db) == before, "{engine:?}");
            let run = bed.run("repair", flags(engine));
            assert_eq!(run.code, 0, "{engine:?}, flushed {flush}: {run:?}");
            let said = String::from_utf8_lossy(&run.out);
            assert!(said.contains("not known: which tables and logs there were"), "{said}");
            assert!(said.contains("nothing that is known of is lost"), "{said}");
            assert_eq!(count(&bed, engine), KEYS as usize, "{engine:?}, flushed {flush}");
        }
    }
}

#[test]
fn where_nothing_tells_the_engine_is_asked_for() {
    let bed = Bed::new();
    std::fs::create_dir(&bed.db).unwrap();
    std::fs::write(bed.db.join("MANIFEST-000003"), b"TERRALOG and nothing more").unwrap();
    bed.run::<&str>("repair", &[]).fails(2, &["--engine"]);
}

#[test]
fn a_sound_database_is_left_as_it_is() {
    for &engine in EngineKind::ALL {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..KEYS, true);
        let before = picture(&bed.db);
        let run = bed.run("repair", flags(engine));
        assert!(run.text().contains("nothing had to be done"), "{engine:?}: {run:?}");
        assert!(picture(&bed.db) == before, "{engine:?}");
    }
}

#[test]
fn a_look_changes_nothing_and_says_what_would_be() {
    for &engine in EngineKind::ALL {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..KEYS, true);
        match engine.needs_memory() {
            true => [0, 4096].iter().for_each(|at| spoil(&bed.db.join("pool"), *at)),
            false => spoil(&named(&bed.db, ".sst")[0], 1000),
        }
        let before = picture(&bed.db);
        let look = bed.run("repair", &[flags(engine), &["--dry-run"]].concat());
        assert!(String::from_utf8_lossy(&look.out).contains("nothing was changed"), "{look:?}");
        assert!(picture(&bed.db) == before, "{engine:?}");
        assert!(!bed.db.join("lost").exists() && !bed.db.join("repair").exists());
        let run = bed.run("repair", flags(engine));
        assert_eq!(look.code, run.code, "{look:?} {run:?}");
        assert!(named(&bed.db.join("lost"), "LIST").len() == 1, "{engine:?}: {run:?}");
    }
}

/// A pool too small for what there is: the repair is refused, and nothing is gone.
#[test]
fn a_new_pool_that_is_too_small_is_refused() {
    for engine in all_in_memory() {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..40_000, true);
        let pool = bed.db.join("pool");
        let bytes = std::fs::read(&pool).unwrap();
        let value = bytes.windows(16).skip(1 << 20).position(|bytes| bytes == [b'v'; 16]).unwrap();
        drop(bytes);
        spoil(&pool, (1 << 20) + value);
        let before = picture(&bed.db);
        bed.run("repair", &[flags(engine), &["--pm", "4MiB"]].concat()).fails(3, &["--pm", "is there takes"]);
        assert!(picture(&bed.db) == before, "{engine:?}");
        let run = bed.run("repair", flags(engine));
        run.fails(1, &["not everything"]);
        assert_eq!(count(&bed, engine), 39_999, "{engine:?}: {run:?}");
        assert!(bed.db.join("lost/pool").exists());
    }
}

#[test]
fn an_older_manifest_is_told_and_newer_tables_are_used() {
    for engine in with_tables() {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..KEYS, true);
        let older: Vec<_> = ["CURRENT", "MANIFEST"].iter().flat_map(|part| named(&bed.db, part)).collect();
        let older: Vec<_> = older.into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect();
        fill(&bed.db, engine, KEYS..2 * KEYS, true);
        named(&bed.db, "MANIFEST").iter().for_each(|path| std::fs::remove_file(path).unwrap());
        older.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
        bed.run::<&str>("check", &[]).fails(1, &["newer than it", "repair"]);
        let run = bed.run::<&str>("repair", &[]);
        assert_eq!(count(&bed, engine), 2 * KEYS as usize, "{engine:?}: {run:?}");
    }
}

#[test]
fn a_missing_table_is_named_and_what_it_may_have_held_is_an_error() {
    for engine in with_tables() {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..KEYS, true);
        fill(&bed.db, engine, 2 * KEYS..3 * KEYS, true);
        let table = named(&bed.db, ".sst").remove(0);
        std::fs::remove_file(&table).unwrap();
        let name = table.file_name().unwrap().to_str().unwrap();
        let run = bed.run::<&str>("check", &[]);
        run.fails(1, &["terrace repair"]);
        assert!(String::from_utf8_lossy(&run.out).contains(&format!("{name}: missing")), "{run:?}");
        let db = Db::open(&bed.db, Options { read_only: true, ..options(engine) }).unwrap();
        let there = db.get(key(2 * KEYS + 5).as_bytes()).unwrap();
        assert!(there.is_some(), "{engine:?}");
        let error = db.get(key(5).as_bytes()).unwrap_err();
        assert!(error.to_string().contains(name), "{engine:?}: {error}");
        assert!(db.entries().and_then(|all| all.collect::<Result<Vec<_>, _>>()).is_err(), "{engine:?}");
        drop(db);
        let run = bed.run::<&str>("repair", &[]);
        run.fails(1, &["not everything"]);
        assert!(String::from_utf8_lossy(&run.out).contains(name), "{run:?}");
        assert_eq!(count(&bed, engine), KEYS as usize, "{engine:?}");
    }
}

#[test]
fn tables_under_each_others_names_lose_nothing() {
    for engine in with_tables() {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..KEYS, true);
        fill(&bed.db, engine, 2 * KEYS..3 * KEYS, true);
        let [one, two] = &named(&bed.db, ".sst")[..] else { panic!("two tables") };
        let (first, second) = (std::fs::read(one).unwrap(), std::fs::read(two).unwrap());
        std::fs::write(one, second).unwrap();
        std::fs::write(two, first).unwrap();
        bed.run::<&str>("check", &[]).fails(1, &["repair"]);
        let run = bed.run::<&str>("repair", &[]);
        assert!(run.text().contains("nothing is lost"), "{engine:?}: {run:?}");
        assert_eq!(count(&bed, engine), 2 * KEYS as usize, "{engine:?}");
    }
}

#[test]
fn a_table_of_another_database_is_told_and_kept_apart() {
    for engine in with_tables() {
        let (bed, other) = (Bed::new(), Bed::new());
        fill(&bed.db, engine, 0..KEYS, true);
        fill(&other.db, engine, 5 * KEYS..6 * KEYS, true);
        let own = named(&bed.db, ".sst").remove(0);
        let theirs = std::fs::read(named(&other.db, ".sst").remove(0)).unwrap();
        let copy = bed.db.join("000099.sst");
        std::fs::write(&copy, theirs).unwrap();
        assert!(own != copy);
        // Where there is nothing to repair it stays.
        assert!(bed.run::<&str>("repair", &[]).text().contains("nothing had to be done"), "{engine:?}");
        assert!(copy.exists(), "{engine:?}");
        std::fs::remove_file(bed.db.join("CURRENT")).unwrap();
        let run = bed.run::<&str>("repair", &[]);
        assert!(run.text().contains("another database"), "{engine:?}: {run:?}");
        assert!(!copy.exists() && bed.db.join("lost/000099.sst").exists(), "{engine:?}");
        assert_eq!(count(&bed, engine), KEYS as usize, "{engine:?}");
    }
}

/// What was damaged is kept, and said to be.
#[test]
fn damaged_originals_are_kept_with_a_list() {
    for engine in with_tables() {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..2000, true);
        let table = named(&bed.db, ".sst").remove(0);
        spoil(&table, 10_000);
        let damaged = std::fs::read(&table).unwrap();
        let run = bed.run::<&str>("repair", &[]);
        run.fails(1, &["not everything"]);
        let name = table.file_name().unwrap().to_str().unwrap();
        assert_eq!(std::fs::read(bed.db.join("lost").join(name)).unwrap(), damaged, "{engine:?}");
        let list = std::fs::read_to_string(bed.db.join("lost/LIST")).unwrap();
        assert!(list.contains(name) && list.contains("lost: "), "{list}");
        let left = count(&bed, engine);
        assert!((1900..2000).contains(&left), "{engine:?}: {left}");
    }
}

/// It is another process that has the database open.
#[test]
fn an_open_database_is_not_repaired() {
    for &engine in EngineKind::ALL {
        let bed = Bed::new();
        fill(&bed.db, engine, 0..KEYS, true);
        let db = Db::open(&bed.db, options(engine)).unwrap();
        bed.run("repair", flags(engine)).fails(3, &["in use"]);
        db.put(b"still", b"there").unwrap();
    }
}
