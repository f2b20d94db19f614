//! The versions of a table in order.
//!
//! Keys of a table often have a common beginning, above all those of one bucket of the key space. The common
//! beginning is kept once, and the next eight bytes of each key as a number: most comparisons read no record.

use std::cmp::Ordering;
use std::ptr::NonNull;

use terrace_base::{prefetch, prefix};

use super::directory::Directory;
use super::record::{Head, MemRecord};

#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// The common beginning of all keys.
    common: Box<[u8]>,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The eight bytes after the common beginning.
    prefix: u64,
    record: NonNull<Head>,
}

/// Bytes of an order for each version in it.
pub(super) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

// SAFETY: records are immutable and may be read by any thread; a holder of a `Sorted` keeps the table.
unsafe impl Send for Sorted {}
// SAFETY: the same.
unsafe impl Sync for Sorted {}

/// How many records ahead a walk prefetches.
const AHEAD: usize = 4;

impl Sorted {
    /// Collects the contents of the directory.
    ///
    /// # Safety
    /// The caller must keep the table as long as the result.
    pub unsafe fn gather(directory: Directory<'_>) -> Sorted {
        let mut newest: Vec<MemRecord<'_>> = Vec::new();
        let mut common: Option<&[u8]> = None;
        directory.for_each(|record| {
            let common = common.get_or_insert(record.key());
            *common = &common[..prefix::common(common, record.key())];
            newest.push(record);
        });
        let common: Box<[u8]> = common.unwrap_or_default().into();
        let skip = common.len();
        let entry = |r: MemRecord<'_>| Entry { prefix: prefix::head(&r.key()[skip..]), record: r.pointer() };
        let mut entries: Vec<Entry> = newest.iter().map(|record| entry(*record)).collect();
        let mut sorted = Sorted { common, entries: Vec::new() };
        entries.sort_unstable_by(|a, b| {
            // Each key is here once.
            let keys = || sorted.record(a).key()[skip..].cmp(&sorted.record(b).key()[skip..]);
            a.prefix.cmp(&b.prefix).then_with(keys)
        });
        sorted.entries = match newest.iter().any(|record| record.depth() > 0) {
            true => sorted.with_versions(&entries),
            false => entries,
        };
        sorted
    }

    /// The entries, each followed by those of its key's older versions.
    fn with_versions(&self, newest: &[Entry]) -> Vec<Entry> {
        let versions = |entry: &Entry| {
            let prefix = entry.prefix;
            self.record(entry).versions().map(move |record| Entry { prefix, record: record.pointer() })
        };
        newest.iter().flat_map(versions).collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, at: usize) -> Option<MemRecord<'_>> {
        self.entries.get(at).map(|entry| self.record(entry))
    }

    /// Prefetches records that a walk in one direction meets soon.
    pub fn prefetch(&self, at: usize, forward: bool) {
        let ahead = if forward { at + AHEAD } else { at.wrapping_sub(AHEAD) };
        if let Some(entry) = self.entries.get(ahead) {
            prefetch::line(entry.record.as_ptr());
        }
    }

    pub fn records(&self) -> impl Iterator<Item = MemRecord<'_>> {
        self.entries.iter().enumerate().map(|(at, entry)| {
            self.prefetch(at, true);
            self.record(entry)
        })
    }

    /// The number of entries before (`key`, `seq`), including that entry itself if `with` is true.
    pub fn before(&self, key: &[u8], seq: u64, with: bool) -> usize {
        let head = &key[..key.len().min(self.common.len())];
        match head.cmp(&self.common) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.entries.len(),
            Ordering::Equal => {}
        }
        let rest = &key[head.len()..];
        let prefix = prefix::head(rest);
        self.entries.partition_point(|entry| {
            let record = self.record(entry);
            let keys = || record.key()[head.len()..].cmp(rest);
            let order = entry.prefix.cmp(&prefix).then_with(keys);
            match order.then_with(|| seq.cmp(&record.seq())) {
                Ordering::Less => true,
                Ordering::Equal => with,
                Ordering::Greater => false,
            }
        })
    }

    #[inline]
    fn record(&self, entry: &Entry) -> MemRecord<'_> {
        // SAFETY: `gather` found the record in the table, which its caller keeps.
        unsafe { MemRecord::new(entry.record) }
    }
}
