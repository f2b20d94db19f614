//! A short life of a database, with memtables and tables so small that everything happens.

use std::collections::BTreeMap;

use terrace::{Db, EngineKind, Options, PoolChoice, Profile, SlmOptions, WriteBatch};
use terrace_base::rng::Rng;

fn tiny() -> Options {
    Options {
        pool_extent_bytes: 4096,
        pm_bytes: 64 << 20,
        slm: SlmOptions {
            memtable_bytes: 8 << 10,
            table_bytes: 16 << 10,
            block_bytes: 512,
            ..SlmOptions::default()
        },
        lsm: crate::harness::tiny_lsm(),
        wip: crate::harness::tiny_wip(),
        ..Options::default()
    }
}

/// Whatever can be read as bytes is a key or a value.
#[test]
fn keys_and_values_of_many_types() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), tiny()).unwrap();
    db.put("text", String::from("owned")).unwrap();
    db.put(7u32.to_be_bytes(), [1, 2, 3]).unwrap();
    db.put(bytes::Bytes::from("counted"), vec![4u8; 2]).unwrap();
    assert_eq!(db.get(String::from("text")).unwrap().unwrap(), "owned");
    assert_eq!(
        db.multi_get([&b"counted"[..], &[0, 0, 0, 7]]).unwrap(),
        [Some(vec![4, 4].into()), Some(vec![1, 2, 3].into())]
    );
    assert_eq!(db.range(.."text").unwrap().count(), 2);
    assert!(db.put_if_absent("new", "value").unwrap() && !db.update_if_exists("none", "value").unwrap());
    let mut batch = WriteBatch::new();
    batch.put("a", [0; 100]);
    batch.delete("text");
    assert!((102..120).contains(&batch.bytes()), "{}", batch.bytes());
    db.write(batch).unwrap();
    assert_eq!(db.prefix("t").unwrap().count(), 0);
    let mut all = db.iter().unwrap();
    all.seek("b");
    assert_eq!(all.next().unwrap().unwrap().0, "counted");
}

fn run(options: Options, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut rng = Rng::new(seed);
    for _ in 0..3 {
        let db = Db::open(dir.path(), options.clone()).unwrap();
        let mut old = None;
        for i in 0..3000u32 {
            let key = format!("user{:08}", rng.below(500)).into_bytes();
            match rng.below(10) {
                0..7 => {
                    let value = vec![i as u8; rng.below(120) as usize];
                    db.put(&key, &value).unwrap();
                    model.insert(key, value);
                }
                7..9 => {
                    db.delete(&key).unwrap();
                    model.remove(&key);
                }
                _ => assert_eq!(db.get(&key).unwrap().as_deref(), model.get(&key).map(|v| &v[..])),
            }
            if i % 700 == 300 {
                old = Some((db.snapshot(), model.clone()));
            }
            if i % 700 == 650
                && let Some((snapshot, then)) = old.take()
            {
                for (key, value) in &then {
                    assert_eq!(snapshot.get(key).unwrap().as_deref(), Some(&value[..]));
                }
                compare(snapshot.iter().unwrap(), &then);
            }
        }
        compare(db.iter().unwrap(), &model);
        let report = db.check().unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        let stats = db.stats();
        assert!(stats.counts.flushes > 5, "{stats:#?}");
        assert!(stats.counts.compactions > 0, "{stats:#?}");
        db.close().unwrap();
    }
}

fn compare(iter: terrace::DbIter, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let found: Vec<_> = iter.map(|e| e.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    let wanted: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(found, wanted);
}

#[test]
fn on_an_ordinary_file() {
    run(tiny(), 1);
}

#[test]
fn with_log_files() {
    run(Options { engine: EngineKind::Lsm, ..tiny() }, 3);
}

#[test]
fn in_buckets() {
    run(Options { engine: EngineKind::Wip, ..tiny() }, 5);
}

#[test]
fn in_buckets_with_the_log_on_emulated_memory() {
    let pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
    run(Options { engine: EngineKind::Wip, pool, ..tiny() }, 6);
}

#[test]
fn with_a_log_in_emulated_persistent_memory() {
    let pool = PoolChoice::Emulated { path: None, profile: Profile::DRAM };
    run(Options { engine: EngineKind::Lsm, pool, ..tiny() }, 4);
}

#[test]
fn on_emulated_persistent_memory() {
    run(Options { pool: PoolChoice::Emulated { path: None, profile: Profile::DRAM }, ..tiny() }, 2);
}

#[test]
fn buckets_begin_at_keys_that_are_there() {
    for engine in EngineKind::ALL.iter().filter(|engine| !engine.needs_memory()) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options { engine: *engine, ..tiny() }).unwrap();
        let key = |i: u64| format!("user{:08}", i * 7919 % 3000);
        (0..3000).for_each(|i| db.put(key(i).as_bytes(), &[7; 50]).unwrap());
        // Waits until nothing is split any more.
        assert!(db.check().unwrap().is_clean());
        let partitions = db.partitions();
        assert_eq!(partitions.len() as u64, db.stats().buckets.buckets, "{engine:?}");
        let Some((first, others)) = partitions.split_first() else {
            assert_ne!(*engine, EngineKind::Wip);
            continue;
        };
        assert!(first.is_empty() && others.len() > 3 && others.is_sorted_by(|a, b| a < b), "{others:?}");
        assert!(others.iter().all(|bound| db.contains_key(bound).unwrap()));
    }
}
