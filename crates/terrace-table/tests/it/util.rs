//! What the tests share: items, tables of them, and a cursor over a sorted list to compare with.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_base::Result;
use terrace_disk::{Access, Fs};
use terrace_table::*;

use crate::memfs::MemFs;

/// One version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub key: Vec<u8>,
    pub seq: u64,
    pub kind: Kind,
    pub value: Vec<u8>,
}

impl Item {
    pub fn put(key: &[u8], seq: u64, value: &[u8]) -> Item {
        Item { key: key.to_vec(), seq, kind: Kind::Put, value: value.to_vec() }
    }
}

/// Sorts by key, newest first, and drops second items of one version.
pub fn sorted(mut items: Vec<Item>) -> Vec<Item> {
    items.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
    items.dedup_by(|a, b| (&a.key, a.seq) == (&b.key, b.seq));
    items
}

pub fn path() -> &'static Path {
    Path::new("/db/000001.sst")
}

pub fn build(fs: &dyn Fs, number: u64, options: &TableOptions, items: &[Item]) -> Built {
    build_changing(fs, number, &[(0, options.clone())], items)
}

/// The same by several options, each from an item on; the first are those of the table.
pub fn build_changing(fs: &dyn Fs, number: u64, changes: &[(usize, TableOptions)], items: &[Item]) -> Built {
    let mut builder = TableBuilder::new(fs.create(path()).unwrap(), number, changes[0].1.clone()).unwrap();
    if changes.len() > 1 {
        builder = builder.with_filter_by_entries();
    }
    for (i, item) in items.iter().enumerate() {
        for (_, options) in changes[1..].iter().filter(|(at, _)| *at == i) {
            builder.change_options(options).unwrap();
        }
        builder.add(&item.key, item.seq, item.kind, &item.value).unwrap();
    }
    builder.finish().unwrap()
}

pub fn open(fs: &dyn Fs, number: u64, cache_bytes: u64) -> Result<Arc<Table>> {
    Table::open(fs, path(), number, Arc::new(BlockCache::new(cache_bytes)), Access::Random)
}

/// A table of `items` in a file system of its own.
pub fn table(number: u64, options: &TableOptions, items: &[Item]) -> (MemFs, Built, Arc<Table>) {
    let fs = MemFs::default();
    let built = build(&fs, number, options, items);
    let table = open(&fs, number, 1 << 20).unwrap();
    (fs, built, table)
}

/// The position of the block that holds item number `i`.
pub fn position_of(built: &Built, i: usize) -> Position {
    let block = built.blocks.partition_point(|span| span.first_entry <= i as u64) - 1;
    built.blocks[block].position
}

/// The number of the newest version of `key` among sorted `items`.
pub fn first_of(items: &[Item], key: &[u8]) -> usize {
    items.iter().position(|i| i.key == key).unwrap()
}

/// The entry of sorted `items` that a lookup must give.
pub fn expected<'a>(items: &'a [Item], key: &[u8], max_seq: u64) -> Option<&'a Item> {
    items.iter().find(|item| item.key == key && item.seq <= max_seq)
}

pub fn assert_entry(found: Option<&Entry>, item: Option<&Item>) {
    let found = found.map(|e| (e.seq, e.kind, &e.value[..]));
    assert_eq!(found, item.map(|i| (i.seq, i.kind, &i.value[..])));
}

/// A move of a cursor.
#[derive(Debug, Clone)]
pub enum Move {
    First,
    Last,
    Seek(Vec<u8>, u64),
    SeekBack(Vec<u8>, u64),
    Next,
    Prev,
}

