//! What is read of a damaged list: everything but what is damaged itself.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

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
