//! Buckets: adjacent ranges of keys, each with its memtables and its tables.
//!
//! 1. The first bucket begins at the empty key, each other one where its predecessor ends, and the last has
//!    no end.
//! 2. A table lies within one bucket's range. So does a memtable, except one that was active when the bucket
//!    was split: it stays in every new bucket until it is flushed.
//! 3. Every version of a key in a memtable is newer than every one in an older memtable, and those are newer
//!    than any in a table; after a replay it may be a copy of one there. Between tables only sequence numbers
//!    decide: a lookup continues until no table can hold a newer version.
//! 4. A bucket is replaced by others when it is split or joined; a holder may still read its previous
//!    contents.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rpds::RedBlackTreeSetSync;
use terrace_base::Result;
use terrace_base::checksum::hash64;
use terrace_base::trail::{self, Touch};
use terrace_table::Entry;

use super::memtable::BucketMemtable;
use super::range_reads::RangeReads;
use crate::compaction::buckets::{BucketFigures, BucketTable, LEVELS};
use crate::levels::many::Search;
use crate::levels::run::Run;
use crate::memtable::{Memtables, Version};

/// The level where merges of a whole bucket go.
pub(super) const LAST_LEVEL: usize = LEVELS - 1;

/// A range of keys.
#[derive(Debug)]
pub(super) struct Bucket {
    pub lower: Vec<u8>,
    /// Where the next bucket begins; `None` for the last.
    pub upper: Option<Vec<u8>>,
    pub readable: ArcSwap<Readable>,
    /// Lookups that reached each level since its last compaction, approximately.
    reads: [AtomicU64; LEVELS],
    /// Range reads that have met the active memtable.
    pub ranges: RangeReads,
    /// See [`overlap`](Self::overlap).
    overlap: AtomicU64,
    /// Bytes that the last merge of the whole bucket left in it, if it could not be split.
    pub merged: AtomicU64,
    /// Sublevels of level 0.
    pub depth: AtomicUsize,
    /// How many times its intended size it holds, in thousandths.
    pub excess: AtomicU64,
    /// Figures for the choice of compactions.
    pub figures: Mutex<BucketFigures>,
    /// Keys at which tables written now must end, while the whole bucket is being merged: it may be split
    /// there.
    pub cuts: Mutex<Vec<Vec<u8>>>,
}

/// What may be read of a bucket at one moment.
#[derive(Debug, Clone)]
pub(super) struct Readable {
    pub memtables: Memtables<BucketMemtable>,
    /// Tables with the newest versions first.
    pub tables: Arc<Vec<Placed>>,
}

/// A table on its level.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub run: Run,
    pub level: usize,
}

impl Placed {
    /// The figures of a table for the choice of compactions.
    pub fn figures<'a>(
        &'a self,
        keeping: &RedBlackTreeSetSync<u64>,
        busy: &BTreeSet<u64>,
    ) -> BucketTable<'a> {
        let meta = self.run.meta();
        BucketTable {
            number: meta.number,
            level: self.level as u32,
            bytes: meta.file_bytes,
            entries: meta.entries,
            deletes: meta.deletes,
            smallest: &meta.smallest,
            largest: &meta.largest,
            keeps_old: keeping.contains(&meta.number),
            max_seq: meta.max_seq,
            busy: busy.contains(&meta.number),
        }
    }

    pub fn covers(&self, key: &[u8]) -> bool {
        let meta = self.run.meta();
        *meta.smallest <= *key && *key <= *meta.largest
    }
}

impl Readable {
    pub fn active(&self) -> &Arc<BucketMemtable> {
        self.memtables.active()
    }

    /// The same with another active memtable.
    pub fn with(&self, active: &Arc<BucketMemtable>) -> Readable {
        Readable { memtables: self.memtables.rotated(active), tables: self.tables.clone() }
    }

    /// The newest version of `key` up to `at` in memtables, newest first.
    pub fn newest_in_memory(&self, key: &[u8], at: u64) -> Option<Version<'_>> {
        self.memtables.iter().find_map(|memtable| {
            let found = memtable.get(key, at);
            trail::note(|| Touch::Memtable { found: found.is_some() });
            found
        })
    }
}

