//! Cursors over the runs of one level below 0, one after the other.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Head, Position};

use super::row::{Row, RowPosition};
use super::run::{Passed, RunCursor};

/// A cursor over runs that do not overlap, in order. Only the current run has its own cursor.
///
/// Invariant: `inner` is a cursor of run `at`; if it is not valid, neither is this.
#[derive(Debug)]
pub(crate) struct LevelCursor {
    runs: Row,
    at: RowPosition,
    inner: Option<RunCursor>,
    fill_cache: bool,
    readahead: usize,
    passed: Passed,
}

impl LevelCursor {
    /// A cursor that is not yet positioned; the rest is as for [`Run::cursor`](super::run::Run::cursor).
    pub fn new(runs: Row, fill_cache: bool, readahead: usize) -> Self {
        LevelCursor { at: runs.first(), runs, inner: None, fill_cache, readahead, passed: Passed::default() }
    }

    /// The same, without what is `passed`.
    pub fn past(self, passed: &Passed) -> Self {
        LevelCursor { passed: passed.clone(), ..self }
    }

    /// Goes to run `at` and has `moves` position its cursor; nowhere if there is no such run.
    fn enter(&mut self, at: RowPosition, moves: impl FnOnce(&mut RunCursor) -> Result<()>) -> Result<()> {
        if self.inner.is_none() || self.at != at {
            let (fill_cache, readahead) = (self.fill_cache, self.readahead);
            self.inner = self.runs.get(at).map(|run| run.cursor_past(&self.passed, fill_cache, readahead));
            self.at = at;
        }
        self.inner.as_mut().map_or(Ok(()), moves)
    }

    /// Advances to the next run with an entry while there is none here.
    fn skip_empty_forward(&mut self) -> Result<()> {
        while self.inner.as_ref().is_some_and(|inner| !inner.valid()) {
            self.enter(self.runs.after(self.at), |inner| inner.seek_first())?;
        }
        Ok(())
    }

    fn skip_empty_back(&mut self) -> Result<()> {
        while self.inner.as_ref().is_some_and(|inner| !inner.valid()) {
            match self.runs.before(self.at) {
                Some(before) => self.enter(before, |inner| inner.seek_last())?,
                None => self.inner = None,
            }
        }
        Ok(())
    }
}

impl Cursor for LevelCursor {
    fn head(&self) -> Option<Head<'_>> {
        self.inner.as_ref()?.head()
    }

    fn seek_first(&mut self) -> Result<()> {
        self.enter(self.runs.first(), |inner| inner.seek_first())?;
        self.skip_empty_forward()
    }

    fn seek_last(&mut self) -> Result<()> {
        let Some(last) = self.runs.before(self.runs.partition(|_| true)) else { return Ok(()) };
        self.enter(last, |inner| inner.seek_last())?;
        self.skip_empty_back()
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        let at = self.runs.partition(|t| *t.meta().largest < *key);
        self.enter(at, |inner| inner.seek(key, seq))?;
        self.skip_empty_forward()
    }

    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        match self.runs.before(self.runs.partition(|t| *t.meta().smallest <= *key)) {
            Some(at) => self.enter(at, |inner| inner.seek_back(key, seq))?,
            None => self.inner = None,
        }
        self.skip_empty_back()
    }

    fn next(&mut self) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.next())?;
        self.skip_empty_forward()
    }

    fn prev(&mut self) -> Result<()> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.prev())?;
        self.skip_empty_back()
    }

    fn value(&self) -> Result<Bytes> {
        self.inner.as_ref().map_or(Ok(Bytes::new()), |inner| inner.value())
    }

    fn value_in_place(&self) -> Result<&[u8]> {
        self.inner.as_ref().map_or(Ok(&[]), |inner| inner.value_in_place())
    }

    fn value_len(&self) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.value_len())
    }

    fn position(&self) -> Option<Position> {
        self.inner.as_ref().and_then(|inner| inner.position())
    }

    fn record(&self) -> Option<u64> {
        self.inner.as_ref().and_then(|inner| inner.record())
    }
}
