//! The operations of an index with ordered keys beyond a [`PointIndex`].

use std::ops::Bound;

use terrace_base::Result;

use crate::point::PointIndex;
use crate::scan_batch::ScanBatch;

/// A persistent ordered map from byte strings to words.
pub trait OrderedIndex: PointIndex {
    /// Appends to `out` up to `limit` keys in order from `from` on, upward, or downward if `reverse`. Fewer
    /// come out only at the end of the index.
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()>;
}

/// Whether a scan from `from` on has led on: the last key of `out`, if more than `before` are there, lies in the scan's
/// direction. It costs one comparison a scan; with damaged keys, a caller that goes on from the last one still comes to
/// an end.
pub fn leads_on(from: Bound<&[u8]>, reverse: bool, before: usize, out: &ScanBatch) -> bool {
    let Some(last) = (out.len() > before).then(|| out.key(out.len() - 1)) else { return true };
    match (from, reverse) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(key), false) => last >= key,
        (Bound::Excluded(key), false) => last > key,
        (Bound::Included(key), true) => last <= key,
        (Bound::Excluded(key), true) => last < key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scan_ends_with_lies_where_it_went() {
        let mut batch = ScanBatch::new();
        batch.push(b"m", 1);
        for (from, up, down) in [
            (Bound::Unbounded, true, true),
            (Bound::Included(&b"m"[..]), true, true),
            (Bound::Excluded(&b"m"[..]), false, false),
            (Bound::Excluded(&b"a"[..]), true, false),
            (Bound::Included(&b"z"[..]), false, true),
        ] {
            assert_eq!((leads_on(from, false, 0, &batch), leads_on(from, true, 0, &batch)), (up, down));
            assert!(leads_on(from, false, 1, &batch), "nothing has been added");
        }
    }
}