/// How far a lookup has come in the tables of a bucket.
#[derive(Debug)]
pub(super) struct Reached<'r> {
    pub bucket: &'r Bucket,
    pub readable: &'r Readable,
    /// The next table.
    pub next: usize,
}

impl<'r> Reached<'r> {
    /// The next table that may have a newer version than the one that `search` has found.
    pub fn next_run(search: &mut Search<'_, Reached<'r>>) -> Option<&'r Run> {
        let Reached { bucket, readable, .. } = search.at;
        while let Some(table) = readable.tables.get(search.at.next) {
            if search.is_over_at(&table.run) {
                break;
            }
            search.at.next += 1;
            if table.covers(search.key) {
                bucket.note_read(table.level);
                return Some(&table.run);
            }
        }
        None
    }
}

/// Whether none of `tables` but those of `except` may hold a version of `key` with one of these numbers.
pub(super) fn tables_lack(
    tables: &[Placed],
    key: &[u8],
    numbers: RangeInclusive<u64>,
    except: &[u64],
) -> bool {
    let (from, to) = numbers.into_inner();
    let may = |table: &&Placed| {
        let meta = table.run.meta();
        meta.min_seq <= to && from <= meta.max_seq && table.covers(key)
    };
    tables.iter().filter(may).all(|table| except.contains(&table.run.number()))
}

/// The order in which tables are searched.
pub(super) fn newest_first(mut tables: Vec<Placed>) -> Arc<Vec<Placed>> {
    tables.sort_by_key(|table| Reverse((table.run.meta().max_seq, table.run.number())));
    Arc::new(tables)
}

impl Bucket {
    pub fn new(
        lower: Vec<u8>,
        upper: Option<Vec<u8>>,
        memtables: Memtables<BucketMemtable>,
        tables: Arc<Vec<Placed>>,
    ) -> Arc<Bucket> {
        Arc::new(Bucket {
            lower,
            upper,
            readable: ArcSwap::from_pointee(Readable { memtables, tables }),
            reads: Default::default(),
            ranges: RangeReads::default(),
            overlap: AtomicU64::new(0),
            merged: AtomicU64::new(0),
            depth: AtomicUsize::new(0),
            excess: AtomicU64::new(0),
            figures: Mutex::new(BucketFigures::new(&[], 0.0, 0, 0)),
            cuts: Mutex::default(),
        })
    }

    /// Whether `key` is in its range.
    pub fn holds(&self, key: &[u8]) -> bool {
        *self.lower <= *key && self.upper.as_ref().is_none_or(|upper| *key < **upper)
    }

    /// Its range.
    pub fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.lower, self.upper.as_deref())
    }

    /// The newest version of `key` up to `at` in the tables of `readable`.
    pub fn get_in_tables(&self, readable: &Readable, key: &[u8], at: u64) -> Result<Option<Entry>> {
        Search::new(key, Reached { bucket: self, readable, next: 0 }).find(at, Reached::next_run)
    }

    /// The seed for the jitter of its thresholds.
    pub fn seed(&self) -> u64 {
        hash64(&self.lower)
    }

    /// The share of its tables' keys that older tables hold, too, as far as it is known.
    pub fn overlap(&self) -> f64 {
        f64::from_bits(self.overlap.load(Ordering::Relaxed))
    }

    /// Notes that share.
    pub fn note_overlap(&self, share: f64) {
        self.overlap.store(share.to_bits(), Ordering::Relaxed);
    }

    /// Counts a read of `level`. Two at once may count as one: the figure must be cheap.
    pub fn note_read(&self, level: usize) {
        let reads = &self.reads[level];
        reads.store(reads.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The reads of each level since its last compaction.
    pub fn reads(&self) -> [u64; LEVELS] {
        std::array::from_fn(|level| self.reads[level].load(Ordering::Relaxed))
    }

    /// A level has been compacted.
    pub fn forget_reads(&self, level: usize) {
        self.reads[level].store(0, Ordering::Relaxed);
    }
}
