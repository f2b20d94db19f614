//! The runs of a leveled tree on their levels at one moment, and the operations on them.
//!
//! | file | what it does |
//! |---|---|
//! | `mod.rs` | the existing runs: lookups, and figures for [`compaction::leveled`](crate::compaction::leveled) |
//! | `cursor.rs`, `list_cursor.rs` | moving over a level, and over one list |
//! | `many.rs` | lookups of many keys together |
//! | `hidden.rs` | tables of a sorted stream that appear in one step |
//! | `merge.rs` | which versions a merge keeps |
//! | `operands.rs` | operands as a lookup finds them |
//! | `run.rs`, `lists.rs` | the elements of a level: SSTables, and lists in persistent memory |
//! | `row.rs` | the runs of one level in order |
//! | `output.rs`, `list_writer.rs` | writing the runs of a flush or a compaction |
//! | `walk.rs` | a reader's view of merged versions |
//!
//! Invariants of the runs:
//!
//! 1. On level 0 they are sorted by their greatest sequence number, the newest first; on every other level they
//!    do not overlap and are sorted by key. All versions of a key on a level below 0 are in one run.
//! 2. Of two versions of a key on different levels, the newer is on the upper one.

pub(crate) mod change;
pub(crate) mod cursor;
pub(crate) mod hidden;
mod list_cursor;
pub(crate) mod list_writer;
pub(crate) mod lists;
pub(crate) mod many;
pub(crate) mod merge;
pub(crate) mod operands;
pub(crate) mod output;
pub(crate) mod row;
pub(crate) mod run;
pub(crate) mod walk;

use std::collections::{BTreeMap, BTreeSet};

use rpds::RedBlackTreeSetSync;
use terrace_base::Result;
use terrace_table::{Cursor, Entry, TableMeta};

use crate::compaction::leveled::{LevelsView, TableFigures};
use crate::compaction::overlap::overlaps;
use crate::manifest::State;

use cursor::LevelCursor;
use many::Search;
use row::{Row, RowPosition};
use run::Run;

/// The most bytes that a reader's cursor reads ahead.
const SCAN_READAHEAD_BYTES: usize = 256 << 10;

/// The runs at one moment. A change makes another set, which shares what has not changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    levels: Vec<Row>,
}

impl Levels {
    /// The runs that `state` names, each as returned by `find`.
    pub fn new(state: &State, find: impl Fn(u64) -> Result<Run>) -> Result<Levels> {
        let mut levels: Vec<Vec<Run>> = Vec::new();
        for (number, named) in &state.tables {
            let level = named.level as usize;
            levels.resize_with(levels.len().max(level + 1), Vec::new);
            levels[level].push(find(*number)?);
        }
        let row = |(level, mut runs): (usize, Vec<Run>)| {
            runs.sort_by(|a, b| row::order(level, a, b));
            Row::of(runs)
        };
        Ok(Levels { levels: levels.into_iter().enumerate().map(row).collect() })
    }

    /// Removes `run` from `level`.
    pub fn remove(&mut self, level: usize, run: &Run) {
        if let Some(row) = self.levels.get_mut(level) {
            row.remove(level, run);
        }
        while self.levels.last().is_some_and(Row::is_empty) {
            self.levels.pop();
        }
    }

    /// Adds `run` to `level`.
    pub fn insert(&mut self, level: usize, run: Run) {
        self.levels.resize_with(self.levels.len().max(level + 1), Row::default);
        debug_assert!(
            level == 0 || !self.levels[level].iter().any(|other| overlaps(range(other), range(&run))),
            "runs of a level below 0 do not overlap"
        );
        self.levels[level].insert(level, run);
    }

