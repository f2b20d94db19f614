//! The log of all buckets: its parts, the memtables that hold them back, and what it needs from the engine.
//!
//! Each log is one part of the whole; the next part begins when the current one has reached its size. Each
//! memtable knows the first part with writes of it; parts before the first of all are no longer needed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, ErrorKind, Result};
use terrace_pmem::Pool;
use terrace_table::Kind;

use super::Wip;
use super::bucket::Bucket;
use super::memtable::BucketMemtable;
use crate::batch::{Op, WriteBatch};
use crate::commit_log::{CommitLog, Entry, Logged, Policy, comes_half_way, unless_full};
use crate::core::Core;
use crate::core::request::Group;
use crate::manifest::{Edit, Manifest};

/// The approximate number of parts of a log within its limit: log space is freed by parts.
const PARTS: u64 = 8;

/// The same on persistent memory, which has roots for eight logs.
const PARTS_IN_POOL: u64 = 4;

/// The share of a pool that the log may take.
const POOL_SHARE: u64 = 2;

/// Writers wait when the log exceeds its limit this many times.
const STOP_TIMES: u64 = 2;

/// The needed parts of the log, oldest first, and their bytes.
#[derive(Debug, Default)]
pub(super) struct LogSpan {
    parts: VecDeque<(u64, u64)>,
    /// Bytes of all of them.
    pub total: u64,
    /// The memtables that hold back parts up to this one were told to flush.
    asked: u64,
}

impl LogSpan {
    /// Adds to the size of part `number`.
    pub fn add(&mut self, number: u64, bytes: u64) {
        match self.parts.back_mut() {
            Some((last, sum)) if *last == number => *sum += bytes,
            _ => self.parts.push_back((number, bytes)),
        }
        self.total += bytes;
    }

    /// Parts before `number` are no longer needed.
    pub fn forget_before(&mut self, number: u64) {
        while let Some((_, bytes)) = self.parts.pop_front_if(|(first, _)| *first < number) {
            self.total -= bytes;
        }
    }

    /// Bytes of part `number`.
    fn bytes_of(&self, number: u64) -> u64 {
        self.parts.iter().find(|(part, _)| *part == number).map_or(0, |(_, bytes)| *bytes)
    }

    /// The oldest part, if the parts together exceed `limit` and its memtables were not told to flush yet.
    fn too_old(&mut self, limit: u64) -> Option<u64> {
        let (oldest, _) = *self.parts.front().filter(|_| self.total > limit)?;
        let is_news = oldest > self.asked;
        self.asked = self.asked.max(oldest);
        is_news.then_some(oldest)
    }
}

/// Everything is handed to the system at once. After a failure memtables are flushed and nothing is copied: a part that
/// replaced all before it would have to record what is missing for each bucket.
const POLICY: Policy = Policy { buffer_bytes: 0, each_complete: false, copy_bytes: 0 };

/// The log of a database, in `pool` if there is one.
pub(super) fn open(core: &Arc<Core>, manifest: &Manifest, pool: Option<&Pool>) -> Result<CommitLog> {
    let in_pool = pool.map(|pool| (pool, part_bytes(core, Some(pool)) + 4096));
    let log = CommitLog::new(core.clone(), manifest, in_pool, POLICY);
    log.open_in_pool(manifest)?;
    Ok(log)
}

/// Log size at which buckets are flushed.
fn limit(core: &Core, pool: Option<&Pool>) -> u64 {
    let asked = core.options.wip.log_bytes;
    pool.map_or(asked, |pool| asked.min(pool.max_size() / POOL_SHARE))
}

/// Size at which the next part begins.
fn part_bytes(core: &Core, pool: Option<&Pool>) -> u64 {
    limit(core, pool) / if pool.is_some() { PARTS_IN_POOL } else { PARTS }
}

