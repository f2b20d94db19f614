//! Situations that only a test inside the crate can bring about.

mod figures;
mod ingests;
mod operands;
mod repairs;
mod room;
mod telling;
mod walks;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::clock::ManualClock;
use terrace_base::exec::{Executor, Inline, Job, Lane};
use terrace_disk::Fs;
use terrace_pmem::Profile;
use terrace_sim::{PmOptions, World, WorldOptions};

use self::telling::{Hook, Telling};
use super::Wip;
use super::bucket::Bucket;
use super::change::BucketsEdit;
use super::open::{assemble, log_home};
use super::recover::Replaying;
use crate::background::Patience;
use crate::batch::WriteBatch;
use crate::commit_log::LOG_ROOTS;
use crate::core::Core;
use crate::core::engine::{Direction, Engine};
use crate::core::request::{Group, Request};
use crate::env::{Env, RealPm};
use crate::options::{EngineKind, LogPlace, Options, PoolChoice};

/// Jobs wait until a test runs them, which it does between reading a log's part and applying it to buckets.
#[derive(Debug, Default)]
struct Between(Inline);

impl Executor for Between {
    fn spawn_in(&self, lane: Lane, job: Job) {
        self.0.spawn_in(lane, job);
    }

    fn help(&self) -> bool {
        self.0.help()
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        while self.0.help() {}
        first();
        second();
    }
}

fn world() -> World {
    World::new(7, WorldOptions { pm: PmOptions::default() })
}

fn options() -> Options {
    let profile = Profile::parse("dram").unwrap();
    let pool = PoolChoice::Emulated { path: None, profile };
    let mut options =
        Options { engine: EngineKind::Wip, pool, memory_budget: 256 << 20, ..Options::default() };
    options.wip.log = LogPlace::Ssd;
    options
}

fn open_on(fs: Arc<dyn Fs>, options: Options) -> Arc<Wip> {
    open_by(Replaying::Known, fs, options)
}

fn open_by(replaying: Replaying, fs: Arc<dyn Fs>, options: Options) -> Arc<Wip> {
    let (pm, clock) = (Arc::new(RealPm::with_copies()), Arc::new(ManualClock::default()));
    let env = Env { fs, pm, executor: Arc::new(Between::default()), clock, hash_seed: None };
    let core = Core::new(Path::new("/").into(), options, env).unwrap();
    let opened = log_home(&core).open(&core).unwrap();
    let wip = assemble(core, opened, replaying, None, &mut Err).unwrap();
    wip.core.snapshots.advance(wip.last_seq());
    wip
}

fn open(world: &World) -> Arc<Wip> {
    open_on(Arc::new(world.fs()), options())
}

/// A put that nobody sees yet; returns its number.
fn insert(wip: &Wip, key: &[u8], value: &[u8]) -> u64 {
    let mut batch = WriteBatch::new();
    batch.put(key, value);
    let request = Request { batch, alone: false, sync: false };
    let first_seq = wip.core.snapshots.visible() + 1;
    wip.apply(Group { requests: &[&request], first_seq, sync: false }).unwrap();
    first_seq
}

fn put(wip: &Wip, key: &[u8], value: &[u8]) {
    let seq = insert(wip, key, value);
    wip.core.snapshots.advance(seq);
}

fn delete(wip: &Wip, key: &[u8]) {
    let mut batch = WriteBatch::new();
    batch.delete(key);
    let request = Request { batch, alone: false, sync: false };
    let first_seq = wip.core.snapshots.visible() + 1;
    wip.apply(Group { requests: &[&request], first_seq, sync: false }).unwrap();
    wip.core.snapshots.advance(first_seq);
}

fn flush(wip: &Wip) {
    wip.rotate().unwrap();
    wip.wait_until_flushed().unwrap();
}

fn bucket(wip: &Wip, key: &[u8]) -> Arc<Bucket> {
    wip.buckets().find(key).clone()
}

