//! Samples of keys.

use terrace_table::TableOptions;

use crate::memfs::MemFs;
use crate::util::{Item, build, open};

fn key(i: usize) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// Must catch a sample that has only ends of blocks, of a table of any number of blocks and of entries in them.
#[test]
fn keys_lie_at_about_equal_distances() {
    for (entries, value_bytes, block_bytes) in
        [(1, 10, 4096), (30, 10, 4096), (5000, 100, 4096), (5000, 100, 1 << 20), (40, 20_000, 512)]
    {
        let fs = MemFs::default();
        let items: Vec<Item> = (0..entries).map(|i| Item::put(&key(i), 1, &vec![7; value_bytes])).collect();
        build(&fs, 1, &TableOptions { block_bytes, ..TableOptions::default() }, &items);
        let table = open(&fs, 1, 1 << 20).unwrap();
        for wanted in [1, 2, 7, 64, 5000] {
            let keys = table.sample(wanted).unwrap();
            let places: Vec<usize> =
                keys.iter().map(|k| std::str::from_utf8(k).unwrap().parse().unwrap()).collect();
            assert!(keys.len() <= wanted && places.is_sorted_by(|a, b| a < b), "{places:?}");
            assert!(places.iter().all(|place| *place < entries), "real keys");
            let parts = wanted.min(entries);
            let ends =
                [0].into_iter().chain(places.iter().copied()).zip(places.iter().copied().chain([entries]));
            let widest = ends.map(|(from, to)| to - from).max().unwrap();
            // As wide as a part, and a part more, where blocks end elsewhere.
            assert!(
                widest <= 2 * entries.div_ceil(parts) + 2,
                "{entries} {value_bytes} {wanted}: {places:?}"
            );
        }
        assert!(table.sample(0).unwrap().is_empty());
    }
}
