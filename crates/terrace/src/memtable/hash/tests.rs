//! The table against a sorted map, and readers beside its writer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use terrace_base::Error;
use terrace_base::rng::Rng;
use terrace_table::Cursor;

use super::*;
use crate::memtable::chunks::REGION_BYTES;

type Model = BTreeMap<(Vec<u8>, Reverse<u64>), (Kind, Vec<u8>)>;

fn table() -> HashTable {
    HashTable::new(&Chunks::new(), Overflow::Chain)
}

/// A table whose first hash function puts all keys into one line.
fn colliding(overflow: Overflow) -> HashTable {
    let inner = Inner { all_collide: true, ..Inner::new(&Chunks::new(), overflow) };
    HashTable { inner: Arc::new(inner) }
}

fn fill(table: &HashTable, puts: &[(Vec<u8>, bool, Vec<u8>)]) -> Model {
    let mut model = Model::new();
    let mut writer = table.writer();
    for (i, (key, put, value)) in puts.iter().enumerate() {
        // Numbers have gaps: other tables take some.
        let (seq, kind) = (2 * i as u64 + 2, if *put { Kind::Put } else { Kind::Delete });
        writer.insert(key, seq, kind, value);
        model.insert((key.clone(), Reverse(seq)), (kind, value.clone()));
    }
    model
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    // Short ones, some that differ only past the eighth byte, and some with a common beginning.
    prop_oneof![
        prop::collection::vec(0u8..3, 0..4),
        prop::collection::vec(0u8..2, 7..11),
        prop::collection::vec(any::<u8>(), 0..12),
        any::<u8>().prop_map(|last| [&b"user0000000000000000"[..], &[last]].concat()),
    ]
}

fn puts() -> impl Strategy<Value = Vec<(Vec<u8>, bool, Vec<u8>)>> {
    let values = || prop::collection::vec(any::<u8>(), 0..40);
    let alike = any::<u8>().prop_map(|last| [&b"user0000000000000000"[..], &[last]].concat());
    prop_oneof![
        prop::collection::vec((keys(), any::<bool>(), values()), 0..200),
        prop::collection::vec((alike, any::<bool>(), values()), 0..100),
    ]
}

fn place(cursor: &HashCursor) -> Option<(&[u8], u64)> {
    cursor.valid().then(|| (cursor.key(), cursor.seq()))
}

/// Both ends, every step, and seeks at, before and after the entries.
fn compare(
    table: &HashTable,
    model: &Model,
    sought: &[(Vec<u8>, u64)],
) -> std::result::Result<(), TestCaseError> {
    prop_assert_eq!(table.check(), Vec::<String>::new());
    let mut cursor = table.cursor();
    prop_assert!(!cursor.valid());
    cursor.seek_first().unwrap();
    for ((key, seq), (kind, value)) in model {
        prop_assert_eq!((place(&cursor), cursor.kind()), (Some((&key[..], seq.0)), *kind));
        prop_assert_eq!((cursor.value_bytes(), cursor.value_len()), (&value[..], value.len()));
        let found = table.get(key, seq.0);
        prop_assert_eq!(found, Some(Version { seq: seq.0, kind: *kind, value: &value[..] }));
        cursor.next().unwrap();
    }
    prop_assert!(!cursor.valid());
    let mut back = cursor.clone();
    back.seek_last().unwrap();
    for ((key, seq), _) in model.iter().rev() {
        prop_assert_eq!(place(&back), Some((&key[..], seq.0)));
        back.prev().unwrap();
    }
    prop_assert!(!back.valid());
    for (key, seq) in sought {
        let at = (key.clone(), Reverse(*seq));
        let after = model.range(&at..).next().map(|((k, s), _)| (&k[..], s.0));
        cursor.seek(key, *seq).unwrap();
        prop_assert_eq!(place(&cursor), after);
        let before = model.range(..=&at).next_back().map(|((k, s), _)| (&k[..], s.0));
        cursor.seek_back(key, *seq).unwrap();
        prop_assert_eq!(place(&cursor), before);
        let found = after.filter(|(k, _)| *k == &key[..]).map(|(_, s)| s);
        prop_assert_eq!(table.get(key, *seq).map(|v| v.seq), found);
    }
    let mut visited = Model::new();
    let mut order = Vec::new();
    table
        .visit(|key, seq, kind, value| {
            order.push((key.to_vec(), Reverse(seq)));
            visited.insert((key.to_vec(), Reverse(seq)), (kind, value.to_vec()));
            Ok(())
        })
        .unwrap();
    prop_assert!(order.is_sorted() && order.len() == model.len());
    prop_assert_eq!(&visited, model);
    Ok(())
}