fn split(wip: &Wip, at: &[u8]) {
    wip.split(&bucket(wip, at), BucketsEdit::default(), &[at.to_vec()]).unwrap();
}

fn join(wip: &Wip, left: &[u8], right: &[u8]) {
    let before = wip.buckets().len();
    wip.join(&bucket(wip, left), &bucket(wip, right)).unwrap();
    assert_eq!(wip.buckets().len(), before - 1);
}

/// Tombstones stay until they are visible. While the choice ignored that, a bucket full of them was merged
/// for ever.
#[test]
fn what_nobody_sees_yet_is_not_merged_again_and_again() {
    let world = world();
    let wip = open(&world);
    put(&wip, b"a", b"1");
    let mut batch = WriteBatch::new();
    batch.delete(b"a");
    let request = Request { batch, alone: false, sync: false };
    wip.apply(Group { requests: &[&request], first_seq: 2, sync: false }).unwrap();
    flush(&wip);
    let merges = || (0..10).take_while(|_| wip.compact_next().unwrap()).count();
    assert!(merges() < 10, "the tombstone stays, and is merged again");
    wip.core.snapshots.advance(2);
    assert!(merges() < 10);
    assert!(wip.buckets().at(0).readable.load().tables.is_empty(), "nothing needs it now");
}

