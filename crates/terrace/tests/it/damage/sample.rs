//! A small database that holds every structure there is, in the states a machine can find it in.

use terrace::{EngineKind, Options, WriteBatch};
use terrace_pmem::{Granularity, Kind};

use super::deleted::with_a_deleted_range;
use super::image::{Bed, Image, options};
use super::ingested::in_an_ingest;
use super::moments::{build, build_with_keyspaces};
use super::spaces::{all_of, with_keyspaces};
use crate::harness::Map;

/// Keys that any of the operations below writes, and some that none does.
pub const KEYS: u32 = 130;

/// A database and what it must answer.
#[derive(Debug, Clone)]
pub struct Sample {
    /// How it came to be.
    pub name: &'static str,
    /// Its bytes.
    pub image: Image,
    /// What is in it, with the entries of keyspaces behind their names.
    pub right: Map,
    /// Whether it was closed in order.
    pub closed: bool,
}

/// Every key that a sample may hold, and some more.
pub fn all_keys() -> Vec<Vec<u8>> {
    (0..KEYS + 10).map(key).collect()
}

/// Long prefixes in common, and a key that is a prefix of others.
pub fn key(i: u32) -> Vec<u8> {
    match i {
        7 => b"a rather long common prefix/".to_vec(),
        i if i % 7 == 2 => format!("eight{i:03}").into_bytes(),
        i if i % 3 == 0 => format!("a rather long common prefix/{:05}", i / 3).into_bytes(),
        i => format!("k{i}").into_bytes(),
    }
}

/// The value that version `version` of key `i` has.
pub fn value(i: u32, version: u32) -> Vec<u8> {
    let mut value = format!("{i}.{version}:").into_bytes();
    value.resize(value.len() + (i * 7 % 40) as usize, b'a' + version as u8);
    value
}

/// Samples of the engines with tables on the SSD.
pub fn samples_with_tables() -> Vec<Sample> {
    let mut samples = samples_of_slm();
    samples.extend(samples_with_keyspaces());
    let memory = build(EngineKind::Lsm, Granularity::CacheLine);
    let file = build(EngineKind::Lsm, Granularity::Page);
    let buckets = build(EngineKind::Wip, Granularity::Page);
    let with_log_in_memory = build(EngineKind::Wip, Granularity::CacheLine);
    let values = build(EngineKind::Lab, Granularity::CacheLine);
    let lists = build(EngineKind::Tlsm, Granularity::CacheLine);
    samples.extend([
        sample("lists, with a debt, closed", read_over_the_close(&lists.closed)),
        sample("lists, with a deleted range, closed", with_a_deleted_range(&lists.closed)),
        sample("lists, killed in an ingest", in_an_ingest(&lists.closed)),
        sample("lists, closed", lists.closed),
        sample("lists, killed in a flush", lists.flush),
        sample("lists, killed in a compaction", lists.compaction),
        sample("a tree of values, with a debt, closed", closed_at_once(&values.flush)),
        sample("a tree of values, with a deleted range, closed", with_a_deleted_range(&values.closed)),
        sample("a tree of values, with keyspaces, closed", with_keyspaces(&values.closed)),
        sample("a tree of values, closed", values.closed),
        sample("a tree of values, killed in a flush", values.flush),
        sample("a tree of values, killed in a compaction", values.compaction),
        sample(
            "a log in persistent memory, with a deleted range, closed",
            with_a_deleted_range(&memory.closed),
        ),
        sample("a log in persistent memory, closed", memory.closed),
        sample("a log in persistent memory, with a debt, closed", closed_at_once(&memory.flush)),
        sample("a log in persistent memory, killed in a flush", memory.flush),
        sample("a log in persistent memory, killed in a compaction", memory.compaction),
        sample("log files, with a deleted range, closed", with_a_deleted_range(&file.closed)),
        sample("log files, killed in an ingest", in_an_ingest(&file.closed)),
        sample("log files, closed", file.closed),
        sample("log files, power cut in a flush", rebooted(&file.flush)),
        sample("log files, killed in a flush", file.flush),
        sample("log files, killed in a compaction", file.compaction),
        sample("buckets, power cut while a table is written", rebooted(&buckets.flush)),
        sample("buckets, killed while a table is written", buckets.flush),
        sample("buckets, killed while a table is synced", buckets.compaction),
        sample("buckets, with a deleted range, closed", with_a_deleted_range(&buckets.closed)),
        sample("buckets, killed in an ingest", in_an_ingest(&buckets.closed)),
        sample("buckets, with keyspaces, closed", with_keyspaces(&buckets.closed)),
        sample("buckets, closed", buckets.closed),
        sample("buckets, with a debt, closed", closed_at_once(&with_log_in_memory.compaction)),
        sample("buckets, log in persistent memory, killed", with_log_in_memory.compaction),
        sample("buckets, log in persistent memory, closed", with_log_in_memory.closed),
    ]);
    samples
}

