//! The write path: make room, stage, log, drain, link, drain.
//!
//! A group costs two drains however many batches it holds: one makes the nodes durable, one the links that
//! publish them (SLM-DB, Algorithm 1). The caller is the current leader.
//!
//! The order, and its reasons:
//!
//! 1. Nodes are staged before the commit log is appended to: a full pool then leaves no trace. If the group
//!    fails for want of room in pool or log, its staged nodes are given back at once.
//! 2. The log is appended to before anything is linked: whatever a reader can see is in the log.
//! 3. Links are drained before `apply` returns: only then does the store make the group visible.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_index::{ListCursor, Record, Staged, Staging};
use terrace_pmem::{Claim, Granularity, Pool};
use terrace_table::Kind;

use super::memtable::{IndexRoom, MEMTABLES, MemSet, MemTable, NODE_OVERHEAD_BYTES, first_bytes, free_slot};
use super::{Slm, flush};
use crate::batch::WriteBatch;
use crate::commit_log::{Entry, Logged, comes_half_way};
use crate::compaction::backpressure::{Pressure, delay, lead};
use crate::core::engine::{Engine, no_operands};
use crate::core::request::Group;
use crate::manifest::Manifest;
use crate::pool;

/// The most bytes of a group in a memtable.
fn room_for(group: &Group<'_>) -> u64 {
    group.bytes() + group.ops() * NODE_OVERHEAD_BYTES
}

/// The room of a group's keys in the index.
fn index_room_for(pool: &Pool, group: &Group<'_>) -> IndexRoom {
    IndexRoom::of(pool, group.requests.iter().flat_map(|r| r.batch.ops()).map(|op| op.key))
}

/// Extents that a flush may need because no slot is free of a size that the index takes: of nodes, separators and
/// prefixes, chains of versions, and of records of a few sizes.
const FLUSHED_SLABS: u64 = 6;

/// The largest share of the pool that is kept back for flushes.
const MOST_KEPT_SHARE: u64 = 3;

/// A memtable is full when the index needs this share of the pool for it: two of them are flushed with what is kept
/// back.
const MOST_INDEXED_SHARE: u64 = 8;

/// The largest share of the pool that puts leave where they take of what is kept back.
const MOST_LEFT_SHARE: u64 = 3;

impl Slm {
    pub(super) fn apply_group(&self, group: Group<'_>) -> Result<()> {
        self.core.health.check()?;
        self.finish_opening()?;
        self.manifest.announce_pool()?;
        self.log.mend(self)?;
        let to_index = index_room_for(&self.pool, &group);
        self.make_room(&group, to_index.bytes)?;
        self.keep_back(to_index);
        let (memtable, staging, staged) =
            self.stage_with_retry(&group, to_index).inspect_err(|_| self.keep_back(IndexRoom::default()))?;
        if self.logs_writes()
            && let Err(e) = self.log.append(self, &group)
        {
            drop(staged);
            take_back(&memtable, &staging);
            self.keep_back(IndexRoom::default());
            self.log.try_to_mend(self);
            return Err(e);
        }
        memtable.will_index(to_index);
        self.pool.drain();
        memtable.list().link_all(staged).map_err(|e| self.half_linked(e))?;
        self.pool.drain();
        memtable.list().durable_up_to(group.first_seq + group.ops() - 1);
        Ok(())
    }

    /// Whether writes need a log beside the pool: it survives the process but not a power cut.
    pub(super) fn logs_writes(&self) -> bool {
        self.pool.granularity() == Granularity::Page
    }

    /// Part of a group is linked and the rest is not: the store ends its writing, since the next visible
    /// group would show that part. The next opening drops half batches.
    fn half_linked(&self, cause: Error) -> Error {
        let lasting = Error::Poisoned { cause: Arc::new(cause) };
        self.core.health.fail(lasting.clone());
        lasting
    }