/// Flushes made room during a replay, and compactions followed them: the next groups went into buckets that
/// had been split meanwhile.
#[test]
fn nothing_is_split_while_a_log_is_read_back() {
    let world = world();
    let wip = open(&world);
    let (keys, value) = (20_000u32, [7; 1000]);
    let key = |i: u32| (i * 7919 % keys).to_be_bytes();
    (0..keys).for_each(|i| put(&wip, &key(i), &value));
    let world = world.kill();
    let mut options = Options { memory_budget: 1 << 20, ..options() };
    options.wip.memtable_bytes = 64 << 10;
    options.wip.most_memtable_bytes = 64 << 10;
    options.wip.bucket_bytes = 1 << 20;
    let wip = open_on(Arc::new(world.fs()), options);
    let lost = (0..keys).filter(|i| wip.get(&key(*i), None).unwrap().is_none()).count();
    assert_eq!(lost, 0);
    while wip.core.env.executor.help() {}
    assert!(wip.buckets().len() > 1, "they are split afterwards");
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// A log's part whose sync began while it was written to, and which was left before the sync ended, counted
/// as durable to its end.
#[test]
fn what_is_logged_while_the_log_is_synced_beside_is_not_taken_for_durable() {
    let world = world();
    let (fs, hook) = Telling::new(&world);
    let wip = open_on(fs, options());
    split(&wip, b"m");
    put(&wip, b"a", b"flushed");
    wip.freeze(&[bucket(&wip, b"a")]);
    let writer = wip.clone();
    let write = move || {
        put(&writer, b"n", b"synced");
        writer.rotate_log().unwrap();
    };
    *hook.lock() = Some(("log", Box::new(write)));
    wip.wait_until_flushed().unwrap();
    assert!(hook.lock().is_none(), "the log was synced");
    wip.sync().unwrap();
    for seed in 0..8 {
        let wip = open(&world.crash(seed));
        assert!(wip.get(b"n", None).unwrap().is_some(), "seed {seed}");
    }
}

/// A flush of some memtables, begun while the log was reliable, did not notice when the log failed meanwhile:
/// a power cut then kept the flushed writes without earlier ones.
#[test]
fn a_flush_of_some_memtables_fails_if_the_log_does_meanwhile() {
    let world = world();
    let (fs, hook) = Telling::new(&world);
    let wip = open_on(fs, options());
    split(&wip, b"m");
    put(&wip, b"n", b"first");
    put(&wip, b"a", b"second");
    let failing = wip.clone();
    *hook.lock() = Some(("sst", Box::new(move || failing.log.distrust())));
    wip.freeze(&[bucket(&wip, b"a")]);
    // It fails, unless a join has closed the other memtable meanwhile.
    let _ = wip.wait_until_flushed();
    assert!(hook.lock().is_none(), "a table was made");
    for seed in 0..8 {
        let wip = open(&world.crash(seed));
        let has = |key: &[u8]| wip.get(key, None).unwrap().is_some();
        assert!(has(b"n") || !has(b"a"), "seed {seed}");
    }
    flush(&wip);
    put(&wip, b"z", b"third");
    assert!([b"a", b"n", b"z"].iter().all(|key| wip.get(&key[..], None).unwrap().is_some()));
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// A split or a join may close a memtable between a group's insertion and its becoming visible. A merge of the tables
/// then dropped versions that readers were still to see.
#[test]
fn a_merge_keeps_what_is_visible_until_the_next_group_is() {
    let world = world();
    let wip = open(&world);
    put(&wip, b"k", b"1");
    flush(&wip);
    let seq = insert(&wip, b"k", b"2");
    flush(&wip);
    wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert_eq!(wip.get(b"k", None).unwrap().as_deref(), Some(&b"1"[..]));
    wip.core.snapshots.advance(seq);
    assert_eq!(wip.get(b"k", None).unwrap().as_deref(), Some(&b"2"[..]));
}

/// A bucket that was joined, and split elsewhere, kept memtables of the other part for ever, and with them
/// their log.
#[test]
fn a_bucket_keeps_no_memtable_of_another_range() {
    let world = world();
    let wip = open(&world);
    split(&wip, b"m");
    put(&wip, b"a", b"1");
    join(&wip, b"a", b"n");
    split(&wip, b"t");
    flush(&wip);
    assert!(wip.memtables().iter().all(|memtable| memtable.is_empty()));
    assert!(wip.get(b"a", None).unwrap().is_some());
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// Of two joined buckets one may be flushed further than the other: its later log is replayed, though it is
/// in tables. A check took that for damage.
#[test]
fn what_a_joined_bucket_is_replayed_twice_is_no_damage() {
    let world = world();
    let wip = open(&world);
    split(&wip, b"m");
    put(&wip, b"a", b"1");
    put(&wip, b"n", b"1");
    put(&wip, b"n", b"2");
    wip.freeze(&[bucket(&wip, b"n")]);
    wip.wait_until_flushed().unwrap();
    join(&wip, b"a", b"n");
    let wip = open(&world.kill());
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
    assert_eq!(wip.get(b"n", None).unwrap().as_deref(), Some(&b"2"[..]));
}

/// A reader inside a bucket that was split kept everything that the bucket had held: long since flushed
/// memtables counted as active, and every write flushed its own memtable and waited.
#[test]
fn a_walk_keeps_no_bucket_that_was_replaced() {
    let world = world();
    let wip = open(&world);
    for key in [b"a", b"m", b"z"] {
        put(&wip, key, &[7; 100_000]);
    }
    let _snapshot = wip.core.snapshots.hold();
    let mut walk = wip.clone().walk(wip.core.snapshots.visible(), Direction::Forward).unwrap();
    walk.seek(Bound::Unbounded).unwrap();
    assert_eq!(walk.next().unwrap().unwrap().0, b"a"[..]);
    split(&wip, b"m");
    flush(&wip);
    assert!(wip.memory.held() < 100_000, "{} bytes are held", wip.memory.held());
    let rest: Vec<_> = std::iter::from_fn(|| walk.next().unwrap()).map(|(key, _)| key).collect();
    assert_eq!(rest, [&b"m"[..], b"z"]);
}

/// A writer that was throttled for a bucket that was split meanwhile went on waiting for it, until there was
/// no work anywhere.
#[test]
fn nobody_waits_for_a_bucket_that_was_replaced() {
    let world = world();
    let mut options = options();
    (options.wip.memtable_bytes, options.wip.bucket_bytes) = (1 << 10, 4 << 10);
    let wip = open_on(Arc::new(world.fs()), options);
    put(&wip, b"a", b"1");
    put(&wip, b"n", b"1");
    flush(&wip);
    let old = bucket(&wip, b"a");
    let (depth, excess) = wip.debt_of(&old);
    assert_eq!(depth, 1);
    assert!(excess > 0);
    wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
    split(&wip, b"zz");
    assert_eq!(wip.debt_of(&old), (0, 0));
}

/// While others wrote on, a flush continued until no memtable was left, theirs included.
#[test]
fn a_flush_ends_though_others_write_on() {
    fn write_on(wip: &Arc<Wip>, hook: &Arc<Mutex<Option<Hook>>>, left: u32) {
        let (writer, again) = (wip.clone(), hook.clone());
        let write = move || {
            put(&writer, &left.to_be_bytes(), b"theirs");
            writer.freeze_all();
            if left > 0 {
                write_on(&writer, &again, left - 1);
            }
        };
        *hook.lock() = Some(("sst", Box::new(write)));
    }
    let world = world();
    let (fs, hook) = Telling::new(&world);
    let wip = open_on(fs, options());
    put(&wip, b"k", b"asked for");
    write_on(&wip, &hook, 20);
    let memtable = bucket(&wip, b"k").readable.load().active().clone();
    wip.rotate().unwrap();
    wip.run_flushes(|| !wip.frozen.lock().iter().any(|other| Arc::ptr_eq(other, &memtable))).unwrap();
    assert!(hook.lock().is_some(), "what others write waits");
    hook.lock().take();
    flush(&wip);
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// Tombstones that were kept for a snapshot, with nothing else beside the newest versions, stayed when it was
/// released.
#[test]
fn tombstones_go_with_the_snapshot_that_kept_them() {
    let world = world();
    let wip = open(&world);
    put(&wip, b"a", b"1");
    let snapshot = wip.core.snapshots.hold();
    put(&wip, b"b", b"1");
    delete(&wip, b"b");
    flush(&wip);
    wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
    let tombstones = || -> u64 {
        let readable = bucket(&wip, b"b").readable.load_full();
        readable.tables.iter().map(|table| table.run.meta().deletes).sum()
    };
    assert_eq!(tombstones(), 1, "the snapshot is older");
    drop(snapshot);
    wip.released();
    while wip.core.env.executor.help() {}
    assert_eq!(tombstones(), 0);
}

/// A flush shows that a memtable is gone before it drops its logs. A writer that had waited for that found
/// eight logs, the most allowed, and nothing to flush, and was refused.
#[test]
fn logs_that_a_flush_has_yet_to_drop_refuse_no_write() {
    let (world, dir) = (world(), tempfile::tempdir().unwrap());
    let pool = PoolChoice::Emulated {
        path: Some(dir.path().join("pool")),
        profile: Profile::parse("dram").unwrap(),
    };
    let mut options = Options { pool, pm_bytes: 8 << 20, ..options() };
    options.wip.log = LogPlace::Pm;
    let wip = open_on(Arc::new(world.fs()), options);
    for dropped_meanwhile in [false, true] {
        for i in 0..LOG_ROOTS.len() as u8 {
            put(&wip, &[i], b"v");
            wip.rotate_log().unwrap();
        }
        wip.freeze_all();
        assert!(wip.put_into_tables(&wip.next_batch().unwrap().unwrap()).unwrap());
        if dropped_meanwhile {
            // The count when the write was just refused.
            let dropped = wip.log.dropped();
            wip.log.drop_old(&wip.manifest).unwrap();
            assert!(wip.free_log(dropped).unwrap() && !wip.free_log(wip.log.dropped()).unwrap());
        }
        put(&wip, b"k", b"v");
        flush(&wip);
    }
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}
