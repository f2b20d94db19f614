//! Ranges of keys that a walk has found empty, so that the next one need not pass their tombstones again.
//!
//! A queue's reader asks for the first record, again and again, and everything that it has taken lies before
//! it as tombstones until compactions drop them. So a walk that passed many deleted keys before its first
//! record leaves the range here, and later walks that begin inside start behind it.
//!
//! 1. A range is *empty as of* a sequence number, and stays so: before a put of a key in it is applied, the range
//!    is forgotten. A walk at that number or later skips it.
//! 2. What a walk passed is *watched* first: it may not have seen puts that were given out, and are not
//!    visible yet. A later walk that sees all of these, with no put in the range since, proves it.
//! 3. A writer gives out its number before it looks for ranges, and a walk shows its range before it reads
//!    the number given out last. So one of them sees the other.
//!
//! Sequence numbers here are those of the queue of writers. Engines that number writes themselves report no
//! keys that were passed, and leave nothing here.

use std::cmp::Ordering as Order;
use std::ops::Bound;

use crate::core::engine::Direction;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// Deleted keys that a walk passes before it leaves a range: fewer cost less than to look for ranges.
const MANY: u64 = 64;

/// Most ranges kept. The oldest one goes for another.
const MOST_RANGES: usize = 16;

/// Ranges between longer keys are not kept.
const LONGEST_KEY: usize = 4096;

/// A place between two keys, or at either end of all.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cut {
    Before(Vec<u8>),
    After(Vec<u8>),
    End,
}

impl Cut {
    /// Where a walk in `direction` from `bound` begins.
    fn at(bound: Bound<&[u8]>, direction: Direction) -> Cut {
        match (direction, bound) {
            (Direction::Forward, Bound::Unbounded) => Cut::Before(Vec::new()),
            (Direction::Backward, Bound::Unbounded) => Cut::End,
            (Direction::Forward, Bound::Included(key)) | (Direction::Backward, Bound::Excluded(key)) => {
                Cut::Before(key.to_vec())
            }
            (Direction::Forward, Bound::Excluded(key)) | (Direction::Backward, Bound::Included(key)) => {
                Cut::After(key.to_vec())
            }
        }
    }

    /// Up to where a walk in `direction` has found nothing, if its first key is `found`.
    fn up_to(found: Option<&[u8]>, direction: Direction) -> Cut {
        match (direction, found) {
            (Direction::Forward, Some(key)) => Cut::Before(key.to_vec()),
            (Direction::Backward, Some(key)) => Cut::After(key.to_vec()),
            (Direction::Forward, None) => Cut::End,
            (Direction::Backward, None) => Cut::Before(Vec::new()),
        }
    }

    /// What a walk in `direction` need not pass if everything before this place is empty.
    fn skipped(&self, direction: Direction) -> Skip {
        match (direction, self) {
            (Direction::Forward, Cut::Before(key)) | (Direction::Backward, Cut::After(key)) => {
                Skip::To(Bound::Included(key.clone()))
            }
            (Direction::Backward, Cut::Before(key)) if key.is_empty() => Skip::Everything,
            (Direction::Forward, Cut::After(key)) | (Direction::Backward, Cut::Before(key)) => {
                Skip::To(Bound::Excluded(key.clone()))
            }
            (Direction::Forward, Cut::End) => Skip::Everything,
            (Direction::Backward, Cut::End) => Skip::Nothing,
        }
    }

    /// Whether `key` lies behind this place.
    fn is_before(&self, key: &[u8]) -> bool {
        match self {
            Cut::Before(cut) => **cut <= *key,
            Cut::After(cut) => **cut < *key,
            Cut::End => false,
        }
    }

    fn key_bytes(&self) -> usize {
        match self {
            Cut::Before(key) | Cut::After(key) => key.len(),
            Cut::End => 0,
        }
    }
}

impl Ord for Cut {
    fn cmp(&self, other: &Cut) -> Order {
        let parts = |cut: &Cut| match cut {
            Cut::Before(_) => 0,
            Cut::After(_) => 1,
            Cut::End => 2,
        };
        match (self, other) {
            (Cut::Before(a) | Cut::After(a), Cut::Before(b) | Cut::After(b)) => {
                a.cmp(b).then_with(|| parts(self).cmp(&parts(other)))
            }
            _ => (parts(self) == 2).cmp(&(parts(other) == 2)),
        }
    }
}

impl PartialOrd for Cut {
    fn partial_cmp(&self, other: &Cut) -> Option<Order> {
        Some(self.cmp(other))
    }
}

/// What a walk need not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Skip {
    Nothing,
    /// It may begin here instead, with the same result.
    To(Bound<Vec<u8>>),
    /// Nothing lives that way.
    Everything,
}

/// A range, in the order of the walks that have left it.
#[derive(Debug)]
struct Range {
    direction: Direction,
    from: Cut,
    /// Between `from` and here nothing lives, as of `as_of` and since.
    empty_to: Cut,
    as_of: u64,
    /// Between `empty_to` and here nothing that was given out after `since` puts a key.
    watched_to: Cut,
    since: u64,
}

