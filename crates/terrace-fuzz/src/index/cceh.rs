//! The hash table of segments.

use std::sync::OnceLock;

use terrace_index::{ByteMap, PointIndex};
use terrace_index_extra::Cceh;

use super::ordered::Errors;
use super::{ROOT, SEED, colliding_key, hashed, mixed_key, variant};
use crate::memory::{image, new_pool, open_pool, typed};
use crate::patched;

/// Small segments, so that there are many, of several depths.
type Table = Cceh<4, 2>;

/// The variant whose keys all have one hash.
const COLLIDING: usize = 3;

/// The keys of a variant.
fn keys_of(variant: usize) -> fn(u64) -> Vec<u8> {
    if variant == COLLIDING { colliding_key } else { mixed_key }
}

/// A table that was closed and one that was not, of words; one of other values, too, and one with an overflow.
fn sound(variant: usize) -> &'static [u8] {
    static SOUND: [OnceLock<Vec<u8>>; 4] = [const { OnceLock::new() }; 4];
    let key = keys_of(variant);
    SOUND[variant].get_or_init(|| {
        let pool = new_pool();
        let table = Table::create_seeded(&pool, ROOT, 0, SEED).unwrap();
        for i in 0..75 {
            table.insert(&key(i), i + 1).unwrap();
        }
        for i in (0..75).step_by(5) {
            table.remove(&key(i)).unwrap();
        }
        match variant {
            0 => {
                table.close().unwrap();
                pool.close().unwrap();
            }
            1 => {}
            _ => {
                for i in (0..75).step_by(3) {
                    table.put(&key(i), &vec![i as u8; i as usize]).unwrap();
                }
            }
        }
        image(&pool)
    })
}

/// A table answers every question, or reports what is wrong with it.
pub fn cceh(data: &[u8]) {
    let variant = variant(data, 4);
    let Some(pool) = typed(open_pool(&patched(sound(variant), data))) else { return };
    let Some(table) = typed(Table::open(&pool, ROOT)) else { return };
    hashed::use_it(&pool, &table, Some(&table), &keys_of(variant), Errors::OfReading);
}
