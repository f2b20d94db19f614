//! What is peculiar to engines that keep everything in persistent memory.

use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, ErrorKind, Options, WriteBatch};
use terrace_pmem::{Granularity, Media};

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean, engines_in_memory, get};

/// A record must be durable before it is named, so two is the least that a put can have; a delete names nothing.
#[test]
fn a_put_has_two_drains_and_a_delete_one() {
    for engine in engines_in_memory().map(Engine::of) {
        let mut setup = Setup::roomy(&engine, Granularity::CacheLine);
        let options = |mut o: Options| {
            (o.sptree.leaf_entries, o.turbo.initial_buckets) = (64, 64);
            o
        };
        setup.name = "drains";
        let machine = Machine::new(&setup);
        let db = machine.open_with(options(machine.options())).unwrap();
        let drains = || db.stats().pm.traffic.drains;
        for key_bytes in [4, 8, 24] {
            let key = |i: u8| vec![i; key_bytes];
            // Slabs and shards that the first need have drains of their own.
            (0..40).for_each(|i| db.put(&key(i), &[1; 20]).unwrap());
            let start = drains();
            (0..40).for_each(|i| db.put(&key(i), &[2; 20]).unwrap());
            let puts = drains() - start;
            let start = drains();
            (0..10).for_each(|i| db.delete(&key(i)).unwrap());
            (20..30).for_each(|i| assert!(!db.put_if_absent(&key(i), b"").unwrap()));
            let deletes = drains() - start;
            let told = format!("{:?}, keys of {key_bytes} bytes", engine.kind);
            assert!((80..=84).contains(&puts), "{puts} drains of 40 puts: {told}");
            assert_eq!(deletes, 10, "{told}");
        }
    }
}

#[test]
fn an_ordinary_file_is_no_place_for_them() {
    for engine in engines_in_memory().map(Engine::of) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let options = Options { engine: engine.kind, ..Options::default() };
        let error = Db::open(&path, options.clone()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("emulated"), "{error}");
        assert!(!path.exists());
        assert_eq!(Db::open(&path, options).map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

/// Single writes go on beside batches and snapshots: a snapshot holds all of each batch or nothing of it, and every
/// write that had ended when it was taken.
#[test]
fn snapshots_cut_between_writers() {
    for engine in engines_in_memory().map(Engine::of) {
        let machine = Machine::new(&Setup::tiny("cuts", &engine).threaded(2));
        let db = machine.open().unwrap();
        let number = |value: &[u8]| u32::from_be_bytes(value[..4].try_into().unwrap());
        (0..8u8).for_each(|key| db.put(&[b'b', key], &0u32.to_be_bytes()).unwrap());
        db.put(b"s", &0u32.to_be_bytes()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let batches = scope.spawn(|| {
                for n in 1..400u32 {
                    let mut batch = WriteBatch::new();
                    (0..8u8).for_each(|key| batch.put(&[b'b', key], &n.to_be_bytes()));
                    db.write(batch).unwrap();
                }
            });
            let singles = scope.spawn(|| (1..2000u32).for_each(|n| db.put(b"s", &n.to_be_bytes()).unwrap()));
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let before = number(&db.get(b"s").unwrap().unwrap());
                    let snapshot = db.snapshot();
                    let single = number(&get(&snapshot, b"s").unwrap());
                    assert!(single >= before, "{single} in a snapshot taken after {before}");
                    let batch: Vec<u32> =
                        (0..8u8).map(|key| number(&get(&snapshot, &[b'b', key]).unwrap())).collect();
                    assert!(batch.iter().all(|n| *n == batch[0]), "{batch:?}");
                    assert_eq!(snapshot.all().len(), 9);
                    assert_eq!(number(&get(&snapshot, b"s").unwrap()), single);
                    // Without a snapshot: what is seen of a batch later is not older.
                    let first = number(&db.get(&[b'b', 7]).unwrap().unwrap());
                    let second = number(&db.get(&[b'b', 0]).unwrap().unwrap());
                    assert!(second >= first, "{second} of a batch after {first}");
                }
            });
            batches.join().unwrap();
            singles.join().unwrap();
            done.store(true, Ordering::Relaxed);
        });
        assert_clean(&db);
    }
}

/// Versions that were kept for snapshots of a process that died are nobody's, and so are the deletions over them.
#[test]
fn what_a_dead_process_kept_for_snapshots_goes() {
    for engine in engines_in_memory().map(Engine::of) {
        let machine = Machine::new(&Setup::tiny("dead", &engine).threaded(1));
        let db = machine.open().unwrap();
        let key = |i: u32| i.to_be_bytes();
        (0..100).for_each(|i| db.put(&key(i), &[1; 300]).unwrap());
        let snapshot = db.snapshot();
        (0..100).for_each(|i| db.put(&key(i), &[2; 300]).unwrap());
        let later = db.snapshot();
        (0..50).for_each(|i| db.delete(&key(i)).unwrap());
        let killed = machine.kill();
        drop((snapshot, later, db));
        let db = killed.open().unwrap();
        assert_eq!(db.all().len(), 50);
        let before = db.snapshot();
        (40..60).for_each(|i| db.put(&key(i), &[3; 300]).unwrap());
        assert_eq!((get(&before, &key(45)), get(&before, &key(55))), (None, Some(vec![2; 300])));
        drop(before);
        db.compact_range(..).unwrap();
        assert_clean(&db);
        let stats = db.stats();
        assert_eq!((stats.pm.chains, stats.counts.index_keys), (0, 60));
    }
}

