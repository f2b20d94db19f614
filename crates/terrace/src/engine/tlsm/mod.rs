//! TLSM: an LSM-tree whose upper runs are lists in persistent memory, which compactions merge by moving
//! records' places.
//!
//! ```text
//!   write ──▶ commit log (PM)
//!         └─▶ memtable (DRAM) ──flush──▶ level 0 ──compaction──▶ level 1 .. the last
//!               one copy into a buffer    lists and buffers (PM), as tiering wants it; below them SSTables
//! ```
//!
//! Memtables, log and levels come from the [leveled core](crate::leveled); lists from
//! [`levels::lists`](crate::levels::lists), on [`terrace_index::pmlist`];
//! [`Tiering`](crate::compaction::leveled::Tiering) decides which runs are lists. This folder passes the
//! options to them.
//!
//! | file | what it does |
//! |---|---|
//! | `open.rs` | opening and creating |
//! | `repair.rs` | bringing back what is sound |
//!
//! `docs/engines/tlsm.md` describes the design, its parameters, its strengths and its weaknesses.

mod open;
mod repair;

use crate::leveled::LeveledTree;
use crate::leveled::logged::LoggedMemtables;

pub(crate) use open::open;
pub(crate) use repair::repair;

/// An open database of the `tlsm` engine.
type Tlsm = LeveledTree<LoggedMemtables>;
