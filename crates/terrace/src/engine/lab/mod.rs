//! LAB-DB, reconstructed from its abstract: an LSM-tree with a tree of values in persistent memory between its
//! memtables and level 0.
//!
//! ```text
//!   write ──▶ commit log (PM)
//!         └─▶ memtable (DRAM) ──flush──┬─ keys written often ─▶ value tree (PM) ──CLOCK──┐
//!                                      └─ the others ──────────▶ level 0 ◀───────────────┘ ──compaction──▶ level 1 ..
//! ```
//!
//! Memtables, log and levels come from the [leveled core](crate::leveled). This folder has the part between
//! them, as a [`Stage`](crate::leveled::Stage).
//!
//! | file | what it does |
//! |---|---|
//! | `tree.rs`, `filter.rs` | the value tree: lookups, its size; which keys may be there |
//! | `hints.rs`, `passed.rs` | the tree of hints: what is stale of which run; what a merge need not read |
//! | `layout.rs` | the trees' words |
//! | `sketch.rs` | how often a key was written lately |
//! | `clock.rs` | which keys were requested |
//! | `flush.rs`, `evict.rs` | what enters the tree, and what leaves it |
//! | `cursor.rs` | moving over it |
//! | `witness.rs` | telling a manifest that has lost its end |
//! | `stage.rs` | the seam |
//! | `open.rs`, `check.rs`, `repair.rs` | opening; proving it; bringing back what is sound |
//!
//! `docs/engines/lab.md` describes the design, its parameters, its strengths and its weaknesses.

mod check;
mod clock;
mod cursor;
mod evict;
mod filter;
mod flush;
mod hints;
mod layout;
mod open;
mod passed;
mod repair;
mod sketch;
mod stage;
#[cfg(test)]
mod tests;
mod tree;
mod witness;

use crate::leveled::LeveledTree;
use crate::leveled::logged::LoggedMemtables;

pub(crate) use open::open;
pub(crate) use repair::repair;

use stage::Values;

/// An open database of the `lab` engine.
type Lab = LeveledTree<LoggedMemtables<Values>>;
