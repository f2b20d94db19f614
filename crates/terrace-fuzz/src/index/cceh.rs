//! The hash table of segments.

use std::sync::OnceLock;

use terrace_index::{ByteMap, Cceh, HashIndex};

use super::ordered::Errors;
use super::{ROOT, hashed, mixed_key, variant};
use crate::memory::{image, new_pool, open_pool, typed};
use crate::patched;

/// Small segments, so that there are many, of several depths.
type Table = Cceh<4, 2>;

/// A table that was closed and one that was not, of words; and one of other values, too.
fn sound(variant: usize) -> &'static [u8] {
    static SOUND: [OnceLock<Vec<u8>>; 3] = [const { OnceLock::new() }; 3];
    SOUND[variant].get_or_init(|| {
        let pool = new_pool();
        let table = Table::create(&pool, ROOT).unwrap();
        for i in 0..75 {
            table.insert(&mixed_key(i), i + 1).unwrap();
        }
        for i in (0..75).step_by(5) {
            table.remove(&mixed_key(i)).unwrap();
        }
        match variant {
            0 => {
                table.close().unwrap();
                pool.close().unwrap();
            }
            1 => {}
            _ => {
                for i in (0..75).step_by(3) {
                    table.put(&mixed_key(i), &vec![i as u8; i as usize]).unwrap();
                }
            }
        }
        image(&pool)
    })
}

/// A table answers or says what is wrong with it, whatever is asked.
pub fn cceh(data: &[u8]) {
    let Some(pool) = typed(open_pool(&patched(sound(variant(data, 3)), data))) else { return };
    let Some(table) = typed(Table::open(&pool, ROOT)) else { return };
    hashed::use_it(&pool, &table, Some(&table), &mixed_key, Errors::OfReading);
}
