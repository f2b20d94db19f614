//! Keyspaces: maps beside each other in one database.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrace::{Db, ErrorKind, Keyspace, KeyspaceOptions, Snapshot, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use super::transactions::open;
use crate::harness::{
    Contents, Engine, Machine, Map, Setup, all_keyspaces, assert_clean, default_of, key_in, setups, there_is,
};

/// Keys that lie close to those of the catalogue and of other keyspaces, if they lay where they say.
const HOSTILE: [&[u8]; 16] = [
    b"",
    b"\x00",
    b"a",
    b"\xfe\xff",
    b"\xff",
    b"\xff\x00",
    b"\xff\x00d",
    b"\xff\x00i",
    b"\xff\x00nusers",
    b"\xff\x01",
    b"\xff\x01a",
    b"\xff\xf0",
    b"\xff\xf0\xf0",
    b"\xff\xff",
    b"\xff\xff\x00",
    b"\xff\xff\xff",
];

fn owned(
    entries: impl Iterator<Item = terrace::Result<(bytes::Bytes, bytes::Bytes)>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    entries.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Must catch a key of one keyspace that is another's, in any order of their making.
pub fn keyspaces_have_keys_of_their_own(engine: &Engine) {
    for keys_first in [true, false] {
        let (machine, db) = open("hostile", engine);
        let fill = |db: &Db, with: &str| {
            HOSTILE.iter().for_each(|key| db.put(key, [with.as_bytes(), key].concat()).unwrap());
        };
        if keys_first {
            fill(&db, "default");
        }
        let before = db.snapshot();
        let spaces: Vec<Keyspace> = ["users", "b", "c"].map(|name| db.keyspace(name).unwrap()).into();
        if !keys_first {
            fill(&db, "default");
        }
        for space in &spaces {
            HOSTILE.iter().for_each(|key| space.put(key, [space.name().as_bytes(), key].concat()).unwrap());
        }
        for space in &spaces {
            for key in HOSTILE {
                assert_eq!(space.get(key).unwrap().unwrap()[..], [space.name().as_bytes(), key].concat());
                assert_eq!(db.get(key).unwrap().unwrap()[..], [b"default", key].concat());
            }
            if let Ok(iter) = space.iter() {
                let keys: Vec<Vec<u8>> = owned(iter).into_iter().map(|(key, _)| key).collect();
                assert_eq!(keys, HOSTILE);
                let back: Vec<Vec<u8>> =
                    owned(db.iter().unwrap().rev()).into_iter().map(|(key, _)| key).collect();
                assert!(back.iter().rev().map(|key| &key[..]).eq(HOSTILE), "{back:02x?}");
            }
        }
        let there = if keys_first { HOSTILE.len() } else { 0 };
        assert_eq!(default_of(&before).unwrap().len(), there, "a snapshot of before there was one");
        assert_eq!(db.multi_get(HOSTILE).unwrap().iter().flatten().count(), HOSTILE.len());
        HOSTILE.iter().step_by(2).for_each(|key| db.delete(key).unwrap());
        HOSTILE.iter().skip(1).step_by(2).for_each(|key| spaces[0].delete(key).unwrap());
        let map = all_keyspaces(&db).unwrap();
        assert_eq!(map.len(), 3 + HOSTILE.len() * 3);
        assert_eq!(before.entries().unwrap().count(), there);
        assert_clean(&db);
        drop((before, spaces));
        db.close().unwrap();
        drop(db);
        let db = machine.open().unwrap();
        assert_eq!(all_keyspaces(&db).unwrap(), map);
        assert_eq!(db.keyspaces().unwrap(), ["b", "c", "users"]);
        assert_clean(&db);
    }
}

/// Must catch a key of a database without keyspaces that the next opening takes for its marker.
pub fn a_marker_is_nobodys_key(engine: &Engine) {
    for way in 0..4 {
        let (machine, db) = open("marker", engine);
        let marker = [0xff, 0];
        let probe = db.keyspace_with("x", KeyspaceOptions { create_if_missing: false });
        assert_eq!(probe.unwrap_err().kind(), ErrorKind::NoKeyspace);
        let value = b"terrace-spaces\0\x01";
        match way {
            0 => db.put(marker, value).unwrap(),
            1 => {
                let mut batch = WriteBatch::new();
                batch.put("a", "1");
                batch.put(marker, value);
                db.write(batch).unwrap();
            }
            2 => db.transact(|tx| tx.put(marker, value)).unwrap(),
            _ => drop(db.compare_and_swap(marker, None, Some(value)).unwrap()),
        }
        db.put([0xff, 7], "seven").unwrap();
        drop(db);
        let db = machine.kill().open().unwrap();
        let found = db.get(marker).unwrap();
        assert!(found.is_none() || found.as_deref() == Some(&value[..]));
        drop(db);
        let db = machine.open().unwrap();
        assert_eq!(db.get(marker).unwrap().as_deref(), Some(&value[..]), "way {way}");
        assert_eq!(db.get([0xff, 7]).unwrap().as_deref(), Some(&b"seven"[..]));
        assert_eq!(db.keyspaces().unwrap(), Vec::<String>::new());
        assert_clean(&db);
    }
}

pub fn what_is_dropped_is_gone_at_once(engine: &Engine) {
    let (machine, db) = open("dropped", engine);
    let (one, other) = (db.keyspace("one").unwrap(), db.keyspace("other").unwrap());
    (0..600u32).for_each(|i| one.put(i.to_be_bytes(), [1; 50]).unwrap());
    (0..20u32).for_each(|i| other.put(i.to_be_bytes(), [2; 50]).unwrap());
    let snapshot = db.snapshot();
    let mut batch = WriteBatch::new();
    batch.put_in(&one, "late", "1");
    batch.put_in(&other, "late", "1");
    let tx = db.transaction();
    tx.keyspace(&one).unwrap().put("late", "1").unwrap();
    db.drop_keyspace("one").unwrap();
    let gone = [
        one.put("k", "v").unwrap_err(),
        one.get("k").unwrap_err(),
        one.snapshot().unwrap_err(),
        one.compare_and_swap("k", None, Some(b"v")).unwrap_err(),
        db.write(batch).unwrap_err(),
        tx.commit().unwrap_err(),
        db.drop_keyspace("one").unwrap_err(),
    ];
    assert!(gone.iter().all(|e| e.kind() == ErrorKind::NoKeyspace), "{gone:?}");
    assert!(!other.contains_key("late").unwrap());
    let then = snapshot.keyspace(&one).unwrap();
    assert_eq!(then.entries().unwrap().count(), 600);
    let again = db.keyspace("one").unwrap();
    assert_eq!((again.entries().unwrap().count(), again.get(7u32.to_be_bytes()).unwrap()), (0, None));
    again.put("k", "new").unwrap();
    assert_eq!((then.entries().unwrap().count(), then.get("k").unwrap()), (600, None));
    assert_clean(&db);
    drop((then, snapshot));
    assert_eq!(db.keyspaces().unwrap(), ["one", "other"]);
    drop((one, other, again));
    db.flush().unwrap();
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    let map = all_keyspaces(&db).unwrap();
    assert_eq!(map.len(), 2 + 1 + 20, "{map:02x?}");
    assert_clean(&db);
}

pub fn strangers_are_refused(engine: &Engine) {
    let (_machine, db) = open("mine", engine);
    let (_other_machine, other) = open("theirs", engine);
    let (mine, theirs) = (db.keyspace("k").unwrap(), other.keyspace("k").unwrap());
    let mut batch = WriteBatch::new();
    batch.put_in(&theirs, "a", "1");
    let tx = db.transaction();
    let refused = [
        db.write(batch).unwrap_err(),
        db.snapshot().keyspace(&theirs).unwrap_err(),
        tx.keyspace(&theirs).unwrap_err(),
        db.keyspace("").unwrap_err(),
        db.keyspace(&"n".repeat(256)).unwrap_err(),
        mine.put([1; 65_534], "v").unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::InvalidArgument), "{refused:?}");
    mine.put([1; 65_533], "v").unwrap();
    db.keyspace(&"n".repeat(255)).unwrap();
    assert!(db.put([0xff; 65_535], "v").is_err(), "its place is longer");
    assert_clean(&db);
}

