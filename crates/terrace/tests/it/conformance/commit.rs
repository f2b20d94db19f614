//! What a write costs, and what readers see of it.

use std::sync::atomic::{AtomicBool, Ordering};

use terrace::WriteBatch;
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Setup, setups};

/// A put costs a fixed number of drains, and a batch of many no more.
pub fn drains_do_not_depend_on_the_size_of_a_group(engine: &Engine) {
    let Some(per_group) = engine.drains_per_group else { return };
    let machine = Machine::new(&Setup::roomy(engine, Granularity::CacheLine));
    let db = machine.open().unwrap();
    db.put(b"the first write makes the memtable", b"").unwrap();
    let drains = || db.stats().pm.traffic.drains;
    let groups = || db.stats().counts.commit_groups;
    let (start, first) = (drains(), groups());
    for i in 0..100u32 {
        db.put(&i.to_be_bytes(), &[1; 100]).unwrap();
    }
    assert_eq!((drains() - start, groups() - first), (100 * per_group, 100));
    for size in [1, 10, 500] {
        let mut batch = WriteBatch::new();
        for i in 0..size {
            batch.put(&[b"batch".as_slice(), &[i as u8, (i >> 8) as u8]].concat(), &[2; 200]);
        }
        let start = drains();
        db.write(batch).unwrap();
        assert_eq!(drains() - start, per_group, "for {size} operations");
    }
    let start = drains();
    db.get(&7u32.to_be_bytes()).unwrap();
    assert!(!db.put_if_absent(&7u32.to_be_bytes(), b"").unwrap());
    assert_eq!(drains(), start, "reading drains nothing");
}

/// However many write at once, each group is drained once, and none is lost.
pub fn writers_share_groups(engine: &Engine) {
    let machine = Machine::new(&Setup::roomy(engine, Granularity::CacheLine).threaded(1));
    let db = machine.open().unwrap();
    db.put(b"first", b"").unwrap();
    let start = db.stats();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let db = &db;
            scope.spawn(move || {
                (0..250u32).for_each(|i| db.put(&[thread, i].map(u32::to_be_bytes).concat(), b"v").unwrap());
            });
        }
    });
    let end = db.stats();
    assert_eq!(end.counts.committed_batches - start.counts.committed_batches, 1000);
    let groups = end.counts.commit_groups - start.counts.commit_groups;
    assert!((1..=1000).contains(&groups));
    if let Some(per_group) = engine.drains_per_group {
        assert_eq!(end.pm.traffic.drains - start.pm.traffic.drains, groups * per_group);
    }
    assert_eq!(db.all().len(), 1001);
}

/// One writer counts up under each key; a reader never sees a count fall, and a writer sees its own.
pub fn readers_see_their_own_writes_and_never_go_back(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup.threaded(2));
        let db = machine.open().unwrap();
        let done = AtomicBool::new(false);
        let count = |key: u8| {
            let value = db.get(&[key]).unwrap();
            value.map_or(0, |v| u64::from_be_bytes(v[..8].try_into().unwrap()))
        };
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u8)
                .map(|key| {
                    let (db, count) = (&db, &count);
                    scope.spawn(move || {
                        for n in 1..300u64 {
                            db.put(&[key], &n.to_be_bytes().repeat(8)).unwrap();
                            assert_eq!(count(key), n);
                        }
                    })
                })
                .collect();
            for key in 0..2u8 {
                let (done, count) = (&done, &count);
                scope.spawn(move || {
                    let mut last = 0;
                    while !done.load(Ordering::Relaxed) {
                        let now = count(key);
                        assert!(now >= last, "{now} after {last}");
                        last = now;
                    }
                });
            }
            writers.into_iter().for_each(|w| w.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
    }
}
