//! Single keys, one after the other.

use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Setup, assert_clean, get, setups};

pub fn an_empty_database_is_empty(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        assert_eq!(db.get(b"").unwrap(), None);
        assert!(db.all().is_empty());
        assert!(db.all().is_empty());
        db.delete(b"nothing").unwrap();
        db.write(terrace::WriteBatch::new()).unwrap();
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        assert_clean(&db);
        db.close().unwrap();
        let again = machine.kill().open().unwrap();
        assert!(again.all().is_empty());
    }
}

pub fn written_keys_are_read(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        for round in 0..3u32 {
            for i in 0..400u32 {
                db.put(&i.to_be_bytes(), format!("{round}/{i}").as_bytes()).unwrap();
            }
        }
        for i in 0..400u32 {
            let value = db.get(&i.to_be_bytes()).unwrap().unwrap();
            assert_eq!(value, format!("2/{i}"), "under {}", setup.name);
        }
        assert_eq!(db.get(&400u32.to_be_bytes()).unwrap(), None);
        assert_eq!(db.all().len(), 400);
        assert_clean(&db);
    }
}

pub fn any_bytes_are_keys(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let mut keys: Vec<Vec<u8>> =
            vec![vec![], vec![0], vec![0, 0], vec![0xff], vec![0xff; 9], vec![0; 300]];
        keys.extend((0..=255u8).map(|b| vec![b'x', b]));
        // The longest key, and two that differ from it in their last byte alone.
        keys.extend([
            vec![7; 65_535],
            [vec![7; 65_534], vec![6]].concat(),
            [vec![7; 65_534], vec![8]].concat(),
        ]);
        for key in &keys {
            db.put(key, &key[..key.len().min(20)]).unwrap();
        }
        for flushed in [false, true] {
            for key in &keys {
                let value =
                    db.get(key).unwrap().unwrap_or_else(|| panic!("{} bytes, flushed {flushed}", key.len()));
                assert_eq!(value, key[..key.len().min(20)]);
            }
            let mut sorted = keys.clone();
            sorted.sort();
            let found: Vec<Vec<u8>> = db.all().into_iter().map(|(key, _)| key).collect();
            assert_eq!(found, sorted);
            db.flush().unwrap();
        }
    }
}

pub fn values_of_every_size(engine: &Engine) {
    let setup = Setup::tiny("values", engine);
    let machine = Machine::new(&setup);
    let db = machine.open().unwrap();
    let sizes =
        [0usize, 1, 7, 8, 63, 64, 65, 255, 256, 511, 512, 513, 4095, 4096, 4097, 70_000, 140_000, 1 << 20];
    let value = |size: usize| -> Vec<u8> { (0..size).map(|i| (i * 31 + size) as u8).collect() };
    for (i, size) in sizes.iter().enumerate() {
        db.put(&[i as u8], &value(*size)).unwrap();
    }
    for round in ["written", "flushed", "compacted", "reopened"] {
        match round {
            "flushed" => db.flush().unwrap(),
            "compacted" => db.compact_range(..).unwrap(),
            "reopened" => db.close().unwrap(),
            _ => (),
        }
        let reopened = (round == "reopened").then(|| machine.kill().open().unwrap());
        let db = reopened.as_ref().unwrap_or(&db);
        for (i, size) in sizes.iter().enumerate() {
            assert!(db.get(&[i as u8]).unwrap().unwrap() == value(*size), "{size} bytes, {round}");
        }
    }
}

pub fn deleted_keys_are_gone(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let key = |i: u32| i.to_be_bytes();
        (0..300).for_each(|i| db.put(&key(i), &[1; 40]).unwrap());
        db.flush().unwrap();
        (0..300).filter(|i| i % 3 != 0).for_each(|i| db.delete(&key(i)).unwrap());
        for round in 0..4 {
            match round {
                1 => db.flush().unwrap(),
                2 => db.compact_range(..).unwrap(),
                3 => db.compact_range(&key(10)[..]..&key(20)[..]).unwrap(),
                _ => (),
            }
            for i in 0..300 {
                assert_eq!(
                    db.get(&key(i)).unwrap().is_some(),
                    i % 3 == 0,
                    "{i} in round {round} of {}",
                    setup.name
                );
            }
            assert_eq!(db.all().len(), 100);
        }
        (0..300).for_each(|i| db.put(&key(i), b"back").unwrap());
        assert_eq!(db.all().len(), 300);
        (0..300).for_each(|i| db.delete(&key(i)).unwrap());
        db.compact_range(..).unwrap();
        assert!(db.all().is_empty());
        assert_clean(&db);
    }
}

pub fn multi_get_is_of_one_moment(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("multi-get", engine).threaded(2));
    let db = machine.open().unwrap();
    let write = |n: u32| {
        let mut batch = terrace::WriteBatch::new();
        for key in [&b"a"[..], b"m", b"z"] {
            batch.put(key, &n.to_be_bytes());
        }
        db.write(batch).unwrap();
    };
    write(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..2000).for_each(write));
        while !writer.is_finished() {
            let values = db.multi_get(["z", "a", "missing", "m"]).unwrap();
            assert_eq!(values[2], None);
            assert!(values[0].is_some() && values[0] == values[1] && values[1] == values[3], "{values:?}");
        }
    });
}

pub fn stats_tell_what_happened(engine: &Engine) {
    let machine = Machine::new(&Setup::roomy(engine, Granularity::CacheLine));
    let db = machine.open().unwrap();
    for i in 0..50u8 {
        db.put(&[i], &[0; 100]).unwrap();
    }
    db.delete(&[0]).unwrap();
    db.get(&[1]).unwrap();
    let snapshot = db.snapshot();
    let stats = db.stats();
    assert_eq!(stats.engine, engine.kind.name());
    assert_eq!((stats.counts.puts, stats.counts.deletes, stats.counts.gets), (50, 1, 1));
    assert_eq!(stats.counts.user_bytes, 50 * 101 + 1);
    assert_eq!(stats.counts.snapshots, 1);
    assert_eq!((stats.counts.flushes, stats.ssd.tables), (0, 0));
    assert!(stats.pm.used > 0 && stats.pm.used <= stats.pm.size && stats.pm.size <= stats.pm.max_size);
    assert!(!stats.media.is_empty() && !stats.durability.is_empty());
    assert_eq!(get(&snapshot, &[0]), None);
    drop(snapshot);
    db.flush().unwrap();
    let stats = db.stats();
    assert_eq!(stats.counts.snapshots, 0);
    assert!(stats.dram.budget > 0);
    if engine.kind.keeps_all_in_memory() {
        assert_eq!((stats.counts.index_keys, stats.ssd.tables), (49, 0));
        return;
    }
    if engine.kind == terrace::EngineKind::Tlsm {
        // What is flushed lies in the pool.
        assert_eq!((stats.counts.flushes, stats.lists.entries, stats.ssd.tables), (1, 49, 0));
        return;
    }
    if engine.kind == terrace::EngineKind::Split {
        // Nothing is flushed: small items stay where they are as long as there is room.
        assert_eq!(stats.counts.index_keys, 49);
        return;
    }
    assert!(stats.counts.flushes >= 1 && stats.ssd.tables >= 1);
    assert_eq!(stats.ssd.live_entries, 49);
    assert!(stats.ssd_write_amplification().unwrap() > 0.5);
}
