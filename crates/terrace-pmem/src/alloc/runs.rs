//! Free runs of units, merged with their neighbours; the smallest that fits is taken, the lowest among equals.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Runs {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    total: u64,
}

impl Runs {
    /// Free units in all.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Free units in rows of so many: what is left of a run is not counted.
    pub(super) fn in_rows(&self, of: u64) -> u64 {
        if of == 1 {
            return self.total;
        }
        self.by_len.range((of, 0)..).map(|(len, _)| len - len % of).sum()
    }

    /// The same once `units` were taken.
    pub(super) fn in_rows_without(&self, units: u64, of: u64) -> u64 {
        let whole = |len: u64| len - len % of;
        let taken_of = self.by_len.range((units, 0)..).next();
        self.in_rows(of) - taken_of.map_or(0, |(len, _)| whole(*len) - whole(len - units))
    }

    /// Takes `units` in a row.
    pub(super) fn take(&mut self, units: u64) -> Option<u64> {
        let &(len, start) = self.by_len.range((units, 0)..).next()?;
        self.remove(start, len);
        if len > units {
            self.insert(start + units, len - units);
        }
        Some(start)
    }

    /// Adds a run that is free from now on.
    pub(super) fn give(&mut self, start: u64, units: u64) {
        let (mut start, mut units) = (start, units);
        if let Some((&before, &len)) = self.by_start.range(..start).next_back()
            && before + len == start
        {
            self.remove(before, len);
            (start, units) = (before, units + len);
        }
        if let Some(&len) = self.by_start.get(&(start + units)) {
            self.remove(start + units, len);
            units += len;
        }
        self.insert(start, units);
    }

    /// Start of the run that ends at `end`, or `end`.
    pub(super) fn tail(&self, end: u64) -> u64 {
        match self.by_start.last_key_value() {
            Some((&start, &len)) if start + len == end => start,
            _ => end,
        }
    }

    /// The runs, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_start.iter().map(|(&start, &len)| (start, len))
    }

    fn insert(&mut self, start: u64, units: u64) {
        if units > 0 {
            self.by_start.insert(start, units);
            self.by_len.insert((units, start));
            self.total += units;
        }
    }

    fn remove(&mut self, start: u64, units: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(units, start));
        self.total -= units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_and_the_smallest_fit_is_taken() {
        let mut runs = Runs::default();
        runs.give(10, 5);
        runs.give(20, 2);
        assert_eq!(runs.take(2), Some(20));
        assert_eq!(runs.take(6), None);
        assert_eq!([1, 2, 3, 5, 6].map(|of| runs.in_rows(of)), [5, 4, 3, 5, 0]);
        assert_eq!([1, 2, 3].map(|units| runs.in_rows_without(units, 2)), [4, 2, 2]);
        runs.give(15, 5);
        runs.give(20, 2);
        assert_eq!(runs.iter().collect::<Vec<_>>(), [(10, 12)]);
        assert_eq!((runs.total(), runs.tail(22), runs.tail(30)), (12, 10, 30));
        assert_eq!(runs.take(12), Some(10));
        assert_eq!(runs.total(), 0);
    }
}
