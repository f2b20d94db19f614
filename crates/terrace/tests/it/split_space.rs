//! Space of the engine that parts items by size: what it takes beside what lives, and what it reads at once.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, EngineKind, Options, SplitOptions, TableReads};
use terrace_base::rng::Rng;
use terrace_disk::Fs;
use terrace_pmem::Granularity;

use crate::harness::{Engine, Machine, Setup, assert_clean};

const SPLIT: Engine = Engine::of(EngineKind::Split);

/// Less than the boundary, with its key.
const SMALL: usize = 60;

const MIB: usize = 1 << 20;

fn key(i: u32) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

fn put(db: &Db, keys: impl Iterator<Item = u32>, version: u8) {
    keys.for_each(|i| db.put(&key(i), &[version; SMALL]).unwrap());
}

/// Has what waits in the background done.
fn rest(db: &Db) {
    assert_clean(db);
}

/// A rewriting that failed is tried again when what it failed of is over, also where there are no snapshots.
#[test]
fn a_rewriting_that_failed_is_tried_again() {
    let machine = Machine::new(&Setup::tiny("again", &SPLIT));
    let db = machine.open().unwrap();
    put(&db, 0..400, 0);
    rest(&db);
    machine.fs().set_capacity(Some(machine.fs().used_bytes()));
    for step in 0..40 {
        put(&db, (step * 10..(step + 1) * 10).filter(|i| i % 3 > 0), 1);
        rest(&db);
    }
    let before = db.stats();
    assert!(before.counts.background_errors > 10, "{:?}", before.counts);
    machine.fs().set_capacity(None);
    for step in 0..10 {
        put(&db, 400 + step * 10..410 + step * 10, 1);
        rest(&db);
    }
    let after = db.stats();
    let dead = after.ssd.table_entries - after.ssd.live_entries;
    assert!(dead * 5 <= after.ssd.table_entries, "{dead} of {} entries, {after:?}", after.ssd.table_entries);
}

/// Tables with something that one snapshot needs are not rewritten again and again while others come and go.
#[test]
fn short_snapshots_beside_a_long_one() {
    let machine = Machine::new(&Setup::tiny("short", &SPLIT));
    let mut options = machine.options();
    options.split.garbage_share = 0.9;
    let db = machine.open_with(options).unwrap();
    put(&db, 0..200, 0);
    rest(&db);
    put(&db, (0..200).step_by(3), 1);
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    let long = db.snapshot();
    let (over, begun) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            let mut short = db.snapshot();
            // So many at most: where one brings work the check below would wait for ever.
            for _ in 0..100_000 {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                short = db.snapshot();
            }
            drop(short);
        });
        begun.wait();
        put(&db, (0..200).filter(|i| i % 3 > 0), 2);
        for round in 3..8 {
            put(&db, (0..200).step_by(3), round);
            put(&db, 200..300, round);
            rest(&db);
        }
        over.store(true, Ordering::Relaxed);
    });
    let compactions = db.stats().counts.compactions;
    assert!(compactions < 16, "{compactions} compactions");
    assert_eq!(long.get(key(1)).unwrap().as_deref(), Some(&[0; SMALL][..]));
    drop(long);
    rest(&db);
}

/// Many threads on a pool that is full all the time: each write finds room, since records can move. A write was refused
/// where nothing of what was chosen to move for it was named any more.
#[test]
fn no_write_is_refused_while_records_can_move() {
    const THREADS: u64 = 8;
    for (pool, extent, run_bytes, keys, puts) in [
        (1 << 20, 4 << 10, 2048, 2800, 100),
        (4 << 20, 64 << 10, 2048, 4000, 1500),
        (4 << 20, 64 << 10, 64 << 10, 4000, 1500),
    ] {
        let machine = Machine::with_memory(&Setup::roomy(&SPLIT, Granularity::CacheLine), pool);
        let mut options = Options { pm_bytes: pool, pool_extent_bytes: extent, ..machine.options() };
        options.split.run_bytes = run_bytes;
        let db = machine.open_with(options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let db = &db;
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for i in 0..puts {
                        let value = vec![thread as u8; 100 + rng.below(3000) as usize];
                        let key = rng.below(keys).to_be_bytes();
                        let done = if rng.one_in(10) { db.delete(key) } else { db.put(key, &value) };
                        done.unwrap_or_else(|e| {
                            panic!("{i} of {thread}, {pool} with runs of {run_bytes}: {e}")
                        });
                    }
                });
            }
        });
        assert_clean(&db);
    }
}

