//! The skiplist as a memtable: versions, groups, cursors, crashes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use terrace_index::{Record, SkipList, kinds};
use terrace_pmem::{Media, POff};
use terrace_sim::{World, WorldOptions};

use crate::bed::{assert_marked, create_in, memory_pool, open_in, survivors};

type Versions = BTreeMap<(Vec<u8>, Reverse<u64>), (u8, Vec<u8>)>;

/// One batch: keys and values, put in the order given.
pub type Batch = Vec<(Vec<u8>, Vec<u8>)>;

pub const ARENA: u64 = 8192;

pub fn put(list: &SkipList, first_seq: u64, batches: &[Batch]) -> terrace_base::Result<u64> {
    let mut seq = first_seq;
    let mut records = Vec::new();
    for batch in batches {
        let batch_first = seq;
        for (key, value) in batch {
            let batch_len = batch.len() as u32;
            records.push(Record { key, seq, kind: 1, value, batch_first, batch_len });
            seq += 1;
        }
    }
    list.put_group(&records)?;
    Ok(seq)
}

pub fn contents(list: &SkipList) -> Versions {
    let mut out = Versions::new();
    let mut cursor = list.cursor();
    cursor.seek_first().unwrap();
    while cursor.valid() {
        let value = cursor.value().unwrap().to_vec();
        out.insert((cursor.key().to_vec(), Reverse(cursor.seq())), (cursor.kind(), value));
        cursor.verify().unwrap();
        cursor.next().unwrap();
    }
    out
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(0u8..3, 0..4),
        (0u32..50).prop_map(|i| format!("user{i:020}").into_bytes()),
        prop::collection::vec(any::<u8>(), 0..300),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    prop::collection::vec((key(), prop::collection::vec(any::<u8>(), 0..600)), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn agrees_with_a_map_of_versions(
        groups in prop::collection::vec(prop::collection::vec(batch(), 1..4), 1..12),
        probes in prop::collection::vec((key(), 0u64..60), 20),
        reopen in any::<bool>(),
    ) {
        let pool = memory_pool();
        let mut list = SkipList::create(&pool, kinds::MEMTABLE, ARENA).unwrap();
        let mut model = Versions::new();
        let mut seq = 1;
        for group in &groups {
            for (at, (key, value)) in (seq..).zip(group.iter().flatten()) {
                model.insert((key.clone(), Reverse(at)), (1, value.clone()));
            }
            seq = put(&list, seq, group).unwrap();
            if reopen {
                list = SkipList::open(&pool, kinds::MEMTABLE, list.head_offset()).unwrap();
            }
        }
        prop_assert_eq!(&contents(&list), &model);
        prop_assert_eq!(list.check().unwrap(), Vec::<String>::new());
        prop_assert_eq!(list.entries(), model.len() as u64);
        prop_assert_eq!((list.min_seq(), list.max_seq()), (1, seq - 1));
        let mut cursor = list.cursor();
        for (key, at) in &probes {
            let place = (key.clone(), Reverse(*at));
            let at_or_after = model.range(place.clone()..).next();
            let got = list.get(key, *at).unwrap();
            let want = at_or_after.filter(|((k, _), _)| k == key);
            prop_assert_eq!(got.map(|f| (f.seq(), f.value().unwrap().to_vec())),
                want.map(|((_, s), (_, v))| (s.0, v.clone())));
            cursor.seek(key, *at).unwrap();
            prop_assert_eq!(cursor.valid().then(|| (cursor.key().to_vec(), Reverse(cursor.seq()))),
                at_or_after.map(|(k, _)| k.clone()));
            cursor.seek_back(key, *at).unwrap();
            let mut before = model.range(..=place).rev();
            for _ in 0..3 {
                prop_assert_eq!(cursor.valid().then(|| (cursor.key().to_vec(), Reverse(cursor.seq()))),
                    before.next().map(|(k, _)| k.clone()));
                cursor.prev().unwrap();
            }
        }
        cursor.seek_last().unwrap();
        prop_assert_eq!(cursor.valid().then(|| (cursor.key().to_vec(), Reverse(cursor.seq()))),
            model.keys().next_back().cloned());
    }
}

#[test]
fn records_larger_than_an_extent_and_many_extents() {
    let pool = memory_pool();
    let list = SkipList::create(&pool, kinds::MEMTABLE, 4096).unwrap();
    let big = vec![7u8; 300_000];
    let mut batches = Vec::new();
    for i in 0..100u32 {
        let value = if i % 25 == 0 { big.clone() } else { vec![i as u8; 500] };
        batches.push(vec![(format!("{:04}", i * 7919 % 1000).into_bytes(), value)]);
    }
    batches.push(vec![(vec![9; 65_535], vec![1])]);
    put(&list, 1, &batches).unwrap();
    let before = contents(&list);
    let head = list.head_offset();
    drop(list);
    let list = SkipList::open(&pool, kinds::MEMTABLE, head).unwrap();
    assert_eq!(contents(&list), before);
    assert!(list.bytes_used() > 4 * 300_000 && list.extents_bytes() >= list.bytes_used());
    assert!(put(&list, 1000, &[vec![(vec![0; 65_536], vec![])]]).is_err(), "a key of 65,536 bytes");
    assert_marked(&pool, |marks| list.mark(marks));
    let cursor = list.cursor();
    list.free().unwrap();
    assert!(!pool.extents(kinds::MEMTABLE).is_empty(), "a cursor keeps the list");
    drop(cursor);
    assert!(pool.extents(kinds::MEMTABLE).is_empty());
}

#[test]
fn a_second_record_of_the_same_version_is_refused() {
    let pool = memory_pool();
    let list = SkipList::create(&pool, kinds::MEMTABLE, ARENA).unwrap();
    put(&list, 5, &[vec![(b"a".to_vec(), vec![])]]).unwrap();
    assert!(put(&list, 5, &[vec![(b"a".to_vec(), vec![1])]]).is_err());
    assert_eq!(list.entries(), 1);
}

#[test]
fn damaged_records_are_corruption() {
    let pool = memory_pool();
    let list = SkipList::create(&pool, kinds::MEMTABLE, ARENA).unwrap();
    put(&list, 1, &[vec![(b"key".to_vec(), b"value".to_vec())]]).unwrap();
    let head = list.head_offset();
    // The first record: its link is what the head node's link names.
    let at = pool.atomic(POff::new(head + 72)).load(Ordering::Relaxed);
    for offset in [8, 24, 28, 32, 36, 38, 39, 40, 48] {
        // SAFETY: within the pool; nobody writes it meanwhile.
        let byte = unsafe { pool.bytes(at + offset, 1).unwrap()[0] };
        pool.write(at + offset, &[byte ^ 0x41]);
        let opened = SkipList::open(&pool, kinds::MEMTABLE, head);
        assert_eq!(
            opened.map(|_| ()).unwrap_err().kind(),
            terrace_base::ErrorKind::Corruption,
            "byte {offset}"
        );
        pool.write(at + offset, &[byte]);
    }
    SkipList::open(&pool, kinds::MEMTABLE, head).unwrap();
    pool.write(at, &12345u64.to_le_bytes());
    assert!(SkipList::open(&pool, kinds::MEMTABLE, head).is_err(), "a link out of the arena");
    assert!(SkipList::open(&pool, kinds::MEMTABLE, 4096 * 3).is_err(), "no list there");
}

#[test]
fn a_long_chain_is_checked_wherever_it_is_walked_from() {
    const RECORDS: u64 = 20_011;
    let pool = memory_pool();
    let list = SkipList::create(&pool, kinds::MEMTABLE, 2 << 20).unwrap();
    let name = |i: u64| format!("{:08}", i * 7919 % RECORDS).into_bytes();
    let staged_only = |i: u64| i.is_multiple_of(50);
    for i in 1..RECORDS {
        let key = name(i);
        let record = Record { key: &key, seq: i, kind: 1, value: &key, batch_first: i, batch_len: 1 };
        if staged_only(i) {
            drop(list.stage(&record).unwrap());
        } else {
            list.put_group(&[record]).unwrap();
        }
    }
    let (before, head) = (contents(&list), list.head_offset());
    drop(list);
    let open = || SkipList::open(&pool, kinds::MEMTABLE, head);
    assert_eq!(contents(&open().unwrap()), before);
    assert_eq!(before.len() as u64, (1..RECORDS).filter(|i| !staged_only(*i)).count() as u64);
    let mut links = vec![head + 72];
    loop {
        let at = pool.atomic(POff::new(links[links.len() - 1])).load(Ordering::Relaxed);
        if at == 0 {
            break;
        }
        links.push(at);
    }
    for &at in links.iter().skip(1).step_by(997) {
        // SAFETY: within the pool; nobody writes it meanwhile.
        let byte = unsafe { pool.bytes(at + 41, 1).unwrap()[0] };
        pool.write(at + 41, &[byte ^ 1]);
        let refused = open().map(drop).unwrap_err();
        assert!(refused.to_string().contains(&at.to_string()), "{at}: {refused}");
        pool.write(at + 41, &[byte]);
    }
    for places in links[1..].windows(500).step_by(3001) {
        // A link back, one past many records, and one to the record itself.
        let at = places[200];
        for to in [places[0], places[499], at] {
            pool.write(at, &to.to_le_bytes());
            let left = open().map(|list| contents(&list).len()).ok();
            let want = (to == places[499]).then(|| before.len() - 298);
            assert_eq!(left, want, "{at} leads to {to}");
        }
        pool.write(at, &places[201].to_le_bytes());
    }
    assert_eq!(contents(&open().unwrap()), before);
}

#[test]
fn threads_insert_and_read_at_once() {
    let pool = memory_pool();
    let list = SkipList::create(&pool, kinds::MEMTABLE, 1 << 16).unwrap();
    put(&list, 1, &[vec![(b"k00500".to_vec(), b"fixed".to_vec())]]).unwrap();
    let (threads, each) = (4u64, 2000u64);
    std::thread::scope(|s| {
        for t in 0..threads {
            let list = &list;
            s.spawn(move || {
                for i in 0..each {
                    let n = i * threads + t;
                    let key = format!("k{:05}", n * 7919 % (threads * each)).into_bytes();
                    put(list, 100 + n, &[vec![(key, n.to_le_bytes().to_vec())]]).unwrap();
                }
            });
        }
        s.spawn(|| {
            for _ in 0..200 {
                let found = list.get(b"k00500", 50).unwrap().unwrap();
                assert_eq!(found.value().unwrap(), b"fixed");
                let mut cursor = list.cursor();
                cursor.seek(b"k00400", u64::MAX).unwrap();
                let mut last = Vec::new();
                for _ in 0..50 {
                    if !cursor.valid() {
                        break;
                    }
                    assert!(cursor.key() >= &last[..]);
                    last = cursor.key().to_vec();
                    cursor.next().unwrap();
                }
            }
        });
    });
    assert_eq!(list.entries(), threads * each + 1);
    assert_eq!(list.check().unwrap(), Vec::<String>::new());
    let reopened = SkipList::open(&pool, kinds::MEMTABLE, list.head_offset()).unwrap();
    assert_eq!(contents(&reopened).len() as u64, threads * each + 1);
}

#[test]
fn a_record_behind_one_that_another_thread_has_not_drained_is_durable() {
    let world = World::new(1, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let list = SkipList::create(&pool, kinds::MEMTABLE, ARENA).unwrap();
    pool.set_root("list", list.head_offset()).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            // Linked, flushed, never drained: its thread stops here.
            for (seq, key) in [(1, b"a"), (2, b"b"), (3, b"c")] {
                let record = Record { key, seq, kind: 1, value: b"", batch_first: seq, batch_len: 1 };
                let staged = list.stage(&record).unwrap();
                pool.drain();
                list.link(staged).unwrap();
            }
        })
        .join()
        .unwrap();
    });
    put(&list, 4, &[vec![(b"d".to_vec(), b"mine".to_vec())]]).unwrap();
    for survivor in survivors(&world.capture(), 50) {
        let pool = open_in(&survivor).unwrap();
        let list = SkipList::open(&pool, kinds::MEMTABLE, pool.root("list").unwrap().unwrap()).unwrap();
        assert_eq!(list.get(b"d", u64::MAX).unwrap().unwrap().value().unwrap(), b"mine");
    }
}

