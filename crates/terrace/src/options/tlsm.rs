//! Options of the engine `tlsm`.

use super::lsm::{LsmOptions, settings_of_levels};
use super::settings::{
    BLOCK_BYTES, Choice, EngineOptions, FILTER_BITS, KIB, MANY, MEMTABLE_BYTES, Setting, Slot, TABLE_BYTES,
    TIB,
};

/// The runs in persistent memory; the others are SSTables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TieringKind {
    /// All of them; a run without room is refused.
    None,
    /// Those of level 0 and of `pm_levels` levels below it.
    Leveled,
    /// All new ones; if there is too little room, those that have lain there longest become SSTables.
    #[default]
    Lru,
}

impl Choice for TieringKind {
    const NAMES: &'static [&'static str] = &["none", "leveled", "lru"];

    fn number(&self) -> usize {
        *self as usize
    }

    fn take(&mut self, number: usize) {
        *self = [Self::None, Self::Leveled, Self::Lru][number];
    }
}

/// Which of the paper's steps are used: to measure the effect of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListDesign {
    /// Persistent skiplists: flushes and compactions write every record, each by itself.
    Ps,
    /// Byte-addressable compaction, too: compactions write places of records.
    Bac,
    /// Sequential copy, too: a flush copies its records at once.
    #[default]
    Seqcopy,
}

impl Choice for ListDesign {
    const NAMES: &'static [&'static str] = &["ps", "bac", "seqcopy"];

    fn number(&self) -> usize {
        *self as usize
    }

    fn take(&mut self, number: usize) {
        *self = [Self::Ps, Self::Bac, Self::Seqcopy][number];
    }
}

/// Options of the `tlsm` engine; the defaults are the paper's, and LevelDB's, which it extends.
#[derive(Debug, Clone)]
pub struct TlsmOptions {
    /// Memtables and levels, like those of `lsm`; the log always lies on persistent memory.
    pub levels: LsmOptions,
    /// Which runs lie in persistent memory.
    pub tiering: TieringKind,
    /// With [`TieringKind::Leveled`], the number of levels below level 0 that lie there.
    pub pm_levels: usize,
    /// Bytes of the pool that lists may take; 0 for what logs leave.
    pub list_bytes: u64,
    /// Which of the paper's steps are used.
    pub design: ListDesign,
}

impl Default for TlsmOptions {
    fn default() -> Self {
        let levels = LsmOptions {
            memtable_bytes: 4 << 20,
            table_bytes: 2 << 20,
            base_level_bytes: 10 << 20,
            ..LsmOptions::default()
        };
        TlsmOptions {
            levels,
            tiering: TieringKind::default(),
            pm_levels: 3,
            list_bytes: 0,
            design: ListDesign::default(),
        }
    }
}

impl EngineOptions for TlsmOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let mut all = vec![
            Setting { name: "tlsm.tiering", slot: Slot::OneNamed(&mut self.tiering) },
            Setting { name: "tlsm.pm_levels", slot: Slot::Whole(&mut self.pm_levels, 1..=3) },
            Setting { name: "tlsm.list_bytes", slot: Slot::Whole(&mut self.list_bytes, 0..=16 * TIB) },
            Setting { name: "tlsm.design", slot: Slot::OneNamed(&mut self.design) },
        ];
        all.extend(settings_of_levels!("tlsm", self.levels));
        all
    }

    fn contradiction(&self) -> Option<&'static str> {
        self.levels.contradiction().map(|_| {
            "tlsm.l0_tables, l0_slowdown_tables and l0_stop_tables must ascend, and tlsm.debt_slowdown_bytes be below tlsm.debt_stop_bytes"
        })
    }
}
