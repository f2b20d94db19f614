//! A leveled LSM-tree like LevelDB and RocksDB: the baseline for measuring the other designs.
//!
//! ```text
//!   write ──▶ commit log (PM, or a file)
//!         └─▶ memtable (list in DRAM) ──flush──▶ level 0 ──compaction──▶ level 1 .. the last
//! ```
//!
//! It consists of the [leveled core](crate::leveled). This folder has the choices of this design: memtables
//! in DRAM under a commit log, nothing between them and level 0, leveled compaction that takes what overlaps
//! the least; and the log's place.
//!
//! `docs/engines/lsm.md` describes the design, its parameters, its strengths and its weaknesses.

mod open;
mod repair;

use crate::leveled::LeveledTree;
use crate::leveled::logged::LoggedMemtables;

pub(crate) use open::open;
pub(crate) use repair::repair;

/// An open database of the `lsm` engine.
type Lsm = LeveledTree<LoggedMemtables>;
