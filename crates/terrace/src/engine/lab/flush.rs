//! A flush's work on each key of a memtable.
//!
//! | the key | its newest version | its older ones, as far as snapshots need them |
//! |---|---|---|
//! | is in the tree, or is written often | replaces what is there | level 0 |
//! | is in the tree, and there is no room | level 0; the tree says "below" | level 0 |
//! | is neither | level 0 | level 0 |
//!
//! Versions replaced in the tree that a snapshot needs are put on level 0 first, in a change of their own:
//! from then on readers find them there.
//!
//! A flush may be started again, after an error or a crash. If the tree already has a version, or a newer
//! one, it is left as it is: a replayed log may fill memtables differently.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::Result;
use terrace_table::Kind;

use super::hints::HintCursor;
use super::layout::ValueLocation;
use super::tree::{ValueTree, Work, is_full};
use crate::core::snapshots::is_needed;
use crate::leveled::{Add, LeveledTree, LevelsEdit, Memtable, WriteBuffer};
use crate::versions::{RECORD_BYTES_BEFORE_KEY, Version};

/// The longest record: larger ones take whole extents, and leave most of them unused.
const MOST_RECORD_BYTES: u64 = 8 << 10;

/// Slots are at most this share of an extent.
const EXTENT_SHARE: u64 = 8;

/// The sequence numbers that a record can have.
const NUMBERS: u64 = 1 << 48;

/// Flushes `memtable` into the value tree and to level 0.
pub(super) fn flush<B: WriteBuffer>(
    values: &ValueTree,
    tree: &LeveledTree<B>,
    memtable: &B::Memtable,
) -> Result<LevelsEdit> {
    // Listed after all of the memtable became visible: later snapshots see nothing older.
    let held = tree.core().snapshots.list();
    let mut work = values.work.lock();
    work.witness.flushes(&values.pool, memtable.max_seq())?;
    work.outdated.clear();
    memtable.visit(|key, _, _, _| {
        values.sketch.touch(values.hash(key));
        Ok(())
    })?;
    if !held.is_empty() {
        let change = tree.to_level_0(|add| replaced(values, memtable, &held, add))?;
        tree.put(change)?;
    }
    let room = values.bound(tree.run_bytes()).saturating_sub(values.used());
    // Whether a key that goes to level 0 has a hint, which must then lead there.
    let has_hint = Rc::new(Cell::new(false));
    let wanted = has_hint.clone();
    let change = tree.to_level_0_noting(Some(Box::new(move |_: &[u8]| wanted.get())), |add| {
        let (held, hints) = (&held[..], values.hints.walk());
        let work = &mut *work;
        let mut flushing = Flushing { values, work, hints, has_hint, held, room, key: None, newer: None };
        memtable.visit(|key, seq, kind, value| flushing.take((key, seq, kind, value), add))
    })?;
    values.drain();
    Ok(change)
}

/// Adds those versions in the tree that `memtable` replaces by newer ones and that snapshots still need.
fn replaced<M: Memtable>(values: &ValueTree, memtable: &M, held: &[u64], add: &mut Add<'_>) -> Result<()> {
    // The last key passed, and its oldest version in the memtable.
    let mut last: Option<(Vec<u8>, u64)> = None;
    memtable.visit(|key, seq, _, _| {
        match &mut last {
            Some((passed, oldest)) if passed == key => *oldest = seq,
            _ => {
                add_if_needed(values, last.take(), held, add)?;
                last = Some((key.to_vec(), seq));
            }
        }
        Ok(())
    })?;
    add_if_needed(values, last, held, add)
}

/// Adds a key's version in the tree if a snapshot sees it in spite of the newer one with the sequence number
/// `until`.
fn add_if_needed(
    values: &ValueTree,
    replaced: Option<(Vec<u8>, u64)>,
    held: &[u64],
    add: &mut Add<'_>,
) -> Result<()> {
    let Some((key, until)) = replaced else { return Ok(()) };
    let Some(ValueLocation::Here(word)) = values.place(&key)? else { return Ok(()) };
    let record = values.record(word, &key)?;
    match is_needed(held, record.number, until) {
        true => add(&key, record.number, super::tree::kind(word), record.value),
        false => Ok(()),
    }
}

