//! Reads: memtables, newest first, the stage, then the levels, uppermost first. Nobody locks.

use std::ops::Bound;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use terrace_base::trail::{self, Touch};
use terrace_base::{Error, Result};
use terrace_table::{Cursor, Entry, Kind};

use super::buffer::Moment;
use super::{LeveledTree, Memtable, Readable, Stage, WriteBuffer};
use crate::core::engine::{Direction, EngineIter};
use crate::core::lent::{Lent, to_keep};
use crate::levels::walk::MergedIter;
use crate::memtable::{Memtables, Version};

impl<B: WriteBuffer> LeveledTree<B> {
    /// What `take` makes of the value of `key`, at snapshot `at` or now; it is called once at most.
    pub(super) fn with_value<T>(
        &self,
        key: &[u8],
        at: Option<u64>,
        mut take: impl FnMut(Lent<'_>) -> T,
    ) -> Result<Option<T>> {
        loop {
            // In this order: otherwise a newer version could be written in between, and a merge drop the one
            // that this reader must see.
            let readable = self.readable.load();
            let visible = at.unwrap_or_else(|| self.core.snapshots.visible());
            match in_memtables(&readable.memtables, key, visible, &mut take) {
                Some(Found::Whole(value)) => return Ok(value),
                Some(Found::Operand) => return Ok(self.folded(&readable, key, visible)?.map(take)),
                None => {}
            }
            match self.below(&readable, key, at, visible)? {
                Some(Some(entry)) if !entry.kind.is_whole() => {
                    return Ok(self.folded(&readable, key, visible)?.map(take));
                }
                Some(found) => return Ok(found.and_then(Lent::of_entry).map(take)),
                None => {}
            }
        }
    }

    /// Whether `key` exists now, whatever its value is.
    pub(super) fn exists(&self, key: &[u8]) -> Result<bool> {
        loop {
            let readable = self.readable.load();
            let visible = self.core.snapshots.visible();
            match in_memtables(&readable.memtables, key, visible, &mut |_| ()) {
                Some(Found::Whole(value)) => return Ok(value.is_some()),
                Some(Found::Operand) => return Ok(true),
                None => {}
            }
            if let Some(found) = self.below(&readable, key, None, visible)? {
                return Ok(found.is_some_and(|entry| entry.kind != Kind::Delete));
            }
        }
    }

    /// The newest version of `key` below the memtables of `readable`; `None` if the reader must begin anew.
    fn below(
        &self,
        readable: &Arc<Readable<B::Memtable>>,
        key: &[u8],
        at: Option<u64>,
        visible: u64,
    ) -> Result<Option<Option<Entry>>> {
        // A version on the stage was visible before it came there. A reader of now takes it: the versions that
        // it has replaced meanwhile are kept only for snapshots.
        let found = self.buffer.stage().get(key, at.unwrap_or(u64::MAX))?;
        if found.is_some() {
            return Ok(Some(found));
        }
        if B::Stage::CHANGES && !Arc::ptr_eq(readable, &self.readable.load()) {
            return Ok(None);
        }
        readable.levels.get(key, visible).map(Some)
    }

    /// The values of `keys` for a reader at `at`. In the order in which one key is looked for, for the same reasons.
    pub(super) fn get_values(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        loop {
            let readable = self.readable.load();
            let mut values = vec![None; keys.len()];
            let (mut places, mut below) = (Vec::new(), Vec::new());
            let folded = |key: &[u8]| {
                self.folded(&readable, key, at)?.map(|value| value.known().map(to_keep)).transpose()
            };
            for (i, key) in keys.iter().enumerate() {
                if let Some(found) = in_memtables(&readable.memtables, key, at, &mut to_keep) {
                    values[i] = match found {
                        Found::Whole(value) => value,
                        Found::Operand => folded(key)?,
                    };
                } else if let Some(entry) = self.buffer.stage().get(key, at)? {
                    values[i] = entry.into_value();
                } else {
                    places.push(i);
                    below.push(*key);
                }
            }
            if B::Stage::CHANGES && !Arc::ptr_eq(&readable, &self.readable.load()) {
                continue;
            }
            for (i, entry) in places.into_iter().zip(readable.levels.get_many(&below, at)?) {
                values[i] = match entry {
                    Some(entry) if !entry.kind.is_whole() => folded(keys[i])?,
                    entry => entry.and_then(Entry::into_value),
                };
            }
            return Ok(values);
        }
    }

    /// A walk over what is readable now, which it keeps; if the stage changes, over what is readable as it
    /// continues.
    pub(super) fn merged_walk(&self, at: u64, direction: Direction) -> Box<dyn EngineIter> {
        if !B::Stage::CHANGES {
            return Box::new(self.walk_of(&self.readable(), &Moment::forever(), at, direction));
        }
        let tree = self.me.clone();
        Box::new(StagedIter { tree, at, direction, from: Bound::Unbounded, part: None, passed: 0 })
    }

    fn walk_of(
        &self,
        readable: &Readable<B::Memtable>,
        moment: &Arc<Moment>,
        at: u64,
        direction: Direction,
    ) -> MergedIter {
        let mut cursors = self.cursors_above(readable, moment);
        cursors.extend(readable.levels.cursors());
        MergedIter::new(&self.core, cursors, at, direction)
    }

    /// A walk over what is readable now, valid until the readable set changes.
    fn walk_of_now(&self, at: u64, direction: Direction) -> (MergedIter, Arc<Moment>) {
        let readable = self.readable();
        let (tree, then) = (self.me.clone(), readable.clone());
        let is_now = move |tree: Arc<Self>| Arc::ptr_eq(&tree.readable.load(), &then);
        let moment = Moment::new(move || tree.upgrade().is_some_and(&is_now));
        (self.walk_of(&readable, &moment, at, direction), moment)
    }

    /// Cursors over each memtable and over the stage.
    pub(super) fn cursors_above(
        &self,
        readable: &Readable<B::Memtable>,
        moment: &Arc<Moment>,
    ) -> Vec<Box<dyn Cursor>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for memtable in &readable.memtables {
            cursors.push(Box::new(memtable.cursor()));
        }
        cursors.extend(self.buffer.stage().cursors(moment));
        cursors
    }
}

