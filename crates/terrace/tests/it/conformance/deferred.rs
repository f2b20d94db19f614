//! Merges whose operands are kept, and folded later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{
    Db, ErrorKind, Isolation, Keyspace, KeyspaceOptions, MergeOperator, Snapshot, TransactionIter,
    TransactionOptions, WriteBatch,
};
use terrace_base::exec::{Executor, Inline};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use super::merging::merging;
use super::transactions::open;
use crate::harness::{Engine, Machine, Map, Setup, assert_clean, setups, stepped};

fn log(db: &Db) -> Keyspace {
    merging(db, "log", MergeOperator::append().deferred())
}

/// Whether it is one of the engines that keep operands.
fn keeps(engine: &Engine) -> bool {
    use terrace::EngineKind::{Lsm, Tlsm, Wip};
    matches!(engine.kind, Lsm | Tlsm | Wip)
}

fn key(i: u64) -> [u8; 2] {
    [b'k', i as u8]
}

/// Everything that a reader can ask, against `map`.
fn compare(rng: &mut Rng, reader: &Snapshot, map: &Map) {
    let keys: Vec<[u8; 2]> = (0..14).map(key).collect();
    let wanted: Vec<Option<&Vec<u8>>> = keys.iter().map(|key| map.get(&key[..])).collect();
    let found = reader.multi_get(&keys).unwrap();
    assert!(found.iter().map(|value| value.as_deref()).eq(wanted.iter().map(|v| v.map(|v| &v[..]))));
    for (key, wanted) in keys.iter().zip(&wanted) {
        assert_eq!(reader.get(key).unwrap().as_deref(), wanted.map(|v| &v[..]), "{key:?}");
    }
    let Ok(mut iter) = reader.range(..) else { return };
    let mut wanted: VecDeque<(&Vec<u8>, &Vec<u8>)> = map.iter().collect();
    if rng.one_in(3) {
        let from = key(rng.below(14));
        iter.seek(from);
        wanted.retain(|(key, _)| key[..] >= from[..]);
    }
    loop {
        let (found, wanted) = match rng.one_in(2) {
            true => (stepped(&mut iter, false, rng.one_in(2)), wanted.pop_front()),
            false => (stepped(&mut iter, true, rng.one_in(2)), wanted.pop_back()),
        };
        let found = found.map(|entry| entry.unwrap());
        let found = found.as_ref().map(|(key, value)| (&key[..], &value[..]));
        assert_eq!(found, wanted.map(|(key, value)| (&key[..], &value[..])));
        if found.is_none() {
            return;
        }
    }
}

fn operate(rng: &mut Rng, db: &Db, space: &Keyspace, map: &mut Map) {
    let (k, text) = (key(rng.below(14)), [b'a' + rng.below(26) as u8].repeat(1 + rng.below(60) as usize));
    match rng.below(20) {
        0..=8 => {
            space.merge(k, &text).unwrap();
            map.entry(k.to_vec()).or_default().extend(text);
        }
        9 | 10 => {
            space.put(k, &text).unwrap();
            map.insert(k.to_vec(), text);
        }
        11 => {
            space.delete(k).unwrap();
            map.remove(&k[..]);
        }
        12 | 13 => {
            let mut batch = WriteBatch::new();
            for _ in 0..rng.below(8) {
                let k = key(rng.below(14));
                match rng.below(6) {
                    0 => {
                        batch.put_in(space, k, &text);
                        map.insert(k.to_vec(), text.clone());
                    }
                    1 => {
                        batch.delete_in(space, k);
                        map.remove(&k[..]);
                    }
                    _ => {
                        batch.merge_in(space, k, &text);
                        map.entry(k.to_vec()).or_default().extend(&text);
                    }
                }
            }
            db.write(batch).unwrap();
        }
        14 => {
            let (from, to) = (rng.below(14), rng.below(14));
            let (from, to) = (key(from.min(to)), key(from.max(to)));
            space.delete_range(&from[..]..&to[..]).unwrap();
            map.retain(|key, _| key[..] < from[..] || key[..] >= to[..]);
        }
        15 => {
            let before = space.get(k).unwrap();
            let after: Vec<u8> = [before.as_deref().unwrap_or_default(), b"!"].concat();
            assert!(space.compare_and_swap(k, before.as_deref(), Some(&after)).unwrap().is_ok());
            map.insert(k.to_vec(), after);
        }
        16 => {
            let there = map.contains_key(&k[..]);
            assert_eq!(space.contains_key(k).unwrap(), there);
            assert_eq!(space.put_if_absent(k, &text).unwrap(), !there);
            map.entry(k.to_vec()).or_insert(text);
        }
        17 => {
            db.transact(|tx| {
                let tx = tx.keyspace(space)?;
                assert_eq!(tx.get(k)?.as_deref(), map.get(&k[..]).map(|v| &v[..]));
                tx.merge(k, &text)
            })
            .unwrap();
            map.entry(k.to_vec()).or_default().extend(text);
        }
        18 => db.flush().unwrap(),
        _ => space.compact_range(..).unwrap(),
    }
}