/// What the keyspaces hold, by name; the default one is the one without.
type Model = BTreeMap<String, Map>;

fn flat(model: &Model) -> Map {
    let mut map = Map::new();
    for (name, entries) in model {
        let named = (!name.is_empty()).then_some(&name[..]);
        if let Some(name) = named {
            map.insert(there_is(name), Vec::new());
        }
        map.extend(entries.iter().map(|(key, value)| (key_in(named, key), value.clone())));
    }
    map
}

fn some_key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(3) {
        0 => HOSTILE[rng.below(HOSTILE.len() as u64) as usize].to_vec(),
        1 => [&[0xff][..], &[rng.below(40) as u8]].concat(),
        _ => vec![b'k', rng.below(60) as u8],
    }
}

fn some_bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(4) {
        0 | 1 => Bound::Unbounded,
        2 => Bound::Included(some_key(rng)),
        _ => Bound::Excluded(some_key(rng)),
    }
}

/// A range of a snapshot against the model, from both ends in turns.
fn compare_range(rng: &mut Rng, snapshot: &Snapshot, map: &Map) {
    let (from, to) = (some_bound(rng), some_bound(rng));
    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
    let Ok(mut iter) = snapshot.range(range) else { return };
    let inside = |key: &[u8]| {
        let above = match &from {
            Bound::Included(from) => from[..] <= *key,
            Bound::Excluded(from) => from[..] < *key,
            Bound::Unbounded => true,
        };
        above
            && match &to {
                Bound::Included(to) => *key <= to[..],
                Bound::Excluded(to) => *key < to[..],
                Bound::Unbounded => true,
            }
    };
    let mut wanted: Vec<(Vec<u8>, Vec<u8>)> =
        map.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    if rng.one_in(3) {
        let to = some_key(rng);
        iter.seek(&to);
        wanted.retain(|(key, _)| *key >= to);
    }
    if rng.one_in(3) {
        let to = some_key(rng);
        iter.seek_for_prev(&to);
        wanted.retain(|(key, _)| *key <= to);
    }
    let mut wanted = std::collections::VecDeque::from(wanted);
    loop {
        let forward = rng.one_in(2);
        let (found, want) = match forward {
            true => (iter.next(), wanted.pop_front()),
            false => (iter.next_back(), wanted.pop_back()),
        };
        let found = found.map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        assert_eq!(found, want, "{range:02x?}");
        if found.is_none() {
            break;
        }
    }
}

