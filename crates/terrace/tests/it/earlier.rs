//! Databases that earlier builds have made: `tests/fixtures`, where a page says how.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use lz4_flex::frame::FrameDecoder;
use tempfile::TempDir;
use terrace::{Db, EngineKind, Options};

use crate::harness::assert_clean;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/before-keyspaces")
}

/// A copy of the database in the fixture `name`.
fn unpacked(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures().join(name)).unwrap() {
        let packed = entry.unwrap().path();
        let mut file = File::create(dir.path().join(packed.file_stem().unwrap())).unwrap();
        std::io::copy(&mut FrameDecoder::new(File::open(&packed).unwrap()), &mut file).unwrap();
    }
    dir
}

fn options_of(engine: EngineKind) -> Options {
    let mut options = Options { engine, ..Options::default() };
    if engine.needs_memory() {
        options.set("pool", "emulated:dram").unwrap();
    }
    options
}

/// What every fixture has, as its page says.
fn there() -> Records {
    let mut records = Records::new();
    let numbered = |i: u32| format!("key{i:05}").into_bytes();
    for i in 0..600 {
        records.insert(numbered(i), format!("first {i} ").repeat(1 + i as usize % 25).into_bytes());
    }
    // Where keyspaces lie now.
    for i in 0..=255_u8 {
        records.insert(vec![0xff, i], format!("high {i}").into_bytes());
    }
    records.insert(vec![0xff], b"the first high one".to_vec());
    records.insert(vec![0xff; 9], b"the last high one".to_vec());
    for i in (0..600).step_by(3) {
        records.insert(numbered(i), format!("second {i}").into_bytes());
    }
    (0..600).step_by(50).for_each(|i| drop(records.remove(&numbered(i))));
    records
}

fn assert_has(db: &Db, records: &Records) {
    for (key, value) in records {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]), "{}", key.escape_ascii());
    }
    assert_eq!(db.get("key00050").unwrap(), None);
    if db.stats().engine != EngineKind::Turbo.name() {
        let walked: Records =
            db.iter().unwrap().map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect();
        assert!(walked == *records);
    }
}

/// Opens the fixture, reads it, and goes on with it as this build does.
fn assert_goes_on(name: &str, engine: EngineKind, mut records: Records) {
    let (dir, options) = (unpacked(name), options_of(engine));
    let read_only = Db::open(dir.path(), Options { read_only: true, ..options.clone() }).unwrap();
    assert_has(&read_only, &records);
    drop(read_only);
    let db = Db::open(dir.path(), options.clone()).unwrap();
    assert_has(&db, &records);
    assert!(db.keyspaces().unwrap().is_empty());
    assert_clean(&db);
    // The first keyspace takes the place where the high keys lie.
    let space = db.keyspace("users").unwrap();
    space.put("ada", "1815").unwrap();
    db.put([0xff, 0xff, 1], "new").unwrap();
    records.insert(vec![0xff, 0xff, 1], b"new".to_vec());
    assert_has(&db, &records);
    db.compact_range(..).unwrap();
    db.close().unwrap();
    drop((space, db));
    let db = Db::open(dir.path(), options).unwrap();
    assert_has(&db, &records);
    assert_eq!(db.keyspace("users").unwrap().get("ada").unwrap().as_deref(), Some(&b"1815"[..]));
    assert_clean(&db);
}

/// Must catch a change of a format that leaves a user's database unreadable, or of its meaning.
#[test]
fn databases_of_before_there_were_keyspaces_open() {
    for &engine in EngineKind::ALL {
        assert_goes_on(engine.name(), engine, there());
    }
}

/// The same of those whose process was killed with records in the log alone.
#[test]
fn logs_of_before_there_were_keyspaces_are_replayed() {
    for engine in [EngineKind::Lsm, EngineKind::Wip] {
        let mut records = there();
        let late = |i: u32| (format!("late{i:05}").into_bytes(), b"of the log".to_vec());
        records.extend((0..1000).map(late));
        assert_goes_on(&format!("{}-killed", engine.name()), engine, records);
    }
}
