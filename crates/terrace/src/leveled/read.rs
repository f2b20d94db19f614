//! Reads: memtables, newest first, the stage, then the levels, uppermost first. Nobody locks.

use std::ops::Bound;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::{Cursor, Entry, Kind};

use super::buffer::Moment;
use super::{LeveledTree, Memtable, Readable, Stage, WriteBuffer};
use crate::core::engine::{Direction, EngineIter};
use crate::levels::walk::MergedIter;
use crate::memtable::Memtables;

impl<B: WriteBuffer> LeveledTree<B> {
    /// The value of `key` for a reader at `at`, or for one of now.
    pub(super) fn get_value(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        loop {
            // In this order: otherwise a newer version could be written in between, and a merge drop the one
            // that this reader must see.
            let readable = self.readable.load();
            let visible = at.unwrap_or_else(|| self.core.snapshots.visible());
            let mut found = newest_in_memtables(&readable.memtables, key, visible);
            if found.is_none() {
                // A version on the stage was visible before it came there. A reader of now takes it: the
                // versions that it has replaced meanwhile are kept only for snapshots.
                found = self.buffer.stage().get(key, at.unwrap_or(u64::MAX))?;
            }
            if found.is_none() {
                if B::Stage::CHANGES && !Arc::ptr_eq(&readable, &self.readable.load()) {
                    continue;
                }
                found = readable.levels.get(key, visible)?;
            }
            return Ok(found.filter(|entry| entry.kind == Kind::Put).map(|entry| entry.value));
        }
    }

    /// A walk over what is readable now, which it keeps; if the stage changes, over what is readable as it
    /// continues.
    pub(super) fn merged_walk(&self, at: u64, direction: Direction) -> Box<dyn EngineIter> {
        if !B::Stage::CHANGES {
            return Box::new(self.walk_of(&self.readable(), &Moment::forever(), at, direction));
        }
        let tree = self.me.clone();
        Box::new(StagedWalk { tree, at, direction, from: Bound::Unbounded, part: None, passed: 0 })
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
        MergedIter::new(cursors, at, direction)
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

/// The newest version of `key` up to `at` in memtables, newest first.
fn newest_in_memtables<M: Memtable>(memtables: &Memtables<M>, key: &[u8], at: u64) -> Option<Entry> {
    memtables.iter().find_map(|memtable| memtable.get(key, at))
}

/// A walk during which versions may leave the stage. Whenever the readable set differs from the one with
/// which a part began, the next part continues from the last key returned. Its snapshot is held throughout.
struct StagedWalk<B: WriteBuffer> {
    tree: Weak<LeveledTree<B>>,
    at: u64,
    direction: Direction,
    /// Where the next part begins.
    from: Bound<Vec<u8>>,
    part: Option<(MergedIter, Arc<Moment>)>,
    /// What the parts before this one passed.
    passed: u64,
}

impl<B: WriteBuffer> StagedWalk<B> {
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

impl<B: WriteBuffer> EngineIter for StagedWalk<B> {
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

    fn passed(&self) -> u64 {
        self.passed + self.part.as_ref().map_or(0, |(walk, _)| walk.passed())
    }
}
