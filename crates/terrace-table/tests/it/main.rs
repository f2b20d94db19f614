//! Integration tests of terrace-table.
#![expect(clippy::unwrap_used, reason = "test helpers outside test functions fail by panicking too")]

mod build;
mod crafted;
mod damage;
mod disks;
mod golden;
mod large;
mod lazy;
mod lookups;
mod mapped;
mod memfs;
mod merge;
mod model;
mod sample;
mod scrub;
mod util;
