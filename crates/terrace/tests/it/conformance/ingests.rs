//! Ingests of sorted streams.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use terrace::{
    Db, EngineKind, Error, ErrorKind, Expiry, Ingest, KeyspaceOptions, MAX_KEY_BYTES, Result, Snapshot,
};
use terrace_disk::{FsEvent, Observer};

use crate::harness::{Engine, Machine, Setup, assert_clean, setups};

const KEYS: u32 = 600;

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn pass(ingest: &mut Ingest<'_>, keys: impl Iterator<Item = u32>, value: &[u8]) -> Result<()> {
    keys.into_iter().try_for_each(|i| ingest.put(key(i), value))
}

/// How many of the keys have `value`.
fn with(db: &Db, value: &[u8]) -> usize {
    seen_by(&db.snapshot(), value)
}

/// How many of them have it for a snapshot.
fn seen_by(snapshot: &Snapshot, value: &[u8]) -> usize {
    (0..KEYS).filter(|i| snapshot.get(key(*i)).unwrap().as_deref() == Some(value)).count()
}

/// Must catch a stream of which a reader sees a part, one that does not take the place of what was there, one that a
/// snapshot sees that is older, and one that is lost.
pub fn a_stream_is_there_as_a_whole(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup.threaded(2));
        let db = machine.open().unwrap();
        for i in (0..KEYS).step_by(3) {
            db.put(key(i), b"before").unwrap();
        }
        let (before, is_over) = (db.snapshot(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let there = with(&db, b"stream");
                    let all = !engine.kind.ingests_atomically() || there == 0 || there == KEYS as usize;
                    assert!(all, "{there} of {KEYS}");
                }
            });
            scope.spawn(|| (0..KEYS).for_each(|i| db.put(key(KEYS + i), b"beside").unwrap()));
            let done = db.ingest(|ingest| pass(ingest, 0..KEYS, b"stream"));
            is_over.store(true, Ordering::Release);
            let done = done.unwrap();
            assert_eq!((done.entries, done.bytes), (KEYS.into(), u64::from(KEYS) * 10));
        });
        assert_eq!(with(&db, b"stream"), KEYS as usize);
        assert_eq!(before.get(key(3)).unwrap().as_deref(), Some(&b"before"[..]));
        assert!(before.get(key(4)).unwrap().is_none());
        drop(before);
        db.put(key(5), b"after").unwrap();
        db.delete(key(6)).unwrap();
        let db = match engine.kind.ingests_atomically() {
            // It is durable, whatever the log is.
            true => {
                drop(db);
                machine.open().unwrap()
            }
            false => db,
        };
        for _ in 0..2 {
            assert_eq!(with(&db, b"stream"), KEYS as usize - 2);
            assert_eq!(db.get(key(5)).unwrap().as_deref(), Some(&b"after"[..]));
            assert!(!db.contains_key(key(6)).unwrap());
            assert_eq!(db.get(key(2 * KEYS - 1)).unwrap().as_deref(), Some(&b"beside"[..]));
            assert_clean(&db);
            db.compact_range(..).unwrap();
        }
    }
}

fn hidden_files(dir: &Path, machine: &Machine) -> usize {
    let names = machine.env().fs.list(dir).unwrap();
    names.iter().filter(|path| path.extension().is_some_and(|end| end == "new")).count()
}

/// Takes a snapshot at every event of the disk, and counts what it sees of a stream.
struct Witness {
    db: Arc<Db>,
    seen: Mutex<Vec<(Snapshot, usize)>>,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Witness")
    }
}

impl Observer for Witness {
    fn before(&self, _: FsEvent<'_>) {
        let snapshot = self.db.snapshot();
        let there = seen_by(&snapshot, b"stream");
        self.seen.lock().unwrap().push((snapshot, there));
    }
}

/// Must catch a stream that is visible before all of its tables are there: a snapshot of then would come to see it.
pub fn nobody_sees_a_stream_before_all_of_it_is_there(engine: &Engine) {
    if !engine.kind.ingests_atomically() {
        return;
    }
    let machine = Machine::new(&Setup::tiny("unseen", engine));
    let db = Arc::new(machine.open().unwrap());
    for round in 0..2 {
        (round..KEYS).step_by(3).for_each(|i| db.put(key(i), [b'b'; 60]).unwrap());
        db.compact_range(..).unwrap();
    }
    assert!(db.stats().buckets.buckets > 1 || engine.kind != EngineKind::Wip);
    let witness = Arc::new(Witness { db: db.clone(), seen: Mutex::default() });
    machine.fs().observe(Some(witness.clone()));
    let done = db.ingest(|ingest| pass(ingest, 0..KEYS, b"stream"));
    machine.fs().observe(None);
    assert_eq!(done.unwrap().entries, KEYS.into());
    let seen = std::mem::take(&mut *witness.seen.lock().unwrap());
    for (snapshot, there) in &seen {
        assert!([0, KEYS as usize].contains(there), "{there} of {KEYS}");
        assert_eq!(seen_by(snapshot, b"stream"), *there, "it has changed");
    }
    let before = seen.iter().filter(|(_, there)| *there == 0).count();
    assert!(before > 10 && before < seen.len(), "{before} of {} were before it", seen.len());
    drop(seen);
    assert_clean(&db);
}

