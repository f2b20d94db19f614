//! Deciding what a leveled LSM-tree compacts, as RocksDB does it: pure functions of the tables' figures.
//!
//! Level 0 holds flushed tables, which overlap; on every other level tables are disjoint and in order. The
//! last level holds most of the data, and each level above it may hold a tenth of the one below: the sizes
//! follow from the size of the last level ([`Targets`]), so that the upper levels never hold more garbage
//! than a ninth of it. A level over its target, or, for the first, with too many tables, is compacted into
//! the next; a [`Victims`] decides which of its tables go first.
//!
//! A tree asks a [`LevelPolicy`] for compactions. [`LeveledPolicy`] is the one described here; another may
//! choose anything that keeps these rules.
//!
//! # What always holds
//!
//! 1. Of two versions of a key on different levels the newer is on the upper one. On level 0 a table's newest
//!    version may be newer than what it overlaps in an older table, never the other way round with one left
//!    out.
//! 2. So a choice takes from level 0 the oldest tables without a gap, and from the output's level everything that
//!    its inputs overlap.
//! 3. No table is in two running compactions, and no two write to one range of one level: the tables that a
//!    running one reads are busy, and a choice that needs a busy table is not made.

mod choice;
mod debt;
mod lowest;
mod policy;
mod split;
mod targets;
#[cfg(test)]
pub mod tests;
mod throttle;
mod tiering;
mod view;

use std::fmt::Debug;

pub use choice::{Pick, rewrite};
pub use lowest::Lowest;
#[cfg(test)]
use policy::OutputLimits;
pub use policy::{LevelPolicy, LeveledPolicy, Range};
pub use split::split;
use targets::Targets;
pub use throttle::{Limits, Load, delay};
pub use tiering::{ListFigures, Relief, Room, RunKind, Tiering};
pub use view::{LevelsView, TableFigures};

/// The options of [`LeveledPolicy`]; the defaults are RocksDB's.
#[derive(Debug, Clone, PartialEq)]
pub struct LeveledOptions {
    /// Levels, level 0 included.
    pub levels: usize,
    /// Tables on level 0 that start a compaction.
    pub l0_trigger: usize,
    /// The largest size of the uppermost level that is compacted into, in bytes. The next level may hold
    /// `multiplier` times as much.
    pub base_bytes: u64,
    /// The ratio of a level's size to that of the one above it.
    pub multiplier: f64,
    /// Size of a compaction's inputs beyond which nothing is added to them.
    pub max_merge_bytes: u64,
}

impl Default for LeveledOptions {
    fn default() -> Self {
        LeveledOptions {
            levels: 7,
            l0_trigger: 4,
            base_bytes: 256 << 20,
            multiplier: 10.0,
            max_merge_bytes: 25 * (64 << 20),
        }
    }
}

/// Which tables of a level go first.
pub trait Victims: Debug + Send + Sync {
    /// A table's rank: the lowest goes first. `overlap` is the number of bytes that it overlaps on the level
    /// below.
    fn rank(&self, table: &TableFigures<'_>, overlap: u64) -> f64;
}

/// The table that overlaps the least for its size: RocksDB's `kMinOverlappingRatio`. A tombstone counts as much as
/// it may free, so that deletions reach what they delete; stale bytes count double.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastOverlap;

impl Victims for LeastOverlap {
    fn rank(&self, table: &TableFigures<'_>, overlap: u64) -> f64 {
        let average = table.bytes as f64 / table.entries.max(1) as f64;
        // As RocksDB compensates: only where tombstones are the majority of what was written.
        let surplus = (2 * table.deletes).saturating_sub(table.entries) as f64;
        // Stale bytes cost nothing, and count twice beside live ones.
        let worth = table.live() as f64 + 2.0 * table.stale as f64;
        overlap as f64 / (worth + 2.0 * surplus * average).max(1.0)
    }
}
