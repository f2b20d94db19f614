//! What a transaction has read, and whether it would read the same now.
//!
//! A transaction may commit if everything that it has read is now as it was: then it could as well have run
//! just now, as a whole, and the order in which transactions commit explains what they have seen. It is values
//! that are compared, so that a write that changes nothing disturbs nobody.
//!
//! 1. A key that was read is kept with its value, absences included.
//! 2. A range that was read is kept as bounds: from where an iterator began to the last key that it gave, and
//!    so from behind; all of it once the iterator has come to an end. It is compared with the transaction's
//!    snapshot, entry by entry, and takes no memory, however much was read. A key that was written before the
//!    iterator was made is compared, too: it may spoil a transaction needlessly, and no more.
//! 3. The last comparison runs while nothing else is written. Where every write moves the visible
//!    number, nothing needs to be compared while that stands still, but for keys that expire: one that has come to be
//!    due was read and is gone.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};

use crate::core::empty_ranges::{EmptyRanges, Skip};
use crate::core::engine::{Direction, Engine, EngineIter};
use crate::core::recent_writes::Noted;
use crate::db::hold::Hold;
use crate::db::transaction::writes::Overlay;
use crate::keyspaces::is_high;

/// What was seen of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// Its value, or that there is none.
    Value(Option<Bytes>),
    /// That it exists.
    Exists,
    /// That it exists, and then that it does not, as it had come to be due: no moment explains both.
    Gone,
    /// What the transaction's snapshot has of it.
    OfSnapshot,
}

/// A range of which an iterator has read something.
#[derive(Debug)]
struct RangeRead {
    from: Bound<Bytes>,
    to: Bound<Bytes>,
    /// It was read from its beginning up to this key.
    front: Option<Bytes>,
    /// It was read from its end down to this key.
    back: Option<Bytes>,
    /// It was read to its end.
    whole: bool,
}

/// Bounds of keys.
type Span<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl RangeRead {
    fn spans(&self) -> Vec<Span<'_>> {
        let (from, to) = (as_slice(&self.from), as_slice(&self.to));
        if self.whole {
            return vec![(from, to)];
        }
        let front = self.front.iter().map(|last| (from, Bound::Included(&last[..])));
        let back = self.back.iter().map(|first| (Bound::Included(&first[..]), to));
        front.chain(back).collect()
    }
}

