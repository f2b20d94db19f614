//! Deletions of ranges: what readers, writers and snapshots see of them, before and after the keys are removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, ErrorKind, Options, WriteBatch};
use terrace_base::exec::ThreadPool;

use super::keyspaces::owned;
use crate::harness::{Contents, Deferred, Engine, Machine, Setup, assert_clean, setups};

/// A database whose deleted ranges are swept when the test says so.
struct Bed {
    machine: Machine,
    tidying: Arc<Deferred>,
    db: Db,
}

impl Bed {
    fn on(machine: Machine) -> Bed {
        let tidying = Arc::new(Deferred::default());
        let db = Db::open_in(machine.env_on(tidying.clone()), machine.dir(), machine.options()).unwrap();
        Bed { machine, tidying, db }
    }

    fn new(engine: &Engine) -> Bed {
        Bed::on(Machine::new(&Setup::tiny("deferred", engine)))
    }

    /// The same after a close.
    fn reopened(self) -> Bed {
        self.db.close().unwrap();
        let Bed { machine, db, .. } = self;
        drop(db);
        Bed::on(machine)
    }

    /// The same after its process was killed.
    fn killed(self) -> Bed {
        let Bed { machine, db, .. } = self;
        let machine = machine.kill();
        drop(db);
        Bed::on(machine)
    }

    fn tidy_some(&self, jobs: usize) {
        for _ in 0..jobs {
            self.tidying.tidy();
        }
    }

    fn tidy(&self) {
        while self.tidying.tidy() {}
    }
}

fn key(number: u32) -> String {
    format!("{:03}", number)
}

/// Fills a database with `count` keys, each with itself as its value.
fn fill(db: &Db, count: u32) {
    (0..count).for_each(|i| db.put(key(i), key(i)).unwrap());
}

/// Asserts what each way to read says of keys `0..count`.
#[track_caller]
fn assert_there(db: &Db, count: u32, is_there: impl Fn(u32) -> bool) {
    let wanted: Vec<String> = (0..count).filter(|i| is_there(*i)).map(key).collect();
    let found: Vec<Vec<u8>> = db.all().into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, wanted.iter().map(|key| key.as_bytes().to_vec()).collect::<Vec<_>>());
    if let Ok(iter) = db.iter() {
        let back: Vec<Vec<u8>> = owned(iter.rev()).into_iter().map(|(key, _)| key).collect();
        assert!(back.iter().rev().eq(&found), "{back:02x?}");
    }
    let keys: Vec<String> = (0..count).map(key).collect();
    for ((i, key), found) in (0..).zip(&keys).zip(db.multi_get(&keys).unwrap()) {
        let wanted = is_there(i).then(|| key.clone().into_bytes());
        assert_eq!(found.map(|value| value.to_vec()), wanted, "{key}");
        assert_eq!(db.get(key).unwrap().map(|value| value.to_vec()), wanted, "{key}");
        assert_eq!(db.get_with(key, <[u8]>::to_vec).unwrap(), wanted, "{key}");
        assert_eq!(db.contains_key(key).unwrap(), wanted.is_some(), "{key}");
    }
}

