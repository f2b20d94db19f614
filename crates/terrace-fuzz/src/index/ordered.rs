//! The questions that are put to every ordered index.

use std::ops::Bound;

use terrace_base::Result;
use terrace_index::{OrderedIndex, ScanBatch};
use terrace_pmem::Pool;

use super::typed_or_full;
use crate::memory::typed;

/// The errors that a question may meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Errors {
    /// The bytes read are damaged.
    OfReading,
    /// They are damaged, or there is no room: an index with unfinished work may do it when it is asked.
    OfRoomToo,
}

impl Errors {
    #[track_caller]
    pub fn admit<T>(self, result: Result<T>) -> Option<T> {
        match self {
            Errors::OfReading => typed(result),
            Errors::OfRoomToo => typed_or_full(result),
        }
    }
}

/// Asks an index everything, changes it, and closes it. The first 75 keys of `key` were there.
pub(super) fn use_it(pool: &Pool, index: &dyn OrderedIndex, key: &dyn Fn(u64) -> Vec<u8>, errors: Errors) {
    let healthy = errors.admit(index.check()).is_some_and(|findings| findings.is_empty());
    let (up, down) = (scan(pool, index, false, errors), scan(pool, index, true, errors));
    for i in 0..75 {
        errors.admit(index.get(&key(i)));
    }
    errors.admit(index.mark(&mut pool.marks()));
    let _ = (index.len(), index.dram_bytes(), index.pm_bytes());
    if healthy {
        let (up, mut down) = (up.expect("healthy"), down.expect("healthy"));
        down.reverse();
        assert_eq!(up, down);
        assert!(up.is_sorted_by(|a, b| a.0 < b.0), "out of order");
        assert_eq!(index.len(), up.len() as u64);
        for (key, word) in &up {
            assert_eq!(index.get(key).unwrap(), Some(*word));
        }
    }
    for i in 60..90 {
        // A full pool is the only other allowed error.
        let _ = index.insert(&key(i), 1000 + i);
        let _ = index.remove(&key(i / 2));
        let _ = index.compare_exchange(&key(i), Some(1000 + i), Some(i));
    }
    let _ = scan(pool, index, false, Errors::OfRoomToo);
    let _ = index.check();
    let _ = index.mark(&mut pool.marks());
    let _ = index.close();
}

/// Everything that a scan gives, in steps.
fn scan(pool: &Pool, index: &dyn OrderedIndex, reverse: bool, errors: Errors) -> Option<Vec<(Vec<u8>, u64)>> {
    let most = pool.size() as usize / 16;
    let mut all: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut batch = ScanBatch::new();
    loop {
        batch.clear();
        let from = all.last().map_or(Bound::Unbounded, |(key, _)| Bound::Excluded(&key[..]));
        errors.admit(index.scan(from, reverse, 16, &mut batch))?;
        all.extend(batch.iter().map(|(key, word)| (key.to_vec(), word)));
        assert!(all.len() <= most, "a scan without end");
        if batch.len() < 16 {
            return Some(all);
        }
    }
}
