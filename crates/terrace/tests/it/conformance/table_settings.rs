//! Keyspaces whose keys are written into tables in ways of their own.

use terrace::{Compression, Db, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, TableSettings, Touch};

use super::transactions::open;
use crate::harness::{Engine, all_keyspaces, assert_clean};

fn with(tables: TableSettings) -> KeyspaceOptions {
    KeyspaceOptions { tables: Some(tables), ..KeyspaceOptions::default() }
}

/// Bytes of the blocks in which the keys lie, of those that lie in tables; and how many keys do.
fn block_bytes(space: &Keyspace, keys: impl Iterator<Item = u32>) -> (u64, u64) {
    let (mut all, mut count) = (0, 0);
    for i in keys {
        let explained = space.explain(i.to_be_bytes()).unwrap();
        assert_eq!(explained.value_bytes, Some(100));
        let block = |step: &Touch| match step {
            Touch::Block { bytes, .. } => Some(*bytes),
            _ => None,
        };
        // What is read before it is of an index.
        if let Some(bytes) = explained.steps.iter().rev().find_map(block) {
            all += bytes;
            count += 1;
        }
    }
    (all, count)
}

fn fill(db: &Db, spaces: &[&Keyspace], with: u8) {
    for i in 0..400u32 {
        spaces.iter().for_each(|space| space.put(i.to_be_bytes(), [with; 100]).unwrap());
    }
    db.compact_range(..).unwrap();
}

pub fn keyspaces_have_tables_of_their_own_kind(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() {
        return;
    }
    let (machine, db) = open("settings of tables", engine);
    let small = TableSettings { block_bytes: Some(150), ..TableSettings::default() };
    let large = TableSettings {
        block_bytes: Some(16 << 10),
        compression: Some(Compression::Lz4),
        filter_bits_per_key: Some(0),
    };
    let [a, b, plain] = [with(small), with(large), KeyspaceOptions::default()];
    let a = db.keyspace_with("a", a).unwrap();
    let b = db.keyspace_with("b", b).unwrap();
    let plain = db.keyspace_with("plain", plain).unwrap();
    assert_eq!((a.tables(), b.tables(), plain.tables()), (small, large, TableSettings::default()));
    fill(&db, &[&a, &b, &plain], 1);
    let compare = |db: &Db, a: &Keyspace, b: &Keyspace| {
        let (of_a, in_tables) = block_bytes(a, 0..400);
        let (of_b, _) = block_bytes(b, 0..400);
        // Some engines have what is as little as this elsewhere.
        assert!(in_tables > 300 || engine.kind.needs_memory(), "{in_tables}");
        assert!(in_tables == 0 || of_a / in_tables < 2 * 150, "{of_a} bytes in blocks of {in_tables} keys");
        assert!(of_b == 0 || of_b > 4 * of_a, "{of_a} and {of_b}");
        assert_clean(db);
    };
    compare(&db, &a, &b);
    // They hold for tables that are written after the next opening, by whoever writes them.
    db.close().unwrap();
    drop((a, b, plain, db));
    let db = machine.open().unwrap();
    db.put("k", "v").unwrap();
    db.compact_range(..).unwrap();
    let [a, b] = ["a", "b"].map(|name| db.keyspace(name).unwrap());
    assert_eq!((a.tables(), b.tables()), (small, large));
    compare(&db, &a, &b);
    // They change places.
    let [a, b] = [("a", large), ("b", small)].map(|(name, set)| db.keyspace_with(name, with(set)).unwrap());
    fill(&db, &[&a, &b], 2);
    compare(&db, &b, &a);
    let before = all_keyspaces(&db).unwrap();
    drop((a, b, db));
    let machine = machine.kill();
    let db = machine.open().unwrap();
    assert_eq!(all_keyspaces(&db).unwrap(), before);
    assert_eq!(db.keyspace("a").unwrap().tables(), large);
    // Back to those of the database.
    let [b, a] = ["b", "a"].map(|name| db.keyspace_with(name, with(TableSettings::default())).unwrap());
    assert_eq!((a.tables(), b.tables()), (TableSettings::default(), TableSettings::default()));
    drop((a, b, db));
    let db = machine.open().unwrap();
    let a = db.keyspace("a").unwrap();
    let (large, there) = block_bytes(&a, 0..400);
    a.compact_range(..).unwrap();
    let (own, _) = block_bytes(&a, 0..400);
    if matches!(engine.kind, EngineKind::Lsm | EngineKind::Tlsm | EngineKind::Lab) {
        assert!(there == 0 || own * 4 < large, "{large} bytes became {own}: it is written anew");
    }
    assert_clean(&db);
}

/// What an engine has no use for is refused, and makes no keyspace.
pub fn settings_without_use_are_refused(engine: &Engine) {
    let (_machine, db) = open("refused settings of tables", engine);
    let try_it = |tables| db.keyspace_with("new", with(tables)).map(drop).map_err(|e| e.kind());
    let nothing = TableSettings::default();
    let compressed = TableSettings { compression: Some(Compression::Lz4), ..nothing };
    let filtered = TableSettings { filter_bits_per_key: Some(10), ..nothing };
    let unfiltered = TableSettings { filter_bits_per_key: Some(0), ..nothing };
    let absurd = [
        TableSettings { block_bytes: Some(0), ..nothing },
        TableSettings { block_bytes: Some((64 << 20) + 1), ..nothing },
        TableSettings { filter_bits_per_key: Some(65), ..nothing },
    ];
    let unsupported = Err(ErrorKind::Unsupported);
    for tables in absurd {
        let refused = try_it(tables);
        assert!(refused == Err(ErrorKind::InvalidArgument) || refused == unsupported, "{tables:?}");
    }
    if engine.kind.keeps_all_in_memory() {
        assert_eq!((try_it(compressed), try_it(unfiltered)), (unsupported, unsupported));
    }
    let has_filters = try_it(filtered) != unsupported;
    assert_eq!(db.keyspaces().unwrap().len(), usize::from(has_filters));
    if !engine.kind.keeps_all_in_memory() {
        assert_eq!((try_it(compressed), try_it(unfiltered)), (Ok(()), Ok(())));
    }
    assert_eq!(try_it(nothing), Ok(()));
    assert_eq!(db.keyspace("new").unwrap().tables(), nothing);
}