/// A batch for which the index has no room on the way has not happened.
#[test]
fn a_batch_that_does_not_fit_is_taken_back() {
    for engine in engines_in_memory().map(Engine::of) {
        for pm_bytes in [600 << 10, 650 << 10, 700 << 10] {
            let setup = Setup::tiny("tight", &engine);
            let machine = Machine::new(&setup);
            let options = Options { pm_bytes, ..machine.options() };
            let db = machine.open_with(options.clone()).unwrap();
            let mut map = Map::new();
            let mut refused = false;
            for round in 0..400u32 {
                let (mut batch, mut next) = (WriteBatch::new(), map.clone());
                for i in 0..40u32 {
                    let key = (round * 20 + i).wrapping_mul(0x9e37_79b1).to_be_bytes().repeat(3);
                    if i % 10 == 9 {
                        batch.delete(&key);
                        next.remove(&key);
                    } else {
                        batch.put(&key, &round.to_be_bytes());
                        next.insert(key, round.to_be_bytes().to_vec());
                    }
                }
                match db.write(batch) {
                    Ok(()) => map = next,
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::PoolFull, "{e}");
                        refused = true;
                        break;
                    }
                }
            }
            assert!(refused, "{:?} in {pm_bytes} bytes", engine.kind);
            assert!(db.all().into_iter().eq(map.clone()));
            assert_clean(&db);
            let killed = machine.kill();
            let db = killed.open_with(options).unwrap();
            assert!(db.all().into_iter().eq(map.clone()));
            assert_clean(&db);
        }
    }
}

/// What a write replaces is damaged: the write was durable and seen, and its caller was told that it had failed.
#[test]
fn a_write_over_damage_has_happened() {
    let value = |i: u8| [b"a value that is to be found in the pool ", &[i; 8][..]].concat();
    type Write = fn(&Db, &[u8]) -> terrace::Result<()>;
    let writes: [(&str, Write); 4] = [
        ("a put", |db, key| db.put(key, b"after")),
        ("a conditional put", |db, key| db.update_if_exists(key, b"after").map(|done| assert!(done))),
        ("a batch", |db, key| {
            let mut batch = WriteBatch::new();
            [key, b"another"].iter().for_each(|key| batch.put(key, b"after"));
            db.write(batch)
        }),
        ("a batch of one key", |db, key| {
            let mut batch = WriteBatch::new();
            (0..2).for_each(|_| batch.put(key, b"after"));
            db.write(batch)
        }),
    ];
    for engine in engines_in_memory().map(Engine::of) {
        for (i, (what, write)) in (0u8..).zip(writes) {
            let machine = Machine::new(&Setup::tiny("over damage", &engine));
            let db = machine.open().unwrap();
            db.put(b"key", b"before").unwrap();
            let snapshot = db.snapshot();
            db.put(b"key", &value(i)).unwrap();
            drop(snapshot);
            spoil(&machine, &value(i));
            assert_eq!(db.get(b"key").unwrap_err().kind(), ErrorKind::Corruption);
            write(&db, b"key").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(db.get(b"key").unwrap().unwrap(), "after", "{what}");
            assert_eq!(machine.kill().open().unwrap().get(b"key").unwrap().unwrap(), "after", "{what}");
        }
    }
}

/// Flips a bit of the only place in the pool where `bytes` are.
fn spoil(machine: &Machine, bytes: &[u8]) {
    let media = machine.world().media();
    // SAFETY: the mapping is as long as this and stays while `media` does; nobody else is at work in this test.
    let all = unsafe { std::slice::from_raw_parts_mut(media.base(), media.len() as usize) };
    let at: Vec<usize> = all.windows(bytes.len()).enumerate().filter(|w| w.1 == bytes).map(|w| w.0).collect();
    assert_eq!(at.len(), 1, "in one place");
    all[at[0] + bytes.len() - 1] ^= 4;
}

#[test]
fn options_go_by_name() {
    let mut options = Options::default();
    for (name, value) in [
        ("turbo.shards", "64"),
        ("turbo.initial_buckets", "2"),
        ("turbo.probing_scope", "8"),
        ("sptree.buffered", "true"),
        ("sptree.filter_bits", "2"),
        ("sptree.log_bytes", "4096"),
        ("sptree.leaf_entries", "8"),
    ] {
        options.set(name, value).unwrap();
        assert!(options.set(name, "many").is_err());
    }
    assert_eq!((options.turbo.shards, options.sptree.filter_bits, options.sptree.buffered), (64, 2, true));
    assert!(options.set("turbo.shard", "1").is_err());
}
