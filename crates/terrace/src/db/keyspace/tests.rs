//! A catalogue that has lost records, which only damage below the database can do.

use terrace_base::ErrorKind;
use terrace_pmem::Profile;
use terrace_table::{Compression, Kind};

use super::catalog::place_of;
use super::check::RECOVERS;
use super::records::{CATALOGUE, NEXT, Named, named, number_of, of_numbers, version_of};
use crate::batch::{Op, WriteBatch};
use crate::keyspaces::{DATED, MergeOperator, OperatorName, TableSettings};
use crate::options::{EngineKind, Options, PoolChoice, WriteOptions};
use crate::{Db, Expiry, KeyspaceOptions, RepairOptions};

fn open(dir: &tempfile::TempDir, engine: EngineKind) -> Db {
    let mut options = Options { engine, ..Options::default() };
    if engine.needs_memory() {
        options.pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
    }
    Db::open(dir.path(), options).unwrap()
}

/// Takes records of the catalogue away.
fn lose(db: &Db, keys: &[&[u8]]) {
    let mut batch = WriteBatch::new();
    for key in keys {
        batch.push(Op { kind: Kind::Delete, key: &CATALOGUE.place(key).unwrap(), value: &[] });
    }
    db.write_placed(batch, WriteOptions::default()).unwrap();
}

/// Two keyspaces with a record each, one of the default one that begins with byte 255, and what is lost of the
/// catalogue; opened again.
fn damaged(engine: EngineKind, lost: &[&[u8]]) -> (tempfile::TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, engine);
    db.put([0xff, 9], "high").unwrap();
    for name in ["one", "other"] {
        db.keyspace(name).unwrap().put("name", name).unwrap();
    }
    lose(&db, lost);
    db.close().unwrap();
    drop(db);
    let db = open(&dir, engine);
    (dir, db)
}

fn check(db: &Db) -> Vec<String> {
    db.check().unwrap().problems
}

#[test]
fn a_keyspace_that_has_lost_its_name_gets_another() {
    for engine in [EngineKind::Lsm, EngineKind::Slm, EngineKind::Turbo] {
        let (_dir, db) = damaged(engine, &[&named("one")]);
        assert_eq!(check(&db), [format!("keyspace 1 has keys and no name; {RECOVERS} gives it one")]);
        assert_eq!(db.recover_keyspaces().unwrap(), ["recovered-1"]);
        assert_eq!(check(&db), Vec::<String>::new());
        let found = db.keyspace("recovered-1").unwrap().get("name").unwrap();
        assert_eq!(found.as_deref(), Some(&b"one"[..]));
        assert_eq!(db.keyspaces().unwrap(), ["other", "recovered-1"]);
        assert_eq!(db.get([0xff, 9]).unwrap().as_deref(), Some(&b"high"[..]));
    }
}

/// Nothing is left of the catalogue. Operands tell that there were keyspaces.
#[test]
fn operands_without_a_catalogue_are_told_and_get_a_keyspace() {
    let dir = tempfile::tempdir().unwrap();
    let appending = || {
        let merge = Some(MergeOperator::append().deferred());
        KeyspaceOptions { merge, ..KeyspaceOptions::default() }
    };
    let db = open(&dir, EngineKind::Lsm);
    let space = db.keyspace_with("one", appending()).unwrap();
    space.merge("k", "a").unwrap();
    db.flush().unwrap();
    space.merge("k", "b").unwrap();
    lose(&db, &[b"", NEXT, &named("one")]);
    drop(space);
    db.close().unwrap();
    drop(db);
    for _ in 0..2 {
        let db = open(&dir, EngineKind::Lsm);
        let told =
            format!("keyspaces have operands and the database has no marker of them; {RECOVERS} sets it");
        assert_eq!((check(&db), db.iter().unwrap().next().unwrap().is_err()), (vec![told], true));
    }
    let db = open(&dir, EngineKind::Lsm);
    assert_eq!(db.recover_keyspaces().unwrap(), ["recovered-1"]);
    assert_eq!((check(&db), db.iter().unwrap().count()), (Vec::new(), 0));
    db.close().unwrap();
    drop(db);
    let db = open(&dir, EngineKind::Lsm);
    let space = db.keyspace_with("recovered-1", appending()).unwrap();
    assert_eq!(space.get("k").unwrap().as_deref(), Some(&b"ab"[..]));
}