proptest! {
    #[test]
    fn the_table_is_a_sorted_map(
        puts in puts(),
        sought in prop::collection::vec((keys(), 0u64..400), 0..20),
        freeze_by_lines in any::<bool>(),
        collide in any::<bool>(),
    ) {
        let overflow = if freeze_by_lines { Overflow::Freeze } else { Overflow::Chain };
        let table = if collide { colliding(overflow) } else { HashTable::new(&Chunks::new(), overflow) };
        let model = fill(&table, &puts);
        let last = 2 * puts.len() as u64;
        prop_assert_eq!((table.entries(), table.max_seq()), (puts.len() as u64, last));
        prop_assert_eq!(table.min_seq(), if puts.is_empty() { u64::MAX } else { 2 });
        compare(&table, &model, &sought)?;
        table.freeze();
        compare(&table, &model, &sought)?;
    }
}

/// Keys and their numbers follow from the number of a write, so that readers know what they must find.
fn key_of(seq: u64) -> [u8; 8] {
    (seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48).to_be_bytes()
}

/// A reader loads the current directory or an earlier one: either has what was inserted before.
fn readers_beside_a_writer(table: HashTable, writes: u64) {
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 1..=writes {
                table.writer().insert(&key_of(seq), seq, Kind::Put, &seq.to_le_bytes());
                written.store(seq, Ordering::Release);
            }
        });
        for reader in 0..2u64 {
            let (table, written) = (&table, &written);
            scope.spawn(move || {
                let mut rng = Rng::new(reader);
                let mut rounds = 0u64;
                loop {
                    let last = written.load(Ordering::Acquire);
                    if last > 0 {
                        // The newest one and any other, each with the state after its write.
                        for seq in [last, 1 + rng.below(last)] {
                            let found = table.get(&key_of(seq), seq).expect("what was written");
                            assert_eq!((found.seq, found.value), (seq, &seq.to_le_bytes()[..]));
                        }
                    }
                    rounds += 1;
                    if rounds.is_multiple_of(64) {
                        walk_beside_a_writer(table, last);
                    }
                    if last == writes {
                        break;
                    }
                }
            });
        }
    });
    assert_eq!((table.check(), table.entries()), (Vec::<String>::new(), writes));
}

/// Keys ascend, each version comes once, and none up to `last` is missing.
fn walk_beside_a_writer(table: &HashTable, last: u64) {
    let mut cursor = table.cursor();
    cursor.seek_first().unwrap();
    let mut before: Option<(Vec<u8>, Reverse<u64>)> = None;
    let mut old = 0;
    while cursor.valid() {
        let here = (cursor.key().to_vec(), Reverse(cursor.seq()));
        assert!(before.is_none_or(|before| before < here));
        old += u64::from(cursor.seq() <= last);
        before = Some(here);
        cursor.next().unwrap();
    }
    assert_eq!(old, last);
}

#[test]
fn readers_find_what_was_written_before_they_look_while_the_directory_grows() {
    readers_beside_a_writer(table(), 60_000);
}

#[test]
fn readers_find_what_was_written_before_they_look_while_lines_chain() {
    for _ in 0..300 {
        // Until the hash function is replaced, and a little beyond.
        readers_beside_a_writer(colliding(Overflow::Chain), 70);
    }
}

/// Nothing of a hot key is removed, no line fills, and each old version is found at once.
#[test]
fn a_hot_key_takes_one_slot() {
    let table = HashTable::new(&Chunks::new(), Overflow::Freeze);
    for seq in 1..=100_000u64 {
        table.writer().insert(b"hot", seq, Kind::Put, &seq.to_le_bytes());
        if seq % 10_000 == 0 {
            table.writer().insert(format!("other {seq}").as_bytes(), seq, Kind::Delete, b"");
        }
    }
    assert!(!table.has_overflowed());
    for seq in 1..=100_000 {
        assert_eq!(table.get(b"hot", seq).unwrap().value, &seq.to_le_bytes()[..]);
    }
    assert_eq!((table.get(b"hot", 0), table.entries()), (None, 100_010));
    assert_eq!(table.inner.directory().unwrap().shape.log2_lines, 3);
    let mut cursor = table.cursor();
    cursor.seek(b"hot", 77_777).unwrap();
    assert_eq!((place(&cursor), table.check()), (Some((&b"hot"[..], 77_777)), vec![]));
}

