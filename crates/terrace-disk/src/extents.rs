//! Sets of ranges.
//!
//! 1. No two ranges of a set overlap or touch: touching ranges are merged.
//! 2. `by_len` holds every range of `by_start`, by its length; `total` is the sum of all lengths.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A set of numbers, kept as the ranges that they make.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extents {
    /// The ends of ranges by their beginnings.
    by_start: BTreeMap<u64, u64>,
    /// Lengths and beginnings.
    by_len: BTreeSet<(u64, u64)>,
    total: u64,
}

impl Extents {
    /// How many numbers there are.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The ranges, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_start.iter().map(|(&start, &end)| start..end)
    }

    /// The longest range.
    pub(crate) fn longest(&self) -> Option<Range<u64>> {
        self.by_len.last().map(|&(len, start)| start..start + len)
    }

    /// The ranges that have numbers of `range`, in order.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.by_start.range(..=range.start).next_back().filter(|&(_, &end)| end > range.start);
        let from = first.map_or(range.start, |(&start, _)| start);
        self.by_start.range(from..range.end.max(from)).map(|(&start, &end)| start..end)
    }

    /// Whether all of `range` is there.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.overlapping(range).any(|r| r.start <= range.start && range.end <= r.end)
    }

    /// How many numbers of `range` are there.
    pub(crate) fn count_in(&self, range: &Range<u64>) -> u64 {
        self.overlapping(range).map(|r| r.end.min(range.end) - r.start.max(range.start)).sum()
    }

    /// Adds `range`; some of it may be there.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let near = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let merged: Vec<_> = self.overlapping(&near).collect();
        let mut all = range;
        for found in merged {
            all = all.start.min(found.start)..all.end.max(found.end);
            self.drop_range(&found);
        }
        self.add_range(all);
    }

    /// Takes out `range`, as far as it is there.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        for found in self.overlapping(range).collect::<Vec<_>>() {
            self.drop_range(&found);
            self.add_range(found.start..range.start);
            self.add_range(range.end..found.end);
        }
    }

    /// Takes `len` numbers in a row out of the shortest range that has so many, from its start; of such the first.
    pub(crate) fn take(&mut self, len: u64) -> Option<Range<u64>> {
        let &(_, start) = self.by_len.range((len, 0)..).next()?;
        let taken = start..start + len;
        self.remove(&taken);
        Some(taken)
    }

    fn add_range(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.by_start.insert(range.start, range.end);
            self.by_len.insert((range.end - range.start, range.start));
            self.total += range.end - range.start;
        }
    }

    fn drop_range(&mut self, range: &Range<u64>) {
        self.by_start.remove(&range.start);
        self.by_len.remove(&(range.end - range.start, range.start));
        self.total -= range.end - range.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(ops in prop::collection::vec((0..3u8, 0..60u64, 0..12u64), 0..60)) {
            let (mut set, mut model) = (Extents::default(), BTreeSet::new());
            for (op, start, len) in ops {
                let range = start..start + len;
                match op {
                    0 => {
                        set.insert(range.clone());
                        model.extend(range.clone());
                    }
                    1 => {
                        set.remove(&range);
                        model.retain(|n| !range.contains(n));
                    }
                    _ if len > 0 => {
                        let fits = set.iter().map(|r| r.end - r.start).filter(|&l| l >= len).min();
                        let taken = set.take(len);
                        prop_assert_eq!(taken.is_some(), fits.is_some());
                        for n in taken.into_iter().flatten() {
                            prop_assert!(model.remove(&n));
                        }
                    }
                    _ => {}
                }
                let found: Vec<u64> = set.iter().flatten().collect();
                prop_assert_eq!(&found, &Vec::from_iter(model.iter().copied()));
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
                prop_assert_eq!((set.total(), set.by_len.len()), (model.len() as u64, ranges.len()));
                prop_assert_eq!(set.covers(&range), range.clone().all(|n| model.contains(&n)));
                prop_assert_eq!(set.count_in(&range), model.range(range).count() as u64);
                let longest = ranges.iter().map(|r| r.end - r.start).max();
                prop_assert_eq!(set.longest().map(|r| r.end - r.start), longest);
            }
        }
    }
}
