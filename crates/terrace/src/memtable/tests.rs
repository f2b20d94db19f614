//! The list against a sorted map, and readers beside its writer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use terrace_table::{Cursor, Kind};

use super::*;

type Model = BTreeMap<(Vec<u8>, std::cmp::Reverse<u64>), (Kind, Vec<u8>)>;

fn fill(puts: &[(Vec<u8>, bool, Vec<u8>)]) -> (MemList, Model) {
    let (list, mut model) = (MemList::with_filter(&Chunks::new(), 16 << 10), Model::new());
    let mut writer = list.writer();
    for (i, (key, put, value)) in puts.iter().enumerate() {
        let (seq, kind) = (i as u64 + 1, if *put { Kind::Put } else { Kind::Delete });
        writer.insert(key, seq, kind, value);
        model.insert((key.clone(), std::cmp::Reverse(seq)), (kind, value.clone()));
    }
    drop(writer);
    (list, model)
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    // Short ones, and some that differ only past the eighth byte.
    prop_oneof![
        prop::collection::vec(0u8..3, 0..4),
        prop::collection::vec(0u8..2, 7..11),
        prop::collection::vec(any::<u8>(), 0..12),
    ]
}

proptest! {
    #[test]
    fn the_list_is_a_sorted_map(
        puts in prop::collection::vec((keys(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..120),
        sought in prop::collection::vec((keys(), 0u64..130), 0..20),
    ) {
        let (list, model) = fill(&puts);
        prop_assert_eq!(list.check(), Vec::<String>::new());
        prop_assert_eq!((list.entries(), list.max_seq()), (puts.len() as u64, puts.len() as u64));
        let mut cursor = list.cursor();
        cursor.seek_first().unwrap();
        for ((key, seq), (kind, value)) in &model {
            prop_assert_eq!((cursor.key(), cursor.seq(), cursor.kind()), (&key[..], seq.0, *kind));
            prop_assert_eq!(cursor.value_bytes(), &value[..]);
            cursor.next().unwrap();
        }
        prop_assert!(!cursor.valid());
        cursor.seek_last().unwrap();
        for ((key, seq), _) in model.iter().rev() {
            prop_assert_eq!((cursor.key(), cursor.seq()), (&key[..], seq.0));
            cursor.prev().unwrap();
        }
        prop_assert!(!cursor.valid());
        for (key, seq) in &sought {
            let place = (key.clone(), std::cmp::Reverse(*seq));
            let after = model.range(&place..).next().map(|((k, s), _)| (&k[..], s.0));
            cursor.seek(key, *seq).unwrap();
            prop_assert_eq!(cursor.valid().then(|| (cursor.key(), cursor.seq())), after);
            let before = model.range(..=&place).next_back().map(|((k, s), _)| (&k[..], s.0));
            cursor.seek_back(key, *seq).unwrap();
            prop_assert_eq!(cursor.valid().then(|| (cursor.key(), cursor.seq())), before);
            let found = after.filter(|(k, _)| *k == &key[..]).map(|(_, s)| s);
            prop_assert_eq!(list.get(key, *seq).map(|v| v.seq), found);
        }
    }
}

/// Groups of keys that begin alike in ever fewer bytes.
fn widening(i: u64) -> Vec<u8> {
    let group = (i / 100).to_be_bytes();
    let alike = vec![b'a'; 50 - (i % 100).saturating_sub(64) as usize];
    [&group[..], &alike, &(i % 100).to_be_bytes()[6..]].concat()
}

/// Thousands of keys, so that the guide has several levels: in order, in the opposite one, in none, at both ends, and such
/// that only the bytes behind the eighth tell apart.
#[test]
fn long_lists_are_in_order_however_they_grew() {
    const KEYS: u64 = 20_000;
    let mixed = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let orders: [&dyn Fn(u64) -> Vec<u8>; 12] = [
        &|i| i.to_be_bytes().to_vec(),
        &|i| (KEYS - i).to_be_bytes().to_vec(),
        &|i| mixed(i).to_be_bytes().to_vec(),
        &|i| if i % 2 == 0 { i } else { u64::MAX - i }.to_be_bytes().to_vec(),
        &|i| [&b"the same "[..], &mixed(i).to_be_bytes()].concat(),
        // The smallest group comes after others have begun, in order and in none.
        &|i| if i <= 64 { b"beside it".to_vec() } else { [&b"a group "[..], &i.to_be_bytes()].concat() },
        &|i| [&(7 - (i / 64).min(7)).to_be_bytes()[..], &mixed(i).to_be_bytes()].concat(),
        &|i| (mixed(i) >> 60).to_be_bytes().to_vec(),
        &|i| [&[0xff; 9][..], &(i % 3000).to_be_bytes()].concat(),
        &|i| format!("user/{i:012}").into_bytes(),
        &|i| format!("user/{:012}", mixed(i) % 1_000_000).into_bytes(),
        &widening,
    ];
    for (order, key_of) in orders.iter().enumerate() {
        let list = MemList::new(&Chunks::new());
        let mut sorted = Vec::new();
        for seq in 1..=KEYS {
            let key = key_of(seq);
            list.writer().insert(&key, seq, Kind::Put, &seq.to_le_bytes());
            sorted.push((key, std::cmp::Reverse(seq)));
        }
        assert_eq!(list.check(), Vec::<String>::new(), "order {order}");
        sorted.sort();
        let mut found = Vec::new();
        let mut note = |key: &[u8], seq| found.push((key.to_vec(), std::cmp::Reverse(seq)));
        list.visit(|key, seq, _, _| {
            note(key, seq);
            Ok(())
        })
        .unwrap();
        assert!(found == sorted, "order {order}");
        let mut cursor = list.cursor();
        cursor.seek_last().unwrap();
        for (key, seq) in sorted.iter().rev() {
            assert_eq!((cursor.key(), cursor.seq()), (&key[..], seq.0));
            assert_eq!(list.get(key, seq.0).map(|v| v.seq), Some(seq.0));
            cursor.prev().unwrap();
        }
        assert!(!cursor.valid());
    }
}

/// A gap between two full pages takes key after key, from its upper end on: no page may be made for each.
#[test]
fn a_gap_that_fills_takes_no_page_for_each_key() {
    let ascending = |i: u64| [&i.to_be_bytes()[..], &[0]].concat();
    let gaps: [&dyn Fn(u64) -> Vec<u8>; 4] = [
        &|_| 64u64.to_be_bytes().to_vec(),
        &|i| [&64u64.to_be_bytes()[..], &(u64::MAX - i).to_be_bytes()].concat(),
        &|i| (64 * (i % 100)).to_be_bytes().to_vec(),
        &widening,
    ];
    for (gap, key_of) in gaps.iter().enumerate() {
        let list = MemList::new(&Chunks::new());
        (1..=20_000).for_each(|seq| list.writer().insert(&ascending(seq), seq, Kind::Put, b""));
        (20_001..60_000).for_each(|seq| list.writer().insert(&key_of(seq), seq, Kind::Put, b""));
        assert_eq!(list.check(), Vec::<String>::new(), "gap {gap}");
        let (held, told) = (list.dram_bytes(), list.bytes_used());
        assert!(held < told * 3 / 2, "gap {gap}: {held} bytes held, {told} told");
    }
}

#[test]
fn readers_beside_splits_miss_nothing() {
    let list = readers_beside_growth_miss_nothing(60_000, |i| {
        i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
    });
    assert_eq!(list.inner.guide.replaced_bytes(), 0, "these keys have nothing in common");
}

/// Groups of keys, one after the other in no order, that begin alike in ever fewer bytes.
#[test]
fn readers_beside_replaced_pages_miss_nothing() {
    let mixed = |i: u64| i % 100 + (i / 100 * 37 % 601) * 100;
    let list = readers_beside_growth_miss_nothing(60_000, |i| widening(mixed(i)));
    assert!(list.inner.guide.replaced_bytes() > 0, "pages were replaced");
}

/// Readers beside the growth of all levels meet everything that was there before they began, in order.
fn readers_beside_growth_miss_nothing(keys: u64, key: impl Fn(u64) -> Vec<u8> + Sync) -> MemList {
    let list = MemList::new(&Chunks::new());
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 1..=keys {
                list.writer().insert(&key(seq), seq, Kind::Put, b"");
                written.store(seq, Ordering::Release);
            }
        });
        for reader in 1..3u64 {
            let (list, written, key) = (&list, &written, &key);
            scope.spawn(move || {
                let mut rng = terrace_base::rng::Rng::new(reader);
                let mut last = 0;
                while last < keys {
                    last = written.load(Ordering::Acquire);
                    if last == 0 {
                        continue;
                    }
                    let any = key(1 + rng.below(last));
                    assert!(list.get(&any, last).is_some());
                    let mut cursor = list.cursor();
                    match rng.below(3) {
                        0 => cursor.seek(&any, u64::MAX).unwrap(),
                        1 => cursor.seek_back(&any, 0).unwrap(),
                        _ => cursor.seek_last().unwrap(),
                    }
                    let here = cursor.key().to_vec();
                    cursor.prev().unwrap();
                    assert!(!cursor.valid() || cursor.key() < &here[..]);
                }
            });
        }
    });
    assert_eq!((list.check(), list.entries()), (Vec::<String>::new(), keys));
    list
}

