//! What is particular to CCEH: damage where slots have no checks, full pools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::rng::Rng;
use terrace_base::{Error, ErrorKind, Result};
use terrace_index::{ByteMap, HashIndex, PointIndex, ScanBatch, ScanPosition, kinds};
use terrace_index_extra::Cceh;
use terrace_pmem::{Granularity, Media, MemMedia, POff, Pool, PoolOptions};

use crate::bed::{assert_marked, options};
use crate::conformance::SEED;

/// Segments of 16 slots, so that there are many of them.
type Table = Cceh<4, 2>;

/// Keys that were inserted; those whose number is a multiple of 7 are not there any more.
const KEYS: u64 = 120;

fn name(i: u64) -> Vec<u8> {
    if i.is_multiple_of(3) { format!("key-{i:05}").into_bytes() } else { i.to_le_bytes().to_vec() }
}

fn word(i: u64) -> Option<u64> {
    (i < KEYS && !i.is_multiple_of(7)).then_some(i + 1)
}

/// What a word of the pool is to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Header or directory: every key needs it.
    Route,
    /// A key word, or the value of a pair of 8 and 8 bytes. It has no check, and the key may be lost or read wrongly.
    Unchecked(Option<u64>),
    /// A record of this key, or the word of a slot that leads to it.
    Checked(u64),
}

impl Part {
    /// Whether an error for key `i` is in order if this is damaged.
    fn may_refuse(self, i: u64) -> bool {
        self == Part::Route || self.is_of(i)
    }

    fn is_of(self, i: u64) -> bool {
        matches!(self, Part::Unchecked(Some(key)) | Part::Checked(key) if key == i)
    }
}

/// What the table holds.
fn written() -> BTreeMap<u64, u64> {
    (0..KEYS).filter_map(|i| Some((i, word(i)?))).collect()
}

fn options_of_table() -> PoolOptions {
    PoolOptions { size: 128 << 10, max_size: 1 << 20, ..options() }
}

fn full_table(pool: &Pool) -> Table {
    let table = Table::create_seeded(pool, "table", 0, SEED).unwrap();
    (0..KEYS).for_each(|i| assert_eq!(table.insert(&name(i), i + 1).unwrap(), None));
    (0..KEYS).filter(|i| word(*i).is_none()).for_each(|i| assert!(table.delete(&name(i)).unwrap()));
    assert_eq!(table.check().unwrap(), Vec::<String>::new());
    // Empties limbo.
    table.close().unwrap();
    table
}

fn load(pool: &Pool, at: u64) -> u64 {
    pool.atomic(POff::new(at)).load(Ordering::Relaxed)
}

fn flip(pool: &Pool, at: u64, bit: u64) {
    pool.atomic(POff::new(at)).fetch_xor(1 << bit, Ordering::Relaxed);
}

/// Every word of the pool that is the table's.
fn parts(pool: &Pool) -> Vec<(u64, Part)> {
    let there = || (0..KEYS).filter(|i| word(*i).is_some());
    let mut records = BTreeMap::new();
    for (at, _) in pool.slots(kinds::CCEH_PAIR) {
        // SAFETY: within the pool; nobody writes it meanwhile.
        let key = unsafe { pool.bytes(at + 12, name(0).len() as u64).unwrap() };
        records.insert(at, there().find(|i| name(*i) == key).unwrap());
    }
    let words = |at: u64, bytes: u64| (at..at + bytes).step_by(8);
    let routes = pool.slots(kinds::CCEH).flat_map(|(at, bytes)| words(at, bytes)).map(|at| (at, Part::Route));
    let mut parts: Vec<_> = routes.collect();
    for (at, bytes) in pool.slots(kinds::CCEH_PAIR) {
        parts.extend(words(at, bytes).map(|word| (word, Part::Checked(records[&at]))));
    }
    for extent in pool.extents(kinds::CCEH) {
        for slot in (extent.offset..extent.offset + extent.bytes).step_by(16) {
            let value = load(pool, slot + 8);
            let record = records.get(&value).copied();
            let key = record.or_else(|| there().find(|i| word(*i) == Some(value)));
            parts.push((slot, Part::Unchecked(key)));
            parts.push((slot + 8, record.map_or(Part::Unchecked(key), Part::Checked)));
        }
    }
    parts
}

fn is_damage(e: &Error) -> bool {
    e.kind() == ErrorKind::Corruption
}

/// Whether `result` about key `i` is `right`, or what may be said of it if `part` is damaged.
fn admit(result: Result<Option<u64>>, right: Option<u64>, i: u64, part: Part) {
    match result {
        Ok(found) if found == right => {}
        Ok(found) => assert_eq!(part, Part::Unchecked(Some(i)), "key {i}: {found:?}, not {right:?}"),
        Err(e) => assert!(is_damage(&e) && part.may_refuse(i), "key {i}, {part:?}: {e}"),
    }
}

