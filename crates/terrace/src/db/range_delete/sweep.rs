//! Removing what range tombstones hide, in steps: tombstone by tombstone, and the keys of each in their order.
//!
//! 1. A tombstone is swept only once its batch has happened.
//! 2. A key is removed only if its newest version is hidden, which is asked while nothing else is written.
//! 3. A tombstone goes when nothing is left of what it hides. It stays in the list for snapshots that have seen it and
//!    do not see the removals.
//! 4. One that cannot be swept keeps no other from being swept, except where keys have no order: there all are swept in
//!    one walk, and stay until that comes to its end.

use std::ops::Bound;
use std::sync::Arc;

use terrace_base::{Error, ErrorKind, Result};
use terrace_table::Kind;

use super::records;
use crate::batch::{Op, WriteBatch};
use crate::core::engine::Direction;
use crate::core::range_tombstones::RangeTombstone;
use crate::db::Store;
use crate::db::removal::{KEYS, KEYS_SEEN, KEYS_WITHOUT_ORDER};

/// How far the sweep of range tombstones has come.
#[derive(Debug, Default)]
pub(in crate::db) struct RangeSweep {
    /// The number of a tombstone, and a place before which nothing is left of what it hides.
    reached: Option<(u64, Vec<u8>)>,
    /// Those that cannot be swept, and why not.
    failed: Vec<u64>,
    error: Option<Error>,
}

/// What a step has found.
#[derive(Debug, Default)]
struct Found {
    /// Keys to be removed.
    places: Vec<Vec<u8>>,
    /// The last key that was looked at, if there may be more.
    last: Option<Vec<u8>>,
}

impl Store {
    /// Removes some of what range tombstones hide; returns whether there may be more to do.
    ///
    /// # Errors
    ///
    /// What has kept one of them from being swept, once there is no other left.
    pub(in crate::db) fn sweep_range(&self, sweep: &mut RangeSweep) -> Result<bool> {
        let mut written = self.written_tombstones();
        written.retain(|tombstone| !sweep.failed.contains(&tombstone.id));
        let Some(oldest) = written.first() else {
            sweep.failed.clear();
            return sweep.error.take().map_or(Ok(false), Err);
        };
        let (swept, outcome) = match self.unmasked.ordered() {
            Ok(()) => (std::slice::from_ref(oldest), self.sweep_in_order(oldest, &mut sweep.reached)),
            Err(_) => (&written[..], self.sweep_anywhere(&written)),
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::Closed => Err(e),
            Err(e) => {
                sweep.failed.extend(swept.iter().map(|tombstone| tombstone.id));
                sweep.error = Some(e);
                Ok(true)
            }
        }
    }

    fn sweep_in_order(
        &self,
        tombstone: &Arc<RangeTombstone>,
        reached: &mut Option<(u64, Vec<u8>)>,
    ) -> Result<()> {
        // Nothing that it hides comes to where a step has been.
        let from = reached.take().filter(|(id, _)| *id == tombstone.id).map(|(_, place)| place);
        let one = std::slice::from_ref(tombstone);
        let found = self.looked_through(|at| self.hidden_in_order(one, from.as_deref(), at))?;
        self.remove(found.places, &|place| self.is_hidden_by(one, place))?;
        match found.last {
            Some(last) => *reached = Some((tombstone.id, last)),
            None => self.end(tombstone)?,
        }
        Ok(())
    }

    /// A step where keys have no order: all tombstones are swept in one walk.
    fn sweep_anywhere(&self, tombstones: &[Arc<RangeTombstone>]) -> Result<()> {
        let found = self.looked_through(|at| self.hidden_anywhere(tombstones, at))?;
        self.remove(found.places, &|place| self.is_hidden_by(tombstones, place))?;
        match found.last {
            Some(_) => Ok(()),
            None => tombstones.iter().try_for_each(|tombstone| self.end(tombstone)),
        }
    }

    /// The first keys from `from` on whose newest versions the one tombstone of `one` hides.
    fn hidden_in_order(&self, one: &[Arc<RangeTombstone>], from: Option<&[u8]>, at: u64) -> Result<Found> {
        let (mut found, mut seen, from) = (Found::default(), 0, from.unwrap_or_default());
        let mut walk = self.unmasked.clone().walk(at, Direction::Forward)?;
        let spans = one.iter().flat_map(|tombstone| tombstone.spans.iter());
        for span in spans.filter(|span| span.end.as_ref().is_none_or(|end| **end > *from)) {
            walk.seek(Bound::Included(from.max(&span.from)))?;
            while let Some((place, _)) = walk.next()?
                && span.holds(&place)
            {
                seen += 1;
                if self.is_hidden_by(one, &place)? {
                    found.places.push(place.to_vec());
                }
                if found.places.len() == KEYS || seen == KEYS_SEEN {
                    found.last = Some(place.to_vec());
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    fn hidden_anywhere(&self, tombstones: &[Arc<RangeTombstone>], at: u64) -> Result<Found> {
        let mut found = Found::default();
        let mut walk = self.unmasked.clone().walk_all(at)?;
        loop {
            let next = walk.next().and_then(|entry| {
                let Some((place, _)) = entry else { return Ok(None) };
                Ok(Some((self.is_hidden_by(tombstones, &place)?, place)))
            });
            let (is_hidden, place) = match next {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // What is before it goes first.
                Err(_) if !found.places.is_empty() => {
                    found.last = found.places.last().cloned();
                    break;
                }
                Err(e) => return Err(e),
            };
            if is_hidden {
                found.places.push(place.to_vec());
            }
            if found.places.len() == KEYS_WITHOUT_ORDER {
                found.last = Some(place.to_vec());
                return Ok(found);
            }
        }
        Ok(found)
    }

    /// Whether one of `tombstones` hides the newest version at `place`.
    fn is_hidden_by(&self, tombstones: &[Arc<RangeTombstone>], place: &[u8]) -> Result<bool> {
        let over = tombstones.iter().filter(|tombstone| tombstone.spans.around(place).is_some());
        let Some(newest) = over.map(|tombstone| tombstone.number).max() else { return Ok(false) };
        let mut is_hidden = false;
        self.unmasked.get_with(place, None, &mut |value| is_hidden = value.number < newest)?;
        Ok(is_hidden)
    }

    /// Nothing is left of what `tombstone` hides: its record goes.
    fn end(&self, tombstone: &RangeTombstone) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.push(Op { kind: Kind::Delete, key: &records::place_of(tombstone.id), value: &[] });
        self.commit(batch, false, false, &|| Ok(true))?;
        let held = self.unmasked.hold(&self.core.snapshots);
        self.core.range_tombstones.end(tombstone, held.seq());
        drop(held);
        self.engine.released();
        Ok(())
    }
}
