//! Merging operands into values.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace::{
    Db, ErrorKind, Expiry, Isolation, Keyspace, KeyspaceOptions, MergeOperator, TransactionOptions,
    WriteBatch, WriteOptions,
};
use terrace_base::clock::ManualClock;

use super::expiry::{SECOND, open_at};
use super::transactions::open;
use crate::harness::{Engine, Machine, Setup, assert_clean, setups};

/// Merges of all threads together, `TERRACE_INCREMENTS` if that says otherwise.
const MERGES: u64 = 2000;

pub fn merging(db: &Db, name: &str, operator: MergeOperator) -> Keyspace {
    db.keyspace_with(name, KeyspaceOptions { merge: Some(operator), ..KeyspaceOptions::default() }).unwrap()
}

/// Merges nothing but what begins with `o`: panics at `p`, fails at others.
fn choosy() -> MergeOperator {
    MergeOperator::associative("choosy", |value, operand| match operand.first() {
        Some(b'o') => Ok([value, operand].concat()),
        Some(b'p') => panic!("on request"),
        _ => Err("this is nothing for it".into()),
    })
}

fn number(bytes: &[u8]) -> i64 {
    i64::from_le_bytes(bytes.try_into().unwrap())
}

fn text(space: &Keyspace, key: &str) -> Option<String> {
    space.get(key).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Must catch a merge that stands on another value than the one before it, wherever that lies.
pub fn merges_stand_on_what_is_there(engine: &Engine) {
    let both = [MergeOperator::append(), MergeOperator::append().deferred()];
    for (setup, operator) in
        setups(engine).into_iter().flat_map(|setup| both.clone().map(|by| (setup.clone(), by)))
    {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let space = merging(&db, "space", operator);
        // Some engines keep large values apart.
        let (mut wanted, large) = (String::new(), "d".repeat(300));
        for round in 0..60 {
            let operand = ["a", "bc", "", &large][round % 4];
            space.merge("k", operand).unwrap();
            wanted.push_str(operand);
            let snapshot = (round % 7 == 0).then(|| (space.snapshot().unwrap(), wanted.clone()));
            match round % 11 {
                3 => db.flush().unwrap(),
                5 => space.compact_range(..).unwrap(),
                7 => {
                    space.put("k", "put").unwrap();
                    wanted = "put".into();
                }
                9 => {
                    space.delete("k").unwrap();
                    wanted.clear();
                }
                _ => {}
            }
            space.merge_with("k", "+", WriteOptions::SYNC).unwrap();
            wanted.push('+');
            if let Some((snapshot, then)) = snapshot {
                assert_eq!(snapshot.get("k").unwrap().as_deref(), Some(then.as_bytes()));
            }
            assert_eq!(text(&space, "k").as_ref(), Some(&wanted), "round {round} of {}", setup.name);
        }
        assert_eq!(space.stats().puts, 120 + 5);
        assert_clean(&db);
        drop((space, db));
        let db = machine.open().unwrap();
        let space = db.keyspace("space").unwrap();
        assert_eq!((text(&space, "k"), space.merge_operator()), (Some(wanted.clone()), Some("append")));
        space.merge("k", "!").unwrap();
        assert_eq!(text(&space, "k"), Some(wanted + "!"));
    }
}

/// Must catch a merge in a batch that does not see what stands before it there, or sees what stands behind it.
pub fn a_batch_merges_in_its_order(engine: &Engine) {
    let (_machine, db) = open("merging batches", engine);
    let (space, other) =
        (merging(&db, "space", MergeOperator::append()), merging(&db, "other", MergeOperator::max()));
    space.put("a", "old").unwrap();
    space.put("b", "old").unwrap();
    space.put("c", "old").unwrap();
    let mut batch = WriteBatch::new();
    batch.merge_in(&space, "a", "1");
    batch.put_in(&space, "b", "new");
    batch.merge_in(&space, "b", "2");
    batch.merge_in(&other, "a", "x");
    batch.merge_in(&other, "a", "w");
    batch.put([0xff, 1], "high");
    batch.delete_in(&space, "c");
    batch.merge_in(&space, "c", "3");
    batch.merge_in(&space, "c", "4");
    batch.merge_in(&space, "d", "5");
    batch.delete_in(&space, "d");
    db.write(batch).unwrap();
    let all = |space: &Keyspace| ["a", "b", "c", "d"].map(|key| text(space, key).unwrap_or_default());
    assert_eq!(all(&space), ["old1", "new2", "34", ""]);
    assert_eq!(all(&other), ["x", "", "", ""]);
    let mut batch = WriteBatch::new();
    batch.merge_in(&space, "a", "gone");
    batch.delete_range_in(&space, "a".."c");
    batch.merge_in(&space, "a", "5");
    batch.merge_in(&space, "a", "6");
    batch.put_in(&space, "b", "7");
    batch.merge_in(&space, "b", "8");
    batch.merge_in(&space, "c", "9");
    batch.merge_in(&space, "d", "gone");
    batch.delete_range_in(&space, "d"..);
    db.write(batch).unwrap();
    assert_eq!(all(&space), ["56", "78", "349", ""]);
    db.sweep().unwrap();
    assert_eq!(all(&space), ["56", "78", "349", ""]);
    let mut batch = WriteBatch::new();
    batch.delete_range_in(&space, ..);
    batch.merge_in(&space, "a", "1");
    batch.delete_range_in(&space, ..);
    batch.delete_range_in(&space, "b"..);
    batch.merge_in(&space, "b", "2");
    db.write(batch).unwrap();
    assert_eq!(all(&space), ["", "2", "", ""]);
    let merged = db.transact(|tx| {
        let space = tx.keyspace(&space)?;
        space.merge("b", "3")?;
        space.put("c", "4")?;
        space.merge("c", "5")?;
        space.get("c")
    });
    assert_eq!((merged.unwrap().unwrap(), all(&space)[1..3].concat()), ("45".into(), "2345".into()));
    assert_clean(&db);
}

/// Must catch a merge that fails and leaves something, or harms another.
pub fn a_failed_merge_changes_nothing(engine: &Engine) {
    let (machine, db) = open("failing merges", engine);
    let plain = db.keyspace("plain").unwrap();
    let space = merging(&db, "space", choosy());
    space.merge("k", "x").unwrap(); // The first operand is the value.
    space.merge("k", "o").unwrap();
    let before = db.stats().counts.puts;
    let mut spoilt = WriteBatch::new();
    spoilt.put_in(&plain, "k", "v");
    spoilt.merge_in(&space, "k", "o");
    spoilt.merge_in(&space, "k", "no");
    let refused = [
        space.merge("k", "no").unwrap_err(),
        space.merge("k", "p").unwrap_err(),
        db.write(spoilt.clone()).unwrap_err(),
        db.transact(|tx| tx.keyspace(&space)?.merge("k", "p")).unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::MergeFailed && !e.is_retryable()), "{refused:?}");
    assert!(refused[1].to_string().contains("on request"), "{}", refused[1]);
    assert_eq!(db.stats().counts.puts, before);
    spoilt.delete_range_in(&plain, ..);
    assert_eq!(db.write(spoilt).unwrap_err().kind(), ErrorKind::MergeFailed);
    let invalid = |outcome: terrace::Result<()>, what: &str| {
        let error = outcome.unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains(what), "{error}");
    };
    let open_by = |db: &Db, name: &str, operator| {
        db.keyspace_with(name, KeyspaceOptions { merge: Some(operator), ..KeyspaceOptions::default() })
    };
    let last = |name: &str| MergeOperator::associative(name, |_, b| Ok(b.to_vec()));
    invalid(plain.merge("k", "o"), "has no merge operator");
    invalid(db.transact(|tx| tx.keyspace(&plain)?.merge("k", "o")), "has no merge operator");
    invalid(open_by(&db, "space", MergeOperator::max()).map(drop), "and not by");
    invalid(open_by(&db, "new", last("")).map(drop), "1 to 255");
    invalid(open_by(&db, "space", last(&"n".repeat(256))).map(drop), "1 to 255");
    invalid(space.merge([0; 65_530], "o"), "limit");
    let mut batch = WriteBatch::new();
    batch.merge_in(&plain, "k", "o");
    invalid(db.write(batch), "has no merge operator");
    assert_eq!((text(&space, "k").unwrap(), plain.contains_key("k").unwrap()), ("xo".into(), false));
    assert_eq!(db.keyspaces().unwrap(), ["plain", "space"]);
    // A keyspace that exists gets an operator, and its values stay.
    plain.put("k", "b").unwrap();
    open_by(&db, "plain", MergeOperator::max()).unwrap();
    plain.merge("k", "a").unwrap();
    assert_eq!((text(&plain, "k").unwrap(), plain.merge_operator()), ("b".into(), Some("max")));
    invalid(open_by(&db, "plain", last("max")).map(drop), "built-in operator");
    assert_clean(&db);
    drop((plain, space, db));
    let db = machine.open().unwrap();
    let (plain, space) = (db.keyspace("plain").unwrap(), db.keyspace("space").unwrap());
    plain.merge("k", "c").unwrap();
    invalid(space.merge("k", "o"), "which is not built in");
    space.put("other", "put").unwrap();
    assert_eq!((text(&space, "k").unwrap(), text(&plain, "k").unwrap()), ("xo".into(), "c".into()));
    drop(space);
    // It stays given when its handle is gone.
    open_by(&db, "space", choosy()).unwrap();
    let space = db.keyspace("space").unwrap();
    space.merge("k", "o").unwrap();
    assert_eq!(text(&space, "k").unwrap(), "xoo");
    db.drop_keyspace("space").unwrap();
    assert_eq!(db.keyspace("space").unwrap().merge_operator(), None);
    assert_clean(&db);
}

