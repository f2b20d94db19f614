//! What lookups cost in reads and in memory, and what they refuse.

use std::sync::Arc;

use terrace_base::ErrorKind;
use terrace_disk::Access;
use terrace_table::*;

use crate::memfs::MemFs;
use crate::util::*;

fn items(n: u32, value_len: usize) -> Vec<Item> {
    (0..n).map(|i| Item::put(format!("key{i:06}").as_bytes(), 9, &vec![i as u8; value_len])).collect()
}

#[test]
fn a_get_by_position_is_one_read_of_about_the_block() {
    for (block_bytes, value_len) in [(1, 100), (1, 5000), (4096, 100), (65_536, 700)] {
        let items = items(200, value_len);
        let fs = MemFs::default();
        let built = build(&fs, 1, &TableOptions { block_bytes, ..Default::default() }, &items);
        let table = open(&fs, 1, 0).unwrap();
        fs.take_reads();
        for (i, item) in items.iter().enumerate() {
            let position = position_of(&built, i);
            assert_entry(table.get_at(position, &item.key, 9).unwrap().as_ref(), Some(item));
            let (calls, bytes) = fs.take_reads();
            assert_eq!(calls, 1);
            assert!(bytes <= position.read_len() && bytes <= block_bytes.max(value_len) + 600);
        }
    }
}

#[test]
fn a_long_block_takes_two_reads_and_then_none() {
    let items = items(3, 200_000);
    let (fs, built, table) = table(1, &TableOptions::default(), &items);
    fs.take_reads();
    assert_entry(table.get_at(position_of(&built, 1), &items[1].key, 9).unwrap().as_ref(), Some(&items[1]));
    assert_eq!(fs.take_reads().0, 2);
    assert_entry(table.get_at(position_of(&built, 1), &items[1].key, 9).unwrap().as_ref(), Some(&items[1]));
    assert_eq!(fs.take_reads().0, 0);
}

#[test]
fn values_share_the_cached_block() {
    let items = items(50, 50);
    let (_fs, built, table) = table(1, &TableOptions::default(), &items);
    let get = || table.get_at(position_of(&built, 7), &items[7].key, 9).unwrap().unwrap().value;
    assert_eq!(get().as_ptr(), get().as_ptr());
}

#[test]
fn many_at_once_read_each_block_once() {
    let items = items(400, 100);
    let fs = MemFs::default();
    let built = build(&fs, 1, &TableOptions::default(), &items);
    let table = open(&fs, 1, 1 << 20).unwrap();
    fs.take_reads();
    let wanted: Vec<(Position, &[u8])> =
        (0..400).rev().map(|i| (position_of(&built, i), &items[i].key[..])).collect();
    let found = get_many(&table, &wanted, u64::MAX).unwrap();
    assert_eq!(fs.take_reads().0, built.blocks.len());
    for (entry, item) in found.iter().zip(items.iter().rev()) {
        assert_entry(entry.as_ref(), Some(item));
    }
    get_many(&table, &wanted, u64::MAX).unwrap();
    assert_eq!(fs.take_reads().0, 0);
    assert!(get_many(&table, &[], 0).unwrap().is_empty());
}

#[test]
fn what_is_read_later_does_not_touch_values_that_are_kept() {
    let items = items(400, 100);
    let fs = MemFs::default();
    let built = build(&fs, 1, &TableOptions { block_bytes: 256, ..Default::default() }, &items);
    let table = open(&fs, 1, 0).unwrap();
    let mut buffers = ReadBuffers::default();
    let mut kept = Vec::new();
    for from in (0..400).step_by(10) {
        let wanted: Vec<(Position, &[u8])> =
            (from..from + 10).map(|i| (position_of(&built, i), &items[i].key[..])).collect();
        let found = table.get_ahead(&wanted, u64::MAX, &mut buffers);
        // Nothing is kept of some reads, and one value of others.
        kept.extend((from..).zip(found).take(from / 10 % 3 % 2));
    }
    assert_eq!(kept.len(), 13);
    kept.iter().for_each(|(i, entry)| assert_entry(entry.as_ref(), Some(&items[*i])));
}

