//! Iterators over a range of a snapshot, from both ends.
//!
//! A walk goes one way only, so an iterator has up to two: one from the front, made by the first `next`, and
//! one from the back, made by the first `next_back`. What one has returned is outside the other's bound, so
//! that they meet.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_pmem::Pool;

use crate::core::empty_ranges::Skip;
use crate::core::engine::{Direction, EngineIter, Step};
use crate::db::hold::Hold;
use crate::keyspaces::{Places, Space};

/// The entries between two places, in order, from both ends.
pub(super) struct StoredIter {
    /// The requested range.
    range: Places,
    /// The rest of it: past what the front has returned or was moved to, before what the back has.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    front: Option<Box<dyn EngineIter>>,
    back: Option<Box<dyn EngineIter>>,
    /// What the walk that was moved last has come to.
    entry: Step,
    /// Whether each end has come to the end of the range.
    at_end: [bool; 2],
    /// What the walks read, if any of it lies in persistent memory.
    pool: Option<Pool>,
    /// Failed mappings of tables when its walks were made.
    failed_maps: u64,
    /// Last, as the walks read what it keeps.
    hold: Arc<Hold>,
}

impl StoredIter {
    pub fn new(hold: Arc<Hold>, range: Places) -> StoredIter {
        let (lower, upper) = range.clone();
        let (failed_maps, pool) = (hold.failed_maps(), hold.engine().pool().cloned());
        let (front, back, entry, at_end) = (None, None, Step::default(), [false; 2]);
        StoredIter { hold, range, lower, upper, front, back, entry, at_end, pool, failed_maps }
    }

    /// Has the front go on with the first entry at `key` or after it, and within the range.
    fn seek(&mut self, key: &[u8]) {
        let inside = above(key, &self.range.0);
        self.at_end = [false; 2];
        self.lower = if inside { Bound::Included(key.to_vec()) } else { self.range.0.clone() };
        self.front = None;
    }

    /// Has the back go on with the last entry at `key` or before it, and within the range.
    fn seek_for_prev(&mut self, key: &[u8]) {
        let inside = below(key, &self.range.1);
        self.at_end = [false; 2];
        self.upper = if inside { Bound::Included(key.to_vec()) } else { self.range.1.clone() };
        self.back = None;
    }