impl Wip {
    /// Begins the next part of the log if the current one has reached its size. If the log exceeds its limit,
    /// it flushes the buckets that hold it back.
    pub(super) fn make_room_in_log(&self) -> Result<()> {
        let limit = limit(&self.core, self.pool.as_ref());
        let (is_full, too_old) = {
            let mut span = self.span.lock();
            let current = self.current_log.load(Ordering::Relaxed);
            let is_full = span.bytes_of(current) >= part_bytes(&self.core, self.pool.as_ref());
            (current > 0 && is_full, span.too_old(limit))
        };
        if is_full {
            self.rotate_log()?;
        }
        if let Some(oldest) = too_old {
            self.freeze_logged_up_to(oldest);
            if !self.has_frozen() {
                self.forget_unheld_logs()?;
            }
        }
        while self.span.lock().total > STOP_TIMES * limit && self.has_frozen() {
            self.wait_for_flush()?;
        }
        Ok(())
    }

    /// Whether the log's contents may be lost, whatever was synced: it has failed, or a dead process left it.
    pub(super) fn is_log_unreliable(&self) -> bool {
        self.log.is_broken() || self.replaying.load(Ordering::Acquire)
    }

    pub(super) fn rotate_log(&self) -> Result<()> {
        self.log.rotate()?;
        self.current_log.store(0, Ordering::Release);
        Ok(())
    }

    /// Logs the group; if the pool is full, it first flushes what holds back the oldest log.
    pub(super) fn log_group(&self, group: &Group<'_>) -> Result<()> {
        let mut has_waited = false;
        loop {
            let dropped = self.log.dropped();
            let refusal = match self.log.append(self, group) {
                Ok(()) => break,
                Err(e) => e,
            };
            if refusal.kind() == ErrorKind::NoSpace && !has_waited && self.wait_for_merges()? {
                has_waited = true;
                continue;
            }
            if self.log.lacks_room(&refusal) && self.free_log(dropped)? {
                continue;
            }
            self.log.try_to_mend(self);
            return Err(refusal);
        }
        let current = self.current_log.load(Ordering::Relaxed);
        let mut span = self.span.lock();
        let before = span.bytes_of(current);
        span.add(current, group.bytes());
        drop(span);
        let part = part_bytes(&self.core, self.pool.as_ref());
        if comes_half_way(before, before + group.bytes(), part) {
            self.jobs.tidy(&self.me, |wip| {
                wip.log.make_ready(&wip.manifest);
                Ok(())
            });
        }
        Ok(())
    }

    /// Waits for the running merges, which use the room until they end; false if there is none.
    fn wait_for_merges(&self) -> Result<bool> {
        let runs = || !self.planning.lock().busy.is_empty();
        if !runs() {
            return Ok(false);
        }
        self.core.stalled(|| {
            self.jobs.wait_until(|| !runs());
            self.sweep();
            Ok(())
        })?;
        Ok(true)
    }

    /// Makes room for a log in the pool by flushing the memtables of the oldest; false if nothing else would
    /// help. `dropped` is the number of logs dropped before the lack of room.
    pub(super) fn free_log(&self, dropped: u64) -> Result<bool> {
        if self.has_frozen() {
            return self.wait_for_flush().map(|()| true);
        }
        self.rotate_log()?;
        let oldest = self.span.lock().parts.front().map(|(number, _)| *number);
        self.freeze_logged_up_to(oldest.unwrap_or(0));
        if self.has_frozen() {
            return Ok(true);
        }
        // Nobody needs it: a number for the next log drops those before. This also drops logs without a
        // group, and those that the last flush has put into tables and not dropped yet.
        self.forget_logs_before_next()?;
        Ok(self.log.dropped() > dropped)
    }

    /// Drops logs that nobody holds back, and that no flush will drop. Without room for that the next group tries
    /// again: there may be room for what it writes.
    fn forget_unheld_logs(&self) -> Result<()> {
        let outcome = self.forget_logs_before_next();
        if outcome.as_ref().is_err_and(Error::is_out_of_space) {
            self.span.lock().asked = 0;
        }
        unless_full(outcome)
    }

