//! Single writes: a put or a delete of one key, with or without a condition.
//!
//! A put has two drains. The record is written and flushed, and the index drains it together with what it writes
//! itself before it publishes the word (`KeyIndex::drains_first`). A delete has one, if no snapshot is held.
//!
//! Without snapshots nothing is read of the replaced version. With snapshots the replaced version may be
//! needed: the new one then names it, and a deletion is a record, too.

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_index::PointIndex;
use terrace_index::point::admit_word;
use terrace_pmem::Claim;
use terrace_table::Kind;

use super::PmStore;
use super::elsewhere::{Elsewhere, Place, PlaceOf, VersionRef, VersionRefOf};
use super::index::{KeyIndex, PmEngine};
use super::placed::Placed;
use super::read::Outcome;
use super::sparse::{FIRST_SLABS, MOST_TIMES};
use crate::batch::Op;
use crate::core::condition::{Condition, Expected};
use crate::core::engine::no_operands;
use crate::versions::{NewRecord, Version};

use super::versions::Named;

/// Longer values are compared before the index is asked: it may hold a lock meanwhile, and the new value is written in
/// vain if the old one is another.
const MOST_SWAPPED_BYTES: usize = 4 << 10;

/// What happens to the version that a write replaces, and to those under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Old<P> {
    /// There is none.
    Absent,
    /// None of them is needed.
    AllGo(VersionRef<P>),
    /// It goes; a version under it hangs under the new version.
    Goes(VersionRef<P>, Option<VersionRef<P>>),
    /// It hangs under the new version.
    Stays(VersionRef<P>),
}

/// A version that is written and has no name yet.
#[derive(Debug)]
pub(super) enum New<'p, P> {
    Record(NewRecord<'p>),
    Place(P),
}

impl<P: Place> New<'_, P> {
    pub fn word(&self) -> VersionRef<P> {
        match self {
            New::Record(record) => VersionRef::Record(record.word()),
            New::Place(place) => VersionRef::Place(*place),
        }
    }

    /// It has a name now: its record stays.
    pub fn keep(self) -> VersionRef<P> {
        match self {
            New::Record(record) => VersionRef::Record(record.keep()),
            New::Place(place) => VersionRef::Place(place),
        }
    }
}

impl<P: Place> Old<P> {
    /// The version that hangs under the new one.
    pub fn under(self) -> Option<VersionRef<P>> {
        match self {
            Old::Absent | Old::AllGo(_) => None,
            Old::Goes(_, under) => under,
            Old::Stays(word) => Some(word),
        }
    }
}

impl<E: PmEngine> PmStore<E> {
    /// Carries out `op` if `condition` holds; returns whether it did.
    pub(super) fn write_single(&self, op: &Op<'_>, condition: Condition<'_>) -> Result<bool> {
        loop {
            if let Some(done) = self.write_once(op, condition)? {
                return Ok(done);
            }
        }
    }

    /// Puts a key under the number that its version had in a pool before this one. The caller is alone, and calls
    /// [`number_from`](Self::number_from) afterwards.
    pub(super) fn write_under(&self, number: u64, op: &Op<'_>) -> Result<()> {
        let before = if E::Home::NUMBERS_EACH { number.saturating_sub(1) } else { number };
        self.number_from(before);
        self.write_single(op, Condition::None)?;
        if self.number() > number.max(1) {
            // It was written when it was tried again: once more, where there is room now.
            self.number_from(before);
            self.write_single(op, Condition::None)?;
        }
        Ok(())
    }

    /// The same; `None` if what was put elsewhere for it is outdated.
    fn write_once(&self, op: &Op<'_>, condition: Condition<'_>) -> Result<Option<bool>> {
        let is_large = self.goes_elsewhere(op);
        // Where a range tombstone may hide the version, only the second look counts.
        let is_hidden = self.core.range_tombstones.is_over(op.key);
        if is_large && !is_hidden && !condition.holds(self, op.key)? {
            return Ok(Some(false));
        }
        let placed = self.place(is_large.then_some((op.key, op.value)).into_iter())?;
        if op.kind == Kind::Put && !is_large {
            self.home.pace(self, op.key.len() + op.value.len());
        }
        let mut outcome = self.write_through_gate(op, condition, &placed);
        for time in 0..MOST_TIMES {
            let is_refused = outcome.as_ref().is_err_and(Error::is_out_of_space);
            if !is_refused || !(self.home.relieve(self)? | self.make_room(FIRST_SLABS << time)) {
                break;
            }
            outcome = self.write_through_gate(op, condition, &placed);
        }
        let outcome = match outcome {
            // Some room is kept back for this.
            Err(e) if e.is_out_of_space() && op.kind == Kind::Delete => {
                self.pool.claiming(Claim::Some, || self.write_through_gate(op, condition, &placed))
            }
            outcome => outcome,
        };
        if let Ok(Some(true)) = outcome {
            placed.keep();
        }
        self.home.tidy(self);
        outcome
    }

