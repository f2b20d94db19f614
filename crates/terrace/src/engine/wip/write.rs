//! The write path: make room, make durable, insert.
//!
//! 1. A group is in the log, as durable as its medium makes it (or as requested), before any of it is in a
//!    memtable: nothing is readable that a crash could take back.
//! 2. Inserting cannot fail, so a group is readable wholly or not at all; it is visible once the store says so.
//!
//! The caller is the current leader.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use terrace_base::Result;

use super::Wip;
use super::bucket::Bucket;
use crate::batch::Op;
use crate::core::request::Group;

/// Operations ahead for which memory is prefetched.
const AHEAD: usize = 8;

/// The leader's notes on the buckets of its last group. They keep none of the buckets: a replaced bucket is
/// dropped with its tables.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Those whose memtables are full.
    pub full: Vec<Weak<Bucket>>,
    /// The one with the most sublevels on level 0.
    pub deepest: Option<Most<usize>>,
    /// The one with the largest excess.
    pub fullest: Option<Most<u64>>,
}

/// A bucket with its figure.
pub(super) type Most<T> = (Weak<Bucket>, T);

impl Wip {
    pub(super) fn apply_group(&self, group: Group<'_>) -> Result<()> {
        self.core.health.check()?;
        self.decide_ingest()?;
        self.manifest.announce_pool()?;
        self.log.mend(self)?;
        self.make_room(&group)?;
        self.log_group(&group)?;
        let ops = group.requests.iter().flat_map(|r| r.batch.ops());
        self.insert(group.ops() as usize, ops.zip(group.first_seq..));
        let before = self.applied.swap(group.first_seq + group.ops() - 1, Ordering::AcqRel);
        debug_assert!(before < group.first_seq, "one leader, and numbers ascend");
        Ok(())
    }

    /// Inserts `count` operations, each with its sequence number, into the memtables of their buckets.
    pub(super) fn insert<'a>(&self, count: usize, ops: impl Iterator<Item = (Op<'a>, u64)> + Clone) {
        let log = self.current_log.load(Ordering::Acquire);
        let limit = self.memtable_limit();
        let mut touched = Touched::default();
        let _alone = self.writing.lock();
        let buckets = self.buckets.load();
        let mut coming = ops.clone().map(|(op, _)| op.key).take(if count > 1 { count } else { 0 });
        let mut fetch = || {
            if let Some(key) = coming.next() {
                buckets.find(key).readable.load().active().prefetch(key);
            }
        };
        (0..AHEAD).for_each(|_| fetch());
        for (op, seq) in ops {
            fetch();
            let bucket = buckets.find(op.key);
            let readable = bucket.readable.load();
            let active = readable.active();
            active.insert(&op, seq, log);
            if active.bytes_used() >= limit || active.has_overflowed() {
                touched.note_full(bucket);
            }
            touched.note_load(bucket);
        }
        *self.touched.lock() = touched;
    }
}

impl Touched {
    fn note_full(&mut self, bucket: &Arc<Bucket>) {
        if !self.full.iter().any(|known| known.as_ptr() == Arc::as_ptr(bucket)) {
            self.full.push(Arc::downgrade(bucket));
        }
    }

    pub fn note_load(&mut self, bucket: &Arc<Bucket>) {
        raise(&mut self.deepest, bucket, bucket.depth.load(Ordering::Relaxed));
        raise(&mut self.fullest, bucket, bucket.excess.load(Ordering::Relaxed));
    }
}

fn raise<T: Ord>(most: &mut Option<Most<T>>, bucket: &Arc<Bucket>, figure: T) {
    if most.as_ref().is_none_or(|(_, greatest)| figure > *greatest) {
        *most = Some((Arc::downgrade(bucket), figure));
    }
}