/// One random operation on `db` and on the model.
fn operate(rng: &mut Rng, db: &Db, model: &mut Model) {
    let names = ["a", "b", "c", "\u{ff}"];
    let name = names[rng.below(names.len() as u64) as usize];
    let value = rng.below(1 << 30).to_le_bytes().repeat(1 + rng.below(8) as usize);
    match rng.below(16) {
        0..=3 => {
            let key = some_key(rng);
            db.put(&key, &value).unwrap();
            model.get_mut("").unwrap().insert(key, value);
        }
        4..=7 => {
            let key = some_key(rng);
            db.keyspace(name).unwrap().put(&key, &value).unwrap();
            model.entry(name.into()).or_default().insert(key, value);
        }
        8 | 9 => {
            let key = some_key(rng);
            db.delete(&key).unwrap();
            model.get_mut("").unwrap().remove(&key);
            db.keyspace(name).unwrap().delete(&key).unwrap();
            model.entry(name.into()).or_default().remove(&key);
        }
        10 => {
            let dropped = db.drop_keyspace(name);
            assert_eq!(dropped.is_ok(), model.remove(name).is_some());
        }
        11 | 12 => {
            let (space, mut batch) = (db.keyspace(name).unwrap(), WriteBatch::new());
            model.entry(name.into()).or_default();
            for _ in 0..rng.below(6) {
                let (key, is_put, is_default) = (some_key(rng), !rng.one_in(3), rng.one_in(2));
                let map = model.get_mut(if is_default { "" } else { name }).unwrap();
                match (is_put, is_default) {
                    (true, true) => batch.put(&key, &value),
                    (true, false) => batch.put_in(&space, &key, &value),
                    (false, true) => batch.delete(&key),
                    (false, false) => batch.delete_in(&space, &key),
                }
                if is_put {
                    map.insert(key, value.clone())
                } else {
                    map.remove(&key)
                };
            }
            db.write(batch).unwrap();
        }
        13 | 14 => {
            let space = db.keyspace(name).unwrap();
            model.entry(name.into()).or_default();
            let (key, other) = (some_key(rng), some_key(rng));
            db.transact(|tx| {
                let inner = tx.keyspace(&space)?;
                let (a, b) = (tx.get(&key)?, inner.get(&other)?);
                assert_eq!(a.as_deref(), model[""].get(&key).map(|v| &v[..]));
                assert_eq!(b.as_deref(), model[name].get(&other).map(|v| &v[..]));
                inner.put(&other, &value)?;
                tx.put(&key, &value)?;
                if let Ok(iter) = inner.iter() {
                    let mut wanted = model[name].clone();
                    wanted.insert(other.clone(), value.clone());
                    assert!(owned(iter).into_iter().eq(wanted));
                    let mut wanted = model[""].clone();
                    wanted.insert(key.clone(), value.clone());
                    assert!(owned(tx.iter()?.rev()).into_iter().eq(wanted.into_iter().rev()));
                }
                Ok(())
            })
            .unwrap();
            model.get_mut(name).unwrap().insert(other, value.clone());
            model.get_mut("").unwrap().insert(key, value);
        }
        _ => db.flush().unwrap(),
    }
}

