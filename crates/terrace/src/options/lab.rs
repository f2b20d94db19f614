//! Options of the engine `lab`.

use super::lsm::{LsmOptions, settings_of_levels};
use super::settings::{BLOCK_BYTES, KIB, MANY, MEMTABLE_BYTES, Setting, Slot, TABLE_BYTES, TIB};

/// Options of the `lab` engine.
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// Memtables and levels, as those of `lsm`; the log lies on persistent memory whatever is said here.
    pub levels: LsmOptions,
    /// Bytes of persistent memory that the tree of values may take, a quarter of the pool at most. 0 stands for
    /// `value_tree_share`.
    pub value_tree_bytes: u64,
    /// What the tree of values may take for each byte of tables, where `value_tree_bytes` is 0. With 0 there is nothing in it:
    /// what is there leaves it.
    pub value_tree_share: f64,
}

impl Default for LabOptions {
    fn default() -> Self {
        LabOptions { levels: LsmOptions::default(), value_tree_bytes: 0, value_tree_share: 0.006 }
    }
}

impl LabOptions {
    /// Each of them by its name.
    pub(super) fn settings(&mut self) -> Vec<Setting<'_>> {
        let mut all = vec![
            Setting {
                name: "lab.value_tree_bytes",
                slot: Slot::Whole(&mut self.value_tree_bytes, 0..=16 * TIB),
            },
            Setting { name: "lab.value_tree_share", slot: Slot::Share(&mut self.value_tree_share) },
        ];
        all.extend(settings_of_levels!("lab", self.levels));
        all
    }

    /// What does not go together, in words.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        self.levels.contradiction().map(|_| {
            "lab.l0_tables, l0_slowdown_tables and l0_stop_tables must ascend, and lab.debt_slowdown_bytes be below lab.debt_stop_bytes"
        })
    }
}
