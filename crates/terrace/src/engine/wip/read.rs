//! Lookups: the memtables of the key's bucket, newest first, then its tables. Nobody locks. Where the newest version is
//! an operand, what it stands on is looked up in the same readable set.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Entry, Kind};

use super::Wip;
use super::bucket::{Bucket, Reached, Readable};
use crate::core::lent::{Lent, to_keep};
use crate::levels::many::{Search, find_all};
use crate::levels::operands::{count_on_top, folded};
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
        let found = match readable.newest_in_memory(key, at) {
            Some(found) if found.kind.is_whole() => return Ok(found.lent().map(take)),
            Some(_) => self.folded(bucket, &readable, key, at)?,
            None => match bucket.get_in_tables(&readable, key, at)? {
                Some(found) if !found.kind.is_whole() => self.folded(bucket, &readable, key, at)?,
                found => found.and_then(Lent::of_entry),
            },
        };
        Ok(found.map(take))
    }

    /// Whether `key` exists now, whatever its value is.
    pub(super) fn exists(&self, key: &[u8]) -> Result<bool> {
        let buckets = self.buckets.load();
        let bucket = buckets.find(key);
        let readable = bucket.readable.load();
        let visible = self.core.snapshots.visible();
        if let Some(found) = readable.newest_in_memory(key, visible) {
            return Ok(found.kind != Kind::Delete);
        }
        let found = bucket.get_in_tables(&readable, key, visible)?;
        Ok(found.is_some_and(|found| found.kind != Kind::Delete))
    }

    /// The value of `key` in `bucket` up to sequence number `at`, where the newest version is an operand.
    fn folded(
        &self,
        bucket: &Bucket,
        readable: &Readable,
        key: &[u8],
        at: u64,
    ) -> Result<Option<Lent<'static>>> {
        let in_memory = |at| readable.newest_in_memory(key, at).map(Version::into_entry);
        let in_tables = |at| bucket.get_in_tables(readable, key, at);
        folded(&self.core.merging, key, at, in_memory, in_tables)
    }

    /// How many operands lie in memtables on top of what is in tables; `None` if the value of `key`, or that it has
    /// none, is known in memtables.
    pub(super) fn operands_above_tables(&self, key: &[u8]) -> Option<usize> {
        let readable = self.buckets.load().find(key).readable.load();
        count_on_top(|at| readable.newest_in_memory(key, at).map(|version| (version.seq, version.kind)))
    }

    /// The values of `keys` for a reader at `at`: all memtables, then what is left in tables.
    pub(super) fn get_values(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        let buckets = self.buckets.load();
        let of_key = |key: &&[u8]| {
            let bucket = &**buckets.find(key);
            (bucket, bucket.readable.load())
        };
        let found_in: Vec<_> = keys.iter().map(of_key).collect();
        let folded = |bucket: &Bucket, readable: &Readable, key: &[u8]| {
            let found = self.folded(bucket, readable, key, at)?;
            found.map(|value| value.known().map(to_keep)).transpose()
        };
        let mut values = vec![None; keys.len()];
        let (mut places, mut searches) = (Vec::new(), Vec::new());
        for (i, (&key, (bucket, readable))) in keys.iter().zip(&found_in).enumerate() {
            match readable.newest_in_memory(key, at) {
                Some(found) if found.kind.is_whole() => values[i] = found.put().map(Bytes::copy_from_slice),
                Some(_) => values[i] = folded(bucket, readable, key)?,
                None => {
                    places.push(i);
                    searches.push(Search::new(key, Reached { bucket, readable, next: 0 }));
                }
            }
        }
        find_all(&mut searches, at, Reached::next_run)?;
        for (i, search) in places.into_iter().zip(searches) {
            let Reached { bucket, readable, .. } = search.at;
            values[i] = match search.newest {
                Some(found) if !found.kind.is_whole() => folded(bucket, readable, search.key)?,
                found => found.and_then(Entry::into_value),
            };
        }
        Ok(values)
    }
}
