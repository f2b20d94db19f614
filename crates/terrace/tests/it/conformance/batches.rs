//! Batches: in order, whole, or not at all.

use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Bytes, WriteBatch};
use terrace_base::ErrorKind;

use crate::harness::{Contents, Engine, Machine, Setup, assert_clean, setups};

pub fn a_batch_is_applied_in_order(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let mut batch = WriteBatch::new();
        batch.put(b"a", b"1");
        batch.put(b"a", b"2");
        batch.delete(b"b");
        batch.put(b"b", b"3");
        batch.put(b"c", b"4");
        batch.delete(b"c");
        batch.put(b"", b"");
        db.write(batch.clone()).unwrap();
        let expected = vec![(vec![], vec![]), (b"a".to_vec(), b"2".to_vec()), (b"b".to_vec(), b"3".to_vec())];
        assert_eq!(db.all(), expected);
        db.flush().unwrap();
        assert_eq!(db.all(), expected);
        db.write(batch).unwrap();
        drop(db);
        assert_eq!(machine.kill().open().unwrap().all(), expected);
    }
}

pub fn a_spoilt_batch_does_nothing(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("spoilt", engine));
    let db = machine.open().unwrap();
    let mut batch = WriteBatch::new();
    batch.put(b"before", b"1");
    batch.put(&vec![0; 65_536], b"2");
    batch.put(b"after", b"3");
    assert_eq!(db.write(batch).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(db.all().is_empty());
}

fn owned((key, value): (Bytes, Bytes)) -> (Vec<u8>, Vec<u8>) {
    (key.to_vec(), value.to_vec())
}

/// Writers put one number under many keys at once; nobody ever sees two numbers.
pub fn batches_are_whole_to_readers(engine: &Engine) {
    const KEYS: u8 = 12;
    for setup in setups(engine) {
        let machine = Machine::new(&setup.threaded(2));
        let db = machine.open().unwrap();
        let write = |n: u64| {
            let mut batch = WriteBatch::new();
            for key in 0..KEYS {
                batch.put(&[key; 30], &n.to_be_bytes().repeat(2));
            }
            db.write(batch).unwrap();
        };
        write(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (1..3u64)
                .map(|writer| scope.spawn(move || (1..150).for_each(|n| write(n * 10 + writer))))
                .collect();
            for reader in 0..2 {
                let (db, done) = (&db, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let all = match db.iter() {
                            Ok(iter) if reader == 1 => iter.rev().map(|item| owned(item.unwrap())).collect(),
                            _ => db.all(),
                        };
                        assert_eq!(all.len(), KEYS as usize);
                        assert!(all.iter().all(|(_, value)| *value == all[0].1), "a batch was seen in part");
                    }
                });
            }
            writers.into_iter().for_each(|w| w.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        assert_clean(&db);
    }
}

/// A batch larger than a memtable is whole all the same, and survives a death right after it.
pub fn large_batches_cross_memtables(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        for round in 0..4u8 {
            let mut batch = WriteBatch::new();
            for key in 0..200u32 {
                batch.put(&key.to_be_bytes(), &[round; 150]);
            }
            db.write(batch).unwrap();
        }
        drop(db);
        let again = machine.kill().open().unwrap();
        let all = again.all();
        assert_eq!(all.len(), 200, "under {}", setup.name);
        assert!(all.iter().all(|(_, value)| *value == [3; 150]));
        assert_clean(&again);
    }
}
