//! Reads of many keys at once, and of values where they lie.

use terrace::{Db, ErrorKind, Snapshot};
use terrace_base::rng::Rng;
use terrace_disk::Fault;
use terrace_pmem::Granularity;

use super::transactions::{conflict, open};
use crate::harness::{Engine, Machine, Map, Setup, assert_clean, setups};

const KEYS: u32 = 300;

fn key(i: u32) -> Vec<u8> {
    format!("a key that shares its beginning/{i:04}").into_bytes()
}

/// Writes, overwrites and deletes, and takes a snapshot now and then; some of it is flushed.
fn filled(db: &Db, seed: u64) -> (Map, Vec<(Snapshot, Map)>) {
    let (mut rng, mut map, mut held) = (Rng::new(seed), Map::new(), Vec::new());
    for step in 0..1500u32 {
        let key = key(rng.below(u64::from(KEYS)) as u32);
        if rng.one_in(5) {
            db.delete(&key).unwrap();
            map.remove(&key);
        } else {
            let value = vec![step as u8; rng.below(400) as usize];
            db.put(&key, &value).unwrap();
            map.insert(key, value);
        }
        match step {
            200 | 800 | 1300 => held.push((db.snapshot(), map.clone())),
            400 | 900 => db.flush().unwrap(),
            1100 => db.compact_range(..).unwrap(),
            _ => {}
        }
    }
    (map, held)
}

/// Keys in no order, some of them absent and some repeated.
fn asked(rng: &mut Rng, count: u64) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..count).map(|_| key(rng.below(u64::from(KEYS) + 20) as u32)).collect();
    keys.extend(keys.first().cloned());
    keys
}

fn expected(map: &Map, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    keys.iter().map(|key| map.get(key).cloned()).collect()
}

fn plain(values: Vec<Option<terrace::Bytes>>) -> Vec<Option<Vec<u8>>> {
    values.into_iter().map(|value| value.map(|value| value.to_vec())).collect()
}

pub fn many_keys_are_read_as_each_alone(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let (map, held) = filled(&db, 1);
        let mut rng = Rng::new(2);
        assert!(db.multi_get([b""; 0]).unwrap().is_empty());
        for count in [1, 2, 17, 64, 500] {
            let keys = asked(&mut rng, count);
            assert_eq!(plain(db.multi_get(&keys).unwrap()), expected(&map, &keys), "under {}", setup.name);
            for (snapshot, then) in &held {
                assert_eq!(plain(snapshot.multi_get(&keys).unwrap()), expected(then, &keys));
            }
        }
        let gets = db.stats().counts.gets;
        db.multi_get(asked(&mut rng, 9)).unwrap();
        assert_eq!(db.stats().counts.gets, gets + 10);
        drop(held);
        assert_clean(&db);
    }
}

pub fn a_value_is_shown_where_it_lies(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let (map, held) = filled(&db, 3);
        for i in 0..KEYS + 20 {
            let key = key(i);
            assert_eq!(db.get_with(&key, <[u8]>::to_vec).unwrap().as_ref(), map.get(&key));
            for (snapshot, then) in &held {
                assert_eq!(snapshot.get_with(&key, <[u8]>::to_vec).unwrap().as_ref(), then.get(&key));
            }
        }
        let never = |_: &[u8]| -> usize { panic!("there is nothing to show") };
        assert_eq!(db.get_with("absent", never).unwrap(), None);
        let long = db.get_with([0; 65_536], never).unwrap_err();
        assert_eq!(long.kind(), ErrorKind::InvalidArgument);
    }
}

/// A read that fails fails its call, and nothing else.
pub fn a_failed_read_fails_the_call(engine: &Engine) {
    for maps in [false, true] {
        let setup = Setup::tiny("failed reads", engine);
        let setup = if engine.kind.needs_memory() { setup } else { setup.on(Granularity::Page) };
        let machine = Machine::new(&setup);
        machine.fs().set_maps(maps);
        let (mut db, mut rng) = (machine.open().unwrap(), Rng::new(4));
        let (map, held) = filled(&db, 5);
        drop(held);
        db.flush().unwrap();
        let mut failed = 0;
        for case in 0..120u64 {
            if case % 10 == 0 {
                // What the cache holds is not read again.
                db.close().unwrap();
                drop(db);
                db = machine.open().unwrap();
            }
            let keys = asked(&mut rng, 40);
            let tx = db.transaction();
            machine.fs().inject(Some(Fault { after: case % 50, only_changes: false, sticky: case % 3 == 0 }));
            // Copied at once: a value may share a mapping, which a later read may make fail.
            let (found, read) = (db.multi_get(&keys).map(plain), tx.multi_get(&keys).map(plain));
            machine.fs().inject(None);
            for found in [found, read] {
                match found {
                    Ok(found) => assert!(found == expected(&map, &keys), "case {case}, with maps: {maps}"),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
                        failed += 1;
                    }
                }
            }
            assert!(plain(db.multi_get(&keys).unwrap()) == expected(&map, &keys));
            assert!(plain(tx.multi_get(&keys).unwrap()) == expected(&map, &keys));
            tx.put("out", "1").unwrap();
            tx.commit().unwrap();
            db.delete("out").unwrap();
        }
        assert!(failed > 0 || db.stats().ssd.tables == 0, "with maps: {maps}");
        assert_clean(&db);
    }
}

pub fn many_keys_read_are_checked_at_the_commit(engine: &Engine) {
    let (_machine, db) = open("many reads", engine);
    (0..40u8).for_each(|i| db.put([b'k', i], [i; 60]).unwrap());
    db.flush().unwrap();
    let tx = db.transaction();
    tx.put([b'k', 1], "own").unwrap();
    tx.delete([b'k', 2]).unwrap();
    assert_eq!(tx.get([b'k', 3]).unwrap().unwrap(), [3; 60][..]);
    db.put([b'k', 1], "other").unwrap();
    db.put([b'k', 2], "other").unwrap();
    let found = tx.multi_get([[b'k', 4], [b'k', 1], [b'k', 2], [b'k', 3], [b'x', 0], [b'k', 4]]).unwrap();
    let four = Some(vec![4; 60]);
    let own = Some(b"own".to_vec());
    assert_eq!(plain(found), [four.clone(), own, None, Some(vec![3; 60]), None, four]);
    tx.commit().unwrap();
    for (changed, new) in [([b'k', 7], Some("2")), ([b'k', 7], None), ([b'x', 1], Some("1"))] {
        let tx = db.transaction();
        tx.multi_get([[b'k', 6], [b'k', 7], [b'x', 1]]).unwrap();
        tx.put("out", "1").unwrap();
        match new {
            Some(new) => db.put(changed, new).unwrap(),
            None => db.delete(changed).unwrap(),
        }
        assert_eq!(conflict(tx.commit()).as_bytes(), changed);
        db.put([b'k', 7], [7; 60]).unwrap();
    }
    assert_clean(&db);
}