/// One large item that is written over and over does not take room for many.
#[test]
fn a_large_item_takes_room_for_few() {
    let machine = Machine::new(&Setup::tiny("one", &SPLIT));
    let db = machine.open().unwrap();
    rest(&db);
    let most = (0..100u32).map(|i| {
        db.put(b"large", &vec![i as u8; MIB]).unwrap();
        db.stats().split.file_bytes
    });
    let most = most.max().unwrap();
    assert!(most <= 40 << 20, "{most} bytes for one of {MIB}");
}

/// Space of large items is given back although nothing small is written.
#[test]
fn large_items_alone_give_back_space() {
    let machine = Machine::new(&Setup::tiny("alone", &SPLIT));
    let db = machine.open().unwrap();
    (0..100).for_each(|i| db.put(&key(i), &vec![i as u8; MIB]).unwrap());
    rest(&db);
    (0..100).for_each(|i| db.delete(&key(i)).unwrap());
    rest(&db);
    let stats = db.stats().split;
    assert!(stats.file_bytes < 48 << 20, "{stats:?}");
}

/// A walk over large items reads so many at once as are worth it, and not sixteen.
#[test]
fn a_walk_reads_few_large_items_at_once() {
    let machine = Machine::new(&Setup::tiny("walk", &SPLIT));
    let db = machine.open().unwrap();
    (0..40).for_each(|i| db.put(&key(i), &vec![i as u8; MIB]).unwrap());
    let read = || db.stats().ssd.bytes_read;
    let (before, snapshot) = (read(), db.snapshot());
    let mut iter = snapshot.iter().unwrap();
    iter.next().unwrap().unwrap();
    let at_first = read() - before;
    assert!(at_first <= 3 * MIB as u64, "{at_first} bytes");
    let rest: Vec<_> = iter.map(|entry| entry.unwrap()).collect();
    assert!(
        (1..).zip(&rest).all(|(i, (found, value))| *found == key(i)[..] && value[..] == vec![i as u8; MIB])
    );
    assert_eq!(rest.len(), 39);
}

/// Large items are read before they are asked for, each once, and not more of them than two windows.
#[test]
fn a_walk_reads_a_window_ahead() {
    const ITEM: u64 = 64 << 10;
    const WINDOW: u64 = 4 << 20;
    let machine = Machine::new(&Setup::tiny("ahead", &SPLIT));
    let options = Options { memory_budget: 256 << 20, ..machine.options() };
    let db = machine.open_with(options).unwrap();
    // With its head an item takes 128 sectors.
    let value = |i: u32| vec![i as u8; ITEM as usize - 64];
    (0..400).for_each(|i| db.put(&key(i), &value(i)).unwrap());
    let before = db.stats();
    let mut most = 0;
    for (i, found) in (0..).zip(db.iter().unwrap()) {
        assert_eq!(found.unwrap(), (key(i).into(), value(i).into()));
        let now = db.stats();
        let left = now.ssd.bytes_read - before.ssd.bytes_read - u64::from(i + 1) * ITEM;
        let coming = now.dram.jobs - before.dram.jobs;
        assert!(left <= WINDOW && coming <= WINDOW, "{left} bytes left and {coming} coming at {i}");
        most = most.max(coming);
    }
    assert!(most > WINDOW / 2, "{most} bytes coming at most");
    assert_eq!(db.stats().dram.jobs, before.dram.jobs);
    assert_eq!(db.stats().ssd.bytes_read - before.ssd.bytes_read, 400 * ITEM);
    let mut iter = db.iter().unwrap();
    iter.next().unwrap().unwrap();
    let of_first = db.stats().ssd.bytes_read - before.ssd.bytes_read - 400 * ITEM;
    assert!(of_first <= 16 * ITEM, "{of_first} bytes for the first of a walk");
}