/// Samples of the engines that keep operands, with operands wherever they keep any.
pub fn samples_with_keyspaces() -> Vec<Sample> {
    let memory = build_with_keyspaces(EngineKind::Lsm, Granularity::CacheLine);
    let file = build_with_keyspaces(EngineKind::Lsm, Granularity::Page);
    let lists = build_with_keyspaces(EngineKind::Tlsm, Granularity::CacheLine);
    vec![
        sample("a log in persistent memory, with keyspaces, killed in a flush", memory.flush),
        sample("a log in persistent memory, with keyspaces, killed in a compaction", memory.compaction),
        sample("log files, with keyspaces, closed", file.closed),
        sample("log files, with keyspaces, power cut in a flush", rebooted(&file.flush)),
        sample("log files, with keyspaces, killed in a compaction", file.compaction),
        sample("lists, with keyspaces and deleted ranges, closed", with_a_deleted_range(&lists.closed)),
        sample("lists, with keyspaces, closed", lists.closed),
        sample("lists, with keyspaces, killed in a flush", lists.flush),
        sample("lists, with keyspaces, killed in a compaction", lists.compaction),
    ]
}

/// Samples of the engines that keep everything in persistent memory.
pub fn samples_in_memory() -> Vec<Sample> {
    let of = |(engine, buffered, names): (_, _, [_; 6])| {
        names.into_iter().zip(build_in_memory(engine, buffered)).map(|(name, moment)| sample(name, moment))
    };
    MEMORY.into_iter().flat_map(of).collect()
}

/// Samples of the engine that has records in persistent memory, tables and slots.
pub fn samples_of_split() -> Vec<Sample> {
    let names = [
        "split, closed",
        "split, killed beside snapshots",
        "split, killed in a batch",
        "split, with a debt, closed",
        "split, with a deleted range, closed",
        "split, with keyspaces, closed",
    ];
    let moments = build_in_memory(EngineKind::Split, false);
    names.into_iter().zip(moments).map(|(name, moment)| sample(name, moment)).collect()
}

/// Every sample.
pub fn samples() -> Vec<Sample> {
    let mut samples = samples_with_tables();
    samples.extend(samples_in_memory());
    samples.extend(samples_of_split());
    samples
}

/// Databases that lie in persistent memory alone, with the names of their samples.
const MEMORY: [(EngineKind, bool, [&str; 6]); 3] = [
    (
        EngineKind::Turbo,
        false,
        [
            "turbo, closed",
            "turbo, killed beside snapshots",
            "turbo, killed in a batch",
            "turbo, with a debt, closed",
            "turbo, with a deleted range, closed",
            "turbo, with keyspaces, closed",
        ],
    ),
    (
        EngineKind::Sptree,
        false,
        [
            "sptree, closed",
            "sptree, killed beside snapshots",
            "sptree, killed in a batch",
            "sptree, with a debt, closed",
            "sptree, with a deleted range, closed",
            "sptree, with keyspaces, closed",
        ],
    ),
    (
        EngineKind::Sptree,
        true,
        [
            "sptree with buffers, closed",
            "sptree with buffers, killed beside snapshots",
            "sptree with buffers, killed in a batch",
            "sptree with buffers, with a debt, closed",
            "sptree with buffers, with a deleted range, closed",
            "sptree with buffers, with keyspaces, closed",
        ],
    ),
];

/// One database at six moments: closed, with older versions and deletions that snapshots need, with an undo list,
/// closed beside a snapshot, with a deleted range, and with keyspaces.
fn build_in_memory(engine: EngineKind, buffered: bool) -> [(Image, Map); 6] {
    let mut options = options(engine);
    (options.sptree.buffered, options.sptree.log_bytes) = (buffered, 4096);
    let bed = Image::empty(options, Granularity::CacheLine).bed();
    let (db, mut map) = (bed.open().unwrap(), Map::new());
    let put = |map: &mut Map, i, version| {
        db.put(&key(i), &value(i, version)).unwrap();
        map.insert(key(i), value(i, version));
    };
    (0..KEYS).for_each(|i| put(&mut map, i, 0));
    let mut held = vec![db.snapshot()];
    (0..KEYS).filter(|i| i % 5 == 1).for_each(|i| put(&mut map, i, 1));
    held.push(db.snapshot());
    (0..KEYS).filter(|i| i % 10 == 1).for_each(|i| put(&mut map, i, 2));
    for i in (0..KEYS).filter(|i| i % 11 == 3) {
        db.delete(&key(i)).unwrap();
        map.remove(&key(i));
    }
    let killed = (bed.image(), map.clone());
    let mut batch = WriteBatch::new();
    (40..46).for_each(|i| batch.put(&key(i), &value(i, 3)));
    (46..50).for_each(|i| batch.delete(&key(i)));
    let film = bed.film(|| db.write(batch).unwrap());
    // Most of it is in the index, and it has not happened.
    let in_a_batch = (film[film.len() * 3 / 4].clone(), map.clone());
    (40..46).for_each(|i| drop(map.insert(key(i), value(i, 3))));
    (46..50).for_each(|i| drop(map.remove(&key(i))));
    drop(held);
    db.close().unwrap();
    let closed = (bed.image(), map);
    let owing = read_over_the_close(&closed);
    let deleted = with_a_deleted_range(&closed);
    let spaces = with_keyspaces(&closed);
    [closed, killed, in_a_batch, owing, deleted, spaces]
}

