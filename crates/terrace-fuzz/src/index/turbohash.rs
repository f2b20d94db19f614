//! The sharded hash table.

use std::sync::OnceLock;

use terrace_index::{ByteMap, PointIndex, ScanPosition, TurboHash, TurboHashOptions};
use terrace_pmem::Pool;

use super::ordered::Errors;
use super::{ROOT, SEED, colliding_key, hashed, mixed_key, variant};
use crate::memory::{image, new_pool, open_pool, typed};
use crate::patched;

/// Few shards of few buckets, so that most of them have been rehashed, to several sizes.
const OPTIONS: TurboHashOptions =
    TurboHashOptions { shards: 4, initial_buckets: 1, probing_scope: 3, seed: Some(SEED) };

/// More keys than the others are asked about, so that there are longer paths.
const KEYS: u64 = 150;

/// The variant whose keys all have one hash.
const COLLIDING: usize = 3;

/// The keys of a variant.
fn keys_of(variant: usize) -> fn(u64) -> Vec<u8> {
    if variant == COLLIDING { colliding_key } else { mixed_key }
}

fn new_table(pool: &Pool, key: fn(u64) -> Vec<u8>) -> TurboHash {
    let table = TurboHash::create(pool, ROOT, &OPTIONS).unwrap();
    for i in 0..KEYS {
        table.insert(&key(i), i + 1).unwrap();
    }
    for i in (0..KEYS).step_by(5) {
        table.remove(&key(i)).unwrap();
    }
    table
}

/// A table that was closed and one that was not, of words; one of other values, too, and one with an overflow.
fn sound(variant: usize) -> &'static [u8] {
    static SOUND: [OnceLock<Vec<u8>>; 4] = [const { OnceLock::new() }; 4];
    let key = keys_of(variant);
    SOUND[variant].get_or_init(|| {
        let pool = new_pool();
        let table = new_table(&pool, key);
        match variant {
            0 => {
                table.close().unwrap();
                pool.close().unwrap();
            }
            1 => {}
            _ => {
                for i in (0..KEYS).step_by(3) {
                    table.put(&key(i), &vec![i as u8; i as usize]).unwrap();
                }
            }
        }
        image(&pool)
    })
}

/// A table answers every question, or reports what is wrong with it.
pub fn turbohash(data: &[u8]) {
    let variant = variant(data, 4);
    let Some(pool) = typed(open_pool(&patched(sound(variant), data))) else { return };
    let Some(table) = typed(TurboHash::open(&pool, ROOT)) else { return };
    if variant >= 2 {
        scan_pairs(&pool, &table);
    }
    hashed::use_it(&pool, &table, Some(&table), &keys_of(variant), Errors::OfReading);
}

/// A table can be scanned with values of any length.
fn scan_pairs(pool: &Pool, table: &TurboHash) {
    let healthy = typed(table.check()).is_some_and(|findings| findings.is_empty());
    let (mut all, mut cursor) = (Vec::new(), ScanPosition::START);
    while !cursor.is_end() {
        let scanned = typed(table.scan_pairs(&mut cursor, 7, &mut |key, value| {
            all.push((key.to_vec(), value.to_vec()));
            Ok(())
        }));
        assert!(all.len() as u64 <= pool.size() / 16, "a scan without end");
        if scanned.is_none() {
            assert!(!healthy, "healthy");
            return;
        }
    }
    let mut found = Vec::new();
    for (key, value) in all.iter().filter(|_| healthy) {
        assert!(ByteMap::get(table, key, &mut found).unwrap());
        assert_eq!(found, *value);
    }
}
