//! Random operations, deletions of ranges among them, against a map of each keyspace.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrace::{Bytes, Db, Ingest, MergeOperator, Snapshot, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use super::keyspaces::{HOSTILE, owned};
use super::merging::merging;
use crate::harness::{Deferred, Engine, Machine, Map, Span, assert_clean, in_span, setups, stepped};

/// What the keyspaces hold, by name; the default one is the one without.
type Model = BTreeMap<&'static str, Map>;

const SPACE: &str = "space";

fn some_key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(4) {
        0 => HOSTILE[rng.below(HOSTILE.len() as u64) as usize].to_vec(),
        _ => vec![b'k', rng.below(90) as u8],
    }
}

fn some_span(rng: &mut Rng) -> Span {
    let bound = |rng: &mut Rng| match rng.below(8) {
        0 => Bound::Unbounded,
        1..=4 => Bound::Included(some_key(rng)),
        _ => Bound::Excluded(some_key(rng)),
    };
    let from = bound(rng);
    let to = match (&from, rng.below(3)) {
        // Mostly a few keys.
        (Bound::Included(key) | Bound::Excluded(key), 0 | 1)
            if key.first() == Some(&b'k') && key.len() > 1 =>
        {
            Bound::Included(vec![b'k', key[1].saturating_add(rng.below(12) as u8)])
        }
        _ => bound(rng),
    };
    (from, to)
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let times = if rng.one_in(12) { 700 } else { 1 + rng.below(8) };
    rng.below(1 << 30).to_le_bytes().repeat(times as usize)
}

fn batch(rng: &mut Rng, db: &Db, model: &mut Model) {
    let (space, mut batch) = (merging(db, SPACE, MergeOperator::append().deferred()), WriteBatch::new());
    model.entry(SPACE).or_default();
    for _ in 0..rng.below(7) {
        let is_default = rng.one_in(2);
        let map = model.get_mut(if is_default { "" } else { SPACE }).unwrap();
        match rng.below(4) {
            3 if !is_default => {
                let (key, operand) = (some_key(rng), value(rng));
                batch.merge_in(&space, &key, &operand);
                map.entry(key).or_default().extend(operand);
            }
            0 | 3 => {
                let (key, value) = (some_key(rng), value(rng));
                if is_default {
                    batch.put(&key, &value)
                } else {
                    batch.put_in(&space, &key, &value)
                }
                map.insert(key, value);
            }
            1 => {
                let key = some_key(rng);
                if is_default {
                    batch.delete(&key)
                } else {
                    batch.delete_in(&space, &key)
                }
                map.remove(&key);
            }
            _ => {
                let span = some_span(rng);
                map.retain(|key, _| !in_span(key, &span));
                if is_default { batch.delete_range(span) } else { batch.delete_range_in(&space, span) }
            }
        }
    }
    db.write(batch).unwrap();
}

/// Ingests some keys into one of the keyspaces.
fn ingest(rng: &mut Rng, db: &Db, model: &mut Model) {
    let is_default = rng.one_in(2);
    let mut keys: Vec<Vec<u8>> = (0..rng.below(30)).map(|_| some_key(rng)).collect();
    keys.sort();
    keys.dedup();
    let entries: Map = keys.into_iter().map(|key| (key, value(rng))).collect();
    let fill = |ingest: &mut Ingest<'_>| entries.iter().try_for_each(|(key, value)| ingest.put(key, value));
    let done = match is_default {
        true => db.ingest(fill).unwrap(),
        false => merging(db, SPACE, MergeOperator::append().deferred()).ingest(fill).unwrap(),
    };
    assert_eq!(done.entries, entries.len() as u64);
    model.entry(if is_default { "" } else { SPACE }).or_default().extend(entries);
}

fn operate(rng: &mut Rng, db: &Db, model: &mut Model) {
    match rng.below(20) {
        0..=5 => {
            let (key, value) = (some_key(rng), value(rng));
            db.put(&key, &value).unwrap();
            model.get_mut("").unwrap().insert(key, value);
        }
        6 | 7 => {
            let (key, value) = (some_key(rng), value(rng));
            db.keyspace(SPACE).unwrap().put(&key, &value).unwrap();
            model.entry(SPACE).or_default().insert(key, value);
        }
        8 => {
            let key = some_key(rng);
            db.delete(&key).unwrap();
            model.get_mut("").unwrap().remove(&key);
        }
        9..=11 => {
            let span = some_span(rng);
            model.get_mut("").unwrap().retain(|key, _| !in_span(key, &span));
            db.delete_range(span).unwrap();
        }
        12 => {
            db.keyspace(SPACE).unwrap().clear().unwrap();
            model.insert(SPACE, Map::new());
        }
        13 | 14 => batch(rng, db, model),
        15 => {
            let (key, new, map) = (some_key(rng), value(rng), model.get_mut("").unwrap());
            let is_new = !map.contains_key(&key);
            assert_eq!(db.put_if_absent(&key, &new).unwrap(), is_new, "{key:02x?}");
            map.entry(key).or_insert(new);
        }
        16 => {
            let (key, new, map) = (some_key(rng), value(rng), model.get_mut("").unwrap());
            let old = db.fetch_update(&key, |_| Some(&new)).unwrap();
            assert_eq!(old.as_deref(), map.get(&key).map(|value| &value[..]), "{key:02x?}");
            map.insert(key, new);
        }
        17 | 18 => ingest(rng, db, model),
        _ => db.flush().unwrap(),
    }
}

