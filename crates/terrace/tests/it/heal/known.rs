//! Cases that were found, each kept as it was.

use std::path::PathBuf;

use terrace::{Db, EngineKind, Options, Snapshot};
use terrace_disk::Fault;
use terrace_pmem::Granularity;
use terrace_sim::{PmOptions, World, WorldOptions};

use crate::crash::env::{DIR, Process, tiny};
use crate::crash::run::contents;
use crate::harness::{Contents, Map, assert_clean};

fn world(granularity: Granularity) -> World {
    World::new(1, WorldOptions { pm: PmOptions { bytes: 1280 << 10, capacity: 16 << 20, granularity } })
}

/// Memtables that hold several tables.
fn several_tables() -> Options {
    let mut options = tiny(EngineKind::Slm);
    options.slm.memtable_bytes = 64 << 10;
    options
}

fn open(world: &World, options: Options) -> (Process, Db) {
    let process = Process::new(world);
    let db = Db::open_in(process.env.clone(), DIR, options).unwrap();
    (process, db)
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

fn put(db: &Db, i: u32, stamp: u32, len: usize) -> terrace::Result<()> {
    db.put(&key(i), &[&stamp.to_le_bytes()[..], &vec![stamp as u8; len]].concat())
}

fn tables(world: &World) -> Vec<PathBuf> {
    let ours = |path: &PathBuf| path.extension().is_some_and(|e| e == "sst");
    world.fs().image().into_keys().filter(ours).collect()
}

fn held(snapshot: &Snapshot) -> Map {
    let found: Map = snapshot.all().into_iter().collect();
    for (key, value) in &found {
        assert_eq!(snapshot.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    found
}

/// Must catch a flush that is tried again and takes what its first attempt has put into the index for older versions:
/// older snapshots would see them.
#[test]
fn a_flush_that_is_tried_again_leaves_older_snapshots_as_they_are() {
    for after in 0..60 {
        let world = world(Granularity::CacheLine);
        let (_process, db) = open(&world, several_tables());
        (0..50).for_each(|i| put(&db, i * 5, 1, 40).unwrap());
        let older = db.snapshot();
        let seen = held(&older);
        (0..300).for_each(|i| put(&db, i, 2, 60).unwrap());
        world.fs().inject(Some(Fault { after, only_changes: true, sticky: false }));
        let first = db.flush();
        world.fs().inject(None);
        db.flush().unwrap();
        assert!(held(&older) == seen, "{after}: {first:?}");
        for i in 0..300 {
            assert_eq!(older.get(&key(i)).unwrap().is_some(), seen.contains_key(&key(i)), "{after}");
        }
        assert_eq!(contents(&db).unwrap().len(), 300);
        assert_clean(&db);
    }
}

/// Must catch a file that each refused write leaves behind because it tries the flush again that has no room.
#[test]
fn refused_writes_leave_no_files() {
    let world = world(Granularity::CacheLine);
    let (process, db) = open(&world, several_tables());
    let mut next = 0;
    let mut fill = |len| {
        while put(&db, next, 1, len).is_ok() {
            next += 1;
            process.help();
        }
        next
    };
    let fs = world.fs();
    fs.set_capacity(Some(fs.used_bytes() + (100 << 10)));
    let written = fill(100);
    let (files, bytes) = (tables(&world).len(), fs.used_bytes());
    for _ in 0..50 {
        put(&db, written, 1, 100).unwrap_err();
    }
    assert_eq!((tables(&world).len(), fs.used_bytes()), (files, bytes));
    assert_eq!(tables(&world).len() as u64, db.stats().ssd.tables, "files that no manifest has");
    fs.set_capacity(None);
    put(&db, written, 1, 100).unwrap();
    db.compact_range(..).unwrap();
    assert_eq!(contents(&db).unwrap().len() as u32, written + 1);
    assert_clean(&db);
    assert_eq!(tables(&world).len() as u64, db.stats().ssd.tables);
}
