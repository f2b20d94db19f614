//! Options of the engine `lab`.

use super::lsm::{LsmOptions, settings_of_levels};
use super::settings::{
    BLOCK_BYTES, Choice, EngineOptions, FILTER_BITS, KIB, MANY, MEMTABLE_BYTES, Setting, Slot, TABLE_BYTES,
    TIB,
};

/// Which of the trees an engine `lab` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LabTrees {
    /// None: their contents leave, and writes and compactions are those of `lsm`.
    None,
    /// The tree of values.
    Values,
    /// The tree of values, and the tree of hints.
    #[default]
    Both,
}

impl LabTrees {
    pub(crate) fn has_values(self) -> bool {
        self != LabTrees::None
    }

    pub(crate) fn has_hints(self) -> bool {
        self == LabTrees::Both
    }
}

impl Choice for LabTrees {
    const NAMES: &'static [&'static str] = &["none", "values", "both"];

    fn number(&self) -> usize {
        *self as usize
    }

    fn take(&mut self, number: usize) {
        *self = [Self::None, Self::Values, Self::Both][number];
    }
}

/// Options of the `lab` engine.
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// Memtables and levels, like those of `lsm`; the log always lies on persistent memory.
    pub levels: LsmOptions,
    /// Which of the trees are used.
    pub trees: LabTrees,
    /// Bytes of persistent memory for the tree of values, at most a quarter of the pool. 0 selects
    /// `value_tree_share`.
    pub value_tree_bytes: u64,
    /// Bytes of the tree of values for each byte of tables, if `value_tree_bytes` is 0. With 0 the tree stays
    /// empty: its contents leave.
    pub value_tree_share: f64,
    /// Bytes of persistent memory for the tree of hints, at most a sixteenth of the pool. 0 selects
    /// `hint_tree_share`.
    pub hint_tree_bytes: u64,
    /// Bytes of the tree of hints for each byte of tables, if `hint_tree_bytes` is 0.
    pub hint_tree_share: f64,
}

impl Default for LabOptions {
    fn default() -> Self {
        LabOptions {
            levels: LsmOptions::default(),
            trees: LabTrees::default(),
            value_tree_bytes: 0,
            value_tree_share: 0.005,
            hint_tree_bytes: 0,
            hint_tree_share: 0.001,
        }
    }
}

impl EngineOptions for LabOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let mut all = vec![
            Setting {
                name: "lab.value_tree_bytes",
                slot: Slot::Whole(&mut self.value_tree_bytes, 0..=16 * TIB),
            },
            Setting { name: "lab.value_tree_share", slot: Slot::Share(&mut self.value_tree_share) },
            Setting {
                name: "lab.hint_tree_bytes",
                slot: Slot::Whole(&mut self.hint_tree_bytes, 0..=16 * TIB),
            },
            Setting { name: "lab.hint_tree_share", slot: Slot::Share(&mut self.hint_tree_share) },
            Setting { name: "lab.trees", slot: Slot::OneNamed(&mut self.trees) },
        ];
        all.extend(settings_of_levels!("lab", self.levels));
        all
    }

    fn contradiction(&self) -> Option<&'static str> {
        self.levels.contradiction().map(|_| {
            "lab.l0_tables, l0_slowdown_tables and l0_stop_tables must ascend, and lab.debt_slowdown_bytes be below lab.debt_stop_bytes"
        })
    }
}
