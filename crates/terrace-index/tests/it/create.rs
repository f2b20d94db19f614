//! Creations that fail: an error, and the pool as it was.

use terrace_base::Result;
use terrace_index::{FastFair, SpOptions, SpTree, TurboHash, TurboHashOptions};
use terrace_pmem::Pool;

use crate::conformance::{Creation, finding_no_room_leaves_nothing, finding_no_root_leaves_nothing};

const CREATIONS: [Creation; 6] = [
    ("fastfair", |pool| FastFair::<28>::create(pool, "index").map(drop)),
    ("fastfair, large nodes", |pool| FastFair::<300>::create(pool, "index").map(drop)),
    ("turbohash", |pool| turbohash(pool, 8)),
    ("turbohash, a large directory", |pool| turbohash(pool, 2048)),
    ("sptree", |pool| sptree(pool, false)),
    ("sptree, buffered", |pool| sptree(pool, true)),
];

fn turbohash(pool: &Pool, shards: u32) -> Result<()> {
    TurboHash::create(pool, "index", &TurboHashOptions { shards, ..TurboHashOptions::default() }).map(drop)
}

fn sptree(pool: &Pool, buffered: bool) -> Result<()> {
    SpTree::create(pool, "index", &SpOptions { buffered, logs: 2, ..SpOptions::default() }).map(drop)
}

#[test]
fn what_finds_no_room_leaves_nothing() {
    finding_no_room_leaves_nothing(&CREATIONS);
}

#[test]
fn what_can_not_be_named_leaves_nothing() {
    finding_no_root_leaves_nothing(&CREATIONS);
}
