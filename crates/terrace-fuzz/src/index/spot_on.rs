//! Write buffers over the other indexes: their contents are in a log alone.

use std::sync::OnceLock;

use terrace_index::{FastFair, OrderedIndex, PointIndex, SkipIndex};
use terrace_index_extra::buffered::{Base, Merge};
use terrace_index_extra::{BufferOptions, BufferedIndex, Cceh};
use terrace_pmem::Pool;

use super::ordered::{self, Errors};
use super::{ROOT, hashed, mixed_key, variant};
use crate::memory::{image, new_pool_of, open_pool_of, typed};
use crate::patched;

type Tree = FastFair<4>;
type Table = Cceh<4, 2>;

/// The arena of a skiplist begins with 1 MiB.
const MAX_POOL_BYTES: u64 = 4 << 20;

fn options(merge: Merge) -> BufferOptions {
    BufferOptions { merge, cache: true, capacity: Some(5), log_bytes: 700, lanes: 2, seed: Some(7) }
}

/// Which of the structures an image is of.
#[derive(Clone, Copy)]
enum Over {
    Tree,
    Table,
    List,
}

fn fill<B: Base>(pool: &Pool, closed: bool) {
    let index = BufferedIndex::<B>::create(pool, ROOT, &options(Merge::OutOfPlace)).unwrap();
    (0..75).for_each(|i| assert!(index.insert(&mixed_key(i), i + 1).is_ok()));
    (0..75).step_by(5).for_each(|i| assert!(index.remove(&mixed_key(i)).is_ok()));
    if closed {
        index.close().unwrap();
    }
}

/// An image that was closed, or one as a crash leaves it.
fn sound(over: Over, closed: bool) -> &'static [u8] {
    static SOUND: [OnceLock<Vec<u8>>; 6] = [const { OnceLock::new() }; 6];
    SOUND[over as usize * 2 + usize::from(closed)].get_or_init(|| {
        let pool = new_pool_of(MAX_POOL_BYTES);
        match over {
            Over::Tree => fill::<Tree>(&pool, closed),
            Over::List => fill::<SkipIndex>(&pool, closed),
            Over::Table => fill::<Table>(&pool, closed),
        }
        if closed {
            pool.close().unwrap();
        }
        image(&pool)
    })
}

/// An index with write buffers answers every question, or reports what is wrong with it.
pub fn spot_on(data: &[u8]) {
    let variant = variant(data, 12);
    let over = [Over::Tree, Over::Table, Over::List][variant % 3];
    let merge = if (variant / 3).is_multiple_of(2) { Merge::OutOfPlace } else { Merge::InPlace };
    let image = patched(sound(over, variant >= 6), data);
    let Some(pool) = typed(open_pool_of(&image, MAX_POOL_BYTES)) else { return };
    match over {
        Over::Tree => use_ordered::<Tree>(&pool, merge),
        Over::List => use_ordered::<SkipIndex>(&pool, merge),
        Over::Table => {
            let opened = BufferedIndex::<Table>::open(&pool, ROOT, &options(merge));
            let Some(index) = Errors::OfRoomToo.admit(opened) else { return };
            hashed::use_it(&pool, &index, None, &mixed_key, Errors::OfRoomToo);
        }
    }
}

fn use_ordered<B: Base + OrderedIndex>(pool: &Pool, merge: Merge) {
    let opened = BufferedIndex::<B>::open(pool, ROOT, &options(merge));
    let Some(index) = Errors::OfRoomToo.admit(opened) else { return };
    ordered::use_it(pool, &index, &mixed_key, Errors::OfRoomToo);
}
