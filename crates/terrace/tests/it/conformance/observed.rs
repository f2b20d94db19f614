//! What a database tells of itself, and the options that it is given by name.

use terrace::{OptionInfo, Options, Touch};

use crate::harness::{Engine, Machine, setups};

/// Options written to a file and read back open the same database.
pub fn options_from_a_file_open_it(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let written = OptionInfo::to_toml(&machine.options().list());
        let mut read = Options::default();
        read.set_toml(&written).unwrap();
        assert_eq!(read.list(), machine.options().list(), "under {}", setup.name);
        let db = machine.open_with(read.clone()).unwrap();
        assert_eq!(db.stats().engine, engine.kind.name());
        db.put("key", "value").unwrap();
        db.close().unwrap();
        drop(db);
        assert_eq!(machine.open().unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// What a read has touched is told, and reading it so gives what `get` gives.
pub fn a_read_tells_what_it_has_touched(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let key = |i: u32| format!("key {i:04}");
        for i in 0..400u32 {
            db.put(key(i), vec![i as u8; 40 + (i % 7) as usize * 50]).unwrap();
        }
        db.delete(key(3)).unwrap();
        let snapshot = db.snapshot();
        db.put(key(5), "new").unwrap();
        db.flush().unwrap();
        let mut touched = Vec::new();
        for i in 0..420 {
            let explained = db.explain(key(i)).unwrap();
            let value = db.get(key(i)).unwrap();
            assert_eq!(explained.value_bytes, value.map(|value| value.len()), "{i} under {}", setup.name);
            assert!(!explained.steps.is_empty(), "{i} under {}", setup.name);
            let read = explained.value_bytes.unwrap_or(0) as u64;
            let in_memtable = explained.steps.contains(&Touch::Memtable { found: true });
            assert!(in_memtable || explained.bytes() >= read, "{i} under {}: {explained}", setup.name);
            assert!(explained.bytes_read() <= explained.bytes());
            touched.extend(explained.steps);
        }
        let old = snapshot.explain(key(5)).unwrap();
        assert_eq!(old.value_bytes, Some(290));
        // What each engine is made of.
        let has = |what: &dyn Fn(&Touch) -> bool| touched.iter().any(what);
        assert_eq!(
            has(&|t| matches!(t, Touch::Memtable { .. })),
            engine.kind.buffer_place() != terrace::BufferPlace::None
        );
        let lists = has(&|t| matches!(t, Touch::List { .. }));
        let blocks = has(&|t| matches!(t, Touch::Block { .. })) && has(&|t| matches!(t, Touch::Table { .. }));
        assert!(blocks || lists || engine.kind.needs_memory(), "under {}: {touched:?}", setup.name);
        assert!(!blocks || !engine.kind.keeps_all_in_memory());
        // Over-long keys are refused, as by any read.
        assert!(db.explain(vec![0; 1 << 16]).is_err());
    }
}
