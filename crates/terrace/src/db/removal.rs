//! Removing keys in the background: what dropped keyspaces and deleted ranges have left, and what is due.

use terrace_base::Result;
use terrace_table::Kind;

use super::Store;
use crate::batch::{Op, WriteBatch};
use crate::core::condition::{Condition, Expected};
use crate::core::lent::to_keep;

/// Most keys that are removed together.
pub(super) const KEYS: usize = 256;

/// Keys that one step looks at, if there are so few to be removed.
pub(super) const KEYS_SEEN: usize = 4096;

/// Keys that one step removes in an engine that has to look through all keys to find them.
pub(super) const KEYS_WITHOUT_ORDER: usize = 16 << 10;

/// Whether the key at a place goes.
pub(super) type Goes<'a> = &'a dyn Fn(&[u8]) -> Result<bool>;

impl Store {
    /// Removes the keys at `places` as far as each still `goes`, which is asked while nothing else is written; fewer at
    /// a time if there is little room.
    pub(super) fn remove(&self, mut places: Vec<Vec<u8>>, goes: Goes<'_>) -> Result<()> {
        let mut together = KEYS;
        while !places.is_empty() {
            let count = together.min(places.len());
            let some = &places[..count];
            let mut batch = WriteBatch::new();
            some.iter().for_each(|key| batch.push(Op { kind: Kind::Delete, key, value: &[] }));
            match self.commit(batch, true, false, &|| self.all_go(some, goes)) {
                Ok(true) => {
                    places.drain(..count);
                    together = (2 * together).min(KEYS);
                }
                Ok(false) => {
                    // At least one of them was put since.
                    let mut rest = Vec::with_capacity(places.len());
                    for place in places {
                        if goes(&place)? {
                            rest.push(place);
                        }
                    }
                    places = rest;
                }
                Err(e) if count > 1 && e.is_out_of_space() => {
                    together = count / 2;
                }
                Err(e) if e.is_out_of_space() && self.remove_alone(&places[0], goes)? => {
                    drop(places.remove(0))
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Removes the key at `place`, if it goes, in an engine that takes single writes past the queue: there is room kept
    /// back for such a one, and none for a batch. False from another engine.
    fn remove_alone(&self, place: &[u8], goes: Goes<'_>) -> Result<bool> {
        let mut stored = None;
        self.unmasked.get_with(place, None, &mut |value| stored = Some(to_keep(value)))?;
        if !goes(place)? {
            return Ok(true);
        }
        // That of which it was just said that it goes.
        let (expected, op) =
            (Expected::new(stored.as_deref()), Op { kind: Kind::Delete, key: place, value: &[] });
        let Some(outcome) = self.unmasked.write_one(op, Condition::IfIs(&expected)) else { return Ok(false) };
        if outcome? {
            self.core.counters.count_write(op);
        }
        self.unmasked.intact().map(|()| true)
    }

    /// Whether all of them do, by sound data.
    fn all_go(&self, places: &[Vec<u8>], goes: Goes<'_>) -> Result<bool> {
        let failed_maps = self.core.table_reader.maps().failures();
        for place in places {
            if !goes(place)? {
                return Ok(false);
            }
        }
        self.unmasked.intact()?;
        self.core.table_reader.intact_since(failed_maps, &self.core.dir).map(|()| true)
    }
}
