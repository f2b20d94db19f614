//! The options of a tree.

use terrace_table::TableOptions;

use super::Settings;
use crate::compaction::leveled::{LevelPolicy, LeveledOptions, LeveledPolicy, Limits, Victims};
use crate::options::{LsmOptions, Options};

/// The share of the active memtable that may be filled, while the others wait for their flush, before writers
/// are throttled.
const MEMTABLE_FILL: f64 = 0.5;

/// Tables that the base level has at least when it is full, so that a compaction can take a part of it.
const TABLES_OF_BASE: u64 = 4;

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
    // A compaction of level 0 rewrites the level below it. Were that more than `level_multiplier` times what
    // level 0 brings, this first step would write more than any other.
    let brought = levels.memtable_bytes.saturating_mul(levels.l0_tables as u64);
    let reach = (brought as f64 * levels.level_multiplier) as u64;
    let table_bytes = levels.table_bytes.min((reach / TABLES_OF_BASE).max(1));
    let options = LeveledOptions {
        levels: levels.levels,
        l0_trigger: levels.l0_tables,
        base_bytes: levels.base_level_bytes.min(reach),
        multiplier: levels.level_multiplier,
        max_merge_bytes: table_bytes.saturating_mul(25),
    };
    Box::new(LeveledPolicy::new(options, table_bytes, victims))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::leveled::LeastOverlap;

    #[test]
    fn the_base_level_goes_with_what_level_0_brings() {
        let sizes = [0, 0, 0, 0, 0, 100 << 20, 1000 << 20];
        let shape = |options: &LsmOptions| {
            let policy = policy(options, LeastOverlap);
            (policy.depth(&sizes, 6), policy.outputs(6).run_bytes)
        };
        assert_eq!(shape(&LsmOptions::default()), (2, 64 << 20), "100 MiB are a base level");
        let small = LsmOptions { memtable_bytes: 1 << 20, ..LsmOptions::default() };
        assert_eq!(shape(&small), (3, 10 << 20), "10 MiB are one above it");
    }
}
