//! Space of the engine that parts items by size: what it takes beside what lives, and what it reads at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, EngineKind};
use terrace_disk::Fs;

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
