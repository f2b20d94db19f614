//! A walk over one list.

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_index::pmlist::PmCursor;
use terrace_table::{Cursor, Head};

use super::lists::ListRun;

/// A position in a list.
#[derive(Debug)]
pub(crate) enum ListRunCursor {
    /// In a list.
    At(PmCursor),
    /// In an unreadable list: every move returns this error.
    Damaged(Error),
}

impl ListRunCursor {
    pub fn new(run: &ListRun) -> ListRunCursor {
        match run.list() {
            Ok(list) => ListRunCursor::At(list.cursor()),
            Err(e) => ListRunCursor::Damaged(e),
        }
    }

    fn moved(&mut self, moves: impl FnOnce(&mut PmCursor) -> Result<()>) -> Result<()> {
        match self {
            ListRunCursor::At(cursor) => moves(cursor),
            ListRunCursor::Damaged(e) => Err(e.clone()),
        }
    }

    fn at(&self) -> Option<&PmCursor> {
        match self {
            ListRunCursor::At(cursor) if cursor.valid() => Some(cursor),
            _ => None,
        }
    }
}

impl Cursor for ListRunCursor {
    fn head(&self) -> Option<Head<'_>> {
        self.at().map(|cursor| Head { key: cursor.key(), seq: cursor.seq(), kind: cursor.kind() })
    }
    fn seek_first(&mut self) -> Result<()> {
        self.moved(PmCursor::seek_first)
    }
    fn seek_last(&mut self) -> Result<()> {
        self.moved(PmCursor::seek_last)
    }
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.moved(|cursor| cursor.seek(key, seq))
    }
    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.moved(|cursor| cursor.seek_back(key, seq))
    }
    fn next(&mut self) -> Result<()> {
        self.moved(PmCursor::next)
    }
    fn prev(&mut self) -> Result<()> {
        self.moved(PmCursor::prev)
    }
    fn value(&self) -> Result<Bytes> {
        self.at().map_or(Ok(Bytes::new()), |cursor| cursor.value().map(Bytes::copy_from_slice))
    }
    fn value_in_place(&self) -> Result<&[u8]> {
        self.at().map_or(Ok(&[]), PmCursor::value)
    }
    fn value_len(&self) -> usize {
        self.at().map_or(0, PmCursor::value_len)
    }
    fn record(&self) -> Option<u64> {
        self.at().map(PmCursor::offset)
    }
}
