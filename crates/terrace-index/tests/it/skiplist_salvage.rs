//! What is read of a damaged list: everything but what is damaged itself.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use terrace_base::ErrorKind;
use terrace_base::checksum::{crc32c_append, crc32c_words};
use terrace_base::rng::Rng;
use terrace_index::{Missing, Record, SkipList, kinds};
use terrace_pmem::{POff, Pool};

use crate::bed::memory_pool;

const RECORDS: u64 = 400;

fn key(i: u64) -> Vec<u8> {
    format!("key{:05}", i * 7919 % 100_003).into_bytes()
}

/// A list of records of every size; each third one is in a batch with the two after it.
fn filled(pool: &Pool) -> SkipList {
    let list = SkipList::create(pool, kinds::MEMTABLE, 4096).unwrap();
    for first in (1..=RECORDS).step_by(4) {
        let (keys, value) = ([0, 1, 2, 3].map(|i| key(first + i)), vec![first as u8; first as usize % 90]);
        let record = |i: u64, (batch_first, batch_len)| Record {
            key: &keys[i as usize],
            seq: first + i,
            kind: 1,
            value: &value,
            batch_first,
            batch_len,
        };
        let alone = record(0, (first, 1));
        let batch = [1, 2, 3].map(|i| record(i, (first + 1, 3)));
        list.put_group(&[&[alone][..], &batch].concat()).unwrap();
    }
    list
}

fn salvaged(pool: &Pool, head: u64) -> (Vec<(Vec<u8>, u64)>, Missing) {
    let mut found = Vec::new();
    let missing = SkipList::salvage(pool, kinds::MEMTABLE, head, &mut |record| {
        found.push((record.key.to_vec(), record.seq));
        Ok(())
    });
    (found, missing.unwrap())
}

/// The places of the records, by their sequence numbers from 1: the head node's link is at 72 of the first extent.
fn places(pool: &Pool, head: u64) -> Vec<u64> {
    let word = |at: u64| pool.atomic(POff::new(at)).load(Ordering::Relaxed);
    let mut places = vec![0; RECORDS as usize];
    let mut at = word(head + 72);
    while at != 0 {
        places[word(at + 8) as usize - 1] = at;
        at = word(at);
    }
    places
}

#[test]
fn all_but_the_damaged_records_are_found() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let pool = memory_pool();
        let list = filled(&pool);
        let head = list.head_offset();
        let places = places(&pool, head);
        drop(list);
        let (all, none) = salvaged(&pool, head);
        assert_eq!((all.len() as u64, none), (RECORDS, Missing::default()));
        let harmed: BTreeSet<u64> = (0..=rng.below(6)).map(|_| 1 + rng.below(RECORDS)).collect();
        for seq in &harmed {
            // The link, or what the checksum is over: with the link the record stays sound.
            let at = places[*seq as usize - 1] + if rng.one_in(3) { 0 } else { 8 + 8 * rng.below(4) };
            let word = pool.atomic(POff::new(at));
            word.fetch_xor(1 << rng.below(64), Ordering::Relaxed);
        }
        let (found, missing) = salvaged(&pool, head);
        assert!(found.is_sorted_by(|a, b| a.0 < b.0), "seed {seed}: in order");
        let seqs: BTreeSet<u64> = found.iter().map(|(_, seq)| *seq).collect();
        let lost: BTreeSet<u64> = (1..=RECORDS).filter(|seq| !seqs.contains(seq)).collect();
        // Of the newest batch, the last three, the others go with one that is damaged.
        let newest: BTreeSet<u64> = (RECORDS - 2..=RECORDS).collect();
        let may_go = if harmed.is_disjoint(&newest) { harmed.clone() } else { &harmed | &newest };
        assert!(lost.is_subset(&may_go), "seed {seed}: {lost:?} are lost, {harmed:?} are damaged");
        assert!(lost.is_empty() || missing.breaks > 0, "seed {seed}: {missing:?}");
    }
}

/// A record that is sound and says that further fields follow is a later version's, not damage.
#[test]
fn records_with_further_fields_are_a_later_versions() {
    let pool = memory_pool();
    let list = SkipList::create(&pool, kinds::MEMTABLE, 4096).unwrap();
    list.put_group(&[alone(b"keys", 1, b"value")]).unwrap();
    let head = list.head_offset();
    let word = |at: u64| pool.atomic(POff::new(at)).load(Ordering::Relaxed);
    let (id, at) = (word(head + 8), word(head + 72));
    pool.write(at + 39, &[1]);
    pool.write(at + 28, &[0; 4]);
    // SAFETY: nobody else is at the pool.
    let image = unsafe { [pool.bytes(at + 8, 36).unwrap(), pool.bytes(at + 48, 5).unwrap()].concat() };
    pool.write(at + 28, &crc32c_append(crc32c_words([id, at]), &image).to_le_bytes());
    let found = list.get(b"keys", 1).unwrap().unwrap().version_kind().unwrap_err();
    assert!(found.is_of_another_version(), "{found}");
    drop(list);
    let mut kinds_found = Vec::new();
    SkipList::salvage(&pool, kinds::MEMTABLE, head, &mut |record| {
        kinds_found.push(record.kind);
        Ok(())
    })
    .unwrap();
    assert_eq!(kinds_found, [5], "a put with further fields");
}

