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

use terrace_table::TableOptions;

use crate::compaction::leveled::{LeastOverlap, LevelPolicy, LeveledOptions, LeveledPolicy, Limits};
use crate::leveled::logged::LoggedMemtables;
use crate::leveled::{LeveledTree, Settings};
use crate::options::{LsmOptions, Options};

pub(crate) use open::open;
pub(crate) use repair::repair;

/// An open database of the `lsm` engine.
type Lsm = LeveledTree<LoggedMemtables>;

/// The share of the active memtable that may be filled while the others wait for their flush before writers are
/// slowed down.
const MEMTABLE_FILL: f64 = 0.5;

/// What the options say to the tree.
fn settings(options: &Options) -> Settings {
    let lsm = &options.lsm;
    let limits = Limits {
        l0_tables: (lsm.l0_slowdown_tables, lsm.l0_stop_tables),
        debt: (lsm.debt_slowdown_bytes, lsm.debt_stop_bytes),
        memtable_fill: MEMTABLE_FILL,
    };
    Settings {
        memtable_bytes: lsm.memtable_bytes,
        memtables: lsm.memtables,
        limits,
        table: table_options(options),
    }
}

/// How tables are written.
fn table_options(options: &Options) -> TableOptions {
    TableOptions {
        block_bytes: options.lsm.block_bytes,
        compression: options.compression,
        filter_bits_per_key: options.lsm.filter_bits_per_key,
        ..TableOptions::default()
    }
}

/// What the options say of compactions.
fn policy(lsm: &LsmOptions) -> Box<dyn LevelPolicy> {
    let options = LeveledOptions {
        levels: lsm.levels,
        l0_trigger: lsm.l0_tables,
        base_bytes: lsm.base_level_bytes,
        multiplier: lsm.level_multiplier,
        max_merge_bytes: lsm.table_bytes.saturating_mul(25),
    };
    Box::new(LeveledPolicy::new(options, lsm.table_bytes, LeastOverlap))
}
