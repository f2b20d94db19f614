//! Situations that only a test inside the crate can bring about.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Fs, RealFs};
use terrace_index::{PointIndex, Record};
use terrace_log::PmLog;
use terrace_pmem::{Pool, PoolOptions, Profile};
use terrace_sim::{PmOptions, World, WorldOptions};

use super::open::open_slm;
use super::walk::DELETED_PASSED;
use super::{JOB_ROOTS, Slm};
use crate::batch::WriteBatch;
use crate::core::Core;
use crate::core::engine::{Direction, Engine};
use crate::core::request::{Group, Request};
use crate::env::{Env, PmSpace, RealPm};
use crate::located::CHAIN_KIND;
use crate::manifest::JobKind;
use crate::options::{Options, PoolChoice};

/// Bytes before a log's own in the pool (`docs/formats/log.md`).
const EXTENT_HEADER_BYTES: u64 = 64;

fn options() -> Options {
    let profile = Profile::parse("dram").unwrap();
    let pool = PoolChoice::Emulated { path: None, profile };
    let mut options = Options { pool, pm_bytes: 8 << 20, pool_extent_bytes: 4096, ..Options::default() };
    options.slm.memtable_bytes = 64 << 10;
    options
}

fn open(dir: &Path) -> Arc<Slm> {
    open_with(dir, options())
}

fn open_with(dir: &Path, options: Options) -> Arc<Slm> {
    let env = Env {
        fs: Arc::new(RealFs),
        pm: Arc::new(RealPm::with_copies()),
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: None,
    };
    let core = Core::new(dir.to_path_buf(), options, env).unwrap();
    let (slm, last) = open_slm(core).unwrap();
    slm.core.snapshots.advance(last);
    slm
}

fn write(slm: &Slm, batch: WriteBatch) {
    let request = Request { batch, alone: false, sync: false };
    let first_seq = slm.core.snapshots.visible() + 1;
    let last_seq = first_seq + request.batch.len() as u64 - 1;
    slm.apply(Group { requests: &[&request], first_seq, sync: false }).unwrap();
    slm.core.snapshots.advance(last_seq);
}

/// Readers and the log took a record of unknown kind for a deletion, and flushes and repairs left it out.
#[test]
fn a_record_of_no_kind_is_damage_to_everybody() {
    everybody_refuses(8, ErrorKind::Corruption, "kind 8");
}

#[test]
fn a_record_of_a_later_version_is_refused_by_everybody() {
    everybody_refuses(2, ErrorKind::InvalidFormat, "a deletion of a range");
    everybody_refuses(7, ErrorKind::InvalidFormat, "an expiry or a keyspace");
}

fn everybody_refuses(kind: u8, why: ErrorKind, words: &str) {
    let dir = tempfile::tempdir().unwrap();
    let slm = open(dir.path());
    let seq = slm.core.snapshots.visible() + 1;
    let record = Record { key: b"key", seq, kind, value: b"value", batch_first: seq, batch_len: 1 };
    slm.mem.load().active().list().put_group(&[record]).unwrap();
    slm.core.snapshots.advance(seq);
    let walk = |direction| {
        let mut walk = slm.clone().walk(seq, direction)?;
        walk.seek(Bound::Unbounded)?;
        walk.next().map(drop)
    };
    let asked = [
        ("get", slm.get(b"key", None).map(drop)),
        ("contains", slm.contains(b"key").map(drop)),
        ("a walk", walk(Direction::Forward)),
        ("a walk backward", walk(Direction::Backward)),
        ("a check", slm.check().and_then(|report| damaged(&report.problems))),
        ("a flush", slm.rotate().and_then(|()| slm.wait_until_flushed())),
        ("a repair", (0..2).try_for_each(|slot| super::repair::read_memtable(&slm.pool, slot).map(drop))),
    ];
    for (who, told) in asked {
        let told = told.expect_err(who);
        // A failure in the background stops writing.
        assert!(told.kind() == why || told.kind() == ErrorKind::Poisoned, "{who}: {told}");
        assert!(told.to_string().contains(words), "{who}: {told}");
    }
}

/// The error of a check that has found `problems`: damage.
fn damaged(problems: &[String]) -> Result<()> {
    match problems {
        [] => Ok(()),
        problems => Err(Error::corruption(Path::new("pool"), 0, "no problems", problems.join("; "))),
    }
}

fn put_and_flush(slm: &Slm, key: &[u8], value: &[u8]) {
    let mut batch = WriteBatch::new();
    batch.put(key, value);
    write(slm, batch);
    slm.rotate().unwrap();
    slm.wait_until_flushed().unwrap();
}

