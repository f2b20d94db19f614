//! Range tombstones: each hides the versions of many keys that were there when it was written.
//!
//! An engine knows nothing of them. The store keeps those of which something may be left in a list, and reads through
//! [`Masked`](super::masked::Masked), which leaves out what they hide. Their records are in the catalogue (`db/range_delete`).
//!
//! 1. A version is hidden by a tombstone over its key whose number is higher than its own, from every reader that sees
//!    that number. Keys that the tombstone's own batch writes are not among those that it is over.
//! 2. A tombstone is in the list before anybody can see its number, and as long as a version that it hides is there
//!    or a snapshot needs to know of it.
//! 3. While it is in the list, every version that is written over it gets a higher number.
//! 4. `is_untouched` is true only if no key in its spans was put since it was written. Whoever puts one says so before
//!    anybody can read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use crate::batch::NewRangeTombstone;
use crate::keyspaces::Spans;

/// The number from which on a tombstone hides nothing any more, as long as that is not known.
const NOT_OVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct RangeTombstone {
    pub id: u64,
    /// The number under which it was written.
    pub number: u64,
    pub spans: Spans,
    is_untouched: AtomicBool,
    /// Its batch has not happened, and readers may have it in their list.
    is_withdrawn: AtomicBool,
    /// Snapshots from this number on need not know of it.
    over: AtomicU64,
}

impl RangeTombstone {
    /// One that was found when the database was opened.
    pub fn found(id: u64, number: u64, spans: Spans) -> RangeTombstone {
        let (is_untouched, is_withdrawn) = (AtomicBool::new(false), AtomicBool::new(false));
        RangeTombstone { id, number, spans, is_untouched, is_withdrawn, over: AtomicU64::new(NOT_OVER) }
    }

    /// Asked after everything else that says that its batch has happened.
    pub fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Ordering::Acquire)
    }

    pub fn is_untouched(&self) -> bool {
        self.is_untouched.load(Ordering::Acquire)
    }

    /// Whether something may be left of what it hides.
    pub fn is_active(&self) -> bool {
        self.over.load(Ordering::Acquire) == NOT_OVER
    }
}

/// The tombstones at one moment.
pub(crate) type List = Vec<Arc<RangeTombstone>>;

#[derive(Debug, Default)]
pub(crate) struct RangeTombstones {
    /// Whether there are any. Most databases have none.
    any: AtomicBool,
    list: ArcSwap<List>,
    /// Locked by who changes the list.
    changing: Mutex<()>,
}

/// The tombstones of `list` over `place`.
pub(crate) fn over<'l>(list: &'l List, place: &'l [u8]) -> impl Iterator<Item = &'l Arc<RangeTombstone>> {
    list.iter().filter(|tombstone| tombstone.spans.around(place).is_some())
}

impl RangeTombstones {
    /// All of them; `None` if there are none.
    #[inline]
    pub fn load(&self) -> Option<Guard<Arc<List>>> {
        if self.any.load(Ordering::Acquire) { Some(self.list.load()) } else { None }
    }

    /// Those of which something may be left, in the order in which they were written. The last one may be of a batch
    /// that is being written.
    pub fn active(&self) -> List {
        let list = self.load();
        list.iter().flat_map(|list| list.iter()).filter(|tombstone| tombstone.is_active()).cloned().collect()
    }

    /// Whether there is one over `place`.
    #[inline]
    pub fn is_over(&self, place: &[u8]) -> bool {
        self.load().is_some_and(|list| over(&list, place).next().is_some())
    }

    /// Whether one over `place` would hide a version of this number from somebody.
    #[inline]
    pub fn hides(&self, place: &[u8], number: u64) -> bool {
        self.load().is_some_and(|list| over(&list, place).any(|tombstone| number < tombstone.number))
    }