    /// Stages the group; if the pool is full, it first empties a memtable, the active one if that helps. The
    /// next memtable's first extent may use the room that is kept back: deletions continue in it when there
    /// is no other, since flushing them takes no more than it gives back and may make room for puts. Puts, and
    /// deletions of what a snapshot sees, do so only if all that is kept for flushes is left.
    fn stage_with_retry<'g>(
        &self,
        group: &Group<'g>,
        coming: IndexRoom,
    ) -> Result<(Arc<MemTable>, Staging, Vec<Staged<'g>>)> {
        let only_deletes = group.only_deletes();
        // What a snapshot sees stays, and its chains take room when the deletions are flushed.
        let is_freeing = || only_deletes && self.core.snapshots.newest() == 0;
        let claim = if only_deletes { Claim::Some } else { Claim::None };
        let mut may_drain = true;
        loop {
            let memtable = self.mem.load().active().clone();
            let staging = memtable.list().staging();
            // It has room, of what is kept back.
            let is_kept = memtable.is_by_claim
                && !is_freeing()
                && !self.would_fit_without(&memtable, group, coming.bytes);
            let staged = match is_kept || !only_deletes && !self.can_be_indexed(group, coming) {
                true => Err(self.pool.refusal(room_for(group))),
                false => self.pool.claiming(claim, || stage(&memtable, group)),
            };
            let refusal = match staged {
                Ok(staged) => return Ok((memtable, staging, staged)),
                Err(e) => e,
            };
            take_back(&memtable, &staging);
            match refusal {
                e if !e.is_out_of_space() => return Err(e),
                // Of long keys, what waits for readers is much.
                _ if std::mem::take(&mut may_drain) && coming.longest > 0 => {
                    self.located.drain();
                }
                _ if self.has_immutable() => self.wait_for_flush()?,
                _ if !memtable.is_empty()
                    && (only_deletes
                        || memtable.is_by_claim
                        || self.would_fit_without(&memtable, group, coming.bytes)) =>
                {
                    self.rotate_to_write()?;
                }
                e => return Err(e),
            }
        }
    }

    /// Keeps room of the pool back for the flush of the memtables and of what is `coming`, and for deletions.
    fn keep_back(&self, coming: IndexRoom) {
        let to_index = self.to_index() + coming;
        self.pool.keep_back(pool::kept_back(&self.pool), self.kept_to_flush(coming.bytes));
        self.pool.keep_rows(to_index.own, to_index.longest);
    }

    /// The room to keep for flushes if the index will take `coming` more than it does for the memtables'
    /// contents.
    fn kept_to_flush(&self, coming: u64) -> u64 {
        // The next memtable, the slabs of the index that are full, and the flush's logs.
        let others = (1 + FLUSHED_SLABS) * self.pool.extent_bytes() + self.located.job_log_bytes();
        (others + self.to_index().bytes + coming).min(self.pool.max_size() / MOST_KEPT_SHARE)
    }

    /// Whether a flush finds room in the index for the group's keys beside those of the memtables. Long keys have extents
    /// of their own there, side by side: what is kept back for them must still be there, and in such rows. Only who asks
    /// for extents is held to leave it. A group of long keys may also take more than is ever kept back.
    fn can_be_indexed(&self, group: &Group<'_>, coming: IndexRoom) -> bool {
        let to_index = self.to_index() + coming;
        let is_kept = to_index.bytes <= self.pool.max_size() / MOST_INDEXED_SHARE * MEMTABLES as u64;
        let needed = match is_kept {
            true if to_index.longest == 0 => return true,
            true => self.kept_to_flush(coming.bytes),
            false => room_for(group) + to_index.bytes + self.pool.extent_bytes(),
        };
        // Others may break rows that are there beyond those of the keys.
        let others = needed.saturating_sub(to_index.bytes) + pool::kept_back(&self.pool);
        self.pool.has_free_extents(needed) && self.pool.has_free_rows(to_index.own + others, to_index.longest)
    }

    /// The room that the index takes for the memtables' contents.
    fn to_index(&self) -> IndexRoom {
        self.mem.load().iter().fold(IndexRoom::default(), |sum, memtable| sum + memtable.to_index())
    }

    /// Whether the group, for which the index takes `coming`, would fit into the pool, beside what is kept back, if
    /// `memtable` were flushed.
    fn would_fit_without(&self, memtable: &MemTable, group: &Group<'_>, coming: u64) -> bool {
        let kept = pool::kept_back(&self.pool) + self.kept_to_flush(coming);
        // A pool of few extents has no more.
        let kept = kept.min(self.pool.max_size() / MOST_LEFT_SHARE);
        // Free slots do not count: they are of the sizes that they have.
        self.pool.has_free_extents((room_for(group) + kept).saturating_sub(memtable.list().extents_bytes()))
    }

    /// Whether `memtable` is not too full for records of `need` bytes, of which the index takes `to_index`.
    pub(super) fn is_for(&self, memtable: &MemTable, need: u64, to_index: u64) -> bool {
        let has_room = || memtable.list().bytes_used() + need <= self.memtable_bytes;
        let most_indexed = self.pool.max_size() / MOST_INDEXED_SHARE;
        memtable.is_empty() || has_room() && memtable.to_index().bytes + to_index <= most_indexed
    }

    /// Rotates when the active memtable is full, waits when both are, and throttles before that.
    fn make_room(&self, group: &Group<'_>, to_index: u64) -> Result<()> {
        let need = room_for(group);
        loop {
            let mem = self.mem.load_full();
            let active = mem.active();
            if self.is_for(active, need, to_index) && !self.may_rotate_early(&mem) {
                self.slow_down(active.list().bytes_used(), mem.oldest_immutable(), group);
                return Ok(());
            }
            if free_slot(&mem).is_some() {
                self.rotate_to_write()?;
            } else {
                self.wait_for_flush()?;
            }
        }
    }

    /// Whether a walk has requested a flush that can begin at once.
    fn may_rotate_early(&self, mem: &MemSet) -> bool {
        self.rotate_soon.load(Ordering::Relaxed)
            && !mem.active().is_empty()
            && free_slot(mem).is_some()
            && self.rotate_soon.swap(false, Ordering::Relaxed)
    }

    /// Spreads the wait for a running flush over the writes beside it, so that no single one stops for long.
    fn slow_down(&self, used: u64, flushing: Option<&Arc<MemTable>>, group: &Group<'_>) {
        let limit = self.memtable_bytes;
        let sixteenth = used * 16 / limit;
        if self.cache_fitted_at.swap(sixteenth, Ordering::Relaxed) != sixteenth {
            self.fit_cache();
        }
        if comes_half_way(used, used + room_for(group), limit) {
            self.jobs.tidy(&self.me, |slm| {
                slm.log.make_ready(&slm.manifest);
                Ok(())
            });
        }
        let mut pressure = Pressure {
            flushed: flushing.map(|memtable| memtable.flushed()),
            flush_seconds: 0.0,
            memtable_fill: used as f64 / limit as f64,
            group_fill: room_for(group) as f64 / limit as f64,
            pool_fill: self.pool.used_bytes() as f64 / self.pool.reachable_bytes() as f64,
            garbage: f64::from_bits(self.overdue_garbage.load(Ordering::Relaxed)),
            group_bytes: group.bytes(),
        };
        // Only a writer that is ahead needs to read the clock.
        if let Some(memtable) = flushing.filter(|_| lead(&pressure) > 0.0) {
            pressure.flush_seconds = self.flush_pace.seconds(memtable, self.core.env.clock.now());
        }
        self.core.slow_down(delay(&pressure));
    }

    /// Makes a new memtable the active one and starts the flush of the old one. Writes to the new one are in
    /// logs from `first_log` on, or, if that is zero, in a log to come.
    pub(super) fn rotate_memtable(&self, first_log: u64) -> Result<()> {
        let mem = self.mem.load_full();
        let slot = free_slot(&mem).ok_or_else(|| Error::invalid("no memtable is free to rotate to"))?;
        self.log.rotate()?;
        let next = Arc::new(self.new_memtable(slot)?);
        next.first_log().note(first_log);
        self.mem.store(Arc::new(mem.rotated(&next)));
        self.spawn_flush();
        Ok(())
    }

    /// Rotates for a write. Where there is no extent for the new memtable, what waits for readers may have one.
    fn rotate_to_write(&self) -> Result<()> {
        match self.rotate_memtable(0) {
            Err(e) if e.is_out_of_space() => {
                self.located.drain();
                self.rotate_memtable(0)
            }
            outcome => outcome,
        }
    }

    /// A memtable of the usual initial size, or of as much as the pool has: with the smallest one the other
    /// can be flushed, which makes room. The smallest may use the room that is kept back.
    fn new_memtable(&self, slot: usize) -> Result<MemTable> {
        let before = self.mem.load().active().list().bytes_used();
        let (pool, capacity) = (&self.pool, self.memtable_bytes);
        match MemTable::create_within(pool, slot, first_bytes(pool, before, capacity), capacity) {
            Err(e) if e.is_out_of_space() => {
                let smallest = || MemTable::create(pool, slot, pool.extent_bytes(), capacity);
                let mut made = pool.claiming(Claim::All, smallest).map_err(|_| e)?;
                made.is_by_claim = true;
                Ok(made)
            }
            outcome => outcome,
        }
    }

    pub(super) fn has_immutable(&self) -> bool {
        self.mem.load().oldest_immutable().is_some()
    }

    /// Waits until the oldest immutable memtable is flushed.
    pub(super) fn wait_for_flush(&self) -> Result<()> {
        let memtables = || MemSet::clone(&self.mem.load());
        self.flushes.wait_for_oldest(&self.core, memtables, || flush::run(self))
    }

    fn spawn_flush(&self) {
        self.jobs.spawn_flush(&self.me, flush::run);
    }
}

