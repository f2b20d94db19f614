//! Iterators of a transaction: its snapshot's entries with its own writes over them, from both ends.
//!
//! An iterator takes the next entry of each and gives the one that comes first; of two with one key it gives
//! the transaction's. What the snapshot has given and the iterator has not stays ahead, one entry for each
//! end. Once the snapshot has no more, what one end has ahead is the other's, too.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;

use super::writes::{Overlay, end_of};
use super::{Isolation, Transaction, written_to};
use crate::core::engine::Direction;
use crate::db::iter::{Parts, StoredIter, item_of};
use crate::keyspaces::{Places, Space};

/// The entries between two places, in order, from both ends.
struct MergedIter<'tx> {
    transaction: &'tx Transaction,
    /// Its number among the ranges that are read; `None` if reads are not noted.
    range: Option<usize>,
    overlay: Arc<Overlay>,
    stored: StoredIter,
    /// Whether `stored` has no more.
    is_dry: bool,
    /// From the front, and from the back.
    ahead: [Option<(Bytes, Result<Bytes>)>; 2],
    /// What is left of the range: past what the front has given, before what the back has.
    lower: Bound<Bytes>,
    upper: Bound<Bytes>,
}

impl<'tx> MergedIter<'tx> {
    fn new(transaction: &'tx Transaction, places: Places) -> Result<Self> {
        transaction.snapshot.hold().look_at_clock();
        let stored = transaction.snapshot.hold().range(places.clone())?;
        let (lower, upper) = (places.0.map(Bytes::from), places.1.map(Bytes::from));
        let state = &mut *transaction.state.lock();
        let range = (transaction.options.isolation == Isolation::Serializable)
            .then(|| state.reads.open_range(lower.clone(), upper.clone()));
        let (overlay, ahead) = (state.writes.share(), [None, None]);
        Ok(MergedIter { transaction, range, overlay, stored, is_dry: false, ahead, lower, upper })
    }

    /// Has `ahead` hold the snapshot's next entry of this end, wherever it was put; returns its place.
    fn look_ahead(&mut self, direction: Direction) -> Result<usize> {
        let (end, other) = match direction {
            Direction::Forward => (0, 1),
            Direction::Backward => (1, 0),
        };
        if self.ahead[end].is_none() && !self.is_dry {
            self.ahead[end] = self.stored.step_over(direction)?;
            self.is_dry = self.ahead[end].is_none();
        }
        Ok(if self.ahead[end].is_none() { other } else { end })
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            let place = self.look_ahead(direction)?;
            let stored = self.ahead[place].as_ref().map(|(key, _)| key);
            let (lower, upper) = (self.lower.as_ref(), self.upper.as_ref());
            let (lower, upper) = (lower.map(|key| &key[..]), upper.map(|key| &key[..]));
            let own = end_of(&self.overlay, lower, upper, direction == Direction::Backward);
            let own = own.filter(|(key, _)| match direction {
                Direction::Forward => stored.is_none_or(|stored| *key <= stored),
                Direction::Backward => stored.is_none_or(|stored| *key >= stored),
            });
            let Some((key, written)) = own else {
                let Some((key, value)) = self.ahead[place].take() else {
                    self.note_end();
                    return Ok(None);
                };
                self.pass(direction, key.clone());
                return Ok(Some((key, value?)));
            };
            let (key, written) = (key.clone(), written.clone());
            if stored == Some(&key) {
                self.ahead[place] = None;
            }
            self.pass(direction, key.clone());
            if let Some(value) = written_to(self.transaction.snapshot.hold(), &key, written) {
                return Ok(Some((key, value)));
            }
        }
    }

    /// The end in `direction` has come past `key`.
    fn pass(&mut self, direction: Direction, key: Bytes) {
        if let Some(range) = self.range {
            self.transaction.state.lock().reads.note_step(range, direction, &key);
        }
        match direction {
            Direction::Forward => self.lower = Bound::Excluded(key),
            Direction::Backward => self.upper = Bound::Excluded(key),
        }
    }

    fn note_end(&self) {
        if let Some(range) = self.range {
            self.transaction.state.lock().reads.note_end(range);
        }
    }
}

/// Entries in key order as a transaction sees them; from the back with
/// [`next_back`](DoubleEndedIterator::next_back) or `rev`.
///
/// It gives what the transaction had written when it was made: writes may go on beside it. What it has given
/// the transaction has read, and nothing of the range beyond that. After an error it returns nothing more.
pub struct TransactionIter<'tx> {
    space: Space,
    parts: Parts<MergedIter<'tx>>,
    failed: bool,
}

impl std::fmt::Debug for TransactionIter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lower, upper) = (&self.parts.first.lower, &self.parts.last().upper);
        f.debug_struct("TransactionIter").field("lower", lower).field("upper", upper).finish()
    }
}

impl<'tx> TransactionIter<'tx> {
    pub(super) fn new(
        transaction: &'tx Transaction,
        space: Space,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<Self> {
        let parts = Parts::of(space.places(from, to), |places| MergedIter::new(transaction, places))?;
        Ok(TransactionIter { space, parts, failed: false })
    }

    fn item(&mut self, direction: Direction) -> Option<Result<(Bytes, Bytes)>> {
        if self.failed {
            return None;
        }
        let step = self.parts.step(direction, MergedIter::step);
        let space = self.space;
        item_of(step.map(|entry| entry.map(|(place, value)| (space.key_at(place), value))), &mut self.failed)
    }
}

impl Iterator for TransactionIter<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.item(Direction::Forward)
    }
}

impl DoubleEndedIterator for TransactionIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.item(Direction::Backward)
    }
}
