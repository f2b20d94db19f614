//! Pools that are ahead of their manifests, which have lost their newest groups: trees of values, and logs that have
//! gone.

use std::path::Path;

use terrace::{Db, EngineKind, ErrorKind, RepairReport};
use terrace_pmem::{Granularity, PoolOptions};

use super::ends::{as_created, groups, not_refused};
use super::image::{Bed, Image, options};
use crate::harness::{Contents, Map, assert_clean};

/// Keys that are written in every round.
const HOT: u8 = 30;

/// Keys that find room in a memtable twice.
const FEW: u8 = 10;

fn put(db: &Db, map: &mut Map, key: &str, value: Vec<u8>) {
    db.put(key.as_bytes(), &value).unwrap();
    map.insert(key.as_bytes().to_vec(), value);
}

/// A machine for a tree of values that may take so many bytes.
fn bed(value_tree_bytes: u64) -> Bed {
    let mut options = options(EngineKind::Lab);
    options.lab.value_tree_bytes = value_tree_bytes;
    Image::empty(options, Granularity::CacheLine).bed()
}

/// Writes what is hot and a few others, and flushes them.
fn write(db: &Db, map: &mut Map, round: u8) {
    // What is in no table comes last.
    (0..5).for_each(|i| put(db, map, &format!("cold {round:02} {i}"), vec![i; 60]));
    (0..HOT).for_each(|i| put(db, map, &format!("hot {i:02}"), vec![round; 40]));
    db.flush().unwrap();
}

/// What a killed process left, some of which only a log has.
fn killed(value_tree_bytes: u64, logged: u8) -> (Image, Map) {
    let (bed, mut map) = (bed(value_tree_bytes), Map::new());
    let db = bed.open().unwrap();
    (0..10).for_each(|round| write(&db, &mut map, round));
    assert!(db.stats().values.keys > 2);
    (0..logged).for_each(|i| put(&db, &mut map, &format!("hot {i:02}"), vec![i; 20]));
    let image = bed.image();
    drop(db);
    (image, map)
}

/// As a version before this one left it, which noted nothing in the pool of what the manifest knows.
fn without_notes(image: &Image) -> Image {
    let bed = image.bed();
    let pool = bed.open_pool_with(&PoolOptions { salvage: true, ..PoolOptions::default() });
    ["lab.flushed", "lab.left"].iter().for_each(|root| pool.clear_root(root).unwrap());
    drop(pool);
    bed.image()
}

/// What is wrong with a database that is to hold `map`, and what is written to it from now on.
fn wrong(bed: &Bed, map: &Map) -> Option<String> {
    let (db, mut map) = (bed.open().unwrap(), map.clone());
    let found: Map = db.all().into_iter().collect();
    let differ = map.iter().filter(|(key, value)| found.get(*key) != Some(value)).count();
    if differ > 0 || found.len() != map.len() {
        return Some(format!("{differ} keys differ of {}, {} are there", map.len(), found.len()));
    }
    for round in 50..53 {
        write(&db, &mut map, round);
    }
    assert_clean(&db);
    db.close().unwrap();
    drop(db);
    let found: Map = bed.open().unwrap().all().into_iter().collect();
    let differ = map.iter().filter(|(key, value)| found.get(*key) != Some(value)).count();
    (differ > 0).then(|| format!("{differ} keys that were written anew differ"))
}

/// What comes of an image without so many of its manifest's newest groups: whether it is refused, and what is wrong.
fn cut(image: &Image, map: &Map, end: usize) -> (bool, Option<String>) {
    let (path, _) = groups(image);
    let mut image = image.clone();
    image.files.get_mut(&path).unwrap().truncate(end);
    let bed = image.bed();
    let refused = match bed.open().map(|db| db.try_all().err()) {
        Ok(None) => return (false, wrong(&bed, map)),
        // A list that the manifest names may have gone since.
        Ok(Some(unreadable)) if unreadable.kind() == ErrorKind::Corruption => unreadable,
        Ok(Some(error)) => return (false, Some(format!("it is read so: {error}"))),
        Err(refused) if refused.to_string().contains("repair") && bed.image().files == image.files => refused,
        Err(refused) => return (true, Some(format!("it is refused so: {refused}"))),
    };
    let report: RepairReport = bed.repair().unwrap();
    let is_told = !report.lost.is_empty() || !report.doubts.is_empty();
    let fault = wrong(&bed, map).or_else(|| (!is_told).then(|| "nothing is told".into()));
    (true, fault.map(|fault| format!("{fault}; {refused}; {report:?}")))
}

#[test]
fn a_tree_that_is_ahead_of_its_manifest_is_told_and_no_write_behind_it_is_lost() {
    let mut faults = Vec::new();
    for (bytes, logged) in [(64 << 10, 0), (64 << 10, 20), (2 << 10, 0), (2 << 10, 20)] {
        let (image, map) = killed(bytes, logged);
        // Of a pool without notes nobody knows what has left its tree.
        for is_noted in [true, false].into_iter().filter(|is_noted| *is_noted || bytes > 2 << 10) {
            let image = if is_noted { image.clone() } else { without_notes(&image) };
            let (_, ends) = groups(&image);
            let mut refused = 0;
            for (group, end) in ends.iter().enumerate().skip(1) {
                let (is_refused, fault) = cut(&image, &map, *end);
                refused += usize::from(is_refused);
                let name =
                    format!("{bytes} bytes, {logged} in a log, noted {is_noted}, {group} of {}", ends.len());
                faults.extend(fault.map(|fault| format!("{name}: {fault}")));
            }
            println!("{bytes} bytes, {logged} in a log: {refused} of {} are refused", ends.len());
            assert!(refused > 5);
        }
    }
    assert!(faults.is_empty(), "{} {faults:#?}", faults.len());
}

