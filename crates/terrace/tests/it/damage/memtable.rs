//! A damaged record costs itself, and not the memtable that it is in.

use terrace::{EngineKind, ErrorKind, SlmOptions, WriteOptions};
use terrace_base::checksum::crc32c;
use terrace_pmem::Granularity;

use super::image::{Bed, Image, options};

const KEYS: usize = 300;

fn key(i: usize) -> String {
    format!("key{i:06}")
}

/// Where `what` lies in the pool.
fn place_of(pool: &[u8], what: &str) -> usize {
    pool.windows(what.len()).position(|bytes| bytes == what.as_bytes()).unwrap()
}

/// A database of `keys` keys, all in a memtable, as a kill leaves it.
fn killed(granularity: Granularity, keys: usize) -> Image {
    let mut options = options(EngineKind::Slm);
    options.slm = SlmOptions { memtable_bytes: 64 << 10, ..options.slm };
    let bed = Image::empty(options, granularity).bed();
    let db = bed.open().unwrap();
    for i in 0..keys {
        db.put(key(i).as_bytes(), &[i as u8; 20]).unwrap();
    }
    bed.image()
}

/// Flips a bit of each of these keys in the pool.
fn damage(image: &mut Image, keys: &[usize]) {
    let pool = image.pool.as_mut().unwrap();
    for i in keys {
        let at = place_of(pool, &key(*i));
        pool[at] ^= 1;
    }
}

/// Looks for all keys but the `lost` ones, after a repair.
fn assert_all_but(bed: &Bed, lost: &[usize]) {
    let db = bed.open().unwrap();
    for i in 0..KEYS {
        let found = db.get(key(i).as_bytes()).unwrap();
        let expected = (!lost.contains(&i)).then_some([i as u8; 20]);
        assert_eq!(found.as_deref(), expected.as_ref().map(|value| &value[..]), "{i}");
    }
    assert!(db.check().unwrap().is_clean());
}

/// Must catch a repair that gives up a whole memtable for a damaged record in it.
#[test]
fn a_repair_keeps_all_of_a_memtable_but_what_is_damaged() {
    let mut image = killed(Granularity::CacheLine, KEYS);
    damage(&mut image, &[100, 200]);
    let bed = image.bed();
    let report = bed.repair().unwrap();
    assert!(report.lost.iter().any(|lost| lost.contains("writes of one memtable at 2 places")), "{report:?}");
    assert_eq!(report.keys, KEYS as u64 - 2, "{report:?}");
    assert_all_but(&bed, &[100, 200]);
}

/// Must catch a file that only has a log's name and that is taken to hold what is in memtables.
#[test]
fn a_stranger_among_the_logs_costs_no_memtable() {
    let others = killed(Granularity::Page, 10);
    let log = others.files.iter().find(|(path, _)| path.extension().is_some_and(|end| end == "log"));
    let log = log.unwrap().1;
    for stranger in [log.clone(), Vec::new(), b"notes of somebody".to_vec(), log[..64].to_vec()] {
        let mut image = killed(Granularity::CacheLine, KEYS);
        image.files.insert("/db/000077.log".into(), stranger.clone());
        damage(&mut image, &[100, 200]);
        let bed = image.bed();
        let report = bed.repair().unwrap();
        assert_eq!(report.keys, KEYS as u64 - 2, "{report:?}");
        assert_all_but(&bed, &[100, 200]);
        // On an ordinary file, whose own logs are gone.
        let mut image = killed(Granularity::Page, KEYS);
        image.files.retain(|path, _| path.extension().is_none_or(|end| end != "log"));
        image.files.insert("/db/000077.log".into(), stranger);
        damage(&mut image, &[100, 200]);
        let bed = image.bed();
        let report = bed.repair().unwrap();
        assert_eq!(report.keys, KEYS as u64 - 2, "{report:?}");
        assert_all_but(&bed, &[100, 200]);
    }
}

