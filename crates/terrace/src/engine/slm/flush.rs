//! Flushing a memtable: to a table, into the index, out of PM.
//!
//! Two threads share the work (SLM-DB, section 3.2): one writes tables, the other puts the keys of each
//! finished table into the index. Newest versions always go, older ones only where a snapshot needs
//! them. A tombstone removes its key from the index; it is written to the table, too, if the index held
//! the key, because whoever rebuilds the index from tables must not bring an older version back.
//!
//! The memtable stays linked until the manifest says that everything in it is in tables, so a flush that
//! was cut short is simply done again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use terrace_base::Result;
use terrace_index::OrderedIndex;
use terrace_table::Kind;

use super::Slm;
use super::chain::Version;
use super::jobs::{JOB_ROOTS, JobRun};
use super::memtable::MemTable;
use super::moves::CHUNK_KEYS;
use super::output::{Finished, Outputs};
use crate::db::snapshots::is_needed;
use crate::manifest::{Edit, JobKind};

/// Entries after which others hear how far a flush has come.
const SEEN_AT_ONCE: u64 = 64;

/// The right to flush. Whoever waits for room is told when it is given back, however that comes about.
pub(super) struct Flushing<'a> {
    slm: &'a Slm,
    lock: Option<MutexGuard<'a, ()>>,
}

impl<'a> Flushing<'a> {
    /// Waits for whoever has it.
    pub fn claim(slm: &'a Slm) -> Self {
        Flushing { slm, lock: Some(slm.flushing.lock()) }
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        // In this order: who is woken looks whether the lock is free.
        self.lock = None;
        self.slm.room.notify();
    }
}

/// Flushes immutable memtables, oldest first, until there is none. One caller works, others wait.
pub(super) fn run(slm: &Slm) -> Result<()> {
    let outcome = run_alone(slm);
    if outcome.is_ok() {
        slm.spawn_compaction();
    }
    outcome
}

fn run_alone(slm: &Slm) -> Result<()> {
    let _alone = Flushing::claim(slm);
    let mut outcome = Ok(());
    while let Some(memtable) = slm.mem.load().oldest_immutable().cloned() {
        outcome = slm.core.health.check().and_then(|()| flush(slm, &memtable));
        if let Err(e) = &outcome {
            slm.core.counters.background_errors.add(1);
            slm.core.health.fail(e.clone());
            break;
        }
        slm.core.health.recover();
        slm.room.notify();
    }
    outcome
}

fn flush(slm: &Slm, memtable: &Arc<MemTable>) -> Result<()> {
    let clock = &slm.core.env.clock;
    memtable.flush.begin(clock.now());
    // Listed after everything in the memtable became visible: a later snapshot needs nothing older.
    let held = slm.core.snapshots.list();
    let job = slm.start_job(JOB_ROOTS[0], JobKind::Flush, Vec::new())?;
    let flushed = Edit::FlushedSeq(memtable.list().max_seq());
    let id = job.id;
    let bytes = run_job(
        job,
        |sink| write_tables(slm, id, memtable, &held, sink),
        |job, finished| insert(job, finished, &held, &memtable.flush.indexed),
        |_| log_edit(slm, memtable).into_iter().chain([flushed]).collect(),
    )?;
    slm.core.counters.flushes.add(1);
    slm.core.counters.flush_bytes.add(bytes);
    slm.flush_pace.note(memtable.flush.seconds(clock.now()), memtable.list().entries());
    slm.forget(memtable)
}

/// Logs before the next memtable's first are no longer needed once this one is flushed.
fn log_edit(slm: &Slm, memtable: &Arc<MemTable>) -> Option<Edit> {
    slm.logs_writes().then(|| Edit::LogNumber(slm.first_log_after(memtable)))
}

/// Where finished tables go.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Finished);

