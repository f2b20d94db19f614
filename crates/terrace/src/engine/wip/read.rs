//! Lookups: the memtables of the key's bucket, newest first, then its tables. Nobody locks.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Entry, Kind};

use super::Wip;

impl Wip {
    /// The value of `key` for a reader at `at`, or for one of now.
    pub(super) fn get_value(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        Ok(self.newest(key, at)?.filter(|entry| entry.kind == Kind::Put).map(|entry| entry.value))
    }

    fn newest(&self, key: &[u8], at: Option<u64>) -> Result<Option<Entry>> {
        let buckets = self.buckets.load();
        let bucket = buckets.find(key);
        // In this order: otherwise a newer version could be written in between, and a merge drop the one that
        // this reader must see.
        let readable = bucket.readable.load();
        let at = at.unwrap_or_else(|| self.core.snapshots.visible());
        for memtable in &readable.memtables {
            if let Some(found) = memtable.get(key, at) {
                let value = if found.kind == Kind::Put { found.value } else { &[] };
                let value = Bytes::copy_from_slice(value);
                return Ok(Some(Entry { seq: found.seq, kind: found.kind, value }));
            }
        }
        bucket.get_in_tables(&readable, key, at)
    }
}