/// Keys with one hash make only a short chain, because the table then switches to another hash function.
#[test]
fn keys_that_collide_are_told_apart_by_another_hash() {
    let table = colliding(Overflow::Chain);
    let mut longest = 0;
    for seq in 1..=20_000u64 {
        table.writer().insert(&seq.to_be_bytes(), seq, Kind::Put, b"v");
        longest = longest.max(if seq < 1000 { table.inner.directory().unwrap().longest_chain() } else { 0 });
    }
    assert_eq!(longest, CHOSEN_LINES);
    let directory = table.inner.directory().unwrap();
    assert!(directory.shape.keyed && directory.longest_chain() <= 3, "{:?}", directory.shape);
    (1..=20_000u64).for_each(|seq| assert_eq!(table.get(&seq.to_be_bytes(), 20_000).unwrap().seq, seq));
    assert_eq!(table.check(), Vec::<String>::new());
}

/// The published rule: of 8,192 lines, one is full at about the number of keys in the paper's tables.
#[test]
fn a_full_line_of_the_published_size_is_told() {
    let table = HashTable::new(&Chunks::new(), Overflow::Freeze);
    let mut seq = 0u64;
    while !table.has_overflowed() {
        seq += 1;
        table.writer().insert(&seq.to_be_bytes(), seq, Kind::Put, b"v");
        assert!(seq < 32_768, "half of all slots are full, and none of the lines");
    }
    assert!(seq > 4_000, "one of 8,192 lines was full after {seq} keys");
    assert_eq!(table.inner.directory().unwrap().shape.log2_lines, LOG2_PUBLISHED_LINES);
    // It still takes what comes.
    (1..=40_000u64).for_each(|i| table.writer().insert(&i.to_be_bytes(), seq + i, Kind::Put, b"w"));
    assert_eq!((table.check(), table.entries()), (vec![], seq + 40_000));
    assert!(table.get(&1u64.to_be_bytes(), seq).is_some_and(|version| version.value == b"v"));

    let chained = table_of(20_000);
    assert!(!chained.has_overflowed(), "only the published rule freezes");
}

fn table_of(keys: u64) -> HashTable {
    let table = table();
    (1..=keys).for_each(|seq| table.writer().insert(&seq.to_be_bytes(), seq, Kind::Put, &[7; 100]));
    table
}

#[test]
fn memory_comes_back_with_the_last_that_has_it() {
    let chunks = Chunks::new();
    let table = HashTable::new(&chunks, Overflow::Chain);
    assert_eq!((chunks.given_bytes(), table.dram_bytes(), table.is_empty()), (0, 0, true));
    for seq in 1..=30_000u64 {
        table.writer().insert(&seq.to_be_bytes(), seq, Kind::Put, &[7; 100]);
    }
    table.writer().insert(b"large", 40_000, Kind::Put, &vec![8; 3 << 20]);
    assert_eq!(chunks.given_bytes(), table.dram_bytes());
    assert!(table.bytes_used() > 30_000 * 108 + (3 << 20) && table.bytes_used() < table.dram_bytes());
    let mut cursor = table.cursor();
    cursor.seek(b"large", u64::MAX).unwrap();
    table.freeze();
    table.cursor().seek_first().unwrap();
    assert!(table.dram_bytes() >= chunks.given_bytes() + 30_001 * 16, "the shared order counts");
    drop(table);
    assert!(chunks.given_bytes() > 3 << 20, "the cursor keeps the table");
    assert_eq!((cursor.key(), cursor.value().unwrap().len()), (&b"large"[..], 3 << 20));
    drop(cursor);
    assert_eq!(chunks.given_bytes(), 0);
    assert!(chunks.reserved_bytes() <= REGION_BYTES as u64);
}

