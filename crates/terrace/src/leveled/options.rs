//! The options of a tree.

use terrace_table::TableOptions;

use super::Settings;
use crate::compaction::leveled::{LevelPolicy, LeveledOptions, LeveledPolicy, Limits, Victims};
use crate::options::{LsmOptions, Options};

/// The share of the active memtable that may be filled, while the others wait for their flush, before writers
/// are throttled.
const MEMTABLE_FILL: f64 = 0.5;

/// The settings of the tree by the options of levels, `levels`, and those of the store.
pub(crate) fn settings(options: &Options, levels: &LsmOptions) -> Settings {
    let limits = Limits {
        l0_tables: (levels.l0_slowdown_tables, levels.l0_stop_tables),
        debt: (levels.debt_slowdown_bytes, levels.debt_stop_bytes),
        memtable_fill: MEMTABLE_FILL,
    };
    Settings {
        memtable_bytes: levels.memtable_bytes,
        memtables: levels.memtables,
        limits,
        table: table_options(options, levels),
    }
}

/// How tables are written.
pub(crate) fn table_options(options: &Options, levels: &LsmOptions) -> TableOptions {
    TableOptions {
        block_bytes: levels.block_bytes,
        compression: options.compression,
        filter_bits_per_key: levels.filter_bits_per_key,
        ..TableOptions::default()
    }
}

/// The policy for compactions by the options of levels; `victims` chooses among the tables of a level.
pub(crate) fn policy(levels: &LsmOptions, victims: impl Victims + 'static) -> Box<dyn LevelPolicy> {
    let options = LeveledOptions {
        levels: levels.levels,
        l0_trigger: levels.l0_tables,
        base_bytes: levels.base_level_bytes,
        multiplier: levels.level_multiplier,
        max_merge_bytes: levels.table_bytes.saturating_mul(25),
    };
    Box::new(LeveledPolicy::new(options, levels.table_bytes, victims))
}
