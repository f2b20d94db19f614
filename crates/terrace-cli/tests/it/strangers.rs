//! Directories of other stores: no command changes a byte in them or makes a file beside them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::engines;
use crate::support::Bed;

/// What lies in another store's directory, by name.
type Files = Vec<(&'static str, Vec<u8>)>;

/// Directories such as other stores make them.
fn strangers() -> Vec<(&'static str, Files)> {
    let rocks_table = [&[7; 300][..], &[0xf7, 0xcf, 0xf4, 0x85, 0xb7, 0x41, 0xe2, 0x88]].concat();
    let level_table = [&[7; 300][..], &[0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb]].concat();
    let lmdb = [&[0; 16][..], &[0xde, 0xc0, 0xef, 0xbe], &[0; 8172]].concat();
    vec![
        (
            "RocksDB",
            vec![
                ("CURRENT", b"MANIFEST-000005\n".to_vec()),
                ("MANIFEST-000005", vec![1; 400]),
                ("IDENTITY", b"5f1d-11".to_vec()),
                ("OPTIONS-000007", b"[Version]\n  rocksdb_version=11.8.1\n".to_vec()),
                ("LOCK", Vec::new()),
                ("LOG", b"a text".to_vec()),
                ("000004.log", vec![2; 500]),
                ("000009.sst", rocks_table.clone()),
            ],
        ),
        ("RocksDB", vec![("000009.sst", rocks_table)]),
        (
            "LevelDB",
            vec![
                ("CURRENT", b"MANIFEST-000002\n".to_vec()),
                ("MANIFEST-000002", vec![1; 400]),
                ("LOCK", Vec::new()),
                ("000003.log", vec![2; 500]),
                ("000005.ldb", level_table),
            ],
        ),
        ("LMDB", vec![("data.mdb", lmdb), ("lock.mdb", vec![3; 64])]),
        ("fjall", vec![("version", b"FJL\x03".to_vec()), ("lock", Vec::new()), ("0.jnl", vec![5; 100])]),
        ("redb", vec![("data.redb", [&b"redb\x1a\x0a\xa9\x0d\x0a"[..], &[0; 900]].concat())]),
    ]
}

/// Every command that is given a directory.
const COMMANDS: [&[&str]; 13] = [
    &["get", "k"],
    &["put", "k", "v"],
    &["delete", "k"],
    &["import", "-"],
    &["export"],
    &["scan"],
    &["stat"],
    &["check"],
    &["repair"],
    &["repair", "--engine", "lsm"],
    &["tour"],
    &["bench", "--num", "1"],
    &["__write", "--engine", "lsm"],
];

/// Names, bytes and times of change.
fn picture(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let seen = |path: PathBuf| {
        let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
        (path.clone(), (std::fs::read(&path).unwrap(), changed))
    };
    entries.map(seen).collect()
}

fn lay_out(bed: &Bed, files: &Files) {
    std::fs::create_dir(&bed.db).unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(bed.db.join(name), bytes).unwrap());
}

#[test]
fn no_command_touches_the_database_of_another_store() {
    for (store, files) in strangers() {
        let bed = Bed::new();
        lay_out(&bed, &files);
        let before = picture(&bed.db);
        for command in COMMANDS {
            let run = bed.run(command[0], &command[1..]);
            assert!(run.code != 0 && run.out.is_empty(), "{store}, {command:?}: {run:?}");
            let is_named = run.err.contains(store);
            let has_own_rule = ["tour", "bench"].contains(&command[0]);
            assert!(is_named || has_own_rule, "{store}, {command:?}: {}", run.err);
            assert!(!run.err.contains("terrace repair"), "{store}, {command:?}: {}", run.err);
            assert!(picture(&bed.db) == before, "{store}, {command:?} changed something");
        }
    }
}

/// A file where a directory is wanted.
#[test]
fn a_file_of_another_store_is_named_and_left() {
    let bed = Bed::new();
    std::fs::write(&bed.db, b"redb\x1a\x0a\xa9\x0d\x0a").unwrap();
    for command in COMMANDS.iter().filter(|command| !["tour", "bench"].contains(&command[0])) {
        bed.run(command[0], &command[1..]).fails(3, &["redb"]);
    }
    assert_eq!(std::fs::read(&bed.db).unwrap(), b"redb\x1a\x0a\xa9\x0d\x0a");
}

/// Names as Terrace gives them are no proof: a repair changes nothing where no file is one of its own.
#[test]
fn a_repair_wants_proof() {
    for engine in engines::names() {
        let bed = Bed::new();
        let files = vec![("CURRENT", b"?".to_vec()), ("000004.sst", vec![9; 200]), ("pool", vec![8; 9000])];
        lay_out(&bed, &files);
        let before = picture(&bed.db);
        bed.run("repair", &["--engine", engine]).fails(2, &["no database", "no file in it"]);
        assert!(picture(&bed.db) == before, "{engine}");
    }
}