/// Must catch entries, or files, that are left of a stream that was not taken to its end.
pub fn a_stream_that_fails_leaves_nothing(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("failing", engine));
    let db = machine.open().unwrap();
    db.put(key(1), b"before").unwrap();
    for passed in [0, 1, KEYS] {
        let outcome = db.ingest(|ingest| {
            pass(ingest, 0..passed, b"stream")?;
            Err(Error::invalid("the source fails"))
        });
        assert!(outcome.unwrap_err().to_string().contains("the source fails"));
        let unheeded = db.ingest(|ingest| {
            pass(ingest, 0..passed, b"stream")?;
            assert!(ingest.put(key(0), b"again").is_err() || passed == 0);
            let _ = ingest.put(key(KEYS), vec![0; MAX_KEY_BYTES]);
            Ok(())
        });
        assert_eq!(unheeded.is_ok(), passed == 0, "an error is not passed over");
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = db.ingest(|ingest| {
                pass(ingest, 0..passed, b"stream").unwrap();
                panic!("the source panics")
            });
        }));
        assert!(panic.is_err());
        assert_eq!(with(&db, b"stream"), 0, "a stream that is smaller than a batch is written at its end");
    }
    assert_eq!(db.get(key(1)).unwrap().as_deref(), Some(&b"before"[..]));
    assert_eq!(hidden_files(machine.dir(), &machine), 0);
    assert_clean(&db);
    assert_eq!(db.ingest(|_| Ok(())).unwrap().entries, 0);
    assert_eq!(db.ingest(|ingest| pass(ingest, 0..KEYS, b"stream")).unwrap().entries, KEYS.into());
    assert_eq!(with(&db, b"stream"), KEYS as usize);
    db.close().unwrap();
    assert_eq!(db.ingest(|ingest| pass(ingest, 0..1, b"")).unwrap_err().kind(), ErrorKind::Closed);
}

/// Must catch a stream that is overtaken by another one and lost, or shown with a number that others have passed.
pub fn streams_meet(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("meeting", engine));
    let db = machine.open().unwrap();
    let mut held = Vec::new();
    let outer = db.ingest(|ingest| {
        pass(ingest, 0..KEYS / 2, b"outer")?;
        db.ingest(|inner| {
            db.ingest(|innermost| pass(innermost, 0..KEYS, b"innermost"))?;
            assert_eq!(with(&db, b"innermost"), KEYS as usize);
            pass(inner, 0..KEYS, b"inner")
        })?;
        assert_eq!(with(&db, b"inner"), KEYS as usize);
        db.put(key(0), b"put")?;
        db.put(key(KEYS - 1), b"put")?;
        held.push(db.snapshot());
        Ok(())
    });
    assert_eq!(outer.unwrap().entries, u64::from(KEYS / 2));
    let seen = held[0].get(key(0)).unwrap();
    assert_eq!(seen.as_deref(), Some(&b"put"[..]), "it was held before the stream was there");
    for _ in 0..2 {
        assert_eq!(with(&db, b"outer"), KEYS as usize / 2);
        assert_eq!(with(&db, b"inner"), KEYS as usize / 2 - 1);
        assert_eq!(db.get(key(KEYS - 1)).unwrap().as_deref(), Some(&b"put"[..]));
        assert_clean(&db);
        held.clear();
        db.compact_range(..).unwrap();
    }
    let db = Arc::new(db);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let db = db.clone();
            scope.spawn(move || {
                for _ in 0..5 {
                    let value = thread.to_be_bytes();
                    db.ingest(|ingest| pass(ingest, 0..KEYS, &value)).unwrap();
                }
            });
        }
    });
    let counts: Vec<usize> = (0..4u32).map(|thread| with(&db, &thread.to_be_bytes())).collect();
    assert_eq!(counts.iter().sum::<usize>(), KEYS as usize, "{counts:?}");
    if engine.kind.ingests_atomically() {
        assert!(counts.contains(&(KEYS as usize)), "one is over all others: {counts:?}");
    }
    assert_clean(&db);
}

