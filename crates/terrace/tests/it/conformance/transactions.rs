//! Transactions: what they read, what they write, and what is a conflict.

use terrace::{
    Db, Error, ErrorKind, Isolation, Options, Result, Transaction, TransactionOptions, WriteOptions,
};
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Setup, assert_clean, setups};

const OF_SNAPSHOT: TransactionOptions =
    TransactionOptions { isolation: Isolation::Snapshot, attempts: 1, write: WriteOptions { sync: false } };

pub fn open(name: &'static str, engine: &Engine) -> (Machine, Db) {
    let machine = Machine::new(&Setup::tiny(name, engine));
    let db = machine.open().unwrap();
    (machine, db)
}

pub fn value(tx: &Transaction, key: &str) -> Option<String> {
    tx.get(key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// The keys that a range gives, and the values.
fn shown(entries: impl Iterator<Item = Result<(terrace::Bytes, terrace::Bytes)>>) -> String {
    let shown = entries.map(|entry| {
        let (key, value) = entry.unwrap();
        format!("{}={}", key.escape_ascii(), value.escape_ascii())
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// The key of the conflict that this is.
#[track_caller]
pub fn conflict(outcome: Result<()>) -> String {
    match outcome.unwrap_err() {
        Error::Conflict { key } => String::from_utf8(key).unwrap(),
        other => panic!("{other}"),
    }
}

pub fn own_writes_are_read_and_nobody_elses(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        (0..40u8).for_each(|i| db.put([b'k', i], [i; 60]).unwrap());
        db.put("a", "1").unwrap();
        let tx = db.transaction();
        tx.put("a", "2").unwrap();
        tx.put("b", "3").unwrap();
        tx.delete([b'k', 7]).unwrap();
        db.put([b'k', 8], "later").unwrap();
        (0..40u8).for_each(|i| db.put([b'l', i], [i; 60]).unwrap());
        assert_eq!(
            (value(&tx, "a"), value(&tx, "b"), value(&tx, "c")),
            (Some("2".into()), Some("3".into()), None)
        );
        assert_eq!(tx.get([b'k', 7]).unwrap(), None);
        assert_eq!(tx.get([b'k', 9]).unwrap().unwrap(), [9; 60][..]);
        assert!(!tx.contains_key([b'k', 7]).unwrap() && tx.contains_key([b'k', 6]).unwrap());
        assert_eq!(tx.multi_get(["a", "c"]).unwrap(), [Some("2".into()), None]);
        assert_eq!((db.get("a").unwrap().unwrap(), db.get("b").unwrap()), ("1".into(), None));
        tx.commit().unwrap();
        assert_eq!((db.get("a").unwrap().unwrap(), db.get("b").unwrap().unwrap()), ("2".into(), "3".into()));
        assert!(!db.contains_key([b'k', 7]).unwrap());
        drop(db);
        let again = machine.kill().open().unwrap();
        let all = again.all();
        assert!(all.len() >= 41 || setup.granularity == Granularity::Page, "under {}", setup.name);
        assert!(!all.iter().any(|(key, _)| key == &[b'k', 7]) || setup.granularity == Granularity::Page);
        assert_clean(&again);
    }
}

pub fn what_was_read_is_checked(engine: &Engine) {
    let (_machine, db) = open("reads", engine);
    (0..30u8).for_each(|i| db.put([b'k', i], [i; 100]).unwrap());
    for (key, new) in [("a", Some("2")), ("a", None), ("absent", Some("1"))] {
        db.put("a", "1").unwrap();
        db.delete("absent").unwrap();
        for flush in [false, true] {
            let tx = db.transaction();
            value(&tx, key);
            tx.put("out", "x").unwrap();
            match new {
                Some(new) => db.put(key, new).unwrap(),
                None => db.delete(key).unwrap(),
            }
            if flush {
                db.flush().unwrap();
                db.compact_range(..).unwrap();
            }
            assert_eq!(conflict(tx.commit()), key);
            assert_eq!(db.get("out").unwrap(), None);
            db.put("a", "1").unwrap();
            db.delete("absent").unwrap();
        }
    }
    // Another value is no other existence.
    let tx = db.transaction();
    assert!(tx.contains_key("a").unwrap() && !tx.contains_key("absent").unwrap());
    tx.put("out", "1").unwrap();
    db.put("a", "other").unwrap();
    tx.commit().unwrap();
    // What was written back disturbs nobody, and neither does what was not read.
    let tx = db.transaction();
    assert_eq!(value(&tx, "a").unwrap(), "other");
    tx.put("out", "2").unwrap();
    db.put("a", "for a while").unwrap();
    db.put("a", "other").unwrap();
    db.put("b", "1").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.get("out").unwrap().unwrap(), "2");
    // A transaction that only reads has read one moment.
    let tx = db.transaction();
    assert_eq!(value(&tx, "a").unwrap(), "other");
    db.put("a", "1").unwrap();
    assert_eq!((value(&tx, "a").unwrap(), value(&tx, "b").unwrap()), ("other".into(), "1".into()));
    tx.commit().unwrap();
    // A transaction that only writes comes last.
    let tx = db.transaction();
    tx.put("a", "blind").unwrap();
    db.put("a", "2").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "blind");
    assert!(db.stats().counts.conflicts == 6);
    assert_clean(&db);
}

/// Who has only read has read one snapshot, whatever became of that, and whatever the options of the commit are.
pub fn nothing_written_is_no_conflict(engine: &Engine) {
    for options in [WriteOptions::default(), WriteOptions::SYNC] {
        let (machine, db) = open("nothing written", engine);
        db.put([0xff, 1], "high").unwrap();
        let (tx, moved) = (db.transaction(), db.transaction());
        assert!(tx.get([0xff, 1]).unwrap().is_some() && moved.multi_get([[0xff, 1]]).unwrap()[0].is_some());
        let space = db.keyspace("space").unwrap();
        tx.commit_with(options).unwrap();
        let (dropped, changed) = (db.transaction(), db.transaction());
        assert_eq!(dropped.keyspace(&space).unwrap().get("k").unwrap(), None);
        assert_eq!(changed.get("k").unwrap(), None);
        db.put("k", "1").unwrap();
        db.drop_keyspace("space").unwrap();
        [moved, dropped, changed].into_iter().for_each(|tx| tx.commit_with(options).unwrap());
        drop((space, db));
        let db = machine.open_with(Options { read_only: true, ..machine.options() }).unwrap();
        let tx = db.transaction();
        assert!(tx.get("k").unwrap().is_some());
        tx.commit_with(options).unwrap();
    }
}

pub fn ranges_are_checked_as_far_as_they_were_read(engine: &Engine) {
    let (_machine, db) = open("ranges", engine);
    if !engine.kind.is_ordered() {
        let tx = db.transaction();
        assert_eq!(tx.iter().map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(tx.prefix("a").map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
        tx.put("a", "1").unwrap();
        return tx.commit().unwrap();
    }
    let put = |key: &str| db.put(key, key).unwrap();
    let fresh = || {
        let keys: Vec<_> = db.all();
        keys.iter().for_each(|(key, _)| db.delete(key).unwrap());
        ["b", "d", "f", "h", "k"].into_iter().for_each(put);
    };
    // What is changed, and whether that is a conflict for one who has read b and d, k and h from behind.
    let changes =
        [("a", true), ("c", true), ("d", true), ("e", false), ("f", false), ("g", false), ("i", true)];
    for (key, spoils) in changes.into_iter().chain([("m", true), ("z", false)]) {
        for flush in [false, true] {
            fresh();
            let tx = db.transaction();
            let mut iter = tx.range("a"..="m").unwrap();
            assert_eq!(shown(iter.by_ref().take(2)), "b=b d=d");
            assert_eq!(shown(iter.by_ref().rev().take(2)), "k=k h=h");
            drop(iter);
            tx.put("out", "1").unwrap();
            db.put(key, "new").unwrap();
            if flush {
                db.flush().unwrap();
            }
            match (tx.commit(), spoils) {
                (Ok(()), false) => {}
                (Err(Error::Conflict { key: told }), true) => assert_eq!(told, key.as_bytes()),
                (outcome, _) => panic!("{outcome:?} after {key} was changed"),
            }
        }
    }
    // To the end: all of it. An iterator that was not asked has read nothing.
    for (reads, key) in [(true, "e"), (true, "l"), (false, "e")] {
        fresh();
        let tx = db.transaction();
        let iter = tx.range("a".."m").unwrap();
        assert_eq!(
            if reads {
                iter.count()
            } else {
                drop(iter);
                5
            },
            5
        );
        tx.put("out", "1").unwrap();
        db.put(key, "phantom").unwrap();
        assert_eq!(tx.commit().is_err(), reads);
    }
    // A deletion, and a range in which there is nothing.
    fresh();
    let tx = db.transaction();
    assert_eq!(tx.prefix("f").unwrap().count(), 1);
    tx.put("out", "1").unwrap();
    db.delete("f").unwrap();
    assert_eq!(conflict(tx.commit()), "f");
    let tx = db.transaction();
    assert_eq!(tx.range("s".."t").unwrap().rev().count() + tx.range("t".."s").unwrap().count(), 0);
    tx.put("out", "1").unwrap();
    db.put("t", "outside").unwrap();
    db.put("s", "inside").unwrap();
    assert_eq!(conflict(tx.commit()), "s");
}

/// Ranges over the snapshot and what was written over it, from both ends, while writing goes on.
pub fn ranges_have_what_was_written(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return;
    }
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        for key in ["b", "d", "f", "h"] {
            db.put(key, "-").unwrap();
        }
        db.flush().unwrap();
        let tx = db.transaction();
        for key in ["a", "d", "e", "z"] {
            tx.put(key, "+").unwrap();
        }
        ["f", "y"].into_iter().for_each(|key| tx.delete(key).unwrap());
        db.put("c", "unseen").unwrap();
        let all = "a=+ b=- d=+ e=+ h=- z=+";
        assert_eq!(shown(tx.iter().unwrap()), all);
        let backward = shown(tx.iter().unwrap().rev());
        assert_eq!(backward.split(' ').rev().collect::<Vec<_>>().join(" "), all);
        assert_eq!(shown(tx.range("b".."h").unwrap()), "b=- d=+ e=+");
        assert_eq!(shown(tx.range("f"..="y").unwrap()), "h=-");
        assert_eq!(shown(tx.prefix("d").unwrap()), "d=+");
        for front in 0..8 {
            let mut iter = tx.iter().unwrap();
            let first = shown(iter.by_ref().take(front));
            let last = shown(iter.by_ref().rev());
            let both = first.split(' ').chain(last.split(' ').rev()).filter(|entry| !entry.is_empty());
            assert_eq!(both.collect::<Vec<_>>().join(" "), all, "after {front} from the front");
            assert!(iter.next().is_none() && iter.next_back().is_none());
        }
        // Each entry is doubled while the iterator goes on; what it gives is of before.
        for entry in tx.iter().unwrap() {
            let (key, value) = entry.unwrap();
            tx.put([&key[..], b"2"].concat(), value).unwrap();
        }
        assert_eq!(tx.iter().unwrap().count(), 12);
        assert_eq!(conflict(tx.commit()), "c", "under {}", setup.name);
        assert_eq!(db.all().len(), 5);
        assert_clean(&db);
    }
}

pub fn savepoints_take_back_what_was_written(engine: &Engine) {
    let (_machine, db) = open("savepoints", engine);
    db.put("read", "1").unwrap();
    let tx = db.transaction();
    tx.put("a", "1").unwrap();
    let first = tx.savepoint();
    tx.put("a", "2").unwrap();
    let second = tx.savepoint();
    tx.delete("a").unwrap();
    value(&tx, "read");
    tx.rollback_to(second).unwrap();
    assert_eq!(value(&tx, "a").unwrap(), "2");
    tx.rollback_to(first).unwrap();
    assert_eq!(value(&tx, "a").unwrap(), "1");
    assert_eq!(tx.rollback_to(second).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let other = db.transaction();
    assert_eq!(other.rollback_to(first).unwrap_err().kind(), ErrorKind::InvalidArgument);
    tx.put("b", "1").unwrap();
    db.put("read", "2").unwrap();
    assert_eq!(conflict(tx.commit()), "read", "what was read stays read");
    let tx = db.transaction();
    let start = tx.savepoint();
    (0..100u8).for_each(|i| tx.put([i], "x").unwrap());
    tx.rollback_to(start).unwrap();
    tx.put("only", "this").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.all().len(), 2);
}

/// A snapshot-isolated transaction conflicts over what it writes, blindly or not, and over nothing else.
pub fn snapshot_isolation_checks_what_is_written(engine: &Engine) {
    let (_machine, db) = open("snapshot isolation", engine);
    for key in ["a", "b", "c"] {
        db.put(key, "1").unwrap();
    }
    let begin = || db.transaction_with(OF_SNAPSHOT);
    let tx = begin();
    assert_eq!((value(&tx, "a").unwrap(), value(&tx, "absent")), ("1".into(), None));
    assert!(!engine.kind.is_ordered() || tx.iter().unwrap().count() == 3);
    tx.put("b", "2").unwrap();
    db.put("a", "2").unwrap();
    db.put("absent", "2").unwrap();
    tx.commit().unwrap();
    for write in [|tx: &Transaction| tx.put("c", "3"), |tx: &Transaction| tx.delete("c")] {
        let tx = begin();
        write(&tx).unwrap();
        db.put("c", "2").unwrap();
        assert_eq!(conflict(tx.commit()), "c");
        db.put("c", "1").unwrap();
    }
    let tx = begin();
    tx.put("new", "1").unwrap();
    assert!(db.put_if_absent("new", "0").unwrap());
    assert_eq!(conflict(tx.commit()), "new");
    let tx = begin();
    tx.put("c", "4").unwrap();
    tx.put("d", "4").unwrap();
    tx.commit().unwrap();
    assert_eq!((db.get("c").unwrap().unwrap(), db.get("new").unwrap().unwrap()), ("4".into(), "0".into()));
}
