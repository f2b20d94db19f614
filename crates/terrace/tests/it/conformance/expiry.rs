//! Entries that expire.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use terrace::{Db, Env, ErrorKind, Expiry, Keyspace, KeyspaceOptions, Transaction, WriteBatch};
use terrace_base::clock::ManualClock;

use super::keyspaces::owned;
use crate::harness::{Deferred, Engine, Machine, Setup, assert_clean, setups};

pub const SECOND: Duration = Duration::from_secs(1);

pub fn open_at(machine: &Machine, clock: &Arc<ManualClock>) -> Db {
    let env = Env { clock: clock.clone(), ..machine.env() };
    Db::open_in(env, machine.dir(), machine.options()).unwrap()
}

pub fn expiring(db: &Db, name: &str, expiry: Expiry) -> Keyspace {
    db.keyspace_with(name, KeyspaceOptions { expiry: Some(expiry), ..KeyspaceOptions::default() }).unwrap()
}

pub fn begin(engine: &Engine) -> (Machine, Arc<ManualClock>, Db) {
    let (machine, clock) = (Machine::new(&Setup::tiny("expiry", engine)), Arc::new(ManualClock::default()));
    let db = open_at(&machine, &clock);
    (machine, clock, db)
}

/// What every way of reading has of the keys `a`, `b` and `c`, which must be the same.
fn seen(db: &Db, space: &Keyspace) -> String {
    let keys = ["a", "b", "c"];
    let text = |value: Option<terrace::Bytes>| {
        value.map_or("-".to_owned(), |value| String::from_utf8(value.to_vec()).unwrap())
    };
    let join =
        |values: Vec<Option<terrace::Bytes>>| values.into_iter().map(text).collect::<Vec<_>>().join(" ");
    let by_get = join(keys.iter().map(|key| space.get(key).unwrap()).collect());
    let snapshot = db.snapshot().keyspace(space).unwrap();
    let others = [
        join(keys.iter().map(|key| space.get_with(key, terrace::Bytes::copy_from_slice).unwrap()).collect()),
        join(space.multi_get(keys).unwrap()),
        join(snapshot.multi_get(keys).unwrap()),
        join(keys.iter().map(|key| snapshot.get(key).unwrap()).collect()),
        db.transact(|tx| tx.keyspace(space)?.multi_get(keys)).map(join).unwrap(),
    ];
    others.iter().for_each(|other| assert_eq!(*other, by_get));
    let there: Vec<&str> = by_get.split(' ').filter(|value| *value != "-").collect();
    keys.iter().zip(by_get.split(' ')).for_each(|(key, value)| {
        assert_eq!(space.contains_key(key).unwrap(), value != "-");
        assert_eq!(space.explain(key).unwrap().value_bytes.is_some(), value != "-");
    });
    assert_eq!(space.entries().unwrap().count(), there.len());
    if let Ok(iter) = space.iter() {
        let values: Vec<Vec<u8>> = owned(iter).into_iter().map(|(_, value)| value).collect();
        assert!(values.iter().map(|value| &value[..]).eq(there.iter().map(|value| value.as_bytes())));
        let back: Vec<Vec<u8>> =
            owned(space.iter().unwrap().rev()).into_iter().map(|(_, value)| value).collect();
        assert!(back.iter().rev().eq(&values));
        let of_transaction = db.transact(|tx| Ok(tx.keyspace(space)?.iter()?.count())).unwrap();
        assert_eq!(of_transaction, there.len());
        assert_eq!(
            space.range("b"..).unwrap().count(),
            there.len() - usize::from(space.contains_key("a").unwrap())
        );
        let by_prefix: usize = keys.iter().map(|key| space.prefix(key).unwrap().count()).sum();
        assert_eq!(by_prefix, there.len());
        let (mut forward, mut backward) = (space.iter().unwrap(), space.iter().unwrap());
        forward.seek("b");
        backward.seek_for_prev("b");
        assert_eq!(forward.count(), space.range("b"..).unwrap().count());
        assert_eq!(backward.rev().count(), space.range(..="b").unwrap().count());
    }
    by_get
}

