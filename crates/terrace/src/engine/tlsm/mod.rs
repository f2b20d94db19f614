//! TLSM: an LSM-tree whose upper runs are lists in persistent memory, which compactions merge by moving places of records.
//!
//! ```text
//!   write ──▶ commit log (PM)
//!         └─▶ memtable (DRAM) ──flush──▶ level 0 ──compaction──▶ level 1 .. the last
//!               one copy into a buffer    lists and buffers (PM), as tiering wants it; below them SSTables
//! ```
//!
//! Memtables, log and levels are the [leveled core](crate::leveled)'s; lists are [`levels::lists`](crate::levels::lists), on
//! [`terrace_index::pmlist`]; which runs are lists is [`Tiering`](crate::compaction::leveled::Tiering)'s. Here is what
//! options say to them.
//!
//! | file | what it does |
//! |---|---|
//! | `open.rs` | opening and creating |
//! | `repair.rs` | bringing back what is sound |
//!
//! `docs/engines/tlsm.md` tells the design, its parameters and what it is good and bad at.

mod open;
mod repair;

use crate::leveled::LeveledTree;
use crate::leveled::logged::LoggedMemtables;

pub(crate) use open::open;
pub(crate) use repair::repair;

/// An open database of the `tlsm` engine.
type Tlsm = LeveledTree<LoggedMemtables>;
