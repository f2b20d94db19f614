//! Files with names like those of a database and numbers that it never gave.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use terrace::{Db, EngineKind, Options};

use crate::harness::{Contents, Map, copy_files, engines_on_files};

/// Numbers just below the highest one, and above; the second half is in no name of a database.
const STRAYS: [&str; 8] = [
    "60000000.sst",
    "67108863.log",
    "67108863.sst.new",
    "67108860.ingest",
    "67108864.sst",
    "100000000.log",
    "18446744073709551615.sst",
    "18446744073709551615.log",
];

fn options(engine: EngineKind) -> Options {
    let mut options = Options { engine, pm_bytes: 4 << 20, pool_extent_bytes: 4096, ..Options::default() };
    options.slm.memtable_bytes = 16 << 10;
    options
}

fn write(db: &Db, map: &mut Map, version: u8) {
    for i in 0..100u32 {
        let (key, value) = (i.to_be_bytes().to_vec(), vec![version; 100]);
        db.put(&key, &value).unwrap();
        map.insert(key, value);
    }
    db.flush().unwrap();
}

/// Opens the database in `dir` and writes there, so that tables and logs get new numbers.
fn goes_on(dir: &Path, engine: EngineKind, map: &mut Map, stray: &str) {
    for version in 10..14 {
        let db = Db::open(dir, options(engine)).unwrap_or_else(|e| panic!("{engine:?}, {stray}: {e}"));
        assert!(db.all().into_iter().collect::<Map>() == *map, "{engine:?}, {stray}: {version}");
        (0..3).for_each(|i| write(&db, map, version + i));
        db.compact_range(..).unwrap();
        db.close().unwrap();
    }
    let db = Db::open(dir, options(engine)).unwrap();
    assert!(db.all().into_iter().collect::<Map>() == *map, "{engine:?}, {stray}");
    let problems = db.check().unwrap().problems;
    // One that could be the database's is told as long as it is there.
    assert!(problems.iter().all(|problem| problem.contains(stray)), "{engine:?}, {stray}: {problems:?}");
}

/// Must catch a stray file whose number is taken for the last one that was given: few are left behind it.
#[test]
fn numbers_of_strays_use_none_up() {
    let mut repaired = BTreeSet::new();
    for engine in engines_on_files() {
        for stray in STRAYS {
            for lacks_current in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let mut map = Map::new();
                let db = Db::open(dir.path(), options(engine)).unwrap();
                (0..3).for_each(|i| write(&db, &mut map, i));
                db.close().unwrap();
                drop(db);
                std::fs::write(dir.path().join(stray), b"junk").unwrap();
                if lacks_current {
                    std::fs::remove_file(dir.path().join("CURRENT")).unwrap();
                }
                if Db::open(dir.path(), options(engine)).is_err() {
                    Db::repair(dir.path(), options(engine))
                        .unwrap_or_else(|e| panic!("{engine:?}, {stray}: {e}"));
                    repaired.insert(lacks_current);
                }
                goes_on(dir.path(), engine, &mut map, stray);
            }
        }
    }
    assert!(repaired.contains(&true), "nothing was repaired");
}

/// Two tables, a log and a manifest of a database of `engine`, in files that `dir` does not have. The numbers of all but
/// one are such as the database there has passed.
fn plant_anothers(dir: &Path, engine: EngineKind) -> Vec<(PathBuf, Vec<u8>)> {
    let donor = tempfile::tempdir().unwrap();
    // A manifest says by its content, too, which number it has.
    (0..20).for_each(|version| {
        let db = Db::open(donor.path(), options(engine)).unwrap();
        write(&db, &mut Map::new(), version);
        db.close().unwrap();
    });
    let db = Db::open(donor.path(), options(engine)).unwrap();
    db.put("last", "only in the log").unwrap();
    // No table is half written then: such a one names nobody.
    db.check().unwrap();
    let files = std::fs::read_dir(donor.path()).unwrap().map(|file| file.unwrap().path());
    let files: Vec<PathBuf> = files.collect();
    let newest = |what: &str| {
        let of = files.iter().filter(|path| path.to_string_lossy().contains(what)).max();
        of.unwrap_or_else(|| panic!("{engine:?} has no {what}")).clone()
    };
    let manifest = newest("MANIFEST-");
    let free =
        |end: &str| (1..).map(|n| dir.join(format!("{n:06}{end}"))).find(|path| !path.exists()).unwrap();
    let plant = |from: PathBuf, to: PathBuf| {
        assert!(!to.exists());
        let bytes = std::fs::read(from).unwrap();
        std::fs::write(&to, &bytes).unwrap();
        (to, bytes)
    };
    let of_manifest = dir.join(manifest.file_name().unwrap());
    let far = dir.join("60000000.sst");
    let table = newest(".sst");
    [(table.clone(), free(".sst")), (table, far), (newest(".log"), free(".log")), (manifest, of_manifest)]
        .map(|(from, to)| plant(from, to))
        .into()
}

/// Must catch an opening that takes another database's files for its own leftovers.
#[test]
fn another_databases_files_stay() {
    for engine in engines_on_files() {
        for is_killed in [false, true] {
            let (live, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let mut map = Map::new();
            let db = Db::open(live.path(), options(engine)).unwrap();
            (0..6).for_each(|i| write(&db, &mut map, i));
            // A copy is of one moment once no job runs.
            db.check().unwrap();
            let dir = match is_killed {
                true => {
                    copy_files(live.path(), killed.path());
                    killed.path()
                }
                false => live.path(),
            };
            db.close().unwrap();
            drop(db);
            let planted = plant_anothers(dir, engine);
            goes_on(dir, engine, &mut map, "another database's");
            for (path, bytes) in planted {
                let stays =
                    std::fs::read(&path).unwrap_or_else(|e| panic!("{engine:?}, {is_killed}, {path:?}: {e}"));
                assert!(stays == bytes, "{engine:?}, {is_killed}: {path:?} was changed");
            }
        }
    }
}