/// Must catch a way of reading that shows a deadline, or what is due, in any place where entries lie.
pub fn entries_are_gone_when_they_are_due(engine: &Engine) {
    for setup in setups(engine) {
        let (machine, clock) = (Machine::new(&setup), Arc::new(ManualClock::default()));
        let db = open_at(&machine, &clock);
        let space = expiring(&db, "space", Expiry::After(10 * SECOND));
        space.put("a", "").unwrap();
        space.put_with_ttl("b", "two", 5 * SECOND).unwrap();
        let mut batch = WriteBatch::new();
        batch.put_in_with_ttl(&space, "c", "three", 20 * SECOND);
        batch.put("b", "of the default one");
        db.write(batch).unwrap();
        let snapshot = db.snapshot();
        assert_eq!(seen(&db, &space), " two three");
        db.flush().unwrap();
        assert_eq!(seen(&db, &space), " two three");
        clock.advance(5 * SECOND);
        assert_eq!(seen(&db, &space), " - three");
        db.compact_range(..).unwrap();
        space.compact_range(..).unwrap();
        assert_eq!(seen(&db, &space), " - three");
        clock.advance(5 * SECOND);
        assert_eq!(seen(&db, &space), "- - three");
        assert_eq!(snapshot.keyspace(&space).unwrap().get("a").unwrap(), None, "a snapshot keeps nothing");
        drop((snapshot, space));
        db.close().unwrap();
        drop(db);
        let db = open_at(&machine, &clock);
        let space = db.keyspace("space").unwrap();
        assert_eq!(seen(&db, &space), "- - three");
        clock.advance(10 * SECOND);
        assert_eq!(seen(&db, &space), "- - -");
        space.put("b", "again").unwrap();
        assert_eq!(seen(&db, &space), "- again -");
        assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"of the default one"[..]));
        assert_clean(&db);
    }
}