/// Whatever is written while a walk has a window ahead of it, it sees what its snapshot sees. Must catch an item
/// that was written into the place of one that is being read.
#[test]
fn a_window_ahead_sees_the_snapshot() {
    let machine = Machine::new(&Setup::tiny("window", &SPLIT));
    let options = Options { memory_budget: 256 << 20, ..machine.options() };
    let db = machine.open_with(options).unwrap();
    rest(&db);
    let value = |i: u32, version: u8| vec![version; 700 + i as usize];
    let mut state = 0;
    for round in 0..20 {
        (0..200).for_each(|i| db.put(&key(i), &value(i, state)).unwrap());
        rest(&db);
        let mut iter = db.iter().unwrap();
        for i in 0..200 {
            let found = iter.next().unwrap().unwrap();
            assert_eq!(found, (key(i).into(), value(i, state).into()), "{round}, {i}");
            // What is ahead is replaced, deleted, put back, and its space used again.
            for j in (i + 1..200).step_by(7) {
                db.put(&key(j), &value(j, state + 1)).unwrap();
                db.delete(&key(j)).unwrap();
                db.put(&key(j), &value(j, state + 2)).unwrap();
            }
        }
        assert!(iter.next().is_none());
        state += 3;
    }
    rest(&db);
}

/// A database with items of all sizes, and the sizes of their values.
struct Filled {
    machine: Machine,
    db: Db,
    sizes: BTreeMap<u32, usize>,
    rng: Rng,
}

/// What the tables of `Filled` may have at most, and what its slots may have in vain.
const RUN: u64 = 4 << 20;

/// Size of key and value from which on an item of `Filled` is large.
const BOUNDARY: usize = 4096;

impl Filled {
    fn new(name: &'static str) -> Filled {
        let machine = Machine::new(&Setup::tiny(name, &SPLIT));
        let mut options = Options { memory_budget: 64 << 20, ..machine.options() };
        options.split = SplitOptions {
            records_bytes: 1 << 20,
            run_bytes: RUN,
            leaf_entries: 64,
            ..SplitOptions::default()
        };
        let db = machine.open_with(options).unwrap();
        rest(&db);
        Filled { machine, db, sizes: BTreeMap::new(), rng: Rng::new(5) }
    }

    fn put(&mut self, i: u32) {
        // Most of the large ones take little more than a block, which wastes the most.
        let size = match self.rng.below(4) {
            0 => BOUNDARY as u64 + self.rng.below(2000),
            1 => BOUNDARY as u64 + self.rng.below(30_000),
            _ => 100 + self.rng.below(1500),
        };
        self.db.put(&key(i), &vec![i as u8; size as usize]).unwrap();
        self.sizes.insert(i, size as usize);
    }

    fn delete(&mut self, i: u32) {
        self.db.delete(&key(i)).unwrap();
        self.sizes.remove(&i);
    }

    /// The SSD has 1.3 times what lives there, and a run, at most.
    #[track_caller]
    fn is_within_bounds(&self, when: &str) {
        rest(&self.db);
        let stats = self.db.stats();
        let large = self.sizes.values().map(|size| size + 8).filter(|size| *size >= BOUNDARY).sum::<usize>();
        let live = large as u64 + stats.ssd.table_bytes - stats.split.dead_bytes;
        let (used, most) = (self.machine.fs().used_bytes(), live + live * 3 / 10 + RUN);
        println!("{when}: {used} bytes for {live}, {most} at most");
        assert!(used <= most, "{when}: {used} bytes for {live}, {:?} {:?}", stats.split, stats.ssd);
    }
}

/// Whatever is written over, deleted and migrated, the SSD has 1.3 times what lives and a run at most.
#[test]
fn space_stays_within_bounds() {
    const KEYS: u32 = 6000;
    let mut filled = Filled::new("bounds");
    for i in 0..KEYS {
        filled.put(i.wrapping_mul(0x9e37_79b1) % KEYS);
        if i % 2000 == 1999 {
            filled.is_within_bounds("filling");
        }
    }
    for step in 0..12_000 {
        let i = filled.rng.below(u64::from(KEYS)) as u32;
        if filled.rng.one_in(5) {
            filled.delete(i)
        } else {
            filled.put(i)
        }
        if step % 1500 == 1499 {
            filled.is_within_bounds("written over");
        }
    }
    // Every third stays, so that hardly two neighbours in the file do.
    for i in (0..KEYS).filter(|i| i % 3 > 0) {
        filled.delete(i);
        if i % 1000 == 999 {
            filled.is_within_bounds("deleted");
        }
    }
    filled.is_within_bounds("deleted");
    (0..KEYS).for_each(|i| filled.delete(i));
    filled.is_within_bounds("empty");
}

