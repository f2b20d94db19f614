//! Tables that were made outside: where one may lie that is newer than everything, and where a bucket is divided that
//! gets many of them.

use super::{BucketOptions, BucketTable, KeyRange, LEVELS};
use crate::compaction::overlap::overlaps;

/// The lowest level for a new table with keys of `range`, all of its versions newer than those of `tables`: nothing on
/// that level and above it has a key of the range, unless it is level 0. `holds_some` says whether a table of level 0
/// that spans some of the range has a key in it. Which of two versions is newer does not depend on levels, so it does
/// not matter what running jobs write.
pub(crate) fn lowest_level(
    tables: &[BucketTable<'_>],
    range: KeyRange<'_>,
    holds_some: impl Fn(u64) -> bool,
) -> usize {
    let is_in_the_way = |table: &BucketTable<'_>| {
        overlaps(table.range(), range) && (table.level > 0 || holds_some(table.number))
    };
    let is_free = |level: &usize| {
        let mut of_level = tables.iter().filter(|table| table.level as usize == *level);
        !of_level.any(is_in_the_way)
    };
    (0..LEVELS).take_while(is_free).last().unwrap_or(0)
}

/// Keys at which a bucket is divided when tables of these ranges and bytes come, in order: where some of them begin, if
/// they are more than it may hold. Each part gets about half of that.
pub(crate) fn divide(coming: &[(KeyRange<'_>, u64)], options: &BucketOptions) -> Vec<Vec<u8>> {
    let bytes: u64 = coming.iter().map(|(_, bytes)| bytes).sum();
    if bytes <= options.capacity {
        return Vec::new();
    }
    let (mut cuts, mut part) = (Vec::new(), 0);
    for ((smallest, _), bytes) in coming {
        if part >= options.capacity / 2 {
            cuts.push(smallest.to_vec());
            part = 0;
        }
        part += bytes;
    }
    cuts
}

/// Whether a table of this range has keys on both sides of one of `cuts`.
pub(crate) fn spans((smallest, largest): KeyRange<'_>, cuts: &[Vec<u8>]) -> bool {
    cuts.iter().any(|cut| *smallest < **cut && **cut <= *largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table<'a>(number: u64, level: u32, range: KeyRange<'a>) -> BucketTable<'a> {
        BucketTable {
            number,
            level,
            bytes: 10,
            entries: 1,
            deletes: 0,
            smallest: range.0,
            largest: range.1,
            keeps_old: false,
            max_seq: 1,
            busy: false,
        }
    }

    #[test]
    fn a_table_lies_as_low_as_nothing_is_in_the_way() {
        let level = |tables: &[BucketTable<'_>], range| lowest_level(tables, range, |number| number != 6);
        let mut tables = Vec::new();
        assert_eq!(level(&tables, (b"a", b"z")), 2);
        tables.push(table(1, 2, (b"a", b"f")));
        assert_eq!((level(&tables, (b"f", b"g")), level(&tables, (b"g", b"h"))), (1, 2));
        tables.push(table(2, 1, (b"f", b"g")));
        assert_eq!((level(&tables, (b"g", b"g")), level(&tables, (b"h", b"h"))), (0, 2));
        tables.push(table(3, 0, (b"h", b"i")));
        assert_eq!((level(&tables, (b"i", b"j")), level(&tables, (b"j", b"j"))), (0, 2));
        tables.push(table(6, 0, (b"a", b"z")));
        assert_eq!(level(&tables, (b"j", b"j")), 2, "it spans the range and has no key in it");
    }

    #[test]
    fn a_bucket_is_divided_where_tables_begin_that_are_more_than_it_holds() {
        let options = BucketOptions { capacity: 40, ..BucketOptions::default() };
        let keys: Vec<[u8; 1]> = (b'a'..=b'i').map(|key| [key]).collect();
        let coming = |tables: usize| -> Vec<(KeyRange<'_>, u64)> {
            keys[..tables].iter().map(|key| ((&key[..], &key[..]), 10)).collect()
        };
        assert!(divide(&[], &options).is_empty() && divide(&coming(4), &options).is_empty());
        assert_eq!(divide(&coming(5), &options), [b"c", b"e"]);
        assert_eq!(divide(&coming(9), &options), [b"c", b"e", b"g", b"i"]);
        let one = [((&b"a"[..], &b"b"[..]), 100)];
        assert!(divide(&one, &options).is_empty(), "a table is not cut");
        let cuts = [b"c".to_vec(), b"e".to_vec()];
        let spanning = [(b"a", b"b"), (b"a", b"c"), (b"c", b"d"), (b"d", b"z"), (b"e", b"z")];
        let spanning = spanning.map(|(smallest, largest)| spans((&smallest[..], &largest[..]), &cuts));
        assert_eq!(spanning, [false, true, false, true, false]);
    }
}
