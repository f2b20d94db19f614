//! What a leveled tree asks of whoever decides for it, and the answers of the policy that this folder is about.

use std::fmt::Debug;

use super::choice::{Pick, choose, pick_range};
use super::debt::debt;
use super::{LeveledOptions, LevelsView, Targets, Victims};

/// A range of keys: the first, and the last if there is one.
pub type Range<'a> = (&'a [u8], Option<&'a [u8]>);

/// Decides for a leveled tree; others do what it says. Each answer follows from what is asked with and from nothing else,
/// so that choices can be tried without a byte of storage. Every [`Pick`] must keep what the head of
/// [`leveled`](super) says always holds.
pub trait LevelPolicy: Debug + Send + Sync {
    /// Levels, level 0 included; two at least.
    fn levels(&self) -> usize;

    /// The compaction that is most worthwhile, if one is. `oldest` is the oldest snapshot that is held.
    fn choose(&self, view: &LevelsView<'_>, oldest: Option<u64>) -> Option<Pick>;

    /// For a caller that wants a range merged: the next compaction that brings what `level` holds of it to a lower one. Nothing is
    /// busy meanwhile.
    fn choose_in(&self, view: &LevelsView<'_>, level: usize, range: Range<'_>) -> Option<Pick>;

    /// How what is written for `level` is cut into runs.
    fn outputs(&self, level: usize) -> OutputLimits;

    /// Where levels hold `sizes` bytes, the how-manyth in use below level 0 `level` is; 0 for level 0.
    fn depth(&self, _sizes: &[u64], level: usize) -> usize {
        level
    }

    /// Bytes that compactions will read and write until nothing is due, where levels hold `sizes` bytes, and level 0 so
    /// many runs.
    fn debt(&self, sizes: &[u64], l0_runs: usize) -> u64;
}

/// Where one output ends and the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    /// Bytes at which an output is full.
    pub run_bytes: u64,
    /// Bytes of the level below that one output may overlap, so that it is cheap to compact.
    pub overlap_bytes: u64,
}

/// One memtable makes one table; only values of gigabytes make more, whose blocks would not be found beyond 4 GiB.
const FLUSHED_BYTES: u64 = 2 << 30;

/// An output overlaps no more than so many times its own size on the level below.
const OVERLAP_FACTOR: u64 = 10;

/// Leveled compaction as RocksDB does it, with a choice of [`Victims`].
#[derive(Debug)]
pub struct LeveledPolicy<V> {
    options: LeveledOptions,
    /// Bytes at which a compaction starts the next table.
    table_bytes: u64,
    victims: V,
}

impl<V: Victims> LeveledPolicy<V> {
    /// A policy that goes by `options`.
    pub fn new(options: LeveledOptions, table_bytes: u64, victims: V) -> Self {
        LeveledPolicy { options, table_bytes, victims }
    }
}

impl<V: Victims> LevelPolicy for LeveledPolicy<V> {
    fn levels(&self) -> usize {
        self.options.levels
    }

    fn choose(&self, view: &LevelsView<'_>, oldest: Option<u64>) -> Option<Pick> {
        choose(view, &self.options, &self.victims, oldest)
    }

    fn choose_in(&self, view: &LevelsView<'_>, level: usize, range: Range<'_>) -> Option<Pick> {
        pick_range(view, level, range, &self.options)
    }

    fn outputs(&self, level: usize) -> OutputLimits {
        match level {
            0 => OutputLimits { run_bytes: FLUSHED_BYTES, overlap_bytes: u64::MAX },
            _ => OutputLimits {
                run_bytes: self.table_bytes,
                overlap_bytes: self.table_bytes.saturating_mul(OVERLAP_FACTOR),
            },
        }
    }

    fn depth(&self, sizes: &[u64], level: usize) -> usize {
        if level == 0 {
            0
        } else {
            (level + 1).saturating_sub(Targets::new(sizes, &self.options).base).max(1)
        }
    }

    fn debt(&self, sizes: &[u64], l0_runs: usize) -> u64 {
        debt(sizes, l0_runs, &Targets::new(sizes, &self.options), &self.options)
    }
}