fn as_slice(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Everything that a transaction has read.
#[derive(Debug, Default)]
pub(super) struct Reads {
    keys: BTreeMap<Bytes, Seen>,
    ranges: Vec<RangeRead>,
}

impl Reads {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.iter().all(|range| range.spans().is_empty())
    }

    /// What was seen of `key`.
    pub fn of(&self, key: &[u8]) -> Option<&Seen> {
        self.keys.get(key)
    }

    /// Whether what was read may lie elsewhere once there are keyspaces.
    pub fn may_be_moved(&self) -> bool {
        let reaches_high = |range: &RangeRead| match &range.to {
            Bound::Unbounded => true,
            Bound::Included(to) => is_high(to),
            // Before the first of them.
            Bound::Excluded(to) => is_high(to) && to.len() > 1,
        };
        let mut read = self.ranges.iter().filter(|range| !range.spans().is_empty());
        read.any(reaches_high) || self.keys.last_key_value().is_some_and(|(key, _)| is_high(key))
    }

    /// Whether it has read a key that is such a one by itself, and not as one of a range.
    pub fn have_any(&self, is_one: impl Fn(&[u8]) -> bool) -> bool {
        self.keys.keys().any(|key| is_one(key))
    }

    /// The key and its value, if nothing but the value of one key was read.
    pub fn only_value(&self) -> Option<(&[u8], Option<&[u8]>)> {
        let mut keys = self.keys.iter();
        match (keys.next(), keys.next(), self.has_ranges()) {
            (Some((key, Seen::Value(value))), None, false) => Some((key, value.as_deref())),
            _ => None,
        }
    }

    /// Notes what was seen of a key, and returns what counts: what was seen first. A value says more than that there is
    /// one, or that it is the snapshot's.
    pub fn note(&mut self, key: Bytes, seen: Seen) -> &Seen {
        match self.keys.entry(key) {
            Entry::Vacant(entry) => entry.insert(seen),
            Entry::Occupied(entry) => {
                let noted = entry.into_mut();
                match (&*noted, &seen) {
                    (Seen::Exists, Seen::Value(None)) => *noted = Seen::Gone,
                    (Seen::Exists | Seen::OfSnapshot, Seen::Value(_)) => *noted = seen,
                    _ => {}
                }
                noted
            }
        }
    }

    /// Forgets what was seen of keys, but for those that were `written`.
    pub fn keep_written(&mut self, written: &Overlay) {
        self.keys.retain(|key, _| written.contains_key(key));
    }

    /// Begins to note what is read of a range; returns its number.
    pub fn open_range(&mut self, from: Bound<Bytes>, to: Bound<Bytes>) -> usize {
        self.ranges.push(RangeRead { from, to, front: None, back: None, whole: false });
        self.ranges.len() - 1
    }

    /// Notes that the range was read up to `key` from the side from which `direction` comes.
    pub fn note_step(&mut self, range: usize, direction: Direction, key: &Bytes) {
        let range = &mut self.ranges[range];
        match direction {
            Direction::Forward => range.front = Some(key.clone()),
            Direction::Backward => range.back = Some(key.clone()),
        }
    }

    /// Notes that the range was read to its end.
    pub fn note_end(&mut self, range: usize) {
        self.ranges[range].whole = true;
    }

    /// Whether the snapshot is necessary to compare.
    pub fn needs_snapshot(&self) -> bool {
        self.ranges.iter().any(|range| !range.spans().is_empty())
            || self.keys.values().any(|seen| *seen == Seen::OfSnapshot)
    }

    /// Whether ranges were read.
    pub fn has_ranges(&self) -> bool {
        self.ranges.iter().any(|range| !range.spans().is_empty())
    }

    /// Reads the keys whose values only `snapshot` has.
    pub fn fetch(&mut self, snapshot: &Hold) -> Result<()> {
        for (key, seen) in &mut self.keys {
            if *seen == Seen::OfSnapshot {
                *seen = Seen::Value(snapshot.get(key)?);
            }
        }
        Ok(())
    }

    /// Compares everything that was read with what is there now; `Conflict` names the first key that differs.
    /// `then` is the transaction's snapshot, if it is needed; `now` numbers the present for walks.
    /// `empty` has ranges of keys that need not be walked over. Keys that are untouched by what was `noted` of the
    /// writes since are as they were.
    pub fn compare(
        &self,
        (engine, empty): (&Arc<dyn Engine>, &EmptyRanges),
        then: Option<&Hold>,
        now: u64,
        noted: Option<Noted<'_>>,
    ) -> Result<()> {
        for (key, seen) in &self.keys {
            let is_untouched = noted.is_some_and(|noted| noted.is_untouched(key));
            if !is_untouched && !is_same(&**engine, then, key, seen)? {
                return Err(Error::Conflict { key: key.to_vec() });
            }
        }
        let Some(then) = then else { return Ok(()) };
        for (from, to) in self.ranges.iter().flat_map(RangeRead::spans) {
            let walk = |at| Within::new(engine.clone().walk(at, Direction::Forward)?, empty, at, (from, to));
            let (mut before, mut after) = (walk(then.seq())?, walk(now)?);
            loop {
                match (before.next()?, after.next()?) {
                    (None, None) => break,
                    (Some((key, None)), Some((other, None)))
                        if key == other && is_one_version(&**engine, then, &key)? => {}
                    (before @ Some((_, Some(_))), after) if before == after => {}
                    (before, after) => {
                        let keys = before.into_iter().chain(after).map(|(key, _)| key);
                        return Err(Error::Conflict { key: keys.min().unwrap_or_default().to_vec() });
                    }
                }
            }
        }
        Ok(())
    }
}

fn is_same(engine: &dyn Engine, then: Option<&Hold>, key: &[u8], seen: &Seen) -> Result<bool> {
    Ok(match (seen, then) {
        (Seen::Value(value), _) => is_now(engine, key, value.as_deref())?,
        (Seen::Exists, _) => engine.contains(key)?,
        (Seen::Gone, _) => false,
        (Seen::OfSnapshot, Some(then)) => match (engine.get(key, None), engine.get(key, Some(then.seq()))) {
            (Err(_), Err(_)) => is_one_version(engine, then, key)?,
            (now, before) => now? == before?,
        },
        // Nothing tells: better once too often than to lose a write.
        (Seen::OfSnapshot, None) => false,
    })
}

/// Whether `value` is the one that `key` has now.
fn is_now(engine: &dyn Engine, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
    let mut looked = Ok(false);
    let exists = engine.get_with(key, None, &mut |now| {
        looked = now.failure().cloned().map_or_else(|| Ok(value == Some(&*now)), Err);
    })?;
    if exists { looked } else { Ok(value.is_none()) }
}

/// Whether `key` has the version now that it had then. Values that are not known are the same if it has.
fn is_one_version(engine: &dyn Engine, then: &Hold, key: &[u8]) -> Result<bool> {
    Ok(engine.version(key, None)? == engine.version(key, Some(then.seq()))?)
}