/// The first keyspace moved all keys of the lost ones, which were gone for good.
#[test]
fn a_lost_marker_is_told_and_set_again() {
    for engine in [EngineKind::Lsm, EngineKind::Turbo] {
        let (_dir, db) = damaged(engine, &[b"", NEXT]);
        assert_eq!(check(&db).len(), 1, "{:?}", check(&db));
        assert_eq!(db.keyspace("new").unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(db.recover_keyspaces().unwrap(), Vec::<String>::new());
        assert_eq!(check(&db), Vec::<String>::new());
        assert_eq!(db.keyspaces().unwrap(), ["one", "other"]);
        assert_eq!(db.get([0xff, 9]).unwrap().as_deref(), Some(&b"high"[..]));
        assert!(db.keyspace("new").unwrap().get("name").unwrap().is_none());
    }
}

/// Two keyspaces whose keys have operands on top, of which a walk over all keys meets some first.
fn with_operands(dir: &tempfile::TempDir) -> Db {
    let db = open(dir, EngineKind::Lsm);
    let merge = Some(MergeOperator::append().deferred());
    for name in ["one", "other"] {
        let options = KeyspaceOptions { merge: merge.clone(), ..KeyspaceOptions::default() };
        let space = db.keyspace_with(name, options).unwrap();
        space.put("k", "base").unwrap();
        db.flush().unwrap();
        space.merge("k", " and more").unwrap();
    }
    db
}

#[test]
fn operands_are_in_the_way_of_no_recovery() {
    for lost in [&[&b""[..], NEXT][..], &[b"", NEXT, &named("one")]] {
        let dir = tempfile::tempdir().unwrap();
        let db = with_operands(&dir);
        lose(&db, lost);
        drop(db);
        for _ in 0..2 {
            let db = open(&dir, EngineKind::Lsm);
            let recovered = db.recover_keyspaces().unwrap();
            assert!(recovered.is_empty() || recovered == ["recovered-1"]);
            assert_eq!(check(&db), Vec::<String>::new());
            let names = db.keyspaces().unwrap();
            assert_eq!((names.len(), db.recover_keyspaces().unwrap().len()), (2, 0));
            let name = names.last().unwrap();
            let options = KeyspaceOptions { merge: Some(MergeOperator::append()), ..Default::default() };
            let found = db.keyspace_with(name, options).unwrap().get("k").unwrap();
            assert_eq!(found.as_deref(), Some(&b"base and more"[..]));
        }
    }
}

/// A value that is lost leaves its operands on an older one.
#[test]
fn a_repair_doubts_what_stands_on_what_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let db = with_operands(&dir);
    db.compact_range(..).unwrap();
    let one = db.keyspace("one").unwrap();
    one.put("k", "lost").unwrap();
    db.flush().unwrap();
    one.merge("k", " and more").unwrap();
    db.close().unwrap();
    drop((one, db));
    let entries = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let tables = entries.filter(|path| path.extension().is_some_and(|e| e == "sst"));
    let lost = |bytes: &[u8]| bytes.windows(4).position(|window| window == b"lost");
    let mut with_it = tables.filter_map(|path| {
        let bytes = std::fs::read(&path).unwrap();
        lost(&bytes).map(|at| (path, bytes, at))
    });
    let (path, mut bytes, at) = with_it.next().unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
    let options = Options { engine: EngineKind::Lsm, ..Options::default() };
    let report = Db::repair_with(dir.path(), options, RepairOptions::default()).unwrap();
    assert!(
        !report.lost.is_empty() && report.doubts.iter().any(|doubt| doubt.contains("deferred")),
        "{report:?}"
    );
    let db = open(&dir, EngineKind::Lsm);
    let found = db.keyspace("one").unwrap().get("k").unwrap();
    assert_eq!(found.as_deref(), Some(&b"base and more and more"[..]));
}

