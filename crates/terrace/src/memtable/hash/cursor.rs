//! Cursors over a table in order.

use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Head};

use super::Inner;
use super::record::MemRecord;
use super::sorted::Sorted;

/// A position in a table, which it keeps alive. Its first seek sorts the contents; it does not meet what is
/// inserted after that.
#[derive(Debug, Clone)]
pub(crate) struct HashCursor {
    table: Arc<Inner>,
    sorted: Option<Arc<Sorted>>,
    at: Option<usize>,
}

impl HashCursor {
    pub(super) fn new(table: Arc<Inner>) -> Self {
        HashCursor { table, sorted: None, at: None }
    }

    fn sorted(&mut self) -> &Sorted {
        // SAFETY: the cursor keeps the table.
        self.sorted.get_or_insert_with(|| unsafe { self.table.sorted() })
    }

    fn record(&self) -> Option<MemRecord<'_>> {
        self.sorted.as_ref()?.get(self.at?)
    }

    fn step(&mut self, to: Option<usize>, forward: bool) -> Result<()> {
        let sorted = self.sorted.as_deref();
        self.at = to.filter(|at| sorted.is_some_and(|sorted| *at < sorted.len()));
        if let (Some(sorted), Some(at)) = (sorted, self.at) {
            sorted.prefetch(at, forward);
        }
        Ok(())
    }

    /// The value in its place; empty if the cursor is not positioned.
    pub fn value_bytes(&self) -> &[u8] {
        self.record().map_or(&[], MemRecord::value)
    }
}

impl Cursor for HashCursor {
    fn head(&self) -> Option<Head<'_>> {
        self.record().map(|record| Head { key: record.key(), seq: record.seq(), kind: record.kind() })
    }

    fn seek_first(&mut self) -> Result<()> {
        self.sorted();
        self.step(Some(0), true)
    }

    fn seek_last(&mut self) -> Result<()> {
        let last = self.sorted().len().checked_sub(1);
        self.step(last, false)
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        let to = self.sorted().before(key, seq, false);
        self.step(Some(to), true)
    }

    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        let to = self.sorted().before(key, seq, true).checked_sub(1);
        self.step(to, false)
    }

    fn next(&mut self) -> Result<()> {
        self.step(self.at.map(|at| at + 1), true)
    }

    fn prev(&mut self) -> Result<()> {
        self.step(self.at.and_then(|at| at.checked_sub(1)), false)
    }

    fn value(&self) -> Result<Bytes> {
        Ok(Bytes::copy_from_slice(self.value_bytes()))
    }

    fn value_in_place(&self) -> Result<&[u8]> {
        Ok(self.value_bytes())
    }

    fn value_len(&self) -> usize {
        self.value_bytes().len()
    }
}
