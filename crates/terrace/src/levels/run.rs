//! A run, the element of a level. A run is an SSTable, or a list in persistent memory
//! ([`lists`](super::lists)).
//!
//! [`Run`] answers every question about a run: its figures, a version, a cursor, its problems; [`Runs`] knows
//! which runs exist, and adds and removes them. So another kind of run is another case of [`Run`] and of
//! [`RunCursor`], without a box or a dynamic call on the path of a read.
//!
//! Invariants:
//!
//! 1. A run never changes. Its versions are in order: keys ascending, each key's newest version first.
//! 2. Its figures are in memory: its number, its first and last key, its size. Reading them takes no I/O.
//! 3. The holder of a run may read it. It is removed when the manifest no longer names it and nobody holds
//!    it.
//! 4. One number is one run, whatever its kind: all numbers are the manifest's file numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_base::trail::{self, Touch};
use terrace_table::{Cursor, Entry, Head, PassedBlocks, Position, Table, TableCursor, TableMeta};

use super::list_cursor::ListRunCursor;
use super::lists::{ListRun, ListStore, MadeList};
use crate::core::Core;
use crate::manifest::Manifest;
use crate::tables::{MadeFile, TableStore};

/// One run; a copy is a handle of the same run.
#[derive(Debug, Clone)]
pub(crate) enum Run {
    /// A file.
    Table(Arc<Table>),
    /// In persistent memory.
    List(Arc<ListRun>),
}

/// Blocks of runs, by the runs' numbers, that need not be read.
pub(crate) type Passed = BTreeMap<u64, PassedBlocks>;

impl Run {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.meta().number
    }

    /// Its figures.
    pub fn meta(&self) -> &TableMeta {
        match self {
            Run::Table(table) => table.meta(),
            Run::List(list) => list.meta(),
        }
    }

    /// Whether it lies in persistent memory.
    pub fn is_list(&self) -> bool {
        matches!(self, Run::List(_))
    }

    /// The newest version of `key` up to sequence number `at`, whatever the filter says.
    pub fn search(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        let found = match self {
            Run::Table(table) => table.search(key, at),
            Run::List(list) => list.search(key, at),
        }?;
        trail::note(|| {
            let (number, found) = (self.number(), found.is_some());
            if self.is_list() { Touch::List { number, found } } else { Touch::Table { number, found } }
        });
        Ok(found)
    }

    /// Whether a version of `key` may be in it: if false, there is none.
    pub fn may_contain(&self, key: &[u8]) -> Result<bool> {
        match self {
            Run::Table(table) => table.may_contain(key),
            Run::List(list) => list.may_contain(key),
        }
    }

    /// Starts loading what [`may_contain`](Self::may_contain) reads, if it is in memory.
    pub fn prefetch_filter(&self, key: &[u8]) {
        match self {
            Run::Table(table) => table.prefetch_filter(key),
            Run::List(list) => list.prefetch_filter(key),
        }
    }

    /// A cursor that is not yet positioned; the cache keeps what it reads from a file if requested, and it
    /// reads ahead at most `readahead` bytes.
    pub fn cursor(&self, fill_cache: bool, readahead: usize) -> RunCursor {
        match self {
            Run::Table(table) => RunCursor::Table(table.cursor(fill_cache, readahead)),
            Run::List(list) => RunCursor::List(ListRunCursor::new(list)),
        }
    }

    /// The same, without what is `passed` of it.
    pub fn cursor_past(&self, passed: &Passed, fill_cache: bool, readahead: usize) -> RunCursor {
        match self {
            Run::Table(table) => {
                let passed = passed.get(&self.number()).cloned();
                RunCursor::Table(table.cursor_past(passed, fill_cache, readahead))
            }
            Run::List(_) => self.cursor(fill_cache, readahead),
        }
    }

    /// Keys in order, each with the bytes since the previous one: places where a merge may be cut.
    pub fn anchors(&self) -> Result<Vec<(Vec<u8>, u64)>> {
        match self {
            Run::Table(table) => table.anchors(),
            Run::List(list) => list.anchors(),
        }
    }

    /// Keys in order, about `wanted` of them, at about equal distances.
    pub fn sample(&self, wanted: usize) -> Result<Vec<Vec<u8>>> {
        match self {
            Run::Table(table) => table.sample(wanted),
            Run::List(list) => {
                let every = self.meta().entries / wanted.max(1) as u64;
                Ok(list.list()?.anchors(every.max(1))?.into_iter().map(|(key, _)| key).collect())
            }
        }
    }

    /// Reads all of it. `Corruption` at the first problem.
    pub fn verify(&self) -> Result<()> {
        match self {
            Run::Table(table) => table.verify(),
            Run::List(list) => list.list()?.verify(),
        }
    }
}