/// A version in a memtable.
type Taken<'a> = (&'a [u8], u64, Kind, &'a [u8]);

/// A memtable being flushed.
struct Flushing<'a> {
    values: &'a ValueTree,
    work: &'a mut Work,
    /// The keys' hints.
    hints: HintCursor<'a>,
    has_hint: Rc<Cell<bool>>,
    held: &'a [u64],
    /// Bytes by which the tree may still grow.
    room: u64,
    /// The last key passed.
    key: Option<Vec<u8>>,
    /// The sequence number of its previous version, if its newest is in the tree.
    newer: Option<u64>,
}

impl Flushing<'_> {
    fn take(&mut self, taken: Taken<'_>, add: &mut Add<'_>) -> Result<()> {
        let (key, seq, kind, value) = taken;
        if self.key.as_deref() != Some(key) {
            self.key = Some(key.to_vec());
            let hint = self.hints.find(key);
            self.has_hint.set(hint.is_some());
            self.newer = self.keep(&taken)?.then_some(seq);
            if let (Some(_), Some((hint, word))) = (self.newer, hint)
                && !hint.is_stale
            {
                self.work.outdated.push((key.to_vec(), word));
            }
            return if self.newer.is_some() { Ok(()) } else { add(key, seq, kind, value) };
        }
        let is_hidden = self.newer.is_some_and(|newer| !is_needed(self.held, seq, newer));
        self.newer = self.newer.map(|_| seq);
        if is_hidden { Ok(()) } else { add(key, seq, kind, value) }
    }

    /// Keeps the newest version of a key in the tree, if it belongs there; returns whether it is there.
    fn keep(&mut self, taken: &Taken<'_>) -> Result<bool> {
        let (key, seq, kind, _) = *taken;
        let hash = self.values.hash(key);
        let before = if self.values.may_hold(hash) { self.values.place(key)? } else { None };
        match before {
            None if kind == Kind::Delete || self.values.sketch.estimate(hash) < self.work.threshold => {
                return Ok(false);
            }
            None => {}
            Some(ValueLocation::Here(word)) => {
                let there = self.values.record(word, key)?;
                if there.number >= seq {
                    return Ok(true);
                }
                let freed = there.range().1;
                self.room += ValueTree::cost(freed, key, false);
                self.values.touched.touch(hash);
            }
            Some(ValueLocation::Below) => {}
        }
        if self.put(taken, before)? {
            let figures = &self.values.figures;
            count(if before.is_none() { &figures.admitted } else { &figures.updated });
            return Ok(true);
        }
        if let Some(ValueLocation::Here(_)) = before {
            self.values.set(key, ValueLocation::Below, false)?;
            self.values.retire(before);
            self.work.below.push(key.to_vec());
        }
        Ok(false)
    }

    /// Replaces the tree's version by another; false if there is no room for it.
    fn put(&mut self, taken: &Taken<'_>, before: Option<ValueLocation>) -> Result<bool> {
        let (key, number, kind, value) = *taken;
        let value = (kind == Kind::Put).then_some(value);
        let bytes = RECORD_BYTES_BEFORE_KEY + (key.len() + value.unwrap_or_default().len()) as u64;
        let cost = ValueTree::cost(bytes, key, before.is_none());
        let most = MOST_RECORD_BYTES.min(self.values.pool.extent_bytes() / EXTENT_SHARE);
        if bytes > most || cost > self.room || number >= NUMBERS {
            return Ok(false);
        }
        match self.values.keep(&Version { key, value, number, older: None }, before) {
            Ok(()) => {
                self.room -= cost;
                Ok(true)
            }
            Err(e) if is_full(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

pub(super) fn count(figure: &AtomicU64) {
    figure.fetch_add(1, Ordering::Relaxed);
}
