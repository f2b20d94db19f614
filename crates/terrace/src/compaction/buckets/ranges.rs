//! Tables as ranges of keys: which of them overlap, and how deep they lie.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::KeyRange;

/// The sublevel of each range, counted from 0: ranges of one sublevel do not overlap, and sublevels are as
/// few as possible.
pub(crate) fn rows(ranges: &[KeyRange<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_unstable_by_key(|i| ranges[*i]);
    let mut rows = vec![0; ranges.len()];
    // The row that ended first, with its end.
    let mut ends: BinaryHeap<Reverse<(&[u8], usize)>> = BinaryHeap::new();
    for i in order {
        let (smallest, largest) = ranges[i];
        let ended = ends.peek().filter(|Reverse((end, _))| *end < smallest).map(|Reverse((_, row))| *row);
        // A row that has not ended continues at this key: it has as many tables as there are rows.
        rows[i] = ended.unwrap_or(ends.len());
        if ended.is_some() {
            ends.pop();
        }
        ends.push(Reverse((largest, rows[i])));
    }
    rows
}

/// The most ranges that overlap at one key.
pub(crate) fn sublevels(ranges: &[KeyRange<'_>]) -> usize {
    rows(ranges).into_iter().max().map_or(0, |last| last + 1)
}

/// Whether each range overlaps none of the others.
pub(super) fn are_alone(ranges: &[KeyRange<'_>]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_unstable_by_key(|i| ranges[*i]);
    let mut alone = vec![true; ranges.len()];
    // The previous range that ends last.
    let mut last: Option<usize> = None;
    for i in order {
        if let Some(before) = last.filter(|before| ranges[*before].1 >= ranges[i].0) {
            (alone[before], alone[i]) = (false, false);
        }
        last = last.filter(|before| ranges[*before].1 >= ranges[i].1).or(Some(i));
    }
    alone
}

/// The most bytes of ranges of which no two overlap.
pub(super) fn heaviest(ranges: &[(KeyRange<'_>, u64)]) -> u64 {
    let mut by_end = ranges.to_vec();
    by_end.sort_unstable_by_key(|((_, largest), _)| *largest);
    // The most bytes among the first ranges, by their number.
    let mut most = vec![0; by_end.len() + 1];
    for (i, ((smallest, _), bytes)) in by_end.iter().enumerate() {
        let before = by_end.partition_point(|((_, largest), _)| largest < smallest);
        most[i + 1] = most[i].max(most[before] + bytes);
    }
    most[by_end.len()]
}
