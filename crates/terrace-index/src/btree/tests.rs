//! The tree against an ordered map, and under threads.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use terrace_base::rng::Rng;

use super::*;

fn keys(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let lens = [0, 1, 7, 8, 9, 16, 100, WHOLE_KEY_BYTES - 1, WHOLE_KEY_BYTES, WHOLE_KEY_BYTES + 1, 400];
    let mut one = || {
        let len = lens[rng.below(lens.len() as u64) as usize];
        // Mostly zeros: long common beginnings, and padding that looks like key.
        (0..len).map(|_| if rng.one_in(40) { rng.below(3) as u8 } else { 0 }).collect()
    };
    (0..count).map(|_| one()).collect()
}

#[test]
fn places_are_those_of_an_ordered_map() {
    let mut rng = Rng::new(3);
    let keys = keys(&mut rng, 400);
    let look_up = |offset: u64, key: &[u8]| Ok(keys[offset as usize - 1].as_slice().cmp(key));
    let tree = BTree::new();
    let mut model = BTreeMap::new();
    for (i, key) in keys.iter().enumerate() {
        let (seq, offset) = (rng.below(4), i as u64 + 1);
        let target = Target { key, seq };
        let trail = tree.find(target, &look_up).unwrap();
        let place = tree.place(&trail);
        let at = (key.clone(), Reverse(seq));
        let prev = model.range(..at.clone()).next_back().map_or(0, |(_, offset)| *offset);
        let next = model.range(at.clone()..).next().map_or(0, |(_, offset)| *offset);
        assert_eq!(place, Place { prev, next, exact: model.contains_key(&at) });
        if let std::collections::btree_map::Entry::Vacant(entry) = model.entry(at) {
            tree.insert(&trail, target, offset, &look_up).unwrap();
            entry.insert(offset);
        }
    }
    let offsets: Vec<u64> = model.values().copied().collect();
    assert_eq!(tree.check(&offsets), None);
    assert_eq!(tree.last().unwrap(), *offsets.last().unwrap());
    assert!(tree.check(&offsets[1..]).is_some());
}

#[test]
fn appending_is_inserting_at_the_end() {
    let tree = BTree::new();
    let key = |n: u64| n.to_be_bytes().repeat(3);
    let mut appender = tree.appender();
    for n in 1..=5000 {
        appender.append(Target { key: &key(n), seq: 0 }, n).unwrap();
    }
    drop(appender);
    assert_eq!(tree.check(&(1..=5000).collect::<Vec<_>>()), None);
    let trail = tree.find(Target { key: &key(70), seq: 1 }, &|_, _| Ok(Order::Equal)).unwrap();
    let place = tree.place(&trail);
    assert_eq!(place, Place { prev: 69, next: 70, exact: false });
    assert!(tree.bytes() > 5000 * 6 * 8);
}

#[test]
fn threads_enter_side_by_side() {
    let tree = BTree::new();
    let no_look_up = |_: u64, _: &[u8]| Ok(Order::Equal);
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let tree = &tree;
            s.spawn(move || {
                for i in 0..2000u64 {
                    let n = 4 * ((i * 7919) % 2000) + thread + 1;
                    let key = n.to_be_bytes();
                    let target = Target { key: &key, seq: 0 };
                    let trail = tree.find(target, &no_look_up).unwrap();
                    tree.insert(&trail, target, n, &no_look_up).unwrap();
                    assert_eq!(tree.next(&tree.find(target, &no_look_up).unwrap()), n);
                }
            });
        }
    });
    assert_eq!(tree.check(&(1..=8000).collect::<Vec<_>>()), None);
}

#[test]
fn keys_that_begin_otherwise_than_all_others() {
    let tree = BTree::new();
    let look_up = |_: u64, _: &[u8]| Ok(Order::Equal);
    let find = |key: &[u8]| tree.place(&tree.find(Target { key, seq: 0 }, &look_up).unwrap());
    let enter = |key: &[u8], word| {
        let target = Target { key, seq: 0 };
        tree.insert(&tree.find(target, &look_up).unwrap(), target, word, &look_up).unwrap();
    };
    for n in 0..500u64 {
        enter(format!("common-beginning-{:04}", n * 7 % 500).as_bytes(), n * 7 % 500 + 1);
    }
    assert_eq!(find(b"common-beginning"), Place { prev: 0, next: 1, exact: false });
    assert_eq!(find(b"common-aeginning-0000"), Place { prev: 0, next: 1, exact: false });
    assert_eq!(find(b"common-zeginning-0000"), Place { prev: 500, next: 0, exact: false });
    enter(b"common-zzz", 1000);
    enter(b"", 1001);
    enter(b"a", 1002);
    assert_eq!(find(b"common-aeginning-0000"), Place { prev: 1002, next: 1, exact: false });
    assert_eq!(find(b"common-beginning-0250"), Place { prev: 250, next: 251, exact: true });
    assert_eq!(find(b"common-zeginning-0000"), Place { prev: 500, next: 1000, exact: false });
    let words: Vec<u64> = [1001, 1002].into_iter().chain(1..=500).chain([1000]).collect();
    assert_eq!(tree.check(&words), None);
}

#[test]
fn what_is_there_is_found_while_others_enter() {
    let tree = BTree::new();
    let no_look_up = |_: u64, _: &[u8]| Ok(Order::Equal);
    let key = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let entered = AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=30_000 {
                let key = key(n);
                let target = Target { key: &key, seq: 0 };
                let trail = tree.find(target, &no_look_up).unwrap();
                tree.insert(&trail, target, n, &no_look_up).unwrap();
                entered.store(n, Ordering::Release);
            }
        });
        for thread in 0..2 {
            let (tree, entered) = (&tree, &entered);
            s.spawn(move || {
                let mut rng = Rng::new(thread);
                loop {
                    let most = entered.load(Ordering::Acquire);
                    if most > 0 {
                        let n = rng.below(most) + 1;
                        let key = key(n);
                        let trail = tree.find(Target { key: &key, seq: 0 }, &no_look_up).unwrap();
                        assert!(trail.exact, "{n} of {most}");
                        assert_eq!(tree.next(&trail), n);
                    }
                    if most == 30_000 {
                        break;
                    }
                }
            });
        }
    });
}
