//! Flushing a memtable out of PM: to a table and into the index.
//!
//! Two threads share the work (SLM-DB, section 3.2): one writes tables, the other puts the keys of each
//! finished table into the index. The newest version of a key is always flushed, older ones only if a
//! snapshot needs them. A tombstone removes its key from the index; it is also written to the table if the
//! index held the key, because a rebuilding of the index from tables must not bring an older version back.
//!
//! The memtable stays linked until the manifest says that everything in it is in tables, so a flush that a crash
//! cut short is simply repeated. A failed flush continues where it stopped: what it has put into the index
//! stays, and of its tables only the unfinished one is removed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_index::PointIndex;
use terrace_pmem::Claim;
use terrace_table::Kind;

use super::behind::note_flushed;
use super::memtable::MemTable;
use super::output::{Finished, Outputs, Sink};
use super::{JOB_ROOTS, Slm};
use crate::levels::merge::Survivors;
use crate::located::{CHUNK_KEYS, Committed, Job, JobRun, Version};
use crate::manifest::{Edit, JobKind};

/// Entries after which a flush publishes its progress.
const SEEN_AT_ONCE: u64 = 64;

/// Flushes immutable memtables, oldest first, until none is left. One caller works, the others wait.
pub(super) fn run(slm: &Slm) -> Result<()> {
    // The memtables' contents go into the index with the room that is kept back for it.
    let next = || Ok(slm.mem.load().oldest_immutable().cloned());
    let run = || slm.flushes.run(&slm.core, &slm.manifest, next, |memtable| flush(slm, memtable));
    let mut outcome = slm.pool.claiming(Claim::All, run);
    if outcome.as_ref().is_err_and(Error::is_out_of_space) {
        // What waits for readers may be enough.
        slm.located.drain();
        outcome = slm.pool.claiming(Claim::All, run);
    }
    if outcome.is_ok() {
        slm.spawn_compaction();
    }
    outcome
}

fn flush(slm: &Slm, memtable: &Arc<MemTable>) -> Result<()> {
    slm.log.make_ready(&slm.manifest);
    let clock = &slm.core.env.clock;
    let attempt = match slm.unfinished.lock().take() {
        Some(unfinished) => Attempt::again(slm, unfinished),
        None => {
            Attempt::new(slm, slm.located.start_job(JOB_ROOTS.flush, JobKind::Flush, Vec::new())?, memtable)
        }
    };
    memtable.flush.begin(clock.now());
    let (committed, bytes) = match attempt.finish() {
        Ok(done) => done,
        Err(failed) => {
            let (unfinished, e) = *failed;
            memtable.flush.pause(clock.now());
            *slm.unfinished.lock() = Some(unfinished);
            return Err(e);
        }
    };
    committed.drop_log()?;
    slm.core.counters.count_flush(1, 0, bytes);
    slm.flush_pace.note(memtable.flush.seconds(clock.now()), memtable.list().entries());
    slm.forget(memtable)?;
    if memtable.to_index().longest > 0 {
        // What the index has replaced is much, and waits until more is.
        slm.located.drain();
    }
    Ok(())
}

/// A flush that has failed on the way. Its job stays open, and the next attempt continues where it stopped:
/// what is in the index is not put there again, where it would look like an older version of itself.
#[derive(Debug)]
pub(super) struct Unfinished {
    memtable: Arc<MemTable>,
    job: Job,
    progress: Progress,
}

impl Unfinished {
    /// The differences between the manifest's counts and the index that it causes.
    pub fn uncounted(&self) -> BTreeMap<u64, i64> {
        self.job.uncounted()
    }
}

/// A flush's progress.
#[derive(Debug, Default)]
struct Progress {
    /// The last key in finished tables; everything up to it is in them.
    written: Option<Vec<u8>>,
    /// Everything is in finished tables.
    complete: bool,
    /// Bytes of finished tables.
    bytes: u64,
    /// Finished tables that are not completely in the index.
    waiting: VecDeque<Finished>,
    /// Keys of the first of them that are.
    indexed: u64,
}

