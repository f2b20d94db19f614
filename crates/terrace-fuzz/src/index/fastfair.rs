//! The index tree.

use std::sync::OnceLock;

use terrace_index::{FastFair, PointIndex};

use super::ordered::{Errors, use_it};
use super::{ROOT, key};
use crate::memory::{image, new_pool, open_pool, typed};
use crate::patched;

/// Small nodes, so that there are several levels.
type Tree = FastFair<4>;

fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let pool = new_pool();
        let tree = Tree::create(&pool, ROOT).unwrap();
        for i in 0..70 {
            tree.insert(&key(i), i + 1).unwrap();
        }
        for i in (0..70).step_by(5) {
            tree.remove(&key(i)).unwrap();
        }
        tree.close().unwrap();
        image(&pool)
    })
}

/// A tree answers every question, or reports what is wrong with it.
pub fn fastfair(data: &[u8]) {
    let Some(pool) = typed(open_pool(&patched(sound(), data))) else { return };
    let Some(tree) = typed(Tree::open(&pool, ROOT)) else { return };
    use_it(&pool, &tree, &key, Errors::OfReading);
}
