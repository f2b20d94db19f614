//! The largest values, and what lies beside them: written, overwritten, flushed, merged, read back after a process
//! died. Values of 64 MiB; `TERRACE_LIMITS=16` makes them 1 GiB, the largest that are allowed.

use terrace::{Db, EngineKind, Options, PoolChoice, Profile, WriteBatch};
use terrace_base::rng::Rng;

use crate::harness::assert_clean;

fn value_bytes() -> usize {
    let scale = std::env::var("TERRACE_LIMITS").map_or(1, |text| text.parse().expect("a number"));
    (scale << 26).min(1 << 30)
}

mod the_largest_values {
    use super::large_values;

    crate::harness::test_each_engine!(large_values);
}

fn options(engine: EngineKind, dir: &std::path::Path) -> Options {
    let profile = Profile::parse("dram").unwrap();
    let path = Some(dir.join("pool-of-the-test"));
    let pool = if engine.needs_memory() { PoolChoice::Emulated { path, profile } } else { PoolChoice::Auto };
    // Where all lies in the pool, three values and a copy on its way.
    let pm_bytes = 6 * value_bytes() as u64;
    Options { engine, pool, pm_bytes, memory_budget: 8 * value_bytes() as u64, ..Options::default() }
}

/// One that does not compress, and is none of the others.
fn value(seed: u64) -> Vec<u8> {
    let mut value = vec![0; value_bytes()];
    Rng::new(seed).fill(&mut value);
    value
}

/// What must be there: of the large ones their seeds.
fn assert_holds(db: &Db, large: &[(&[u8], u64)], small: &[&[u8]]) {
    for (key, seed) in large {
        let found = db.get(key).unwrap().expect("it was written");
        assert!(found[..] == value(*seed)[..], "{} has another value", key.escape_ascii());
    }
    small.iter().for_each(|key| assert_eq!(db.get(key).unwrap().as_deref(), Some(*key)));
    let mut keys = Vec::new();
    for entry in db.entries().unwrap() {
        let (key, value) = entry.unwrap();
        assert!(value.len() == value_bytes() || value == key);
        keys.push(key);
    }
    let mut wanted: Vec<&[u8]> = large.iter().map(|(key, _)| *key).chain(small.iter().copied()).collect();
    wanted.sort_unstable();
    keys.sort_unstable();
    assert_eq!(keys, wanted);
}

fn large_values(engine: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    let options = options(engine, dir.path());
    let db = Db::open(dir.path(), options.clone()).unwrap();
    db.put(b"a", b"a").unwrap();
    db.put(b"b", &value(1)).unwrap();
    db.put(b"c", b"c").unwrap();
    assert_holds(&db, &[(b"b", 1)], &[b"a", b"c"]);
    let mut batch = WriteBatch::new();
    batch.put(b"b", &value(2));
    batch.put(b"d", b"d");
    db.write(batch).unwrap();
    db.flush().unwrap();
    assert_holds(&db, &[(b"b", 2)], &[b"a", b"c", b"d"]);
    db.put(b"e", &value(3)).unwrap();
    drop(db);
    let db = Db::open(dir.path(), options.clone()).unwrap();
    assert_holds(&db, &[(b"b", 2), (b"e", 3)], &[b"a", b"c", b"d"]);
    db.delete(b"b").unwrap();
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    assert_holds(&db, &[(b"e", 3)], &[b"a", b"c", b"d"]);
    assert_clean(&db);
}
