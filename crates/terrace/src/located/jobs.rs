//! Moving keys in the index: the part that flush and compaction share.
//!
//! A job writes tables and then points index words at them. Each chunk of keys goes through three steps
//! under the index-writer lock: look up and decide; record in the job's compaction log, which lies in
//! the pool, and drain it; publish the new words. Tables are in the manifest before any word names them, and
//! the tables that they replace stay until the job is done, so every word always names a live record and a
//! crash leaves nothing to undo. It does leave a job whose effect on the live-key counts is unknown; the log
//! has it (SLM-DB, section 3.3).
//!
//! 1. Index words and chains change only under the writer lock, chunk by chunk.
//! 2. A chunk's moves are durable in the log before its first word is published, and so is a record of how
//!    many of them were applied before the writer lock is released. So nobody else has touched a key of a
//!    chunk without such a record: after a crash one of its moves has been applied exactly if the key's word
//!    is no longer the recorded one. The words do not show that for other chunks, since later jobs may have
//!    put them back: the offset of a freed chain is soon another chain's.
//! 3. A chunk with that record only matters by its effect on the counts. So a new log that begins with the
//!    sum replaces one that has become long: the root is switched by one store, and a crash leaves one or the
//!    other.
//! 4. Counts go into the manifest in one group with the job's end. If that group fails, the job's end is
//!    pending: its log stays, and no other job begins before the group has been repeated successfully. A
//!    flush stays open instead, and continues where it stopped (`flush.rs`).

use std::collections::BTreeMap;

use parking_lot::MutexGuard;
use terrace_base::{Error, Result};
use terrace_index::kinds;
use terrace_log::PmLog;
use terrace_pmem::Kind as PmKind;

use super::Located;
use super::chain::Version;
use super::job_log::{CHUNK_END_BYTES, encode_chunk_end, encode_moves, encode_start};
use super::moves::{Moves, Relocation, parts};
use crate::manifest::{Edit, JobKind, State};

/// Extents of this kind hold compaction logs.
const JOB_LOG_KIND: PmKind = kinds::JOB_LOG;

/// First reservation of a compaction log.
const LOG_BYTES: u64 = 64 << 10;

/// Bytes that a log may come to have above its first reservation and its growth: of a part of long keys, with the records
/// around it.
const PART_SLACK: u64 = 8 << 10;

/// A job: its number, its log, and what it has done to the counts.
#[derive(Debug)]
pub(crate) struct Job {
    id: u64,
    root: &'static str,
    log: PmLog,
    /// The length at which a new log replaces this one.
    limit: u64,
    deltas: BTreeMap<u64, i64>,
    /// Tables that this job wrote: their puts, and how many of those are in the index.
    outputs: BTreeMap<u64, (u64, u64)>,
}

impl Job {
    /// The differences between the manifest's counts, which count a job's output as live from the start, and
    /// the current index.
    pub fn uncounted(&self) -> BTreeMap<u64, i64> {
        let mut uncounted = self.deltas.clone();
        for (number, (puts, arrived)) in &self.outputs {
            *uncounted.entry(*number).or_default() -= *puts as i64 - *arrived as i64;
        }
        uncounted
    }

    /// Tables that this job wrote and of which nothing was indexed.
    fn unused(&self) -> Vec<u64> {
        self.outputs.iter().filter(|(_, (_, arrived))| *arrived == 0).map(|(number, _)| *number).collect()
    }
}

/// A job that is running.
#[derive(Debug)]
pub(crate) struct JobRun<'a> {
    located: &'a Located,
    job: Job,
}

/// A job whose work is done and whose end may not be in the manifest yet.
#[derive(Debug)]
pub(super) struct EndedJob {
    id: u64,
    root: &'static str,
    log: PmLog,
    deltas: BTreeMap<u64, i64>,
    /// Tables that it wrote in vain.
    unused: Vec<u64>,
}

impl Located {
    /// Starts a job whose log hangs from `root`.
    pub fn start_job(&self, root: &'static str, kind: JobKind, inputs: Vec<u64>) -> Result<JobRun<'_>> {
        self.retry_endings()?;
        let id = self.manifest.take_numbers(1).start;
        let log = self.begin_log(root, id, &BTreeMap::new())?;
        if let Err(e) = self.manifest.apply(&[Edit::JobStarted { id, kind, inputs }]) {
            self.pool.clear_root(root)?;
            log.free()?;
            return Err(e);
        }
        let limit = self.log_limit(&log);
        let job = Job { id, root, log, limit, deltas: BTreeMap::new(), outputs: BTreeMap::new() };
        Ok(self.resume_job(job))
    }

    /// Continues a job that has rested.
    pub fn resume_job(&self, job: Job) -> JobRun<'_> {
        JobRun { located: self, job }
    }

