//! The decisions that a leveled tree needs, and those of this folder's policy.

use std::fmt::Debug;

use super::choice::{Pick, choose, pick_range};
use super::debt::debt;
use super::{LeveledOptions, LevelsView, Targets, Victims};

/// A range of keys: the first, and the last if there is one.
pub type Range<'a> = (&'a [u8], Option<&'a [u8]>);

/// Decides for a leveled tree; others carry it out. Each answer follows only from the arguments, so that
/// choices can be tried without any storage. Every [`Pick`] must keep the rules in the head of
/// [`leveled`](super).
pub trait LevelPolicy: Debug + Send + Sync {
    /// Levels, level 0 included; at least two.
    fn levels(&self) -> usize;

    /// The most worthwhile compaction, if there is one. `oldest` is the oldest held snapshot.
    fn choose(&self, view: &LevelsView<'_>, oldest: Option<u64>) -> Option<Pick>;

    /// For a caller that wants a range merged: the next compaction that moves its part on `level` to a lower
    /// one. Nothing is busy meanwhile.
    fn choose_in(&self, view: &LevelsView<'_>, level: usize, range: Range<'_>) -> Option<Pick>;

    /// The level that level 0 is compacted into, if levels hold `sizes` bytes.
    fn base(&self, sizes: &[u64]) -> usize;

    /// How the output for `level` is cut into runs.
    fn outputs(&self, level: usize) -> OutputLimits;

    /// The position of `level` among the levels in use below level 0, if levels hold `sizes` bytes; 0 for
    /// level 0.
    fn depth(&self, _sizes: &[u64], level: usize) -> usize {
        level
    }

    /// Bytes that compactions will read and write until nothing is due, if levels hold `sizes` bytes, and
    /// level 0 `l0_runs` runs.
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

/// One memtable makes one table; only values of gigabytes make more, whose blocks could not be found beyond 4
/// GiB.
const FLUSHED_BYTES: u64 = 2 << 30;

/// The largest multiple of its own size that an output overlaps on the level below.
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
    /// A policy with `options`.
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

    fn base(&self, sizes: &[u64]) -> usize {
        Targets::new(sizes, &self.options).base
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
