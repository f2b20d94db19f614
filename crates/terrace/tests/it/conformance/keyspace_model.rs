//! Random operations on several keyspaces against a map of each.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use terrace::{Compression, Db, EngineKind, KeyspaceOptions, Snapshot, TableSettings, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use super::keyspaces::{HOSTILE, owned};
use crate::harness::{Engine, Machine, Map, all_keyspaces, assert_clean, key_in, setups, stepped, there_is};

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

/// Settings of tables that the engine takes.
fn some_tables(rng: &mut Rng, engine: &str) -> Option<TableSettings> {
    let engine = EngineKind::parse(engine).unwrap();
    let has_filters = !matches!(engine, EngineKind::Slm | EngineKind::Split);
    let tables = TableSettings {
        compression: rng.one_in(2).then(|| if rng.one_in(2) { Compression::Lz4 } else { Compression::None }),
        block_bytes: rng.one_in(2).then(|| 1 + rng.below(2000) as usize),
        filter_bits_per_key: rng.one_in(2).then(|| if has_filters { rng.below(20) as u32 } else { 0 }),
    };
    Some(if engine.keeps_all_in_memory() { TableSettings::default() } else { tables })
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
    let mut wanted = VecDeque::from(wanted);
    loop {
        let forward = rng.one_in(2);
        let (found, want) = match forward {
            true => (stepped(&mut iter, false, rng.one_in(2)), wanted.pop_front()),
            false => (stepped(&mut iter, true, rng.one_in(2)), wanted.pop_back()),
        };
        let found = found.map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
        assert_eq!(found, want, "{range:02x?}");
        if found.is_none() {
            break;
        }
    }
}

/// A transaction over the default keyspace and another.
fn transact(rng: &mut Rng, db: &Db, model: &mut Model, name: &str, value: &[u8]) {
    let space = db.keyspace(name).unwrap();
    model.entry(name.into()).or_default();
    let (key, other) = (some_key(rng), some_key(rng));
    db.transact(|tx| {
        let inner = tx.keyspace(&space)?;
        let (a, b) = (tx.get(&key)?, inner.get(&other)?);
        assert_eq!(a.as_deref(), model[""].get(&key).map(|v| &v[..]));
        assert_eq!(b.as_deref(), model[name].get(&other).map(|v| &v[..]));
        inner.put(&other, value)?;
        tx.put(&key, value)?;
        if let Ok(iter) = inner.iter() {
            let mut wanted = model[name].clone();
            wanted.insert(other.clone(), value.to_vec());
            assert!(owned(iter).into_iter().eq(wanted));
            let mut wanted = model[""].clone();
            wanted.insert(key.clone(), value.to_vec());
            assert!(owned(tx.iter()?.rev()).into_iter().eq(wanted.into_iter().rev()));
        }
        Ok(())
    })
    .unwrap();
    model.get_mut(name).unwrap().insert(other, value.to_vec());
    model.get_mut("").unwrap().insert(key, value.to_vec());
}

/// One random operation on `db` and on the model.
fn operate(rng: &mut Rng, db: &Db, model: &mut Model) {
    let names = ["a", "b", "c", "\u{ff}"];
    let name = names[rng.below(names.len() as u64) as usize];
    let value = rng.below(1 << 30).to_le_bytes().repeat(1 + rng.below(8) as usize);
    match rng.below(17) {
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
        13 | 14 => transact(rng, db, model, name, &value),
        15 => {
            let tables = some_tables(rng, db.stats().engine);
            db.keyspace_with(name, KeyspaceOptions { tables, ..KeyspaceOptions::default() }).unwrap();
            model.entry(name.into()).or_default();
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