impl Range {
    /// The order of two places in the direction of the range's walks.
    fn order(&self, a: &Cut, b: &Cut) -> Order {
        match self.direction {
            Direction::Forward => a.cmp(b),
            Direction::Backward => b.cmp(a),
        }
    }

    /// Whether a walk that begins at `start` begins in the empty part or at its end.
    fn receives(&self, direction: Direction, start: &Cut) -> bool {
        direction == self.direction
            && self.order(&self.from, start) != Order::Greater
            && self.order(start, &self.empty_to) != Order::Greater
    }

    /// Whether `key` lies between `a` and `b`.
    fn lies_between(&self, key: &[u8], a: &Cut, b: &Cut) -> bool {
        let (low, high) = match self.direction {
            Direction::Forward => (a, b),
            Direction::Backward => (b, a),
        };
        low.is_before(key) && !high.is_before(key)
    }

    /// A walk at `seq` from within has found nothing up to `found`: what it could not have missed is empty.
    fn prove(&mut self, found: &Cut, seq: u64) {
        if seq < self.since || self.order(&self.watched_to, &self.empty_to) != Order::Greater {
            return;
        }
        let reached = match self.order(found, &self.watched_to) {
            Order::Less => found,
            _ => &self.watched_to,
        };
        if self.order(reached, &self.empty_to) == Order::Greater {
            (self.empty_to, self.as_of) = (reached.clone(), seq);
        }
    }
}

/// The ranges of one database; see the head of the module.
#[derive(Debug, Default)]
pub(crate) struct EmptyRanges {
    /// The last number that was given out to a write.
    given_out: AtomicU64,
    /// Whether there may be ranges.
    any: AtomicBool,
    ranges: Mutex<Vec<Range>>,
}

impl EmptyRanges {
    /// Notes that writes up to `last` are given out, and forgets the ranges in which one of them `puts` a key.
    /// Called by the leader before it applies them.
    pub fn write<'k>(&self, last: u64, puts: impl Iterator<Item = &'k [u8]>) {
        // With `SeqCst` here and in `note`, one of both sees what the other has stored.
        self.given_out.store(last, Ordering::SeqCst);
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut ranges = self.ranges.lock();
        for key in puts {
            ranges.retain(|range| !range.lies_between(key, &range.from, &range.empty_to));
            for range in ranges.iter_mut() {
                if range.lies_between(key, &range.empty_to, &range.watched_to) {
                    range.watched_to = range.empty_to.clone();
                }
            }
        }
        self.any.store(!ranges.is_empty(), Ordering::SeqCst);
    }

    /// Everything up to number `last` has been given out, for puts of any keys.
    pub fn write_anywhere(&self, last: u64) {
        self.given_out.store(last, Ordering::SeqCst);
        self.forget();
    }

    /// Forgets all ranges.
    pub fn forget(&self) {
        if self.any.load(Ordering::SeqCst) {
            let mut ranges = self.ranges.lock();
            ranges.clear();
            self.any.store(false, Ordering::SeqCst);
        }
    }

    /// What a walk at `seq` from `bound` need not pass.
    pub fn skip(&self, direction: Direction, bound: Bound<&[u8]>, seq: u64) -> Skip {
        if !self.any.load(Ordering::Acquire) {
            return Skip::Nothing;
        }
        let start = Cut::at(bound, direction);
        let ranges = self.ranges.lock();
        match ranges.iter().find(|range| range.as_of <= seq && range.receives(direction, &start)) {
            Some(range) if range.empty_to != start => range.empty_to.skipped(direction),
            _ => Skip::Nothing,
        }
    }

    /// Notes that a walk at `seq` from `bound` has passed so many deleted keys before it found the first
    /// one that lives, or none.
    pub fn note(
        &self,
        direction: Direction,
        bound: Bound<&[u8]>,
        seq: u64,
        found: Option<&[u8]>,
        passed: u64,
    ) {
        let is_long = passed >= MANY;
        if !is_long && !self.any.load(Ordering::Relaxed) {
            return;
        }
        let (start, found) = (Cut::at(bound, direction), Cut::up_to(found, direction));
        if start.key_bytes().max(found.key_bytes()) > LONGEST_KEY {
            return;
        }
        let mut ranges = self.ranges.lock();
        let at = ranges.iter().position(|range| range.receives(direction, &start));
        if let Some(at) = at {
            ranges[at].prove(&found, seq);
        }
        if is_long {
            self.any.store(true, Ordering::SeqCst);
            let since = self.given_out.load(Ordering::SeqCst);
            let at = at.unwrap_or_else(|| {
                if ranges.len() == MOST_RANGES {
                    ranges.remove(0);
                }
                let (from, empty_to, watched_to) = (start.clone(), start.clone(), start);
                ranges.push(Range { direction, from, empty_to, as_of: seq, watched_to, since });
                ranges.len() - 1
            });
            let range = &mut ranges[at];
            if range.order(&found, &range.watched_to) == Order::Greater {
                (range.watched_to, range.since) = (found.clone(), since);
                // Nothing was given out that the walk did not see.
                range.prove(&found, seq);
            }
        }
    }
}

