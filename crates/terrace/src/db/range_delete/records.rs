//! The records of range tombstones: docs/formats/keyspaces.md has their format.

use std::ops::Bound;

use terrace_base::{Error, ErrorKind, Result};

use super::{Ids, put};
use crate::batch::{NewRangeTombstone, WriteBatch};
use crate::core::engine::{Direction, Engine};
use crate::core::lent::to_keep;
use crate::core::range_tombstones::RangeTombstone;
use crate::db::Store;
use crate::keyspaces::{Prefix, Space, Spans};

/// The key of the record that says which tombstones there are; that of a tombstone has its number behind it.
const KEY: &[u8] = b"r";

/// What the value of each begins with: what it is, and its version.
const MAGIC: &[u8; 16] = b"terrace-ranges\0\x01";

/// Whether a value is that of such a record.
pub(in crate::db) fn is_record(value: &[u8]) -> bool {
    value.starts_with(MAGIC)
}

fn place(key: &[u8]) -> Vec<u8> {
    Space::Numbered(Prefix::of(0)).encode(key).into_owned()
}

/// The place of the record of tombstone `id`.
pub(super) fn place_of(id: u64) -> Vec<u8> {
    place(&[KEY, &id.to_be_bytes()].concat())
}

/// The place of the record of which tombstones there are.
pub(super) fn place_of_ids() -> Vec<u8> {
    place(KEY)
}

pub(super) fn of_ids(ids: &Ids) -> Vec<u8> {
    [MAGIC, &ids.first.to_le_bytes()[..], &ids.next.to_le_bytes()].concat()
}

fn ids_in(value: &[u8]) -> Option<Ids> {
    let (numbers, rest) = value.strip_prefix(MAGIC)?.as_chunks::<8>();
    let [first, next] = *numbers else { return None };
    let (first, next) = (u64::from_le_bytes(first), u64::from_le_bytes(next));
    (rest.is_empty() && first <= next).then_some(Ids { first, next })
}

fn of_spans(spans: &Spans) -> Vec<u8> {
    let mut value = MAGIC.to_vec();
    spans.encode(&mut value);
    value
}

/// Whether there is a record of which tombstones there are; `if_damaged` where it cannot be read.
pub(in crate::db) fn are_noted(engine: &dyn Engine, if_damaged: bool) -> Result<bool> {
    match engine.get(&place_of_ids(), None) {
        Ok(found) => Ok(found.is_some_and(|value| is_record(&value))),
        Err(e) if e.kind() == ErrorKind::Corruption => Ok(if_damaged),
        Err(e) => Err(e),
    }
}

/// Writes the records of `tombstone` and of which there are then.
pub(super) fn note(batch: &mut WriteBatch, tombstone: &NewRangeTombstone, ids: &Ids) {
    batch.push(put(&tombstone.place, &of_spans(&tombstone.spans)));
    batch.push(put(&place_of_ids(), &of_ids(ids)));
}

impl Store {
    /// The numbers of tombstones as they were noted last, if they were.
    fn noted_ids(&self) -> Result<Option<Ids>> {
        let Some((_, found)) = self.numbered(&place_of_ids())? else { return Ok(None) };
        let ids = ids_in(&found);
        ids.map(Some).ok_or_else(|| self.catalog.damaged("the numbers of range tombstones", &found))
    }

    /// The numbers of the tombstones that may have records, and all numbers, as far as damage leaves one of two ways to
    /// find them.
    fn tombstone_ids(&self) -> Result<(Ids, Vec<u64>)> {
        let by_key = |ids: Ids| (ids.first..ids.next).collect();
        let (noted, is_ordered) = (self.noted_ids(), self.unmasked.ordered().is_ok());
        let found = match &noted {
            // There nothing else finds them as fast.
            Ok(Some(ids)) if !is_ordered => Ok(by_key(*ids)),
            _ if !is_ordered => self.numbers_anywhere(),
            _ => self.numbers_in_order(),
        };
        let is_damage = |e: &Error| e.kind() == ErrorKind::Corruption;
        let (mut ids, found) = match (noted, found) {
            (Ok(ids), Ok(found)) => (ids.unwrap_or_default(), found),
            (Ok(Some(ids)), Err(e)) if is_damage(&e) => (ids, by_key(ids)),
            (Err(e), Ok(found)) if is_damage(&e) => (Ids::default(), found),
            (Err(e), _) | (_, Err(e)) => return Err(e),
        };
        ids.next = ids.next.max(found.last().map_or(0, |last| last + 1));
        Ok((ids, found))
    }

