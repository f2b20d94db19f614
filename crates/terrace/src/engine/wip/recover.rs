//! The work of opening: replaying the log into memtables, removing unreferenced files, and starting jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::Wip;
use super::bucket::Bucket;
use super::buckets::Buckets;
use crate::batch::{Op, WriteBatch};
use crate::commit_log::{Gathered, Replayed, are_many_and_small, unless_full};
use crate::manifest::Listing;
use crate::pool::{self, StartState};

/// Bytes of operations that are read before two threads put them into memtables; fewer if memtables may not
/// take that much.
const TOGETHER_BYTES: u64 = 8 << 20;

/// How it is known what tables hold already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaying {
    /// The manifest records it for each bucket.
    Known,
    /// The tables are asked about each key.
    Asked,
}

/// Groups that have been read: each with its log, the number of its first operation, and the number up to
/// which they are applied already.
type Groups = Vec<(u64, u64, WriteBatch, u64)>;

impl Wip {
    /// Brings a just opened database to rest. `gathered` are its logs if they lie elsewhere. `damaged` is asked about
    /// each damaged log; if it returns no error, the rest of that log and all that follow are left out.
    pub(super) fn recover(
        &self,
        state: StartState,
        replaying: Replaying,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        let start = self.core.env.clock.now();
        let replayed = self.replay_all(state, replaying, gathered, damaged)?;
        let took = self.core.env.clock.now() - start;
        let _ = self.opened.set(describe(state, &replayed, took));
        Ok(())
    }

