//! What the store may take: memory, pool, handles, space behind a snapshot.
//!
//! `TERRACE_LIMITS=16` makes data and budgets so many times larger; `--nocapture` shows the figures.

use std::process::Command;

use terrace::{Db, EngineKind, ErrorKind, Options, PoolChoice, Profile, Snapshot, Stats};
use terrace_base::rng::Rng;

use crate::harness::assert_clean;

/// Set in the process that measures its own memory.
const MEASURED: &str = "TERRACE_MEASURED";

const VALUE_BYTES: usize = 1000;

fn scale() -> u64 {
    std::env::var("TERRACE_LIMITS").map_or(1, |text| text.parse().expect("a number"))
}

fn key(i: u64) -> Vec<u8> {
    format!("user{i:012}").into_bytes()
}

/// The keys in an order that is none, each once.
fn scattered(i: u64) -> Vec<u8> {
    key(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << 39) - 1))
}

fn value(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    rng.fill(&mut value);
    value
}

fn emulated(options: Options) -> Options {
    let profile = Profile::parse("dram").unwrap();
    Options { pool: PoolChoice::Emulated { path: None, profile }, ..options }
}

/// Bytes of anonymous memory this process has: all but mapped files, and so all but the pool.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A load under which the memory is measured.
struct Load {
    budget: u64,
    value_bytes: usize,
    options: Options,
    /// Partitions there must be at the end.
    partitions: usize,
}

impl Load {
    fn new(options: Options, value_bytes: usize) -> Load {
        Load { budget: options.memory_budget, value_bytes, options, partitions: 0 }
    }
}

/// The loads: records of 1 KB with small memtables and tables, and of 100 bytes, whose keys take most of the memory,
/// with the usual ones, for which the budget is small. Buckets of which there are few, and of which there are a
/// thousand and more.
fn loads() -> [Load; 7] {
    let mut small = Options { memory_budget: (96 << 20) * scale(), ..Options::default() };
    small.slm.memtable_bytes = 4 << 20;
    small.slm.table_bytes = 4 << 20;
    let usual = Options { memory_budget: (32 << 20) * scale(), ..Options::default() };
    let mut levels = Options { engine: EngineKind::Lsm, ..small.clone() };
    levels.lsm.memtable_bytes = 4 << 20;
    levels.lsm.table_bytes = 4 << 20;
    levels.lsm.base_level_bytes = 16 << 20;
    let mut values = Options { engine: EngineKind::Lab, ..emulated(levels.clone()) };
    values.lab.levels = levels.lsm.clone();
    let buckets = Options { engine: EngineKind::Wip, ..small.clone() };
    let mut thousand = buckets.clone();
    (thousand.wip.bucket_bytes, thousand.wip.memtable_bytes) = ((64 << 10) * scale(), (32 << 10) * scale());
    let mut lists = emulated(Options { engine: EngineKind::Tlsm, ..small.clone() });
    lists.pm_bytes = lists.memory_budget * 2;
    [
        Load::new(lists, VALUE_BYTES),
        Load { partitions: 1000, ..Load::new(thousand, VALUE_BYTES) },
        Load::new(buckets, VALUE_BYTES),
        Load::new(levels, VALUE_BYTES),
        Load::new(values, VALUE_BYTES),
        Load::new(small, VALUE_BYTES),
        Load::new(usual, 100),
    ]
}

/// Loads half as much again as the budget, reads at random and in order; the memory it took at most.
fn memory_under_load(load: Load) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let before = anonymous_bytes();
    let mut most = 0;
    let mut see = |i: u64| {
        if i.is_multiple_of(256) {
            most = most.max(anonymous_bytes().saturating_sub(before));
        }
    };
    let db = Db::open(dir.path(), load.options).unwrap();
    let (records, mut rng) = (load.budget / 2 * 3 / load.value_bytes as u64, Rng::new(1));
    for i in 0..records {
        db.put(&key(rng.below(records)), &value(&mut rng, load.value_bytes)).unwrap();
        see(i);
    }
    println!("written: {:?}", db.stats().dram);
    for i in 0..records {
        db.get(&key(rng.below(records))).unwrap();
        see(i);
    }
    db.iter().unwrap().enumerate().for_each(|(i, entry)| {
        entry.unwrap();
        see(i as u64);
    });
    let dram = db.stats().dram;
    let partitions = db.partitions().len();
    println!("budget {}: at most {most}, in the end {dram:?}, partitions {partitions}", load.budget);
    assert!(partitions >= load.partitions, "{partitions} of {}", load.partitions);
    // Without a pool there is no allocator of one.
    let allocates = db.stats().pm.size > 0;
    assert!((dram.allocator > 0) == allocates && dram.total() <= load.budget, "{dram:?}");
    most
}

