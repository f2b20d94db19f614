//! Transactions as wholes: refused, dropped, tried again, and many at once.

use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, Error, ErrorKind, Options, Result, TransactionOptions, WriteBatch, WriteOptions};
use terrace_pmem::Granularity;

use super::transactions::{conflict, open, value};
use crate::harness::{Contents, Engine, Machine, Setup, assert_clean};

/// Nothing of a transaction that is dropped, or whose closure fails or panics, is ever there.
pub fn what_is_not_committed_never_was(engine: &Engine) {
    let (machine, db) = open("dropped", engine);
    db.put("a", "1").unwrap();
    db.put("b", "1").unwrap();
    let tx = db.transaction();
    tx.put("a", "2").unwrap();
    drop(tx);
    let refused = db.transact(|tx| {
        tx.put("a", "3")?;
        Err::<(), _>(Error::invalid("of the closure"))
    });
    assert!(refused.unwrap_err().to_string().contains("of the closure"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        db.transact(|tx| {
            tx.put("a", "4")?;
            // Another version is kept for it.
            db.put("b", "2")?;
            if tx.contains_key("a")? {
                std::panic::resume_unwind(Box::new(()));
            }
            Ok(())
        })
    }));
    assert!(panicked.is_err());
    db.delete("b").unwrap();
    // A value of its own, with what was written before taken back.
    let value: std::result::Result<(), u32> = db
        .transact(|tx| {
            tx.put("a", "5")?;
            tx.clear();
            Ok(Err(7))
        })
        .unwrap();
    assert_eq!((value, db.all()), (Err(7), vec![(b"a".to_vec(), b"1".to_vec())]));
    assert_eq!(db.stats().counts.snapshots, 0, "nothing is kept for any of them");
    drop(db);
    assert_eq!(machine.kill().open().unwrap().all().len(), 1);
}

pub fn conflicts_are_tried_again_within_bounds(engine: &Engine) {
    let (_machine, db) = open("attempts", engine);
    db.put("n", "0").unwrap();
    let mut calls = 0;
    let options = TransactionOptions { attempts: 5, ..TransactionOptions::default() };
    let outcome = db.transact_with(options, |tx| {
        calls += 1;
        value(tx, "n");
        db.put("n", calls.to_string())?;
        tx.put("out", "x")
    });
    assert_eq!((conflict(outcome), calls), ("n".into(), 5));
    let mut calls = 0;
    let doubled = db.transact(|tx| {
        calls += 1;
        let n = value(tx, "n").unwrap();
        if calls < 4 {
            db.put("n", format!("{n}{calls}"))?;
        }
        tx.put("n", [&n[..], &n].concat())?;
        // One within another, which also tries again.
        db.transact(|inner| inner.put("inner", value(inner, "inner").unwrap_or_default() + "."))?;
        Ok(n)
    });
    assert_eq!((doubled.unwrap(), calls), ("5123".into(), 4));
    assert_eq!(
        (db.get("n").unwrap().unwrap(), db.get("inner").unwrap().unwrap()),
        ("51235123".into(), "....".into())
    );
}

/// Sums over several keys stay as they are, whoever moves something between them, and however.
pub fn transfers_keep_the_sum(engine: &Engine) {
    const KEYS: u64 = 6;
    const EACH: u64 = 100;
    for setup in [Setup::tiny("transfers", engine), Setup::roomy(engine, Granularity::CacheLine)] {
        let machine = Machine::new(&setup.threaded(2));
        let db = machine.open().unwrap();
        let key = |i: u64| format!("account/{i}");
        (0..KEYS).for_each(|i| db.put(key(i), EACH.to_string()).unwrap());
        let amount = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse::<u64>().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3u64)
                .map(|thread| {
                    let (db, amount) = (&db, &amount);
                    scope.spawn(move || {
                        for n in 0..60 {
                            let (from, to) = ((n + thread) % KEYS, (n * 7 + thread * 5 + 1) % KEYS);
                            db.transact(|tx| {
                                let held = amount(&tx.get(key(from))?.unwrap());
                                let taken = held.min(n % 9);
                                tx.put(key(from), (held - taken).to_string())?;
                                let there = amount(&tx.get(key(to))?.unwrap());
                                tx.put(key(to), (there + taken).to_string())
                            })
                            .unwrap();
                        }
                    })
                })
                .collect();
            let (db, done, amount) = (&db, &done, &amount);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let tx = db.transaction();
                    let sum: u64 = (0..KEYS).map(|i| amount(&tx.get(key(i)).unwrap().unwrap())).sum();
                    assert_eq!(sum, KEYS * EACH);
                    tx.commit().unwrap();
                }
            });
            writers.into_iter().for_each(|w| w.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(db.all().iter().map(|(_, value)| amount(value)).sum::<u64>(), KEYS * EACH);
        assert_clean(&db);
    }
}