    /// Every run, from the uppermost level down.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.levels.iter().flat_map(Row::iter)
    }

    /// The runs of `level`, in its order.
    pub fn level(&self, level: usize) -> Row {
        self.levels.get(level).cloned().unwrap_or_default()
    }

    /// The level of the run `number`.
    pub fn level_of(&self, number: u64) -> Option<usize> {
        self.levels.iter().position(|row| row.iter().any(|run| run.number() == number))
    }

    /// The number of levels down to the last with a run.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Bytes of each of `levels` levels, or of as many as there are.
    pub fn sizes(&self, levels: usize) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.levels.iter().map(Row::bytes).collect();
        sizes.resize(levels.max(self.depth()), 0);
        sizes
    }

    /// The newest version of `key` up to sequence number `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>> {
        Search::new(key, Reached::default()).find(at, |search| self.next_run(search))
    }

    /// The newest version of each of `keys` up to sequence number `at`; what has to be read is requested together.
    pub fn get_many(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Entry>>> {
        let mut searches: Vec<_> = keys.iter().map(|key| Search::new(key, Reached::default())).collect();
        many::find_all(&mut searches, at, |search| self.next_run(search))?;
        Ok(searches.into_iter().map(|search| search.newest).collect())
    }

    /// The next run that may have a newer version than the one that `search` has found. On level 0 newer runs come
    /// first; after a repair a later one may still hold a newer version. Below, each level has one candidate.
    fn next_run(&self, search: &mut Search<'_, Reached>) -> Option<&Run> {
        if search.at.level == 0 {
            let row = self.levels.first();
            while let Some(run) = row.and_then(|row| row.get(search.at.place)) {
                if search.is_over_at(run) {
                    return None;
                }
                search.at.place = row.map_or(search.at.place, |row| row.after(search.at.place));
                if covers(run.meta(), search.key) {
                    return Some(run);
                }
            }
            search.at.level = 1;
        }
        // What a merge has made of an operand may lie deeper, under the same number, after a repair.
        while search.newest.as_ref().is_none_or(|found| !found.kind.is_whole())
            && let Some(row) = self.levels.get(search.at.level)
        {
            search.at.level += 1;
            if let Some(run) = candidate(row, search.key) {
                return Some(run);
            }
        }
        None
    }

    /// Readers' cursors: over each run of level 0 and each other level.
    pub fn cursors(&self) -> Vec<Box<dyn Cursor>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for run in self.level(0).iter() {
            cursors.push(Box::new(run.cursor(true, SCAN_READAHEAD_BYTES)));
        }
        for row in self.levels.iter().skip(1).filter(|row| !row.is_empty()) {
            cursors.push(Box::new(LevelCursor::new(row.clone(), true, SCAN_READAHEAD_BYTES)));
        }
        cursors
    }

    /// Whether no run on `level` or below has `key` in its range.
    pub fn lacks(&self, level: usize, key: &[u8]) -> bool {
        self.levels.iter().enumerate().skip(level).all(|(level, runs)| match level {
            0 => !runs.iter().any(|t| covers(t.meta(), key)),
            _ => candidate(runs, key).is_none(),
        })
    }

    /// The figures of all runs on `levels` levels: runs in `busy` are busy, those in `keeping` keep old
    /// versions, and `stale` gives stale bytes.
    pub fn view(
        &self,
        levels: usize,
        busy: &BTreeSet<u64>,
        keeping: &RedBlackTreeSetSync<u64>,
        stale: &Stale,
    ) -> LevelsView<'_> {
        let mut view: Vec<Vec<TableFigures<'_>>> = Vec::with_capacity(levels.max(self.depth()));
        for runs in &self.levels {
            view.push(runs.iter().map(|t| figures(t.meta(), busy, keeping, stale)).collect());
        }
        view.resize_with(levels.max(self.depth()), Vec::new);
        LevelsView { levels: view }
    }

    /// The problems of the runs' places.
    pub fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (level, runs) in self.levels.iter().enumerate().skip(1) {
            let pairs = runs.iter().zip(runs.iter().skip(1));
            for (a, b) in pairs.filter(|(a, b)| a.meta().largest >= b.meta().smallest) {
                let (a, b) = (a.number(), b.number());
                problems.push(format!("level {level}: tables {a} and {b} overlap"));
            }
        }
        problems
    }
}

/// How far a lookup has come: the level, and the next run on level 0.
#[derive(Debug, Default)]
struct Reached {
    level: usize,
    place: RowPosition,
}

/// Bytes of each run that are known to be stale; a run without an entry has none.
pub(crate) type Stale = BTreeMap<u64, u64>;

fn stale_of(meta: &TableMeta, stale: &Stale) -> u64 {
    stale.get(&meta.number).map_or(0, |&bytes| bytes.min(meta.file_bytes))
}

fn figures<'a>(
    meta: &'a TableMeta,
    busy: &BTreeSet<u64>,
    keeping: &RedBlackTreeSetSync<u64>,
    stale: &Stale,
) -> TableFigures<'a> {
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
        keeps_old: keeping.contains(&meta.number),
        stale: stale_of(meta, stale),
    }
}

/// The first and last key of a run.
fn range(run: &Run) -> (&[u8], &[u8]) {
    (&run.meta().smallest, &run.meta().largest)
}

fn covers(meta: &TableMeta, key: &[u8]) -> bool {
    overlaps((&meta.smallest, &meta.largest), (key, key))
}

/// The one run of a level below 0 that may hold `key`.
fn candidate<'a>(runs: &'a Row, key: &[u8]) -> Option<&'a Run> {
    let place = runs.partition(|t| *t.meta().largest < *key);
    runs.get(place).filter(|t| *t.meta().smallest <= *key)
}