#[test]
fn blocks_that_lie_together_are_read_together_ahead_of_a_scan() {
    let items = items(400, 100);
    let fs = MemFs::default();
    let built = build(&fs, 1, &TableOptions { block_bytes: 256, ..Default::default() }, &items);
    let table = open(&fs, 1, 1 << 20).unwrap();
    let mut buffers = ReadBuffers::default();
    let mut ask = |ordinals: &mut dyn Iterator<Item = usize>| {
        let wanted: Vec<(Position, &[u8])> =
            ordinals.map(|i| (position_of(&built, i), &items[i].key[..])).collect();
        let found = table.get_ahead(&wanted, u64::MAX, &mut buffers);
        assert!(found.iter().zip(&wanted).all(|(entry, (_, key))| {
            let item = items.iter().find(|item| item.key == *key).unwrap();
            entry.as_ref().is_some_and(|entry| entry.value == item.value)
        }));
    };
    fs.take_reads();
    ask(&mut (100..200));
    assert_eq!(fs.take_reads().0, 1, "all at once");
    ask(&mut (100..200));
    assert_eq!(fs.take_reads().0, 1, "the cache is left to others");
    ask(&mut [0, 390].into_iter());
    assert_eq!(fs.take_reads().0, 2, "what lies apart is read apart");
    table.get_at(position_of(&built, 50), &items[50].key, 9).unwrap();
    fs.take_reads();
    ask(&mut std::iter::once(50));
    assert_eq!(fs.take_reads().0, 0, "what the cache holds is not read");
}

#[test]
fn versions_that_spill_over_are_followed() {
    let items: Vec<Item> = (0..300).rev().map(|seq| Item::put(b"same", seq, &[seq as u8; 64])).collect();
    let (_fs, built, table) = table(1, &TableOptions { block_bytes: 500, ..Default::default() }, &items);
    for max_seq in 0..300 {
        let found = table.get_at(built.blocks[0].position, b"same", max_seq).unwrap();
        assert_entry(found.as_ref(), expected(&items, b"same", max_seq));
    }
    assert_eq!(table.get_at(built.blocks[0].position, b"sama", 99).unwrap(), None);
    assert_eq!(table.get_at(built.blocks[0].position, b"samf", 99).unwrap(), None);
}

#[test]
fn positions_of_other_places_are_refused() {
    let items = items(50, 50);
    let (_fs, built, table) = table(1, &TableOptions::default(), &items);
    let at = |number, offset, len| {
        let position = Position::new(number, offset, len).unwrap();
        table.get_at(position, b"key000001", 9).map_err(|e| e.kind())
    };
    let (offset, len) = (built.blocks[0].position.offset(), built.blocks[0].position.read_len() as u64);
    assert!(at(1, offset, len).unwrap().is_some());
    assert_eq!(at(2, offset, len), Err(ErrorKind::InvalidArgument));
    assert_eq!(at(1, 1 << 30, len), Err(ErrorKind::Corruption));
    assert_eq!(at(1, built.file_bytes / 16 * 16 - 64, len), Err(ErrorKind::Corruption));
    // No cache, so that the block is looked for where the position says.
    let cold = Table::open(&_fs, path(), 1, Arc::new(BlockCache::new(0)), Access::Random).unwrap();
    for offset in [32, 48, 320] {
        let found = cold.get_at(Position::new(1, offset, len).unwrap(), b"key000001", 9);
        assert_eq!(found.unwrap_err().kind(), ErrorKind::Corruption);
    }
    let short = cold.get_at(Position::new(1, offset, 1).unwrap(), b"key000001", 9);
    assert_eq!(short.unwrap_err().kind(), ErrorKind::Corruption);
    let long = cold.get_at(Position::new(1, offset, 1 << 20).unwrap(), b"key000001", 9);
    assert!(long.unwrap().is_some());
}

#[test]
fn a_get_by_index_reads_one_index_and_one_data_block() {
    let items = items(3000, 30);
    let fs = MemFs::default();
    build(&fs, 1, &TableOptions { block_bytes: 300, ..Default::default() }, &items);
    let table = open(&fs, 1, 0).unwrap();
    for item in &items {
        fs.take_reads();
        assert_entry(table.get(&item.key, u64::MAX).unwrap().as_ref(), Some(item));
        assert_eq!(fs.take_reads().0, 2);
        let mut absent = item.key.clone();
        absent.push(b'x');
        assert_eq!(table.get(&absent, u64::MAX).unwrap(), None);
        assert!(fs.take_reads().0 <= 2);
    }
}