#[test]
fn memory_stays_within_the_budget() {
    if let Ok(which) = std::env::var(MEASURED) {
        let load = loads().into_iter().nth(which.parse().unwrap()).unwrap();
        let budget = load.budget;
        let most = memory_under_load(load);
        // What the C library's allocator keeps for its threads does not shrink with the budget.
        let allowed = budget + budget / 10 + (2 << 20);
        return assert!(most <= allowed, "{most} bytes of a budget of {budget}");
    }
    let own = std::env::current_exe().unwrap();
    for which in 0..loads().len() {
        let args = ["--exact", "limits::memory_stays_within_the_budget", "--nocapture"];
        let ended = Command::new(&own).args(args).env(MEASURED, which.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        println!("{said}");
        assert!(ended.status.success(), "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
    }
}

fn small_pool() -> Options {
    let mut options = emulated(Options { pm_bytes: (4 << 20) * scale(), ..Options::default() });
    options.memory_budget = 64 << 20;
    options.slm.memtable_bytes = options.pm_bytes / 16;
    options.slm.table_bytes = options.pm_bytes / 8;
    options.pool_extent_bytes = 16 << 10;
    options
}

/// Overwriting goes on for ever in a pool of a fraction (a sixtieth, in long runs) of what is written: writers are
/// slowed, none is refused.
#[test]
fn a_small_pool_carries_many_overwrites() {
    many_overwrites(small_pool());
}

/// The same where the pool holds logs and trees.
#[test]
fn a_small_pool_with_logs_and_trees_carries_many_overwrites() {
    let mut options = Options { engine: EngineKind::Lab, ..small_pool() };
    options.lab.value_tree_bytes = options.pm_bytes;
    options.lab.hint_tree_bytes = options.pm_bytes;
    options.lab.levels.memtable_bytes = options.pm_bytes / 16;
    options.lab.levels.table_bytes = options.pm_bytes / 8;
    options.lab.levels.base_level_bytes = options.pm_bytes / 2;
    let pm_bytes = options.pm_bytes;
    let stats = many_overwrites(options);
    assert!(stats.values.evicted > 0 && stats.values.bytes < pm_bytes / 3, "{:?}", stats.values);
    assert!(stats.hints.bytes <= pm_bytes / 16 + (2 << 10), "{:?}", stats.hints);
}

fn many_overwrites(options: Options) -> Stats {
    let dir = tempfile::tempdir().unwrap();
    let rounds = (6 * scale()).min(60);
    let (writes, records) = (options.pm_bytes * rounds / VALUE_BYTES as u64, options.pm_bytes / 128);
    let db = Db::open(dir.path(), options).unwrap();
    let mut rng = Rng::new(2);
    let mut last = vec![None; records as usize];
    for i in 0..writes {
        let k = rng.below(records);
        let mut value = value(&mut rng, VALUE_BYTES);
        value[..8].copy_from_slice(&i.to_le_bytes());
        db.put(&key(k), &value).unwrap_or_else(|e| panic!("write {i}: {e}"));
        last[k as usize] = Some(i);
    }
    let stats = db.stats();
    println!("{writes} writes to {records} keys: {} stalls, pool {:?}", stats.counts.stalls, stats.pm);
    for (k, wanted) in last.iter().enumerate() {
        let found = db.get(&key(k as u64)).unwrap();
        assert_eq!(found.map(|v| u64::from_le_bytes(v[..8].try_into().unwrap())), *wanted);
    }
    stats
}

/// The index over all keys bounds the data: a pool is full at so much, says so, and reads go on.
#[test]
fn a_small_pool_is_full_of_its_index() {
    let dir = tempfile::tempdir().unwrap();
    let options = small_pool();
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let (mut rng, mut records) = (Rng::new(3), 0);
    let refused = loop {
        match db.put(&scattered(records), &value(&mut rng, VALUE_BYTES)) {
            Ok(()) => records += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::PoolFull, "{refused}");
    let pm = db.stats().pm;
    println!(
        "a pool of {} bytes carries {records} records of {VALUE_BYTES} bytes; {} bytes of it are index",
        options.pm_bytes, pm.index
    );
    assert!(pm.index > options.pm_bytes / 2, "it is full of something else: {pm:?}");
    for i in (0..records).step_by(97) {
        assert!(db.contains_key(&scattered(i)).unwrap());
    }
}

/// A small pool whose index leads to the SSD, and runs that are small for it.
fn small_pool_of_parted_items() -> Options {
    let pm_bytes = (2 << 20) * scale();
    let mut options = emulated(Options { engine: EngineKind::Split, pm_bytes, ..Options::default() });
    options.memory_budget = 64 << 20;
    options.pool_extent_bytes = 16 << 10;
    options.split.run_bytes = pm_bytes / 16;
    // No pool is smaller than four of its memtables, whatever the engine.
    options.slm.memtable_bytes = pm_bytes / 8;
    options
}

/// What lies in files of the directory that are called so: the space that they take.
fn space_of(dir: &std::path::Path, end: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files
        .filter(|path| path.to_str().unwrap().ends_with(end))
        .map(|p| p.metadata().unwrap().blocks() * 512)
        .sum()
}

/// Keys overwritten at random, with values between two lengths; the bytes of keys and values that live.
fn overwritten(db: &Db, keys: u64, (least, most): (u64, u64), writes: u64) -> u64 {
    let (mut rng, mut last) = (Rng::new(5), vec![None; keys as usize]);
    for i in 0..writes {
        let k = if i < keys { i } else { rng.below(keys) };
        let len = least + rng.below(most - least);
        let mut value = value(&mut rng, len as usize);
        value[..8].copy_from_slice(&i.to_le_bytes());
        db.put(&key(k), &value).unwrap_or_else(|e| panic!("write {i}: {e}"));
        last[k as usize] = Some((i, len));
    }
    assert_clean(db);
    for (k, wanted) in last.iter().enumerate() {
        let found = db.get(&key(k as u64)).unwrap().unwrap();
        let found = (u64::from_le_bytes(found[..8].try_into().unwrap()), found.len() as u64);
        assert_eq!(Some(found), *wanted);
    }
    last.iter().flatten().map(|(_, len)| key(0).len() as u64 + len).sum()
}

/// Large items of many times the pool, written over and over: their file takes what lives and little more
/// once it is tidied, which otherwise waits until many MiB of slots were freed.
#[test]
fn a_small_pool_carries_many_large_items() {
    let (dir, options) = (tempfile::tempdir().unwrap(), small_pool_of_parted_items());
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let live = overwritten(&db, 600 * scale(), (16 << 10, 64 << 10), 4000 * scale());
    let run = options.split.run_bytes;
    let at_rest = (db.stats().split, space_of(dir.path(), "SLOTS"));
    db.compact_range(..).unwrap();
    let (stats, space) = (db.stats().split, space_of(dir.path(), "SLOTS"));
    println!("{live} bytes live; at rest {at_rest:?}; compacted {stats:?} {space}");
    assert!(live > 8 * options.pm_bytes && stats.submitted >= 4000 * scale(), "{live} bytes, {stats:?}");
    assert!(stats.file_bytes <= live * 13 / 10 + run && space <= live * 13 / 10 + run, "{space}: {stats:?}");
    assert_clean(&db);
}

/// Small items of several times the pool, migrated and written over and over: the same of their tables.
#[test]
fn a_small_pool_carries_many_small_items() {
    let (dir, options) = (tempfile::tempdir().unwrap(), small_pool_of_parted_items());
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let live = overwritten(&db, 10_000 * scale(), (500, 1500), 60_000 * scale());
    let run = options.split.run_bytes;
    let (stats, space) = (db.stats(), space_of(dir.path(), ".sst"));
    println!("{live} bytes live; {space} of tables, {:?} {:?}", stats.ssd, stats.split);
    assert!(live > 4 * options.pm_bytes && stats.split.migrated > 20_000 * scale(), "{:?}", stats.split);
    assert!(stats.ssd.table_bytes <= live * 13 / 10 + run, "{live} live: {:?}", stats.ssd);
    assert!(space <= live * 13 / 10 + run, "{live} live: {space}");
    assert_clean(&db);
}

#[test]
fn ten_thousand_iterators_and_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = emulated(Options::default());
    options.slm.memtable_bytes = 64 << 10;
    options.slm.table_bytes = 64 << 10;
    let db = Db::open(dir.path(), options).unwrap();
    let put = |i: u64| db.put(&key(i % 500), &i.to_le_bytes().repeat(10)).unwrap();
    (0..500).for_each(put);
    let mut held: Vec<(u64, Snapshot, terrace::DbIter)> = Vec::new();
    for i in 500..10_500 {
        put(i);
        let snapshot = db.snapshot();
        let mut iter = snapshot.range(key(i % 500)..).unwrap();
        assert_eq!(iter.next().unwrap().unwrap().0, key(i % 500));
        held.push((i, snapshot, iter));
    }
    db.flush().unwrap();
    for (i, snapshot, iter) in &mut held {
        let found = snapshot.get(&key(*i % 500)).unwrap().unwrap();
        assert_eq!(found[..8], i.to_le_bytes());
        if *i % 500 < 499 {
            let (next, found) = iter.next().unwrap().unwrap();
            assert_eq!(next, key((*i + 1) % 500));
            assert_eq!(found[..8], (*i - 499).to_le_bytes());
        }
    }
    assert_eq!(db.stats().counts.snapshots, 10_000);
    drop(held);
    db.compact_range(..).unwrap();
    assert_clean(&db);
    let stats = db.stats();
    let entries = stats.ssd.table_entries + stats.lists.entries;
    assert_eq!((stats.counts.snapshots, entries, stats.pm.chains), (0, 500, 0));
}

mod space_behind_a_snapshot_is_reclaimed {
    use super::behind_a_snapshot;

    crate::harness::test_each_engine!(behind_a_snapshot);
}

/// What lies between a held snapshot and now is nobody's, and goes.
fn behind_a_snapshot(engine: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = emulated(Options { engine, ..Options::default() });
    options.lsm.memtable_bytes = 1 << 20;
    options.lsm.table_bytes = 1 << 20;
    options.lsm.base_level_bytes = 4 << 20;
    options.lab.levels = options.lsm.clone();
    (options.wip.memtable_bytes, options.wip.most_memtable_bytes) = (64 << 10, 1 << 20);
    (options.wip.bucket_bytes, options.wip.log_bytes) = (4 << 20, 4 << 20);
    options.slm.memtable_bytes = 1 << 20;
    options.slm.table_bytes = 1 << 20;
    let db = Db::open(dir.path(), options).unwrap();
    let (records, mut rng) = (8000 * scale(), Rng::new(4));
    let data = records * VALUE_BYTES as u64;
    (0..records).for_each(|i| db.put(&key(i), &value(&mut rng, VALUE_BYTES)).unwrap());
    let snapshot = db.snapshot();
    let first = snapshot.get(&key(7)).unwrap().unwrap();
    let (mut most_disk, mut most_pool) = (0, 0);
    for i in 0..records * 10 {
        db.put(&key(rng.below(records)), &value(&mut rng, VALUE_BYTES)).unwrap();
        if i.is_multiple_of(500) {
            let stats = db.stats();
            most_disk = most_disk.max(stats.ssd.table_bytes);
            most_pool = most_pool.max(stats.pm.used.saturating_sub(stats.pm.memtables));
        }
    }
    let held = db.stats();
    println!("{data} bytes of data: at most {most_disk} in tables, {most_pool} in the pool beside memtables");
    assert_eq!(snapshot.get(&key(7)).unwrap().unwrap(), first);
    // A bucket may hold three times as much as it should, and a merge of it as much again, before writers wait for
    // that; levels behind on merges hold little less.
    assert!(most_disk < 8 * data, "{most_disk} bytes of tables for {data}");
    assert_eq!(snapshot.entries().unwrap().count() as u64, records);
    drop(snapshot);
    db.compact_range(..).unwrap();
    assert_clean(&db);
    let after = db.stats();
    assert!(after.ssd.table_bytes < data * 5 / 4, "{} after {}", after.ssd.table_bytes, held.ssd.table_bytes);
    assert!(after.lists.bytes < data * 2, "{:?} after {:?}", after.lists, held.lists);
    assert_eq!(after.pm.chains, 0);
}
