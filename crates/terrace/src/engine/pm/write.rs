//! Single writes: a put or a delete of one key, with or without a condition.
//!
//! A put has two drains. The record is written and flushed, and the index drains it together with what it writes
//! itself before it publishes the word (`KeyIndex::drains_first`). A delete that no snapshot minds has one.
//!
//! Where there are no snapshots nothing is read of what is replaced. Where there are, the version that is replaced may
//! be needed: the new one then names it, and a deletion is a record, too.

use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_pmem::Claim;
use terrace_table::Kind;

use super::PmStore;
use super::index::KeyIndex;
use super::sparse::{FIRST_SLABS, MOST_TIMES};
use crate::batch::Op;
use crate::core::request::Condition;
use crate::versions::{NewRecord, Record, RecordRef, Version};

/// What is to become of the version that a write replaces, and of those under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Old {
    /// There is none.
    Absent,
    /// Nobody needs any of them.
    AllGo(RecordRef),
    /// It goes; one under it hangs under the new version.
    Goes(RecordRef, Option<RecordRef>),
    /// It hangs under the new version.
    Stays(RecordRef),
}

impl Old {
    /// What hangs under the new version.
    pub fn under(self) -> Option<RecordRef> {
        match self {
            Old::Absent | Old::AllGo(_) => None,
            Old::Goes(_, under) => under,
            Old::Stays(word) => Some(word),
        }
    }
}

impl<I: KeyIndex> PmStore<I> {
    /// Carries `op` out if `condition` holds; says whether it did.
    pub(super) fn write_single(&self, op: &Op<'_>, condition: Condition) -> Result<bool> {
        let mut outcome = self.write_through_gate(op, condition);
        for time in 0..MOST_TIMES {
            let is_refused = outcome.as_ref().is_err_and(Error::is_out_of_space);
            if !is_refused || !self.make_room(FIRST_SLABS << time) {
                break;
            }
            outcome = self.write_through_gate(op, condition);
        }
        match outcome {
            // For this some room is kept.
            Err(e) if e.is_out_of_space() && op.kind == Kind::Delete => {
                self.pool.claiming(Claim::Some, || self.write_through_gate(op, condition))
            }
            outcome => outcome,
        }
    }

    fn write_through_gate(&self, op: &Op<'_>, condition: Condition) -> Result<bool> {
        let _shared = self.gate.shared();
        self.admit()?;
        match self.try_single(op, condition) {
            Err(e) if e.is_out_of_space() => {
                // Perhaps what waits for readers is enough.
                self.give_back();
                self.try_single(op, condition)
            }
            outcome => outcome,
        }
    }

    fn try_single(&self, op: &Op<'_>, condition: Condition) -> Result<bool> {
        let _here = self.limbo.enter();
        let newest = self.core.snapshots.newest();
        match (condition.wants_key(), newest) {
            (None, 0) => self.write_blindly(op).map(|()| true),
            (wanted, newest) => self.write_over(op, wanted, newest),
        }
    }

    /// Writes where no snapshot is held: nothing that is replaced is needed.
    fn write_blindly(&self, op: &Op<'_>) -> Result<()> {
        let old = match op.kind {
            Kind::Put => {
                let new = self.store(op, None)?;
                let old = self.index.insert(op.key, new.word().bits())?;
                new.keep();
                old
            }
            Kind::Delete => self.index.remove(op.key)?,
        };
        let old = self.decode_some(old).map(|old| old.map_or(Old::Absent, Old::AllGo));
        self.afterwards(old.and_then(|old| self.retire(old)));
        Ok(())
    }

    /// What is left to be done once a write has happened: that it fails makes no failure of the write, which is durable
    /// and seen. What should have been given back is nobody's then, and found by the next open.
    pub(super) fn afterwards(&self, done: Result<()>) {
        if let Err(error) = done {
            tracing::warn!(%error, "what a write has replaced could not be given back");
            self.core.counters.background_errors.add(1);
            self.pool.leave_unreclaimed();
        }
    }

    /// Writes over the version that is there, if that is as `wanted`.
    fn write_over(&self, op: &Op<'_>, wanted: Option<bool>, newest: u64) -> Result<bool> {
        loop {
            let before = self.decode_some(self.index.get(op.key)?)?;
            if wanted.is_some_and(|wanted| wanted != before.is_some_and(|word| !word.is_tombstone())) {
                return Ok(false);
            }
            if op.kind == Kind::Delete && before.is_none_or(RecordRef::is_tombstone) {
                return Ok(true);
            }
            let old = self.old(before, op.key, newest)?;
            let new = self.successor(op, old)?;
            let (from, to) = (before.map(RecordRef::bits), new.as_ref().map(|new| new.word().bits()));
            if self.index.compare_exchange(op.key, from, to)?.is_ok() {
                if let Some(word) = new.map(NewRecord::keep) {
                    self.note_kept(word);
                }
                self.afterwards(self.retire(old));
                return Ok(true);
            }
        }
    }

    /// The record that is to be the newest of its key; `None` if the key is to be gone from the index.
    pub(super) fn successor(&self, op: &Op<'_>, old: Old) -> Result<Option<NewRecord<'_>>> {
        match (op.kind, old.under()) {
            (Kind::Delete, None) => Ok(None),
            (_, under) => self.store(op, under).map(Some),
        }
    }

    /// Writes and flushes a record; drained is it by the index.
    fn store(&self, op: &Op<'_>, older: Option<RecordRef>) -> Result<NewRecord<'_>> {
        let value = if op.kind == Kind::Put { Some(op.value) } else { None };
        let number = self.now.load(Ordering::Relaxed);
        let new = NewRecord::write(&self.pool, &Version { key: op.key, value, number, older })?;
        if !self.index.drains_first() {
            self.pool.drain();
        }
        Ok(new)
    }

    /// What becomes of the versions that `before` is the newest of, if the newest snapshot held is `newest` (0: none). The
    /// caller holds the gate and is present.
    pub(super) fn old(&self, before: Option<RecordRef>, key: &[u8], newest: u64) -> Result<Old> {
        let Some(word) = before else { return Ok(Old::Absent) };
        if newest == 0 {
            return Ok(Old::AllGo(word));
        }
        // SAFETY: the caller is present since before the word was loaded.
        let record = unsafe { Record::load(&self.pool, word)? }.of(&self.pool, key)?;
        Ok(match record.number <= newest {
            true => Old::Stays(word),
            false => Old::Goes(word, self.link(&record)?),
        })
    }

    /// Retires what a write that has happened leaves nameless.
    pub(super) fn retire(&self, old: Old) -> Result<()> {
        self.mind_slabs();
        match old {
            Old::Absent | Old::Stays(_) => Ok(()),
            Old::Goes(word, _) => {
                self.limbo.retire(word);
                Ok(())
            }
            Old::AllGo(word) => self.retire_chain(word),
        }
    }
}