pub fn keyspaces_match_maps(engine: &Engine) {
    for (round, setup) in setups(engine).into_iter().enumerate() {
        let (mut machine, mut rng) = (Machine::new(&setup), Rng::new(round as u64));
        let mut db = machine.open().unwrap();
        let mut model = Model::from([(String::new(), Map::new())]);
        let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
        for step in 0..400 {
            operate(&mut rng, &db, &mut model);
            match rng.below(40) {
                0 => snapshots.push((db.snapshot(), model[""].clone())),
                1 => {
                    snapshots.clear();
                    db.close().unwrap();
                    drop(db);
                    db = machine.open().unwrap();
                }
                2 if setup.granularity != Granularity::Page => {
                    snapshots.clear();
                    drop(db);
                    machine = machine.kill();
                    db = machine.open().unwrap();
                }
                3..=9 => {
                    compare_range(&mut rng, &db.snapshot(), &model[""]);
                    for (name, map) in model.iter().filter(|(name, _)| !name.is_empty()) {
                        compare_range(&mut rng, &db.keyspace(name).unwrap().snapshot().unwrap(), map);
                    }
                }
                10 | 11 => {
                    for (snapshot, map) in &snapshots {
                        compare_range(&mut rng, snapshot, map);
                        assert_eq!(snapshot.entries().unwrap().count(), map.len());
                    }
                }
                12 => {
                    assert_eq!(all_keyspaces(&db).unwrap(), flat(&model), "step {step} under {}", setup.name)
                }
                _ => {}
            }
        }
        assert_eq!(all_keyspaces(&db).unwrap(), flat(&model), "under {}", setup.name);
        assert_clean(&db);
    }
}

/// Must catch a write that gets into a keyspace as it is dropped, and a sweep that a close does not wait for.
pub fn keyspaces_come_and_go_under_threads(engine: &Engine) {
    let setup = Setup::tiny("coming and going", engine).threaded(3);
    let machine = Machine::new(&setup);
    let db = machine.open().unwrap();
    std::thread::scope(|threads| {
        for thread in 0..3u64 {
            let db = &db;
            threads.spawn(move || {
                let mut rng = Rng::new(thread);
                for i in 0..150u64 {
                    let name = ["x", "y"][rng.below(2) as usize];
                    let space = db.keyspace(name).unwrap();
                    let written =
                        (0..10).try_for_each(|j| space.put((i * 10 + j).to_be_bytes(), [thread as u8; 40]));
                    assert!(written.is_ok() || written.unwrap_err().kind() == ErrorKind::NoKeyspace);
                    db.put([0xff, thread as u8], i.to_le_bytes()).unwrap();
                    assert_eq!(db.get([0xff, thread as u8]).unwrap().unwrap()[..], i.to_le_bytes());
                    if rng.one_in(8) {
                        let dropped = db.drop_keyspace(name);
                        assert!(dropped.is_ok() || dropped.unwrap_err().kind() == ErrorKind::NoKeyspace);
                    }
                }
            });
        }
    });
    assert_clean(&db);
    let map = all_keyspaces(&db).unwrap();
    assert_eq!(map.keys().filter(|key| key.starts_with(b"default ")).count(), 3);
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    assert_eq!(all_keyspaces(&db).unwrap(), map);
    assert_clean(&db);
    db.keyspaces().unwrap().iter().for_each(|name| db.drop_keyspace(name).unwrap());
    assert_eq!(db.all().len(), 3);
}