#[test]
fn a_record_that_comes_between_staging_and_linking_is_not_lost() {
    // Both are staged with the same successor; the one linked first is acknowledged before the other is linked in
    // front of it.
    let world = World::new(2, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let list = SkipList::create(&pool, kinds::MEMTABLE, ARENA).unwrap();
    pool.set_root("list", list.head_offset()).unwrap();
    let record = |key, seq| Record { key, seq, kind: 1, value: b"", batch_first: seq, batch_len: 1 };
    let front = list.stage(&record(b"a", 1)).unwrap();
    put(&list, 2, &[vec![(b"b".to_vec(), vec![])]]).unwrap();
    pool.drain();
    list.link(front).unwrap();
    for survivor in survivors(&world.capture(), 100) {
        let pool = open_in(&survivor).unwrap();
        let list = SkipList::open(&pool, kinds::MEMTABLE, pool.root("list").unwrap().unwrap()).unwrap();
        assert!(list.get(b"b", u64::MAX).unwrap().is_some());
    }
}

/// Half of what a list has so far is what it asks for at once, and less where that much is not to be had.
#[test]
fn a_list_grows_by_what_room_there_is() {
    let world = World::new(1, WorldOptions::default());
    let pool = create_in(&world).unwrap();
    let list = SkipList::create(&pool, kinds::MEMTABLE, ARENA).unwrap();
    let media = world.media();
    let mut seq = 1;
    let mut put_one = |list: &SkipList| {
        put(list, seq, &[vec![(seq.to_be_bytes().to_vec(), vec![7; 200])]]).map(|next| seq = next)
    };
    while list.extents_bytes() < 256 << 10 {
        put_one(&list).unwrap();
    }
    media.set_limit(media.len());
    let refused = loop {
        if let Err(e) = put_one(&list) {
            break e;
        }
    };
    assert!(refused.is_out_of_space(), "{refused}");
    media.set_limit(media.len() + (32 << 10));
    for _ in 0..20 {
        put_one(&list).expect("there is room for it, though not for half of all");
    }
    let entries = contents(&list).len() as u64;
    assert_eq!(entries, seq - 1);
}