/// Holds a finished run that the manifest does not name yet. Dropping this removes it unless it is kept.
#[derive(Debug)]
pub(crate) enum Made {
    File(MadeFile),
    List(MadeList),
}

impl Made {
    /// It stays: the manifest has it.
    pub fn keep(self) {
        match self {
            Made::File(file) => file.keep(),
            Made::List(list) => list.keep(),
        }
    }

    /// It stays until the manifest has decided about a failed group that names it.
    pub fn keep_until_decided(self) {
        match self {
            Made::File(file) => file.keep_until_decided(),
            Made::List(list) => list.keep_until_decided(),
        }
    }
}

/// The runs of an open database by number.
#[derive(Debug)]
pub(crate) struct Runs {
    tables: TableStore,
    lists: Option<Arc<ListStore>>,
}

impl Runs {
    /// The runs that the manifest names; no table is opened yet.
    pub fn new(core: &Core, manifest: &Manifest, lists: Option<Arc<ListStore>>) -> Result<Runs> {
        Ok(Runs { tables: TableStore::new(core, manifest)?, lists })
    }

    /// Those that are tables.
    pub fn tables(&self) -> &TableStore {
        &self.tables
    }

    /// The store of lists, if there may be any.
    pub fn lists(&self) -> Option<&Arc<ListStore>> {
        self.lists.as_ref()
    }

    /// A run of the manifest.
    pub fn get(&self, number: u64) -> Result<Run> {
        if let Some(run) = self.lists.as_ref().and_then(|lists| lists.get(number)) {
            return Ok(Run::List(run));
        }
        self.tables.get(number).map(Run::Table)
    }

    /// A table that was just written; it is opened now, so that nothing fails once the manifest names it.
    pub fn made(&self, meta: &TableMeta) -> Result<Run> {
        self.tables.made(meta).map(Run::Table)
    }

    /// Adds runs that the manifest names.
    pub fn insert(&self, runs: impl IntoIterator<Item = Run>) {
        let mut tables = Vec::new();
        for run in runs {
            match run {
                Run::Table(table) => tables.push(table),
                Run::List(list) => self.lists.iter().for_each(|lists| lists.insert(list.clone())),
            }
        }
        self.tables.insert(tables);
    }

    /// Removes runs that the manifest no longer names. They are deleted in this order once nobody reads them.
    pub fn remove(&self, numbers: &[u64]) {
        let is_list = |number: &u64| self.lists.as_ref().is_some_and(|lists| lists.remove(*number));
        let files: Vec<u64> = numbers.iter().copied().filter(|number| !is_list(number)).collect();
        self.tables.remove(&files);
    }

    /// Removes what a merge has replaced: the runs `below` its inputs, then the inputs, each with its highest sequence
    /// number, the oldest first. If only some of them are gone after a crash, and the manifest is lost, no tombstone
    /// is missing above what it hides.
    pub fn remove_merged(&self, below: &[u64], mut inputs: Vec<(u64, u64)>) {
        inputs.sort_unstable();
        let inputs = inputs.into_iter().map(|(_, number)| number);
        self.remove(&below.iter().copied().chain(inputs).collect::<Vec<_>>());
    }
}

/// A position in a run, which it keeps alive.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "cursors are few, and a box would stand in the way of each move"
)]
pub(crate) enum RunCursor {
    Table(TableCursor),
    List(ListRunCursor),
}

/// Calls the cursor of either kind.
macro_rules! either {
    ($cursor:expr, $each:ident => $what:expr) => {
        match $cursor {
            RunCursor::Table($each) => $what,
            RunCursor::List($each) => $what,
        }
    };
}

impl Cursor for RunCursor {
    fn head(&self) -> Option<Head<'_>> {
        either!(self, cursor => cursor.head())
    }
    fn seek_first(&mut self) -> Result<()> {
        either!(self, cursor => cursor.seek_first())
    }
    fn seek_last(&mut self) -> Result<()> {
        either!(self, cursor => cursor.seek_last())
    }
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        either!(self, cursor => cursor.seek(key, seq))
    }
    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        either!(self, cursor => cursor.seek_back(key, seq))
    }
    fn next(&mut self) -> Result<()> {
        either!(self, cursor => cursor.next())
    }
    fn prev(&mut self) -> Result<()> {
        either!(self, cursor => cursor.prev())
    }
    fn value(&self) -> Result<Bytes> {
        either!(self, cursor => cursor.value())
    }
    fn value_in_place(&self) -> Result<&[u8]> {
        either!(self, cursor => cursor.value_in_place())
    }
    fn value_len(&self) -> usize {
        either!(self, cursor => cursor.value_len())
    }
    fn position(&self) -> Option<Position> {
        either!(self, cursor => cursor.position())
    }
    fn record(&self) -> Option<u64> {
        either!(self, cursor => cursor.record())
    }
}