/// A kind of allocation that no engine has.
const NOBODYS: Kind = Kind(250);

/// The same, killed with something in the pool that belongs to nobody, opened and closed at once: nothing of that was
/// reclaimed.
fn closed_at_once((image, map): &(Image, Map)) -> (Image, Map) {
    let bed = image.bed();
    let pool = bed.open_pool();
    pool.activate(&pool.reserve_extent(NOBODYS, 1).unwrap());
    pool.drain();
    drop(pool);
    bed.open_idly().unwrap().close().unwrap();
    owing(&bed, map.clone())
}

/// The same, written to and closed beside a reader: what was replaced, and what the reader needed, is left to the next
/// opening.
fn read_over_the_close((image, map): &(Image, Map)) -> (Image, Map) {
    let bed = image.bed();
    let (db, mut map) = (bed.open().unwrap(), map.clone());
    // In a memtable first, of the engines that have one in the pool.
    (0..KEYS).filter(|i| i % 6 == 1).for_each(|i| db.put(&key(i), &value(i, 20)).unwrap());
    if image.options.engine == EngineKind::Tlsm {
        // And of the one that has lists there, in a list.
        db.flush().unwrap();
    }
    let snapshot = db.snapshot();
    let mut reader = db.entries().unwrap();
    assert!(reader.next().unwrap().is_ok());
    for i in (0..KEYS).filter(|i| i % 3 == 1) {
        db.put(&key(i), &value(i, 21)).unwrap();
        map.insert(key(i), value(i, 21));
    }
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    db.close().unwrap();
    let owing = owing(&bed, map);
    drop((reader, snapshot));
    owing
}

/// What lies on `bed`, whose pool was closed with a debt.
fn owing(bed: &Bed, map: Map) -> (Image, Map) {
    let image = bed.image();
    assert!(image.bed().open_pool().needs_reclaim(), "{:?}: nothing is owed", image.options.engine);
    (image, map)
}

/// The same after a power cut, which happened to take nothing.
fn rebooted((image, map): &(Image, Map)) -> (Image, Map) {
    (Image { boot: "the second boot", ..image.clone() }, map.clone())
}

fn samples_of_slm() -> Vec<Sample> {
    let memory = build(EngineKind::Slm, Granularity::CacheLine);
    let file = build(EngineKind::Slm, Granularity::Page);
    let (torn_flush, torn_compaction) = (rebooted(&file.flush), rebooted(&file.compaction));
    vec![
        sample("persistent memory, with a debt, closed", read_over_the_close(&memory.closed)),
        sample("persistent memory, with a deleted range, closed", with_a_deleted_range(&memory.closed)),
        sample("persistent memory, with keyspaces, closed", with_keyspaces(&memory.closed)),
        sample("persistent memory, closed", memory.closed),
        sample("persistent memory, killed in a flush", memory.flush),
        sample("persistent memory, killed in a compaction", memory.compaction),
        sample("a file, with a deleted range, closed", with_a_deleted_range(&file.closed)),
        sample("a file, closed", file.closed),
        sample("a file, with a debt, closed", closed_at_once(&file.compaction)),
        sample("a file, killed in a flush", file.flush),
        sample("a file, killed in a compaction", file.compaction),
        sample("a file, power cut in a flush", torn_flush),
        sample("a file, power cut in a compaction", torn_compaction),
    ]
}

fn sample(name: &'static str, (image, right): (Image, Map)) -> Sample {
    let closed = name.ends_with("closed");
    if closed {
        let options = Options { read_only: true, ..image.options.clone() };
        let only_read = Image { options, ..image.clone() }.bed().open().unwrap();
        assert_eq!(only_read.check().unwrap().problems, Vec::<String>::new(), "{name}, only read");
    }
    let db = image.bed().open().unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(name.ends_with("batch"), db.stats().opened.contains("took back"), "{name}");
    let buckets = db.stats().buckets.buckets;
    assert!(buckets > 1 || !name.starts_with("buckets"), "{name}: of one bucket");
    let found = all_of(&db).unwrap();
    assert!(found == right, "{name}: the sample itself is not what was written");
    assert_eq!(db.check().unwrap().problems, Vec::<String>::new(), "{name}");
    Sample { name, image, right, closed }
}