/// Must catch a merge that is lost, done twice or left out because of another's failure, in a group or past the queue.
pub fn no_merge_is_lost(engine: &Engine) {
    let merges = std::env::var("TERRACE_INCREMENTS").ok().map_or(MERGES, |text| text.parse().unwrap());
    let machine = Machine::new(&Setup::tiny("merging threads", engine).threaded(2));
    let db = machine.open().unwrap();
    let counts = merging(&db, "counts", MergeOperator::add().deferred());
    let strict = merging(&db, "strict", choosy());
    let (one, each) = (1i64.to_le_bytes(), merges / 4);
    let appended = AtomicU64::new(0);
    let work = |thread: u64| {
        for i in 0..each {
            match (thread + i) % 4 {
                0 => counts.merge("a", one).unwrap(),
                1 => {
                    let mut batch = WriteBatch::new();
                    batch.merge_in(&counts, "a", one);
                    batch.put_in(&strict, thread.to_le_bytes(), i.to_le_bytes());
                    batch.merge_in(&counts, "b", one);
                    db.write(batch).unwrap();
                }
                2 => {
                    let add = |current: Option<&[u8]>| Some((current.map_or(0, number) + 1).to_le_bytes());
                    counts.fetch_update("a", add).unwrap();
                }
                _ => {
                    // Half of them fail beside the others.
                    let operand = if i % 2 == 0 { "o" } else { "no" };
                    let outcome = strict.merge("k", operand);
                    assert_eq!(outcome.is_ok(), operand == "o", "{outcome:?}");
                    appended.fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed);
                }
            }
        }
    };
    strict.put("k", "").unwrap();
    std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    let found = ["a", "b"].map(|key| number(&counts.get(key).unwrap().unwrap()) as u64);
    let (all, of_batches) = (each * 4, each);
    assert_eq!(found, [all - each, of_batches]);
    assert_eq!(strict.get("k").unwrap().unwrap().len() as u64, appended.into_inner());
    // Threads that share one transaction.
    let transaction = db.transaction();
    let within = transaction.keyspace(&counts).unwrap();
    let work = || (0..each).for_each(|_| within.merge("a", one).unwrap());
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    transaction.commit().unwrap();
    assert_eq!(number(&counts.get("a").unwrap().unwrap()) as u64, found[0] + 4 * each);
    assert_clean(&db);
}

