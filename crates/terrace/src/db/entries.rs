//! All entries of a keyspace, also where an engine keeps no order.

use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};

use super::iter::{DbIter, item_of};
use crate::core::engine::EngineIter;
use crate::db::hold::Hold;
use crate::keyspaces::Space;

/// All entries of a keyspace, once each: in key order, or in no order if the engine has none.
///
/// It owns what it needs, like [`DbIter`], and returns nothing more after an error.
pub struct Entries {
    from: EntriesFrom,
    failed: bool,
}

enum EntriesFrom {
    /// The keyspace alone, in order.
    Range(DbIter),
    /// A walk over everything.
    All {
        space: Space,
        walk: Box<dyn EngineIter>,
        failed_maps: u64,
        /// Why it is not known whose some keys are, which is told at the end.
        unknown: Option<Error>,
        /// Last, as the walk reads what it keeps.
        hold: Arc<Hold>,
    },
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries").finish_non_exhaustive()
    }
}

impl Entries {
    pub(super) fn new(hold: Arc<Hold>, space: Space) -> Result<Entries> {
        let failed_maps = hold.failed_maps();
        let walk = hold.engine().clone().walk_all(hold.seq())?;
        Ok(Entries {
            from: EntriesFrom::All { space, walk, failed_maps, unknown: None, hold },
            failed: false,
        })
    }

    pub(super) fn in_order(iter: DbIter) -> Entries {
        Entries { from: EntriesFrom::Range(iter), failed: false }
    }

    /// The next entry of the keyspace.
    fn step(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        let (space, walk, failed_maps, unknown, hold) = match &mut self.from {
            EntriesFrom::Range(iter) => return iter.next().transpose(),
            EntriesFrom::All { space, walk, failed_maps, unknown, hold } => {
                (*space, walk, *failed_maps, unknown, hold)
            }
        };
        loop {
            let entry = walk.next()?;
            hold.intact_since(failed_maps)?;
            match entry {
                Some((place, value)) if space.holds(&place) => {
                    if let Err(why) = hold.check_owner_of(&place) {
                        *unknown = Some(why);
                        continue;
                    }
                    walk.failure().map_or(Ok(()), |failure| Err(failure.clone()))?;
                    return Ok(Some((space.key_at(place), value)));
                }
                Some(_) => {}
                None => return unknown.take().map_or(Ok(None), Err),
            }
        }
    }
}

impl Iterator for Entries {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step();
        item_of(step, &mut self.failed)
    }
}
