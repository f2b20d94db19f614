//! Little room, on the disk and in memory.

use std::sync::atomic::Ordering;

use terrace_base::ErrorKind;
use terrace_base::rng::Rng;

use super::*;
use crate::options::BucketMemtableKind;

/// Two full buckets, one of 40 KB and one of 400 KB, on a disk with room to merge the smaller one.
fn narrow() -> (Arc<Telling>, Arc<Wip>) {
    let world = world();
    let (fs, _) = Telling::new(&world);
    let mut options = options();
    (options.wip.memtable_bytes, options.wip.bucket_bytes, options.wip.log_bytes) =
        (4 << 10, 16 << 10, 16 << 10);
    let wip = open_on(fs.clone(), options);
    split(&wip, b"m");
    // Nothing is compacted meanwhile.
    fs.free.store(0, Ordering::Relaxed);
    let mut rng = Rng::new(1);
    for _ in 0..4 {
        for (key, bytes) in [(b"a", 100_000), (b"b", 1), (b"y", 10_000), (b"z", 1)] {
            let mut value = vec![0; bytes];
            rng.fill(&mut value);
            put(&wip, key, &value);
        }
        flush(&wip);
    }
    fs.free.store(200_000, Ordering::Relaxed);
    (fs, wip)
}

fn tables(wip: &Wip) -> [usize; 2] {
    [b"a", b"z"].map(|key| bucket(wip, key).readable.load().tables.len())
}

/// The first bucket without room ended it.
#[test]
fn a_compaction_goes_on_behind_a_bucket_without_room() {
    let (fs, wip) = narrow();
    let before = tables(&wip)[0];
    let refused = wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_eq!(tables(&wip), [before, 1]);
    fs.free.store(u64::MAX, Ordering::Relaxed);
    wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert!(tables(&wip)[0] < before);
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// The largest bucket was chosen again and again, and refused.
#[test]
fn a_full_bucket_without_room_is_in_no_others_way() {
    let (fs, wip) = narrow();
    let last = (0..20).map(|_| wip.compact_next()).find(|outcome| !matches!(outcome, Ok(true)));
    assert_eq!(last.unwrap().unwrap_err().kind(), ErrorKind::NoSpace, "the larger one is full still");
    assert_eq!(tables(&wip)[1], 1);
    fs.free.store(u64::MAX, Ordering::Relaxed);
    while wip.compact_next().unwrap() {}
    assert_eq!(wip.get(b"a", None).unwrap().map(|value| value.len()), Some(100_000));
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// Each took an eighth of a large memtable with its first key, and a few of them all the memory.
#[test]
fn many_skiplists_take_little_each() {
    for memtable in [BucketMemtableKind::Skiplist, BucketMemtableKind::Hash] {
        let world = world();
        let mut options = Options { memory_budget: 4 << 20, ..options() };
        options.wip.memtable = memtable;
        let wip = open_on(Arc::new(world.fs()), options);
        (1..=200).for_each(|i| split(&wip, &[i]));
        for round in 0..5u8 {
            (0..=200).for_each(|i| put(&wip, &[i, round], &[7; 100]));
        }
        let flushes = wip.core.counters.flushes.get();
        assert!(
            !wip.has_frozen() && flushes == 0,
            "{memtable:?}: {flushes} flushes, {} bytes",
            wip.memory.held()
        );
    }
}

/// A join whose failure began a flush, which begins compactions, was tried again for ever: a close and a repair, which
/// wait for that, did not end.
#[test]
fn a_join_that_fails_is_not_tried_again_at_once() {
    let world = world();
    let wip = open(&world);
    split(&wip, b"m");
    put(&wip, b"a", b"1");
    put(&wip, b"z", b"2");
    let jobs = || (0..100).take_while(|_| wip.core.env.executor.help()).count();
    world.fail_from(0);
    wip.spawn_compaction();
    let run = jobs();
    assert!(run < 100 && world.fault_met().is_some(), "{run} jobs");
    assert_eq!((wip.buckets().len(), wip.reshaped.joins.load(Ordering::Relaxed)), (2, 0));
    world.heal();
    wip.spawn_compaction();
    assert!(jobs() < 100);
    assert_eq!((wip.buckets().len(), wip.reshaped.joins.load(Ordering::Relaxed)), (1, 1));
}

/// Merges kept all memtables of their beginning, which counted as written still: once they were flushed, every write
/// flushed its own memtable, and a load left thousands of tables with one record.
#[test]
fn what_is_flushed_is_no_writers_memory_and_no_merges() {
    let world = world();
    let wip = open(&world);
    put(&wip, b"a", &[7; 100_000]);
    let newest = bucket(&wip, b"a").readable.load().active().max_seq();
    let kept = bucket(&wip, b"a").readable.load_full();
    flush(&wip);
    assert!(kept.memtables.iter().any(|memtable| memtable.dram_bytes() > 100_000), "somebody has it");
    assert_eq!(wip.memory.held(), 0);
    assert!(wip.beside(&bucket(&wip, b"a"), newest).1.is_empty(), "what comes into it is newer");
    put(&wip, b"a", &[8; 100_000]);
    let held = wip.memory.held();
    assert!(held > 100_000);
    drop(kept);
    assert_eq!(wip.memory.held(), held);
    let (tables, memtables) = wip.beside(&bucket(&wip, b"a"), newest);
    assert_eq!((tables.len(), memtables.len()), (1, 0));
    assert_eq!(
        wip.beside(&bucket(&wip, b"a"), newest + 1).1.len(),
        1,
        "copies of what it has may be in tables"
    );
}

/// Each closed memtable had a job, and all but one of these kept a thread from compactions until the first had flushed
/// everything.
#[test]
fn flushes_take_one_job_however_many_wait() {
    let world = world();
    let wip = open(&world);
    let jobs = || (0..100).take_while(|_| wip.core.env.executor.help()).count();
    jobs();
    for round in 0..9u8 {
        put(&wip, b"a", &[round; 100]);
        wip.freeze_all();
    }
    assert_eq!(wip.frozen.lock().len(), 9);
    let run = jobs();
    assert!(!wip.has_frozen() && run < 9, "{run} jobs");
    put(&wip, b"a", b"last");
    wip.freeze_all();
    assert!(jobs() > 0 && !wip.has_frozen(), "the next one has a job again");
}

/// The only sample of a small table was its last key: a bucket was cut there, one key was a bucket, and the rest was cut
/// again for ever.
#[test]
fn a_bucket_of_small_tables_is_cut_into_like_parts() {
    for (records, value_bytes, tables) in [(2000, 100, 1), (2000, 100, 7), (300, 5000, 1), (40, 100_000, 4)] {
        let world = world();
        let mut options = options();
        (options.wip.memtable_bytes, options.wip.most_memtable_bytes) = (64 << 10, 8 << 20);
        (options.wip.bucket_bytes, options.wip.block_bytes) = (256 << 10, 4 << 10);
        let wip = open_on(Arc::new(world.fs()), options);
        let mut rng = Rng::new(5);
        for _ in 0..tables {
            for _ in 0..records / tables {
                let mut value = vec![0; value_bytes];
                rng.fill(&mut value);
                put(&wip, format!("{:016x}", rng.next_u64()).as_bytes(), &value);
            }
            flush(&wip);
        }
        wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
        let entries = |bucket: &Arc<Bucket>| -> u64 {
            bucket.readable.load().tables.iter().map(|table| table.run.meta().entries).sum()
        };
        let all: Vec<u64> = wip.buckets().iter().map(entries).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(all.len() >= 4 && *most <= 4 * least, "{records} of {value_bytes} bytes: {all:?}");
    }
}
