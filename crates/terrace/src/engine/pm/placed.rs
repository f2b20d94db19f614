//! Versions that a write puts elsewhere before it enters the gate, so that nobody at the gate waits for a
//! device.

use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::Result;
use terrace_table::Kind;

use super::PmStore;
use super::elsewhere::{Elsewhere, Item, PlaceOf};
use super::index::PmEngine;
use crate::batch::Op;

/// One such version.
#[derive(Debug, Clone, Copy)]
struct One<P> {
    /// The number under which it was written.
    number: u64,
    place: P,
}

/// Versions that were written elsewhere and have no name yet. Dropping this gives them back, unless they are
/// kept.
pub(super) struct Placed<'s, 'k, E: PmEngine> {
    store: &'s PmStore<E>,
    is_counted: bool,
    /// By key.
    all: Vec<(&'k [u8], One<PlaceOf<E>>)>,
    kept: AtomicBool,
}

impl<E: PmEngine> Placed<'_, '_, E> {
    /// The number and the place of the version of `key`, if it was written elsewhere.
    pub fn get(&self, key: &[u8]) -> Option<(u64, PlaceOf<E>)> {
        let at = self.all.binary_search_by(|(other, _)| (*other).cmp(key)).ok()?;
        let one = self.all[at].1;
        Some((one.number, one.place))
    }

    /// Whether a range tombstone that was written meanwhile would hide one of them: they are to be written again, under
    /// new numbers. The caller holds the gate.
    pub fn are_outdated(&self) -> bool {
        self.all.iter().any(|(key, one)| self.store.core.range_tombstones.hides(key, one.number))
    }

    /// They are named now, or may be.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }
}

impl<E: PmEngine> Drop for Placed<'_, '_, E> {
    fn drop(&mut self) {
        // After a panic they may be named.
        if !self.kept.load(Ordering::Relaxed) && !std::thread::panicking() {
            for (key, one) in &self.all {
                // A reader may have seen one of a group that was taken back.
                self.store.afterwards(self.store.retire_place(key, one.place));
            }
        }
        if self.is_counted {
            self.store.placing.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<E: PmEngine> PmStore<E> {
    /// Whether `op` is to be written elsewhere.
    pub(super) fn goes_elsewhere(&self, op: &Op<'_>) -> bool {
        op.kind == Kind::Put && self.home.takes(op.key, op.value)
    }

    /// Writes those of `ops`, which are in key order, that belong elsewhere. The caller does not hold the
    /// gate.
    pub(super) fn place<'k>(
        &self,
        ops: impl Iterator<Item = (&'k [u8], &'k [u8])> + Clone,
    ) -> Result<Placed<'_, 'k, E>> {
        let mut placed =
            Placed { store: self, is_counted: false, all: Vec::new(), kept: AtomicBool::new(false) };
        let mut large = ops.filter(|(key, value)| self.home.takes(key, value)).peekable();
        if large.peek().is_none() {
            return Ok(placed);
        }
        // A close waits: afterwards another process may have the files.
        let _open = self.jobs.hold_open()?;
        {
            let _shared = self.gate.shared();
            self.admit()?;
        }
        self.placing.fetch_add(1, Ordering::AcqRel);
        placed.is_counted = true;
        let items: Vec<Item<'_>> =
            large.map(|(key, value)| Item { key, value, number: self.next_number() }).collect();
        let places = match self.home.store(&items) {
            Err(e) if e.is_out_of_space() => {
                // Giving back what waits for readers may be enough.
                let _shared = self.gate.shared();
                self.give_back();
                self.home.store(&items)?
            }
            outcome => outcome?,
        };
        let ones =
            items.iter().zip(places).map(|(item, place)| (item.key, One { number: item.number, place }));
        placed.all = ones.collect();
        Ok(placed)
    }
}