/// Must catch a reader that sees a key again, in any state of the removal, and a snapshot that loses one.
pub fn a_deleted_range_is_gone_for_every_reader(engine: &Engine) {
    const COUNT: u32 = 600;
    for setup in setups(engine) {
        let bed = Bed::on(Machine::new(&setup));
        fill(&bed.db, COUNT);
        let before = bed.db.snapshot();
        bed.db.delete_range("100".."300").unwrap();
        bed.db.delete_range(String::from("500")..).unwrap();
        let is_left = |i: u32| !(100..300).contains(&i) && i < 500;
        let after = bed.db.snapshot();
        bed.db.delete_range(..="099").unwrap();
        let is_there = |i: u32| is_left(i) && i >= 100;
        for turn in 0..4 {
            assert_there(&bed.db, COUNT, is_there);
            assert_eq!(before.all().len(), COUNT as usize, "turn {turn} under {}", setup.name);
            let wanted = (0..COUNT).filter(|i| is_left(*i)).count();
            assert_eq!(after.all().len(), wanted, "turn {turn} under {}", setup.name);
            match turn {
                0 => bed.db.flush().unwrap(),
                1 => bed.tidy_some(2),
                _ => bed.tidy(),
            }
        }
        bed.db.compact_range(..).unwrap();
        assert_eq!((before.get("299").unwrap().unwrap(), after.get("299").unwrap()), ("299".into(), None));
        drop((before, after));
        assert_eq!(bed.db.stats().counts.range_deletes, 3);
        let bed = bed.reopened();
        assert_there(&bed.db, COUNT, is_there);
        bed.tidy();
        assert_there(&bed.db, COUNT, is_there);
        assert_clean(&bed.db);
    }
}

/// Must catch a deletion that is forgotten, or that reaches further, after an end of the process.
pub fn what_is_put_over_a_deleted_range_stays(engine: &Engine) {
    const COUNT: u32 = 400;
    for swept in 0..4 {
        let mut bed = Bed::new(engine);
        fill(&bed.db, COUNT);
        bed.db.delete_range(..).unwrap();
        let is_put = |i: u32| i % 7 == 3;
        (0..COUNT).filter(|i| is_put(*i)).for_each(|i| bed.db.put(key(i), key(i)).unwrap());
        for turn in 0..3 {
            assert_there(&bed.db, COUNT, is_put);
            if swept > turn {
                bed.tidy_some(swept);
            }
            bed = if turn == 1 { bed.killed() } else { bed.reopened() };
        }
        bed.tidy();
        assert_there(&bed.db, COUNT, is_put);
        bed.db.compact_range(..).unwrap();
        let bed = bed.killed();
        assert_there(&bed.db, COUNT, is_put);
        assert_clean(&bed.db);
    }
}

/// Must catch operations of a batch that are taken in another order than they were added in.
pub fn a_batch_deletes_ranges_in_its_order(engine: &Engine) {
    let bed = Bed::new(engine);
    let space = bed.db.keyspace("space").unwrap();
    fill(&bed.db, 20);
    (0..20).for_each(|i| space.put(key(i), "").unwrap());
    let mut batch = WriteBatch::new();
    batch.put("004", "goes");
    batch.put("012", "012");
    batch.delete_range("000".."010");
    batch.put("005", "005");
    batch.delete_range_in(&space, "003".."018");
    batch.put_in(&space, "007", "new");
    batch.delete_range("005".."006");
    batch.put("006", "006");
    batch.put("007", "goes");
    batch.delete("007");
    assert_eq!(batch.len(), 10);
    bed.db.write(batch).unwrap();
    for _ in 0..2 {
        assert_there(&bed.db, 20, |i| i >= 10 || i == 6);
        let mut left: Vec<Vec<u8>> =
            space.entries().unwrap().map(|entry| entry.unwrap().0.to_vec()).collect();
        left.sort();
        let wanted = [0, 1, 2, 7, 18, 19].map(|i| key(i).into_bytes());
        assert_eq!(left, wanted);
        assert_eq!(space.get("007").unwrap().unwrap(), "new");
        bed.tidy();
    }
    space.clear().unwrap();
    assert_eq!((space.entries().unwrap().count(), bed.db.keyspaces().unwrap().len()), (0, 1));
    assert_there(&bed.db, 20, |i| i >= 10 || i == 6);
    let mut nothing = WriteBatch::new();
    nothing.delete_range("9".."1");
    bed.db.write(nothing).unwrap();
    bed.db.drop_keyspace("space").unwrap();
    assert_eq!(space.clear().unwrap_err().kind(), ErrorKind::NoKeyspace);
    bed.tidy();
    assert_clean(&bed.db);
}