/// Must catch operands that are folded twice, in another order or not at all, wherever they lie, by readers of now and
/// of snapshots.
pub fn deferred_merges_match_a_map(engine: &Engine) {
    for (round, setup) in setups(engine).into_iter().enumerate() {
        for seed in 0..3 {
            let (mut machine, mut rng) = (Machine::new(&setup), Rng::new(100 * seed + round as u64));
            let (mut db, mut map) = (machine.open().unwrap(), Map::new());
            let (mut space, mut snapshots) = (log(&db), Vec::new());
            assert_eq!(space.keeps_operands(), keeps(engine));
            for step in 0..260 {
                operate(&mut rng, &db, &space, &mut map);
                match rng.below(24) {
                    0 if snapshots.len() < 4 => snapshots.push((space.snapshot().unwrap(), map.clone())),
                    1 => drop(snapshots.pop()),
                    2 if rng.one_in(3) => {
                        snapshots.clear();
                        drop(space);
                        if setup.granularity == Granularity::Page || rng.one_in(2) {
                            db.close().unwrap();
                            drop(db);
                        } else {
                            drop(db);
                            machine = machine.kill();
                        }
                        db = machine.open().unwrap();
                        // Its operator is built in, and whether it is deferred stands in its record.
                        space = db.keyspace("log").unwrap();
                    }
                    3 | 4 => compare(&mut rng, &space.snapshot().unwrap(), &map),
                    5 => snapshots.iter().for_each(|(snapshot, map)| compare(&mut rng, snapshot, map)),
                    _ => {}
                }
                if step % 100 == 99 {
                    assert_clean(&db);
                }
            }
            snapshots.iter().for_each(|(snapshot, map)| compare(&mut rng, snapshot, map));
            compare(&mut rng, &space.snapshot().unwrap(), &map);
            assert_clean(&db);
        }
    }
}

/// Must catch a merge that reads what is not in memory, and operands that no compaction folds.
pub fn operands_wait_for_a_compaction(engine: &Engine) {
    let (machine, db) = open("waiting operands", engine);
    let space = log(&db);
    (0..50).for_each(|i| space.put(key(i), b"first ").unwrap());
    db.compact_range(..).unwrap();
    db.close().unwrap();
    drop((space, db));
    let db = machine.open().unwrap();
    let space = db.keyspace("log").unwrap();
    let before = db.stats().ssd.reads;
    (0..50).for_each(|i| space.merge(key(i), b"second ").unwrap());
    let keeps = keeps(engine);
    assert!(!keeps || db.stats().ssd.reads == before, "a merge has read");
    db.flush().unwrap();
    let entries = || db.stats().ssd.table_entries + db.stats().lists.entries;
    assert!(!keeps || entries() > 80, "operands lie beside what they stand on");
    (0..50).for_each(|i| space.merge(key(i), b"third").unwrap());
    let all = |space: &Keyspace| {
        (0..50).for_each(|i| {
            assert_eq!(space.get(key(i)).unwrap().as_deref(), Some(&b"first second third"[..]))
        });
    };
    all(&space);
    db.compact_range(..).unwrap();
    all(&space);
    assert!(!keeps || entries() < 60, "{:?}", db.stats());
    assert_clean(&db);
}

/// Must catch operands that stay apart for good because a snapshot needed them so when they were first compacted.
pub fn what_a_snapshot_kept_apart_is_folded_after_it(engine: &Engine) {
    if !engine.kind.keeps_operands() {
        return;
    }
    let (machine, background) =
        (Machine::new(&Setup::tiny("kept apart", engine)), Arc::new(Inline::default()));
    let db = Db::open_in(machine.env_on(background.clone()), machine.dir(), machine.options()).unwrap();
    let space = log(&db);
    (0..50).for_each(|i| space.put(key(i), b"first ").unwrap());
    db.compact_range(..).unwrap();
    let snapshot = space.snapshot().unwrap();
    (0..50).for_each(|i| space.merge(key(i), b"second").unwrap());
    for _ in 0..2 {
        db.compact_range(..).unwrap();
    }
    let compare = |snapshot: Option<&Snapshot>| {
        for i in 0..50 {
            assert_eq!(space.get(key(i)).unwrap().as_deref(), Some(&b"first second"[..]));
            let then = snapshot.map(|snapshot| snapshot.get(key(i)).unwrap());
            assert!(then.is_none_or(|then| then.as_deref() == Some(&b"first "[..])));
        }
    };
    let entries = || db.stats().ssd.table_entries + db.stats().lists.entries;
    compare(Some(&snapshot));
    assert!(entries() >= 100, "{} entries: the snapshot needs two of each key", entries());
    drop(snapshot);
    // Nobody asks for it.
    db.put(b"another", b"").unwrap();
    db.flush().unwrap();
    while background.help() {}
    assert!(entries() < 60, "{} entries: they were not folded", entries());
    compare(None);
    assert_clean(&db);
}

