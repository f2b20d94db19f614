//! Removing keys in the background: what dropped keyspaces and deleted ranges have left, and what is due.

use terrace_base::Result;
use terrace_table::Kind;

use super::Store;
use crate::batch::{Op, WriteBatch};

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
                Err(e) => return Err(e),
            }
        }
        Ok(())
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