/// Must catch a source that waits for itself, for a close, a check or a writer that waits for it.
pub fn a_source_may_do_anything(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("anything", engine).threaded(2));
    let db = machine.open().unwrap();
    let done = db.ingest(|ingest| {
        pass(ingest, 0..KEYS / 2, b"stream")?;
        db.put(b"\xffput", b"meanwhile")?;
        db.flush()?;
        assert_clean(&db);
        std::thread::scope(|scope| {
            let checking = scope.spawn(|| assert_clean(&db));
            db.put(key(1), b"meanwhile").unwrap();
            checking.join().unwrap();
        });
        db.compact_range(..)?;
        db.sweep()?;
        db.transact(|tx| tx.put(key(2), b"meanwhile"))?;
        pass(ingest, KEYS / 2..KEYS, b"stream")
    });
    assert_eq!(done.unwrap().entries, KEYS.into());
    assert_eq!(with(&db, b"stream"), KEYS as usize, "what is put meanwhile is replaced");
    let closed = db.ingest(|ingest| {
        pass(ingest, 0..KEYS, b"closed")?;
        std::thread::scope(|scope| {
            scope.spawn(|| db.close().unwrap());
            while !matches!(db.put(b"beside", b"").map_err(|e| e.kind()), Err(ErrorKind::Closed)) {}
        });
        ingest.put(key(KEYS), b"closed").and(ingest.put(vec![1; 100], vec![0; 2 << 20]))
    });
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Closed);
    drop(db);
    let db = machine.open().unwrap();
    assert_eq!(hidden_files(machine.dir(), &machine), 0);
    assert_clean(&db);
}

/// Must catch a snapshot that is taken while a stream appears and then misses what the stream replaces.
pub fn snapshots_stand_beside_streams(engine: &Engine) {
    const FEW: u32 = 40;
    let machine = Machine::new(&Setup::tiny("beside", engine).threaded(3));
    let db = machine.open().unwrap();
    let put_all = |value: &[u8]| db.ingest(|ingest| pass(ingest, 0..FEW, value)).map(drop);
    put_all(b"0").unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let snapshot = db.snapshot();
                    for _ in 0..3 {
                        let read =
                            |i| snapshot.get(key(i)).unwrap().expect("the key was put, and never deleted");
                        let first = read(0);
                        let all = (1..FEW).all(|i| read(i) == first);
                        assert!(
                            all || !engine.kind.ingests_atomically(),
                            "a snapshot sees a part of a stream"
                        );
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                db.put(b"\xff", b"and flushed").unwrap();
                db.compact_range(..).unwrap();
            }
        });
        let rounds = (1..80u32).try_for_each(|round| put_all(&round.to_be_bytes()));
        is_over.store(true, Ordering::Release);
        rounds.unwrap();
    });
    assert_clean(&db);
}

/// Must catch files that are left of a process that was killed and stay, take room for good, or are in the way of
/// another stream.
pub fn what_is_left_hidden_is_in_nobodys_way(engine: &Engine) {
    if !engine.kind.ingests_atomically() {
        return;
    }
    let machine = Machine::new(&Setup::tiny("left", engine));
    let db = machine.open().unwrap();
    db.put(key(1), b"there").unwrap();
    drop(db);
    let fs = machine.env().fs;
    let leave = |number: u64| {
        let mut file = fs.create(&machine.dir().join(format!("{number:06}.sst.new"))).unwrap();
        file.append(&[7; 500]).unwrap();
        file.sync().unwrap();
    };
    (1..60).for_each(leave);
    let disk = machine.fs();
    disk.set_capacity(Some(disk.used_bytes()));
    let db = machine.open().unwrap();
    assert_eq!(hidden_files(machine.dir(), &machine), 0, "a full disk keeps nobody from removing them");
    disk.set_capacity(None);
    // Were one still there, its number would be met again.
    (1..60).for_each(leave);
    drop(db);
    let db = machine.open().unwrap();
    (1..60).for_each(leave);
    db.ingest(|ingest| pass(ingest, 0..KEYS, b"stream")).unwrap();
    assert_eq!(with(&db, b"stream"), KEYS as usize);
    assert_clean(&db);
}

/// Must catch a stream that is refused for want of room and keeps what it took of it.
pub fn a_refused_stream_gives_its_room_back(engine: &Engine) {
    if !engine.kind.ingests_atomically() {
        return;
    }
    let (mut refused, mut taken) = (0, 0);
    for slack in (0..80_000).step_by(400) {
        let machine = Machine::new(&Setup::tiny("no room", engine));
        let db = machine.open().unwrap();
        db.put(key(1), b"before").unwrap();
        db.flush().unwrap();
        let disk = machine.fs();
        let used = disk.used_bytes();
        disk.set_capacity(Some(used + slack));
        let stream = || db.ingest(|ingest| (0..60).try_for_each(|i| ingest.put(key(i), [7; 1000])));
        if stream().is_ok() {
            taken += 1;
            continue;
        }
        refused += 1;
        // With a little more of it.
        disk.set_capacity(Some(used + slack + 10_000));
        let _ = db.put(key(1), b"again");
        assert_eq!((db.entries().unwrap().count(), hidden_files(machine.dir(), &machine)), (1, 0));
        let names = machine.env().fs.list(machine.dir()).unwrap();
        assert!(names.iter().all(|path| path.extension().is_none_or(|end| end != "ingest")), "{names:?}");
        let now = disk.used_bytes();
        assert!(now < used + 12_000, "{used} bytes before, and {now} after it was refused, with {slack}");
        disk.set_capacity(None);
        stream().unwrap();
        assert_eq!(db.entries().unwrap().count(), 60);
        assert_clean(&db);
    }
    assert!(refused > 50 && taken > 10, "{refused} were refused and {taken} taken");
}

