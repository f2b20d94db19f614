//! `compare_and_swap` and `fetch_update`.

use terrace::{Db, TransactionOptions, WriteOptions};
use terrace_pmem::Granularity;

use crate::harness::{Engine, Machine, Setup, assert_clean, setups};

/// Increments of all threads together, `TERRACE_INCREMENTS` if that says otherwise.
const INCREMENTS: u64 = 2000;

const THREADS: u64 = 4;

fn increments() -> u64 {
    std::env::var("TERRACE_INCREMENTS").ok().map_or(INCREMENTS, |text| text.parse().expect("a number"))
}

pub fn swaps_are_by_value(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        // A value of every size that an engine treats differently.
        for len in [0, 1, 100, 400, 5000] {
            let (one, two) = (vec![1; len], vec![2; len + 1]);
            let swap = |expected: Option<&[u8]>, new: Option<&[u8]>| {
                db.compare_and_swap("k", expected, new).unwrap()
            };
            let current = |expected: Option<&[u8]>| swap(expected, Some(b"wrong")).unwrap_err().current;
            assert_eq!(current(Some(b"")), None);
            swap(None, Some(&one)).unwrap();
            assert_eq!(current(None).unwrap(), one);
            assert_eq!(current(Some(&two)).unwrap(), one);
            swap(Some(&one), Some(&two)).unwrap();
            db.flush().unwrap();
            assert_eq!(current(Some(&one)).unwrap(), two);
            swap(Some(&two), Some(&two)).unwrap();
            let snapshot = db.snapshot();
            swap(Some(&two), Some(&one)).unwrap();
            assert_eq!(
                (db.get("k").unwrap().unwrap(), snapshot.get("k").unwrap().unwrap()),
                (one.clone().into(), two.into())
            );
            swap(Some(&one), None).unwrap();
            assert_eq!(current(Some(&one)), None);
            swap(None, None).unwrap();
            assert!(!db.contains_key("k").unwrap(), "under {}", setup.name);
        }
        assert_clean(&db);
    }
}

pub fn an_update_sees_what_it_replaces(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("updates", engine));
    let db = machine.open().unwrap();
    let append = |current: Option<&[u8]>| Some([current.unwrap_or_default(), b"."].concat());
    assert_eq!(db.fetch_update("k", append).unwrap(), None);
    assert_eq!(db.fetch_update_with("k", append, WriteOptions::SYNC).unwrap().unwrap(), ".");
    let puts = db.stats().counts.puts;
    assert_eq!(db.fetch_update("k", |current| current.map(<[u8]>::to_vec)).unwrap().unwrap(), "..");
    assert_eq!(db.stats().counts.puts, puts, "what changes nothing writes nothing");
    // Another is faster, twice.
    let mut calls = 0;
    let before = db.fetch_update("k", |current| {
        calls += 1;
        if calls < 3 {
            db.put("k", calls.to_string()).unwrap();
        }
        current.map(|current| [current, b"!"].concat())
    });
    assert_eq!((before.unwrap().unwrap(), calls), ("2".into(), 3));
    assert_eq!(db.get("k").unwrap().unwrap(), "2!");
    assert_eq!(db.fetch_update("k", |_| None::<Vec<u8>>).unwrap().unwrap(), "2!");
    assert!(!db.contains_key("k").unwrap());
    assert!(db.fetch_update(vec![b'k'; 65_536], append).is_err());
    assert!(db.compare_and_swap(vec![b'k'; 65_536], None, Some(b"")).is_err());
}

/// Counters that many count up at once, each way in which that can be done: none is lost.
pub fn no_increment_is_lost(engine: &Engine) {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    // Small ones, and such as `split` keeps on the SSD.
    let next = |current: Option<&[u8]>, len: usize| (current.map_or(0, number) + 1).to_le_bytes().repeat(len);
    let by_swaps = |db: &Db, len| loop {
        let current = db.get("swaps").unwrap();
        let new = next(current.as_deref(), len);
        if db.compare_and_swap("swaps", current.as_deref(), Some(&new)).unwrap().is_ok() {
            return;
        }
    };
    for (len, setup) in
        [(1, Setup::roomy(engine, Granularity::CacheLine)), (40, Setup::tiny("large", engine))]
    {
        let machine = Machine::new(&setup.threaded(2));
        let db = machine.open().unwrap();
        let each = increments() / THREADS / if len == 1 { 1 } else { 8 };
        let options = TransactionOptions { attempts: u32::MAX, ..TransactionOptions::default() };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for i in 0..each {
                        db.fetch_update("updates", |current| Some(next(current, len))).unwrap();
                        by_swaps(&db, len);
                        if i % 4 == 0 {
                            db.transact_with(options, |tx| {
                                let new = next(tx.get("transactions")?.as_deref(), len);
                                tx.put("transactions", new)
                            })
                            .unwrap();
                        }
                    }
                });
            }
        });
        let found = ["updates", "swaps", "transactions"].map(|key| number(&db.get(key).unwrap().unwrap()));
        assert_eq!(found, [THREADS * each, THREADS * each, THREADS * each.div_ceil(4)]);
        assert_clean(&db);
    }
}
