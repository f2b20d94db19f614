//! Having the engine apply a group, on the thread of the writer that leads it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::Store;
use super::commit::{Outcome, Refusal};
use super::folding::Folded;
use crate::batch::WriteBatch;
use crate::core::condition::Check;
use crate::core::request::{Group, Request};
use crate::keyspaces::callbacks;

/// A flag that is true as long as this is kept. One thread at a time raises it.
pub(super) struct Raised<'s>(&'s AtomicBool);

impl Raised<'_> {
    pub(super) fn of(flag: &AtomicBool) -> Raised<'_> {
        flag.store(true, Ordering::Relaxed);
        Raised(flag)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Store {
    /// Does `work` as the leader, with no group beside it.
    pub(super) fn alone(&self, work: impl Fn(&Store) -> Result<()>) -> Result<()> {
        callbacks::check_none_runs()?;
        let request = Request { batch: WriteBatch::new(), alone: true, sync: false };
        let whole_work = |_: &[&Request]| {
            let _whole = self.core.health.whole();
            work(self).map(|()| true).map_err(Refusal::from)
        };
        self.queue.commit(request, whole_work).map(drop)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        self.check_not_closed()?;
        self.core.health.uncut()
    }

    /// Whether it may be read: an error once it is closed.
    pub(super) fn check_not_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Applies a group on the leader's thread, if `holds`; returns whether it did.
    pub(super) fn apply(&self, group: &[&Request], holds: Check<'_>) -> Outcome {
        self.check_open()?;
        if !group.iter().any(|request| request.batch.has_merges()) {
            return Ok(self.apply_folded(group, holds)?);
        }
        let mut shut = None;
        loop {
            let folded = self.fold(group)?;
            if let Some(done) = self.apply_if_unchanged(group, &folded, holds)? {
                return Ok(done);
            }
            // Others may be faster for ever: from now on they queue behind this group.
            shut.get_or_insert_with(|| Raised::of(&self.all_queue));
        }
    }

    /// Applies a group of which `folded` has the merged values; `None` if one was merged into another value than there
    /// is now.
    fn apply_if_unchanged(
        &self,
        group: &[&Request],
        folded: &Folded<'_>,
        holds: Check<'_>,
    ) -> Result<Option<bool>> {
        let requests = folded.in_place_of(group);
        if self.engine.writes_by_groups() {
            // Nobody else has written since, but what was read may have come to be due.
            let stands = !folded.can_be_due(&self.core.deadlines) || folded.is_as_read(&*self.engine)?;
            return stands.then(|| self.apply_folded(&requests, holds)).transpose();
        }
        let is_overtaken = Cell::new(false);
        let unchanged = || {
            is_overtaken.set(!folded.is_as_read(&*self.engine)?);
            Ok(!is_overtaken.get() && holds()?)
        };
        let done = self.apply_folded(&requests, &unchanged)?;
        Ok((!is_overtaken.get()).then_some(done))
    }

    /// Applies a group without merges, if `holds`; returns whether it did.
    fn apply_folded(&self, group: &[&Request], holds: Check<'_>) -> Result<bool> {
        debug_assert!(!group.iter().any(|request| request.batch.has_merges()), "an operand is no value");
        let counters = &self.core.counters;
        // Judged before numbers are given out, so that a write that does not take place leaves no gap.
        let by_groups = self.engine.writes_by_groups();
        if by_groups && !holds()? {
            return Ok(false);
        }
        let sync = group.iter().any(|r| r.sync);
        let group = Group { requests: group, first_seq: self.last_seq.load(Ordering::Relaxed) + 1, sync };
        if group.ops() == 0 {
            return self.engine.sync().map(|()| true);
        }
        let _span =
            tracing::trace_span!("group", batches = group.requests.len(), ops = group.ops(), sync).entered();
        let last = group.first_seq + group.ops() - 1;
        // Given out even if the group fails: a log may hold part of it.
        self.last_seq.store(last, Ordering::Relaxed);
        let ops = group.requests.iter().flat_map(|request| request.batch.ops());
        let puts = ops.filter(|op| op.kind != Kind::Delete).map(|op| op.key);
        self.core.empty_ranges.write(last, puts.clone());
        let whole = self.core.health.whole();
        if by_groups {
            self.apply_in_turn(group, puts)?;
        } else if !self.engine.apply_if(group, holds)? {
            return Ok(false);
        }
        drop(whole);
        self.engine.intact()?;
        self.core.snapshots.advance(last);
        counters.commit_groups.add(1);
        counters.committed_batches.add(group.requests.len() as u64);
        self.count(&group);
        Ok(true)
    }

    /// Has an engine apply a group of which readers see nothing before the store says so.
    fn apply_in_turn<'g>(&self, group: Group<'g>, puts: impl Iterator<Item = &'g [u8]>) -> Result<()> {
        let tombstones = &self.core.range_tombstones;
        tombstones.note_puts(puts);
        let new = group.range_tombstone();
        let (numbers, ops) = ((group.first_seq, group.first_seq + group.ops() - 1), group.requests.iter());
        let keys = ops.flat_map(|request| request.batch.ops()).map(|op| op.key);
        self.core.recent_writes.note(numbers, keys, new.is_some());
        let Some(new) = new else { return self.engine.apply(group) };
        tombstones.add_new(new, group.first_seq);
        self.engine.apply(group).inspect_err(|_| tombstones.take_back(new.id))
    }

    fn count(&self, group: &Group<'_>) {
        let (mut puts, mut deletes, mut bytes) = (0, 0, 0);
        for op in group.requests.iter().flat_map(|r| r.batch.ops()) {
            bytes += (op.key.len() + op.value.len()) as u64;
            match op.kind {
                Kind::Put | Kind::Operand => puts += 1,
                Kind::Delete => deletes += 1,
            }
        }
        self.core.counters.puts.add(puts);
        self.core.counters.deletes.add(deletes);
        self.core.counters.user_bytes.add(bytes);
    }
}
