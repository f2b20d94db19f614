//! The persistent structures: the memtable's list and the indexes.
//!
//! An opened index answers every question, or reports what is wrong with it; and if its check finds nothing wrong, its
//! answers agree with each other.

mod cceh;
mod fastfair;
mod hashed;
mod ordered;
mod pmlist;
mod skiplist;
mod spot_on;
mod sptree;
mod turbohash;

pub use cceh::cceh;
pub use fastfair::fastfair;
pub use pmlist::pmlist;
pub use skiplist::skiplist;
pub use spot_on::spot_on;
pub use sptree::sptree;
pub use turbohash::turbohash;

use terrace_base::{ErrorKind, Result};

use crate::memory::assert_typed;

const ROOT: &str = "root";

fn key(i: u64) -> Vec<u8> {
    format!("key/{:04}", i * 7919 % 1000).into_bytes()
}

/// Keys of which some are short, some of eight bytes, and some long, in no order.
fn mixed_key(i: u64) -> Vec<u8> {
    let scattered = i * 7919 % 1000;
    match i % 4 {
        0 => format!("{scattered}").into_bytes(),
        1 => format!("key/{scattered:04}").into_bytes(),
        2 => scattered.to_be_bytes().to_vec(),
        _ => format!("a long key that begins like others/{scattered:04}").into_bytes(),
    }
}

/// Seed of the tables' hashes, so that every run is the same and keys can be made to collide.
const SEED: u64 = 7;

/// Keys that have one hash with [`SEED`]: most of them lie in a table's overflow.
fn colliding_key(i: u64) -> Vec<u8> {
    terrace_sim::colliding(SEED, i)
}

/// The result, if it is not an error about what was read, or about the room for what had to be written.
#[track_caller]
fn typed_or_full<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            if error.kind() != ErrorKind::PoolFull {
                assert_typed(&error);
            }
            None
        }
    }
}

/// Which of `count` variants of a target an input is for: inputs that are edits begin with any number but 0.
fn variant(data: &[u8], count: usize) -> usize {
    data.first().map_or(0, |first| usize::from(first.saturating_sub(1)) % count)
}