/// Tells when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Must catch a group that is overtaken by writes past the queue for as long as there are any.
pub fn a_batch_of_merges_has_its_turn(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("merging turns", engine).threaded(2));
    let db = machine.open().unwrap();
    let counts = merging(&db, "counts", MergeOperator::add());
    let (one, is_done, others) = (1i64.to_le_bytes(), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Also if this thread fails.
        let _done = Done(&is_done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    counts.merge("hot", one).unwrap();
                    others.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for i in 0..40u8 {
            let mut batch = WriteBatch::new();
            (0..30u8).for_each(|j| batch.merge_in(&counts, [i, j], one));
            batch.merge_in(&counts, "hot", one);
            db.write(batch).unwrap();
        }
    });
    assert_eq!(number(&counts.get("hot").unwrap().unwrap()) as u64, 40 + others.into_inner());
    // Many operands of one key cost their sum in the log.
    let log = merging(&db, "log", MergeOperator::append());
    let mut batch = WriteBatch::new();
    (0..2000).for_each(|_| batch.merge_in(&log, "k", [7; 10]));
    let before = db.stats().counts.user_bytes;
    db.write(batch).unwrap();
    assert_eq!(log.get("k").unwrap().unwrap().len(), 20_000);
    assert!(db.stats().counts.user_bytes - before < 21_000);
    assert_clean(&db);
}