/// Without any record their keys are the default keyspace's: what nobody can fold must not be moved as if it were
/// empty.
#[test]
fn what_cannot_be_read_is_not_moved() {
    let dir = tempfile::tempdir().unwrap();
    let db = with_operands(&dir);
    let names = [named("one"), named("other")];
    let keys = [b"", NEXT, &names[0][..], &names[1]];
    let get = |key: &[u8]| db.inner.unmasked.get(&CATALOGUE.place(key).unwrap(), None).unwrap().unwrap();
    let records = keys.map(get);
    lose(&db, &keys);
    drop(db);
    let db = open(&dir, EngineKind::Lsm);
    for _ in 0..3 {
        let refused = db.keyspace("one").unwrap_err();
        assert!(refused.to_string().contains("a marker beside operands"), "{refused}");
        assert!(db.delete_range("a".."b").is_err() && db.iter().unwrap().any(|entry| entry.is_err()));
    }
    let mut batch = WriteBatch::new();
    for (key, value) in keys.iter().zip(&records) {
        batch.push(Op { kind: Kind::Put, key: &CATALOGUE.place(key).unwrap(), value });
    }
    db.write_placed(batch, WriteOptions::default()).unwrap();
    drop(db);
    let db = open(&dir, EngineKind::Lsm);
    for name in ["one", "other"] {
        let found = db.keyspace(name).unwrap().get("k").unwrap();
        assert_eq!(found.as_deref(), Some(&b"base and more"[..]));
    }
}

#[test]
fn one_of_two_records_says_that_there_are_keyspaces() {
    for lost in [&b""[..], NEXT] {
        let (_dir, db) = damaged(EngineKind::Lsm, &[lost]);
        assert_eq!(db.get([0xff, 9]).unwrap().as_deref(), Some(&b"high"[..]));
        let existing = KeyspaceOptions { create_if_missing: false, ..KeyspaceOptions::default() };
        assert!(db.keyspace_with("one", existing).unwrap().get("name").unwrap().is_some());
        db.recover_keyspaces().unwrap();
        assert!(db.keyspace("new").unwrap().get("name").unwrap().is_none());
        assert_eq!(check(&db), Vec::<String>::new());
    }
}

#[test]
fn a_later_version_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, EngineKind::Lsm);
    db.keyspace("one").unwrap();
    let mut batch = WriteBatch::new();
    let later = b"terrace-spaces\0\x07";
    batch.push(Op { kind: Kind::Put, key: &CATALOGUE.place(b"").unwrap(), value: later });
    db.write_placed(batch, WriteOptions::default()).unwrap();
    drop(db);
    let options = Options { engine: EngineKind::Lsm, ..Options::default() };
    let refused = Db::open(dir.path(), options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidFormat);
    assert!(refused.to_string().contains("version 7 of the catalogue of keyspaces"), "{refused}");
}

#[test]
fn a_dated_keyspace_has_a_marker_of_its_own_and_no_tombstones_to_look_for() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, EngineKind::Lsm);
    db.keyspace("plain").unwrap();
    let marker = |db: &Db| {
        let found = db.inner.unmasked.get(&CATALOGUE.place(b"").unwrap(), None).unwrap();
        version_of(&found.unwrap()).unwrap()
    };
    assert_eq!(marker(&db), 1);
    let expiry = Some(Expiry::After(std::time::Duration::from_millis(0x0001_0002_0003)));
    db.keyspace_with("dated", KeyspaceOptions { expiry, ..KeyspaceOptions::default() }).unwrap();
    assert_eq!(marker(&db), 3);
    let record = db.inner.unmasked.get(&place_of("dated"), None).unwrap().unwrap();
    assert_eq!(&record[..], b"terrace-spaces\0\x01\x02\0\0\x80\x03\0\x02\0\x01\0\0\0");
    drop(db);
    let db = open(&dir, EngineKind::Lsm);
    assert!(!db.inner.catalog.may_have_ranges());
    db.delete_range("a".."b").unwrap();
    assert!(db.inner.catalog.may_have_ranges());
    drop(db);
    let db = open(&dir, EngineKind::Lsm);
    assert!(db.inner.catalog.may_have_ranges() && marker(&db) == 3);
    assert_eq!(db.keyspace("dated").unwrap().expiry(), expiry);
}

