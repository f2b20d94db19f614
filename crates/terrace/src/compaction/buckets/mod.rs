//! Deciding what is merged, split and joined where the keys are divided into buckets: pure functions of the
//! tables' figures.
//!
//! A bucket is a small LSM-tree of three levels over its own range of keys. Tables of one level may overlap: those that
//! do lie on different *sublevels* ([`rows`]). A flush adds a table to level 0. [`choose`] decides:
//!
//! | pick | what is done |
//! |---|---|
//! | [`Pick::Level`] | all tables of level 0 or 1 become one sublevel of the next level; each byte is written once |
//! | [`Pick::Whole`] | all tables of a full bucket become one sorted list on level 2, and several buckets if much of it lives |
//! | [`Pick::Join`] | two small neighbours become one |
//!
//! A level is *due* at `sublevels` of them and *eligible* from `min_sublevels` on, if it is read. A bucket is *full*
//! when it has outgrown its capacity, when its last level has that many sublevels, or when most of it is garbage.
//! [`choose`] describes which of these comes first.
//!
//! # What always holds
//!
//! 1. One job at a time reads a level: what remains there is newer than all that the job reads. So of two
//!    versions of a key on different levels the newer is on the upper one, whichever job ends first.
//! 2. A bucket begins to be merged as a whole only while no other job reads tables of it. Tables flushed from
//!    then on may be merged beside it, as far as they lie on levels of which that job reads nothing; if the
//!    buckets of a split exist from its start, this happens in them.
//! 3. A level at twice its threshold precedes everything else, the one furthest beyond first: none waits for
//!    ever.
//!
//! # What it costs
//!
//! A byte is written by its flush, on its way to level 1, on its way to level 2, and when its bucket is
//! merged as a whole. If a split makes N buckets of an Nth of the size, a bucket has taken in at least (N -
//! 1)/N of its capacity before it is merged: the merge writes N/(N - 1) of what was written to it. So write
//! amplification is at most 3 + N/(N - 1).
//!
//! The capacity is fixed in bytes, since otherwise splitting would never end: the more buckets there are, the
//! smaller are their memtables. The number of sublevels follows instead ([`BucketOptions::threshold`]): three
//! levels of them reach the capacity, whatever a flush writes. Beyond four times the option they do not, and
//! then the last level fills up first.
//!
//! Ascending keys are written twice: by the flush and once more, into fewer and larger tables. A merge of the
//! whole bucket leaves tables alone that overlap no other ([`kept`]).
//!
//! # Why joining and splitting do not undo each other
//!
//! A bucket is split if more than half of its capacity lives in it, into N pieces of C/2N or more. Two neighbours are
//! joined when they hold less than C/2N together: by then each of two pieces of a split has lost half of its
//! contents. The joined bucket is full when it has grown N-fold. An uneven split may be followed by a join of
//! its smallest pieces; it is not followed by another split of them.
//!
//! A bucket that holds much more than its capacity, because tables were made outside, becomes so many pieces that each
//! holds about half of it. Where such tables come into a bucket that is idle, it is cut at once ([`divide`]).
//!
//! Nor is a bucket that cannot be split, because all of it is one key's versions, merged again and again:
//! from then on it is full when it has grown by half.

mod arrivals;
mod choice;
mod cuts;
mod figures;
#[cfg(test)]
mod lives;
#[cfg(test)]
mod model;
mod ranges;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub(crate) use arrivals::{divide, lowest_level, spans};
pub(crate) use choice::{Pick, choose};
pub(crate) use cuts::{fit, kept, pieces, splitters};
pub(crate) use figures::{BucketFigures, BucketTable};
pub(crate) use ranges::{rows, sublevels};

/// Levels of a bucket. The last takes what the others pass down.
pub(crate) const LEVELS: usize = 3;

/// A smallest and a largest key.
pub(crate) type KeyRange<'a> = (&'a [u8], &'a [u8]);

/// The options of choices; the defaults are those of the authors' code.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BucketOptions {
    /// Sublevels at which a level is merged into the next.
    pub(crate) sublevels: usize,
    /// Sublevels at which a level is merged if it is read.
    pub(crate) min_sublevels: usize,
    /// The largest difference in sublevels between thresholds of levels and buckets. If all were equal,
    /// evenly filled buckets would be merged and split in waves.
    pub(crate) jitter: usize,
    /// Bytes of a bucket.
    pub(crate) capacity: u64,
    /// Pieces that a bucket is split into.
    pub(crate) split_into: usize,
    /// The weight of a level's share of reads relative to its share of sublevels.
    pub(crate) read_weight: f64,
    /// Whether reads count at all: if not, nothing is merged before it is due, and priority is by sublevels
    /// alone.
    pub(crate) read_aware: bool,
    /// Average bytes of recent flushes.
    pub(crate) memtable_bytes: u64,
    /// The disk's room for a merge to write, in bytes.
    pub(crate) room: u64,
}

impl Default for BucketOptions {
    fn default() -> Self {
        BucketOptions {
            sublevels: 8,
            min_sublevels: 4,
            jitter: 5,
            capacity: 1200 << 20,
            split_into: 8,
            read_weight: 10.0,
            read_aware: true,
            memtable_bytes: 2 << 20,
            room: u64::MAX,
        }
    }
}

impl BucketOptions {
    /// Sublevels of a level such that three levels of them hold the capacity, if each flush writes as much as
    /// recent ones: no fewer than the option says, and no more than four times as many.
    pub(crate) fn threshold(&self) -> usize {
        // Merging a level of one sublevel makes one sublevel of the next: that would continue for ever.
        let least = self.sublevels.max(2);
        let reaches = |sublevels: usize| {
            let flushes = (sublevels as u128).saturating_pow(LEVELS as u32);
            flushes.saturating_mul(self.memtable_bytes.into()) >= self.capacity.into()
        };
        let most = least.saturating_mul(4);
        (least..most).find(|sublevels| reaches(*sublevels)).unwrap_or(most)
    }
}
