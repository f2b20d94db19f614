//! Merging cursors against a sorted list.

use proptest::prelude::*;
use terrace_table::*;

use crate::util::*;

fn merged(parts: &[Vec<Item>], options: &TableOptions) -> MergeCursor {
    let cursor = |part: &Vec<Item>| Box::new(table(1, options, part).2.cursor(true, 0)) as Box<dyn Cursor>;
    merge(parts.iter().map(cursor).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn merges_agree_with_a_sorted_list(
        parts in prop::collection::vec(any_items(25), 0..6),
        options in any_options(),
        moves in any_moves(),
    ) {
        let mut all: Vec<Item> = parts.concat();
        // Equal versions in two tables come one after the other, in the order of the tables.
        all.sort_by(|a, b| a.key.cmp(&b.key).then(b.seq.cmp(&a.seq)));
        let mut cursor = merged(&parts, &options);
        follow(&mut cursor, &all, &moves);
        let (forward, back) = both_ways(&mut cursor).unwrap();
        prop_assert_eq!(&forward, &all);
        prop_assert_eq!(&back, &all);
    }
}

/// Keys with much in common, which changes as they go on; a key may be the beginning of others, and end in zeroes.
#[test]
fn keys_that_begin_alike_are_merged_in_order() {
    let mut rng = terrace_base::rng::Rng::new(3);
    for _ in 0..60 {
        let mut key = || {
            let bits = 4 + rng.below(20);
            let n = rng.below(1 << bits);
            let mut key = [&b"shared/"[..], &n.to_be_bytes()].concat();
            key.truncate(7 + 8 - rng.below(3) as usize);
            key.extend(vec![0; rng.below(3) as usize]);
            key
        };
        let mut keys: Vec<Vec<u8>> =
            (0..300).map(|_| key()).chain([b"s".to_vec(), vec![0xff; 20], vec![]]).collect();
        keys.sort();
        keys.dedup();
        let all: Vec<Item> = keys.iter().map(|key| Item::put(key, 1, b"v")).collect();
        let mut parts = vec![Vec::new(); 4];
        all.iter().for_each(|item| parts[rng.below(4) as usize].push(item.clone()));
        let mut cursor = merged(&parts, &TableOptions::default());
        let (forward, back) = both_ways(&mut cursor).unwrap();
        assert!(forward == all && back == all);
        for _ in 0..50 {
            let at = rng.below(all.len() as u64) as usize;
            cursor.seek(&all[at].key, u64::MAX).unwrap();
            for item in &all[at..all.len().min(at + rng.below(40) as usize)] {
                assert_eq!(cursor.key(), &item.key[..]);
                cursor.next().unwrap();
            }
        }
    }
}

#[test]
fn nothing_merged_is_empty() {
    let mut cursor = merge(Vec::new());
    cursor.seek_first().unwrap();
    assert!(!cursor.valid());
    cursor.prev().unwrap();
    assert_eq!((cursor.key(), cursor.value_len(), cursor.child()), (&b""[..], 0, None));
}

#[test]
fn equal_versions_keep_the_order_of_their_tables_when_turning() {
    let part = |n: u8| vec![Item::put(b"a", 1, &[n]), Item::put(b"b", 1, &[n])];
    let parts: Vec<_> = (0..3).map(part).collect();
    let mut cursor = merged(&parts, &TableOptions::default());
    let all: Vec<Item> = [b"a", b"b"].iter().flat_map(|k| (0..3).map(|n| Item::put(*k, 1, &[n]))).collect();
    use Move::*;
    let mut moves = vec![First];
    for n in 1..6 {
        moves.extend(std::iter::repeat_n(Next, n).chain(std::iter::repeat_n(Prev, n)));
    }
    moves.push(Last);
    for n in 1..6 {
        moves.extend(std::iter::repeat_n(Prev, n).chain(std::iter::repeat_n(Next, n)));
    }
    follow(&mut cursor, &all, &moves);
}

#[test]
fn a_failing_child_fails_the_move_and_a_seek_recovers() {
    struct Failing(Box<dyn Cursor>, u32);
    impl Cursor for Failing {
        fn head(&self) -> Option<Head<'_>> {
            self.0.head()
        }
        fn seek_first(&mut self) -> terrace_base::Result<()> {
            self.0.seek_first()
        }
        fn seek_last(&mut self) -> terrace_base::Result<()> {
            self.0.seek_last()
        }
        fn seek(&mut self, key: &[u8], seq: u64) -> terrace_base::Result<()> {
            self.0.seek(key, seq)
        }
        fn seek_back(&mut self, key: &[u8], seq: u64) -> terrace_base::Result<()> {
            self.0.seek_back(key, seq)
        }
        fn next(&mut self) -> terrace_base::Result<()> {
            self.1 += 1;
            if self.1 == 2 { Err(terrace_base::Error::ReadOnly) } else { self.0.next() }
        }
        fn prev(&mut self) -> terrace_base::Result<()> {
            self.0.prev()
        }
        fn value(&self) -> terrace_base::Result<bytes::Bytes> {
            self.0.value()
        }
        fn value_in_place(&self) -> terrace_base::Result<&[u8]> {
            self.0.value_in_place()
        }
        fn value_len(&self) -> usize {
            self.0.value_len()
        }
    }
    let items: Vec<Item> = (0..6u8).map(|i| Item::put(&[i], 1, b"")).collect();
    let whole = table(1, &TableOptions::default(), &items).2;
    let mut cursor = merge(vec![Box::new(Failing(Box::new(whole.cursor(true, 0)), 0))]);
    cursor.seek_first().unwrap();
    cursor.next().unwrap();
    assert!(cursor.next().is_err());
    assert!(!cursor.valid());
    cursor.seek(&[1], 1).unwrap();
    assert_eq!(cursor.key(), [1]);
}
