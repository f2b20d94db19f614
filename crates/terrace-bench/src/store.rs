//! The trait of a measured store, small enough for any key-value store to implement.
//!
//! Values are shown to a visitor rather than returned, so that no store is charged for a copy that
//! another one avoids, and no store is spared touching the bytes.

use std::ops::Bound;

/// An error of a measured store.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// The result of a call on a measured store.
pub type StoreResult<T> = Result<T, StoreError>;

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// Is shown records; false ends a scan.
pub type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> bool;

/// The bounds of a scan from a key, inclusive, or from an end of the key space.
pub fn bounds(from: Option<&[u8]>, direction: Direction) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let from = from.map_or(Bound::Unbounded, Bound::Included);
    match direction {
        Direction::Forward => (from, Bound::Unbounded),
        Direction::Backward => (Bound::Unbounded, from),
    }
}

/// Shows records until `show` has enough.
pub fn walk<R, E>(
    records: impl Iterator<Item = Result<R, E>>,
    mut show: impl FnMut(R) -> bool,
) -> StoreResult<()>
where
    StoreError: From<E>,
{
    for record in records {
        if !show(record?) {
            break;
        }
    }
    Ok(())
}

/// As [`walk`], in either direction.
pub fn walk_either<R, E>(
    records: impl DoubleEndedIterator<Item = Result<R, E>>,
    direction: Direction,
    show: impl FnMut(R) -> bool,
) -> StoreResult<()>
where
    StoreError: From<E>,
{
    match direction {
        Direction::Forward => walk(records, show),
        Direction::Backward => walk(records.rev(), show),
    }
}

/// A measured store. All methods may be called from many threads at once.
pub trait Store: Send + Sync {
    /// Writes one record, with the durability the store was opened for.
    fn put(&self, key: &[u8], value: &[u8]) -> StoreResult<()>;

    /// Removes one record; one that is not there is no error.
    fn delete(&self, key: &[u8]) -> StoreResult<()>;

    /// Shows the value of `key` to `visit`; false if there is none.
    fn get(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> StoreResult<bool>;

    /// Shows the values of `keys` to `visit` in their order, `None` for each key that is not there.
    fn multi_get(&self, keys: &[&[u8]], visit: &mut dyn FnMut(Option<&[u8]>)) -> StoreResult<()> {
        for key in keys {
            if !self.get(key, &mut |value| visit(Some(value)))? {
                visit(None);
            }
        }
        Ok(())
    }

    /// Shows records to `visit` in key order, from the first at or after `from` (at or before it
    /// when going backward; `None` is the end of the key space one starts at), until it returns
    /// false or there are no more.
    fn scan(&self, from: Option<&[u8]>, direction: Direction, visit: Visit<'_>) -> StoreResult<()>;

    /// Writes all of `batch`, atomically where the store can.
    fn write_batch(&self, batch: &Batch) -> StoreResult<()>;

    /// Writes buffered records out to the store's lower floor and waits for it.
    fn flush(&self) -> StoreResult<()>;

    /// Compacts the whole store and waits for it.
    fn compact(&self) -> StoreResult<()>;

    /// Counters since the store was opened.
    fn stats(&self) -> StoreStats;

    /// The beginnings of the ranges that the store has cut its keys into, in key order; empty for a store that does
    /// not.
    fn partitions(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// Writes to be made together; the buffers are kept when it is cleared.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    writes: Vec<Span>,
}

#[derive(Debug)]
struct Span {
    key_end: usize,
    /// `None` deletes the key.
    value_end: Option<usize>,
}

impl Batch {
    /// Adds a record.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.writes.push(Span { key_end, value_end: Some(self.bytes.len()) });
    }

    /// Adds a removal.
    pub fn delete(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.writes.push(Span { key_end: self.bytes.len(), value_end: None });
    }

    /// How many writes it holds.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Forgets the writes and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.writes.clear();
    }

    /// The writes in order: a key, and its value or `None` for a removal.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut start = 0;
        self.writes.iter().map(move |w| {
            let key = &self.bytes[start..w.key_end];
            let value = w.value_end.map(|end| &self.bytes[w.key_end..end]);
            start = w.value_end.unwrap_or(w.key_end);
            (key, value)
        })
    }
}

/// Levels whose tables are counted apart.
pub const COUNTED_LEVELS: usize = 8;

/// Bytes and events counted by a store since it was opened; `None` where it does not count them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct StoreStats {
    /// Bytes written to files on the SSD.
    pub ssd_bytes_written: Option<u64>,
    /// Those of them that went into sorted tables, by flushes and compactions.
    pub table_bytes_written: Option<u64>,
    /// Those of them that compactions wrote.
    pub compaction_bytes_written: Option<u64>,
    /// Bytes of tables by the level that they were written to; the last counts for all below it, too.
    pub level_bytes_written: Option<[u64; COUNTED_LEVELS]>,
    /// Bytes read from files on the SSD.
    pub ssd_bytes_read: Option<u64>,
    /// Bytes that persistent memory wrote, in whole XPLines.
    pub pm_bytes_written: Option<u64>,
    /// Drains of persistent memory.
    pub pm_drains: Option<u64>,
    /// Memtables written out.
    pub flushes: Option<u64>,
    /// Compactions finished.
    pub compactions: Option<u64>,
    /// Nanoseconds for which writers were held back.
    pub stall_nanos: Option<u64>,
}

impl StoreStats {
    /// The counts since `earlier`.
    pub fn since(&self, earlier: &StoreStats) -> StoreStats {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        StoreStats {
            ssd_bytes_written: less(self.ssd_bytes_written, earlier.ssd_bytes_written),
            table_bytes_written: less(self.table_bytes_written, earlier.table_bytes_written),
            compaction_bytes_written: less(self.compaction_bytes_written, earlier.compaction_bytes_written),
            level_bytes_written: self
                .level_bytes_written
                .zip(earlier.level_bytes_written)
                .map(|(now, then)| std::array::from_fn(|level| now[level].saturating_sub(then[level]))),
            ssd_bytes_read: less(self.ssd_bytes_read, earlier.ssd_bytes_read),
            pm_bytes_written: less(self.pm_bytes_written, earlier.pm_bytes_written),
            pm_drains: less(self.pm_drains, earlier.pm_drains),
            flushes: less(self.flushes, earlier.flushes),
            compactions: less(self.compactions, earlier.compactions),
            stall_nanos: less(self.stall_nanos, earlier.stall_nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_gives_back_what_was_put_in() {
        let mut batch = Batch::default();
        batch.put(b"", b"");
        batch.delete(b"gone");
        batch.put(b"k", b"value");
        let seen: Vec<_> = batch.iter().collect();
        let expected: [(&[u8], Option<&[u8]>); 3] =
            [(b"", Some(b"")), (b"gone", None), (b"k", Some(b"value"))];
        assert_eq!(seen, expected);
        batch.clear();
        assert!(batch.is_empty() && batch.iter().next().is_none());
    }

    #[test]
    fn a_counter_that_one_side_lacks_is_not_compared() {
        let before = StoreStats { flushes: Some(2), ..StoreStats::default() };
        let after = StoreStats { flushes: Some(5), compactions: Some(1), ..StoreStats::default() };
        let delta = after.since(&before);
        assert_eq!((delta.flushes, delta.compactions), (Some(3), None));
    }
}