    fn replay_all(
        &self,
        state: StartState,
        replaying: Replaying,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Replayed> {
        let listing = self.manifest.listing()?;
        self.replaying.store(true, Ordering::Release);
        let replayed = self.replay_from((state, &listing), replaying, gathered, damaged)?;
        // Only after the log is distrusted, if it is to be: a flush of what had no room until now would take
        // it for durable.
        self.replaying.store(false, Ordering::Release);
        self.applied.fetch_max(self.last_seq(), Ordering::AcqRel);
        self.core.snapshots.advance(self.last_seq());
        if self.core.options.read_only {
            // Nothing arrives any more: each memtable is sorted once for all.
            self.memtables().iter().for_each(|memtable| memtable.freeze());
            return Ok(replayed);
        }
        self.core.files.forget_ingests(&listing);
        if self.manifest.try_decide()? {
            self.core.files.remove_tables(listing.dead_tables);
            self.core.files.remove(self.manifest.listing()?.leftovers);
            self.log.drop_old(&self.manifest)?;
            self.sweep();
        } else {
            self.core.files.remove_when_decided(listing.dead_tables);
        }
        if are_many_and_small(replayed.there, self.memory.held()) {
            self.freeze_all();
        }
        self.reclaim_after(state == StartState::Crashed);
        self.spawn_compaction();
        Ok(replayed)
    }

    fn replay_from(
        &self,
        (state, listing): (StartState, &Listing),
        replaying: Replaying,
        gathered: Option<&Gathered>,
        damaged: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Replayed> {
        let (mut groups, mut bytes): (Groups, u64) = Default::default();
        let together = TOGETHER_BYTES.min(self.memtables_budget());
        let mut take = |number, first_seq, ops: &WriteBatch, reached| {
            bytes += ops.encoded().len() as u64;
            groups.push((number, first_seq, ops.clone(), reached));
            if bytes < together {
                return Ok(());
            }
            bytes = 0;
            self.replay_groups(std::mem::take(&mut groups), replaying)
        };
        let replayed = self.log.replay((&self.manifest, listing), state, gathered, damaged, &mut take)?;
        self.replay_groups(groups, replaying)?;
        self.current_log.store(0, Ordering::Release);
        Ok(replayed)
    }

    /// Puts the operations of `groups` into memtables, except those that are in tables.
    fn replay_groups(&self, groups: Groups, replaying: Replaying) -> Result<()> {
        for (number, _, ops, _) in &groups {
            self.span.lock().add(*number, ops.encoded().len() as u64);
        }
        let buckets = self.buckets();
        let failure = Mutex::new(None);
        let half = |which: usize| {
            if let Err(e) = self.replay_half(&groups, &buckets, replaying, which) {
                *failure.lock() = Some(e);
            }
        };
        self.core.env.executor.join(&mut || half(0), &mut || half(1));
        if let Some(e) = failure.into_inner() {
            return Err(e);
        }
        let last = groups.iter().map(|(_, first_seq, ops, _)| first_seq + ops.len() as u64 - 1).max();
        self.applied.fetch_max(last.unwrap_or(0), Ordering::AcqRel);
        // A flush now must not drop the log that still holds the rest.
        self.current_log.store(groups.last().map_or(0, |(number, ..)| *number), Ordering::Release);
        self.make_room_for_replay()
    }

    /// The operations for every second bucket.
    fn replay_half(
        &self,
        groups: &Groups,
        buckets: &Buckets,
        replaying: Replaying,
        which: usize,
    ) -> Result<()> {
        let state = self.manifest.state();
        let flushed: Vec<u64> = state.buckets.values().map(|bucket| bucket.flushed).collect();
        for (number, first_seq, ops, reached) in groups {
            for (op, seq) in ops.ops().zip(*first_seq..).filter(|(_, seq)| seq > reached) {
                let place = buckets.place(op.key);
                if place % 2 != which || flushed.get(place).is_some_and(|flushed| seq <= *flushed) {
                    continue;
                }
                if replaying == Replaying::Asked && is_in_tables(buckets.at(place), op.key, seq)? {
                    continue;
                }
                let value = if op.kind == Kind::Delete { &[] } else { op.value };
                buckets.at(place).readable.load().active().insert(&Op { value, ..op }, seq, *number);
            }
        }
        Ok(())
    }

    /// Flushes memtables that have become too large; without room they stay in memory, and in the log.
    fn make_room_for_replay(&self) -> Result<()> {
        if self.core.options.read_only || self.memory.held() <= self.memtables_budget() {
            return Ok(());
        }
        self.freeze_all();
        unless_full(self.run_flushes(|| false))
    }

    /// The last sequence number in tables and memtables.
    pub(super) fn last_seq(&self) -> u64 {
        let state = self.manifest.state();
        let tables = state.tables.values().map(|table| table.meta.max_seq);
        let buckets = state.buckets.values().map(|bucket| bucket.flushed);
        let known = tables.chain(buckets).max().unwrap_or(0);
        known.max(state.flushed_seq).max(self.applied.load(Ordering::Acquire))
    }

    /// Frees, in the background, what a crash left in the pool without an owner.
    fn reclaim_after(&self, crashed: bool) {
        if self.pool.as_ref().is_some_and(|pool| crashed || pool.needs_reclaim()) {
            self.jobs.tidy(&self.me, Wip::reclaim_now);
        }
    }

    /// If the manifest cannot decide yet what exists, a later sweep does it, or a check, or the next opening.
    pub(super) fn reclaim_now(&self) -> Result<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        if !pool::may_reclaim(pool, &self.manifest)? {
            return Ok(());
        }
        self.log.with_marked(pool.marks(), |marks| pool::reclaim(pool, marks))
    }
}

/// Whether a table of `bucket` has version `seq` of `key`, or a newer one that does not stand on it.
fn is_in_tables(bucket: &Arc<Bucket>, key: &[u8], seq: u64) -> Result<bool> {
    let (readable, mut up_to) = (bucket.readable.load(), u64::MAX);
    while let Some(found) = bucket.get_in_tables(&readable, key, up_to)?.filter(|found| found.seq >= seq) {
        if found.seq == seq || found.kind.is_whole() {
            return Ok(true);
        }
        up_to = found.seq - 1;
    }
    Ok(false)
}

fn describe(state: StartState, replayed: &Replayed, took: Duration) -> String {
    let how = match state {
        StartState::New => return "created a new database".into(),
        StartState::Closed => "a clean shutdown",
        StartState::Crashed | StartState::Lost => "a crash",
    };
    let Replayed { groups, logs, .. } = replayed;
    format!("after {how} replayed {groups} groups of {logs} logs in {:.3} s", took.as_secs_f64())
}
