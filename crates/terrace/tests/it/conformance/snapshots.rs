//! Snapshots stand still, whatever is written, flushed, compacted.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Bytes, Db};
use terrace_base::exec::{Executor, Inline, Job, Lane};

use crate::harness::{Contents, Engine, Machine, Setup, assert_clean, get, setups};

pub fn a_snapshot_stands_still(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let key = |i: u32| i.to_be_bytes();
        (0..200).for_each(|i| db.put(&key(i), format!("old {i}").as_bytes()).unwrap());
        let before = db.snapshot();
        (0..200).step_by(2).for_each(|i| db.put(&key(i), b"new").unwrap());
        (0..200).step_by(5).for_each(|i| db.delete(&key(i)).unwrap());
        (200..300).for_each(|i| db.put(&key(i), b"later").unwrap());
        for round in 0..4 {
            match round {
                1 => db.flush().unwrap(),
                2 => db.compact_range(..).unwrap(),
                3 => {
                    (0..300).for_each(|i| db.put(&key(i), b"newest").unwrap());
                    db.compact_range(..).unwrap();
                }
                _ => (),
            }
            for i in 0..300 {
                let expected = (i < 200).then(|| format!("old {i}").into_bytes());
                assert_eq!(get(&before, &key(i)), expected, "{i} in round {round} of {}", setup.name);
                assert_eq!(before.contains_key(&key(i)).unwrap(), i < 200);
            }
            assert_eq!(before.all().len(), 200);
            let half = (Bound::Included(key(150).to_vec()), Bound::Unbounded);
            assert_eq!(before.within(&half).len(), 50);
            let keys: [&[u8]; 2] = [&key(7), &key(250)];
            let values = before.multi_get(&keys).unwrap();
            assert!(values[0].is_some() && values[1].is_none());
        }
        assert_clean(&db);
    }
}

/// One snapshot after every write to one key, flushed and compacted in between.
pub fn snapshots_at_every_step_stand_still(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let mut held = vec![(db.snapshot(), None)];
        for n in 0..60u8 {
            let value = (n % 7 != 3).then(|| vec![n; 50 + usize::from(n)]);
            match &value {
                Some(value) => db.put(b"k", value).unwrap(),
                None => db.delete(b"k").unwrap(),
            }
            held.push((db.snapshot(), value));
            match n % 10 {
                4 => db.flush().unwrap(),
                9 => db.compact_range(..).unwrap(),
                _ => (),
            }
            if n % 4 == 0 {
                held.remove(usize::from(n) / 4 % held.len());
            }
            for (snapshot, value) in &held {
                assert_eq!(get(snapshot, b"k"), *value, "after write {n} of {}", setup.name);
                assert_eq!(snapshot.all().len(), usize::from(value.is_some()));
            }
        }
        assert_clean(&db);
        held.truncate(1);
        db.compact_range(..).unwrap();
        assert_eq!(get(&held[0].0, b"k"), held[0].1);
        assert_clean(&db);
    }
}

/// What only a snapshot needed is gone after it: from the disk, or from the pool where everything is in that.
pub fn old_versions_go_with_their_snapshot(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() {
        return old_versions_leave_the_pool(engine);
    }
    if engine.kind == terrace::EngineKind::Split {
        // They are in persistent memory and on the SSD: `split.rs` has both.
        return;
    }
    let machine = Machine::new(&Setup::tiny("old versions", engine));
    let db = machine.open().unwrap();
    let fill = |value: u8| (0..200u32).for_each(|i| db.put(&i.to_be_bytes(), &[value; 100]).unwrap());
    fill(0);
    let snapshot = db.snapshot();
    fill(1);
    db.compact_range(..).unwrap();
    // Entries of all runs, wherever they lie, and the bytes that they take there.
    let held = || {
        let (ssd, lists) = (db.stats().ssd, db.stats().lists);
        (ssd.table_entries + lists.entries, ssd.table_bytes + lists.live_bytes)
    };
    let (entries, bytes) = held();
    assert!(entries >= 400, "the snapshot needs 200 of {entries}");
    assert_eq!(get(&snapshot, &7u32.to_be_bytes()).unwrap(), [0; 100]);
    drop(snapshot);
    db.compact_range(..).unwrap();
    let (left, left_bytes) = held();
    let live = db.stats().ssd.live_entries + db.stats().lists.entries;
    assert_eq!((left, live), (200, 200));
    assert!(left_bytes < bytes * 2 / 3, "{left_bytes} bytes of {bytes}");
    assert_clean(&db);
}

