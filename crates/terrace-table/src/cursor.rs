//! Cursors: places in a sorted sequence of entries.

use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;

use crate::entry::Kind;
use crate::nested::{IndexCursor, Nested, PassedBlocks};
use crate::position::Position;
use crate::table::Table;

/// An entry but for its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The entry's key.
    pub key: &'a [u8],
    /// Its sequence number.
    pub seq: u64,
    /// Whether it sets or deletes.
    pub kind: Kind,
}

/// A place in a sequence of entries ordered by key ascending, then sequence number descending.
///
/// A new cursor, one that moved past either end, and one whose last move failed are not
/// [`valid`](Self::valid): they have no entry, and only the seeks bring them back. The entry's
/// accessors are for valid cursors; on others they give empty values.
pub trait Cursor: Send + Sync {
    /// The entry here, but for its value; `None` if the cursor is not [`valid`](Self::valid).
    fn head(&self) -> Option<Head<'_>>;
    /// Moves to the first entry.
    fn seek_first(&mut self) -> Result<()>;
    /// Moves to the last entry.
    fn seek_last(&mut self) -> Result<()>;
    /// Moves to the first entry at or after (`key`, `seq`) in cursor order.
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()>;
    /// Moves to the last entry at or before (`key`, `seq`) in cursor order.
    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()>;
    /// Moves to the following entry.
    fn next(&mut self) -> Result<()>;
    /// Moves to the preceding entry.
    fn prev(&mut self) -> Result<()>;
    /// The entry's value, sharing the buffer that it was read into.
    fn value(&self) -> Result<Bytes>;
    /// The entry's value in its place, until the cursor moves.
    fn value_in_place(&self) -> Result<&[u8]>;
    /// The value's length in bytes.
    fn value_len(&self) -> usize;
    /// Whether the cursor is at an entry.
    fn valid(&self) -> bool {
        self.head().is_some()
    }
    /// The entry's key.
    fn key(&self) -> &[u8] {
        self.head().map_or(&[], |head| head.key)
    }
    /// The entry's sequence number.
    fn seq(&self) -> u64 {
        self.head().map_or(0, |head| head.seq)
    }
    /// Whether the entry sets or deletes.
    fn kind(&self) -> Kind {
        self.head().map_or(Kind::Delete, |head| head.kind)
    }
    /// The table block of the entry, if it lies in one.
    fn position(&self) -> Option<Position> {
        None
    }
    /// The place of the entry's record, if it lies in a pool.
    fn record(&self) -> Option<u64> {
        None
    }
}

impl<C: Cursor + ?Sized> Cursor for Box<C> {
    fn head(&self) -> Option<Head<'_>> {
        (**self).head()
    }
    fn seek_first(&mut self) -> Result<()> {
        (**self).seek_first()
    }
    fn seek_last(&mut self) -> Result<()> {
        (**self).seek_last()
    }
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        (**self).seek(key, seq)
    }
    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        (**self).seek_back(key, seq)
    }
    fn next(&mut self) -> Result<()> {
        (**self).next()
    }
    fn prev(&mut self) -> Result<()> {
        (**self).prev()
    }
    fn value(&self) -> Result<Bytes> {
        (**self).value()
    }
    fn value_in_place(&self) -> Result<&[u8]> {
        (**self).value_in_place()
    }
    fn value_len(&self) -> usize {
        (**self).value_len()
    }
    fn position(&self) -> Option<Position> {
        (**self).position()
    }
    fn record(&self) -> Option<u64> {
        (**self).record()
    }
}

/// A cursor over one table; see [`Table::cursor`].
#[derive(Debug)]
pub struct TableCursor {
    entries: Nested<IndexCursor>,
    number: u64,
}

impl TableCursor {
    pub(crate) fn new(
        table: &Arc<Table>,
        fill_cache: bool,
        readahead: usize,
        passed: Option<PassedBlocks>,
    ) -> Self {
        TableCursor { entries: Nested::data(table, fill_cache, readahead, passed), number: table.number() }
    }
}

impl Cursor for TableCursor {
    fn head(&self) -> Option<Head<'_>> {
        self.entries.inner().head()
    }
    fn seek_first(&mut self) -> Result<()> {
        self.entries.seek_first()
    }
    fn seek_last(&mut self) -> Result<()> {
        self.entries.seek_last()
    }
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.entries.seek(key, seq)
    }
    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.entries.seek_back(key, seq)
    }
    fn next(&mut self) -> Result<()> {
        self.entries.next()
    }
    fn prev(&mut self) -> Result<()> {
        self.entries.prev()
    }
    fn value(&self) -> Result<Bytes> {
        self.entries.value()
    }
    fn value_in_place(&self) -> Result<&[u8]> {
        self.entries.value_in_place()
    }
    fn value_len(&self) -> usize {
        self.entries.inner().value().len()
    }
    fn position(&self) -> Option<Position> {
        let here = self.entries.here()?;
        Position::new(self.number, here.offset, here.len)
    }
}