/// Must catch an operator that waits for its own group for ever.
pub fn an_operator_keeps_out_of_the_database(engine: &Engine) {
    let (_machine, db) = open("merging within merging", engine);
    let inside = Arc::new(Mutex::new(Some(db.clone())));
    let handle = Arc::new(Mutex::new(None::<Keyspace>));
    let (seen, keyspace) = (inside.clone(), handle.clone());
    let operator = MergeOperator::new("curious", move |_, value, operand| {
        let db = seen.lock().unwrap();
        let db = db.as_ref().ok_or("closed")?;
        let mut batch = WriteBatch::new();
        batch.put("from within", "v");
        batch.put("and this", "v");
        let outcome = match operand {
            b"write" => db.write(batch),
            b"flush" => db.flush(),
            b"make" => db.keyspace("new").map(drop),
            b"sync" => db.write_with(WriteBatch::new(), WriteOptions::SYNC),
            b"delete a range" => db.delete_range("x"..),
            b"sweep" => db.sweep(),
            b"check" => db.check().map(drop),
            b"list" => db.keyspaces().map(drop),
            b"recover" => db.recover_keyspaces().map(drop),
            b"close" => db.close(),
            b"read" => {
                let own = db.get("from within").map(drop);
                own.and_then(|()| keyspace.lock().unwrap().as_ref().unwrap().get("k").map(drop))
            }
            _ => db.drop_keyspace("space"),
        };
        let error = outcome.expect_err("it is refused");
        assert!(error.to_string().contains("must not use the database"), "{error}");
        Ok([value.unwrap_or_default(), operand].concat())
    });
    let space = merging(&db, "space", operator);
    *handle.lock().unwrap() = Some(space.clone());
    db.delete_range("x"..).unwrap();
    let waiting = ["delete a range", "sweep", "check", "list", "recover", "close", "read"];
    for operand in ["write", "flush", "make", "sync", "drop"].into_iter().chain(waiting) {
        space.merge("k", operand).unwrap();
        let mut batch = WriteBatch::new();
        batch.delete_range("y"..);
        batch.merge_in(&space, "b", operand);
        db.write(batch).unwrap();
    }
    assert_eq!(text(&space, "k"), text(&space, "b"));
    assert!(!db.contains_key("from within").unwrap());
    assert_eq!(db.keyspaces().unwrap(), ["space"]);
    db.sweep().unwrap();
    handle.lock().unwrap().take();
    inside.lock().unwrap().take();
    assert_eq!(space.merge("k", "write").unwrap_err().kind(), ErrorKind::MergeFailed);
}

/// Must catch a merge into what is due, and one that leaves the deadline of what it stands on.
pub fn merges_take_what_is_due_for_absent(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("merging and expiry", engine));
    let clock = std::sync::Arc::new(ManualClock::default());
    let db = open_at(&machine, &clock);
    let options = KeyspaceOptions {
        expiry: Some(Expiry::After(10 * SECOND)),
        merge: Some(MergeOperator::append()),
        ..KeyspaceOptions::default()
    };
    let space = db.keyspace_with("space", options).unwrap();
    space.merge("k", "a").unwrap();
    clock.advance(6 * SECOND);
    space.merge("k", "b").unwrap();
    clock.advance(6 * SECOND);
    assert_eq!(text(&space, "k").unwrap(), "ab");
    let mut batch = WriteBatch::new();
    batch.merge_in(&space, "k", "c");
    batch.put_in_with_ttl(&space, "due", "gone", Duration::ZERO);
    batch.merge_in(&space, "due", "d");
    db.write(batch).unwrap();
    assert_eq!((text(&space, "k").unwrap(), text(&space, "due").unwrap()), ("abc".into(), "d".into()));
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        space.put("tx", "read").unwrap();
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let transaction = db.transaction_with(options);
        let savepoint = transaction.savepoint();
        transaction.keyspace(&space).unwrap().merge("k", "rolled back").unwrap();
        transaction.rollback_to(savepoint).unwrap();
        transaction.keyspace(&space).unwrap().merge("tx", "+").unwrap();
        clock.advance(10 * SECOND);
        let refused = transaction.commit().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "what it stands on has come to be due");
        assert_eq!(text(&space, "tx"), None);
    }
    let mut batch = WriteBatch::new();
    batch.merge_in(&space, "k", "e");
    batch.merge_in(&space, "new", "n");
    db.write(batch).unwrap();
    assert_eq!((text(&space, "k").unwrap(), text(&space, "due")), ("e".into(), None));
    db.keyspace_with(
        "space",
        KeyspaceOptions { expiry: Some(Expiry::After(SECOND)), ..KeyspaceOptions::default() },
    )
    .unwrap();
    drop((space, db));
    let db = open_at(&machine, &clock);
    let space = db.keyspace("space").unwrap();
    assert_eq!((space.merge_operator(), space.expiry()), (Some("append"), Some(Expiry::After(SECOND))));
    space.merge("k", "f").unwrap();
    assert_eq!(text(&space, "k").unwrap(), "ef");
    clock.advance(SECOND);
    assert_eq!(text(&space, "k"), None);
    assert_clean(&db);
}