/// Runs a job's two halves side by side: `write` makes tables, `index` takes each into the index.
/// Whatever fails, the job ends with true counts.
pub(super) fn run_job<'a>(
    mut job: JobRun<'a>,
    write: impl FnOnce(Sink<'_>) -> Result<u64> + Send,
    mut index: impl FnMut(&mut JobRun<'a>, &Finished) -> Result<()> + Send,
    edits: impl FnOnce(&Slm) -> Vec<Edit>,
) -> Result<u64> {
    let slm = job.slm();
    let (send, receive) = crossbeam_channel::unbounded::<Finished>();
    let written: Mutex<Option<Result<u64>>> = Mutex::new(None);
    let indexed: Mutex<Result<()>> = Mutex::new(Ok(()));
    let (mut send, mut write) = (Some(send), Some(write));
    slm.core.env.executor.join(
        &mut || {
            if let (Some(send), Some(write)) = (send.take(), write.take()) {
                // The receiver lives until this half is done.
                *written.lock() = Some(write(&mut |finished| {
                    let _ = send.send(finished);
                }));
            }
        },
        &mut || {
            for finished in &receive {
                job.owns(&finished);
                let mut outcome = indexed.lock();
                if outcome.is_ok() {
                    *outcome = index(&mut job, &finished);
                }
            }
        },
    );
    let written = written.into_inner().unwrap_or(Ok(0));
    match indexed.into_inner().and(written) {
        Ok(bytes) => job.finish(|| edits(slm)).map(|()| bytes),
        Err(e) => {
            // The cause matters more than a failure to note it; reopening settles the job as well.
            let _ = job.give_up();
            Err(e)
        }
    }
}

fn write_tables(slm: &Slm, job: u64, memtable: &MemTable, held: &[u64], sink: Sink<'_>) -> Result<u64> {
    let mut outputs = Outputs::new(slm, job);
    let mut cursor = memtable.list().cursor();
    cursor.seek_first()?;
    let mut finish = |finished: Finished| {
        memtable.flush.written.fetch_add(finished.len(), Ordering::Relaxed);
        sink(finished);
    };
    let (mut key, mut newer): (Vec<u8>, Option<u64>) = (Vec::new(), None);
    let mut seen = 0;
    while cursor.valid() {
        if newer.is_none() || cursor.key() != key {
            key.clear();
            key.extend_from_slice(cursor.key());
            newer = None;
        }
        let seq = cursor.seq();
        let wanted = newer.is_none_or(|newer| is_needed(held, seq, newer));
        let kind = Kind::from_u8(cursor.kind());
        if wanted
            && let Some(kind) = kind
            && keep(slm, &key, kind, held)?
        {
            outputs.add(&key, seq, kind, cursor.value()?, None)?.into_iter().for_each(&mut finish);
        }
        newer = Some(seq);
        cursor.next()?;
        seen += 1;
        if seen % SEEN_AT_ONCE == 0 {
            memtable.flush.seen.store(seen, Ordering::Relaxed);
        }
    }
    outputs.finish()?.into_iter().for_each(finish);
    Ok(outputs.bytes)
}

/// A tombstone over nothing in the index hides nothing in any table either, unless a snapshot keeps an
/// older version beside it.
fn keep(slm: &Slm, key: &[u8], kind: Kind, held: &[u64]) -> Result<bool> {
    Ok(kind == Kind::Put || !held.is_empty() || slm.index.get(key)?.is_some())
}

fn insert(job: &mut JobRun<'_>, finished: &Finished, held: &[u64], indexed: &AtomicU64) -> Result<()> {
    let mut chunk: Vec<(Vec<u8>, Vec<Version>)> = Vec::with_capacity(CHUNK_KEYS);
    let mut apply = |chunk: &mut Vec<(Vec<u8>, Vec<Version>)>| {
        job.insert(chunk, held)?;
        indexed.fetch_add(chunk.iter().map(|(_, versions)| versions.len() as u64).sum(), Ordering::Relaxed);
        chunk.clear();
        Ok(())
    };
    for placed in finished.entries() {
        let position = (placed.kind == Kind::Put).then_some(placed.position);
        let version = Version { seq: placed.seq, exact: true, position };
        match chunk.last_mut() {
            Some((key, versions)) if key == placed.key => versions.push(version),
            _ => {
                if chunk.len() == CHUNK_KEYS {
                    apply(&mut chunk)?;
                }
                chunk.push((placed.key.to_vec(), vec![version]));
            }
        }
    }
    apply(&mut chunk)
}