pub fn what_is_put_says_how_long_it_lives(engine: &Engine) {
    let (_machine, clock, db) = begin(engine);
    clock.advance(100 * SECOND);
    let (plain, space) = (db.keyspace("plain").unwrap(), expiring(&db, "space", Expiry::ByEntry));
    assert_eq!((plain.expiry(), space.expiry()), (None, Some(Expiry::ByEntry)));
    let refused = plain.put_with_ttl("k", "v", SECOND).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let mut batch = WriteBatch::new();
    batch.put("kept", "out");
    batch.put_in_with_ttl(&plain, "k", "v", SECOND);
    assert_eq!(db.write(batch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let of_transaction = db.transact(|tx| tx.keyspace(&plain)?.put_with_ttl("k", "v", SECOND));
    assert_eq!(of_transaction.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(!db.contains_key("kept").unwrap() && !plain.contains_key("k").unwrap());
    let too_large = vec![0; terrace::MAX_VALUE_BYTES - 7];
    assert_eq!(space.put("k", too_large).unwrap_err().kind(), ErrorKind::InvalidArgument);

    space.put("for good", "1").unwrap();
    space.put_with_ttl("soon", "2", SECOND).unwrap();
    space.put_with_ttl("at once", "3", Duration::ZERO).unwrap();
    space.put_with_ttl("never", "4", Duration::MAX).unwrap();
    let at = |seconds: u64| Some(SystemTime::UNIX_EPOCH + seconds as u32 * SECOND);
    assert_eq!(space.expires_at("soon").unwrap(), at(101));
    assert_eq!((space.expires_at("for good").unwrap(), space.expires_at("none").unwrap()), (None, None));
    assert_eq!((space.expires_at("at once").unwrap(), space.expires_at("never").unwrap()), (None, None));
    plain.put_with_ttl("k", "v", Duration::MAX).unwrap();
    plain.delete("k").unwrap();
    let counted = space.stats().user_bytes;
    let mut batch = WriteBatch::new();
    batch.put_in(&space, "for good", "1");
    db.write(batch).unwrap();
    assert_eq!(space.stats().user_bytes - counted, 9, "of the key and the value, and not of the deadline");
    assert!(!space.contains_key("at once").unwrap() && space.contains_key("never").unwrap());
    // A put without a time to live takes it away.
    space.put("soon", "5").unwrap();
    clock.advance(1_000_000 * SECOND);
    assert!(space.contains_key("soon").unwrap() && space.contains_key("for good").unwrap());
    assert!(space.contains_key("never").unwrap());

    let tx = db.transaction();
    let own = tx.keyspace(&space).unwrap();
    own.put_with_ttl("brief", "6", SECOND).unwrap();
    own.put("long", "7").unwrap();
    assert_eq!(own.get("brief").unwrap().as_deref(), Some(&b"6"[..]));
    clock.advance(SECOND);
    assert_eq!((own.get("brief").unwrap(), own.contains_key("brief").unwrap()), (None, false));
    assert_eq!(own.multi_get(["brief", "long"]).unwrap(), [None, Some("7".into())]);
    if let Ok(iter) = own.iter() {
        assert_eq!(iter.map(|entry| entry.unwrap().0).filter(|key| key.starts_with(b"brief")).count(), 0);
    }
    tx.commit().unwrap();
    assert_eq!(space.multi_get(["brief", "long"]).unwrap(), [None, Some("7".into())]);
    assert_clean(&db);
}

/// Must catch an engine that judges a condition by what it has, and not by what readers see.
pub fn conditions_take_what_is_due_for_absent(engine: &Engine) {
    let (_machine, clock, db) = begin(engine);
    let space = expiring(&db, "space", Expiry::After(10 * SECOND));
    assert!(space.put_if_absent("k", "1").unwrap());
    assert!(!space.put_if_absent("k", "2").unwrap());
    assert!(space.update_if_exists("k", "3").unwrap());
    assert!(space.compare_and_swap("k", Some(b"3"), Some(b"4")).unwrap().is_ok());
    let mismatch = space.compare_and_swap("k", Some(b"3"), Some(b"5")).unwrap().unwrap_err();
    assert_eq!(mismatch.current.as_deref(), Some(&b"4"[..]));
    clock.advance(10 * SECOND);
    assert!(!space.update_if_exists("k", "6").unwrap());
    assert_eq!(space.compare_and_swap("k", Some(b"4"), None).unwrap().unwrap_err().current, None);
    assert!(space.put_if_absent("k", "7").unwrap());
    clock.advance(10 * SECOND);
    assert!(space.compare_and_swap("k", None, Some(b"8")).unwrap().is_ok());
    clock.advance(10 * SECOND);
    let old = space.fetch_update("k", |old| Some(old.map_or_else(|| b"9".to_vec(), <[u8]>::to_vec))).unwrap();
    assert_eq!((old, space.get("k").unwrap().as_deref()), (None, Some(&b"9"[..])));
    clock.advance(5 * SECOND);
    space.fetch_update("k", |old| old.map(<[u8]>::to_vec)).unwrap();
    clock.advance(9 * SECOND);
    assert!(space.contains_key("k").unwrap(), "what is written again lives longer");

    // What a transaction has read may be due when it commits.
    let tx = db.transaction();
    assert!(tx.keyspace(&space).unwrap().contains_key("k").unwrap());
    tx.put("seen", "yes").unwrap();
    clock.advance(10 * SECOND);
    assert_eq!(tx.commit().unwrap_err().kind(), ErrorKind::Conflict);
    let tx = db.transaction();
    assert_eq!(tx.keyspace(&space).unwrap().get("k").unwrap(), None);
    tx.keyspace(&space).unwrap().put("k", "10").unwrap();
    tx.commit().unwrap();
    assert_eq!(space.get("k").unwrap().as_deref(), Some(&b"10"[..]));
    assert_clean(&db);
}

/// Whichever calls a transaction reads by, what it was told first counts.
pub fn transactions_keep_what_they_have_read(engine: &Engine) {
    let (_machine, clock, db) = begin(engine);
    let space = expiring(&db, "space", Expiry::ByEntry);
    for is_put_again in [false, true] {
        let begun = || {
            space.put_with_ttl("k", "v", 10 * SECOND).unwrap();
            let tx = db.transaction();
            tx.put("seen", "yes").unwrap();
            tx
        };
        let go_on = || {
            clock.advance(10 * SECOND);
            if is_put_again {
                space.put_with_ttl("k", "other", 10 * SECOND).unwrap();
            }
        };
        let conflicts = |tx: Transaction| assert_eq!(tx.commit().unwrap_err().kind(), ErrorKind::Conflict);

        let tx = begun();
        assert_eq!(tx.keyspace(&space).unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
        go_on();
        let seen = tx.keyspace(&space).unwrap();
        assert!(seen.contains_key("k").unwrap());
        assert_eq!(seen.get("k").unwrap().as_deref(), Some(&b"v"[..]));
        assert_eq!(seen.multi_get(["k"]).unwrap(), [Some("v".into())]);
        conflicts(tx);

        for by_many in [false, true] {
            let tx = begun();
            assert!(tx.keyspace(&space).unwrap().contains_key("k").unwrap());
            go_on();
            let seen = tx.keyspace(&space).unwrap();
            let value =
                if by_many { seen.multi_get(["k"]).unwrap().remove(0) } else { seen.get("k").unwrap() };
            assert_eq!(value, None, "the snapshot's value is due");
            conflicts(tx);
        }
    }
    assert_clean(&db);
}

/// The keys that lie in the engine, whether readers see them or not.
fn stored(db: &Db) -> u64 {
    db.check().unwrap().keys
}

pub fn what_is_due_goes_from_the_media(engine: &Engine) {
    for way in ["sweep", "puts", "dropped"] {
        let (machine, clock, db) = begin(engine);
        let space = expiring(&db, "space", Expiry::After(10 * SECOND));
        let long = expiring(&db, "long", Expiry::ByEntry);
        for i in 0..3000u32 {
            space.put(i.to_be_bytes(), [7; 40]).unwrap();
        }
        long.put("k", "v").unwrap();
        let before = stored(&db);
        assert!(before >= 3001, "{before}");
        clock.advance(10 * SECOND);
        match way {
            "sweep" => {
                space.put(1u32.to_be_bytes(), "put again").unwrap();
                db.sweep().unwrap();
                assert_eq!(space.get(1u32.to_be_bytes()).unwrap().as_deref(), Some(&b"put again"[..]));
            }
            "puts" => {
                // As many as were put before a search begins by itself.
                (0..4096u32).for_each(|_| space.put(1u32.to_be_bytes(), "put again").unwrap());
            }
            _ => {
                drop(space);
                db.drop_keyspace("space").unwrap();
                db.sweep().unwrap();
            }
        }
        let after = stored(&db);
        assert!(after + 2999 <= before, "{way}: {after} of {before}");
        assert_eq!(long.get("k").unwrap().as_deref(), Some(&b"v"[..]));
        assert_clean(&db);
        drop((long, db));
        let db = open_at(&machine.kill(), &clock);
        assert_eq!(db.keyspace("long").unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
        assert_clean(&db);
    }
}

/// Must catch a full pool of what is due in which nothing is put any more.
pub fn what_is_due_makes_room(engine: &Engine) {
    for setup in setups(engine) {
        let (machine, clock) = (Machine::with_memory(&setup, 1 << 20), Arc::new(ManualClock::default()));
        let tidying = Arc::new(Deferred::default());
        let env = Env { clock: clock.clone(), ..machine.env_on(tidying.clone()) };
        let db = Db::open_in(env, machine.dir(), machine.options()).unwrap();
        let space = expiring(&db, "space", Expiry::After(100 * SECOND));
        let put = |i: u32| space.put(i.to_be_bytes(), [i as u8; 1000]);
        // Half as much again as a pool of this size takes by itself.
        let Some(refused) = (0..1500).find(|i| put(*i).is_err_and(|e| e.is_out_of_space())) else { continue };
        while tidying.tidy() {}
        clock.advance(100 * SECOND);
        let tries = 20;
        let done = (0..tries).filter(|i| {
            let is_done = put(refused + i).is_ok();
            while tidying.tidy() {}
            is_done
        });
        let done = done.count();
        // Where no deletion finds room, nothing does.
        assert!(
            done > 17 || space.delete(0u32.to_be_bytes()).is_err(),
            "{done} of {tries} under {}",
            setup.name
        );
        assert_clean(&db);
    }
}

/// Must catch keys of a database without keyspaces that are taken for those of a dated one, which would lie there.
pub fn keys_of_before_there_were_keyspaces_do_not_expire(engine: &Engine) {
    let (machine, clock, db) = begin(engine);
    let keys: [&[u8]; 3] = [b"\xff\xf3\x80\x00\x00\x01", b"\xff\xf3\x80\x00\x00\x01k", b"\xff\xf3\xff"];
    let values = [&[0; 8][..], &[0; 9], b"short"];
    let fill = |db: &Db| keys.iter().zip(values).for_each(|(key, value)| db.put(key, value).unwrap());
    fill(&db);
    clock.advance(10 * SECOND);
    db.sweep().unwrap();
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    let tx = db.transaction();
    tx.put(keys[0], "own").unwrap();
    let before = db.snapshot();
    let space = expiring(&db, "space", Expiry::After(10 * SECOND));
    space.put("k", "v").unwrap();
    assert_eq!(tx.get(keys[0]).unwrap().as_deref(), Some(&b"own"[..]));
    drop(tx);
    let wanted = |key: &[u8]| keys.iter().position(|other| *other == key).map(|at| values[at]);
    for key in keys {
        assert_eq!(before.get(key).unwrap().as_deref(), wanted(key), "{key:02x?}");
        assert_eq!(db.get(key).unwrap().as_deref(), wanted(key), "{key:02x?}");
    }
    assert_eq!(before.entries().unwrap().filter(|entry| entry.is_ok()).count(), 3);
    clock.advance(10 * SECOND);
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    db.sweep().unwrap();
    assert_eq!(before.multi_get(keys).unwrap().iter().flatten().count(), 3);
    assert_eq!(space.get("k").unwrap(), None);
    drop((before, space));
    db.close().unwrap();
    drop(db);
    let db = open_at(&machine, &clock);
    assert_eq!(db.entries().unwrap().map(Result::unwrap).count(), 3);
    for key in keys {
        assert_eq!(db.get(key).unwrap().as_deref(), wanted(key), "{key:02x?}");
    }
    assert_clean(&db);
}

pub fn times_to_live_are_kept(engine: &Engine) {
    let (machine, clock, db) = begin(engine);
    let plain = db.keyspace("plain").unwrap();
    let options = |expiry| KeyspaceOptions { expiry: Some(expiry), ..KeyspaceOptions::default() };
    let refused = db.keyspace_with("plain", options(Expiry::ByEntry)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let space = expiring(&db, "space", Expiry::After(10 * SECOND));
    space.put("a", "1").unwrap();
    let same = db.keyspace("space").unwrap();
    assert_eq!(same.expiry(), Some(Expiry::After(10 * SECOND)));
    // Another time is that of what is put from now on, through any handle.
    expiring(&db, "space", Expiry::After(30 * SECOND));
    assert_eq!(space.expiry(), Some(Expiry::After(30 * SECOND)));
    space.put("b", "2").unwrap();
    drop((plain, space, same));
    drop(db);
    let machine = machine.kill();
    let db = open_at(&machine, &clock);
    let space = db.keyspace("space").unwrap();
    assert_eq!(space.expiry(), Some(Expiry::After(30 * SECOND)));
    clock.advance(10 * SECOND);
    assert_eq!((space.get("a").unwrap(), space.contains_key("b").unwrap()), (None, true));
    expiring(&db, "space", Expiry::ByEntry);
    space.put("c", "3").unwrap();
    clock.advance(1000 * SECOND);
    assert!(space.contains_key("c").unwrap() && !space.contains_key("b").unwrap());
    assert_eq!(db.keyspace("plain").unwrap().expiry(), None);
    assert_clean(&db);
}
