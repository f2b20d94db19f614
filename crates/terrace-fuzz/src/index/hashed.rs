//! The questions that are put to every hash index.

use std::collections::BTreeSet;

use terrace_base::{ErrorKind, Result};
use terrace_index::{ByteMap, HashIndex, ScanBatch, ScanPosition};
use terrace_pmem::Pool;

use super::ordered::Errors;

/// The result, unless it is an error that damage explains. Damage may have turned a word's record into that of a longer
/// value: it is sound, but not a word.
#[track_caller]
fn answered<T>(errors: Errors, result: Result<T>) -> Option<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::InvalidArgument => None,
        other => errors.admit(other),
    }
}

/// Asks an index everything, changes it, and closes it. The first 75 keys of `key` were there.
pub(super) fn use_it(
    pool: &Pool,
    index: &dyn HashIndex,
    bytes: Option<&dyn ByteMap>,
    key: &dyn Fn(u64) -> Vec<u8>,
    errors: Errors,
) {
    let healthy = errors.admit(index.check()).is_some_and(|findings| findings.is_empty());
    let all = scan(pool, index, errors);
    let mut value = Vec::new();
    for i in 0..75 {
        index.prefetch(&key(i));
        answered(errors, index.get(&key(i)));
        bytes.map(|bytes| errors.admit(bytes.get(&key(i), &mut value)));
    }
    errors.admit(index.mark(&mut pool.marks()));
    let figures = errors.admit(index.figures());
    let _ = (index.len(), index.dram_bytes(), index.pm_bytes());
    if healthy {
        let figures = figures.expect("healthy");
        assert_eq!(figures.keys, index.len());
        assert_eq!(figures.hits.iter().sum::<u64>(), figures.keys);
        if let Some(all) = all {
            assert_eq!(index.len(), all.len() as u64);
            let keys: BTreeSet<_> = all.iter().map(|(key, _)| key).collect();
            assert_eq!(keys.len(), all.len(), "a key that comes twice");
            for (key, word) in &all {
                assert_eq!(index.get(key).unwrap(), Some(*word));
            }
        }
    }
    for i in 60..90 {
        // A full pool is the only other allowed error.
        let _ = index.insert(&key(i), 1000 + i);
        let _ = index.remove(&key(i / 2));
        let _ = index.compare_exchange(&key(i), Some(1000 + i), Some(i));
        let _ = bytes.map(|bytes| bytes.put(&key(i / 3), b"a value of some length"));
        let _ = bytes.map(|bytes| bytes.delete(&key(i / 5)));
    }
    let _ = scan(pool, index, Errors::OfRoomToo);
    let _ = index.check();
    let _ = index.mark(&mut pool.marks());
    let _ = index.close();
}

/// Everything that a scan gives, in steps.
fn scan(pool: &Pool, index: &dyn HashIndex, errors: Errors) -> Option<Vec<(Vec<u8>, u64)>> {
    let most = pool.size() as usize / 16;
    let mut all = Vec::new();
    let mut batch = ScanBatch::new();
    let mut cursor = ScanPosition::START;
    while !cursor.is_end() {
        batch.clear();
        let before = cursor;
        answered(errors, index.scan_unordered(&mut cursor, 7, &mut batch))?;
        assert!(cursor != before, "a step that leads nowhere");
        assert!(!batch.is_empty() || cursor.is_end(), "a step without keys");
        all.extend(batch.iter().map(|(key, word)| (key.to_vec(), word)));
        assert!(all.len() <= most, "a scan without end");
    }
    Some(all)
}
