//! A run: what levels consist of. Every run is an SSTable today.
//!
//! Whatever is asked of a run is asked here: its figures, a version, a cursor, what is wrong with it; and of [`Runs`] which
//! there are, that one comes, that one goes. So another kind of run is another case of [`Run`] and of [`RunCursor`], with
//! no box and no table of functions on the way of a read.
//!
//! What always holds:
//!
//! 1. A run never changes. Its versions are in order, keys ascending, of one key the newest first.
//! 2. Its figures are in memory: its number, its first and last key, its size. Asking for them reads nothing.
//! 3. The holder of a run may read it. It is removed when the manifest does not name it any more and nobody holds it.
//! 4. One number is one run, whatever its kind: all take theirs from the manifest's file numbers.
//!
//! # Runs in persistent memory
//!
//! None are there yet. One that comes will be named in the manifest by an edit of a kind of its own: the level, the same
//! [`TableMeta`] as a table's, with the bytes it takes in the pool for those of a file, and the place of its head in the
//! pool. An earlier version refuses that edit by its name. The edits that move and remove a table do the same
//! for it, since its number is like theirs. What is read by [`Manifest::listing`] is about files: such a number is not
//! missing from the directory. What it takes of the pool is marked with what write buffer and stage have there
//! (`LeveledTree::with_marked`). The policy will say of which kind an output is, with the other limits for its level
//! ([`OutputLimits`](crate::compaction::leveled::LevelPolicy::outputs)), and `output.rs` will write it.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_base::Result;
use terrace_table::{Entry, PassedBlocks, Table, TableCursor, TableMeta};

use crate::core::Core;
use crate::manifest::Manifest;
use crate::tables::TableStore;

/// One run; a copy is a handle of the same.
#[derive(Debug, Clone)]
pub(crate) enum Run {
    /// A file.
    Table(Arc<Table>),
}

/// A place in a run, which it keeps.
pub(crate) type RunCursor = TableCursor;

/// Blocks of runs, by their numbers, that need not be read.
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
        }
    }

    /// The newest version of `key` up to sequence number `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        match self {
            Run::Table(table) => table.get(key, at),
        }
    }

    /// Whether a version of `key` may be in it: where not, there is none.
    pub fn may_contain(&self, key: &[u8]) -> Result<bool> {
        match self {
            Run::Table(table) => table.may_contain(key),
        }
    }

    /// A cursor at no entry yet; what it reads is kept in the cache if asked, and so many bytes are read ahead at most.
    pub fn cursor(&self, fill_cache: bool, readahead: usize) -> RunCursor {
        match self {
            Run::Table(table) => table.cursor(fill_cache, readahead),
        }
    }

    /// The same, which goes past what is `passed` of it.
    pub fn cursor_past(&self, passed: &Passed, fill_cache: bool, readahead: usize) -> RunCursor {
        match self {
            Run::Table(table) => {
                table.cursor_past(passed.get(&self.number()).cloned(), fill_cache, readahead)
            }
        }
    }

    /// Keys in order, each with the bytes from the one before it: where a merge may be cut.
    pub fn anchors(&self) -> Result<Vec<(Vec<u8>, u64)>> {
        match self {
            Run::Table(table) => table.anchors(),
        }
    }

    /// Reads all of it. `Corruption` at the first thing that is wrong.
    pub fn verify(&self) -> Result<()> {
        match self {
            Run::Table(table) => table.verify(),
        }
    }
}

/// The runs of an open database by number.
#[derive(Debug)]
pub(crate) struct Runs {
    tables: TableStore,
}

impl Runs {
    /// The runs that the manifest names, none of which is looked at yet.
    pub fn new(core: &Core, manifest: &Manifest) -> Result<Runs> {
        Ok(Runs { tables: TableStore::new(core, manifest)? })
    }

    /// A run of the manifest.
    pub fn get(&self, number: u64) -> Result<Run> {
        self.tables.get(number).map(Run::Table)
    }

    /// A run that has just been written, which is looked at now: nothing is to fail once the manifest names it.
    pub fn made(&self, meta: &TableMeta) -> Result<Run> {
        self.tables.made(meta).map(Run::Table)
    }

    /// Adds runs that the manifest names.
    pub fn insert(&self, runs: impl IntoIterator<Item = Run>) {
        self.tables.insert(runs.into_iter().map(|Run::Table(table)| table));
    }

    /// Takes out runs that the manifest does not name any more. They go in this order once nobody reads them.
    pub fn remove(&self, numbers: &[u64]) {
        self.tables.remove(numbers);
    }
}
