//! Reads: memtables, newest first, then the levels, uppermost first. Nobody locks.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Kind};

use super::Lsm;
use crate::core::engine::{Direction, Walk};
use crate::levels::walk::MergedWalk;

impl Lsm {
    /// The value of `key` as a reader at `at` sees it, or now.
    pub(super) fn get_value(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        // In this order. Were it the other way round, a newer version could come in between, and a merge drop the
        // one that this reader is to see.
        let readable = self.readable.load();
        let at = at.unwrap_or_else(|| self.core.snapshots.visible());
        for memtable in &readable.memtables {
            if let Some(found) = memtable.list.get(key, at) {
                return Ok((found.kind == Kind::Put).then(|| Bytes::copy_from_slice(found.value)));
            }
        }
        let found = readable.levels.get(key, at)?;
        Ok(found.filter(|entry| entry.kind == Kind::Put).map(|entry| entry.value))
    }

    /// A walk over what is readable now, which it keeps.
    pub(super) fn merged_walk(&self, at: u64, direction: Direction) -> Box<dyn Walk> {
        let readable = self.readable();
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for memtable in &readable.memtables {
            cursors.push(Box::new(memtable.list.cursor()));
        }
        cursors.extend(readable.levels.cursors());
        Box::new(MergedWalk::new(cursors, at, direction))
    }
}