/// A copy of the directory as if the process were killed now.
fn killed(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

fn assert_clean(slm: &Slm) {
    let report = slm.check().unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// A job that collapsed a chain has not ended when a flush makes another chain of the same key in the same
/// slot: the word is the one that the job had found, and the job's effect on the counts must still be known.
#[test]
fn counts_are_true_after_a_kill_although_a_word_has_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let slm = open(dir.path());
    put_and_flush(&slm, b"key", b"first");
    let held = slm.core.snapshots.hold();
    put_and_flush(&slm, b"key", b"second");
    drop(held);
    let before = slm.located.index().get(b"key").unwrap();

    let mut job = slm.located.start_job(JOB_ROOTS.collapse, JobKind::Flush, Vec::new()).unwrap();
    job.collapse(&[b"key".to_vec()]).unwrap();
    assert_ne!(slm.located.index().get(b"key").unwrap(), before, "the chain is gone");
    slm.located.drain();
    let held = slm.core.snapshots.hold();
    put_and_flush(&slm, b"key", b"third");
    assert_eq!(slm.located.index().get(b"key").unwrap(), before, "another chain has the slot");

    let copy = killed(dir.path());
    let survivor = open(copy.path());
    while survivor.core.env.executor.help() {}
    assert_clean(&survivor);
    survivor.close().unwrap();

    job.finish(Vec::new).unwrap();
    drop(held);
    assert_clean(&slm);
    slm.close().unwrap();
}

/// The remains of a kill are searched for while jobs run; a record that one of them is writing to its log is
/// no torn end to be removed.
#[test]
fn marking_leaves_the_logs_of_running_jobs_alone() {
    let dir = tempfile::tempdir().unwrap();
    let slm = open(dir.path());
    let run = slm.located.start_job(JOB_ROOTS.compactions[0], JobKind::Compaction, Vec::new()).unwrap();
    let head = slm.pool.root(JOB_ROOTS.compactions[0]).unwrap().unwrap();
    let log = PmLog::open(&slm.pool, head).unwrap();
    let last = head + EXTENT_HEADER_BYTES + log.len() - 1;
    // SAFETY: nobody else uses the log, whose only record is there.
    let byte = unsafe { slm.pool.bytes(last, 1).unwrap()[0] };
    slm.pool.write(last, &[!byte]);
    let mut marks = slm.pool.marks();
    let _kept = slm.mark(&mut marks).unwrap();
    slm.located.mark_job_logs(&mut marks).unwrap();
    assert!(slm.pool.check(&marks).is_empty());
    slm.pool.write(last, &[byte]);
    assert_eq!(log.check(), Vec::<String>::new());
    run.give_up(false).unwrap();
    assert_clean(&slm);
}

/// A consumer that keeps taking from the head of a queue does not pass all the entries taken before.
#[test]
fn deletions_that_a_walk_passes_are_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.slm.memtable_bytes = 256 << 10;
    let slm = open_with(dir.path(), options);
    let mut batch = WriteBatch::new();
    (0..DELETED_PASSED).for_each(|i| batch.delete(format!("{i:05}").as_bytes()));
    write(&slm, batch);
    let flushes = || slm.core.counters.flushes.get();
    let walk = || {
        let mut walk = slm.clone().walk(slm.core.snapshots.visible(), Direction::Forward).unwrap();
        walk.seek(Bound::Unbounded).unwrap();
        walk.next().unwrap().is_none()
    };
    assert!(walk() && flushes() == 0);
    for key in [b"a", b"b"] {
        let mut batch = WriteBatch::new();
        batch.delete(key);
        write(&slm, batch);
    }
    slm.wait_until_flushed().unwrap();
    assert!(walk() && flushes() == 1, "{} flushes", flushes());
    assert_eq!(slm.mem.load().active().list().entries(), 2);
    assert_clean(&slm);
}

/// Nothing is ever visible of a group that is linked in part: no later group is accepted that would show it.
#[test]
fn a_group_that_is_linked_in_part_ends_writing() {
    let dir = tempfile::tempdir().unwrap();
    let slm = open(dir.path());
    put_and_flush(&slm, b"b", b"old");
    let first_seq = slm.core.snapshots.visible() + 1;
    let in_the_way =
        Record { key: b"b", seq: first_seq + 1, kind: 1, value: b"", batch_first: 1, batch_len: 1 };
    slm.mem.load().active().list().put_group(&[in_the_way]).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(b"a", b"half");
    batch.put(b"b", b"half");
    let apply = |batch: WriteBatch, first_seq| {
        let request = Request { batch, alone: false, sync: false };
        slm.apply(Group { requests: &[&request], first_seq, sync: false })
    };
    assert_eq!(apply(batch, first_seq).unwrap_err().kind(), ErrorKind::Poisoned);
    let mut later = WriteBatch::new();
    later.put(b"c", b"later");
    assert_eq!(apply(later, first_seq + 2).unwrap_err().kind(), ErrorKind::Poisoned);
    let value = |key| slm.get(key, Some(slm.core.snapshots.visible())).unwrap();
    assert_eq!((value(b"a"), value(b"b").as_deref()), (None, Some(&b"old"[..])));

    // What the process leaves: half a batch, which counts as none.
    let copy = killed(dir.path());
    let survivor = open(copy.path());
    assert_eq!(survivor.get(b"a", None).unwrap(), None);
}

