//! Streams that appear while buckets change, and buckets that get many tables at once.

use std::sync::atomic::Ordering;

use terrace_base::ErrorKind;

use super::*;
use crate::compaction::buckets::{BucketFigures, choose};
use crate::core::engine::HiddenTables;

const KEYS: u32 = 2000;

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// Values that do not compress.
fn value(i: u32, of: &str) -> Vec<u8> {
    let mut rng = terrace_base::rng::Rng::new(u64::from(i));
    let mut value = vec![0; 100];
    rng.fill(&mut value);
    [of.as_bytes(), &value].concat()
}

/// Buckets of 64 KB, of which the stream of all keys fills more than three.
fn small() -> Options {
    let mut options = options();
    (options.wip.memtable_bytes, options.wip.most_memtable_bytes) = (4 << 10, 32 << 10);
    (options.wip.bucket_bytes, options.wip.block_bytes) = (64 << 10, 1 << 10);
    options
}

fn opened(options: Options) -> (World, Arc<Wip>) {
    let world = world();
    let wip = open_on(Arc::new(world.fs()), options);
    (world, wip)
}

/// A stream of some keys that nobody sees yet, as it is when its writer is about to lead.
fn hidden(wip: &Wip, keys: impl Iterator<Item = u32> + Clone) -> Box<dyn HiddenTables> {
    let number = wip.core.snapshots.visible() + (1 << 20);
    let mut fill = |take: &mut crate::core::engine::Take<'_>| {
        keys.clone().try_for_each(|i| take(&key(i), &value(i, "stream")))
    };
    wip.write_hidden(number, &mut fill).unwrap().unwrap()
}

fn prepared(mut tables: Box<dyn HiddenTables>) -> Box<dyn HiddenTables> {
    tables.prepare().unwrap();
    tables
}