/// No write makes such a value: a read is refused, and a check tells where it is.
#[test]
fn a_value_without_its_deadline_is_told() {
    for engine in [EngineKind::Lsm, EngineKind::Turbo] {
        let dir = tempfile::tempdir().unwrap();
        let db = open(&dir, engine);
        let expiry = Some(Expiry::ByEntry);
        let dated =
            db.keyspace_with("dated", KeyspaceOptions { expiry, ..KeyspaceOptions::default() }).unwrap();
        dated.put("sound", "v").unwrap();
        let mut batch = WriteBatch::new();
        let place = dated.open().space().place(b"short").unwrap().into_owned();
        batch.push(Op { kind: Kind::Put, key: &place, value: b"1234567" });
        db.write_placed(batch, WriteOptions::default()).unwrap();
        assert_eq!(dated.get("short").unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(dated.get("sound").unwrap().as_deref(), Some(&b"v"[..]));
        let problems = db.check().unwrap().problems;
        assert!(problems.len() == 1 && problems[0].contains("short\" can expire"), "{problems:?}");
    }
}

/// Damage takes the marker: the next one that is written says again that a keyspace is dated.
#[test]
fn a_lost_marker_is_recalled() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, EngineKind::Lsm);
    let expiry = Some(Expiry::ByEntry);
    db.keyspace_with("dated", KeyspaceOptions { expiry, ..KeyspaceOptions::default() }).unwrap();
    let mut batch = WriteBatch::new();
    batch.push(Op { kind: Kind::Delete, key: &CATALOGUE.place(b"").unwrap(), value: &[] });
    db.write_placed(batch, WriteOptions::default()).unwrap();
    drop(db);
    let db = open(&dir, EngineKind::Lsm);
    db.keyspace("plain").unwrap();
    let found = db.inner.unmasked.get(&CATALOGUE.place(b"").unwrap(), None).unwrap();
    assert_eq!(version_of(&found.unwrap()), Some(6));
}

#[test]
fn records_are_as_their_page_says() {
    let record = of_numbers(&[1, 0x0102_0304]);
    assert_eq!(record, b"terrace-spaces\0\x01\x01\0\0\0\x04\x03\x02\x01");
    assert_eq!((version_of(&record), number_of(&record)), (Some(1), None));
    assert_eq!(number_of(&of_numbers(&[240])), Some(240));
    assert_eq!(CATALOGUE.encode(&named("a")).into_owned(), b"\xff\0na");
    for damaged in [&b""[..], b"terrace-spaces\0", b"terrace-spaces\0\x01\x01\0\0", b"terrace-spaced\0\x01"] {
        assert_eq!(number_of(damaged), None);
    }
}

#[test]
fn a_record_has_its_merge_operator() {
    let operator = OperatorName { name: "max".into(), is_built_in: true };
    let plain = Named { operator: Some(operator.clone()), ..Named::plain(7) };
    let record = b"terrace-spaces\0\x04\x07\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x01max";
    assert_eq!((plain.encode(), plain.version()), (record.to_vec(), 4));
    let operator = OperatorName { is_built_in: false, ..operator };
    let dated = Named { time_to_live: 0x0102_0304_0506, operator: Some(operator), ..Named::plain(DATED | 7) };
    let record = b"terrace-spaces\0\x04\x07\0\0\x80\x06\x05\x04\x03\x02\x01\0\0\0max";
    assert_eq!(dated.encode(), record);
    for named in [plain, dated] {
        let record = named.encode();
        assert_eq!(Named::decode(&record).as_ref(), Some(&named));
        assert!((0..record.len() - 2).all(|len| Named::decode(&record[..len]).is_none()));
        let changed = |at: usize, to: u8| [&record[..at], &[to], &record[at + 1..]].concat();
        let damaged =
            [changed(28, 2), changed(29, 0xff), changed(15, 5), [&record[..], &[b'm'; 253]].concat()];
        assert!(damaged.iter().all(|record| Named::decode(record).is_none()));
    }
    assert_eq!(Named::decode(b"terrace-spaces\0\x04\x07\0\0\0\x01\0\0\0\0\0\0\0\x01max"), None);
}

