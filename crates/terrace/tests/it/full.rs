//! Really full: a small file system without room, and a pool that may grow no further.
//!
//! The small file system is mounted in a namespace of a process of its own, which is this test binary
//! again; where namespaces are not permitted the test says so and is none.

use std::path::Path;
use std::process::Command;

use terrace::{Db, EngineKind, ErrorKind, Options, Result};

use crate::harness::{Contents, Map, assert_clean, engines_on_files};

/// Set in the process that has the small file system mounted, to its directory.
const MOUNTED: &str = "TERRACE_SMALL_DISK";

const SMALL_DISK_BYTES: u64 = 6 << 20;

/// Writes that the store may be slow to do, but never that many.
const MOST_WRITES: u32 = 100_000;

fn options(pm_bytes: u64) -> Options {
    let mut options = Options { pm_bytes, pool_extent_bytes: 16 << 10, ..Options::default() };
    options.lsm.memtable_bytes = 64 << 10;
    options.lsm.table_bytes = 128 << 10;
    options.lsm.base_level_bytes = 256 << 10;
    (options.wip.memtable_bytes, options.wip.most_memtable_bytes) = (16 << 10, 32 << 10);
    // Logs grow to twice this behind flushes that fail, and one flush needs as much room.
    (options.wip.bucket_bytes, options.wip.log_bytes) = (256 << 10, 256 << 10);
    options.slm.memtable_bytes = 64 << 10;
    options.slm.table_bytes = 128 << 10;
    options
}

fn put(db: &Db, map: &mut Map, i: u32, len: usize) -> Result<()> {
    let (key, value) = (format!("key{i:08}").into_bytes(), i.to_le_bytes().repeat(len / 4));
    db.put(&key, &value)?;
    map.insert(key, value);
    Ok(())
}

/// Writes new keys from `from` on until one is refused; says which, and why.
fn until_refused(db: &Db, map: &mut Map, from: u32, len: usize) -> (u32, ErrorKind) {
    for i in from..from + MOST_WRITES {
        if let Err(error) = put(db, map, i, len) {
            assert!(error.is_retryable(), "{error}");
            return (i, error.kind());
        }
    }
    panic!("nothing was ever refused");
}

fn assert_holds(db: &Db, map: &Map, when: &str) {
    let found: Map = db.all().into_iter().collect();
    assert!(found == *map, "{when}: {} entries found, {} expected", found.len(), map.len());
}

fn in_the_small_disk(engine: EngineKind, disk: &Path) {
    let options = || Options { engine, ..options(1 << 20) };
    let ballast = |n: u32| disk.join(format!("ballast{n}"));
    (0..3).for_each(|n| std::fs::write(ballast(n), vec![1; 1 << 20]).unwrap());
    let dir = disk.join("db");
    let mut map = Map::new();
    let db = Db::open(&dir, options()).unwrap();
    let (next, kind) = until_refused(&db, &mut map, 0, 1000);
    assert_eq!(kind, ErrorKind::NoSpace);
    assert_holds(&db, &map, "full");

    std::fs::remove_file(ballast(0)).unwrap();
    let (further, kind) = until_refused(&db, &mut map, next, 1000);
    assert!(further > next + 300 && kind == ErrorKind::NoSpace, "from {next} only to {further}");
    assert_holds(&db, &map, "full again");
    let closed = db.close();
    drop(db);
    println!("refused at {next} and {further}; closing: {closed:?}");

    let db = Db::open(&dir, options()).unwrap();
    assert_holds(&db, &map, "opened without room");
    assert_eq!(until_refused(&db, &mut map, further, 1000).1, ErrorKind::NoSpace);
    assert_holds(&db, &map, "refused without room");
    drop(db);
    std::fs::remove_file(ballast(1)).unwrap();
    let db = Db::open(&dir, options()).unwrap();
    assert_holds(&db, &map, "opened with room");
    put(&db, &mut map, MOST_WRITES, 1000).unwrap();
    if let Err(error) = db.compact_range(..) {
        // Merging a whole bucket takes as much room as the bucket.
        assert!(engine == EngineKind::Wip && error.kind() == ErrorKind::NoSpace, "{error}");
        assert_holds(&db, &map, "not compacted");
        std::fs::remove_file(ballast(2)).unwrap();
        db.compact_range(..).unwrap();
    }
    assert_holds(&db, &map, "compacted");
    assert_clean(&db);
    db.close().unwrap();
}

/// Whose turn it is in the process that has a small file system.
const ENGINE: &str = "TERRACE_SMALL_DISK_ENGINE";

#[test]
fn a_small_file_system() {
    if let Ok(disk) = std::env::var(MOUNTED) {
        let engine = EngineKind::parse(&std::env::var(ENGINE).unwrap()).unwrap();
        return in_the_small_disk(engine, Path::new(&disk));
    }
    engines_on_files().for_each(|engine| on_a_small_disk(engine, "full::a_small_file_system"));
}

/// Runs the test called `test` for `engine` in a process that has a small file system.
fn on_a_small_disk(engine: EngineKind, test: &str) {
    let mount = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=$2 none \"$1\" && TERRACE_SMALL_DISK=\"$1\" exec \"$0\" --exact \"$3\" --nocapture";
    let may = Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|s| s.success());
    if !may {
        println!("no namespaces here: not tested");
        return;
    }
    let ended = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(mount.path())
        .arg(SMALL_DISK_BYTES.to_string())
        .arg(test)
        .env(ENGINE, engine.name())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    println!("{said}");
    assert!(ended.status.success(), "{}: {said}\n{}", ended.status, String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_full_pool() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = Map::new();
    let db = Db::open(dir.path(), options(1 << 20)).unwrap();
    let (next, kind) = until_refused(&db, &mut map, 0, 40);
    assert_eq!(kind, ErrorKind::PoolFull);
    assert!(next > 5000, "{next} keys fill a pool of 1 MiB");
    assert_holds(&db, &map, "full");
    let snapshot: Vec<_> = db.snapshot().all();
    assert_eq!(snapshot.len(), map.len());
    assert_clean(&db);
    db.close().unwrap();
    drop(db);

    let db = Db::open(dir.path(), options(1 << 20)).unwrap();
    assert_holds(&db, &map, "opened again");
    // The index over all keys is what fills it: closing may have emptied a memtable, but in the end only a larger pool
    // helps, and nothing is harmed until then.
    let (next, kind) = until_refused(&db, &mut map, next, 40);
    assert_eq!(kind, ErrorKind::PoolFull);
    assert_holds(&db, &map, "opened again and refused");
    db.close().unwrap();
    drop(db);

    let db = Db::open(dir.path(), options(4 << 20)).unwrap();
    for i in next..next + 1000 {
        put(&db, &mut map, i, 40).unwrap();
    }
    db.flush().unwrap();
    assert_holds(&db, &map, "a larger pool");
    assert_clean(&db);
}