/// Must be told of key 1 alone, by errors of this kind.
fn told(db: &Db, space: &Keyspace, kind: ErrorKind) {
    let refused = [
        space.get(key(1)).unwrap_err(),
        space.get_with(key(1), <[u8]>::len).unwrap_err(),
        space.multi_get([key(0), key(1)]).unwrap_err(),
        space.compare_and_swap(key(1), None, Some(b"new")).unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.kind() == kind), "{refused:?}");
    assert_eq!(space.get(key(2)).unwrap().as_deref(), Some(&b"good"[..]));
    assert!(space.contains_key(key(1)).unwrap(), "whatever its value is");
    assert!(db.snapshot().keyspace(space).unwrap().contains_key(key(1)).unwrap());
    let reading = db.transaction();
    assert!(reading.keyspace(space).unwrap().contains_key(key(1)).unwrap());
    // Also at the commit, after another write.
    db.put("another", "").unwrap();
    reading.delete("another").unwrap();
    reading.commit().unwrap();
    let entries: Vec<_> = space.iter().unwrap().collect();
    assert_eq!((entries.len(), entries.iter().filter(|entry| entry.is_err()).count()), (2, 1));
    // Nobody else hears of it: not even where the walk looks one key beyond its range.
    assert_eq!(space.range(..key(1)).unwrap().map(Result::unwrap).count(), 1);
    assert_eq!(space.range(key(2)..key(3)).unwrap().rev().map(Result::unwrap).count(), 1);
    // Nor is a transaction told of it that has written it itself, or gives what it has written before it.
    let tx = db.transaction();
    let own = tx.keyspace(space).unwrap();
    let between = [&key(0)[..], b"0"].concat();
    own.put(&between, "own").unwrap();
    let first = own.iter().unwrap().take(2).map(|entry| entry.unwrap().1).collect::<Vec<_>>();
    assert_eq!(first, ["good", "own"]);
    own.put(key(1), "new").unwrap();
    let values = |iter: TransactionIter<'_>| iter.map(|entry| entry.unwrap().1).collect::<Vec<_>>();
    assert_eq!(values(own.range(..key(3)).unwrap()), ["good", "own", "new", "good"]);
    drop(tx);
    for other in ["a", "z"].map(|name| db.keyspace(name).unwrap()) {
        assert_eq!(other.iter().unwrap().map(Result::unwrap).count(), 1);
        assert_eq!(other.iter().unwrap().rev().map(Result::unwrap).count(), 1);
    }
    assert_eq!(db.iter().unwrap().rev().map(Result::unwrap).count(), 1);
    assert_clean(db);
}