pub fn a_transaction_is_refused_as_a_write_is(engine: &Engine) {
    let (machine, db) = open("refused", engine);
    let kind = |outcome: Result<()>| outcome.unwrap_err().kind();
    db.put("a", "1").unwrap();
    let long = vec![b'k'; 65_536];
    let tx = db.transaction();
    assert_eq!(kind(tx.put(&long, "")), ErrorKind::InvalidArgument);
    assert_eq!(kind(tx.delete(&long)), ErrorKind::InvalidArgument);
    assert_eq!(kind(tx.get(&long).map(drop)), ErrorKind::InvalidArgument);
    assert_eq!(kind(tx.contains_key(&long).map(drop)), ErrorKind::InvalidArgument);
    // The pages of this value are never touched.
    assert_eq!(kind(tx.put("a", vec![0; (1 << 30) + 1])), ErrorKind::InvalidArgument);
    tx.put("b", value(&tx, "a").unwrap()).unwrap();
    tx.commit_with(WriteOptions::SYNC).unwrap();
    db.transaction().commit_with(WriteOptions::SYNC).unwrap();

    let (reads, writes) = (db.transaction(), db.transaction());
    value(&writes, "a");
    writes.put("c", "1").unwrap();
    let blind = db.transaction();
    blind.put("c", "1").unwrap();
    db.close().unwrap();
    assert_eq!(value(&reads, "b").unwrap(), "1", "a snapshot may still be read");
    reads.commit().unwrap();
    assert_eq!((kind(writes.commit()), kind(blind.commit())), (ErrorKind::Closed, ErrorKind::Closed));
    let orphan = db.transaction();
    value(&orphan, "a");
    orphan.put("c", "1").unwrap();
    drop(db);
    assert_eq!(machine.open().map(drop).unwrap_err().kind(), ErrorKind::Locked, "it still reads");
    assert_eq!(kind(orphan.commit()), ErrorKind::Closed);

    let db = machine.open_with(Options { read_only: true, ..machine.options() }).unwrap();
    let tx = db.transaction();
    assert_eq!(value(&tx, "b").unwrap(), "1");
    assert_eq!(kind(tx.put("c", "1")), ErrorKind::ReadOnly);
    tx.commit().unwrap();
    assert_eq!(kind(db.compare_and_swap("a", Some(b"1"), None).map(drop)), ErrorKind::ReadOnly);
    db.close().unwrap();
}

/// One for which the pool has no room has done nothing, and succeeds when begun anew with room.
pub fn a_transaction_without_room_does_nothing(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("no room", engine));
    let mut options = Options { pm_bytes: 1 << 20, ..machine.options() };
    options.split.boundary_bytes = 1 << 30;
    let db = machine.open_with(options.clone()).unwrap();
    db.put("a", "1").unwrap();
    let fill = |bytes: usize| {
        db.transact(|tx| {
            let a = value(tx, "a").unwrap();
            (0..(3 << 20) / 2 / bytes).try_for_each(|i| tx.put(format!("{a}/{i:05}"), vec![7; bytes]))
        })
    };
    for bytes in [100_000, 3000] {
        match fill(bytes) {
            Err(e) => assert!(e.is_out_of_space(), "{e}"),
            Ok(()) => return assert!(!engine.kind.keeps_all_in_memory(), "there was room"),
        }
        assert_eq!(db.all(), [(b"a".to_vec(), b"1".to_vec())]);
        assert_clean(&db);
    }
    db.transact(|tx| tx.put("a", value(tx, "a").unwrap() + "2")).unwrap();
    assert_eq!(db.get("a").unwrap().unwrap(), "12");
}

/// Whatever has changed what a transaction read, and whatever else was written around that, it is a conflict; what has
/// not touched it is none.
pub fn every_sort_of_write_is_noticed(engine: &Engine) {
    type Write = fn(&Db) -> Result<()>;
    let writes: [(&str, Write); 9] = [
        ("put", |db| db.put("k", "2")),
        ("delete", |db| db.delete("k")),
        ("batch", |db| {
            let mut batch = WriteBatch::new();
            batch.put("j", "2");
            batch.delete("k");
            db.write(batch)
        }),
        ("swap", |db| {
            db.compare_and_swap("k", Some(b"1"), Some(b"2")).map(|swapped| assert!(swapped.is_ok()))
        }),
        ("update", |db| db.fetch_update("k", |_| Some("2")).map(drop)),
        ("condition", |db| db.update_if_exists("k", "2").map(|done| assert!(done))),
        ("transaction", |db| {
            let tx = db.transaction();
            tx.put("k", "2")?;
            tx.commit()
        }),
        ("range", |db| db.delete_range("k"..="k")),
        ("ingest", |db| db.ingest(|ingest| ingest.put("k", "2")).map(drop)),
    ];
    let (_machine, db) = open("sorts of writes", engine);
    if engine.kind.is_ordered() {
        // Before the first one it is not known where ranges are kept, and their place is made.
        db.delete_range("y"..="y").unwrap();
    }
    let unordered = |name: &str| name == "range" && !engine.kind.is_ordered();
    for (name, write) in writes.into_iter().filter(|(name, _)| !unordered(name)) {
        for (before, after) in [(0, 0), (1, 0), (0, 1), (3, 3)] {
            db.put("k", "1").unwrap();
            let around = |count: i32| (0..count).for_each(|i| db.put(format!("x{i}"), name).unwrap());
            let tx = db.transaction();
            assert_eq!(value(&tx, "k").as_deref(), Some("1"));
            tx.put("out", name).unwrap();
            around(before);
            write(&db).unwrap();
            around(after);
            assert_eq!(conflict(tx.commit()), "k", "{name} among {before} and {after}");
            // Another key is read.
            let tx = db.transaction();
            assert_eq!(value(&tx, "elsewhere"), None);
            tx.put("out", name).unwrap();
            around(before);
            db.put("k", "1").unwrap();
            write(&db).unwrap();
            around(after);
            tx.commit().unwrap();
        }
        // One that began when nobody else did, one that began beside another, and one that outlives that.
        let long = db.transaction();
        db.put("k", "1").unwrap();
        assert_eq!(value(&long, "absent"), None);
        long.put("long", name).unwrap();
        let tx = db.transaction();
        value(&tx, "k");
        tx.put("out", name).unwrap();
        db.put("x", "1").unwrap();
        write(&db).unwrap();
        assert_eq!(conflict(tx.commit()), "k");
        db.put("x", "2").unwrap();
        long.commit().unwrap();
    }
    assert_clean(&db);
}