fn assert_streamed(wip: &Wip, keys: impl Iterator<Item = u32>) {
    let missing =
        keys.into_iter().filter(|i| wip.get(&key(*i), None).unwrap() != Some(value(*i, "stream").into()));
    assert_eq!(missing.count(), 0);
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

fn run_all(wip: &Wip) {
    while wip.core.env.executor.help() {}
}

fn largest(wip: &Wip) -> u64 {
    wip.buckets().iter().map(|bucket| bucket.figures.lock().bytes).max().unwrap()
}

/// Must catch a table that lies in two buckets: they were split before its writer led, or before it got that far.
#[test]
fn buckets_that_are_split_meanwhile_have_tables_of_their_own() {
    let (world, wip) = opened(options());
    put(&wip, &key(7), b"before");
    let tables = hidden(&wip, 0..KEYS);
    [500, 900].iter().for_each(|i| split(&wip, &key(*i)));
    let tables = prepared(tables);
    [501, 1900].iter().for_each(|i| split(&wip, &key(*i)));
    join(&wip, &key(0), &key(500));
    put(&wip, &key(1), b"before");
    put(&wip, &key(1999), b"before");
    tables.show().unwrap();
    assert_eq!(wip.buckets().len(), 4);
    assert_streamed(&wip, 0..KEYS);
    put(&wip, &key(KEYS), b"after");
    for world in [world.kill(), world.crash(3)] {
        let wip = open(&world);
        assert_streamed(&wip, 0..KEYS);
        assert!(wip.last_seq() >= 1 << 20);
    }
}

/// Must catch tables that span keys where a bucket is about to be split, and those that are lost with it.
#[test]
fn a_bucket_is_split_around_tables_that_come_while_it_is_merged() {
    let world = world();
    let (fs, hook) = Telling::new(&world);
    let wip = open_on(fs, small());
    (0..KEYS).step_by(3).for_each(|i| put(&wip, &key(i), &value(i, "before")));
    flush(&wip);
    let tables = Mutex::new(Some(prepared(hidden(&wip, (0..KEYS).step_by(50)))));
    let before = wip.reshaped.splits.load(Ordering::Relaxed);
    let show = move || tables.lock().take().unwrap().show().unwrap();
    *hook.lock() = Some(("sst", Box::new(show)));
    wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert!(hook.lock().is_none(), "a table was made");
    assert!(wip.reshaped.splits.load(Ordering::Relaxed) > before, "it was split");
    assert_streamed(&wip, (0..KEYS).step_by(50));
    assert_eq!(wip.get(&key(3), None).unwrap(), Some(value(3, "before").into()));
    run_all(&wip);
    assert_streamed(&wip, (0..KEYS).step_by(50));
}

/// Must catch a stream into an empty database that is written more than once, and a bucket that holds all of it.
#[test]
fn what_comes_into_an_empty_range_is_written_once() {
    let (_world, wip) = opened(small());
    let tables = hidden(&wip, 0..KEYS);
    assert_eq!(wip.buckets().len(), 1);
    prepared(tables).show().unwrap();
    let buckets = wip.buckets().len();
    assert!(buckets > 3, "{buckets}");
    assert!(largest(&wip) < 64 << 10, "{}", largest(&wip));
    run_all(&wip);
    assert_eq!((wip.buckets().len(), wip.core.counters.compactions.get()), (buckets, 0));
    assert_streamed(&wip, 0..KEYS);
}

/// Must catch a bucket that is not divided because a few keys span it, or many; what is lost of these; and what comes
/// back.
#[test]
fn tables_in_the_way_of_a_division_are_cut() {
    for (step, is_much) in [(KEYS - 1, false), (KEYS / 4, false), (5, true)] {
        let mut options = small();
        // So that nothing is split before.
        (options.wip.sublevels, options.wip.most_memtable_bytes) = (64, 1 << 20);
        let (world, wip) = opened(options.clone());
        let old = || (0..KEYS).step_by(step as usize);
        let snapshot = wip.core.snapshots.hold();
        for of in ["older", "old"] {
            old().for_each(|i| put(&wip, &key(i), &value(i, of)));
            flush(&wip);
        }
        delete(&wip, &key(0));
        let seen = wip.core.snapshots.hold();
        let bytes = largest(&wip);
        assert_eq!(bytes > wip.piece_bytes(), is_much, "{bytes}");
        let before = wip.buckets().len();
        let fresh = |i: &u32| i % 2 == 1;
        let tables = prepared(hidden(&wip, (0..KEYS).filter(fresh)));
        // They span all places, too, when they are flushed.
        put(&wip, &key(0), b"again");
        put(&wip, &key(KEYS), b"later");
        tables.show().unwrap();
        assert!(wip.buckets().len() > before + 1, "{step}: {} buckets", wip.buckets().len());
        for wip in [wip.clone(), open_on(Arc::new(world.kill().fs()), options)] {
            assert_streamed(&wip, (0..KEYS).filter(fresh));
            let olds = old().filter(|i| !fresh(i) && *i > 0);
            olds.for_each(|i| assert_eq!(wip.get(&key(i), None).unwrap(), Some(value(i, "old").into())));
            let newer = [0, KEYS].map(|i| wip.get(&key(i), None).unwrap());
            assert_eq!(newer, [Some(b"again"[..].into()), Some(b"later"[..].into())]);
        }
        let at = |i| wip.get(&key(i), Some(seen.seq())).unwrap();
        let is_old = (KEYS - 1).is_multiple_of(step).then(|| value(KEYS - 1, "old").into());
        assert_eq!((at(0), at(KEYS - 1)), (None, is_old));
        drop((snapshot, seen));
        run_all(&wip);
        assert_streamed(&wip, (0..KEYS).filter(fresh));
    }
}

/// A bucket that could not be divided at once was merged and split again and again, each time into a few.
#[test]
fn a_bucket_that_has_much_too_much_is_split_once() {
    let mut options = small();
    options.wip.split_into = 2;
    let (_world, wip) = opened(options);
    put(&wip, &key(0), b"before");
    put(&wip, &key(KEYS), b"before");
    flush(&wip);
    let tables = prepared(hidden(&wip, 0..KEYS));
    let only = bucket(&wip, b"");
    // As if a job ran in it.
    wip.planning.lock().whole.insert(only.lower.clone());
    tables.show().unwrap();
    assert_eq!(wip.buckets().len(), 1);
    wip.planning.lock().whole.remove(&only.lower);
    assert_streamed(&wip, 0..KEYS);
    run_all(&wip);
    assert_eq!(wip.reshaped.splits.load(Ordering::Relaxed), 1);
    let figures: Vec<BucketFigures> = wip.buckets().iter().map(|b| b.figures.lock().clone()).collect();
    let reads = vec![Default::default(); figures.len()];
    assert!(figures.len() > 4 && choose(&figures, &reads, &wip.bucket_options(), None).is_none());
    assert_streamed(&wip, 0..KEYS);
}

/// Must catch an ingest that is refused and leaves buckets divided, claimed, or writes that go back behind it.
#[test]
fn a_refused_stream_leaves_buckets_as_they_are() {
    let (world, wip) = opened(small());
    put(&wip, &key(3), b"before");
    put(&wip, &key(1000), b"before");
    flush(&wip);
    for after in 0..200 {
        let tables = prepared(hidden(&wip, (0..KEYS).filter(|i| *i != 3)));
        world.fs().inject(Some(terrace_disk::Fault { after, only_changes: true, sticky: true }));
        let shown = tables.show();
        world.fs().inject(None);
        let plan = wip.planning.lock();
        assert!(plan.whole.is_empty() && plan.ending.is_empty() && plan.busy.is_empty());
        drop(plan);
        if shown.is_ok() {
            assert!(after > 5 && wip.buckets().len() > 3);
            break;
        }
        assert_ne!(shown.unwrap_err().kind(), ErrorKind::Corruption);
        put(&wip, &key(3), &value(after as u32, "meanwhile"));
        assert_eq!((wip.buckets().len(), wip.get(&key(4), None).unwrap()), (1, None));
        assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
    }
    assert_streamed(&wip, (0..KEYS).filter(|i| *i != 3));
    assert!(wip.get(&key(3), None).unwrap().is_some());
}