/// An attempt at flushing a memtable.
struct Attempt<'a> {
    slm: &'a Slm,
    memtable: Arc<MemTable>,
    job: JobRun<'a>,
    progress: Progress,
    /// Snapshots, listed after everything in the memtable became visible: a later one needs nothing older.
    held: Vec<u64>,
}

impl<'a> Attempt<'a> {
    fn new(slm: &'a Slm, job: JobRun<'a>, memtable: &Arc<MemTable>) -> Self {
        let held = slm.core.snapshots.list();
        Attempt { slm, memtable: memtable.clone(), job, progress: Progress::default(), held }
    }

    fn again(slm: &'a Slm, unfinished: Unfinished) -> Self {
        let Unfinished { memtable, job, progress } = unfinished;
        Attempt { slm, memtable, job: slm.located.resume_job(job), progress, held: slm.core.snapshots.list() }
    }

    /// Flushes the rest and records the job's end in the manifest; returns the bytes of the tables.
    fn finish(mut self) -> std::result::Result<(Committed<'a>, u64), Box<(Unfinished, Error)>> {
        let record = |attempt: &Self| note_flushed(&attempt.slm.pool, attempt.memtable.list().max_seq());
        // In this order (`behind.rs`): after everything is in the index and before the manifest says so.
        let outcome = self.move_all().and_then(|()| record(&self));
        let Attempt { slm, memtable, job, progress, .. } = self;
        let flushed = Edit::FlushedSeq(memtable.list().max_seq());
        let edits = || log_edit(slm, &memtable).into_iter().chain([flushed]).collect();
        let ended = match outcome {
            Ok(()) => job.commit(edits),
            Err(e) => Err(Box::new((job.rest(), e))),
        };
        match ended {
            Ok(committed) => Ok((committed, progress.bytes)),
            Err(failed) => {
                let (job, e) = *failed;
                Err(Box::new((Unfinished { memtable, job, progress }, e)))
            }
        }
    }

    /// Writes the rest to tables and puts it into the index, in parallel.
    fn move_all(&mut self) -> Result<()> {
        self.index_waiting()?;
        if self.progress.complete {
            return Ok(());
        }
        let (slm, id) = (self.slm, self.job.id());
        let (memtable, held) = (self.memtable.clone(), self.held.clone());
        let from = self.progress.written.clone();
        let mut indexed = Ok(());
        let written = side_by_side(
            slm,
            |sink| write_tables(slm, id, &memtable, from.as_deref(), &held, sink),
            |finished| {
                self.take(finished);
                if indexed.is_ok() {
                    indexed = self.index_waiting();
                }
            },
        );
        self.progress.complete = written.is_ok();
        indexed.and(written)
    }

    fn take(&mut self, finished: Finished) {
        self.job.owns(finished.number, finished.puts);
        self.progress.written = finished.last_key().map(<[u8]>::to_vec);
        self.progress.bytes += finished.bytes;
        self.progress.waiting.push_back(finished);
    }

    /// Puts the keys of finished tables into the index.
    fn index_waiting(&mut self) -> Result<()> {
        let Attempt { job, progress, held, memtable, .. } = self;
        while let Some(finished) = progress.waiting.front() {
            insert(job, finished, held, &mut progress.indexed, &memtable.flush.indexed)?;
            progress.waiting.pop_front();
            progress.indexed = 0;
        }
        Ok(())
    }
}

impl Slm {
    /// The differences between the manifest's counts and the index caused by jobs that have not ended there.
    /// None is running.
    pub(super) fn uncounted(&self) -> BTreeMap<u64, i64> {
        let mut uncounted = self.located.uncounted();
        let unfinished = self.unfinished.lock().as_ref().map(Unfinished::uncounted);
        for (number, delta) in unfinished.unwrap_or_default() {
            *uncounted.entry(number).or_default() += delta;
        }
        uncounted
    }

    /// Ends a failed flush when the database is closed: the next opening starts it again.
    pub(super) fn leave_unfinished(&self) {
        let Some(unfinished) = self.unfinished.lock().take() else { return };
        // Tombstones may be only in its tables by now, so they stay. Reopening ends a job that does not end
        // here.
        if let Err(error) = self.located.resume_job(unfinished.job).give_up(false) {
            tracing::warn!(%error, "a flush that has failed is left open");
        }
    }
}