#[test]
fn what_was_never_linked_is_not_found() {
    let pool = memory_pool();
    let list = filled(&pool);
    let staged = Record { key: b"staged", seq: 9000, kind: 1, value: b"v", batch_first: 9000, batch_len: 1 };
    drop(list.stage(&staged).unwrap());
    let head = list.head_offset();
    drop(list);
    let (found, missing) = salvaged(&pool, head);
    assert_eq!((found.len() as u64, missing), (RECORDS, Missing::default()));
}

/// A record that is a batch of its own.
fn alone<'a>(key: &'a [u8], seq: u64, value: &'a [u8]) -> Record<'a> {
    Record { key, seq, kind: 1, value, batch_first: seq, batch_len: 1 }
}

/// A list of which a large group was refused when the last few records were not there yet: what it had staged was taken
/// back, and what does not lie under those is in the arena for as long. Its numbers are given to nobody else.
fn filled_beside_a_refusal(pool: &Pool, rng: &mut Rng) -> (SkipList, BTreeSet<u64>) {
    let list = SkipList::create(pool, kinds::MEMTABLE, 256 << 10).unwrap();
    let mut refused = BTreeSet::new();
    let (value, late) = ([7; 90], rng.below(20));
    for seq in 1..=RECORDS {
        if seq == RECORDS - late {
            let staging = list.staging();
            for number in RECORDS + 1..RECORDS + 100 {
                // Some for keys that are there.
                let key = if rng.one_in(2) { key(1 + rng.below(seq)) } else { key(number) };
                drop(list.stage(&alone(&key, number, &value)).unwrap());
                refused.insert(number);
            }
            list.take_back(&staging).unwrap();
        }
        list.put_group(&[alone(&key(seq), seq, &value[..rng.below(90) as usize])]).unwrap();
    }
    (list, refused)
}

#[test]
fn what_was_taken_back_stays_away() {
    let (mut left, mut came) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let pool = memory_pool();
        let (list, refused) = filled_beside_a_refusal(&pool, &mut rng);
        let head = list.head_offset();
        let places = places(&pool, head);
        drop(list);
        let harmed: BTreeSet<u64> = (0..=rng.below(3)).map(|_| 1 + rng.below(RECORDS)).collect();
        for seq in &harmed {
            let at = places[*seq as usize - 1] + if rng.one_in(3) { 0 } else { 8 + 8 * rng.below(4) };
            pool.atomic(POff::new(at)).fetch_xor(1 << rng.below(64), Ordering::Relaxed);
        }
        let (found, _) = salvaged(&pool, head);
        let seqs: BTreeSet<u64> = found.iter().map(|(_, seq)| *seq).collect();
        let lost: BTreeSet<u64> = (1..=RECORDS).filter(|seq| !seqs.contains(seq)).collect();
        assert!(lost.is_subset(&harmed), "seed {seed}: {lost:?} are lost, {harmed:?} are damaged");
        left += refused.len();
        came += seqs.intersection(&refused).count();
    }
    // One that lies right behind a damaged record looks like that one's successor.
    assert!(came * 100 <= left, "{came} of {left} refused records came back");
}

/// A list so small that it lies in one block, which comes from the same place of another pool.
#[test]
fn another_pools_list_is_none_of_this_one() {
    let made = |value: &[u8]| {
        let pool = memory_pool();
        let list = SkipList::create(&pool, kinds::MEMTABLE, 4096).unwrap();
        (1..=20).for_each(|seq| list.put_group(&[alone(&key(seq), seq, value)]).unwrap());
        (list.head_offset(), pool)
    };
    let ((head, own), (other_head, other)) = (made(b"own"), made(b"other"));
    assert_eq!(head, other_head);
    for at in (head..head + 4096).step_by(8) {
        own.atomic(POff::new(at))
            .store(other.atomic(POff::new(at)).load(Ordering::Relaxed), Ordering::Relaxed);
    }
    assert_eq!(SkipList::open(&own, kinds::MEMTABLE, head).unwrap_err().kind(), ErrorKind::Corruption);
    let given = SkipList::salvage(&own, kinds::MEMTABLE, head, &mut |_| panic!("another pool's record"));
    assert_eq!(given.unwrap_err().kind(), ErrorKind::Corruption);
}

/// Where a record is damaged its value is looked at, too, which may look like records of any length.
#[test]
fn a_value_that_looks_like_long_records_costs_no_hours() {
    let pool = memory_pool();
    let list = SkipList::create(&pool, kinds::MEMTABLE, 24 << 20).unwrap();
    let value: Vec<u8> = (8u64 << 20).to_le_bytes().repeat(1 << 15);
    for seq in 1..=40 {
        list.put_group(&[alone(&key(seq), seq, &value)]).unwrap();
    }
    let head = list.head_offset();
    drop(list);
    let word = |at: u64| pool.atomic(POff::new(at));
    let at = word(head + 72).load(Ordering::Relaxed);
    word(at + 8).fetch_xor(1 << 60, Ordering::Relaxed);
    let (found, missing) = salvaged(&pool, head);
    assert_eq!((found.len(), missing.breaks), (39, 1));
}