    /// The numbers of tombstones, and those that have records, in the order of their numbers.
    pub(super) fn tombstones(&self) -> Result<(Ids, Vec<RangeTombstone>)> {
        let (ids, numbers) = self.tombstone_ids()?;
        let mut tombstones = Vec::new();
        for id in numbers {
            let Some((number, found)) = self.numbered(&place_of(id))? else { continue };
            let spans = found.strip_prefix(MAGIC).and_then(Spans::decode);
            let spans = spans.ok_or_else(|| self.catalog.damaged("the ranges of a tombstone", &found))?;
            tombstones.push(RangeTombstone::found(id, number, spans));
        }
        Ok((ids, tombstones))
    }

    /// The number in the place of a tombstone's record; `None` if it is another place.
    fn number_at(&self, place: &[u8]) -> Result<Option<u64>> {
        let Some(id) = place.strip_prefix(&place_of_ids()[..]).filter(|id| !id.is_empty()) else {
            return Ok(None);
        };
        let id =
            <[u8; 8]>::try_from(id).map_err(|_| self.catalog.damaged("the number of a tombstone", id))?;
        Ok(Some(u64::from_be_bytes(id)))
    }

    /// The same where keys have no order, from all keys there are.
    fn numbers_anywhere(&self) -> Result<Vec<u64>> {
        let mut numbers = self.looked_through(|at| {
            let (mut walk, mut numbers) = (self.unmasked.clone().walk_all(at)?, Vec::new());
            while let Some((place, _)) = walk.next()? {
                numbers.extend(self.number_at(&place)?);
            }
            Ok(numbers)
        })?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The numbers of the tombstones that have records.
    fn numbers_in_order(&self) -> Result<Vec<u64>> {
        self.looked_through(|at| {
            let (mut walk, mut numbers) = (self.unmasked.clone().walk(at, Direction::Forward)?, Vec::new());
            walk.seek(Bound::Excluded(&place_of_ids()))?;
            while let Some((place, _)) = walk.next()?
                && let Some(number) = self.number_at(&place)?
            {
                numbers.push(number);
            }
            Ok(numbers)
        })
    }

    /// A record and the number of its version.
    fn numbered(&self, place: &[u8]) -> Result<Option<(u64, Vec<u8>)>> {
        let mut found = None;
        self.unmasked.get_with(place, None, &mut |value| {
            found = Some((value.number, to_keep(value).to_vec()));
        })?;
        self.unmasked.intact()?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let ids = Ids { first: 3, next: 0x0102 };
        let value = of_ids(&ids);
        assert_eq!(value[..16], *b"terrace-ranges\0\x01");
        assert_eq!(value[16..], [3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let again = ids_in(&value).unwrap();
        assert_eq!((again.first, again.next), (3, 0x0102));
        assert_eq!(place_of(0x0102), [0xff, 0, b'r', 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(place_of_ids(), [0xff, 0, b'r']);
        let spans = Spans::decode(&[1, 1, b'a', 0]).unwrap();
        assert_eq!(of_spans(&spans)[16..], [1, 1, b'a', 0]);
    }

    #[test]
    fn damaged_numbers_are_refused() {
        let value = of_ids(&Ids { first: 3, next: 5 });
        assert!(ids_in(&value[..31]).is_none() && ids_in(&[&value[..], &[0]].concat()).is_none());
        assert!(ids_in(&of_ids(&Ids { first: 5, next: 3 })).is_none());
    }
}