    fn write_through_gate(
        &self,
        op: &Op<'_>,
        condition: Condition<'_>,
        placed: &Placed<'_, '_, E>,
    ) -> Result<Option<bool>> {
        let _shared = self.gate.shared();
        // Ended before the gate opens.
        let _whole = self.core.health.whole();
        self.admit()?;
        if placed.are_outdated() {
            return Ok(None);
        }
        if op.kind == Kind::Put {
            self.core.range_tombstones.note_puts(std::iter::once(op.key));
        }
        let outcome = match self.try_single(op, condition, placed) {
            Err(e) if e.is_out_of_space() => {
                // Giving back what waits for readers may be enough.
                self.give_back();
                self.try_single(op, condition, placed)
            }
            outcome => outcome,
        };
        outcome.map(Some)
    }

    fn try_single(&self, op: &Op<'_>, condition: Condition<'_>, placed: &Placed<'_, '_, E>) -> Result<bool> {
        let _here = self.limbo.enter();
        let newest = self.core.snapshots.newest();
        match (condition, newest) {
            (Condition::None, 0) => return self.write_blindly(op, placed).map(|()| true),
            (Condition::IfIs(expected), 0) if self.is_swapped(op, expected) => {
                if let Some(done) = self.swap(op, expected, placed)? {
                    return Ok(done);
                }
            }
            _ => {}
        }
        self.write_over(op, condition, newest, placed)
    }

    /// Whether the index does what `op` asks for at once: both values are short and lie in the pool, and no range
    /// tombstone hides what is replaced.
    fn is_swapped(&self, op: &Op<'_>, expected: &Expected<'_>) -> bool {
        op.kind == Kind::Put
            && op.value.len().max(expected.len()) <= MOST_SWAPPED_BYTES
            && !self.goes_elsewhere(op)
            && !self.core.range_tombstones.is_over(op.key)
    }

    /// Puts while no snapshot is held if the key has the expected value, on one way through the index. `None`: the
    /// value is elsewhere or there is no room, and nothing has happened.
    fn swap(&self, op: &Op<'_>, expected: &Expected<'_>, placed: &Placed<'_, '_, E>) -> Result<Option<bool>> {
        let new = match self.store(op, None, placed) {
            // What refuses the write may be the value.
            Err(e) if e.is_out_of_space() => return Ok(None),
            new => new?,
        };
        let word = Some(admit_word(new.word().bits())?);
        let mut holds = Ok(None);
        let before = self.index.update(op.key, &mut |now| {
            holds = self.is_expected(op.key, now, expected);
            matches!(holds, Ok(Some(true))).then_some(word)
        })?;
        if !matches!(holds, Ok(Some(true))) {
            return holds;
        }
        self.replaced_all(op.key, before, Some(new.keep()));
        Ok(Some(true))
    }

    /// Whether `key` has the expected value if its newest version is `now`; `None` if that is not in the pool.
    fn is_expected(&self, key: &[u8], now: Option<u64>, expected: &Expected<'_>) -> Result<Option<bool>> {
        let version = self.decode_some(now)?.map(|word| self.named(word, key)).transpose()?;
        let value = match version {
            Some(Named::Record(record)) if !record.word.is_remote() => {
                (!record.word.is_tombstone()).then_some(record.value)
            }
            Some(_) => return Ok(None),
            None => None,
        };
        Ok(Some(expected.is(value) || expected.accepts(value.map(Bytes::copy_from_slice))))
    }

    /// Writes while no snapshot is held: no replaced version is needed.
    fn write_blindly(&self, op: &Op<'_>, placed: &Placed<'_, '_, E>) -> Result<()> {
        let (old, new) = match op.kind {
            Kind::Put => {
                let new = self.store(op, None, placed)?;
                let old = self.index.insert(op.key, new.word().bits())?;
                (old, Some(new.keep()))
            }
            Kind::Delete => (self.index.remove(op.key)?, None),
            Kind::Operand => return Err(no_operands()),
        };
        self.replaced_all(op.key, old, new);
        Ok(())
    }

    /// Retires `old` and all versions under it: `new` has replaced it, and nobody needs them.
    fn replaced_all(&self, key: &[u8], old: Option<u64>, new: Option<VersionRefOf<E>>) {
        self.afterwards(self.decode_some(old).and_then(|old| {
            self.note_weight(new, old);
            self.retire(key, old.map_or(Old::Absent, Old::AllGo))
        }));
    }

    /// Tells the engine's home that a version has been written.
    pub(super) fn note_weight(&self, new: Option<VersionRefOf<E>>, before: Option<VersionRefOf<E>>) {
        if let Some(VersionRef::Record(record)) = new {
            self.home.was_written(record, before);
        }
    }

    /// Handles the work left after a write has happened: its failure is no failure of the write, which is
    /// durable and visible. What should have been given back then has no name, and the next open finds it.
    pub(in crate::engine) fn afterwards(&self, done: Result<()>) {
        if let Err(error) = done {
            tracing::warn!(%error, "what a write has replaced could not be given back");
            self.core.put_off(&error);
            self.pool.leave_unreclaimed();
        }
    }