/// A chain is in the pool before it is durable, and before or after a word names it: the collapsing of chains
/// may find anything there, and takes its keys only as a hint.
#[test]
fn chains_that_are_none_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let slm = open(dir.path());
    put_and_flush(&slm, b"key", b"first");
    let held = slm.core.snapshots.hold();
    put_and_flush(&slm, b"key", b"second");
    let word = slm.located.index().get(b"key").unwrap();
    let nothing_names: Vec<u64> =
        [&[0u8; 64][..], &[0xff; 64], b"\x01\0\0\0\xff\xff\xff\0\xff\xff\0\0", &[7; 200]]
            .iter()
            .map(|bytes| {
                let slot = slm.pool.reserve(CHAIN_KIND, bytes.len() as u64).unwrap();
                slm.pool.copy_flush(slot.offset, bytes);
                slm.pool.activate(&slot);
                slot.offset
            })
            .collect();
    slm.located.collapse_chains().unwrap();
    assert_eq!(slm.located.index().get(b"key").unwrap(), word, "the chain that a snapshot needs stays");
    drop(held);
    slm.located.collapse_chains().unwrap();
    assert_ne!(slm.located.index().get(b"key").unwrap(), word);
    assert_eq!(slm.get(b"key", None).unwrap().as_deref(), Some(&b"second"[..]));
    nothing_names.into_iter().for_each(|offset| slm.pool.free(offset, CHAIN_KIND).unwrap());
    assert_clean(&slm);
}

/// A simulated medium with one pool. A file stands for its existence.
#[derive(Debug)]
struct OnePool(World);

impl OnePool {
    fn options(&self, options: &PoolOptions) -> PoolOptions {
        PoolOptions { boot_id: Some(self.0.boot_id().into()), ..options.clone() }
    }
}

impl PmSpace for OnePool {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let pool = Pool::recreate_on(self.0.media(), path, &self.options(options))?;
        self.0.fs().create(path)?.sync()?;
        Ok(pool)
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        Pool::open_on(self.0.media(), path, &self.options(options))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.0.fs().exists(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if self.exists(path)? { self.0.fs().remove(path) } else { Ok(()) }
    }
}

fn open_on(world: &World) -> Arc<Slm> {
    let env = Env {
        fs: Arc::new(world.fs()),
        pm: Arc::new(OnePool(world.clone())),
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: None,
    };
    let mut options = Options { pool_extent_bytes: 4096, ..Options::default() };
    options.slm.memtable_bytes = 16 << 10;
    let core = Core::new(Path::new("/").into(), options, env).unwrap();
    let (slm, last) = open_slm(core).unwrap();
    slm.core.snapshots.advance(last);
    slm
}

fn put(slm: &Slm, key: &[u8], bytes: usize) {
    let mut batch = WriteBatch::new();
    batch.put(key, &vec![7; bytes]);
    write(slm, batch);
}

/// A reader is giving back a memtable from before a kill, extent by extent, while what the kill left is
/// reclaimed: no write meanwhile may get an extent that the reader has still to give back.
#[test]
fn what_a_reader_is_giving_back_is_nobody_elses_yet() {
    let pm = PmOptions { bytes: 64 << 10, capacity: 16 << 20, ..PmOptions::default() };
    let world = World::new(7, WorldOptions { pm });
    let slm = open_on(&world);
    // More than a memtable's initial size: it takes a second extent.
    put(&slm, b"long", 40_000);
    let world = world.kill();
    let slm = open_on(&world);
    let kept = slm.mem.load().active().list().clone();
    slm.rotate().unwrap();
    super::flush::run(&slm).unwrap();
    assert_eq!(slm.core.counters.flushes.get(), 1);
    let (jobs, lists) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (other, done, later, mut is_first) = (slm.clone(), jobs.clone(), lists.clone(), true);
    world.on_event(Box::new(move |_, _| {
        if std::mem::take(&mut is_first) {
            while other.core.env.executor.help() {
                done.fetch_add(1, Ordering::Relaxed);
            }
            for key in 10..60u8 {
                put(&other, &[key], 1500);
                later.lock().push(other.mem.load().active().list().clone());
            }
        }
    }));
    drop(kept);
    world.ignore_events();
    assert!(jobs.load(Ordering::Relaxed) > 0, "nothing was reclaimed meanwhile");
    assert_clean(&slm);
    (10..60u8).for_each(|key| assert!(slm.get(&[key], None).unwrap().is_some(), "{key}"));
    lists.lock().clear();
    assert_clean(&slm);
    slm.close().unwrap();
}