    /// Moves the walk in `direction` to its next entry, wherever that lies; false if there is none.
    fn advance(&mut self, direction: Direction) -> Result<bool> {
        let walk = match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        };
        let is_there = match walk {
            Some(walk) => walk.step(&mut self.entry),
            None => self.begin(direction),
        }?;
        self.pool.as_ref().map_or(Ok(()), Pool::intact)?;
        Ok(is_there)
    }

    /// Makes the walk in `direction`, behind what is known to be empty, and moves it to its first entry.
    fn begin(&mut self, direction: Direction) -> Result<bool> {
        let (walk, bound) = match direction {
            Direction::Forward => (&mut self.front, &self.lower),
            Direction::Backward => (&mut self.back, &self.upper),
        };
        let (bound, at, empty) = (as_slice(bound), self.hold.seq(), self.hold.empty_ranges());
        let made = walk.insert(self.hold.engine().clone().walk(at, direction)?);
        match empty.skip(direction, bound, at) {
            Skip::Nothing => made.seek(bound)?,
            Skip::To(behind) => made.seek(as_slice(&behind))?,
            Skip::Everything => {
                *walk = None;
                return Ok(false);
            }
        }
        let is_there = made.step(&mut self.entry)?;
        let key = is_there.then(|| key_of(&self.entry, &**made));
        empty.note(direction, bound, at, key, made.passed());
        Ok(is_there)
    }

    /// If a mapping of a table has failed: what the walks have read ahead is not to be had. New ones are made, and read
    /// that table by calls.
    fn renew(&mut self) -> bool {
        let failed_maps = self.hold.failed_maps();
        if failed_maps == self.failed_maps {
            return false;
        }
        self.failed_maps = failed_maps;
        (self.front, self.back) = (None, None);
        true
    }

    fn walk(&self, direction: Direction) -> Option<&dyn EngineIter> {
        match direction {
            Direction::Forward => self.front.as_deref(),
            Direction::Backward => self.back.as_deref(),
        }
    }

    /// Moves the walk in `direction` to its next entry in the range; false if there is none. What is read there is sound if
    /// no mapping has failed by then.
    fn advance_in_range(&mut self, direction: Direction) -> Result<bool> {
        let end = usize::from(direction == Direction::Backward);
        if self.at_end[end] {
            return Ok(false);
        }
        loop {
            let moved = self.advance(direction);
            let inside = match (&moved, self.walk(direction)) {
                (Ok(true), Some(walk)) => {
                    let key = key_of(&self.entry, walk);
                    match direction {
                        Direction::Forward => below(key, &self.upper),
                        Direction::Backward => above(key, &self.lower),
                    }
                }
                _ => false,
            };
            if self.renew() {
                continue;
            }
            let is_there = moved?;
            if inside {
                return Ok(true);
            }
            self.at_end[end] = true;
            if is_there {
                // A later seek of the other end may bring an entry that this walk has passed back into the range.
                match direction {
                    Direction::Forward => self.front = None,
                    Direction::Backward => self.back = None,
                }
            }
            return Ok(false);
        }
    }

    /// The next entry from the end from which `direction` leads.
    pub fn step(&mut self, direction: Direction) -> Result<Option<(Bytes, Bytes)>> {
        let entry = self.step_over(direction)?;
        entry.map(|(key, value)| Ok((key, value?))).transpose()
    }

    /// The same, with why its value is not known if it is not.
    pub fn step_over(&mut self, direction: Direction) -> Result<Option<(Bytes, Result<Bytes>)>> {
        loop {
            if !self.advance_in_range(direction)? {
                return Ok(None);
            }
            let entry = std::mem::take(&mut self.entry);
            let Some(walk) = self.walk(direction) else { return Ok(None) };
            let (entry, failure) = (entry.into_entry(&walk.here()), walk.failure().cloned());
            if self.renew() {
                continue;
            }
            let (key, value) = entry?;
            match direction {
                Direction::Forward => exclude(&mut self.lower, &key),
                Direction::Backward => exclude(&mut self.upper, &key),
            }
            self.hold.check_owner_of(&key)?;
            return Ok(Some((key, failure.map_or(Ok(value), Err))));
        }
    }

    /// What `show` makes of the next entry, in its place, from the end from which `direction` leads.
    pub fn step_with<T>(
        &mut self,
        direction: Direction,
        show: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Result<Option<T>> {
        loop {
            if !self.advance_in_range(direction)? {
                return Ok(None);
            }
            let (walk, bound) = match direction {
                Direction::Forward => (&self.front, &mut self.lower),
                Direction::Backward => (&self.back, &mut self.upper),
            };
            let Some(walk) = walk else { return Ok(None) };
            let value = match &self.entry {
                Step::Here => walk.here().value(),
                Step::Entry(_, value) => Ok(&value[..]),
            };
            if self.hold.failed_maps() != self.failed_maps {
                self.renew();
                continue;
            }
            if let Some(failure) = walk.failure() {
                return Err(failure.clone());
            }
            let key = key_of(&self.entry, &**walk);
            exclude(bound, key);
            self.hold.check_owner_of(key)?;
            let made = show(key, value?);
            // It may lie in a mapping that has failed meanwhile.
            return match self.hold.failed_maps() == self.failed_maps {
                true => Ok(Some(made)),
                false => Err(self.hold.shown_as_zeros()),
            };
        }
    }
}

/// The key of the entry to which `step` has brought `walk`.
fn key_of<'a>(step: &'a Step, walk: &'a dyn EngineIter) -> &'a [u8] {
    match step {
        Step::Here => walk.here().key,
        Step::Entry(key, _) => key,
    }
}

/// Entries in key order; from the back with [`next_back`](DoubleEndedIterator::next_back) or `rev`.
///
/// The iterator owns what it needs: it may outlive its snapshot and be sent to another thread. After an error
/// it returns nothing more.
pub struct DbIter {
    space: Space,
    /// The keys before those of other keyspaces, and behind them.
    parts: Parts<StoredIter>,
    failed: bool,
}

impl std::fmt::Debug for DbIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lower, upper) = (&self.parts.first.lower, &self.parts.last().upper);
        f.debug_struct("DbIter").field("lower", lower).field("upper", upper).finish()
    }
}

/// What lies in one range of places or in two, with other keyspaces between them.
pub(super) struct Parts<T> {
    pub first: T,
    pub second: Option<Box<T>>,
}

impl<T> Parts<T> {
    pub fn of(
        ranges: (Places, Option<Places>),
        mut part: impl FnMut(Places) -> Result<T>,
    ) -> Result<Parts<T>> {
        let (first, second) = ranges;
        let first = part(first)?;
        Ok(Parts { first, second: second.map(part).transpose()?.map(Box::new) })
    }

    pub fn last(&self) -> &T {
        self.second.as_deref().unwrap_or(&self.first)
    }

