//! Where a bucket is cut, and which of its tables need no rewriting.

use std::ops::RangeInclusive;

use super::ranges::are_alone;
use super::{BucketOptions, BucketTable, KeyRange};

/// The number of pieces for a bucket with this many live bytes: one, unless they are more than half of its capacity; and
/// so many that none gets more than about that, if an ingest has brought it much more than it may hold.
pub(crate) fn pieces(live_bytes: u64, options: &BucketOptions) -> usize {
    if live_bytes <= options.capacity / 2 {
        return 1;
    }
    let halves = live_bytes.saturating_mul(2) / options.capacity.max(1);
    options.split_into.max(2).max(usize::try_from(halves).unwrap_or(usize::MAX))
}

/// Keys at which a bucket is cut into up to `pieces`, ascending: each piece but the first begins at one of them.
///
/// `sample` has keys of the whole bucket, ascending, of every sublevel in proportion to its bytes. `first` is the
/// bucket's smallest key, so that no piece is empty.
///
/// The paper takes as many keys from a short sublevel as from a long one; a sample by bytes cuts where the bytes
/// are.
pub(crate) fn splitters(sample: &[Vec<u8>], pieces: usize, first: &[u8]) -> Vec<Vec<u8>> {
    let evenly = (1..pieces).filter_map(|i| sample.get(i * sample.len() / pieces));
    distinct(evenly.cloned().collect(), first)
}

/// The remaining cuts if the tables of these ranges stay as they are: one inside of a table moves to its
/// start.
pub(crate) fn fit(mut cuts: Vec<Vec<u8>>, kept: &[KeyRange<'_>], first: &[u8]) -> Vec<Vec<u8>> {
    for cut in &mut cuts {
        let inside = |(smallest, largest): &&KeyRange<'_>| *smallest < &cut[..] && &cut[..] <= *largest;
        if let Some((smallest, _)) = kept.iter().find(inside) {
            *cut = smallest.to_vec();
        }
    }
    distinct(cuts, first)
}

/// Ascending, each once, and each above the bucket's smallest key.
fn distinct(mut cuts: Vec<Vec<u8>>, first: &[u8]) -> Vec<Vec<u8>> {
    cuts.sort_unstable();
    cuts.dedup();
    cuts.retain(|cut| &cut[..] > first);
    cuts
}

/// Numbers of the tables that stay as they are when their bucket is merged as a whole: they overlap no other,
/// and have nothing to drop. Smaller ones are merged into larger ones, to keep tables few; larger ones would
/// leave no place to cut the bucket.
pub(crate) fn kept(tables: &[BucketTable<'_>], bytes: RangeInclusive<u64>) -> Vec<u64> {
    let ranges: Vec<KeyRange<'_>> = tables.iter().map(BucketTable::range).collect();
    let holds_garbage = |t: &BucketTable<'_>| t.deletes > 0 || t.keeps_old;
    let alone = tables.iter().zip(are_alone(&ranges));
    let kept = alone.filter(|(t, alone)| *alone && !holds_garbage(t) && bytes.contains(&t.bytes));
    kept.map(|(t, _)| t.number).collect()
}