    /// The length at which a new log replaces one that was just begun.
    fn log_limit(&self, log: &PmLog) -> u64 {
        log.len() + self.log_growth
    }

    /// The pool's bytes for a job's log and its successor.
    pub fn job_log_bytes(&self) -> u64 {
        2 * (LOG_BYTES + self.log_growth + PART_SLACK).next_multiple_of(self.pool.extent_bytes())
    }

    /// A log of the job `id` whose earlier logs amount to `counts`; it replaces the log at `root`. On an
    /// error everything is as before.
    fn begin_log(&self, root: &str, id: u64, counts: &BTreeMap<u64, i64>) -> Result<PmLog> {
        let mut log = match PmLog::create(&self.pool, JOB_LOG_KIND, LOG_BYTES) {
            // It takes more as it needs it.
            Err(e) if e.is_out_of_space() => PmLog::create(&self.pool, JOB_LOG_KIND, 0)?,
            outcome => outcome?,
        };
        let linked = log
            .append(&encode_start(id, counts))
            .and_then(|_| log.persist())
            .and_then(|_| self.pool.set_root(root, log.head()));
        match linked {
            Ok(()) => Ok(log),
            Err(e) => log.free().and(Err(e)),
        }
    }
}

impl<'a> JobRun<'a> {
    pub fn id(&self) -> u64 {
        self.job.id
    }

    /// The job rests: it stays open, and nobody else takes the tables that it reads or has written.
    pub fn rest(self) -> Job {
        self.job
    }

    /// Notes a table that this job wrote, with `puts` puts in it.
    pub fn owns(&mut self, table: u64, puts: u64) {
        self.job.outputs.insert(table, (puts, 0));
    }

    /// Points the keys of a flush at their new versions, newest first for each key. `done` counts the keys, in order,
    /// for which that was done.
    pub fn insert(&mut self, chunk: &[(Vec<u8>, Vec<Version>)], held: &[u64], done: &mut u64) -> Result<()> {
        debug_assert!(
            chunk.is_sorted_by(|a, b| a.0 < b.0),
            "all decided before the first is made: each key once"
        );
        parts(chunk, |(key, _)| key.len()).try_for_each(|part| {
            let mut applied = 0;
            let outcome = self.insert_part(part, held, &mut applied);
            *done += applied;
            outcome
        })
    }

    fn insert_part(
        &mut self,
        chunk: &[(Vec<u8>, Vec<Version>)],
        held: &[u64],
        applied: &mut u64,
    ) -> Result<()> {
        let writer = self.located.writer.lock();
        let mut moves = Moves::of(self.located, chunk.iter().map(|(key, _)| &key[..]))?;
        for (i, (key, versions)) in chunk.iter().enumerate() {
            moves.push(i, self.located.plan_insert(key, moves.word(i, key)?, versions, held)?);
        }
        self.publish(writer, moves, applied)
    }

    /// Points the versions that a compaction moved at their new places; a version that has meanwhile been
    /// replaced is dead on arrival.
    pub fn relocate(&mut self, chunk: &[Relocation]) -> Result<()> {
        parts(chunk, |relocation| relocation.key.len()).try_for_each(|part| self.relocate_part(part))
    }

    fn relocate_part(&mut self, chunk: &[Relocation]) -> Result<()> {
        let writer = self.located.writer.lock();
        let mut moves = Moves::of(self.located, chunk.iter().map(|relocation| &relocation.key[..]))?;
        for (i, relocation) in chunk.iter().enumerate() {
            match self.located.plan_relocation(relocation, moves.word(i, &relocation.key)?)? {
                Some(one) => moves.push(i, one),
                None => self.dead_on_arrival(relocation.to.number()),
            }
        }
        self.publish(writer, moves, &mut 0)
    }

    /// Drops versions that no snapshot needs any more from the chains of `keys`.
    pub fn collapse(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        parts(keys, Vec::len).try_for_each(|part| self.collapse_part(part))
    }