impl Entry for ListCursor {
    fn seq(&self) -> u64 {
        ListCursor::seq(self)
    }

    fn put_into(&self, ops: &mut WriteBatch) -> Result<()> {
        match self.version_kind()? {
            Kind::Put => ops.put(self.key(), self.value()?),
            Kind::Delete => ops.delete(self.key()),
            Kind::Operand => return Err(no_operands()),
        }
        Ok(())
    }
}

impl Logged for Slm {
    type Entry = ListCursor;

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn last_applied(&self) -> u64 {
        self.last_seq()
    }

    fn logged_from(&self, number: u64) {
        self.mem.load().active().first_log().note(number);
    }

    fn unflushed(&self, flushed: u64) -> Result<Vec<ListCursor>> {
        let mut records = Vec::new();
        for memtable in self.mem.load_full().iter() {
            let mut cursor = memtable.list().cursor();
            cursor.seek_first()?;
            while cursor.valid() {
                if cursor.seq() > flushed {
                    records.push(cursor.clone());
                }
                cursor.next()?;
            }
        }
        Ok(records)
    }

    fn memtable_bytes(&self) -> u64 {
        self.mem.load().iter().map(|m| m.list().bytes_used()).sum()
    }

    fn flush_all(&self) -> Result<()> {
        self.rotate()?;
        self.wait_until_flushed()
    }

