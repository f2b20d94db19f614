//! What comes back from logs.

use std::sync::Arc;

use terrace_base::ErrorKind;
use terrace_base::exec::{Executor, Inline};
use terrace_index::{PointIndex, SpOptions, SpTree};
use terrace_pmem::POff;

use super::{AtOnce, all, check, flip, key, long_key, try_all};
use crate::bed::{assert_no_leaks, memory_pool};

/// After a kill nothing is replayed before a key is asked for, and then what its log says of it alone counts.
#[test]
fn a_buffered_tree_serves_before_its_logs_are_gone_through() {
    for name in [key as fn(u64) -> Vec<u8>, long_key] {
        let pool = memory_pool();
        let mut options =
            SpOptions { buffered: true, leaf_entries: 16, log_bytes: 30_000, ..SpOptions::default() };
        options.executor = Some(Arc::new(AtOnce));
        let tree = SpTree::create(&pool, "index", &options).unwrap();
        (0..2000).for_each(|i| tree.insert(&name(i * 7 % 2000), i + 1).map(drop).unwrap());
        (0..2000).step_by(3).for_each(|i| tree.insert(&name(i), i + 9000).map(drop).unwrap());
        (0..2000).step_by(5).for_each(|i| tree.remove(&name(i)).map(drop).unwrap());
        let want = all(&tree);
        // Opened by three sessions that bring back some and write some, and end as if killed.
        let waiting = Arc::new(Inline::default());
        options.executor = Some(waiting.clone());
        drop(tree);
        let mut want: std::collections::BTreeMap<_, _> = want.into_iter().collect();
        for session in 0..4u64 {
            let begun = waiting.pending();
            let tree = SpTree::open(&pool, "index", &options).unwrap();
            assert!(waiting.pending() > begun);
            for i in (0..2000).step_by(11) {
                assert_eq!(tree.get(&name(i)).unwrap(), want.get(&name(i)).copied(), "{i}");
            }
            for i in (session..2000).step_by(13) {
                let word = (i % 4 != 0).then_some(i + 100 * session + 1);
                let before = match word {
                    Some(word) => tree.insert(&name(i), word).unwrap(),
                    None => tree.remove(&name(i)).unwrap(),
                };
                let old = match word {
                    Some(word) => want.insert(name(i), word),
                    None => want.remove(&name(i)),
                };
                assert_eq!(before, old, "{i}");
            }
            if session == 2 {
                assert_eq!(all(&tree), want.clone().into_iter().collect::<Vec<_>>());
            }
        }
        let tree = SpTree::open(&pool, "index", &options).unwrap();
        assert_eq!(tree.len(), want.len() as u64);
        check(&tree);
        assert_eq!(all(&tree), want.into_iter().collect::<Vec<_>>());
        assert_no_leaks(&pool, &tree, |marks| tree.mark(marks));
    }
}

/// What has come back from a log comes back once, also if what follows it in the log cannot.
#[test]
fn what_came_back_before_an_error_stays_what_it_is() {
    let pool = memory_pool();
    let options = SpOptions { buffered: true, leaf_entries: 16, logs: 1, ..SpOptions::default() };
    let options = SpOptions { executor: Some(Arc::new(Inline::default())), ..options };
    let tree = SpTree::create(&pool, "index", &options).unwrap();
    (0..40).for_each(|i| tree.insert(&key(i), i + 1).map(drop).unwrap());
    (0..40).step_by(9).for_each(|i| tree.insert(&key(i), i + 100).map(drop).unwrap());
    let mut want = all(&tree);
    drop(tree);

    let word = |at: u64| pool.atomic(POff::new(at)).load(std::sync::atomic::Ordering::Relaxed);
    let second = word(word(pool.root("index").unwrap().unwrap() + 8) + 192);
    let tree = SpTree::open(&pool, "index", &options).unwrap();
    flip(&pool, second, 3);
    assert_eq!(try_all(&tree).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(tree.insert(&key(0), 1000).unwrap(), Some(100));
    assert_eq!(try_all(&tree).unwrap_err().kind(), ErrorKind::Corruption);
    flip(&pool, second, 3);
    want[0].1 = 1000;
    assert_eq!(all(&tree), want);
    assert_eq!(tree.len(), 40);
    check(&tree);
    tree.close().unwrap();
    assert_eq!(all(&tree), want);
}

/// Background work that an executor comes to while the tree is to stand still begins afterwards. It frees a set of
/// logs, flushes buffers, splits and merges: whoever had counted and marked before would find keys twice and places
/// nobody's.
#[test]
fn work_that_is_late_is_put_off_while_the_tree_stands_still() {
    let pool = memory_pool();
    let later = Arc::new(Inline::default());
    let options = SpOptions { buffered: true, leaf_entries: 16, log_bytes: 4000, ..SpOptions::default() };
    let tree =
        SpTree::create(&pool, "index", &SpOptions { executor: Some(later.clone()), ..options }).unwrap();
    let mut want = std::collections::BTreeMap::new();
    for i in 0..2000 {
        let key = long_key(i * 7 % 300);
        match (i % 5, later.pending()) {
            // Just before an old set would be flushed by a writer.
            (_, 1..) if i > 700 => break,
            (0, _) => assert_eq!(tree.remove(&key).unwrap(), want.remove(&key)),
            _ => assert_eq!(tree.insert(&key, i + 1).unwrap(), want.insert(key, i + 1)),
        }
    }
    let marked = || {
        let mut marks = pool.marks();
        tree.mark(&mut marks).unwrap();
        marks
    };
    let still = tree.still();
    tree.rest().unwrap();
    assert!(tree.drain());
    let marks = marked();
    assert!(later.pending() > 0);
    while later.help() {}
    let problems = pool.check(&marks);
    assert!(problems.is_empty(), "{problems:?}");
    check(&tree);
    assert_eq!(later.pending(), 0, "it waits for the tree");
    drop(still);
    assert!(later.pending() > 0, "what was put off is lost");
    while later.help() {}
    assert!(!pool.check(&marks).is_empty(), "nothing was left to be done");
    assert!(tree.drain());
    let problems = pool.check(&marked());
    assert!(problems.is_empty(), "{problems:?}");
    check(&tree);
    assert_eq!(all(&tree), want.into_iter().collect::<Vec<_>>());
}
