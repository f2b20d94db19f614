//! The input of a choice.

use crate::compaction::overlap::overlaps;

/// One table's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableFigures<'a> {
    /// The table's number.
    pub number: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub deletes: u64,
    /// Its smallest key.
    pub smallest: &'a [u8],
    /// Its largest key.
    pub largest: &'a [u8],
    /// Its smallest sequence number.
    pub min_seq: u64,
    /// Its largest sequence number.
    pub max_seq: u64,
    /// A running compaction reads it.
    pub busy: bool,
    /// It holds versions beside the newest of their key, which were kept for snapshots.
    pub keeps_old: bool,
    /// Bytes of it that are known to be stale: what replaces them lies above.
    pub stale: u64,
}

impl<'a> TableFigures<'a> {
    /// Whether it holds entries that could be dropped without snapshots, if it is on the last level.
    pub fn holds_garbage(&self) -> bool {
        self.deletes > 0 || self.keeps_old
    }

    /// Bytes of it that are not known to be stale.
    pub fn live(&self) -> u64 {
        self.bytes.saturating_sub(self.stale)
    }

    /// Its range of keys.
    pub fn range(&self) -> (&'a [u8], &'a [u8]) {
        (self.smallest, self.largest)
    }
}

/// All tables by level. On level 0 the newest is first, on the others the one with the smallest keys.
#[derive(Debug, Clone, Default)]
pub struct LevelsView<'a> {
    /// The levels; all possible ones, empty or not.
    pub levels: Vec<Vec<TableFigures<'a>>>,
}

impl<'a> LevelsView<'a> {
    /// Bytes of each level.
    pub fn sizes(&self) -> Vec<u64> {
        self.levels.iter().map(|tables| bytes_of(tables)).collect()
    }

    /// The tables of `level` that hold keys of `range`.
    pub fn overlapping(&self, level: usize, range: (&[u8], &[u8])) -> &[TableFigures<'a>] {
        let Some(tables) = self.levels.get(level) else { return &[] };
        let start = tables.partition_point(|t| t.largest < range.0);
        let count = tables[start..].partition_point(|t| t.smallest <= range.1);
        &tables[start..start + count]
    }

    /// Whether no level below `level` holds keys of `range`.
    pub fn is_bottom(&self, level: usize, range: (&[u8], &[u8])) -> bool {
        (level + 1..self.levels.len()).all(|below| self.overlapping(below, range).is_empty())
    }
}

/// Bytes of all `tables`.
pub(super) fn bytes_of(tables: &[TableFigures<'_>]) -> u64 {
    tables.iter().map(|t| t.bytes).sum()
}

/// The range from the smallest key of `tables` to the largest; at least one table is required.
pub(super) fn span<'a>(tables: &[TableFigures<'a>]) -> (&'a [u8], &'a [u8]) {
    let smallest = tables.iter().map(|t| t.smallest).min().unwrap_or_default();
    (smallest, tables.iter().map(|t| t.largest).max().unwrap_or_default())
}

/// Whether no two of `tables` overlap.
pub(super) fn are_apart(tables: &[TableFigures<'_>]) -> bool {
    let mut sorted: Vec<_> = tables.iter().map(TableFigures::range).collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| !overlaps(pair[0], pair[1]))
}
