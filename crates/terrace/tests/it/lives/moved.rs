//! Pools of real files that are moved, copied and put back.

use std::fs;
use std::path::Path;

use terrace::{Db, EngineKind, ErrorKind, Options, PoolChoice, Profile, Result, WriteOptions};

use crate::harness::{Contents, ENGINES, Map, copy_files};

fn emulated(path: &Path) -> PoolChoice {
    PoolChoice::Emulated { path: Some(path.into()), profile: Profile::parse("dram").unwrap() }
}

fn with(engine: EngineKind, pool: PoolChoice) -> Options {
    Options { engine, pool, pm_bytes: 16 << 20, pool_extent_bytes: 4096, ..Options::default() }
}

/// Opens, compares, writes one more and closes; what was in it.
fn session(dir: &Path, options: Options, value: &[u8]) -> Result<Map> {
    let db = Db::open(dir, options)?;
    let found = db.try_all()?.into_iter().collect();
    (0..50u8).try_for_each(|i| db.put(&[i], value))?;
    db.close()?;
    Ok(found)
}

fn map_of(value: &[u8]) -> Map {
    (0..50u8).map(|i| (vec![i], value.to_vec())).collect()
}

/// Must catch an older copy of a pool that is opened as if it were the newest, and a moved one that is not.
#[test]
fn a_pool_moves_and_an_older_one_does_not_come_back() {
    for engine in ENGINES {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let open = |pool: &str, value: &[u8]| session(&at("db"), with(engine, emulated(&at(pool))), value);
        assert_eq!(open("pool", b"one").unwrap(), Map::new());
        fs::rename(at("pool"), at("moved")).unwrap();
        assert_eq!(open("pool", b"lost").unwrap_err().kind(), ErrorKind::Corruption, "{engine:?}");
        assert_eq!(open("moved", b"two").unwrap(), map_of(b"one"), "{engine:?}");
        fs::copy(at("moved"), at("older")).unwrap();
        assert_eq!(open("moved", b"three").unwrap(), map_of(b"two"), "{engine:?}");
        for _ in 0..2 {
            let error = open("older", b"lost").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{engine:?}: {error}");
            assert!(error.to_string().contains("older copy"), "{engine:?}: {error}");
        }
        // The newest is none the worse for it, also as a copy.
        fs::copy(at("moved"), at("copy")).unwrap();
        assert_eq!(open("copy", b"four").unwrap(), map_of(b"three"), "{engine:?}");
    }
}

/// Must catch an older copy of all files that is opened beside the newer pool.
#[test]
fn an_older_manifest_beside_a_newer_pool_is_told() {
    for engine in ENGINES {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let open = |dir: &str, value: &[u8]| session(&at(dir), with(engine, emulated(&at("pool"))), value);
        open("db", b"one").unwrap();
        copy_files(&at("db"), &at("old"));
        open("db", b"two").unwrap();
        let error = open("old", b"lost").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{engine:?}: {error}");
        assert!(error.to_string().contains("older copy"), "{engine:?}: {error}");
        assert_eq!(open("db", b"three").unwrap(), map_of(b"two"), "{engine:?}");
    }
}

/// Must catch a copy of a pool in use that is taken for whole: what of it is newer than what cannot be told.
#[test]
fn a_copy_of_a_pool_in_use_is_not_trusted() {
    for engine in [EngineKind::Slm, EngineKind::Turbo] {
        let home = tempfile::tempdir().unwrap();
        let (dir, copy) = (home.path().join("db"), home.path().join("copy"));
        let pool = match engine {
            EngineKind::Slm => PoolChoice::Auto,
            _ => PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() },
        };
        let db = Db::open(&dir, with(engine, pool.clone())).unwrap();
        (0..50u8).for_each(|i| db.put_with(&[i], b"one", WriteOptions { sync: true }).unwrap());
        copy_files(&dir, &copy);
        let opened = session(&copy, with(engine, pool.clone()), b"two");
        match engine {
            // Its log has what was synced.
            EngineKind::Slm => assert_eq!(opened.unwrap(), map_of(b"one")),
            _ => {
                assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corruption);
                let report = Db::repair(&copy, with(engine, pool.clone())).unwrap();
                assert!(!report.lost.is_empty());
                assert_eq!(session(&copy, with(engine, pool), b"two").unwrap(), map_of(b"one"));
            }
        }
    }
}

/// Must catch a byte that opening to read changes: in files, in the pool, in a damaged superblock that it could mend.
#[test]
fn who_only_reads_changes_no_byte() {
    for engine in ENGINES {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("db");
        let options = || with(engine, emulated(&dir.join("pool")));
        session(&dir, options(), b"one").unwrap();
        session(&dir, options(), b"two").unwrap();
        let bytes = || -> std::collections::BTreeMap<_, _> {
            let files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path());
            files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
        };
        // One copy of the superblock is damaged: that is no reason to store anything either.
        let mut pool = fs::read(dir.join("pool")).unwrap_or_default();
        if let Some(byte) = pool.get_mut(20) {
            *byte ^= 1;
            fs::write(dir.join("pool"), &pool).unwrap();
        }
        let before = bytes();
        let db = Db::open(&dir, Options { read_only: true, ..options() }).unwrap();
        assert_eq!(db.try_all().unwrap().into_iter().collect::<Map>(), map_of(b"two"), "{engine:?}");
        assert_eq!(db.get(&[3]).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(db.put(b"k", b"v").unwrap_err().kind(), ErrorKind::ReadOnly);
        // It names the damaged copy.
        assert!(db.check().unwrap().problems.len() <= 1);
        db.close().unwrap();
        drop(db);
        assert!(bytes() == before, "{engine:?}: bytes changed");
    }
}
