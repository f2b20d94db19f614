//! Deleting ranges of keys at once.
//!
//! | file | what it owns |
//! |---|---|
//! | `records.rs` | the records of range tombstones in the catalogue |
//! | `sweep.rs` | removing what they hide |
//!
//! 1. A batch has one range tombstone at most, over all ranges that it deletes, without the keys that it writes in
//!    them later. So the tombstone says nothing about the batch's own keys.
//! 2. A tombstone's batch is a group of its own, so that every version has its number before it or behind it.
//! 3. Tombstones have numbers of their own, in the order in which they are written. `ids` is locked until a tombstone's
//!    batch has happened: nothing but readers takes notice of one whose number is not given yet.
//! 4. Lock order: the gates of keyspaces, or the state of sweeps; then `ids`; then the queue of writers.

mod records;
mod sweep;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
pub(in crate::db) use records::{are_noted, is_record};
pub(in crate::db) use sweep::RangeSweep;
use terrace_base::{Error, ErrorKind, Result};
use terrace_table::Kind;

use crate::batch::{NewRangeTombstone, Op, RangeDelete, WriteBatch};
use crate::core::range_tombstones::RangeTombstone;
use crate::core::report::CheckReport;
use crate::db::keyspace::sweep as sweeps;
use crate::db::write::counts_of_all;
use crate::db::{Db, KeyRange, Keyspace, Store};
use crate::keyspaces::{Space, Span, Spans, callbacks};
use crate::options::WriteOptions;

/// Tombstones of which something may be left, at most: each read of a key looks at all of them. Who wants to write
/// another one removes first what the oldest hides.
const MOST_ACTIVE: usize = 64;

/// The numbers of range tombstones.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::db) struct Ids {
    /// None of those before this one was there when the last tombstone was written.
    first: u64,
    /// The one that the next gets.
    next: u64,
}

/// What is known of range tombstones beside the list that readers use.
#[derive(Debug, Default)]
pub(in crate::db) struct RangeDeletes {
    ids: Mutex<Ids>,
}

impl Db {
    /// Deletes all keys in `range`, at once and however many there are: two records are written. They are gone for every
    /// reader from then on, but for older snapshots. The space that they take comes back in the background.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// for day in ["2026-01-30", "2026-01-31", "2026-02-01"] {
    ///     db.put(day, "cold")?;
    /// }
    /// db.delete_range("2026-01".."2026-02")?;
    /// assert_eq!(db.iter()?.count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Where 64 such deletions are not carried out yet, the call first carries out the oldest. The first one in a
    /// database makes the catalogue that keyspaces have, too: see [`keyspace`](Self::keyspace).
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put); `InvalidArgument` for a bound of more than 65,535 bytes.
    pub fn delete_range(&self, range: impl KeyRange) -> Result<()> {
        self.delete_range_with(range, WriteOptions::default())
    }

    /// [`delete_range`](Self::delete_range), with `options`.
    pub fn delete_range_with(&self, range: impl KeyRange, options: WriteOptions) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range(range);
        self.write_with(batch, options)
    }

    /// Writes a batch that deletes ranges.
    pub(in crate::db) fn write_ranges(&self, batch: WriteBatch, options: WriteOptions) -> Result<()> {
        callbacks::check_none_runs()?;
        batch.validate()?;
        let store = &*self.inner;
        store.check_open()?;
        if store.read_only {
            return Err(Error::ReadOnly);
        }
        if batch.range_deletes().iter().all(|range| spans_of(range, Space::Default).is_empty()) {
            return self.write_with(batch.without_ranges(), options);
        }
        // Before anything changes for what is refused.
        drop(store.catalog.write_to(batch.keyspaces())?);
        self.make_catalogue_for_ranges()?;
        store.make_room_for_tombstone()?;
        sweeps::after_write(store.store(), self.write_with_tombstone(batch, options))?;
        store.core.counters.range_deletes.add(1);
        sweeps::start(store.store());
        Ok(())
    }

    fn write_with_tombstone(&self, batch: WriteBatch, options: WriteOptions) -> Result<()> {
        let store = &*self.inner;
        let keyspaces = batch.keyspaces().to_vec();
        let _not_dropped = store.catalog.write_to(&keyspaces)?;
        let (batch, _stays) = self.place_batch(batch)?;
        let (mut batch, spans) = resolved(&batch, store.catalog.default_space());
        let counted = counts_of_all(&keyspaces, &batch);
        if spans.is_empty() {
            self.write_placed(batch, options)?;
        } else {
            let _timing = store.core.timers.put();
            let mut ids = store.range_deletes.ids.lock();
            let tombstone = NewRangeTombstone { id: ids.next, place: records::place_of(ids.next), spans };
            let oldest = store.core.range_tombstones.active().first().map_or(ids.next, |oldest| oldest.id);
            let next = Ids { first: oldest, next: ids.next + 1 };
            batch.counts_as_deletion = batch.is_deletion();
            records::note(&mut batch, &tombstone, &next);
            batch.set_range_tombstone(tombstone);
            store.commit(batch, true, options.sync, &|| Ok(true))?;
            *ids = next;
        }
        keyspaces.iter().zip(&counted).for_each(|(keyspace, counts)| keyspace.counts.add(counts));
        Ok(())
    }
}

