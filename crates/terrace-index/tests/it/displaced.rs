//! Blocks that lie where they were not written: a table answers rightly or says what is wrong.

use std::collections::BTreeMap;

use terrace_base::rng::Rng;
use terrace_index::{ByteMap, PointIndex, ScanPosition, TurboHash, TurboHashOptions, kinds};
use terrace_pmem::{Kind, Pool};

use crate::bed::memory_pool;
use crate::conformance::SEED;

/// Keys that tables are asked for: those below the first have been there, of which some are deleted.
const KEYS: std::ops::Range<u64> = 0..1200;

/// What a table consists of.
const OF_TABLES: [Kind; 2] = [kinds::TURBOHASH, kinds::TURBOHASH_PAIR];

type Contents = BTreeMap<Vec<u8>, u64>;

/// Keys of eight bytes, which lie in their slots, and others, which lie in records.
fn key(i: u64) -> Vec<u8> {
    if i.is_multiple_of(3) { i.to_le_bytes().to_vec() } else { format!("key-{i:05}").into_bytes() }
}

/// A table of `keys` keys, some updated and some deleted.
fn filled(pool: &Pool, shards: u32, keys: u64, seed: u64) -> (TurboHash, Contents) {
    let options = TurboHashOptions { shards, initial_buckets: 1, probing_scope: 8, seed: Some(seed) };
    let table = TurboHash::create(pool, "table", &options).unwrap();
    let mut contents = Contents::new();
    for (i, add) in (0..keys).map(|i| (i, 1)).chain((0..keys).step_by(3).map(|i| (i, 100_000))) {
        table.insert(&key(i), i + add).unwrap();
        contents.insert(key(i), i + add);
    }
    for i in (0..keys).step_by(11) {
        assert!(table.delete(&key(i)).unwrap());
        contents.remove(&key(i));
    }
    table.drain();
    (table, contents)
}

/// The blocks of `bytes` in which anything of these kinds lies.
pub fn blocks(pool: &Pool, kinds: &[Kind], bytes: u64) -> Vec<u64> {
    let slots = kinds.iter().flat_map(|kind| pool.slots(*kind));
    let mut blocks: Vec<u64> =
        slots.flat_map(|(at, len)| (at / bytes * bytes..at + len).step_by(bytes as usize)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

fn read(pool: &Pool, at: u64, bytes: u64) -> Vec<u8> {
    // SAFETY: within the pool; nobody writes it meanwhile.
    unsafe { pool.bytes(at, bytes).unwrap() }.to_vec()
}

/// How many questions were answered with an error; the others are answered rightly.
fn judge(table: &TurboHash, contents: &Contents, case: &str) -> u64 {
    let mut errors = 0;
    let mut right = |found: terrace_base::Result<bool>, what: &str| match found {
        Ok(right) => assert!(right, "{what}: {case}"),
        Err(_) => errors += 1,
    };
    for i in KEYS {
        let (key, wanted) = (key(i), contents.get(&key(i)).copied());
        right(PointIndex::get(table, &key).map(|found| found == wanted), "get");
        // What it expects is never there, so it changes nothing: the search is a writer's.
        let exchanged = table.compare_exchange(&key, Some(u64::MAX >> 1), None);
        right(exchanged.map(|outcome| outcome == Err(wanted)), "compare_exchange");
        if wanted.is_none() {
            right(table.delete(&key).map(|existed| !existed), "delete");
        }
    }
    let (mut found, mut cursor) = (Contents::new(), ScanPosition::START);
    let mut twice = false;
    let scanned = (|| {
        while !cursor.is_end() {
            table.scan_pairs(&mut cursor, 50, &mut |key, value| {
                let word = u64::from_le_bytes(value.try_into().unwrap());
                twice |= found.insert(key.to_vec(), word).is_some();
                Ok(())
            })?;
        }
        Ok(())
    })();
    right(scanned.map(|()| !twice && found == *contents), "scan");
    errors
}

/// The case `case` of a damaged pool: whether anything was said before, and that `check` says it, too.
fn is_told(pool: &Pool, contents: &Contents, case: &str) -> bool {
    let Ok(table) = TurboHash::open(pool, "table") else { return true };
    let is_told = judge(&table, contents, case) > 0;
    let is_sound = table.check().is_ok_and(|findings| findings.is_empty());
    assert!(!is_told || !is_sound, "not found by check: {case}");
    is_told
}

/// What lies at one place is put at another, or changes places with it, as a page that was written to the wrong address
/// does.
#[test]
fn what_lies_in_another_place_is_told_by_whatever_comes_by() {
    let mut told = BTreeMap::new();
    for (shards, keys) in [(2, 1000), (16, 1000)] {
        let pool = memory_pool();
        let (table, contents) = filled(&pool, shards, keys, SEED);
        assert_eq!(judge(&table, &contents, "sound"), 0);
        drop(table);
        let mut rng = Rng::new(u64::from(shards));
        for case in 0..240 {
            let bytes = [64, 256, 4096][case % 3];
            let blocks = blocks(&pool, &OF_TABLES, bytes);
            let mut any = || blocks[rng.below(blocks.len() as u64) as usize];
            // Every other time what is next to it, as in the worst case for checks that are sums.
            let from = any();
            let to = if case / 3 % 2 == 0 { any() } else { from + bytes };
            if !blocks.contains(&to) || from == to {
                continue;
            }
            let olds = [(from, read(&pool, from, bytes)), (to, read(&pool, to, bytes))];
            pool.write(to, &olds[0].1);
            if case / 6 % 2 == 0 {
                pool.write(from, &olds[1].1);
            }
            let case = format!("case {case} of {shards} shards: {bytes} bytes at {from:#x} put at {to:#x}");
            *told.entry((shards, bytes, is_told(&pool, &contents, &case))).or_insert(0) += 1;
            olds.iter().for_each(|(at, old)| pool.write(*at, old));
        }
        assert_eq!(judge(&TurboHash::open(&pool, "table").unwrap(), &contents, "restored"), 0);
    }
    assert!(told.iter().all(|((_, _, is_told), count)| !is_told || *count > 30), "{told:?}");
}

/// A page of the pool of another database, of the same keys, from the same place.
#[test]
fn what_lies_in_another_pool_is_told_by_whatever_comes_by() {
    let (pool, other) = (memory_pool(), memory_pool());
    let (_, contents) = filled(&pool, 16, 1000, SEED);
    drop(filled(&other, 16, 700, SEED ^ 0x0123_4567_89AB_CDEF));
    let mut told = 0;
    for bytes in [64, 256, 4096] {
        let there = blocks(&other, &OF_TABLES, bytes);
        let common: Vec<u64> =
            blocks(&pool, &OF_TABLES, bytes).into_iter().filter(|at| there.contains(at)).collect();
        for at in common.into_iter().step_by((4096 / bytes).min(8) as usize) {
            let old = read(&pool, at, bytes);
            pool.write(at, &read(&other, at, bytes));
            told += u64::from(is_told(&pool, &contents, &format!("{bytes} bytes at {at:#x}")));
            pool.write(at, &old);
        }
    }
    assert!(told > 30, "{told}");
}