/// Must catch an operand that cannot be folded and is lost, keeps others from being read, or is taken for a value.
pub fn what_cannot_be_folded_is_told(engine: &Engine) {
    if !keeps(engine) {
        return;
    }
    let (machine, db) = open("unfolded operands", engine);
    static FAILS: AtomicBool = AtomicBool::new(false);
    let operator = || {
        let join = |a: &[u8], b: &[u8]| match FAILS.load(Ordering::Relaxed) && b == b"bad" {
            true => Err("a bad operand".into()),
            false => Ok([a, b].concat()),
        };
        MergeOperator::associative("join", join).deferred()
    };
    let by = |db: &Db| {
        db.keyspace_with("space", KeyspaceOptions { merge: Some(operator()), ..KeyspaceOptions::default() })
    };
    db.put(b"default", b"1").unwrap();
    db.keyspace("a").unwrap().put(b"k", b"1").unwrap();
    let space = by(&db).unwrap();
    db.keyspace("z").unwrap().put(b"k", b"1").unwrap();
    for i in 0..6 {
        space.put(key(i), b"good").unwrap();
    }
    db.flush().unwrap();
    FAILS.store(true, Ordering::Relaxed);
    for i in [1, 3, 4] {
        space.merge(key(i), b"bad").unwrap();
    }
    for _ in 0..2 {
        told(&db, &space, ErrorKind::MergeFailed);
        // Nothing of it is lost by being written again.
        db.compact_range(..).unwrap();
    }
    drop((space, db));
    let db = machine.open().unwrap();
    let space = db.keyspace("space").unwrap();
    told(&db, &space, ErrorKind::InvalidArgument);
    assert!(space.merge(key(0), b"x").unwrap_err().to_string().contains("is to be opened with that"));
    db.compact_range(..).unwrap();
    let space = by(&db).unwrap();
    told(&db, &space, ErrorKind::MergeFailed);
    // What is put or deleted can be read again, whoever else writes.
    let [put, delete] = [Isolation::Snapshot, Isolation::Serializable]
        .map(|isolation| db.transaction_with(TransactionOptions { isolation, ..Default::default() }));
    put.keyspace(&space).unwrap().put(key(3), b"new").unwrap();
    let of_delete = delete.keyspace(&space).unwrap();
    of_delete.delete(key(4)).unwrap();
    assert!(of_delete.range(key(4)..key(5)).unwrap().next().is_none());
    db.put(b"default", b"2").unwrap();
    put.commit().unwrap();
    delete.commit().unwrap();
    assert_eq!(space.get(key(3)).unwrap().as_deref(), Some(&b"new"[..]));
    assert!(!space.contains_key(key(4)).unwrap());
    FAILS.store(false, Ordering::Relaxed);
    assert_eq!(space.get(key(1)).unwrap().as_deref(), Some(&b"goodbad"[..]));
    db.compact_range(..).unwrap();
    FAILS.store(true, Ordering::Relaxed);
    assert_eq!(space.get(key(1)).unwrap().as_deref(), Some(&b"goodbad"[..]), "folded once");
    space.merge(key(5), b"bad").unwrap();
    // Nor are they in the way of those who do not ask for their value.
    space.delete_range(key(0)..key(3)).unwrap();
    db.sweep().unwrap();
    db.drop_keyspace("space").unwrap();
    db.sweep().unwrap();
    assert_eq!(db.entries().unwrap().count(), 1);
    assert_clean(&db);
}

/// Must catch an operand over a tombstone that a compaction takes for garbage again and again, as it cannot be folded.
pub fn a_stack_on_a_tombstone_is_no_garbage(engine: &Engine) {
    let (machine, db) = open("operands on tombstones", engine);
    let never = || MergeOperator::new("never", |_, _, _| Err("never".into())).deferred();
    let space = merging(&db, "space", never());
    for i in 0..40 {
        space.put(key(i), b"value").unwrap();
    }
    db.compact_range(..).unwrap();
    let snapshot = space.snapshot().unwrap();
    for i in 0..40 {
        space.delete(key(i)).unwrap();
    }
    db.flush().unwrap();
    for i in 0..40 {
        let outcome = space.merge(key(i), b"operand");
        assert_eq!(outcome.is_ok(), keeps(engine), "{outcome:?}");
    }
    db.flush().unwrap();
    for _ in 0..2 {
        db.compact_range(..).unwrap();
        assert_clean(&db);
        assert_eq!(space.get(key(7)).is_err(), keeps(engine));
        assert_eq!(snapshot.get(key(7)).unwrap().as_deref(), Some(&b"value"[..]));
    }
    drop(snapshot);
    db.compact_range(..).unwrap();
    assert_clean(&db);
    let written = db.stats().counts.compaction_bytes;
    db.compact_range(..).unwrap();
    assert!(db.stats().counts.compaction_bytes - written < 20_000, "once for each call");
    drop((space, db));
    let db = machine.open().unwrap();
    assert_clean(&db);
}

/// Must catch readers that see a part of what a compaction folds meanwhile.
pub fn folding_is_nobodys_business(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("folding beside readers", engine).threaded(3));
    let db = machine.open().unwrap();
    let counts = merging(&db, "counts", MergeOperator::add().deferred());
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = [0; 8];
                while !is_over.load(Ordering::Acquire) {
                    for (i, last) in last.iter_mut().enumerate() {
                        let now = counts.get(key(i as u64)).unwrap().map_or(0, |value| number(&value));
                        assert!(now >= *last, "{now} after {last}");
                        *last = now;
                    }
                    if let Ok(iter) = counts.iter() {
                        iter.for_each(|entry| drop(entry.unwrap()));
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                db.flush().unwrap();
                db.compact_range(..).unwrap();
            }
        });
        let written = (0..4000u64).try_for_each(|i| counts.merge(key(i % 8), 1i64.to_le_bytes()));
        is_over.store(true, Ordering::Release);
        written.unwrap();
    });
    (0..8).for_each(|i| assert_eq!(number(&counts.get(key(i)).unwrap().unwrap()), 500));
    assert_clean(&db);
}