/// Must catch keys out of order, and those that have no place of their own.
pub fn what_is_not_a_stream_is_refused(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("refused", engine));
    let db = machine.open().unwrap();
    let space = db.keyspace("space").unwrap();
    let refused = |keys: &[&[u8]]| {
        let outcome = db.ingest(|ingest| keys.iter().try_for_each(|key| ingest.put(key, b"v")));
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        error.to_string()
    };
    assert!(refused(&[b"b", b"a"]).contains("does not come after"));
    assert!(refused(&[b"b", b"b"]).contains("does not come after"));
    assert!(refused(&[b"", b""]).contains("does not come after"));
    assert!(refused(&[&[b'k'; MAX_KEY_BYTES + 1]]).contains("over the limit"));
    assert!(db.ingest(|ingest| ingest.put_with_ttl(b"a", b"", Duration::ZERO)).is_err());
    assert_eq!(db.entries().unwrap().count(), 0);
    let done = space.ingest(|ingest| {
        ingest.put(b"", b"empty")?;
        ingest.put(b"\xff\xff", b"high")
    });
    assert_eq!(done.unwrap().entries, 2);
    assert_eq!(space.get(b"\xff\xff").unwrap().as_deref(), Some(&b"high"[..]));
    assert_eq!((space.stats().puts, db.entries().unwrap().count()), (2, 0));
    let dropped = space.ingest(|ingest| {
        ingest.put(b"k", b"v")?;
        db.drop_keyspace("space")
    });
    assert_eq!(dropped.unwrap_err().kind(), ErrorKind::NoKeyspace);
    assert!(db.keyspace("space").unwrap().get(b"k").unwrap().is_none());
    db.sweep().unwrap();
    assert_clean(&db);
    drop(space);
    db.close().unwrap();
    drop(db);
    let options = terrace::Options { read_only: true, ..machine.options() };
    let db = Db::open_in(machine.env(), machine.dir(), options).unwrap();
    assert_eq!(db.ingest(|_| Ok(())).unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// Must catch a key of the default keyspace that lies where another keyspace does.
pub fn high_keys_are_ingested(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("high", engine));
    let db = machine.open().unwrap();
    let keys: [&[u8]; 4] = [b"k", b"\xff", b"\xff\x00a", b"\xff\xff"];
    let all = |db: &Db, value: &[u8]| {
        db.ingest(|ingest| keys.iter().try_for_each(|key| ingest.put(key, value))).map(drop)
    };
    all(&db, b"alone").unwrap();
    let there = |value: &[u8]| keys.iter().all(|key| db.get(key).unwrap().as_deref() == Some(value));
    assert!(there(b"alone"));
    let moved = db.ingest(|ingest| {
        ingest.put(b"\xff", b"moved")?;
        db.keyspace("first").map(drop)
    });
    assert!(moved.unwrap_err().to_string().contains("ingest again"));
    assert!(there(b"alone"));
    all(&db, b"beside").unwrap();
    assert!(there(b"beside"));
    assert_eq!(db.keyspace("first").unwrap().entries().unwrap().count(), 0);
    assert_clean(&db);
}

/// Must catch an entry that lives longer, or shorter, than its keyspace or its put says.
pub fn entries_that_are_ingested_expire(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("expiring", engine));
    let db = machine.open().unwrap();
    let hour = Expiry::After(Duration::from_secs(3600));
    let options = KeyspaceOptions { expiry: Some(hour), ..KeyspaceOptions::default() };
    let space = db.keyspace_with("space", options).unwrap();
    space
        .ingest(|ingest| {
            ingest.put("a", "lives")?;
            ingest.put_with_ttl("b", "is due", Duration::ZERO)?;
            ingest.put_with_ttl("c", "lives", Duration::from_secs(60))
        })
        .unwrap();
    let there = || ["a", "b", "c"].map(|key| space.contains_key(key).unwrap());
    assert_eq!(there(), [true, false, true]);
    assert!(space.expires_at("a").unwrap() > space.expires_at("c").unwrap());
    db.compact_range(..).unwrap();
    assert_eq!(there(), [true, false, true]);
    assert_clean(&db);
}