/// A thousand tables of a bucket's size hold little more than their contents.
#[test]
fn small_tables_hold_little_beside_their_contents() {
    let chunks = Chunks::new();
    let tables: Vec<HashTable> = (0..1000).map(|_| HashTable::new(&chunks, Overflow::Chain)).collect();
    assert_eq!(chunks.given_bytes(), 0);
    tables.iter().for_each(|table| table.writer().insert(b"k", 1, Kind::Put, b"v"));
    assert!(chunks.given_bytes() <= (5 << 10) * 1000, "{} bytes for a key each", chunks.given_bytes());
    for seq in 2..=350u64 {
        tables.iter().for_each(|table| table.writer().insert(&seq.to_be_bytes(), seq, Kind::Put, &[7; 108]));
    }
    let (used, given) = (tables[0].bytes_used(), tables[0].dram_bytes());
    assert!(used > 45 << 10 && given <= used + (32 << 10), "{used} bytes in use of {given}");
    assert!(chunks.reserved_bytes() <= chunks.given_bytes() * 9 / 8);
}

#[test]
fn the_longest_keys_and_large_values_are_kept() {
    let table = table();
    let key = vec![0xff; crate::batch::MAX_KEY_BYTES];
    table.writer().insert(&key, 1, Kind::Put, b"");
    table.writer().insert(b"", 2, Kind::Put, &vec![5; 64 << 20]);
    table.writer().insert(&key, 3, Kind::Delete, b"");
    assert_eq!(table.get(&key, 2).map(|v| v.kind), Some(Kind::Put));
    assert_eq!(table.get(&key, 3).map(|v| v.kind), Some(Kind::Delete));
    assert_eq!(table.get(b"", 9).map(|v| (v.value.len(), v.value[(64 << 20) - 1])), Some((64 << 20, 5)));
    assert!(table.get(&key[1..], 9).is_none());
    assert_eq!(table.check(), Vec::<String>::new());
}

#[test]
fn cursors_of_a_frozen_table_share_one_order() {
    let table = table_of(100);
    let mut early = table.cursor();
    early.seek_first().unwrap();
    table.writer().insert(b"late", 200, Kind::Put, b"");
    table.freeze();
    let mut cursors = [table.cursor(), table.cursor()];
    cursors.iter_mut().for_each(|cursor| cursor.seek(b"late", 200).unwrap());
    assert!(cursors.iter().all(|cursor| place(cursor) == Some((b"late", 200))));
    assert_eq!(Arc::strong_count(table.inner.sorted.get().unwrap()), 3);
    // It does not meet what came after it had gathered, and misses nothing else.
    early.seek(b"late", 200).unwrap();
    assert!(!early.valid());
    early.seek_last().unwrap();
    assert_eq!(early.seq(), 100);
}

#[test]
#[should_panic(expected = "frozen")]
fn nothing_is_inserted_into_a_frozen_table() {
    let table = table_of(1);
    table.freeze();
    table.writer().insert(b"k", 2, Kind::Put, b"");
}

#[test]
fn a_visit_ends_with_the_first_error() {
    let (table, mut visited) = (table_of(10), 0);
    let outcome = table.visit(|_, _, _, _| {
        visited += 1;
        if visited == 3 { Err(Error::invalid("enough")) } else { Ok(()) }
    });
    assert!(outcome.is_err() && visited == 3);
}

#[test]
fn a_damaged_table_is_told() {
    let table = table_of(20);
    assert_eq!(table.check(), Vec::<String>::new());
    // A version that nobody counted, and one that is older than the one before it.
    let mut writing = table.inner.writer.lock();
    let directory = table.inner.directory().unwrap();
    let key = 7u64.to_be_bytes();
    let hash = table.inner.hash(directory.shape, &key);
    let place = directory.search(hash, |record| record.key() == key);
    let SlotSearch::Found(_, prev) = place else { panic!("a key is missing") };
    let content = Content { key: &key, seq: 3, kind: Kind::Put, value: b"" };
    let record = record::create(&mut writing.arena, &content, Some(prev));
    place.set(&mut writing.arena, hash, record);
    drop(writing);
    let problems = table.check();
    assert!(
        problems.len() == 2 && problems[0].contains("not in order") && problems[1].contains("20"),
        "{problems:?}"
    );
}