/// Must catch a condition that is asked of a version which no reader sees.
pub fn conditions_see_that_a_range_is_gone(engine: &Engine) {
    let bed = Bed::new(engine);
    fill(&bed.db, 50);
    let large = "x".repeat(20_000);
    bed.db.put("030", &large).unwrap();
    let tx = bed.db.transaction();
    assert!(tx.get("010").unwrap().is_some() && tx.get("049").unwrap().is_some());
    tx.put("a", "b").unwrap();
    bed.db.delete_range("000".."040").unwrap();
    assert_eq!(tx.commit().unwrap_err().kind(), ErrorKind::Conflict);
    let db = &bed.db;
    assert!(!db.update_if_exists("001", "no").unwrap() && !db.update_if_exists("030", &large).unwrap());
    assert!(db.put_if_absent("002", "2").unwrap() && !db.put_if_absent("002", "no").unwrap());
    assert!(db.put_if_absent("030", &large).unwrap() && db.update_if_exists("030", "30").unwrap());
    let mismatch = db.compare_and_swap("003", Some(b"003"), Some(b"no")).unwrap().unwrap_err();
    assert_eq!(mismatch.current, None);
    db.compare_and_swap("003", None, Some(b"3")).unwrap().unwrap();
    assert_eq!(db.fetch_update("004", |old| old.is_none().then_some("4")).unwrap(), None);
    db.transact(|tx| {
        assert_eq!(tx.get("005")?, None);
        tx.put("005", "5")
    })
    .unwrap();
    for _ in 0..2 {
        let wanted = ["002", "003", "004", "005", "030"];
        let found: Vec<_> = bed.db.all().into_iter().map(|(key, _)| key).take(5).collect();
        assert!(found.iter().eq(wanted.iter().map(|key| key.as_bytes())), "{found:?}");
        bed.tidy();
    }
    assert_clean(&bed.db);
}

/// Must catch what goes wrong where there are more than are kept at once.
pub fn many_ranges_are_deleted_at_once(engine: &Engine) {
    let mut bed = Bed::new(engine);
    fill(&bed.db, 400);
    for i in 0..150 {
        bed.db.delete_range(key(2 * i)..=key(2 * i)).unwrap();
        bed.db.put(key(2 * i + 1), key(2 * i + 1)).unwrap();
    }
    assert_there(&bed.db, 400, |i| i >= 300 || i % 2 == 1);
    bed = bed.killed();
    assert_there(&bed.db, 400, |i| i >= 300 || i % 2 == 1);
    bed.tidy();
    assert_there(&bed.db, 400, |i| i >= 300 || i % 2 == 1);
    bed.db.delete_range(..).unwrap();
    bed.db.sweep().unwrap();
    assert_there(&bed.reopened().db, 400, |_| false);
}

/// Must catch a reader to whom a batch is not whole that deletes a range and puts keys in it and elsewhere, and a put
/// beside it that is lost.
pub fn a_range_and_what_replaces_it_are_one(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("threads", engine).threaded(2));
    let executor = Arc::new(ThreadPool::new("sweeps", 2));
    let db = Db::open_in(machine.env_on(executor), machine.dir(), machine.options()).unwrap();
    let stop = AtomicBool::new(false);
    let write = |round: u32| {
        let mut batch = WriteBatch::new();
        batch.delete_range("a".."b");
        (0..8).for_each(|i| batch.put(format!("a{} {i}", round % 5), round.to_be_bytes()));
        batch.put("z", round.to_be_bytes());
        db.write(batch).unwrap();
    };
    write(0);
    let round_in = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let least = round_in(&db.get("z").unwrap().unwrap());
                    for i in 0..5 {
                        if let Some(found) = db.get(format!("a{i} 3")).unwrap() {
                            assert!(round_in(&found) >= least, "of before the round that was seen");
                        }
                    }
                    let snapshot = db.snapshot();
                    let round = round_in(&snapshot.get("z").unwrap().unwrap());
                    let all = snapshot.all();
                    let of_range: Vec<_> = all.iter().filter(|(key, _)| key.starts_with(b"a")).collect();
                    assert_eq!(of_range.len(), 8, "{of_range:?}");
                    assert!(of_range.iter().all(|(_, value)| round_in(value) == round), "{of_range:?}");
                }
            });
        }
        // Keys that nobody deletes, and keys that are put again and again in a range that is.
        scope.spawn(|| {
            for i in 0u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let own = format!("m{:02}", i % 40);
                db.put(&own, i.to_be_bytes()).unwrap();
                db.delete_range("n".."o").unwrap();
                db.put("n", i.to_be_bytes()).unwrap();
                assert_eq!(db.get(&own).unwrap().unwrap()[..], i.to_be_bytes());
                assert_eq!(db.get("n").unwrap().unwrap()[..], i.to_be_bytes());
            }
        });
        (1..150).for_each(write);
        stop.store(true, Ordering::Relaxed);
    });
    db.sweep().unwrap();
    assert_eq!(db.all().iter().filter(|(key, _)| key.starts_with(b"a")).count(), 8);
    assert_clean(&db);
}

