//! Eviction from the value tree: keys whose words say "below", and victims of the clock.
//!
//! Victims are gathered in key order, from the hand's position, and make one batch: a table of level 0 that
//! covers a narrow range, and so overlaps little of the levels below. They leave the tree once the manifest
//! names the table. A crash before that leaves them in both places, which is harmless: it is the same
//! version.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrace_base::{ErrorKind, Result};
use terrace_index::{OrderedIndex, PointIndex, ScanBatch};

use super::clock::Round;
use super::flush::count;
use super::layout::{Hint, ValueLocation};
use super::tree::{CHUNK, LEAST_THRESHOLD, ValueTree, Work, kind};
use crate::leveled::{LeveledTree, WriteBuffer};
use crate::levels::output::Wanted;

/// Eviction begins when the tree exceeds the larger of these parts of its bound, and goes down to the
/// smaller.
const FULL: (u64, u64) = (7, 8);
const ENOUGH: (u64, u64) = (5, 8);

/// Keys that leave, and what the index says of them.
type Victims = BTreeMap<Vec<u8>, ValueLocation>;

/// Moves what must leave to level 0.
pub(super) fn evict<B: WriteBuffer>(values: &ValueTree, tree: &LeveledTree<B>) -> Result<()> {
    values.fit_filter();
    let mut work = values.work.lock();
    values.hints.outdate(&std::mem::take(&mut work.outdated), &|run| tree.entry_bytes(run));
    let is_hot = |key: &[u8]| values.sketch.estimate(values.hash(key)) >= LEAST_THRESHOLD;
    let leads_on = |hint: Option<Hint>| hint.is_some_and(|hint| tree.entry_bytes(hint.run).is_some());
    values.hints.trim(tree.run_bytes(), &|key, hint| leads_on(hint) && is_hot(key));
    for key in std::mem::take(&mut work.below) {
        values.leave(&key, ValueLocation::Below)?;
    }
    if values.index.is_empty() {
        return Ok(());
    }
    let bound = values.bound(tree.run_bytes());
    let used = values.used();
    if used <= bound / FULL.1 * FULL.0 {
        work.threshold = work.threshold.saturating_sub(1).max(LEAST_THRESHOLD);
        return Ok(());
    }
    let wanted = used - bound / ENOUGH.1 * ENOUGH.0;
    let victims = gather(values, &mut work, wanted, tree.flushed_seq())?;
    take_below(values, tree, &mut work, &victims)
}

/// Moves everything that may leave to level 0.
pub(super) fn clear<B: WriteBuffer>(values: &ValueTree, tree: &LeveledTree<B>) -> Result<()> {
    let mut work = values.work.lock();
    let (mut victims, last) = (Victims::new(), tree.flushed_seq());
    values.each_place(&mut |key, place| {
        if bytes_of(values, key, place, last)?.is_some() {
            victims.insert(key.to_vec(), place);
        }
        Ok(())
    })?;
    take_below(values, tree, &mut work, &victims)
}

/// Writes victims to level 0, and removes them from the tree.
fn take_below<B: WriteBuffer>(
    values: &ValueTree,
    tree: &LeveledTree<B>,
    work: &mut Work,
    victims: &Victims,
) -> Result<()> {
    if victims.is_empty() {
        return Ok(());
    }
    // A formerly hot key may become hot again: then the copy written now is stale.
    let wanted = values.hints.is_on().then(|| Box::new(|_: &[u8]| true) as Box<Wanted<'_>>);
    let change = tree.to_level_0_noting(wanted, |add| {
        for (key, place) in victims {
            let ValueLocation::Here(word) = place else { continue };
            let record = values.record(*word, key)?;
            add(key, record.number, kind(*word), record.value)?;
        }
        Ok(())
    })?;
    // Tombstones over nothing leave without a table, and not without a trace in the manifest.
    let number = tree.put(change)?.map_or_else(|| tree.pass_number(), Ok)?;
    work.witness.leaves_for(&values.pool, number)?;
    for (key, place) in victims {
        values.leave(key, *place)?;
        count(&values.figures.evicted);
    }
    values.drain();
    Ok(())
}

/// Chooses keys that take `wanted` bytes, if there are that many; none with a number after `last`. If most of
/// them were admitted for nothing, fewer are admitted from now on.
fn gather(values: &ValueTree, work: &mut Work, wanted: u64, last: u64) -> Result<Victims> {
    let (mut victims, mut round) = (Victims::new(), Round::new(wanted));
    let (mut batch, mut from) = (ScanBatch::new(), Bound::Included(work.hand.clone()));
    let (mut passed, mut kept) = (0u64, 0u64);
    while !round.is_over() {
        batch.clear();
        values.index.scan(from.as_ref().map(Vec::as_slice), false, CHUNK, &mut batch)?;
        for (key, bits) in batch.iter() {
            let place = values.decode(bits)?;
            let Some(bytes) = bytes_of(values, key, place, last)? else { continue };
            if round.is_over() || victims.contains_key(key) {
                continue;
            }
            passed += 1;
            work.hand = key.to_vec();
            match round.takes(values.touched.take(values.hash(key)), bytes) {
                true => drop(victims.insert(key.to_vec(), place)),
                false => kept += 1,
            }
        }
        from = match batch.len().checked_sub(1) {
            Some(end) if batch.len() == CHUNK => Bound::Excluded(batch.key(end).to_vec()),
            _ => {
                round.reaches_end();
                Bound::Unbounded
            }
        };
    }
    if kept < passed / 2 {
        work.threshold = work.threshold.saturating_add(1);
    }
    Ok(victims)
}

/// Bytes freed when `key` leaves; `None` if it must stay. An unreadable record stays where it is, so that its
/// reader gets the error.
fn bytes_of(values: &ValueTree, key: &[u8], place: ValueLocation, last: u64) -> Result<Option<u64>> {
    let ValueLocation::Here(word) = place else { return Ok(Some(ValueTree::cost(0, key, true))) };
    match values.record(word, key) {
        Ok(record) => Ok((record.number <= last).then(|| ValueTree::cost(record.range().1, key, true))),
        Err(e) if e.kind() == ErrorKind::Corruption => Ok(None),
        Err(e) => Err(e),
    }
}