/// Readers take snapshots, read them twice and compare, while others write and background work runs.
pub fn snapshots_hold_under_threads(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup.threaded(2));
        let db = machine.open().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u32)
                .map(|writer| {
                    let db = &db;
                    scope.spawn(move || {
                        for n in 0..600u32 {
                            let key = (n * 7 % 50).to_be_bytes();
                            match n % 9 {
                                0 => db.delete(&key).unwrap(),
                                _ => db
                                    .put(&key, &[writer, n].map(u32::to_be_bytes).concat().repeat(4))
                                    .unwrap(),
                            }
                            if n % 200 == 199 {
                                db.compact_range(..).unwrap();
                            }
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                let (db, done) = (&db, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let snapshot = db.snapshot();
                        let first = snapshot.all();
                        let second = match snapshot.iter() {
                            Ok(iter) => {
                                let owned = |(k, v): (Bytes, Bytes)| (k.to_vec(), v.to_vec());
                                let mut all: Vec<_> = iter.rev().map(|item| owned(item.unwrap())).collect();
                                all.reverse();
                                all
                            }
                            Err(_) => snapshot.all(),
                        };
                        assert_eq!(first, second);
                        for i in 0..50u32 {
                            let expected =
                                first.iter().find(|(k, _)| k[..] == i.to_be_bytes()).map(|(_, v)| v.clone());
                            assert_eq!(get(&snapshot, &i.to_be_bytes()), expected);
                        }
                    }
                });
            }
            writers.into_iter().for_each(|w| w.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        assert_clean(&db);
    }
}

/// Background work that is done when the test says so.
#[derive(Debug, Default)]
struct Held {
    queue: Inline,
    released: AtomicBool,
}

impl Executor for Held {
    fn spawn_in(&self, lane: Lane, job: Job) {
        self.queue.spawn_in(lane, job);
    }

    fn help(&self) -> bool {
        self.released.load(Ordering::Relaxed) && self.queue.help()
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        self.queue.join(first, second);
    }
}

/// A put, its deletion and a later put of one key lie in three tables, and the two puts are merged without the
/// deletion between them: a writer that sees the key deleted goes on to.
pub fn a_deletion_holds_when_the_puts_around_it_are_merged(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("merged around", engine));
    let held = Arc::new(Held::default());
    let db = Db::open_in(machine.env_on(held.clone()), machine.dir(), machine.options()).unwrap();
    let fill = |prefix: u8| (0..12u8).for_each(|i| db.put(&[b'a', prefix, i], &[prefix; 20]).unwrap());
    // Half of what is in the tables of the two puts is there for passing snapshots alone, in that of the
    // deletion nothing.
    db.put(b"k", b"old").unwrap();
    fill(0);
    let passing = db.snapshot();
    fill(0);
    let sees_old = db.snapshot();
    db.flush().unwrap();
    db.delete(b"k").unwrap();
    fill(1);
    let sees_none = db.snapshot();
    db.flush().unwrap();
    db.put(b"k", b"new").unwrap();
    fill(2);
    let passing = [passing, db.snapshot()];
    fill(2);
    db.flush().unwrap();
    drop(passing);
    assert_eq!(get(&sees_old, b"k").unwrap(), b"old");
    held.released.store(true, Ordering::Relaxed);
    while held.help() {}
    assert_eq!((get(&sees_old, b"k").unwrap(), get(&sees_none, b"k")), (b"old".to_vec(), None));
    drop(sees_old);
    let mut more = true;
    while more {
        more = held.help();
        assert_eq!(get(&sees_none, b"k"), None);
        assert_eq!(sees_none.within(&(Bound::Included(b"k".to_vec()), Bound::Unbounded)), []);
        assert_eq!(db.get(b"k").unwrap().unwrap(), "new");
    }
    assert_clean(&db);
}

fn old_versions_leave_the_pool(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("old versions", engine));
    let db = machine.open().unwrap();
    let fill = |value: u8| (0..200u32).for_each(|i| db.put(&i.to_be_bytes(), &[value; 1000]).unwrap());
    fill(0);
    let one = db.stats().pm.used;
    let snapshot = db.snapshot();
    (1..5).for_each(fill);
    (0..50u32).for_each(|i| db.delete(&i.to_be_bytes()).unwrap());
    let both = db.stats().pm;
    assert!(both.used > one * 3 / 2 && both.used < one * 3, "{one} bytes before, {} with both", both.used);
    assert!(both.chains >= 200, "{}", both.chains);
    assert_eq!(get(&snapshot, &7u32.to_be_bytes()).unwrap(), [0; 1000]);
    assert_clean(&db);
    drop(snapshot);
    db.compact_range(..).unwrap();
    let after = db.stats();
    assert_eq!((after.pm.chains, after.counts.index_keys), (0, 150));
    assert!(after.pm.used < one + (64 << 10), "{one} bytes before, {} after", after.pm.used);
    assert_clean(&db);
}