#[test]
fn readers_see_what_was_written_before_they_look() {
    let list = MemList::new(&Chunks::new());
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 1..=20_000u64 {
                let key = (seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50).to_be_bytes();
                list.writer().insert(&key, seq, Kind::Put, &seq.to_le_bytes());
                written.store(seq, Ordering::Release);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while last < 20_000 {
                    last = written.load(Ordering::Acquire);
                    if last > 0 {
                        let key = (last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50).to_be_bytes();
                        let found = list.get(&key, last).expect("what was written");
                        assert_eq!((found.seq, found.value), (last, &last.to_le_bytes()[..]));
                    }
                    let mut cursor = list.cursor();
                    cursor.seek_first().unwrap();
                    let mut before: Option<(Vec<u8>, u64)> = None;
                    for _ in 0..50 {
                        if !cursor.valid() {
                            break;
                        }
                        let here = (cursor.key().to_vec(), cursor.seq());
                        assert!(before.is_none_or(|b| b.0 < here.0 || (b.0 == here.0 && b.1 > here.1)));
                        before = Some(here);
                        cursor.next().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!((list.check(), list.entries()), (Vec::<String>::new(), 20_000));
}

/// A reader that had found its place followed the link from there again, and met a version inserted in
/// between that it must not see.
#[test]
fn a_version_that_comes_meanwhile_is_not_met() {
    let list = MemList::new(&Chunks::new());
    list.writer().insert(b"k", 1, Kind::Put, b"");
    let visible = AtomicU64::new(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 2..200_000u64 {
                list.writer().insert(b"k", seq, Kind::Put, b"");
                visible.store(seq, Ordering::Release);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut at = 0;
                while at < 199_999 {
                    at = visible.load(Ordering::Acquire);
                    assert_eq!(list.get(b"k", at).map(|v| v.seq), Some(at));
                }
            });
        }
    });
}

#[test]
fn a_cursor_outlives_its_list() {
    let (list, model) = fill(&[(b"a".to_vec(), true, vec![7; 5000])]);
    let mut cursor = list.cursor();
    assert!(list.dram_bytes() >= 5000 && list.bytes_used() >= 5000);
    drop(list);
    cursor.seek_first().unwrap();
    assert_eq!(cursor.value().unwrap().len(), model.values().next().unwrap().1.len());
}
