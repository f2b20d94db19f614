//! Values and keys of all sizes.

use terrace_base::rng::Rng;
use terrace_table::*;

use crate::util::*;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    Rng::new(seed).fill(&mut out);
    out
}

fn check(options: &TableOptions, items: &[Item]) {
    let (fs, built, table) = table(1, options, items);
    table.verify().unwrap();
    for (i, item) in items.iter().enumerate() {
        assert_entry(table.get_at(position_of(&built, i), &item.key, item.seq).unwrap().as_ref(), Some(item));
        assert_entry(table.get(&item.key, item.seq).unwrap().as_ref(), Some(item));
    }
    for fill in [true, false] {
        let (forward, back) = both_ways(&mut table.cursor(fill, 100_000)).unwrap();
        assert!(forward == items && back == items);
    }
    let mut count = 0;
    let report = salvage(&fs, path(), 1, options.origin, &mut |_, _, _, _| {
        count += 1;
        Ok(())
    });
    assert_eq!((count, report.unwrap().lost.len()), (items.len(), 0));
}

#[test]
fn values_from_nothing_to_megabytes_side_by_side() {
    let sizes = [0, 1, 4000, 5000, 130_000, 131_050, 262_143, 262_144, 1 << 20, 3_000_001, 0, 17];
    for compression in [Compression::None, Compression::Lz4] {
        for block_bytes in [1, 4096, 1 << 20] {
            let options = TableOptions { block_bytes, compression, ..Default::default() };
            let item = |(i, &len): (usize, &usize)| {
                let value = if i % 2 == 0 { noise(len, i as u64) } else { vec![b'v'; len] };
                Item::put(&[i as u8], 1, &value)
            };
            check(&options, &sizes.iter().enumerate().map(item).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_very_large_value_and_its_versions() {
    let items = vec![
        Item::put(b"", 3, &noise(48 << 20, 1)),
        Item::put(b"", 2, b""),
        Item::put(b"", 1, &noise(20 << 20, 2)),
    ];
    check(&TableOptions::default(), &items);
}

#[test]
fn the_longest_keys() {
    let mut items = Vec::new();
    for last in 0..6u8 {
        let mut key = vec![b'k'; MAX_KEY_BYTES];
        key[MAX_KEY_BYTES - 1] = last;
        for seq in [u64::MAX, 1, 0] {
            items.push(Item { key: key.clone(), seq, kind: Kind::Delete, value: Vec::new() });
        }
    }
    for block_bytes in [1, 4096, 1 << 20] {
        check(&TableOptions { block_bytes, filter_bits_per_key: 10, ..Default::default() }, &items);
    }
}

#[test]
fn an_index_of_several_blocks() {
    let items: Vec<Item> = (0..6000u32).map(|i| Item::put(format!("{i:030}").as_bytes(), 1, b"v")).collect();
    check(&TableOptions { block_bytes: 1, ..Default::default() }, &items);
}