/// Must catch a manifest that lost its end where every log has gone, and nothing else in the pool tells.
#[test]
fn a_manifest_that_lost_its_end_behind_the_last_log_is_told_and_no_write_is_lost() {
    let mut faults = Vec::new();
    for engine in [EngineKind::Lsm, EngineKind::Tlsm, EngineKind::Wip] {
        for logged in [0, 20] {
            let (bed, mut map) = (Image::empty(options(engine), Granularity::CacheLine).bed(), Map::new());
            let db = bed.open().unwrap();
            (0..6).for_each(|round| write(&db, &mut map, round));
            (0..logged).for_each(|i| put(&db, &mut map, &format!("hot {i:02}"), vec![i; 20]));
            let image = bed.image();
            drop(db);
            let (_, ends) = groups(&image);
            let mut refused = 0;
            for (group, end) in ends.iter().enumerate().skip(1) {
                let (is_refused, fault) = cut(&image, &map, *end);
                refused += usize::from(is_refused);
                let name = format!("{engine:?}, {logged} in a log, {group} of {}", ends.len());
                faults.extend(fault.map(|fault| format!("{name}: {fault}")));
            }
            println!("{engine:?}, {logged} in a log: {refused} of {} are refused", ends.len());
            assert!(refused > 2, "{engine:?}: {refused}");
        }
    }
    assert!(faults.is_empty(), "{} {faults:#?}", faults.len());
}

/// All is in the tree: there is no table, and no log.
#[test]
fn a_full_tree_beside_a_manifest_that_tells_of_a_creation_alone_is_refused_and_brought_back() {
    let (bed, mut map) = (bed(64 << 10), Map::new());
    let db = bed.open().unwrap();
    for i in 0..2 {
        (0..FEW).for_each(|key| put(&db, &mut map, &format!("hot {key:02}"), vec![i; 20]));
    }
    db.flush().unwrap();
    assert_eq!((db.stats().values.keys, db.stats().ssd.tables), (u64::from(FEW), 0));
    let killed = bed.image();
    db.close().unwrap();
    for image in [&killed, &bed.image(), &without_notes(&killed)] {
        for sealed in [false, true] {
            let image = as_created(image, sealed);
            let bed = image.bed();
            assert_eq!(not_refused(&image, &bed), None);
            let report = bed.repair().unwrap();
            assert!(report.lost.is_empty() && !report.doubts.is_empty(), "{report:?}");
            assert_eq!(wrong(&bed, &map), None, "{report:?}");
        }
    }
}

/// An older copy of the manifest is put back: of an earlier session, closed in order, or of this one.
#[test]
fn a_tree_beside_an_older_manifest_is_told_and_brought_back() {
    for (is_reopened, is_closed) in [(true, true), (true, false), (false, true), (false, false)] {
        let (bed, mut map) = (bed(64 << 10), Map::new());
        let mut db = bed.open().unwrap();
        (0..4).for_each(|round| write(&db, &mut map, round));
        if is_reopened {
            db.close().unwrap();
            drop(db);
            db = bed.open().unwrap();
        }
        let older = bed.image();
        (4..8).for_each(|round| write(&db, &mut map, round));
        if is_closed {
            db.close().unwrap();
        }
        let mut image = bed.image();
        drop(db);
        let is_of_manifest = |path: &Path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("MANIFEST") || name == "CURRENT"
        };
        image.files.retain(|path, _| !is_of_manifest(path));
        image.files.extend(older.files.into_iter().filter(|(path, _)| is_of_manifest(path)));
        let bed = image.bed();
        let refused = bed.open().map(drop).unwrap_err();
        assert!(refused.to_string().contains("repair"), "{refused}");
        let report = bed.repair().unwrap();
        let is_told = !report.lost.is_empty() || !report.doubts.is_empty();
        assert_eq!((wrong(&bed, &map), is_told), (None, true), "{refused}; {report:?}");
    }
}

/// Tombstones leave the tree, and the tables that they hid something in are gone but for their files, which an iterator
/// holds. A manifest that names those tables again must not bring back what was deleted.
#[test]
fn tombstones_that_left_the_tree_without_a_table_are_missed() {
    let (bed, mut map) = (bed(64 << 10), Map::new());
    let db = bed.open().unwrap();
    (0..3).for_each(|round| write(&db, &mut map, round));
    db.compact_range(..).unwrap();
    (3..8).for_each(|round| write(&db, &mut map, round));
    for i in 0..HOT {
        let key = format!("hot {i:02}");
        db.delete(key.as_bytes()).unwrap();
        map.remove(key.as_bytes());
    }
    db.flush().unwrap();
    assert!(db.stats().values.keys > 0, "the tombstones are in the tree");
    let held = db.iter().unwrap();
    db.compact_range(..).unwrap();
    assert_eq!(db.stats().values.keys, 0, "they have left");
    let image = bed.image();
    drop((held, db));
    let (_, ends) = groups(&image);
    let mut faults = Vec::new();
    for (group, end) in ends.iter().enumerate().skip(1) {
        let (_, fault) = cut(&image, &map, *end);
        faults.extend(fault.map(|fault| format!("{group} of {}: {fault}", ends.len())));
    }
    assert!(faults.is_empty(), "{} {faults:#?}", faults.len());
}