/// What is read if `part` is damaged; `right` is what was written.
fn read_all(table: &Table, right: &BTreeMap<u64, u64>, part: Part) {
    for i in 0..KEYS + 20 {
        admit(PointIndex::get(table, &name(i)), right.get(&i).copied(), i, part);
    }
    match scan(table) {
        Ok(found) => {
            for (i, word) in right.iter().filter(|(i, _)| part != Part::Unchecked(Some(**i))) {
                assert!(found.contains(&(name(*i), *word)), "key {i} is missed");
            }
            // Nothing else, or what has become of one key.
            assert!(found.len() <= right.len() + usize::from(matches!(part, Part::Unchecked(_))));
        }
        Err(e) => assert!(is_damage(&e), "{e}"),
    }
}

fn scan(table: &Table) -> Result<BTreeSet<(Vec<u8>, u64)>> {
    let (mut cursor, mut batch, mut found) = (ScanPosition::START, ScanBatch::new(), BTreeSet::new());
    for step in 0.. {
        if cursor.is_end() {
            break;
        }
        assert!(step < 1000, "a scan without an end");
        batch.clear();
        table.scan_unordered(&mut cursor, 7, &mut batch)?;
        found.extend(batch.iter().map(|(key, word)| (key.to_vec(), word)));
    }
    Ok(found)
}

/// Whatever is asked is answered or refused. Whether the check has found something.
fn look_around(pool: &Pool, table: &Table) -> bool {
    let damaged = |e: Error| assert!(is_damage(&e), "{e}");
    let _ = (table.len(), table.pm_bytes(), table.dram_bytes(), table.load_factor());
    table.figures().map_or_else(damaged, drop);
    table.mark(&mut pool.marks()).map_or_else(damaged, drop);
    table.check().map_or_else(|e| is_damage(&e), |findings| !findings.is_empty())
}

/// Changes keys, half of which are new.
fn change_all(table: &Table, right: &mut BTreeMap<u64, u64>, part: Part) {
    for i in (0..KEYS).step_by(2).chain(1000..1040) {
        let before = right.insert(i, i + 500);
        let result = table.insert(&name(i), i + 500);
        if result.is_err() {
            right.extend(before.map(|word| (i, word)));
        }
        admit(result, before, i, part);
    }
    for i in (1..KEYS).step_by(2) {
        let before = right.remove(&i);
        let result = table.remove(&name(i));
        if result.is_err() {
            right.extend(before.map(|word| (i, word)));
        }
        admit(result, before, i, part);
    }
}

/// Bits to be flipped: two of each word of the table's, and many of the few words that every key needs.
fn flips(pool: &Pool) -> Vec<(u64, Part, u64)> {
    let mut rng = Rng::new(5);
    let mut flips = Vec::new();
    for (at, part) in parts(pool) {
        let drawn = [rng.below(32), 32 + rng.below(32)];
        flips.extend(drawn.map(|bit| (at, part, bit)));
        if part == Part::Route {
            flips.extend((at / 8 % 3..64).step_by(3).map(|bit| (at, part, bit)));
        }
    }
    flips
}

/// A new medium that holds `image`.
fn media_of(image: &[u8]) -> Arc<MemMedia> {
    let media = MemMedia::new(image.len() as u64, 1 << 20, Granularity::CacheLine).unwrap();
    // SAFETY: as long as the image, and nobody else has it.
    unsafe { media.base().copy_from_nonoverlapping(image.as_ptr(), image.len()) };
    Arc::new(media)
}

/// Opens the table of a pool with a flipped bit, reads, writes, and opens it again. Whether the damage was told.
fn live_on(pool: &Pool, part: Part) -> bool {
    let mut right = written();
    let table = match Table::open(pool, "table") {
        Ok(table) => table,
        Err(e) => {
            assert!(is_damage(&e) && part == Part::Route, "{part:?}: {e}");
            return true;
        }
    };
    read_all(&table, &right, part);
    let told = look_around(pool, &table);
    change_all(&table, &mut right, part);
    read_all(&table, &right, part);
    table.close().unwrap();
    drop(table);
    let table = Table::open(pool, "table").unwrap();
    read_all(&table, &right, part);
    look_around(pool, &table);
    told
}

/// Any bit of anything that the table has in the pool may be flipped, while it is open or before: whoever reads, scans,
/// checks or writes gets an answer or an error; a right answer, but for the key whose slot it was.
#[test]
fn a_flipped_bit_harms_no_other_key_and_no_record() {
    let (options, path) = (options_of_table(), Path::new("memory"));
    let media = Arc::new(MemMedia::new(options.size, options.max_size, Granularity::CacheLine).unwrap());
    let pool = Pool::create_on(media.clone(), path, &options).unwrap();
    let table = full_table(&pool);
    let flips = flips(&pool);
    for &(at, part, bit) in &flips {
        flip(&pool, at, bit);
        read_all(&table, &written(), part);
        look_around(&pool, &table);
        flip(&pool, at, bit);
    }
    read_all(&table, &written(), Part::Unchecked(None));
    table.close().unwrap();
    drop(table);
    pool.close().unwrap();
    drop(pool);
    // SAFETY: the medium lives on, and nobody uses the pool any more.
    let image = unsafe { std::slice::from_raw_parts(media.base(), media.len() as usize) };
    let mut told = 0;
    for &(at, part, bit) in &flips {
        let pool = Pool::open_on(media_of(image), path, &options).unwrap();
        flip(&pool, at, bit);
        told += usize::from(live_on(&pool, part));
    }
    assert!(told > flips.len() / 4, "{told} of {} told", flips.len());
}