    /// The keys at `places` are about to be put.
    #[inline]
    pub fn note_puts<'p>(&self, places: impl Iterator<Item = &'p [u8]>) {
        let Some(list) = self.load() else { return };
        for place in places {
            over(&list, place).for_each(|tombstone| tombstone.is_untouched.store(false, Ordering::Release));
        }
    }

    /// Any keys are about to be put.
    pub fn note_puts_anywhere(&self) {
        let list = self.load();
        let all = list.iter().flat_map(|list| list.iter());
        all.for_each(|tombstone| tombstone.is_untouched.store(false, Ordering::Release));
    }

    /// Adds one that was written under `number`, before anybody can see it.
    pub fn add_new(&self, new: &NewRangeTombstone, number: u64) {
        let found = RangeTombstone::found(new.id, number, new.spans.clone());
        self.add(RangeTombstone { is_untouched: AtomicBool::new(true), ..found });
    }

    fn add(&self, tombstone: RangeTombstone) {
        self.change(|list| list.push(Arc::new(tombstone)));
    }

    /// Has the list be `found`, before anybody reads through it.
    pub fn set(&self, found: Vec<RangeTombstone>) {
        self.change(|list| *list = found.into_iter().map(Arc::new).collect());
    }

    /// Takes back one whose batch has not happened, before anything makes readers believe that it has.
    pub fn take_back(&self, id: u64) {
        self.change(|list| {
            list.retain(|tombstone| {
                let is_it = tombstone.id == id && tombstone.is_active();
                tombstone.is_withdrawn.fetch_or(is_it, Ordering::AcqRel);
                !is_it
            });
        });
    }

    /// Nothing is left of what `tombstone` hides; snapshots that see `number` need not know of it.
    pub fn end(&self, tombstone: &RangeTombstone, number: u64) {
        tombstone.over.store(number, Ordering::Release);
    }

    /// Removes those that nobody needs to know of any more. `held` are the numbers of snapshots, ascending.
    pub fn forget(&self, held: impl FnOnce() -> Vec<u64>) {
        let mut ended: List = match self.load() {
            Some(list) => list.iter().filter(|tombstone| !tombstone.is_active()).cloned().collect(),
            None => return,
        };
        if ended.is_empty() {
            return;
        }
        // Asked after they have ended: a snapshot that is taken from now on needs none of these. It may need one that
        // ends meanwhile.
        let held = held();
        ended.retain(|tombstone| {
            let until = tombstone.over.load(Ordering::Acquire);
            !super::snapshots::is_needed(&held, tombstone.number, until)
        });
        self.change(|list| {
            list.retain(|tombstone| !ended.iter().any(|gone| Arc::ptr_eq(gone, tombstone)));
        });
    }

    fn change(&self, change: impl FnOnce(&mut List)) {
        let _alone = self.changing.lock();
        let mut list = (**self.list.load()).clone();
        change(&mut list);
        let any = !list.is_empty();
        self.list.store(Arc::new(list));
        self.any.store(any, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;
    use crate::keyspaces::Span;

    fn new(id: u64, from: &[u8], to: &[u8]) -> NewRangeTombstone {
        let span = Span::of((Bound::Included(from.to_vec()), Bound::Excluded(to.to_vec())));
        NewRangeTombstone { id, place: Vec::new(), spans: Spans::union(span.into_iter().collect()) }
    }

    #[test]
    fn older_versions_under_one_are_hidden() {
        let tombstones = RangeTombstones::default();
        assert!(!tombstones.is_over(b"b") && tombstones.load().is_none());
        tombstones.add_new(&new(0, b"b", b"d"), 7);
        assert!(tombstones.hides(b"b", 6) && !tombstones.hides(b"b", 7) && !tombstones.hides(b"d", 6));
        tombstones.take_back(0);
        assert!(!tombstones.hides(b"b", 6) && tombstones.load().is_none());
    }

    #[test]
    fn one_stays_for_snapshots_between_its_number_and_its_end() {
        let tombstones = RangeTombstones::default();
        tombstones.add_new(&new(0, b"b", b"d"), 7);
        let list = tombstones.load().unwrap();
        tombstones.forget(Vec::new);
        assert_eq!(tombstones.active().len(), 1, "something is left of what it hides");
        tombstones.end(&list[0], 20);
        assert!(tombstones.active().is_empty());
        tombstones.forget(|| vec![6, 8, 21]);
        assert!(tombstones.is_over(b"c"), "snapshot 8 must not see what was removed since");
        tombstones.forget(|| vec![6, 20]);
        assert!(!tombstones.is_over(b"c"));
    }

    #[test]
    fn one_that_ends_while_others_are_forgotten_stays() {
        let tombstones = RangeTombstones::default();
        tombstones.add_new(&new(0, b"b", b"d"), 7);
        tombstones.add_new(&new(1, b"x", b"z"), 9);
        let list = tombstones.load().unwrap();
        tombstones.end(&list[0], 20);
        tombstones.forget(|| {
            // A snapshot at 25 is taken behind this list of them.
            tombstones.end(&list[1], 30);
            Vec::new()
        });
        assert!(!tombstones.is_over(b"c") && tombstones.is_over(b"y"));
    }

    #[test]
    fn a_put_touches_those_over_it() {
        let tombstones = RangeTombstones::default();
        tombstones.add_new(&new(0, b"b", b"d"), 7);
        tombstones.add_new(&new(1, b"c", b"x"), 9);
        tombstones.note_puts(std::iter::once(&b"b"[..]));
        let untouched: Vec<bool> = tombstones.load().unwrap().iter().map(|t| t.is_untouched()).collect();
        assert_eq!(untouched, [false, true]);
    }
}