    /// Overwrites the existing version if that is as `condition` wants it. It is not freed while the caller is
    /// present, so that its word stands for it until the exchange.
    fn write_over(
        &self,
        op: &Op<'_>,
        condition: Condition<'_>,
        newest: u64,
        placed: &Placed<'_, '_, E>,
    ) -> Result<bool> {
        let mut missing = None;
        loop {
            let before = self.decode_some(self.index.get(op.key)?)?;
            match self.holds_for(op.key, condition, before, &mut missing)? {
                Outcome::Value(Some(true)) => {}
                Outcome::Value(_) => return Ok(false),
                Outcome::Moved => continue,
            }
            if op.kind == Kind::Delete && before.is_none_or(VersionRef::is_tombstone) {
                return Ok(true);
            }
            let old = self.old(before, op.key, newest)?;
            let new = self.successor(op, old, placed)?;
            let (from, to) = (before.map(VersionRef::bits), new.as_ref().map(|new| new.word().bits()));
            if self.index.compare_exchange(op.key, from, to)?.is_ok() {
                let new = new.map(New::keep);
                self.note_weight(new, before);
                if let Some(word) = new {
                    self.note_kept(word);
                }
                self.afterwards(self.retire(op.key, old));
                return Ok(true);
            }
        }
    }

    /// Whether `condition` holds for `before`, the newest version of `key`. The caller holds the gate and is present.
    fn holds_for(
        &self,
        key: &[u8],
        condition: Condition<'_>,
        before: Option<VersionRefOf<E>>,
        missing: &mut Option<u64>,
    ) -> Result<Outcome<bool>> {
        let asks_for_value = matches!(condition, Condition::IfIs(_));
        if condition.is_none() || !(asks_for_value || self.core.range_tombstones.is_over(key)) {
            let exists = before.is_some_and(|word| !word.is_tombstone());
            let holds = condition.is_none() || exists == matches!(condition, Condition::IfExists);
            return Ok(Outcome::Value(Some(holds)));
        }
        let Outcome::Value(value) = self.value_of(key, before, missing)? else { return Ok(Outcome::Moved) };
        Ok(Outcome::Value(Some(match condition {
            Condition::None => true,
            Condition::IfAbsent => value.is_none(),
            Condition::IfExists => value.is_some(),
            Condition::IfIs(expected) => expected.accepts(value),
        })))
    }

    /// The version that becomes the newest of its key; `None` if the key is to be removed from the index.
    pub(super) fn successor<'s>(
        &'s self,
        op: &Op<'_>,
        old: Old<PlaceOf<E>>,
        placed: &Placed<'_, '_, E>,
    ) -> Result<Option<New<'s, PlaceOf<E>>>> {
        match (op.kind, old.under()) {
            (Kind::Delete, None) => Ok(None),
            (_, under) => self.store(op, under, placed).map(Some),
        }
    }

    /// Writes and flushes a record, unless the version is elsewhere and its word will do; the index drains
    /// it. The caller holds the gate.
    fn store<'s>(
        &'s self,
        op: &Op<'_>,
        older: Option<VersionRefOf<E>>,
        placed: &Placed<'_, '_, E>,
    ) -> Result<New<'s, PlaceOf<E>>> {
        let older_bits = older.map(VersionRef::bits);
        let new = match placed.get(op.key).filter(|_| op.kind == Kind::Put) {
            // A snapshot taken since its number was given out must not see it.
            Some((number, place)) if older.is_none() && self.core.snapshots.newest() < number => {
                return Ok(New::Place(place));
            }
            Some((_, place)) => {
                NewRecord::remote(&self.pool, op.key, place.bits(), self.number_for_version(), older_bits)?
            }
            None => {
                let value = if op.kind == Kind::Put { Some(op.value) } else { None };
                let number = self.number_for_version();
                NewRecord::write(&self.pool, &Version { key: op.key, value, number, older: older_bits })?
            }
        };
        if !self.index.drains_first() {
            self.pool.drain();
        }
        Ok(New::Record(new))
    }

    /// What happens to the versions of which `before` is the newest, if the newest snapshot held is `newest`
    /// (0: none). The caller holds the gate and is present.
    pub(super) fn old(
        &self,
        before: Option<VersionRefOf<E>>,
        key: &[u8],
        newest: u64,
    ) -> Result<Old<PlaceOf<E>>> {
        let Some(word) = before else { return Ok(Old::Absent) };
        if newest == 0 {
            return Ok(Old::AllGo(word));
        }
        Ok(match self.named(word, key)? {
            Named::Record(record) if record.number > newest => Old::Goes(word, self.link(&record)?),
            _ => Old::Stays(word),
        })
    }

    /// Retires what a write of `key` that has happened leaves without a name.
    pub(super) fn retire(&self, key: &[u8], old: Old<PlaceOf<E>>) -> Result<()> {
        self.mind_slabs();
        match old {
            Old::Absent | Old::Stays(_) => Ok(()),
            Old::Goes(word, _) => self.retire_version(key, word),
            Old::AllGo(word) => self.retire_chain(key, word),
        }
    }
}