impl Keyspace {
    /// Deletes all keys in `range`: see [`Db::delete_range`].
    pub fn delete_range(&self, range: impl KeyRange) -> Result<()> {
        self.delete_range_with(range, WriteOptions::default())
    }

    /// [`delete_range`](Self::delete_range), with `options`.
    pub fn delete_range_with(&self, range: impl KeyRange, options: WriteOptions) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.delete_range_in(self, range);
        self.db().write_with(batch, options)
    }

    /// Deletes all keys of the keyspace, which goes on existing: see [`Db::delete_range`].
    pub fn clear(&self) -> Result<()> {
        self.delete_range(..)
    }
}

impl WriteBatch {
    /// Adds a deletion of all keys in `range`: of those in the database, and of those that the batch has put before.
    pub fn delete_range(&mut self, range: impl KeyRange) {
        self.push_range(None, range.bounds());
    }

    /// Adds a deletion of all keys of `keyspace` in `range`.
    pub fn delete_range_in(&mut self, keyspace: &Keyspace, range: impl KeyRange) {
        self.push_range(Some(keyspace.open()), range.bounds());
    }
}

impl Store {
    /// Sweeps on this thread until there are few enough tombstones, or until that does not help.
    fn make_room_for_tombstone(&self) -> Result<()> {
        while self.core.range_tombstones.active().len() >= MOST_ACTIVE {
            match self.sweep_ranges_once() {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) if e.kind() == ErrorKind::Closed => return Err(e),
                Err(error) => {
                    // Reads are slower, and no more.
                    tracing::warn!(%error, "range tombstones that cannot be swept add up");
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes range tombstones over from the catalogue: when the database is opened, and when it is found again.
    ///
    /// # Errors
    ///
    /// `Corruption` if one cannot be read: what it hides would come back.
    pub(in crate::db) fn load_range_tombstones(&self) -> Result<()> {
        let (ids, found) = self.tombstones()?;
        if !found.is_empty() {
            self.catalog.note_ranges();
        }
        self.core.range_tombstones.set(found);
        *self.range_deletes.ids.lock() = ids;
        Ok(())
    }

    /// The tombstones whose batches have happened and of which something may be left.
    pub(in crate::db) fn written_tombstones(&self) -> Vec<Arc<RangeTombstone>> {
        let next = self.range_deletes.ids.lock().next;
        let mut written = self.core.range_tombstones.active();
        written.retain(|tombstone| tombstone.id < next);
        written
    }

    /// Checks that the records of tombstones can be read.
    pub(in crate::db) fn check_range_tombstones(&self, report: &mut CheckReport) -> Result<()> {
        if self.catalog.default_space() == Space::Default && self.catalog.may_have_ranges() {
            report.note(self.tombstones())?;
        }
        Ok(())
    }
}

/// The operations on single keys that remain of a batch with every key in its place, and the ranges that it deletes
/// without their keys.
fn resolved(batch: &WriteBatch, default: Space) -> (WriteBatch, Spans) {
    let ops: Vec<_> = batch.ops_and_merges().collect();
    let mut ranges = batch.range_deletes().iter().rev().peekable();
    // From behind, so that those are known that delete an operation after it.
    let (mut spans, mut kept) = (Spans::default(), Vec::new());
    // Keys whose values merges ask for that stand further behind.
    let mut asked = BTreeSet::new();
    for (number, (op, merge)) in ops.iter().enumerate().rev() {
        let behind = std::iter::from_fn(|| ranges.next_if(|range| range.after as usize > number));
        let behind = union_of(behind, default);
        take_covered(&mut asked, &behind, |key| kept.push((delete(key), None)));
        spans.add(behind);
        if spans.around(op.key).is_none() {
            kept.push((*op, *merge));
            if merge.is_some() {
                asked.insert(op.key)
            } else {
                asked.remove(op.key)
            };
        }
    }
    let first = union_of(ranges, default);
    take_covered(&mut asked, &first, |key| kept.push((delete(key), None)));
    spans.add(first);
    let mut rest = WriteBatch::new();
    kept.iter().rev().for_each(|(op, merge)| rest.push_as(*op, *merge));
    let own: BTreeSet<&[u8]> = kept.iter().map(|(op, _)| op.key).collect();
    (rest, spans.without(own))
}

/// Takes the keys out of `asked` that `spans` delete, and hands them to `each`.
fn take_covered<'k>(asked: &mut BTreeSet<&'k [u8]>, spans: &Spans, mut each: impl FnMut(&'k [u8])) {
    for span in spans.iter() {
        let end = span.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        if !span.holds(&span.from) {
            continue;
        }
        let range = (Bound::Included(&span.from[..]), end);
        let covered: Vec<&'k [u8]> = asked.range::<[u8], _>(range).copied().collect();
        for key in covered {
            asked.remove(key);
            each(key);
        }
    }
}

/// The places of the keys that `range` deletes.
fn spans_of(range: &RangeDelete, default: Space) -> Spans {
    let space = range.keyspace.as_ref().map_or(default, |keyspace| keyspace.space());
    let [from, to] = [&range.from, &range.to].map(|bound| bound.as_ref().map(Vec::as_slice));
    let (first, second) = space.places(from, to);
    Spans::union(Some(first).into_iter().chain(second).filter_map(Span::of).collect())
}

/// The places of the keys that `ranges` delete.
fn union_of<'r>(ranges: impl Iterator<Item = &'r RangeDelete>, default: Space) -> Spans {
    Spans::union(ranges.flat_map(|range| spans_of(range, default).into_iter()).collect())
}

fn delete(key: &[u8]) -> Op<'_> {
    Op { kind: Kind::Delete, key, value: &[] }
}

/// The operation that notes a record.
fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Op<'a> {
    Op { kind: Kind::Put, key, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_resolved_in_its_order() {
        let mut batch = WriteBatch::new();
        batch.put("b", "gone");
        batch.put("x", "stays");
        batch.delete_range("a".."d");
        batch.put("c", "stays");
        batch.delete("bb");
        batch.delete_range("c".."cc");
        batch.put("e", "stays");
        let (rest, spans) = resolved(&batch, Space::Default);
        let keys: Vec<&[u8]> = rest.ops().map(|op| op.key).collect();
        assert_eq!(keys, [&b"x"[..], b"bb", b"e"]);
        let is_over = |key: &str| spans.around(key.as_bytes()).is_some();
        assert!(["a", "b", "c", "cx"].into_iter().all(is_over));
        assert!(!["", "bb", "d", "e", "x"].into_iter().any(is_over));
    }

    #[test]
    fn ranges_of_the_default_keyspace_leave_others_out() {
        let mut batch = WriteBatch::new();
        batch.delete_range(..);
        let (_, spans) = resolved(&batch, Space::Default);
        assert!(spans.around(b"").is_some() && spans.around(b"\xff\xff").is_some());
        assert!(spans.around(b"\xff\x00n").is_none() && spans.around(b"\xff\x01k").is_none());
    }

    #[test]
    fn a_range_without_keys_deletes_nothing() {
        let mut batch = WriteBatch::new();
        batch.delete_range("d".."a");
        assert!(resolved(&batch, Space::Default).1.is_empty());
    }
}