/// The entries of a walk up to a bound.
struct Within<'a> {
    /// None at the end.
    walk: Option<Box<dyn EngineIter>>,
    to: Bound<&'a [u8]>,
}

impl<'a> Within<'a> {
    /// A walk at number `at`, behind what is known to be empty.
    fn new(
        mut walk: Box<dyn EngineIter>,
        empty: &EmptyRanges,
        at: u64,
        (from, to): (Bound<&[u8]>, Bound<&'a [u8]>),
    ) -> Result<Within<'a>> {
        match empty.skip(Direction::Forward, from, at) {
            Skip::Nothing => walk.seek(from)?,
            Skip::To(behind) => walk.seek(behind.as_ref().map(Vec::as_slice))?,
            Skip::Everything => return Ok(Within { walk: None, to }),
        }
        Ok(Within { walk: Some(walk), to })
    }

    /// The next entry; its value is `None` if it is not known.
    fn next(&mut self) -> Result<Option<(Bytes, Option<Bytes>)>> {
        let entry = self.walk.as_mut().map_or(Ok(None), |walk| walk.next())?;
        let order = |(key, _): &(Bytes, Bytes)| match self.to {
            Bound::Included(last) => key[..].cmp(last),
            Bound::Excluded(end) if key[..] >= *end => Ordering::Greater,
            Bound::Excluded(_) | Bound::Unbounded => Ordering::Less,
        };
        let order = entry.as_ref().map_or(Ordering::Greater, order);
        let is_known = self.walk.as_ref().is_none_or(|walk| walk.failure().is_none());
        if order != Ordering::Less {
            // What lies behind the last key may be many tombstones.
            self.walk = None;
        }
        let entry = entry.filter(|_| order != Ordering::Greater);
        Ok(entry.map(|(key, value)| (key, is_known.then_some(value))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn included(text: &str) -> Bound<&[u8]> {
        Bound::Included(text.as_bytes())
    }

    #[test]
    fn a_range_is_what_was_read_of_it() {
        let mut reads = Reads::default();
        let range = reads.open_range(Bound::Included(key("b")), Bound::Excluded(key("y")));
        assert!(reads.is_empty() && !reads.has_ranges(), "nothing of it was read");
        let all = reads.open_range(Bound::Unbounded, Bound::Unbounded);
        assert!(!reads.may_be_moved());
        reads.note_step(range, Direction::Forward, &key("b"));
        assert!(!reads.may_be_moved(), "it ends before what is moved");
        reads.note_step(all, Direction::Forward, &key("a"));
        assert!(reads.may_be_moved());
        let mut reads = Reads::default();
        let range = reads.open_range(Bound::Included(key("b")), Bound::Excluded(key("y")));
        reads.note_step(range, Direction::Forward, &key("c"));
        reads.note_step(range, Direction::Forward, &key("d"));
        assert_eq!(reads.ranges[range].spans(), [(included("b"), included("d"))]);
        reads.note_step(range, Direction::Backward, &key("x"));
        let from_behind = (included("x"), Bound::Excluded(&b"y"[..]));
        assert_eq!(reads.ranges[range].spans(), [(included("b"), included("d")), from_behind]);
        reads.note_end(range);
        assert_eq!(reads.ranges[range].spans(), [(included("b"), Bound::Excluded(&b"y"[..]))]);
        assert!(reads.has_ranges() && reads.needs_snapshot());
    }

    #[test]
    fn a_value_says_more_than_that_there_is_one() {
        let mut reads = Reads::default();
        assert_eq!(reads.note(key("k"), Seen::Exists), &Seen::Exists);
        let value = Seen::Value(Some(key("v")));
        for seen in [value.clone(), Seen::Exists, Seen::Value(None), Seen::Value(Some(key("other")))] {
            assert_eq!(reads.note(key("k"), seen), &value);
        }
        let none = Seen::Value(None);
        for seen in [none.clone(), Seen::Exists, value.clone()] {
            assert_eq!(reads.note(key("none"), seen), &none);
        }
        reads.note(key("gone"), Seen::Exists);
        for seen in [Seen::Value(None), Seen::Exists, value.clone()] {
            assert_eq!(reads.note(key("gone"), seen), &Seen::Gone);
        }
        assert_eq!(reads.of(b"k"), Some(&value));
        assert!(!reads.needs_snapshot());
        reads.note(key("k"), Seen::OfSnapshot);
        reads.note(key("l"), Seen::OfSnapshot);
        assert!(reads.needs_snapshot());
        reads.keep_written(&Overlay::from([(key("k"), None)]));
        assert_eq!((reads.of(b"k"), reads.of(b"l")), (Some(&value), None));
    }
}