/// Large items that share their blocks with nothing are packed, and each has its own bytes afterwards; a snapshot and
/// a walk from before see what they saw.
#[test]
fn large_items_are_packed() {
    let machine = Machine::new(&Setup::tiny("packed", &SPLIT));
    let db = machine.open().unwrap();
    rest(&db);
    let value = |i: u32, version: u8| vec![version; 600 + i as usize];
    (0..300).for_each(|i| db.put(&key(i), &value(i, 1)).unwrap());
    let snapshot = db.snapshot();
    let mut iter = snapshot.iter().unwrap();
    iter.next().unwrap().unwrap();
    (0..300).step_by(4).for_each(|i| db.put(&key(i), &value(i, 2)).unwrap());
    db.compact_range(..).unwrap();
    let split = db.stats().split;
    (300..600).for_each(|i| db.put(&key(i), &value(i - 300, 3)).unwrap());
    for (i, found) in (1..).zip(iter) {
        assert_eq!(found.unwrap(), (key(i).into(), value(i, 1).into()));
    }
    drop(snapshot);
    db.compact_range(..).unwrap();
    let then = db.stats().split;
    assert!(split.held_bytes > split.item_bytes + split.item_bytes / 10, "a snapshot keeps some: {split:?}");
    assert!(then.held_bytes <= then.item_bytes + then.item_bytes / 12 + 4096, "{then:?}");
    assert_eq!((then.items, then.retired_bytes), (600, 0));
    for i in 0..600 {
        let expected = if i >= 300 { value(i - 300, 3) } else { value(i, if i % 4 == 0 { 2 } else { 1 }) };
        assert_eq!(db.get(&key(i)).unwrap().as_deref(), Some(&expected[..]));
    }
    rest(&db);
    let before = db.stats().split.submitted;
    db.compact_range(..).unwrap();
    assert_eq!(db.stats().split.submitted, before, "nothing is left to be packed");
}

/// Bytes that are read for every entry.
fn read_by_walks(db: &Db, keys: u32) -> u64 {
    let before = db.stats().ssd.bytes_read;
    for from in (0..keys).step_by(20) {
        let range = db.range(key(from)..key(from + 20)).unwrap();
        let found: Vec<_> = range.map(|entry| entry.unwrap()).collect();
        assert_eq!(found.len(), 20);
    }
    db.stats().ssd.bytes_read - before
}

/// Ranges that find their keys scattered over many tables have these rewritten, whether anything in them is dead or
/// not; afterwards they read less, and that ends.
#[test]
fn ranges_gather_what_lies_scattered() {
    const KEYS: u32 = 600;
    let machine = Machine::new(&Setup::tiny("scattered", &SPLIT));
    let mut options = machine.options();
    (options.memory_budget, options.table_reads) = (1024, TableReads::Calls);
    (options.split.garbage_share, options.split.max_merge_runs) = (0.99, 8);
    (options.split.sequentiality_keys, options.split.sequentiality_runs) = (10, 2);
    let db = machine.open_with(options).unwrap();
    rest(&db);
    for first in 0..12 {
        put(&db, (first..KEYS).step_by(12), 1);
        rest(&db);
    }
    assert_eq!(db.stats().counts.compactions, 0);
    let at_first = read_by_walks(&db, KEYS);
    let mut rounds = 0;
    loop {
        rest(&db);
        let before = db.stats().counts.compactions;
        let read = read_by_walks(&db, KEYS);
        rest(&db);
        if db.stats().counts.compactions == before {
            assert!(read * 3 < at_first * 2, "{read} bytes after {rounds} rounds, and {at_first} before");
            break;
        }
        rounds += 1;
        assert!(rounds < 40, "tables are rewritten without an end");
    }
    assert!(rounds > 0);
}

/// A table that a killed migration has made, and no group of edits names, goes; and its number is not taken for one
/// that shows an older manifest once the database was closed.
#[test]
fn what_a_killed_migration_has_made_goes() {
    let machine = Machine::new(&Setup::tiny("left", &SPLIT));
    let db = machine.open().unwrap();
    put(&db, 0..400, 0);
    rest(&db);
    put(&db, 400..410, 0);
    let killed = machine.kill();
    std::mem::forget(db);
    let left = killed.dir().join("099999.sst");
    killed.fs().create(&left).unwrap();
    let db = killed.open().unwrap();
    rest(&db);
    assert!(!killed.fs().exists(&left).unwrap());
    db.close().unwrap();
    drop(db);
    let left = killed.dir().join("099998.sst");
    killed.fs().create(&left).unwrap();
    rest(&killed.open().unwrap());
    assert!(!killed.fs().exists(&left).unwrap());
}