#[cfg(all(test, not(terrace_model)))]
mod tests {
    use super::*;

    const ALL: Bound<&[u8]> = Bound::Unbounded;

    fn included(key: &[u8]) -> Skip {
        Skip::To(Bound::Included(key.to_vec()))
    }

    fn put(ranges: &EmptyRanges, seq: u64, key: &str) {
        ranges.write(seq, std::iter::once(key.as_bytes()));
    }

    #[test]
    fn a_walk_that_has_seen_everything_leaves_a_range_at_once() {
        let ranges = EmptyRanges::default();
        ranges.write(7, std::iter::empty());
        ranges.note(Direction::Forward, ALL, 7, Some(b"m"), MANY);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 7), included(b"m"));
        assert_eq!(ranges.skip(Direction::Forward, ALL, 6), Skip::Nothing, "it is older");
        assert_eq!(ranges.skip(Direction::Forward, Bound::Excluded(b"c"), 9), included(b"m"));
        assert_eq!(
            ranges.skip(Direction::Forward, Bound::Excluded(b"m"), 9),
            Skip::Nothing,
            "it begins behind"
        );
        assert_eq!(ranges.skip(Direction::Backward, ALL, 9), Skip::Nothing);
        put(&ranges, 8, "m");
        put(&ranges, 9, "zz");
        assert_eq!(ranges.skip(Direction::Forward, ALL, 9), included(b"m"));
        put(&ranges, 10, "b");
        assert_eq!(ranges.skip(Direction::Forward, ALL, 10), Skip::Nothing);
        assert!(!ranges.any.load(Ordering::SeqCst));
    }

    #[test]
    fn few_deleted_keys_leave_nothing() {
        let ranges = EmptyRanges::default();
        ranges.note(Direction::Forward, ALL, 0, Some(b"m"), MANY - 1);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 0), Skip::Nothing);
    }

    #[test]
    fn what_a_walk_may_not_have_seen_is_watched_first() {
        let ranges = EmptyRanges::default();
        put(&ranges, 8, "c");
        // Write 8 is given out, and the walk at 7 did not see it.
        ranges.note(Direction::Forward, ALL, 7, Some(b"m"), MANY);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 8), Skip::Nothing);
        // A later walk finds what write 8 has put.
        ranges.note(Direction::Forward, ALL, 8, Some(b"c"), 1);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 8), included(b"c"));
        put(&ranges, 9, "d");
        ranges.note(Direction::Forward, ALL, 9, Some(b"m"), 1);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 9), included(b"c"), "it is watched no more");
    }

    #[test]
    fn ranges_grow_with_what_is_taken() {
        let ranges = EmptyRanges::default();
        ranges.note(Direction::Forward, ALL, 0, Some(b"d"), MANY);
        ranges.note(Direction::Forward, ALL, 0, Some(b"h"), MANY);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 0), included(b"h"));
        ranges.note(Direction::Forward, ALL, 0, None, MANY);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 0), Skip::Everything);
        put(&ranges, 1, "k");
        ranges.note(Direction::Forward, ALL, 1, Some(b"k"), 0);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 1), Skip::Nothing);
    }

    #[test]
    fn from_the_end_it_is_the_same() {
        let ranges = EmptyRanges::default();
        ranges.note(Direction::Backward, ALL, 0, Some(b"d"), MANY);
        assert_eq!(ranges.skip(Direction::Backward, ALL, 0), included(b"d"));
        assert_eq!(ranges.skip(Direction::Backward, Bound::Excluded(b"f"), 0), included(b"d"));
        assert_eq!(ranges.skip(Direction::Backward, Bound::Included(b"c"), 0), Skip::Nothing);
        put(&ranges, 1, "d");
        assert_eq!(ranges.skip(Direction::Backward, ALL, 1), included(b"d"));
        put(&ranges, 2, "e");
        assert_eq!(ranges.skip(Direction::Backward, ALL, 2), Skip::Nothing);
        ranges.note(Direction::Backward, ALL, 2, None, MANY);
        assert_eq!(ranges.skip(Direction::Backward, ALL, 2), Skip::Everything);
    }

    #[test]
    fn there_are_never_many() {
        let ranges = EmptyRanges::default();
        for i in 0..2 * MOST_RANGES as u8 {
            ranges.note(Direction::Forward, Bound::Included(&[i]), 0, Some(&[i, 1]), MANY);
        }
        assert_eq!(ranges.ranges.lock().len(), MOST_RANGES);
        ranges.note(Direction::Forward, ALL, 0, Some(&[7; LONGEST_KEY + 1]), MANY);
        assert_eq!(ranges.skip(Direction::Forward, ALL, 0), Skip::Nothing);
    }
}
