//! Lookups: the memtables of the key's bucket, newest first, then its tables. Nobody locks.

use bytes::Bytes;
use terrace_base::Result;
use terrace_base::trail::{self, Touch};
use terrace_table::Entry;

use super::Wip;
use super::bucket::{Reached, Readable};
use crate::core::lent::Lent;
use crate::levels::many::{Search, find_all};
use crate::memtable::Version;

impl Wip {
    /// What `take` makes of the value of `key`, at snapshot `at` or now; it is called once at most.
    pub(super) fn with_value<T>(
        &self,
        key: &[u8],
        at: Option<u64>,
        take: impl FnOnce(Lent<'_>) -> T,
    ) -> Result<Option<T>> {
        let buckets = self.buckets.load();
        let bucket = buckets.find(key);
        // In this order: otherwise a newer version could be written in between, and a merge drop the one that
        // this reader must see.
        let readable = bucket.readable.load();
        let at = at.unwrap_or_else(|| self.core.snapshots.visible());
        if let Some(found) = newest_in_memtables(&readable, key, at) {
            return Ok(found.lent().map(take));
        }
        let found = bucket.get_in_tables(&readable, key, at)?;
        Ok(found.and_then(Lent::of_entry).map(take))
    }

    /// The values of `keys` for a reader at `at`: all memtables, then what is left in tables.
    pub(super) fn get_values(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        let buckets = self.buckets.load();
        let of_key = |key: &&[u8]| {
            let bucket = &**buckets.find(key);
            (bucket, bucket.readable.load())
        };
        let found_in: Vec<_> = keys.iter().map(of_key).collect();
        let mut values = vec![None; keys.len()];
        let (mut places, mut searches) = (Vec::new(), Vec::new());
        for (i, (&key, (bucket, readable))) in keys.iter().zip(&found_in).enumerate() {
            match newest_in_memtables(readable, key, at) {
                Some(found) => values[i] = found.put().map(Bytes::copy_from_slice),
                None => {
                    places.push(i);
                    searches.push(Search::new(key, Reached { bucket, readable, next: 0 }));
                }
            }
        }
        find_all(&mut searches, at, Reached::next_run)?;
        for (i, search) in places.into_iter().zip(searches) {
            values[i] = search.newest.and_then(Entry::into_value);
        }
        Ok(values)
    }
}

/// The newest version of `key` up to `at` in memtables, newest first.
fn newest_in_memtables<'r>(readable: &'r Readable, key: &[u8], at: u64) -> Option<Version<'r>> {
    readable.memtables.iter().find_map(|memtable| {
        let found = memtable.get(key, at);
        trail::note(|| Touch::Memtable { found: found.is_some() });
        found
    })
}
