//! Walks: one bucket after the other, each merged from its memtables and tables when the walk reaches it.
//!
//! The snapshot is held before the walk begins, so however buckets have changed when the walk reaches one,
//! every version that the snapshot sees is there. At the end of one bucket the walk continues in the bucket
//! that begins there then.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::Cursor;

use super::Wip;
use super::bucket::{Bucket, Placed};
use crate::core::engine::{Direction, EngineIter, Here, Step};
use crate::levels::walk::MergedIter;

/// The most bytes that a reader's cursor reads ahead.
const READAHEAD_BYTES: usize = 256 << 10;

/// A walk over the live keys of a snapshot.
#[derive(Debug)]
pub(super) struct BucketIter {
    engine: Arc<Wip>,
    at: u64,
    direction: Direction,
    /// The walk's current bucket; none before the first seek and after the end.
    here: Option<Within>,
    /// What the walks over the buckets before this one passed.
    passed: u64,
}

/// The range of a bucket, and the walk over it. The walk keeps only what it reads; the bucket itself, once
/// replaced, would keep all its other contents.
#[derive(Debug)]
struct Within {
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    entries: MergedIter,
}

impl Within {
    /// The next entry in its range. A memtable of a bucket that was split reaches beyond the new one, which has not all
    /// that there is of other keys.
    fn step(&mut self, entry: &mut Step) -> Result<bool> {
        let Within { lower, upper, entries } = self;
        let holds = |key: &[u8]| **lower <= *key && upper.as_ref().is_none_or(|upper| *key < **upper);
        entries.step_in(holds, entry)
    }
}

impl BucketIter {
    /// A walk over snapshot `at`, which is held; not yet positioned.
    pub fn new(engine: Arc<Wip>, at: u64, direction: Direction) -> BucketIter {
        BucketIter { engine, at, direction, here: None, passed: 0 }
    }

    /// Goes to `bucket`, past `bound`.
    fn enter(&mut self, bucket: Option<Arc<Bucket>>, bound: Bound<&[u8]>) -> Result<()> {
        self.here = None;
        let Some(bucket) = bucket else { return Ok(()) };
        let cursors = self.cursors(&bucket, bound);
        let mut entries = MergedIter::new(&self.engine.core, cursors, self.at, self.direction);
        entries.seek(bound)?;
        self.here = Some(Within { lower: bucket.lower.clone(), upper: bucket.upper.clone(), entries });
        Ok(())
    }

    /// Cursors over everything in `bucket` that may have keys past `bound`.
    fn cursors(&self, bucket: &Arc<Bucket>, bound: Bound<&[u8]>) -> Vec<Box<dyn Cursor>> {
        let readable = bucket.readable.load_full();
        let filled = readable.memtables.iter().filter(|memtable| !memtable.is_empty());
        if !readable.active().is_empty() {
            self.engine.note_range(bucket, readable.active());
        }
        let mut cursors: Vec<Box<dyn Cursor>> = filled.map(|memtable| memtable.cursor()).collect();
        for table in readable.tables.iter().filter(|table| self.reaches(table, bound)) {
            bucket.note_read(table.level);
            cursors.push(Box::new(table.run.cursor(true, READAHEAD_BYTES)));
        }
        cursors
    }

    fn reaches(&self, table: &Placed, bound: Bound<&[u8]>) -> bool {
        let (Bound::Included(key) | Bound::Excluded(key)) = bound else { return true };
        match self.direction {
            Direction::Forward => *table.run.meta().largest >= *key,
            Direction::Backward => *table.run.meta().smallest <= *key,
        }
    }

    /// The first bucket of a walk past `bound`.
    fn first(&self, bound: Bound<&[u8]>) -> Option<Arc<Bucket>> {
        let buckets = self.engine.buckets();
        match (self.direction, bound) {
            (Direction::Forward, Bound::Unbounded) => buckets.iter().next().cloned(),
            (Direction::Backward, Bound::Unbounded) => Some(buckets.last().clone()),
            (Direction::Backward, Bound::Excluded(key)) => buckets.before(key).cloned(),
            (_, Bound::Included(key) | Bound::Excluded(key)) => Some(buckets.find(key).clone()),
        }
    }

    /// Goes to the bucket after `left` in the walk's direction.
    fn go_on(&mut self, left: &Within) -> Result<()> {
        match (self.direction, &left.upper) {
            (Direction::Forward, None) => self.enter(None, Bound::Unbounded),
            (Direction::Forward, Some(upper)) => {
                let bound = Bound::Included(&**upper);
                self.enter(self.first(bound), bound)
            }
            (Direction::Backward, _) => {
                let bound = Bound::Excluded(&*left.lower);
                self.enter(self.first(bound), bound)
            }
        }
    }
}

impl EngineIter for BucketIter {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        self.enter(self.first(bound), bound)
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let mut step = Step::default();
        self.step(&mut step)?.then(|| step.into_entry(&self.here())).transpose()
    }

    fn here(&self) -> Here<'_> {
        self.here.as_ref().map_or_else(Here::default, |here| here.entries.here())
    }

    fn step(&mut self, entry: &mut Step) -> Result<bool> {
        while let Some(here) = &mut self.here {
            if here.step(entry)? {
                return Ok(true);
            }
            if let Some(left) = self.here.take() {
                self.passed += left.entries.passed();
                self.go_on(&left)?;
            }
        }
        Ok(false)
    }

    fn failure(&self) -> Option<&Error> {
        self.here.as_ref().and_then(|here| here.entries.failure())
    }

    fn passed(&self) -> u64 {
        self.passed + self.here.as_ref().map_or(0, |here| here.entries.passed())
    }
}