/// Must catch a repair that goes by memtables or by logs alone: either has sound writes that the other lacks, for the
/// newest had not reached the files, which were not mapped.
#[test]
fn a_damaged_memtable_and_its_logs_count_together() {
    let mut options = options(EngineKind::Slm);
    options.slm = SlmOptions { memtable_bytes: 64 << 10, ..options.slm };
    options.map_logs = false;
    let bed = Image::empty(options, Granularity::Page).bed();
    let db = bed.open().unwrap();
    let old = |i: usize| [i as u8 ^ 0xff; 20];
    for i in (0..KEYS).rev() {
        db.put(key(i).as_bytes(), &old(i)).unwrap();
    }
    db.put_with(b"synced", b"", WriteOptions::SYNC).unwrap();
    for i in 0..KEYS {
        db.put(key(i).as_bytes(), &[i as u8; 20]).unwrap();
    }
    let mut image = bed.image();
    // Of either key the newer version, whose record lies further on.
    let pool = image.pool.as_mut().unwrap();
    for i in [100, 200] {
        let first = place_of(pool, &key(i));
        let at = first + 1 + place_of(&pool[first + 1..], &key(i));
        pool[at] ^= 1;
    }
    let bed = image.bed();
    let report = bed.repair().unwrap();
    assert!(report.lost.iter().any(|lost| lost.contains("writes of one memtable at 2 places")), "{report:?}");
    let db = bed.open().unwrap();
    for i in 0..KEYS {
        let expected = if [100, 200].contains(&i) { old(i) } else { [i as u8; 20] };
        assert_eq!(db.get(key(i).as_bytes()).unwrap().as_deref(), Some(&expected[..]), "{i}");
    }
    assert!(db.check().unwrap().is_clean());
    // What is written next, and what a power cut leaves of it, goes on from there.
    db.put_with(key(1).as_bytes(), b"next", WriteOptions::SYNC).unwrap();
    drop(db);
    let mut image = bed.image();
    image.files.retain(|path, _| !path.starts_with("/db/lost"));
    image.boot = "the second boot";
    let db = image.bed().open().unwrap();
    assert_eq!(db.get(key(1).as_bytes()).unwrap().as_deref(), Some(&b"next"[..]));
    assert_eq!(db.get(key(2).as_bytes()).unwrap().as_deref(), Some(&[2; 20][..]));
}

/// Must catch a synced write that a repair gives up with its memtable although a log has it.
#[test]
fn what_is_damaged_in_a_memtable_is_taken_from_its_logs() {
    let mut image = killed(Granularity::Page, KEYS);
    let bed = image.bed();
    bed.open().unwrap().sync().unwrap();
    image = bed.image();
    damage(&mut image, &[100, 200]);
    let bed = image.bed();
    assert_eq!(bed.repair().unwrap().keys, KEYS as u64);
    assert_all_but(&bed, &[]);
}

/// Must catch a memtable of another version that is taken for a damaged one, and given up.
#[test]
fn memtables_of_other_versions_are_refused_and_left_alone() {
    for version in [1, 3] {
        let mut image = killed(Granularity::CacheLine, KEYS);
        let sound = image.clone();
        let pool = image.pool.as_mut().unwrap();
        let at = place_of(pool, "TSKIPL");
        pool[at + 6] = version;
        let place = place_number(pool, at);
        let header = &mut pool[at..at + 64];
        let bound = if version == 1 { Vec::new() } else { place.to_le_bytes().to_vec() };
        let crc = crc32c(&[&bound[..], &header[..16], &header[24..44]].concat());
        header[44..48].copy_from_slice(&crc.to_le_bytes());
        let bed = image.bed();
        for refused in [bed.open().map(drop), bed.repair().map(drop)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidFormat, "{version}");
        }
        let mut image = bed.image();
        image.pool.as_mut().unwrap()[at..at + 64].copy_from_slice(&sound.pool.unwrap()[at..at + 64]);
        assert_all_but(&image.bed(), &[]);
    }
}

/// The number of a place of a pool.
fn place_number(pool: &[u8], at: usize) -> u64 {
    let bed =
        Image { pool: Some(pool.to_vec()), ..Image::empty(options(EngineKind::Slm), Granularity::CacheLine) };
    bed.bed().open_pool().place(at as u64)
}
