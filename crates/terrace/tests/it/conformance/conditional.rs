//! `put_if_absent` and `update_if_exists`.

use std::sync::atomic::{AtomicUsize, Ordering};

use terrace::{Keyspace, Options, WriteOptions};

use crate::harness::{Contents, Engine, Machine, Setup, setups};

pub fn conditions_are_about_existence(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("conditions", engine));
    let db = machine.open().unwrap();
    assert!(!db.update_if_exists(b"k", b"0").unwrap());
    assert_eq!(db.get(b"k").unwrap(), None);
    assert!(db.put_if_absent(b"k", b"1").unwrap());
    assert!(!db.put_if_absent(b"k", b"2").unwrap());
    assert_eq!(db.get(b"k").unwrap().unwrap(), "1");
    assert!(db.update_if_exists(b"k", b"3").unwrap());
    assert_eq!(db.get(b"k").unwrap().unwrap(), "3");
    db.delete(b"k").unwrap();
    assert!(!db.update_if_exists(b"k", b"4").unwrap());
    assert!(db.put_if_absent(b"k", b"").unwrap(), "an empty value exists");
    assert!(!db.put_if_absent(b"k", b"5").unwrap());
}

/// Must catch a conditional write with `sync` that is refused for what a power cut takes.
pub fn what_refuses_a_synced_write_is_durable(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let assert_durable = |key: &str, value: Option<&str>| {
            for seed in 0..4 {
                let again = machine.power_cut(seed).open().unwrap();
                let found = again.get(key).unwrap();
                assert_eq!(found.as_deref(), value.map(str::as_bytes), "{key}, {}", setup.name);
            }
        };
        db.put_with("there", "1", WriteOptions::SYNC).unwrap();
        db.put("absent", "1").unwrap();
        assert!(!db.put_if_absent_with("absent", "2", WriteOptions::SYNC).unwrap());
        assert_durable("absent", Some("1"));
        db.delete("there").unwrap();
        assert!(!db.update_if_exists_with("there", "2", WriteOptions::SYNC).unwrap());
        assert_durable("there", None);
        db.put("swapped", "1").unwrap();
        db.compare_and_swap_with("swapped", None, Some(b"2"), WriteOptions::SYNC).unwrap().unwrap_err();
        assert_durable("swapped", Some("1"));
    }
}

/// The same in a keyspace, where the options have every write synced: what an earlier process has left unsynced.
pub fn what_refuses_a_keyspaces_write_is_durable(engine: &Engine) {
    for setup in setups(engine) {
        fn same(value: Option<&[u8]>) -> Option<Vec<u8>> {
            value.map(<[u8]>::to_vec)
        }
        let refuse: [fn(&Keyspace, WriteOptions); 4] = [
            |space, options| assert!(!space.put_if_absent_with("k", "2", options).unwrap()),
            |space, options| {
                drop(space.compare_and_swap_with("k", None, Some(b"2"), options).unwrap().unwrap_err());
            },
            |space, options| drop(space.fetch_update_with("k", same, options).unwrap()),
            |space, options| assert!(!space.update_if_exists_with("gone", "2", options).unwrap()),
        ];
        // By the database's options, or by those of the write.
        let ways = [(true, WriteOptions::default()), (false, WriteOptions::SYNC)];
        let ways = ways.into_iter().flat_map(|syncs| refuse.map(|refuse| (syncs, refuse)));
        for (way, ((sync, options), refuse)) in ways.enumerate() {
            let machine = Machine::new(&setup);
            let db = machine.open_with(Options { sync: false, ..machine.options() }).unwrap();
            let space = db.keyspace("space").unwrap();
            space.put("gone", "1").unwrap();
            db.sync().unwrap();
            space.put("k", "1").unwrap();
            space.delete("gone").unwrap();
            let machine = machine.kill();
            let db = machine.open_with(Options { sync, ..machine.options() }).unwrap();
            refuse(&db.keyspace("space").unwrap(), options);
            for seed in 0..4 {
                let again = machine.power_cut(seed).open().unwrap();
                let space = again.keyspace("space").unwrap();
                let found = (space.get("k").unwrap(), space.get("gone").unwrap());
                assert_eq!(found, (Some("1".into()), None), "way {way}, {}", setup.name);
            }
        }
    }
}

/// Existence is the same in the memtable, in tables, and under tombstones.
pub fn conditions_see_through_every_floor(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let key = |i: u8| [b'k', i];
        for i in 0..60 {
            db.put(&key(i), &[i; 50]).unwrap();
        }
        db.flush().unwrap();
        for i in (0..60).step_by(2) {
            db.delete(&key(i)).unwrap();
        }
        for round in 0..3 {
            match round {
                1 => db.flush().unwrap(),
                2 => db.compact_range(..).unwrap(),
                _ => (),
            }
            for i in 0..60 {
                let exists = i % 2 == 1;
                assert_eq!(
                    db.contains_key(&key(i)).unwrap(),
                    exists,
                    "{i} in round {round} of {}",
                    setup.name
                );
                assert!(
                    !if exists { db.put_if_absent(&key(i), b"") } else { db.update_if_exists(&key(i), b"") }
                        .unwrap()
                );
            }
        }
        for i in 0..60 {
            assert!(
                if i % 2 == 1 { db.update_if_exists(&key(i), b"x") } else { db.put_if_absent(&key(i), b"x") }
                    .unwrap()
            );
        }
        assert!(db.all().iter().all(|(_, value)| value == b"x"));
    }
}

/// Threads race to create and to take keys: exactly one succeeds, and what is read is the winner's.
pub fn one_thread_wins_each_key(engine: &Engine) {
    const THREADS: usize = 4;
    const KEYS: u32 = 200;
    for setup in setups(engine).into_iter().map(|s| s.threaded(2)) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let wins: Vec<AtomicUsize> = (0..THREADS).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|scope| {
            for (thread, wins) in wins.iter().enumerate() {
                let db = &db;
                scope.spawn(move || {
                    for i in 0..KEYS {
                        let mine = [thread as u8; 40];
                        if db.put_if_absent(&i.to_be_bytes(), &mine).unwrap() {
                            wins.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(db.get(&i.to_be_bytes()).unwrap().unwrap(), mine[..]);
                        } else {
                            assert!(db.contains_key(&i.to_be_bytes()).unwrap());
                        }
                    }
                });
            }
        });
        let won: Vec<usize> = wins.iter().map(|w| w.load(Ordering::Relaxed)).collect();
        assert_eq!(won.iter().sum::<usize>(), KEYS as usize, "{won:?} under {}", setup.name);
        for (thread, won) in won.iter().enumerate() {
            let held = db.all().iter().filter(|(_, value)| value[0] == thread as u8).count();
            assert_eq!(held, *won);
        }
    }
}