/// Logs before the next memtable's first are no longer needed once this one is flushed.
fn log_edit(slm: &Slm, memtable: &Arc<MemTable>) -> Option<Edit> {
    slm.logs_writes().then(|| Edit::LogNumber(slm.first_log_after(memtable)))
}

/// Runs a job's two halves in parallel: `write` makes tables, `index` puts each into the index.
pub(super) fn side_by_side(
    slm: &Slm,
    write: impl FnOnce(Sink<'_>) -> Result<()> + Send,
    mut index: impl FnMut(Finished) + Send,
) -> Result<()> {
    let (send, receive) = crossbeam_channel::unbounded::<Finished>();
    let written: Mutex<Result<()>> = Mutex::new(Ok(()));
    let (mut send, mut write) = (Some(send), Some(write));
    let claim = Claim::current();
    slm.core.env.executor.join(
        &mut || {
            if let (Some(send), Some(write)) = (send.take(), write.take()) {
                // The receiver lives until this half is done.
                *written.lock() = write(&mut |finished| {
                    let _ = send.send(finished);
                });
            }
        },
        &mut || slm.pool.claiming(claim, || receive.iter().for_each(&mut index)),
    );
    written.into_inner()
}

/// Writes everything after the key `from`.
fn write_tables(
    slm: &Slm,
    job: u64,
    memtable: &MemTable,
    from: Option<&[u8]>,
    held: &[u64],
    sink: Sink<'_>,
) -> Result<()> {
    let mut outputs = Outputs::new(slm, job);
    let mut cursor = memtable.list().cursor();
    match from {
        // The first key after it is itself with a zero byte appended.
        Some(key) => cursor.seek(&[key, &[0]].concat(), u64::MAX)?,
        None => cursor.seek_first()?,
    }
    let mut finish = |finished: Finished| {
        memtable.flush.written.fetch_add(finished.len(), Ordering::Relaxed);
        sink(finished);
    };
    // Tombstones are looked up in the index below, which may fail.
    let mut survivors = Survivors::new(held, |_: &[u8], _: RangeInclusive<u64>| false);
    let mut seen = 0;
    while cursor.valid() {
        let (seq, kind) = (cursor.seq(), cursor.version_kind()?);
        let key = cursor.key();
        if survivors.keeps(key, seq, kind) && keep(slm, key, kind, held)? {
            outputs.add(key, seq, kind, cursor.value()?, None, &mut finish)?;
        }
        cursor.next()?;
        seen += 1;
        if seen % SEEN_AT_ONCE == 0 {
            memtable.flush.seen.store(seen, Ordering::Relaxed);
        }
    }
    outputs.finish(&mut finish)
}

/// A tombstone over nothing in the index hides nothing in any table either, unless a snapshot keeps an
/// older version beside it.
fn keep(slm: &Slm, key: &[u8], kind: Kind, held: &[u64]) -> Result<bool> {
    Ok(kind == Kind::Put || !held.is_empty() || slm.located.index().get(key)?.is_some())
}

/// Puts the keys of a finished table into the index, starting with number `done`, and counts them.
fn insert(
    job: &mut JobRun<'_>,
    finished: &Finished,
    held: &[u64],
    done: &mut u64,
    indexed: &AtomicU64,
) -> Result<()> {
    let (mut keys, already) = (0, *done);
    let mut chunk: Vec<(Vec<u8>, Vec<Version>)> = Vec::with_capacity(CHUNK_KEYS);
    let mut apply = |chunk: &mut Vec<(Vec<u8>, Vec<Version>)>| {
        let mut applied = 0;
        let outcome = job.insert(chunk, held, &mut applied);
        *done += applied;
        let entries = chunk.drain(..).take(applied as usize).map(|(_, versions)| versions.len() as u64);
        indexed.fetch_add(entries.sum(), Ordering::Relaxed);
        outcome
    };
    let mut before: Option<&[u8]> = None;
    for placed in finished.entries() {
        if before.replace(placed.key) != Some(placed.key) {
            keys += 1;
        }
        if keys <= already {
            continue;
        }
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
