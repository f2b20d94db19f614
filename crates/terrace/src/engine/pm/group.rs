//! Groups of batches: all of a group takes effect at one moment, for readers and for a crash.
//!
//! 1. A group runs alone: no single write runs beside it, and no snapshot is taken. What it is conditional on
//!    is read then, in each attempt: readers take no lock, so the holder of the gate can call them.
//! 2. Records are flushed, and the undo list becomes durable with them, before the index changes.
//! 3. While the index changes, a reader that finds a version of the group, or misses one that it removes,
//!    takes the replaced version from an overlay in DRAM. Snapshots do not see numbers as high as the group's
//!    in any case.
//! 4. The list is removed: the group is committed. Then the overlay is removed: it is visible. Then the
//!    replaced versions are retired.
//!
//! A group in which one key changes needs no list: the index changes it at one moment. If the index runs out
//! of room on the way, all changes are changed back, and the group has not happened.
//!
//! Once the group is committed nothing makes it fail: memory that cannot be given back then is left to the
//! next open ([`PmStore::afterwards`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_index::PointIndex;
use terrace_pmem::Claim;
use terrace_table::Kind;

use super::elsewhere::{Elsewhere, Place, PlaceOf, VersionRef, VersionRefOf};
use super::index::PmEngine;
use super::layout::WordChange;
use super::placed::Placed;
use super::undo::{Armed, Undo, put_back};
use super::write::{New, Old};
use super::{NO_GROUP, PmStore};
use crate::batch::{NewRangeTombstone, Op};
use crate::core::condition::Check;
use crate::core::request::Group;

/// Attempts at a group that needs room to be made.
const MOST_TIMES: usize = 8;

/// Attempts to change a key back without room, each giving back what readers have left.
const ATTEMPTS: usize = 10_000;

/// The versions that a group replaces, by key.
#[derive(Debug)]
pub(super) struct Overlay<P> {
    pub words: HashMap<Box<[u8]>, Option<VersionRef<P>>>,
}

/// What a group writes.
struct Written<'a, 'k, E: PmEngine> {
    /// By key.
    ops: &'a BTreeMap<&'k [u8], Op<'k>>,
    placed: &'a Placed<'a, 'k, E>,
    tombstone: Option<&'a NewRangeTombstone>,
}

/// One key's part in a group.
struct Step<'a, P> {
    key: &'a [u8],
    before: Option<VersionRef<P>>,
    old: Old<P>,
    new: Option<New<'a, P>>,
}

impl<P: Place> Step<'_, P> {
    fn after(&self) -> Option<u64> {
        self.new.as_ref().map(|new| new.word().bits())
    }

    fn undo(&self) -> Undo {
        let change =
            WordChange { new: self.after().unwrap_or(0), old: self.before.map_or(0, VersionRef::bits) };
        Undo { change, key: self.key.into() }
    }
}

impl<E: PmEngine> PmStore<E> {
    /// Carries out `group` if `holds`; returns whether it did.
    pub(super) fn apply_group(&self, group: Group<'_>, holds: Check<'_>) -> Result<bool> {
        loop {
            if let Some(done) = self.apply_once(group, holds)? {
                return Ok(done);
            }
        }
    }

    /// The same; `None` if what was put elsewhere for it is outdated.
    fn apply_once(&self, group: Group<'_>, holds: Check<'_>) -> Result<Option<bool>> {
        // Of several operations on one key the last counts: nobody sees a state between.
        let mut last: BTreeMap<&[u8], Op<'_>> = BTreeMap::new();
        group.requests.iter().flat_map(|r| r.batch.ops()).for_each(|op| {
            last.insert(op.key, op);
        });
        // The number of a range tombstone is that of its record, which must be written with the group.
        let tombstone = group.range_tombstone();
        let is_its = |op: &&Op<'_>| tombstone.is_some_and(|tombstone| *tombstone.place == *op.key);
        let puts = last.values().filter(|op| op.kind == Kind::Put && !is_its(op));
        let placed = self.place(puts.map(|op| (op.key, op.value)))?;
        let small = last.values().filter(|op| op.kind == Kind::Put && placed.get(op.key).is_none());
        self.home.pace(self, small.map(|op| op.key.len() + op.value.len()).sum());
        let written = Written { ops: &last, placed: &placed, tombstone };
        let mut outcome = self.apply_alone(&written, holds);
        for _ in 0..MOST_TIMES {
            if !outcome.as_ref().is_err_and(|e| self.wants_room(e))
                || !(self.home.relieve(self)? | self.make_room(usize::MAX))
            {
                break;
            }
            outcome = self.apply_alone(&written, holds);
        }
        let outcome = match outcome {
            Err(e)
                if self.wants_room(&e)
                    && (group.only_deletes() || last.values().all(|op| op.kind == Kind::Delete)) =>
            {
                self.pool.claiming(Claim::Some, || self.apply_alone(&written, holds))
            }
            outcome => outcome,
        };
        if let Ok(Some(true)) = outcome {
            placed.keep();
        }
        self.home.tidy(self);
        outcome
    }

    /// Whether a refused group may be tried again. One that could not be taken back may not.
    fn wants_room(&self, error: &Error) -> bool {
        error.is_out_of_space() && self.pending.load(Ordering::Relaxed) == NO_GROUP
    }