    /// Drops logs that no memtable needs. The caller is the leader.
    fn forget_logs_before_next(&self) -> Result<()> {
        let mut edits = vec![Edit::LogNumber(self.first_needed_log(&[]))];
        if self.memtables().iter().all(|memtable| memtable.is_empty()) {
            // A flush that ran while the last group was inserted has recorded less, and no log will tell.
            edits.push(Edit::FlushedSeq(self.applied.load(Ordering::Acquire)));
        }
        self.manifest.apply(&edits)?;
        self.log.drop_old(&self.manifest)?;
        self.span.lock().forget_before(self.manifest.state().log_number);
        Ok(())
    }

    /// The first log that memtables other than `leaving` need.
    pub(super) fn first_needed_log(&self, leaving: &[Arc<BucketMemtable>]) -> u64 {
        self.log.first_after(&self.manifest, || {
            let current = Some(self.current_log.load(Ordering::Acquire)).filter(|number| *number > 0);
            let of_memtables = self.memtables().into_iter().filter(|memtable| !contains(leaving, memtable));
            of_memtables
                .map(|memtable| memtable.first_log().get())
                .filter(|number| *number > 0)
                .chain(current)
                .min()
        })
    }

    /// Every existing memtable, each once.
    pub(super) fn memtables(&self) -> Vec<Arc<BucketMemtable>> {
        let mut known = BTreeSet::new();
        let mut all = Vec::new();
        for bucket in self.buckets().iter() {
            for memtable in &bucket.readable.load().memtables {
                if known.insert(Arc::as_ptr(memtable)) {
                    all.push(memtable.clone());
                }
            }
        }
        all
    }

    /// Describes the memtable that holds back the oldest part of the log; `None` if there is no log.
    pub(super) fn log_holder(&self) -> Option<String> {
        let oldest = self.span.lock().parts.front()?.0;
        let holds = |bucket: &&Arc<Bucket>| {
            let readable = bucket.readable.load();
            readable.memtables.iter().any(|m| m.first_log().is_up_to(oldest))
        };
        let buckets = self.buckets();
        let holders: Vec<&Arc<Bucket>> = buckets.iter().filter(holds).collect();
        let first = holders.first()?;
        let noun = if holders.len() == 1 { "bucket from" } else { "buckets, the first from" };
        Some(format!("{} {noun} \"{}\"", holders.len(), first.lower.escape_ascii()))
    }
}

fn contains(all: &[Arc<BucketMemtable>], memtable: &Arc<BucketMemtable>) -> bool {
    all.iter().any(|other| Arc::ptr_eq(other, memtable))
}

/// An operation on its way into another log.
#[derive(Debug)]
pub(crate) struct OwnedOp {
    key: Vec<u8>,
    seq: u64,
    kind: Kind,
    value: Vec<u8>,
}

impl Entry for OwnedOp {
    fn seq(&self) -> u64 {
        self.seq
    }

    fn put_into(&self, ops: &mut WriteBatch) -> Result<()> {
        ops.push(Op { kind: self.kind, key: &self.key, value: &self.value });
        Ok(())
    }
}

impl Logged for Wip {
    type Entry = OwnedOp;

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn last_applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    fn logged_from(&self, number: u64) {
        self.current_log.store(number, Ordering::Release);
    }

    fn unflushed(&self, flushed: u64) -> Result<Vec<OwnedOp>> {
        let mut ops = Vec::new();
        for memtable in self.memtables() {
            memtable.visit(|key, seq, kind, value| {
                if seq > flushed {
                    ops.push(OwnedOp { key: key.to_vec(), seq, kind, value: value.to_vec() });
                }
                Ok(())
            })?;
        }
        Ok(ops)
    }

    fn memtable_bytes(&self) -> u64 {
        self.memtables().iter().map(|memtable| memtable.bytes_used()).sum()
    }

    fn flush_all(&self) -> Result<()> {
        self.freeze_all();
        while self.has_frozen() {
            self.wait_for_flush()?;
        }
        Ok(())
    }

    fn relogged(&self, number: u64) -> bool {
        self.memtables().iter().filter(|m| !m.is_empty()).for_each(|m| m.first_log().replace(number));
        let goes_on = self.buckets().iter().any(|bucket| !bucket.readable.load().active().is_empty());
        self.current_log.store(if goes_on { number } else { 0 }, Ordering::Release);
        goes_on
    }
}