#[test]
fn a_record_has_its_settings_of_tables() {
    let tables = TableSettings { block_bytes: Some(0x1_0203), ..TableSettings::default() };
    let blocks = Named { tables, ..Named::plain(7) };
    let record = b"terrace-spaces\0\x05\x07\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x03\x02\x01\0\xff\xff\x02";
    assert_eq!((blocks.encode(), blocks.version()), (record.to_vec(), 5));
    let compression = Some(Compression::Lz4);
    let tables = TableSettings { compression, filter_bits_per_key: Some(9), block_bytes: None };
    let operator = Some(OperatorName { name: "max".into(), is_built_in: true });
    let merging = Named { tables, operator, ..Named::plain(DATED | 7) };
    let record = b"terrace-spaces\0\x05\x07\0\0\x80\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\x01\x09\x01max";
    assert_eq!(merging.encode(), record);
    for named in [blocks, merging] {
        let record = named.encode();
        assert_eq!(Named::decode(&record).as_ref(), Some(&named));
        assert!((0..34).all(|len| Named::decode(&record[..len]).is_none()));
        let changed = |at: usize, to: u8| [&record[..at], &[to], &record[at + 1..]].concat();
        let damaged = [
            changed(31, 9),
            changed(32, 2),
            changed(33, 65),
            changed(34, 3),
            [&record[..], &[0xff]].concat(),
        ];
        assert!(damaged.iter().all(|record| Named::decode(record).is_none()), "{named:?}");
    }
    let operator = Some(OperatorName { name: "max".into(), is_built_in: true });
    let deferred = Named { operator, is_deferred: true, ..Named::plain(7) };
    let record = b"terrace-spaces\0\x06\x07\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\xff\xff\x04max";
    assert_eq!((deferred.encode(), deferred.version()), (record.to_vec(), 6));
    assert_eq!(Named::decode(record), Some(deferred));
    // One that says nothing is never written so.
    let nothing = b"terrace-spaces\0\x05\x07\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\xff\xff\x02";
    assert_eq!(Named::decode(nothing), None);
}

/// One damaged block kept the whole database from being opened.
#[test]
fn damage_where_the_catalogue_lies_leaves_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, EngineKind::Lsm);
    let key = |i: u32| format!("key {i:04}");
    (0..500).for_each(|i| db.put(key(i), [7; 100]).unwrap());
    db.put([0xff, 9], "high").unwrap();
    db.keyspace("one").unwrap().put("name", "one").unwrap();
    db.compact_range(..).unwrap();
    db.close().unwrap();
    drop(db);
    let mut damaged = 0;
    for path in std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()) {
        let mut bytes = std::fs::read(&path).unwrap_or_default();
        let magic = b"terrace-spaces";
        let Some(at) = bytes.windows(magic.len()).position(|part| part == magic) else { continue };
        if path.extension().is_some_and(|extension| extension == "sst") {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let db = open(&dir, EngineKind::Lsm);
    assert_eq!(db.get(key(7)).unwrap().as_deref(), Some(&[7; 100][..]));
    db.put(key(7), "new").unwrap();
    let batch = |put: bool| {
        let mut batch = WriteBatch::new();
        batch.put("low", "new");
        if put {
            batch.put([0xff, 9], "new")
        } else {
            batch.delete([0xff, 9])
        };
        batch
    };
    let tx = db.transaction();
    let refused = [
        db.write(batch(true)).unwrap_err(),
        db.write(batch(false)).unwrap_err(),
        tx.get([0xff, 9]).unwrap_err(),
        tx.contains_key([0xff, 9]).unwrap_err(),
        tx.multi_get([[0xff, 9]]).unwrap_err(),
        tx.put([0xff, 9], "new").unwrap_err(),
        tx.delete([0xff, 9]).unwrap_err(),
        db.get([0xff, 9]).unwrap_err(),
        db.put([0xff, 9], "new").unwrap_err(),
        db.keyspace("one").unwrap_err(),
        db.recover_keyspaces().unwrap_err(),
        db.snapshot().get([0xff, 9]).unwrap_err(),
        db.multi_get([[0xff, 9]]).unwrap_err(),
        db.iter().unwrap().next_back().unwrap().unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::Corruption), "{refused:?}");
    assert!(db.get("low").unwrap().is_none() && !check(&db).is_empty());
    // Those that do not share the damaged block.
    assert!(db.iter().unwrap().take_while(Result::is_ok).count() > 400);
}
