//! Looking for entries that are due, to remove them.
//!
//! A search goes through all dated keyspaces, in steps. One begins when as many entries were put as the last one has
//! found alive, so that searches cost in proportion to puts. What is due takes about as much room then as what is alive
//! and what was put since, at most.
//!
//! Where keys have an order, what cannot be read keeps no other keyspace from being searched: the search goes on behind
//! its own, and ends only where it has seen nothing twice in a row.

use terrace_base::{Error, ErrorKind, Result};

use crate::core::Core;
use crate::core::engine::EngineIter;
use crate::db::Store;
use crate::db::removal::{KEYS, KEYS_SEEN, KEYS_WITHOUT_ORDER};
use crate::db::shown::shown_with_number;
use crate::keyspaces::{Prefix, all_dated};

/// How far the search has come.
#[derive(Debug, Default)]
pub(super) struct DueSearch {
    /// Where it goes on, if it runs.
    from: Option<Vec<u8>>,
    alive: u64,
    /// What has kept it from finding everything, and whether that was told.
    error: Option<Error>,
    is_told: bool,
    /// Whether the last step has failed before it had seen an entry.
    was_blind: bool,
}

/// What a step has found.
#[derive(Debug, Default)]
struct Found {
    /// Places of what is due.
    due: Vec<Vec<u8>>,
    alive: u64,
    /// Where the next step begins, if there may be more.
    next: Option<Vec<u8>>,
    error: Option<Error>,
}

impl DueSearch {
    /// Begins anew.
    pub fn begin(&mut self, core: &Core) {
        core.deadlines.begin_search();
        let from = core.deadlines.has_begun(None).then(|| all_dated().0);
        *self = DueSearch { from, ..DueSearch::default() };
    }

    /// What has kept the last search from finding everything.
    pub fn outcome(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// The same, told once.
    pub fn tell(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_told, true) { Ok(()) } else { self.outcome() }
    }

    pub fn is_running(&self) -> bool {
        self.from.is_some()
    }
}

impl Store {
    /// Takes a step of the search, if it runs; returns whether it does.
    ///
    /// # Errors
    ///
    /// Only that the database is closed: others are those of the search.
    pub(super) fn sweep_due(&self, search: &mut DueSearch) -> Result<bool> {
        let Some(from) = search.from.take() else { return Ok(false) };
        let looked = self.walk_from(&self.unmasked, &from, |walk| Ok(self.look_for_due(walk, &from)));
        let mut found = match looked {
            Ok(found) => found,
            Err(error) => self.failed_at(Found::default(), &from, error),
        };
        let has_seen = found.alive > 0 || !found.due.is_empty();
        match self.remove(std::mem::take(&mut found.due), &|place| self.is_due_at(place)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
            // The next search begins with the same.
            Err(error) if error.is_out_of_space() => {
                found = Found { error: Some(error), ..Found::default() };
            }
            Err(error) => found = self.failed_at(found, &from, error),
        }
        let is_blind = found.error.is_some() && !has_seen;
        let ends = is_blind && search.was_blind;
        search.was_blind = is_blind;
        if let Some(error) = found.error {
            (search.error, search.is_told) = (Some(error), false);
        }
        // Without an order of keys each step begins at the beginning.
        search.alive = if self.unmasked.ordered().is_ok() { search.alive + found.alive } else { found.alive };
        search.from = found.next.filter(|_| !ends);
        if search.from.is_none() {
            self.core.deadlines.end_search(search.alive);
        }
        Ok(true)
    }

    /// The next entries that are due, from `from` on if keys have an order.
    fn look_for_due(&self, walk: &mut dyn EngineIter, from: &[u8]) -> Found {
        let (mut found, end, is_ordered) = (Found::default(), all_dated().1, self.unmasked.ordered().is_ok());
        let (most, mut seen) = (if is_ordered { KEYS } else { KEYS_WITHOUT_ORDER }, 0);
        let mut last = from.to_vec();
        loop {
            let (place, value) = match walk.next() {
                Ok(Some(entry)) => entry,
                Ok(None) => return found,
                Err(error) => return self.failed_at(found, &last, error),
            };
            if is_ordered && *place >= *end {
                return found;
            }
            if !self.core.deadlines.is_dated(&place, None) {
                continue;
            }
            seen += 1;
            if self.core.deadlines.is_due(&value) {
                found.due.push(place.to_vec());
            } else {
                found.alive += 1;
            }
            if found.due.len() == most || is_ordered && seen == KEYS_SEEN {
                found.next = Some(place.to_vec());
                return found;
            }
            if is_ordered {
                place.as_ref().clone_into(&mut last);
            }
        }
    }

    /// What a step has `found` before it failed behind `last`.
    fn failed_at(&self, mut found: Found, last: &[u8], error: Error) -> Found {
        let number = Prefix::number_at(last).filter(|_| self.unmasked.ordered().is_ok());
        found.next = match number {
            Some(number) => Some(Prefix::of(number).end()).filter(|next| *next < all_dated().1),
            // What was found goes first, and what is before it is then found anew.
            None if !found.due.is_empty() => Some(last.to_vec()),
            None => None,
        };
        found.error = Some(error);
        found
    }

    /// Whether the newest version at `place` is due.
    fn is_due_at(&self, place: &[u8]) -> Result<bool> {
        let is_due = |_, value: &[u8]| self.core.deadlines.is_due(value);
        Ok(shown_with_number(&self.core, &*self.unmasked, place, None, is_due)?.unwrap_or(false))
    }
}