/// Of a damaged record nothing is said but that it is damaged, and so it is where a slot leads to another key's.
#[test]
fn damaged_records_are_told() {
    let media = MemMedia::new(128 << 10, 1 << 20, Granularity::CacheLine).unwrap();
    let pool = Pool::create_on(Arc::new(media), Path::new("memory"), &options_of_table()).unwrap();
    let table = full_table(&pool);
    let records: BTreeSet<_> = pool.slots(kinds::CCEH_PAIR).map(|(at, _)| at).collect();
    let others = |at: u64| records.iter().copied().find(|record| *record != at).unwrap();
    let mut strange = 0;
    for (at, part) in parts(&pool) {
        let Part::Checked(i) = part else { continue };
        let old = load(&pool, at);
        if records.contains(&old) {
            // A slot. Where a split has left a copy of it, that is void.
            pool.atomic(POff::new(at)).store(others(old), Ordering::Relaxed);
            match PointIndex::get(&table, &name(i)) {
                Ok(found) => assert_eq!(found, word(i)),
                Err(e) => {
                    assert!(is_damage(&e) && scan(&table).is_err_and(|e| is_damage(&e)));
                    assert!(table.remove(&name(i)).is_err_and(|e| is_damage(&e)));
                    strange += 1;
                }
            }
            pool.atomic(POff::new(at)).store(old, Ordering::Relaxed);
            continue;
        }
        // Of 29 bytes: in the fourth word three are nobody's.
        let bits = if records.contains(&(at - 24)) { 40 } else { 64 };
        for bit in (0..bits).step_by(3) {
            flip(&pool, at, bit);
            assert!(PointIndex::get(&table, &name(i)).is_err_and(|e| is_damage(&e)), "bit {bit} of {at:#x}");
            assert!(table.remove(&name(i)).is_err_and(|e| is_damage(&e)));
            assert!(!table.check().unwrap().is_empty(), "bit {bit} of {at:#x}");
            flip(&pool, at, bit);
        }
    }
    assert_eq!(strange, records.len());
    assert_eq!(table.check().unwrap(), Vec::<String>::new());
}

#[test]
fn a_full_pool_is_an_error_and_loses_nothing() {
    for value_bytes in [8, 100] {
        let media = Arc::new(MemMedia::new(1 << 20, 2 << 20, Granularity::CacheLine).unwrap());
        let (path, opts) = (Path::new("memory"), PoolOptions { max_size: 2 << 20, ..options() });
        let pool = Pool::create_on(media.clone(), path, &opts).unwrap();
        let table = Cceh::<16, 2>::create_seeded(&pool, "table", 0, 0x4345_4843).unwrap();
        let value = |i: u64| {
            let mut value = vec![3; value_bytes];
            value[..8].copy_from_slice(&i.to_le_bytes());
            value
        };
        let holds = |table: &Cceh<16, 2>, n: u64, refused: u64| {
            assert_eq!((table.check().unwrap(), table.len()), (Vec::new(), n));
            let mut found = Vec::new();
            for i in 0..n {
                assert!(ByteMap::get(table, &i.to_le_bytes(), &mut found).unwrap());
                assert_eq!(found, value(i));
            }
            assert!(!ByteMap::get(table, &refused.to_le_bytes(), &mut found).unwrap());
        };
        let mut n = 0u64;
        let full = loop {
            match table.put(&n.to_le_bytes(), &value(n)) {
                Ok(there) => assert!(!there),
                Err(e) => break e,
            }
            n += 1;
        };
        assert_eq!(full.kind(), ErrorKind::PoolFull);
        assert!(n > 5000, "{n}");
        holds(&table, n, n);
        // What is deleted makes room at once.
        (0..5u64).for_each(|i| assert!(table.delete(&i.to_le_bytes()).unwrap()));
        (0..5u64).for_each(|i| assert!(!table.put(&i.to_le_bytes(), &value(i)).unwrap()));
        holds(&table, n, n);
        table.close().unwrap();
        drop(table);
        pool.close().unwrap();
        drop(pool);
        let pool = Pool::open_on(media, path, &opts).unwrap();
        let table = Cceh::<16, 2>::open(&pool, "table").unwrap();
        holds(&table, n, n);
        if value_bytes == 8 {
            // Needs no room.
            (0..n).for_each(|i| assert!(table.put(&i.to_le_bytes(), &value(i)).unwrap()));
        }
        (0..n).for_each(|i| assert!(table.delete(&i.to_le_bytes()).unwrap()));
        table.close().unwrap();
        holds(&table, 0, 0);
        (0..n / 2).for_each(|i| assert!(!table.put(&i.to_le_bytes(), &value(i)).unwrap()));
        holds(&table, n / 2, n);
        table.close().unwrap();
        assert_marked(&pool, |marks| table.mark(marks));
    }
}