/// Must catch a deletion that happens although it is refused, and one that cannot be tried again.
pub fn a_refused_deletion_deletes_nothing(engine: &Engine) {
    let bed = Bed::new(engine);
    fill(&bed.db, 50);
    let too_long = vec![b'x'; 65_536];
    let refused = bed.db.delete_range(&too_long[..]..).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let mut batch = WriteBatch::new();
    batch.delete_range(..);
    batch.put(&too_long, "");
    assert_eq!(bed.db.write(batch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_there(&bed.db, 50, |_| true);
    bed.db.delete_range("040"..).unwrap();
    let bed = bed.reopened();
    let Bed { machine, db, .. } = bed;
    db.close().unwrap();
    assert_eq!(db.delete_range(..).unwrap_err().kind(), ErrorKind::Closed);
    drop(db);
    let mut options = machine.options();
    options.read_only = true;
    let db = machine.open_with(options).unwrap();
    assert_eq!(db.delete_range(..).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_there(&db, 50, |i| i < 40);
}

/// Must catch a tombstone that is taken for swept where its keys could not be removed for a lack of room.
pub fn what_is_deleted_stays_gone_in_a_full_pool(engine: &Engine) {
    for setup in setups(engine) {
        let (machine, tidying) = (Machine::with_memory(&setup, 1 << 20), Arc::new(Deferred::default()));
        let options = || {
            let mut options = Options { pm_bytes: 1 << 20, ..machine.options() };
            options.slm.memtable_bytes = options.slm.memtable_bytes.min(64 << 10);
            options
        };
        let open = || Db::open_in(machine.env_on(tidying.clone()), machine.dir(), options()).unwrap();
        let db = open();
        let space = db.keyspace("space").unwrap();
        let put = |i: u32| space.put(i.to_be_bytes(), [i as u8; 30]);
        let Some(full) = (0..9_000).find(|i| put(*i).is_err_and(|e| e.is_out_of_space())) else { continue };
        // Room for the tombstone, and not for what the snapshot needs of everything else.
        (0..full / 8).for_each(|i| drop(space.delete(i.to_be_bytes())));
        let snapshot = db.snapshot();
        let seen = || snapshot.keyspace(&space).unwrap().entries().unwrap().count();
        let before = seen();
        if space.clear().is_err() {
            continue;
        }
        while tidying.tidy() {}
        drop(db.sweep());
        assert_eq!(space.entries().unwrap().count(), 0, "under {}", setup.name);
        assert_eq!(seen(), before, "the snapshot keeps what it sees");
        drop((snapshot, space));
        while tidying.tidy() {}
        drop(db.sweep());
        assert_eq!(db.keyspace("space").unwrap().entries().unwrap().count(), 0, "under {}", setup.name);
        db.close().unwrap();
        drop(db);
        let db = open();
        assert_eq!(db.keyspace("space").unwrap().entries().unwrap().count(), 0, "under {}", setup.name);
        assert_clean(&db);
    }
}
