//! The open tables of an engine of several levels, as they are at one moment, and what is done with them.
//!
//! | file | what it does |
//! |---|---|
//! | `mod.rs` | which tables there are: lookups, and figures for [`compaction::leveled`](crate::compaction::leveled) |
//! | `cursor.rs` | moving over a level |
//! | `merge.rs` | which versions a merge keeps |
//! | `output.rs` | writing the tables of a flush or a compaction |
//! | `walk.rs` | what a reader sees of merged versions |
//!
//! What always holds of the tables:
//!
//! 1. On level 0 they are sorted by their greatest sequence number, the newest first; on every other level they
//!    do not overlap and are sorted by key. All versions of a key that a level below 0 holds are in one table.
//! 2. Of two versions of a key on different levels, the newer is on the upper one.

pub(crate) mod cursor;
pub(crate) mod merge;
pub(crate) mod output;
pub(crate) mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_table::{Cursor, Entry, Table, TableMeta};

use crate::compaction::leveled::{LevelsView, TableFigures};
use crate::compaction::overlap::overlaps;
use crate::manifest::{FileName, State};

use cursor::LevelCursor;

/// Bytes that a reader's cursor reads ahead at most.
const SCAN_READAHEAD_BYTES: usize = 256 << 10;

/// The tables of one moment. Immutable: a change makes another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    levels: Vec<Vec<Arc<Table>>>,
}

impl Levels {
    /// The tables that `state` names. `open` opens those that `self` does not have.
    pub fn updated(&self, state: &State, mut open: impl FnMut(u64) -> Result<Arc<Table>>) -> Result<Levels> {
        let known: BTreeMap<u64, &Arc<Table>> = self.tables().map(|t| (t.number(), t)).collect();
        let mut levels: Vec<Vec<Arc<Table>>> = Vec::new();
        for (number, table) in &state.tables {
            let level = table.level as usize;
            if levels.len() <= level {
                levels.resize_with(level + 1, Vec::new);
            }
            let table = known.get(number).map_or_else(|| open(*number), |t| Ok((*t).clone()))?;
            levels[level].push(table);
        }
        for (level, tables) in levels.iter_mut().enumerate() {
            match level {
                0 => tables.sort_by_key(|t| std::cmp::Reverse((t.meta().max_seq, t.number()))),
                _ => tables.sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest)),
            }
        }
        Ok(Levels { levels })
    }

    /// Every table, from the uppermost level down.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten()
    }

    /// The tables of `level`, in its order.
    pub fn level(&self, level: usize) -> &[Arc<Table>] {
        self.levels.get(level).map_or(&[], Vec::as_slice)
    }

    /// Levels down to the last that holds a table.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The table called `number`, and its level.
    pub fn find(&self, number: u64) -> Option<(usize, &Arc<Table>)> {
        let numbered = |tables: &'_ Vec<Arc<Table>>| tables.iter().position(|t| t.number() == number);
        self.levels
            .iter()
            .enumerate()
            .find_map(|(level, tables)| numbered(tables).map(|at| (level, &tables[at])))
    }

    /// The newest version of `key` up to sequence number `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        if let Some(tables) = self.levels.first()
            && let Some(found) = get_from_level_0(tables, key, at)?
        {
            return Ok(Some(found));
        }
        for tables in self.levels.iter().skip(1) {
            if let Some(table) = candidate(tables, key)
                && let Some(found) = table.get(key, at)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A cursor for readers over each table of level 0 and each other level.
    pub fn cursors(&self) -> Vec<Box<dyn Cursor>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for table in self.level(0) {
            cursors.push(Box::new(table.cursor(true, SCAN_READAHEAD_BYTES)));
        }
        for tables in self.levels.iter().skip(1).filter(|tables| !tables.is_empty()) {
            cursors.push(Box::new(LevelCursor::new(tables.clone(), true, SCAN_READAHEAD_BYTES)));
        }
        cursors
    }

    /// Whether no level from `level` on holds a table whose range `key` is in.
    pub fn lacks(&self, level: usize, key: &[u8]) -> bool {
        self.levels.iter().enumerate().skip(level).all(|(level, tables)| match level {
            0 => !tables.iter().any(|t| covers(t.meta(), key)),
            _ => candidate(tables, key).is_none(),
        })
    }

    /// The figures of all tables, on `levels` levels: those in `busy` are, those in `noted` keep old versions.
    pub fn view(&self, levels: usize, busy: &BTreeSet<u64>, noted: &BTreeSet<u64>) -> LevelsView<'_> {
        let mut view: Vec<Vec<TableFigures<'_>>> = Vec::with_capacity(levels.max(self.depth()));
        for tables in &self.levels {
            view.push(tables.iter().map(|t| figures(t.meta(), busy, noted)).collect());
        }
        view.resize_with(levels.max(self.depth()), Vec::new);
        LevelsView { levels: view }
    }

    /// What is wrong with the tables' places.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (level, tables) in self.levels.iter().enumerate().skip(1) {
            for pair in tables.windows(2).filter(|pair| pair[0].meta().largest >= pair[1].meta().smallest) {
                let (a, b) = (pair[0].number(), pair[1].number());
                problems.push(format!("level {level}: tables {a} and {b} overlap"));
            }
        }
        problems
    }
}

fn figures<'a>(meta: &'a TableMeta, busy: &BTreeSet<u64>, noted: &BTreeSet<u64>) -> TableFigures<'a> {
    TableFigures {
        number: meta.number,
        bytes: meta.file_bytes,
        entries: meta.entries,
        deletes: meta.deletes,
        smallest: &meta.smallest,
        largest: &meta.largest,
        min_seq: meta.min_seq,
        max_seq: meta.max_seq,
        busy: busy.contains(&meta.number),
        keeps_old: noted.contains(&meta.number),
    }
}

fn covers(meta: &TableMeta, key: &[u8]) -> bool {
    overlaps((&meta.smallest, &meta.largest), (key, key))
}

/// The one table of a level below 0 that may hold `key`.
fn candidate<'a>(tables: &'a [Arc<Table>], key: &[u8]) -> Option<&'a Arc<Table>> {
    let at = tables.partition_point(|t| *t.meta().largest < *key);
    tables.get(at).filter(|t| *t.meta().smallest <= *key)
}

/// Newer tables come first; in what a repair has put together, a later one may all the same hold a newer version.
fn get_from_level_0(tables: &[Arc<Table>], key: &[u8], at: u64) -> Result<Option<Entry>> {
    let mut newest: Option<Entry> = None;
    for table in tables {
        if newest.as_ref().is_some_and(|found| found.seq >= table.meta().max_seq) {
            break;
        }
        if covers(table.meta(), key)
            && let Some(found) = table.get(key, at)?
            && newest.as_ref().is_none_or(|other| found.seq > other.seq)
        {
            newest = Some(found);
        }
    }
    Ok(newest)
}

/// The error for a table of the manifest that is not open.
pub(crate) fn not_open(dir: &Path, number: u64) -> Error {
    Error::corruption(&FileName::Table(number).path(dir), 0, "a table of the manifest", "no open table")
}