#[test]
fn the_largest_sequence_number_at_the_start_of_a_block_is_found_from_both_sides() {
    let items = [Item::put(b"", 0, b"first"), Item::put(b"b", u64::MAX, b"second")];
    let (_fs, _, table) = table(1, &TableOptions { block_bytes: 1, ..Default::default() }, &items);
    assert_entry(table.get(b"b", u64::MAX).unwrap().as_ref(), Some(&items[1]));
    let to = |m: fn(Vec<u8>, u64) -> Move| m(b"b".to_vec(), u64::MAX);
    follow(&mut table.cursor(true, 0), &items, &[to(Move::SeekBack), Move::Prev, to(Move::Seek), Move::Prev]);
}

#[test]
fn a_filter_spares_the_reads_of_absent_keys() {
    let items = items(2000, 20);
    let options = TableOptions { filter_bits_per_key: 12, ..Default::default() };
    let (fs, _, table) = table(1, &options, &items);
    let before = table.memory_bytes();
    assert!(table.may_contain(b"key000001").unwrap());
    assert!(table.memory_bytes() >= before + 2000 * 12 / 8);
    fs.take_reads();
    let absent = (0..1000).filter(|i| table.get(format!("no{i}").as_bytes(), 9).unwrap().is_none()).count();
    assert_eq!(absent, 1000);
    assert!(fs.take_reads().0 < 60);
}

#[test]
fn the_cache_keeps_to_its_size_and_counts() {
    let items = items(4000, 1000);
    let fs = MemFs::default();
    let built = build(&fs, 1, &TableOptions::default(), &items);
    let cache = Arc::new(BlockCache::new(1 << 20));
    let table = Table::open(&fs, path(), 1, cache.clone(), Access::Random).unwrap();
    for (i, item) in items.iter().enumerate() {
        table.get_at(position_of(&built, i), &item.key, 9).unwrap().unwrap();
        assert!(cache.usage() <= cache.capacity());
    }
    let stats = cache.stats();
    assert_eq!(stats.misses, built.blocks.len() as u64);
    assert_eq!(stats.hits, items.len() as u64 - stats.misses);
    assert!(cache.usage() > 900 << 10);
}

#[test]
fn a_full_scan_reads_in_large_pieces_and_leaves_the_cache_alone() {
    let items = items(4000, 1000);
    let fs = MemFs::default();
    let built = build(&fs, 1, &TableOptions::default(), &items);
    let cache = Arc::new(BlockCache::new(1 << 20));
    let table = Table::open(&fs, path(), 1, cache.clone(), Access::Random).unwrap();
    fs.take_reads();
    let mut cursor = table.cursor(false, 256 << 10);
    cursor.seek_first().unwrap();
    let mut count = 0;
    while cursor.valid() {
        count += 1;
        cursor.next().unwrap();
    }
    let (calls, bytes) = fs.take_reads();
    assert_eq!(count, items.len());
    assert!(calls < 25, "{calls} reads");
    // A block that a window cuts is read again with the next.
    assert!((bytes as u64) < built.file_bytes * 21 / 20, "{bytes} bytes");
    cursor.seek_last().unwrap();
    while cursor.valid() {
        cursor.prev().unwrap();
    }
    assert!(fs.take_reads().0 < 50);
    assert_eq!(cache.usage(), 0);
    // A short scan reads little, whatever it might.
    cursor.seek(b"key002000", 9).unwrap();
    cursor.next().unwrap();
    assert!(fs.take_reads().1 < 25_000);
}

#[test]
fn threads_share_a_table() {
    let items = items(2000, 100);
    let fs = MemFs::default();
    let options = TableOptions { filter_bits_per_key: 10, ..Default::default() };
    let built = build(&fs, 1, &options, &items);
    let table = open(&fs, 1, 64 << 10).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (table, items, built) = (&table, &items, &built);
            scope.spawn(move || {
                for i in (0..items.len()).map(|i| (i * 7 + t * 131) % items.len()) {
                    let item = &items[i];
                    assert_entry(table.get(&item.key, 9).unwrap().as_ref(), Some(item));
                    let found = table.get_at(position_of(built, i), &item.key, 9).unwrap();
                    assert_entry(found.as_ref(), Some(item));
                }
            });
        }
    });
}
