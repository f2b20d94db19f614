//! The tree whose inner nodes are in DRAM, with write buffers and without.

use std::sync::{Arc, OnceLock};

use terrace_base::exec::{Executor, Inline};
use terrace_index::{PointIndex, SpOptions, SpTree};
use terrace_pmem::Pool;

use super::ordered::{Errors, use_it};
use super::{ROOT, mixed_key, variant};
use crate::memory::{image, new_pool, open_pool};
use crate::patched;

/// Small leaves, so that there are many, and logs that are soon rotated. Background work waits until it is asked for.
fn options(buffered: bool) -> (SpOptions, Arc<Inline>) {
    let jobs = Arc::new(Inline::default());
    let options = SpOptions {
        buffered,
        buffer_entries: 3,
        log_bytes: 500,
        logs: 2,
        leaf_entries: 6,
        executor: Some(jobs.clone()),
        ..SpOptions::default()
    };
    (options, jobs)
}

fn fill(pool: &Pool, buffered: bool) -> SpTree {
    let (options, jobs) = options(buffered);
    let tree = SpTree::create(pool, ROOT, &options).unwrap();
    for i in 0..75 {
        tree.insert(&mixed_key(i), i + 1).unwrap();
        while jobs.help() {}
    }
    for i in (0..75).step_by(5) {
        tree.remove(&mixed_key(i)).unwrap();
    }
    tree
}

/// The state of a tree in an image.
#[derive(Clone, Copy)]
enum Image {
    Plain,
    Closed,
    /// With entries in the logs alone.
    Crashed,
}

fn sound(of: Image) -> &'static [u8] {
    static SOUND: [OnceLock<Vec<u8>>; 3] = [const { OnceLock::new() }; 3];
    SOUND[of as usize].get_or_init(|| {
        let pool = new_pool();
        let tree = fill(&pool, !matches!(of, Image::Plain));
        if !matches!(of, Image::Crashed) {
            tree.close().unwrap();
            pool.close().unwrap();
        }
        image(&pool)
    })
}

/// Images and whether they are opened with buffers. A log is replayed when the tree is opened, or as keys are asked
/// for.
const VARIANTS: [(Image, bool); 5] = [
    (Image::Plain, false),
    (Image::Crashed, true),
    (Image::Crashed, false),
    (Image::Closed, true),
    (Image::Plain, true),
];

/// A tree answers every question, or reports what is wrong with it, before its background work is done and after.
pub fn sptree(data: &[u8]) {
    let variant = variant(data, 2 * VARIANTS.len());
    let (of, buffered) = VARIANTS[variant / 2];
    let Some(pool) = Errors::OfReading.admit(open_pool(&patched(sound(of), data))) else { return };
    let (options, jobs) = options(buffered);
    let Some(tree) = Errors::OfRoomToo.admit(SpTree::open(&pool, ROOT, &options)) else { return };
    if variant.is_multiple_of(2) {
        while jobs.help() {}
    } else {
        for i in (0..75).step_by(7) {
            Errors::OfRoomToo.admit(tree.get(&mixed_key(i)));
        }
    }
    use_it(&pool, &tree, &mixed_key, Errors::OfRoomToo);
    while jobs.help() {}
    let _ = tree.close();
}