    fn collapse_part(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let writer = self.located.writer.lock();
        // Listed under the lock: a snapshot for which a chain was made had been listed before that.
        let held = self.located.core.snapshots.list();
        let mut moves = Moves::of(self.located, keys.iter().map(|key| &key[..]))?;
        for (i, key) in keys.iter().enumerate() {
            if let Some(one) = self.located.plan_collapse(key, moves.word(i, key)?, &held)? {
                moves.push(i, one);
            }
        }
        self.publish(writer, moves, &mut 0)
    }

    fn dead_on_arrival(&mut self, number: u64) {
        *self.job.deltas.entry(number).or_default() -= 1;
        self.arrived(number);
    }

    fn arrived(&mut self, number: u64) {
        if let Some((_, arrived)) = self.job.outputs.get_mut(&number) {
            *arrived += 1;
        }
    }

    fn publish(
        &mut self,
        writer: MutexGuard<'_, ()>,
        mut moves: Moves<'_, '_>,
        applied: &mut u64,
    ) -> Result<()> {
        if moves.planned.is_empty() {
            return Ok(());
        }
        self.keep_log_short()?;
        let records = encode_moves(moves.planned.iter().map(|(_, one)| one));
        let bytes: usize = records.iter().map(Vec::len).sum();
        // For the record that ends the chunk, too: once the moves are logged it must not fail.
        let log = &mut self.job.log;
        log.reserve(records.len() as u64 + 1, bytes as u64 + CHUNK_END_BYTES)?;
        records.iter().try_for_each(|record| log.append(record).map(drop))?;
        log.persist()?;
        let outcome = self.publish_in_turn(&mut moves, applied);
        let log = &mut self.job.log;
        let ended = log.append(&encode_chunk_end(*applied)).and_then(|_| log.persist());
        drop(writer);
        outcome.and(ended)
    }

    /// Replaces the log if it is long. The caller holds the index-writer lock, between two chunks.
    fn keep_log_short(&mut self) -> Result<()> {
        if self.job.log.len() < self.job.limit {
            return Ok(());
        }
        let sums = self.sum_of_moves();
        let job = &mut self.job;
        match self.located.begin_log(job.root, job.id, &sums) {
            Ok(log) => {
                job.limit = self.located.log_limit(&log);
                std::mem::replace(&mut job.log, log).free()
            }
            // The long one will do as well.
            Err(Error::PoolFull { .. } | Error::NoSpace { .. }) => {
                job.limit *= 2;
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// The sum of the moves in the log: what arrived in the index, less what died. Versions that were dead on
    /// arrival are in both, and in no move.
    fn sum_of_moves(&self) -> BTreeMap<u64, i64> {
        let mut sums = self.job.deltas.clone();
        for (number, (_, arrived)) in &self.job.outputs {
            *sums.entry(*number).or_default() += *arrived as i64;
        }
        sums
    }

    fn publish_in_turn(&mut self, moves: &mut Moves<'_, '_>, applied: &mut u64) -> Result<()> {
        while let Some((i, one)) = moves.planned.front() {
            self.located.publish_move(&moves.near, *i, one)?;
            one.born.iter().for_each(|number| self.arrived(number));
            for number in one.died.iter() {
                *self.job.deltas.entry(number).or_default() -= 1;
            }
            moves.planned.pop_front();
            *applied += 1;
        }
        Ok(())
    }

    /// Ends the job before it is done: what it wrote and indexed stays, what it wrote and did not index is
    /// dead. Tables of which nothing was indexed are removed if `all_is_elsewhere`.
    pub fn give_up(self, all_is_elsewhere: bool) -> Result<()> {
        let JobRun { located, job } = self;
        let unused = if all_is_elsewhere { job.unused() } else { Vec::new() };
        let deltas = job.uncounted();
        let edits = removals(&unused);
        located.end_job(EndedJob { id: job.id, root: job.root, log: job.log, deltas, unused }, || edits)
    }

    /// Ends the job: `edits` and the counts in one manifest group, then the log is removed.
    pub fn finish(self, edits: impl FnOnce() -> Vec<Edit>) -> Result<()> {
        let JobRun { located, job: Job { id, root, log, deltas, .. } } = self;
        located.end_job(EndedJob { id, root, log, deltas, unused: Vec::new() }, edits)
    }

    /// Puts `edits`, the counts and the job's end into the manifest, or rests.
    pub fn commit(
        self,
        edits: impl FnOnce() -> Vec<Edit>,
    ) -> std::result::Result<Committed<'a>, Box<(Job, Error)>> {
        match self.located.commit_job(self.job.id, edits, &self.job.deltas) {
            Ok(()) => Ok(Committed(self)),
            Err(e) => Err(Box::new((self.job, e))),
        }
    }
}

/// A job whose end is in the manifest.
pub(crate) struct Committed<'a>(JobRun<'a>);

impl Committed<'_> {
    /// Removes the log.
    pub fn drop_log(self) -> Result<()> {
        let JobRun { located, job } = self.0;
        located.drop_log(job.root, job.log)
    }
}

