//! What a repair makes of pools that cannot be trusted, or are not there.

use super::*;

#[test]
fn a_repair_after_a_power_cut_brings_a_prefix_back() {
    let left = leave();
    for (what, spoil) in POOLS {
        let dir = with_pool(&left, spoil);
        Db::repair_in(booted("two"), dir.path(), options()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let db = Db::open_in(booted("two"), dir.path(), options()).unwrap();
        assert_prefix(&db, &left.states, SYNCED, what);
    }
}

/// The directory of a database that was closed, and its contents.
fn closed() -> (tempfile::TempDir, Map) {
    let mut left = leave();
    let db = Db::open_in(booted("one"), left.dir.path(), options()).unwrap();
    db.close().unwrap();
    (left.dir, left.states.pop().unwrap())
}

fn spoil(dir: &Path, change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let spoilt = tempfile::tempdir().unwrap();
    copy_files(dir, spoilt.path());
    change(&spoilt.path().join("pool"));
    spoilt
}

/// An ordinary file in the place of the pool holds nothing that tables and logs lack, once the database is closed.
#[test]
fn a_repair_of_what_was_closed_needs_no_pool() {
    let (dir, contents_then) = closed();
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("hardly more than its head", |pool| {
            std::fs::write(pool, &std::fs::read(pool).unwrap()[..20_000]).unwrap()
        }),
        ("missing", |pool| std::fs::remove_file(pool).unwrap()),
        ("empty", |pool| std::fs::write(pool, "").unwrap()),
        ("noise", |pool| std::fs::write(pool, [7; 100_000]).unwrap()),
        ("cut", |pool| std::fs::write(pool, &std::fs::read(pool).unwrap()[..5000]).unwrap()),
    ];
    for (what, change) in changes {
        for boot in ["one", "two"] {
            let spoilt = spoil(dir.path(), change);
            let report = Db::repair_in(booted(boot), spoilt.path(), options()).unwrap();
            assert!(report.lost.is_empty() && report.doubts.is_empty(), "{what}: {report:?}");
            let db = Db::open_in(booted(boot), spoilt.path(), options()).unwrap();
            assert_eq!(contents(&db), contents_then, "{what}");
        }
    }
    let last = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path());
    let log = last.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap();
    for keeps_pool in [true, false] {
        let spoilt = spoil(dir.path(), |pool| {
            let log = pool.with_file_name(log.file_name().unwrap());
            let bytes = std::fs::read(&log).unwrap();
            std::fs::write(&log, &bytes[..bytes.len() - 1]).unwrap();
            if !keeps_pool {
                std::fs::remove_file(pool).unwrap();
            }
        });
        let report = Db::repair_in(booted("one"), spoilt.path(), options()).unwrap();
        assert_eq!(report.lost.is_empty(), keeps_pool, "{report:?}");
    }
}

/// Of a process that was killed the pool may have more than the logs, unless the machine has been booted since.
#[test]
fn a_repair_says_what_only_a_missing_pool_had() {
    let left = leave();
    for boot in ["one", "two"] {
        let spoilt = spoil(left.dir.path(), |pool| std::fs::remove_file(pool).unwrap());
        let report = Db::repair_in(booted(boot), spoilt.path(), options()).unwrap();
        assert_eq!(
            (report.lost.len(), report.doubts.len()),
            if boot == "one" { (1, 0) } else { (0, 1) },
            "{report:?}"
        );
        let db = Db::open_in(booted(boot), spoilt.path(), options()).unwrap();
        assert_prefix(&db, &left.states, SYNCED, boot);
    }
}

/// A repair reads no pool whose parts may date from different times. It keeps it, and says so.
#[test]
fn a_torn_pool_is_kept_by_a_repair() {
    let emulated = || PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
    let mut kept = 0;
    for engine in ENGINES {
        for choice in [PoolChoice::Auto, emulated()] {
            let options = Options { engine, pool: choice, ..options() };
            let (live, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let Ok(db) = Db::open_in(booted("one"), live.path(), options.clone()) else { continue };
            (0..200u32).for_each(|i| db.put(i.to_le_bytes(), [7; 100]).unwrap());
            if !live.path().join("pool").exists() {
                continue;
            }
            copy_files(live.path(), dir.path());
            let before = std::fs::read(dir.path().join("pool")).unwrap();
            let what = format!("{engine:?} with {:?}", options.pool);
            let report = Db::repair_in(booted("two"), dir.path(), options.clone()).unwrap();
            assert!(report.set_aside.iter().any(|line| line.contains("pool")), "{what}: {report:?}");
            let told = report.lost.len() + report.doubts.len();
            assert!(told > 0, "{what}: {report:?}");
            let aside = std::fs::read(dir.path().join("lost/pool")).unwrap();
            assert!(aside == before, "{what}: another file was kept");
            let db = Db::open_in(booted("two"), dir.path(), options).unwrap();
            assert_clean(&db);
            kept += 1;
        }
    }
    assert!(kept >= 8, "{kept} pools");
}

/// A database's directory may hold another one's pool, in the place of its own. An opening leaves it as it is, and a
/// repair keeps it.
#[test]
fn another_databases_pool_within_the_directory_stays() {
    let (dir, contents_then) = closed();
    let others = tempfile::tempdir().unwrap();
    let other = Db::open_in(booted("one"), others.path(), options()).unwrap();
    other.put("whose", "the other's").unwrap();
    other.close().unwrap();
    let foreign = std::fs::read(others.path().join("pool")).unwrap();
    for boot in ["one", "two"] {
        let spoilt = spoil(dir.path(), |pool| std::fs::write(pool, &foreign).unwrap());
        let pool = spoilt.path().join("pool");
        let error = Db::open_in(booted(boot), spoilt.path(), options()).unwrap_err();
        assert!(error.kind() == ErrorKind::Corruption && error.to_string().contains("another database's"));
        assert!(std::fs::read(&pool).unwrap() == foreign, "{boot}: by an opening");
        let report = Db::repair_in(booted(boot), spoilt.path(), options()).unwrap();
        assert!(report.lost.is_empty() && report.set_aside.len() == 1, "{boot}: {report:?}");
        let kept = std::fs::read_dir(spoilt.path().join("lost")).unwrap().map(|file| file.unwrap().path());
        assert!(
            kept.into_iter().any(|file| std::fs::read(file).is_ok_and(|bytes| bytes == foreign)),
            "{boot}"
        );
        let db = Db::open_in(booted(boot), spoilt.path(), options()).unwrap();
        assert_eq!(contents(&db), contents_then, "{boot}");
    }
}
