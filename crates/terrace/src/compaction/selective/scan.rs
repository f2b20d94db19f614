//! How scattered neighbouring keys are: the leaf scan and the range query.
//!
//! Both receive the tables of keys in key order and return at the end which tables to note for compaction.
//! For a key in no table (still in PM) they receive `None`.

use std::collections::BTreeSet;
use std::ops::Bound;

use terrace_base::Result;
use terrace_index::ScanBatch;

use super::SelectiveOptions;
use super::view::View;

/// Keys of the index examined at a time by a leaf scan.
const SCAN_KEYS: usize = 512;

/// Goes over all keys round-robin, one pass of limited length at a time.
#[derive(Debug, Clone, Default)]
pub struct LeafScan {
    /// The last key of the previous pass; the next one continues after it.
    after: Option<Vec<u8>>,
}

/// One pass of a [`LeafScan`].
#[derive(Debug, Clone)]
struct LeafPass {
    keys_left: u64,
    threshold: usize,
    files: BTreeSet<u64>,
    last: Option<Vec<u8>>,
}

impl LeafScan {
    /// Does one pass over the index and returns the tables to note. `scan` appends up to so many keys from a
    /// bound on; `table_of` is the table that a word of the index names.
    pub fn run(
        &mut self,
        view: &View<'_>,
        options: &SelectiveOptions,
        mut scan: impl FnMut(Bound<&[u8]>, usize, &mut ScanBatch) -> Result<()>,
        table_of: impl Fn(u64) -> Option<u64>,
    ) -> Result<Vec<u64>> {
        let mut pass = self.pass(view, options);
        let mut batch = ScanBatch::default();
        let mut from = self.start().map(<[u8]>::to_vec);
        let mut at_end = false;
        while pass.wants_more() && !at_end {
            batch.clear();
            scan(from.as_ref().map(Vec::as_slice), SCAN_KEYS, &mut batch)?;
            at_end = batch.len() < SCAN_KEYS;
            for i in 0..batch.len() {
                pass.feed(batch.key(i), table_of(batch.word(i)));
                if !pass.wants_more() {
                    at_end &= i + 1 == batch.len();
                    break;
                }
            }
            if let Some(last) = batch.len().checked_sub(1) {
                from = Bound::Excluded(batch.key(last).to_vec());
            }
        }
        Ok(self.finish(pass, at_end))
    }

    /// Where the next pass starts.
    fn start(&self) -> Bound<&[u8]> {
        self.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded)
    }

    /// Starts a pass over as many keys as a few average tables of `view` hold.
    fn pass(&self, view: &View<'_>, options: &SelectiveOptions) -> LeafPass {
        LeafPass {
            keys_left: view.average_keys().saturating_mul(options.leaf_scan_tables),
            threshold: options.leaf_scan_files,
            files: BTreeSet::new(),
            last: None,
        }
    }

    /// Ends a pass, because it wants no more or (with `at_end`) because there are no more keys:
    /// then the next pass starts over. Returns the tables to note, if there were too many.
    fn finish(&mut self, pass: LeafPass, at_end: bool) -> Vec<u64> {
        self.after = if at_end { None } else { pass.last.or(self.after.take()) };
        if pass.files.len() > pass.threshold { pass.files.into_iter().collect() } else { Vec::new() }
    }
}

impl LeafPass {
    /// Whether the pass wants another key.
    fn wants_more(&self) -> bool {
        self.keys_left > 0
    }

    /// Takes the next key, with its table.
    fn feed(&mut self, key: &[u8], file: Option<u64>) {
        self.keys_left = self.keys_left.saturating_sub(1);
        self.files.extend(file);
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
    }
}

/// Watches one range query: counts the tables in every sub-range of a few keys and remembers the
/// worst sub-range.
#[derive(Debug, Clone)]
pub struct RangeScan {
    keys_per_range: usize,
    threshold: usize,
    keys: usize,
    is_empty: bool,
    /// The tables of this sub-range; few enough to search one by one.
    files: Vec<u64>,
    worst: Vec<u64>,
}