fn removals(numbers: &[u64]) -> Vec<Edit> {
    numbers.iter().map(|&number| Edit::RemoveTable { number }).collect()
}

impl Located {
    /// Ends a job, or keeps it for [`retry_endings`](Self::retry_endings).
    fn end_job(&self, ending: EndedJob, edits: impl FnOnce() -> Vec<Edit>) -> Result<()> {
        match self.commit_job(ending.id, edits, &ending.deltas) {
            Ok(()) => self.ended(ending),
            Err(e) => {
                self.endings.lock().push(ending);
                Err(e)
            }
        }
    }

    fn ended(&self, ending: EndedJob) -> Result<()> {
        self.tables.remove(&ending.unused);
        self.drop_log(ending.root, ending.log)
    }

    fn drop_log(&self, root: &str, log: PmLog) -> Result<()> {
        self.pool.clear_root(root)?;
        log.free()
    }

    /// Repeats the ends of jobs that did not get into the manifest. Others wait meanwhile: the root of such a
    /// job's log is not free for the next job before that.
    fn retry_endings(&self) -> Result<()> {
        let mut endings = self.endings.lock();
        while let Some(ending) = endings.pop() {
            let edits = || {
                let mut edits = removals(&ending.unused);
                edits.extend(restart_edits(&self.manifest.state(), ending.id));
                edits
            };
            if let Err(e) = self.commit_job(ending.id, edits, &ending.deltas) {
                endings.push(ending);
                return Err(e);
            }
            self.ended(ending)?;
        }
        Ok(())
    }

    /// The differences between the manifest's counts and the index caused by jobs that are done and have not
    /// ended in the manifest. None is running.
    pub fn uncounted(&self) -> BTreeMap<u64, i64> {
        let mut uncounted = BTreeMap::new();
        for (number, delta) in self.endings.lock().iter().flat_map(|ending| &ending.deltas) {
            *uncounted.entry(*number).or_default() += delta;
        }
        uncounted
    }

    /// Commits a job's end and its counts; those of removed tables no longer matter. `edits` is called with
    /// no other job ending beside it.
    pub fn commit_job(
        &self,
        id: u64,
        edits: impl FnOnce() -> Vec<Edit>,
        deltas: &BTreeMap<u64, i64>,
    ) -> Result<()> {
        let _alone = self.counting.lock();
        let mut group = edits();
        let removed: Vec<u64> = group
            .iter()
            .filter_map(|e| if let Edit::RemoveTable { number } = e { Some(*number) } else { None })
            .collect();
        group.extend(count_edits(&self.manifest.state(), deltas, &removed));
        group.push(Edit::JobDone { id });
        // The job must have been made from what was written.
        self.pool.intact()?;
        self.manifest.apply(&group)
    }
}

/// The edits that make a job's inputs candidates again.
pub(super) fn restart_edits(state: &State, id: u64) -> Vec<Edit> {
    let inputs = state.jobs.get(&id).map(|job| job.inputs.clone()).unwrap_or_default();
    vec![Edit::AddCandidates(inputs.into_iter().filter(|n| state.tables.contains_key(n)).collect())]
}

/// The count edits of `deltas` for tables that exist and stay.
pub(crate) fn count_edits(state: &State, deltas: &BTreeMap<u64, i64>, removed: &[u64]) -> Vec<Edit> {
    deltas
        .iter()
        .filter(|(number, delta)| {
            **delta != 0 && state.tables.contains_key(*number) && !removed.contains(number)
        })
        .map(|(&number, &live_delta)| Edit::Counts { number, live_delta })
        .collect()
}
