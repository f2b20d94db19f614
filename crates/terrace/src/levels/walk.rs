//! A reader's view of versions merged from memtables and tables: each key's newest version up to its
//! snapshot, unless that is a tombstone.

use std::ops::Bound;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Kind, MergeCursor, merge};

use crate::core::engine::{Direction, EngineIter};

/// A walk over the live keys of a snapshot; the cursors keep what they read.
#[derive(Debug)]
pub(crate) struct MergedIter {
    cursor: MergeCursor,
    at: u64,
    direction: Direction,
    /// The key whose versions are being passed.
    key: Vec<u8>,
    /// Versions and keys of which the snapshot saw nothing.
    passed: u64,
}

impl MergedIter {
    /// A walk over `children`, not yet positioned.
    pub fn new(children: Vec<Box<dyn Cursor>>, at: u64, direction: Direction) -> Self {
        MergedIter { cursor: merge(children), at, direction, key: Vec::new(), passed: 0 }
    }

    fn at_same_key(&self) -> bool {
        self.cursor.valid() && self.cursor.key() == self.key
    }

    fn enter_key(&mut self) {
        self.key.clear();
        self.key.extend_from_slice(self.cursor.key());
    }

    fn next_forward(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        while self.cursor.valid() {
            if self.cursor.seq() > self.at {
                self.cursor.next()?;
                self.passed += 1;
                continue;
            }
            self.enter_key();
            let found = self.take()?;
            self.cursor.next()?;
            while self.at_same_key() {
                self.cursor.next()?;
            }
            if found.is_some() {
                return Ok(found);
            }
            self.passed += 1;
        }
        Ok(None)
    }

    /// Backward the oldest version of a key comes first, and the last one that the snapshot sees counts.
    fn next_back(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        while self.cursor.valid() {
            self.enter_key();
            let mut found = None;
            while self.at_same_key() {
                if self.cursor.seq() <= self.at {
                    found = self.take()?;
                }
                self.cursor.prev()?;
            }
            if found.is_some() {
                return Ok(found);
            }
            self.passed += 1;
        }
        Ok(None)
    }

    /// The entry here, unless it is a tombstone.
    fn take(&self) -> Result<Option<(Bytes, Bytes)>> {
        Ok(match self.cursor.kind() {
            Kind::Put => Some((Bytes::copy_from_slice(self.cursor.key()), self.cursor.value()?)),
            Kind::Delete => None,
        })
    }
}

impl EngineIter for MergedIter {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        match (self.direction, bound) {
            (Direction::Forward, Bound::Unbounded) => self.cursor.seek_first(),
            (Direction::Forward, Bound::Included(key)) => self.cursor.seek(key, u64::MAX),
            (Direction::Forward, Bound::Excluded(key)) => {
                // The last position of a key is that of the lowest sequence number.
                self.cursor.seek(key, 0)?;
                if self.cursor.valid() && self.cursor.key() == key { self.cursor.next() } else { Ok(()) }
            }
            (Direction::Backward, Bound::Unbounded) => self.cursor.seek_last(),
            (Direction::Backward, Bound::Included(key)) => self.cursor.seek_back(key, 0),
            (Direction::Backward, Bound::Excluded(key)) => {
                self.cursor.seek_back(key, u64::MAX)?;
                if self.cursor.valid() && self.cursor.key() == key { self.cursor.prev() } else { Ok(()) }
            }
        }
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        match self.direction {
            Direction::Forward => self.next_forward(),
            Direction::Backward => self.next_back(),
        }
    }

    fn passed(&self) -> u64 {
        self.passed
    }
}