    fn apply_alone(&self, written: &Written<'_, '_, E>, holds: Check<'_>) -> Result<Option<bool>> {
        let _alone = self.gate.exclusive();
        // Ended before others pass the gate.
        let _whole = self.core.health.whole();
        self.admit()?;
        if written.placed.are_outdated() {
            return Ok(None);
        }
        if !holds()? {
            return Ok(Some(false));
        }
        let puts = written.ops.values().filter(|op| op.kind == Kind::Put);
        self.core.range_tombstones.note_puts(puts.map(|op| op.key));
        let number = self.next_number();
        let outcome = match self.try_group(written, number) {
            Err(e) if self.wants_room(&e) => {
                self.give_back();
                self.try_group(written, number)
            }
            outcome => outcome,
        };
        outcome.map(|()| Some(true))
    }

    fn try_group(&self, written: &Written<'_, '_, E>, number: u64) -> Result<()> {
        let mut steps = {
            let _here = self.limbo.enter();
            self.steps(written.ops, written.placed)?
        };
        match &mut steps[..] {
            [] => Ok(()),
            [only] => {
                self.take(only)?;
                self.finish_step(steps.remove(0));
                Ok(())
            }
            _ => self.take_all(steps, number, written),
        }
    }

    /// The steps of the group, with all records written and flushed.
    fn steps<'a>(
        &'a self,
        ops: &BTreeMap<&'a [u8], Op<'_>>,
        placed: &Placed<'_, '_, E>,
    ) -> Result<Vec<Step<'a, PlaceOf<E>>>> {
        let newest = self.core.snapshots.newest();
        let mut steps = Vec::with_capacity(ops.len());
        for (key, op) in ops {
            let before = self.decode_some(self.index.get(key)?)?;
            if op.kind == Kind::Delete && before.is_none_or(VersionRef::is_tombstone) {
                continue;
            }
            let old = self.old(before, key, newest)?;
            let new = self.successor(op, old, placed)?;
            steps.push(Step { key, before, old, new });
        }
        Ok(steps)
    }

    /// Changes the index as a step requires.
    fn take(&self, step: &Step<'_, PlaceOf<E>>) -> Result<()> {
        match step.after() {
            Some(word) => self.index.insert(step.key, word).map(drop),
            None => self.index.remove(step.key).map(drop),
        }
    }

    fn take_all(
        &self,
        steps: Vec<Step<'_, PlaceOf<E>>>,
        number: u64,
        written: &Written<'_, '_, E>,
    ) -> Result<()> {
        let changes: Vec<Undo> = steps.iter().map(Step::undo).collect();
        let list = Armed::arm(&self.pool, self.header, &changes, E::Home::NUMBERS_EACH)?;
        let words = steps.iter().map(|step| (step.key.into(), step.before)).collect();
        self.group.store(Some(Arc::new(Overlay { words })));
        self.pending.store(number, Ordering::Release);
        self.add_tombstone(&steps, written);
        for (i, step) in steps.iter().enumerate() {
            if let Err(e) = self.take(step) {
                // The last one is taken back, too, whether it was taken or not.
                if let Err(worse) = self.pool.claiming(Claim::All, || self.take_back(&changes[..=i])) {
                    // Readers continue with the overlay; the next open takes back the rest.
                    self.core.health.fail(Error::Poisoned { cause: Arc::new(worse) });
                    written.placed.keep();
                    steps.into_iter().filter_map(|step| step.new).for_each(|new| {
                        new.keep();
                    });
                    return Err(e);
                }
                self.afterwards(list.disarm());
                written.tombstone.iter().for_each(|new| self.core.range_tombstones.take_back(new.id));
                // Before readers trust the index again: a reader that has seen some of the group looks once more.
                self.taken_back.fetch_add(1, Ordering::Release);
                self.show();
                // Places are given back once it is clear that no further attempt uses them.
                for new in steps.into_iter().filter_map(|step| step.new) {
                    if let word @ VersionRef::Record(_) = new.keep() {
                        self.limbo.retire(word);
                    }
                }
                return Err(e);
            }
        }
        self.afterwards(list.disarm());
        self.show();
        steps.into_iter().for_each(|step| self.finish_step(step));
        Ok(())
    }

    /// Has readers know of the group's range tombstone, which they see with the rest of the group.
    fn add_tombstone(&self, steps: &[Step<'_, PlaceOf<E>>], written: &Written<'_, '_, E>) {
        let Some(new) = written.tombstone else { return };
        let record = steps.iter().find(|step| *step.key == *new.place).and_then(|step| step.new.as_ref());
        if let Some(New::Record(record)) = record {
            self.core.range_tombstones.add_new(new, record.number());
        }
    }

    /// Readers see the index as it is.
    fn show(&self) {
        self.pending.store(NO_GROUP, Ordering::Release);
        self.group.store(None);
    }

    fn take_back(&self, changes: &[Undo]) -> Result<()> {
        for change in changes.iter().rev() {
            let mut attempts = 0;
            while let Err(e) = put_back(&self.index, change) {
                attempts += 1;
                if !e.is_out_of_space() || attempts == ATTEMPTS {
                    return Err(e);
                }
                self.give_back();
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Finishes a step: retires what it leaves without a name.
    fn finish_step(&self, step: Step<'_, PlaceOf<E>>) {
        let new: Option<VersionRefOf<E>> = step.new.map(New::keep);
        self.note_weight(new, step.before);
        if let Some(word) = new {
            self.note_kept(word);
        }
        let _here = self.limbo.enter();
        self.afterwards(self.retire(step.key, step.old));
    }
}