/// Compares a range of a snapshot with the model, from both ends in turns, and what is read key by key.
fn compare(rng: &mut Rng, snapshot: &Snapshot, map: &Map) {
    let keys: Vec<Vec<u8>> = (0..6).map(|_| some_key(rng)).collect();
    let wanted: Vec<Option<Bytes>> = keys.iter().map(|key| map.get(key).cloned().map(Bytes::from)).collect();
    assert_eq!(snapshot.multi_get(&keys).unwrap(), wanted, "{keys:02x?}");
    keys.iter().zip(&wanted).for_each(|(key, wanted)| assert_eq!(snapshot.get(key).unwrap(), *wanted));
    let span = some_span(rng);
    let Ok(mut iter) = snapshot.range(span.clone()) else {
        return assert_eq!(snapshot.entries().unwrap().count(), map.len());
    };
    let inside: Vec<(Vec<u8>, Vec<u8>)> =
        map.iter().filter(|(key, _)| in_span(key, &span)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let (mut front, mut back) = (Vec::new(), Vec::new());
    loop {
        let forward = rng.one_in(2);
        let next = stepped(&mut iter, !forward, rng.one_in(2));
        let Some((key, value)) = next.map(Result::unwrap) else { break };
        let side = if forward { &mut front } else { &mut back };
        side.push((key.to_vec(), value.to_vec()));
    }
    front.extend(back.into_iter().rev());
    assert_eq!(front, inside, "{span:02x?}");
}

fn compare_all(rng: &mut Rng, db: &Db, model: &Model) {
    compare(rng, &db.snapshot(), &model[""]);
    if let Some(map) = model.get(SPACE) {
        compare(rng, &db.keyspace(SPACE).unwrap().snapshot().unwrap(), map);
    }
    if let Ok(iter) = db.iter() {
        assert!(owned(iter).into_iter().eq(model[""].clone()));
    }
}

/// Must catch any key that is there and should not be, or the other way round, for any reader at any time.
pub fn deleted_ranges_match_maps(engine: &Engine) {
    for (round, setup) in setups(engine).into_iter().enumerate() {
        let (mut machine, mut rng) = (Machine::new(&setup), Rng::new(1000 + round as u64));
        let open = |machine: &Machine| {
            let tidying = Arc::new(Deferred::default());
            let env = machine.env_on(tidying.clone());
            (Db::open_in(env, machine.dir(), machine.options()).unwrap(), tidying)
        };
        let (mut db, mut tidying) = open(&machine);
        let mut model = Model::from([("", Map::new())]);
        let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
        for step in 0..500 {
            operate(&mut rng, &db, &mut model);
            match rng.below(40) {
                0 => snapshots.push((db.snapshot(), model[""].clone())),
                1 | 2 => {
                    snapshots.clear();
                    db.close().unwrap();
                    drop(db);
                    (db, tidying) = open(&machine);
                }
                3 if setup.granularity != Granularity::Page => {
                    snapshots.clear();
                    drop(db);
                    machine = machine.kill();
                    (db, tidying) = open(&machine);
                }
                4..=8 => while tidying.tidy() && rng.one_in(2) {},
                9 => while tidying.tidy() {},
                10..=17 => compare_all(&mut rng, &db, &model),
                18 | 19 => snapshots.iter().for_each(|(snapshot, map)| compare(&mut rng, snapshot, map)),
                20 if !snapshots.is_empty() => drop(snapshots.remove(0)),
                21 if step % 3 == 0 => db.compact_range(..).unwrap(),
                _ => {}
            }
        }
        snapshots.iter().for_each(|(snapshot, map)| compare(&mut rng, snapshot, map));
        while tidying.tidy() {}
        compare_all(&mut rng, &db, &model);
        assert_clean(&db);
    }
}
