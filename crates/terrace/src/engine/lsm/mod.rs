//! A leveled LSM-tree in the manner of LevelDB and RocksDB: the baseline to measure the other designs by.
//!
//! ```text
//!   write ──▶ commit log (PM, or a file)
//!         └─▶ memtable (skiplist in DRAM) ──flush──▶ level 0 ──compaction──▶ level 1 .. the last
//! ```
//!
//! All of it is the [leveled core](crate::leveled). Here is what this design chooses: memtables in DRAM under a commit log,
//! nothing between them and level 0, leveled compaction that takes what overlaps the least; and where its log lies.
//!
//! `docs/engines/lsm.md` tells the design, its parameters and what it is good and bad at.

mod open;
mod repair;

use crate::leveled::LeveledTree;
use crate::leveled::logged::LoggedMemtables;

pub(crate) use open::open;
pub(crate) use repair::repair;

/// An open database of the `lsm` engine.
type Lsm = LeveledTree<LoggedMemtables>;