    /// The next entry by `step` of the part that still has one, from the end from which `direction` leads.
    pub fn step<E>(
        &mut self,
        direction: Direction,
        mut step: impl FnMut(&mut T, Direction) -> Result<Option<E>>,
    ) -> Result<Option<E>> {
        let Some(second) = &mut self.second else { return step(&mut self.first, direction) };
        let (one, other) = match direction {
            Direction::Forward => (&mut self.first, &mut **second),
            Direction::Backward => (&mut **second, &mut self.first),
        };
        match step(one, direction)? {
            None => step(other, direction),
            found => Ok(found),
        }
    }
}

impl DbIter {
    pub(super) fn new(
        hold: &Arc<Hold>,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<DbIter> {
        let parts = Parts::of(space.places(from, to), |range| hold.range(range))?;
        Ok(DbIter { space, parts, failed: false })
    }

    /// Goes to `key`: `next` returns the first entry at or after it, and never one before the range, nor one that
    /// `next_back` has returned or passed.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        let place = self.space.encode(key.as_ref());
        // The place lies in one part: the other one is at its beginning, or at its end.
        self.parts.first.seek(&place);
        if let Some(second) = &mut self.parts.second {
            second.seek(&place);
        }
    }

    /// Goes to `key` from behind: `next_back` returns the last entry at or before it, and never one after the
    /// range, nor one that `next` has returned or passed.
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) {
        let place = self.space.encode(key.as_ref());
        self.parts.first.seek_for_prev(&place);
        if let Some(second) = &mut self.parts.second {
            second.seek_for_prev(&place);
        }
    }

    fn item(&mut self, direction: Direction) -> Option<Result<(Bytes, Bytes)>> {
        if self.failed {
            return None;
        }
        let step = self.parts.step(direction, StoredIter::step);
        let space = self.space;
        item_of(step.map(|entry| entry.map(|(place, value)| (space.key_at(place), value))), &mut self.failed)
    }

    /// What `f` makes of the next entry. In `lsm`, `tlsm` and `wip` it is shown where it lies, as by
    /// [`Db::get_with`](crate::Db::get_with), unless operands are to be folded, or there are range tombstones or
    /// deadlines; elsewhere it is read as by `next`. Calls may be mixed with those of `next`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// db.put("apple", "red")?;
    /// db.put("banana", "yellow")?;
    /// let (mut iter, mut bytes) = (db.range(..)?, 0);
    /// while let Some(len) = iter.next_with(|_key, value| value.len()) {
    ///     bytes += len?;
    /// }
    /// assert_eq!(bytes, 9);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `next`. If a table turns out to be unreadable while `f` looks at it, the call fails after all, and what `f`
    /// was shown is not to be relied upon.
    pub fn next_with<T>(&mut self, f: impl FnOnce(&[u8], &[u8]) -> T) -> Option<Result<T>> {
        self.shown(Direction::Forward, f)
    }

    /// The same from the back, where entries are read as by `next_back`.
    pub fn next_back_with<T>(&mut self, f: impl FnOnce(&[u8], &[u8]) -> T) -> Option<Result<T>> {
        self.shown(Direction::Backward, f)
    }

    fn shown<T>(&mut self, direction: Direction, f: impl FnOnce(&[u8], &[u8]) -> T) -> Option<Result<T>> {
        if self.failed {
            return None;
        }
        let (space, mut f) = (self.space, Some(f));
        let step = self.parts.step(direction, |part, direction| {
            let shown =
                part.step_with(direction, |place, value| f.take().map(|f| f(space.key_in(place), value)));
            shown.map(Option::flatten)
        });
        item_of(step, &mut self.failed)
    }
}

/// What an iterator gives for a step, which is its last one if it `failed`.
pub(super) fn item_of<T>(step: Result<Option<T>>, failed: &mut bool) -> Option<Result<T>> {
    *failed = step.is_err();
    step.transpose()
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Has `bound` exclude `key`. It keeps its buffer from one entry to the next.
fn exclude(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    match bound {
        Bound::Excluded(last) => {
            last.clear();
            last.extend_from_slice(key);
        }
        _ => *bound = Bound::Excluded(key.to_vec()),
    }
}

fn below(key: &[u8], upper: &Bound<Vec<u8>>) -> bool {
    match upper {
        Bound::Included(upper) => key <= &**upper,
        Bound::Excluded(upper) => key < &**upper,
        Bound::Unbounded => true,
    }
}

fn above(key: &[u8], lower: &Bound<Vec<u8>>) -> bool {
    match lower {
        Bound::Included(lower) => key >= &**lower,
        Bound::Excluded(lower) => key > &**lower,
        Bound::Unbounded => true,
    }
}

impl Iterator for DbIter {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.item(Direction::Forward)
    }
}

impl DoubleEndedIterator for DbIter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.item(Direction::Backward)
    }
}