    fn relogged(&self, number: u64) -> bool {
        let mem = self.mem.load();
        mem.iter().filter(|m| !m.is_empty()).for_each(|m| m.first_log().replace(number));
        !mem.active().is_empty()
    }
}

/// Gives back what was staged. If that fails, it goes with the memtable.
fn take_back(memtable: &MemTable, staging: &Staging) {
    if let Err(error) = memtable.list().take_back(staging) {
        tracing::warn!(%error, "the room of a refused group could not be given back");
    }
}

/// Stages the records of a group in the order of the list, so that linking them in turn finds each one's
/// predecessor already linked, by this group or earlier.
fn stage<'g>(memtable: &MemTable, group: &Group<'g>) -> Result<Vec<Staged<'g>>> {
    let mut records = Vec::with_capacity(group.ops() as usize);
    let mut seq = group.first_seq;
    for request in group.requests {
        let (batch_first, batch_len) = (seq, request.batch.len() as u32);
        for op in request.batch.ops() {
            let kind = op.kind as u8;
            records.push(Record { key: op.key, seq, kind, value: op.value, batch_first, batch_len });
            seq += 1;
        }
    }
    records.sort_unstable_by(|a, b| a.key.cmp(b.key).then(b.seq.cmp(&a.seq)));
    records.iter().map(|record| memtable.list().stage(record)).collect()
}
