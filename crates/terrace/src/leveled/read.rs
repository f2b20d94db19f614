//! Reads: memtables, newest first, the stage, then the levels, uppermost first. Nobody locks.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Entry, Kind};

use super::{LeveledTree, Memtable, Readable, Stage, WriteBuffer};
use crate::core::engine::{Direction, EngineIter};
use crate::levels::walk::MergedIter;

impl<B: WriteBuffer> LeveledTree<B> {
    /// The value of `key` as a reader at `at` sees it, or now.
    pub(super) fn get_value(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        // In this order. Were it the other way round, a newer version could come in between, and a merge drop the
        // one that this reader is to see.
        let readable = self.readable.load();
        let at = at.unwrap_or_else(|| self.core.snapshots.visible());
        let found = self.newest(&readable, key, at)?;
        Ok(found.filter(|entry| entry.kind == Kind::Put).map(|entry| entry.value))
    }

    /// The newest version of `key` up to `at`.
    fn newest(&self, readable: &Readable<B::Memtable>, key: &[u8], at: u64) -> Result<Option<Entry>> {
        for memtable in &readable.memtables {
            if let Some(found) = memtable.get(key, at) {
                return Ok(Some(found));
            }
        }
        match self.buffer.stage().get(key, at)? {
            None => readable.levels.get(key, at),
            found => Ok(found),
        }
    }

    /// A walk over what is readable now, which it keeps.
    pub(super) fn merged_walk(&self, at: u64, direction: Direction) -> Box<dyn EngineIter> {
        let readable = self.readable();
        let mut cursors = self.cursors_above(&readable);
        cursors.extend(readable.levels.cursors());
        Box::new(MergedIter::new(cursors, at, direction))
    }

    /// A cursor over each memtable, and those over the stage.
    pub(super) fn cursors_above(&self, readable: &Readable<B::Memtable>) -> Vec<Box<dyn Cursor>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for memtable in &readable.memtables {
            cursors.push(Box::new(memtable.cursor()));
        }
        cursors.extend(self.buffer.stage().cursors());
        cursors
    }
}