/// The newest version of a key in memtables.
enum Found<T> {
    /// What was made of its value; nothing of a tombstone.
    Whole(Option<T>),
    Operand,
}

/// What `take` makes of the value of the newest version of `key` up to `at` in memtables, newest first. `None` if there
/// is no version.
fn in_memtables<M: Memtable, T>(
    memtables: &Memtables<M>,
    key: &[u8],
    at: u64,
    take: &mut impl FnMut(Lent<'_>) -> T,
) -> Option<Found<T>> {
    let mut taken = |version: Version<'_>| match version.kind.is_whole() {
        true => Found::Whole(version.lent().map(&mut *take)),
        false => Found::Operand,
    };
    memtables.iter().find_map(|memtable| {
        let found = memtable.get(key, at, &mut taken);
        trail::note(|| Touch::Memtable { found: found.is_some() });
        found
    })
}

/// A walk during which versions may leave the stage. Whenever the readable set differs from the one with
/// which a part began, the next part continues from the last key returned. Its snapshot is held throughout.
struct StagedIter<B: WriteBuffer> {
    tree: Weak<LeveledTree<B>>,
    at: u64,
    direction: Direction,
    /// Where the next part begins.
    from: Bound<Vec<u8>>,
    part: Option<(MergedIter, Arc<Moment>)>,
    /// What the parts before this one passed.
    passed: u64,
}

impl<B: WriteBuffer> StagedIter<B> {
    /// The walk's current part, begun if there is none.
    fn part(&mut self) -> Result<&mut (MergedIter, Arc<Moment>)> {
        if self.part.is_none() {
            let closed = || Error::Closed;
            let tree = self.tree.upgrade().ok_or_else(closed)?;
            let (mut walk, moment) = tree.walk_of_now(self.at, self.direction);
            walk.seek(self.from.as_ref().map(Vec::as_slice))?;
            self.part = Some((walk, moment));
        }
        self.part.as_mut().ok_or_else(|| Error::invalid("a walk without a part"))
    }
}

impl<B: WriteBuffer> EngineIter for StagedIter<B> {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        self.from = bound.map(<[u8]>::to_vec);
        self.part = None;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            let (walk, moment) = self.part()?;
            let found = walk.next();
            if moment.is_over() {
                // The walk has advanced without the stage.
                let passed = walk.passed();
                self.passed += passed;
                self.part = None;
                continue;
            }
            if let Ok(Some((key, _))) = &found {
                self.from = Bound::Excluded(key.to_vec());
            }
            return found;
        }
    }

    fn failure(&self) -> Option<&Error> {
        self.part.as_ref().and_then(|(walk, _)| walk.failure())
    }

    fn passed(&self) -> u64 {
        self.passed + self.part.as_ref().map_or(0, |(walk, _)| walk.passed())
    }
}