impl RangeScan {
    /// A watch on a query that starts now.
    pub fn new(options: &SelectiveOptions) -> Self {
        RangeScan {
            keys_per_range: options.sequentiality_keys.max(1),
            threshold: options.sequentiality_files,
            keys: 0,
            is_empty: true,
            files: Vec::new(),
            worst: Vec::new(),
        }
    }

    /// Takes the table of the query's next key.
    pub fn feed(&mut self, file: Option<u64>) {
        if let Some(file) = file
            && !self.files.contains(&file)
        {
            self.files.push(file);
        }
        self.is_empty = false;
        self.keys += 1;
        if self.keys == self.keys_per_range {
            self.end_range();
        }
    }

    fn end_range(&mut self) {
        if self.files.len() > self.worst.len() {
            std::mem::swap(&mut self.files, &mut self.worst);
        }
        self.files.clear();
        self.keys = 0;
    }

    /// Whether the query has read no key: then it is none that later ones are like.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Ends the query. Returns the tables of its worst sub-range to note, if they were too many.
    pub fn finish(mut self) -> Vec<u64> {
        self.end_range();
        if self.worst.len() > self.threshold { self.worst } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass_over(scan: &mut LeafScan, keys_left: u64, keys: &[(&str, u64)]) -> Vec<u64> {
        let mut pass = LeafPass { keys_left, threshold: 2, files: BTreeSet::new(), last: None };
        let start = scan.start().map(<[u8]>::to_vec);
        let mut rest = keys.iter().filter(|(key, _)| match &start {
            Bound::Excluded(after) => key.as_bytes() > &after[..],
            _ => true,
        });
        while pass.wants_more() {
            let Some((key, file)) = rest.next() else { return scan.finish(pass, true) };
            pass.feed(key.as_bytes(), Some(*file));
        }
        scan.finish(pass, false)
    }

    #[test]
    fn passes_go_round_and_note_only_past_the_threshold() {
        let keys = [("a", 1), ("b", 2), ("c", 1), ("d", 4), ("e", 5), ("f", 6), ("g", 7)];
        let mut scan = LeafScan::default();
        assert_eq!(scan.start(), Bound::Unbounded);
        assert_eq!(pass_over(&mut scan, 3, &keys), [0u64; 0], "tables 1 and 2 are two");
        assert_eq!(scan.start(), Bound::Excluded(&b"c"[..]));
        assert_eq!(pass_over(&mut scan, 3, &keys), [4, 5, 6]);
        assert_eq!(pass_over(&mut scan, 3, &keys), [0u64; 0], "the end comes first");
        assert_eq!(scan.start(), Bound::Unbounded);
    }

    #[test]
    fn a_pass_is_as_long_as_two_average_tables() {
        let options = SelectiveOptions::default();
        let mut pass = LeafScan::default().pass(&View::default(), &options);
        assert!(!pass.wants_more(), "no tables, no keys to scan");
        pass.feed(b"k", None);
        assert!(LeafScan::default().finish(pass, false).is_empty());
    }

    #[test]
    fn the_worst_sub_range_is_noted() {
        let options =
            SelectiveOptions { sequentiality_keys: 4, sequentiality_files: 2, ..Default::default() };
        let watch = |files: &[u64]| {
            let mut scan = RangeScan::new(&options);
            files.iter().for_each(|file| scan.feed((*file != 0).then_some(*file)));
            scan.finish()
        };
        assert_eq!(watch(&[1, 1, 2, 2, 3, 3, 4, 4]), [0u64; 0]);
        assert_eq!(watch(&[1, 1, 2, 2, 3, 4, 5, 3, 6, 7, 8, 9]), [6, 7, 8, 9]);
        assert_eq!(watch(&[1, 1, 1, 1, 3, 4, 5]), [3, 4, 5], "a last, short sub-range counts");
        assert_eq!(watch(&[0, 1, 0, 2]), [0u64; 0], "keys in PM are in no table");
    }
}
