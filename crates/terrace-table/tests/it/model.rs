//! Tables of any shape against a sorted list.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_table::*;

use crate::memfs::MemFs;
use crate::util::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn lookups_agree_with_a_sorted_list(
        items in any_items(80),
        options in any_options(),
        changes in prop::collection::vec((0..80usize, any_options()), 0..4),
        wanted in prop::collection::vec((any_key(), any_seq()), 0..20),
    ) {
        let changes: Vec<(usize, TableOptions)> = [vec![(0, options)], changes].concat();
        let fs = MemFs::default();
        let built = build_changing(&fs, 3, &changes, &items);
        let table = open(&fs, 3, 1 << 20).unwrap();
        let mut all: Vec<(Vec<u8>, u64)> = items.iter().map(|i| (i.key.clone(), i.seq)).collect();
        all.extend(wanted);
        for (key, max_seq) in &all {
            assert_entry(table.get(key, *max_seq).unwrap().as_ref(), expected(&items, key, *max_seq));
        }
        let positions: Vec<(Position, &[u8])> =
            items.iter().map(|i| (position_of(&built, first_of(&items, &i.key)), &i.key[..])).collect();
        for max_seq in [0, 3, 7, u64::MAX] {
            let many = get_many(&table, &positions, max_seq).unwrap();
            for ((position, key), found) in positions.iter().zip(many) {
                let one = table.get_at(*position, key, max_seq).unwrap();
                assert_entry(one.as_ref(), expected(&items, key, max_seq));
                prop_assert_eq!(one, found);
            }
        }
        let mut ascending = positions.clone();
        ascending.sort_by_key(|(position, _)| *position);
        let mut buffers = ReadBuffers::default();
        for part in [&ascending[..], &ascending[ascending.len() / 2..], &positions[..positions.len().min(1)]] {
            for ((_, key), found) in part.iter().zip(table.get_ahead(part, u64::MAX, &mut buffers)) {
                assert_entry(found.as_ref(), expected(&items, key, u64::MAX));
            }
        }
    }

    #[test]
    fn cursors_agree_with_a_sorted_list(
        items in any_items(80),
        options in any_options(),
        moves in any_moves(),
        fill in any::<bool>(),
        readahead in prop_oneof![Just(0usize), 1..2000usize, Just(1 << 20)],
    ) {
        let (_fs, _, table) = table(3, &options, &items);
        let mut cursor = table.cursor(fill, readahead);
        follow(&mut cursor, &items, &moves);
        let (forward, back) = both_ways(&mut cursor).unwrap();
        prop_assert_eq!(&forward, &items);
        prop_assert_eq!(&back, &items);
    }

    /// Blocks that are passed are as if they were empty, and are not read: here they are damaged.
    #[test]
    fn cursors_go_past_blocks(
        items in any_items(80),
        options in any_options(),
        moves in any_moves(),
        passed in prop::collection::vec(any::<bool>(), 80),
        readahead in prop_oneof![Just(0usize), 1..2000usize, Just(1 << 20)],
    ) {
        let (fs, built, table) = table(3, &options, &items);
        let spans = built.blocks.iter().zip(&passed).filter(|(_, passed)| **passed);
        let offsets: BTreeSet<u64> = spans.map(|(span, _)| span.position.offset()).collect();
        let stays = |(i, _): &(usize, &Item)| !offsets.contains(&position_of(&built, *i).offset());
        let left: Vec<Item> = items.iter().enumerate().filter(stays).map(|(_, item)| item.clone()).collect();
        for offset in &offsets {
            fs.change(path(), |bytes| bytes[*offset as usize] ^= 0xff);
        }
        let mut cursor = table.cursor_past(Some(Arc::new(offsets)), false, readahead);
        follow(&mut cursor, &left, &moves);
        let (forward, back) = both_ways(&mut cursor).unwrap();
        prop_assert_eq!(&forward, &left);
        prop_assert_eq!(&back, &left);
    }

    #[test]
    fn a_healthy_table_verifies_describes_and_salvages_whole(items in any_items(60), options in any_options()) {
        let (fs, built, table) = table(3, &options, &items);
        table.verify().unwrap();
        let mut text = Vec::new();
        table.dump(&mut text).unwrap();
        let data_lines = String::from_utf8(text).unwrap().lines().filter(|l| l.contains("  data ")).count();
        prop_assert_eq!(data_lines, built.blocks.len());
        let mut back = Vec::new();
        let report = salvage(&fs, path(), 3, options.origin, &mut |key, seq, kind, value| {
            back.push(Item { key: key.to_vec(), seq, kind, value: value.to_vec() });
            Ok(())
        }).unwrap();
        prop_assert_eq!(&back, &items);
        prop_assert_eq!((report.lost.len(), report.entries), (0, items.len() as u64));
    }

    #[test]
    fn figures_are_those_of_the_items(items in any_items(60), options in any_options()) {
        let (fs, built, table) = table(3, &options, &items);
        let meta = table.meta();
        prop_assert_eq!(&built.meta, meta);
        prop_assert_eq!(meta.file_bytes, fs.bytes(path()).len() as u64);
        prop_assert_eq!(meta.entries, items.len() as u64);
        prop_assert_eq!(meta.deletes, items.iter().filter(|i| i.kind == Kind::Delete).count() as u64);
        prop_assert_eq!(meta.min_seq, items.iter().map(|i| i.seq).min().unwrap_or(0));
        prop_assert_eq!(meta.max_seq, items.iter().map(|i| i.seq).max().unwrap_or(0));
        prop_assert_eq!(&meta.smallest, &items.first().map(|i| i.key.clone()).unwrap_or_default());
        prop_assert_eq!(&meta.largest, &items.last().map(|i| i.key.clone()).unwrap_or_default());
    }
}