/// Makes `moves` on `cursor` and on the sorted `items`, comparing after each.
pub fn follow(cursor: &mut dyn Cursor, items: &[Item], moves: &[Move]) {
    let mut at: Option<usize> = None;
    let before =
        |item: &Item, key: &[u8], seq: u64| (&item.key[..], u64::MAX - item.seq) < (key, u64::MAX - seq);
    let upto =
        |item: &Item, key: &[u8], seq: u64| (&item.key[..], u64::MAX - item.seq) <= (key, u64::MAX - seq);
    for (step, m) in moves.iter().enumerate() {
        at = match m {
            Move::First => (!items.is_empty()).then_some(0),
            Move::Last => items.len().checked_sub(1),
            Move::Seek(key, seq) => {
                let i = items.partition_point(|item| before(item, key, *seq));
                (i < items.len()).then_some(i)
            }
            Move::SeekBack(key, seq) => items.partition_point(|item| upto(item, key, *seq)).checked_sub(1),
            Move::Next => at.map(|i| i + 1).filter(|&i| i < items.len()),
            Move::Prev => at.and_then(|i| i.checked_sub(1)),
        };
        match m {
            Move::First => cursor.seek_first(),
            Move::Last => cursor.seek_last(),
            Move::Seek(key, seq) => cursor.seek(key, *seq),
            Move::SeekBack(key, seq) => cursor.seek_back(key, *seq),
            Move::Next => cursor.next(),
            Move::Prev => cursor.prev(),
        }
        .unwrap();
        assert_eq!(cursor.valid(), at.is_some(), "step {step}, {m:?}");
        if let Some(i) = at {
            assert_eq!(item_at(cursor), items[i], "step {step}, {m:?}");
            assert_eq!(cursor.value_len(), items[i].value.len());
        }
    }
}

pub fn item_at(cursor: &dyn Cursor) -> Item {
    let (key, value) = (cursor.key().to_vec(), cursor.value().unwrap().to_vec());
    Item { key, seq: cursor.seq(), kind: cursor.kind(), value }
}

/// Every item from the first to the last, and again backwards, turned round.
pub fn both_ways(cursor: &mut dyn Cursor) -> Result<(Vec<Item>, Vec<Item>)> {
    let (mut forward, mut back) = (Vec::new(), Vec::new());
    cursor.seek_first()?;
    while cursor.valid() {
        forward.push(item_at(cursor));
        cursor.next()?;
    }
    cursor.seek_last()?;
    while cursor.valid() {
        back.push(item_at(cursor));
        cursor.prev()?;
    }
    back.reverse();
    Ok((forward, back))
}

/// Keys over few letters, so that prefixes, equal keys and neighbours are common.
pub fn any_key() -> impl Strategy<Value = Vec<u8>> {
    let letter = prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(0xff)];
    prop_oneof![
        8 => prop::collection::vec(letter, 0..6),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(Just(b'k'), 250..300),
    ]
}

fn any_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        2 => (any::<u8>(), 0..700usize).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

pub fn any_seq() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..12u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

pub fn any_item() -> impl Strategy<Value = Item> {
    let any_kind = prop_oneof![2 => Just(Kind::Put), 1 => Just(Kind::Delete), 1 => Just(Kind::Operand)];
    (any_key(), any_seq(), any_kind, any_value()).prop_map(|(key, seq, kind, value)| Item {
        key,
        seq,
        kind,
        value,
    })
}

pub fn any_items(most: usize) -> impl Strategy<Value = Vec<Item>> {
    prop::collection::vec(any_item(), 0..most).prop_map(sorted)
}

pub fn any_options() -> impl Strategy<Value = TableOptions> {
    let block_bytes = prop_oneof![Just(1usize), 50..300usize, Just(4096), Just(1 << 20)];
    (block_bytes, 1..20usize, any::<bool>(), 0..15u32).prop_map(
        |(block_bytes, restart_interval, lz4, bits)| {
            let compression = if lz4 { Compression::Lz4 } else { Compression::None };
            TableOptions { block_bytes, restart_interval, compression, filter_bits_per_key: bits, origin: 9 }
        },
    )
}

pub fn any_moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        2 => (any_key(), any_seq()).prop_map(|(key, seq)| Move::Seek(key, seq)),
        2 => (any_key(), any_seq()).prop_map(|(key, seq)| Move::SeekBack(key, seq)),
        6 => Just(Move::Next),
        6 => Just(Move::Prev),
    ];
    prop::collection::vec(one, 0..60)
}

/// What `table` says of several keys at once, each with its position.
pub fn get_many(table: &Table, asked: &[(Position, &[u8])], max_seq: u64) -> Result<Vec<Option<Entry>>> {
    let sought: Vec<Sought<'_>> =
        asked.iter().map(|&(position, key)| Sought { table, key, position: Some(position) }).collect();
    find_many(&sought, max_seq)
}
