//! Options of the engine `lsm`.

use super::settings::{
    BLOCK_BYTES, Choice, EngineOptions, FILTER_BITS, KIB, MANY, MEMTABLE_BYTES, Setting, Slot, TABLE_BYTES,
    TIB,
};

/// The options of levels under memtables, by their names, which begin with the engine's.
macro_rules! settings_of_levels {
    ($engine:literal, $options:expr) => {{
        let set = |name, slot| Setting { name, slot };
        [
            set(
                concat!($engine, ".memtable_bytes"),
                Slot::Whole(&mut $options.memtable_bytes, MEMTABLE_BYTES),
            ),
            // A log in the pool for each memtable, and one more while a flush ends: there are roots for
            // eight.
            set(concat!($engine, ".memtables"), Slot::Whole(&mut $options.memtables, 2..=7)),
            set(concat!($engine, ".levels"), Slot::Whole(&mut $options.levels, 2..=16)),
            set(concat!($engine, ".l0_tables"), Slot::Whole(&mut $options.l0_tables, MANY)),
            set(concat!($engine, ".l0_slowdown_tables"), Slot::Whole(&mut $options.l0_slowdown_tables, MANY)),
            set(concat!($engine, ".l0_stop_tables"), Slot::Whole(&mut $options.l0_stop_tables, MANY)),
            set(
                concat!($engine, ".debt_slowdown_bytes"),
                Slot::Whole(&mut $options.debt_slowdown_bytes, 1..=1024 * TIB),
            ),
            set(
                concat!($engine, ".debt_stop_bytes"),
                Slot::Whole(&mut $options.debt_stop_bytes, 1..=1024 * TIB),
            ),
            set(
                concat!($engine, ".base_level_bytes"),
                Slot::Whole(&mut $options.base_level_bytes, KIB..=16 * TIB),
            ),
            set(
                concat!($engine, ".level_multiplier"),
                Slot::Real(&mut $options.level_multiplier, 2.0..=100.0),
            ),
            set(concat!($engine, ".table_bytes"), Slot::Whole(&mut $options.table_bytes, TABLE_BYTES)),
            set(concat!($engine, ".block_bytes"), Slot::Whole(&mut $options.block_bytes, BLOCK_BYTES)),
            set(
                concat!($engine, ".filter_bits_per_key"),
                Slot::Whole(&mut $options.filter_bits_per_key, FILTER_BITS),
            ),
        ]
    }};
}
pub(super) use settings_of_levels;

/// The place of the commit log of an engine with its write buffer in DRAM; fixed when the database is
/// created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogPlace {
    /// On persistent memory if the pool is, otherwise in files.
    #[default]
    Auto,
    /// On persistent memory; an error if there is none.
    Pm,
    /// In files of the database directory; no pool is made.
    Ssd,
}

impl Choice for LogPlace {
    const NAMES: &'static [&'static str] = &["auto", "pm", "ssd"];

    fn number(&self) -> usize {
        *self as usize
    }

    fn take(&mut self, number: usize) {
        *self = [Self::Auto, Self::Pm, Self::Ssd][number];
    }
}

/// Options of the `lsm` engine; the defaults are RocksDB's.
#[derive(Debug, Clone)]
pub struct LsmOptions {
    /// Bytes of a memtable, in DRAM.
    pub memtable_bytes: u64,
    /// Most memtables: the one being written and those that wait for their flush.
    pub memtables: usize,
    /// Where the commit log lies.
    pub log: LogPlace,
    /// Levels, level 0 included.
    pub levels: usize,
    /// Tables on level 0 that start a compaction.
    pub l0_tables: usize,
    /// Tables on level 0 at which writers begin to be throttled, more with each.
    pub l0_slowdown_tables: usize,
    /// Tables on level 0 at which writers wait.
    pub l0_stop_tables: usize,
    /// Bytes waiting to be compacted at which writers begin to be throttled.
    pub debt_slowdown_bytes: u64,
    /// Bytes waiting to be compacted at which writers wait.
    pub debt_stop_bytes: u64,
    /// The largest size of the uppermost level below level 0, in bytes. The sizes of the levels follow from
    /// the size of the last one (RocksDB's `level_compaction_dynamic_level_bytes`). With small memtables it is
    /// at most `level_multiplier` times what `l0_tables` of them hold.
    pub base_level_bytes: u64,
    /// The ratio of a level's size to that of the one above it.
    pub level_multiplier: f64,
    /// Bytes at which a compaction starts the next table; with small memtables at most a quarter of the base
    /// level.
    pub table_bytes: u64,
    /// Bytes at which a table starts the next block.
    pub block_bytes: usize,
    /// Bits of Bloom filter per key; 0 for no filters.
    pub filter_bits_per_key: u32,
}

impl Default for LsmOptions {
    fn default() -> Self {
        LsmOptions {
            memtable_bytes: 64 << 20,
            memtables: 2,
            log: LogPlace::default(),
            levels: 7,
            l0_tables: 4,
            l0_slowdown_tables: 20,
            l0_stop_tables: 36,
            debt_slowdown_bytes: 64 << 30,
            debt_stop_bytes: 256 << 30,
            base_level_bytes: 256 << 20,
            level_multiplier: 10.0,
            table_bytes: 64 << 20,
            block_bytes: 4096,
            filter_bits_per_key: 10,
        }
    }
}

impl EngineOptions for LsmOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let mut all = vec![Setting { name: "lsm.log", slot: Slot::OneNamed(&mut self.log) }];
        all.extend(settings_of_levels!("lsm", self));
        all
    }

    fn contradiction(&self) -> Option<&'static str> {
        let tables = [self.l0_tables, self.l0_slowdown_tables, self.l0_stop_tables];
        if !tables.is_sorted() || tables[1] == tables[2] {
            return Some("lsm.l0_tables, l0_slowdown_tables and l0_stop_tables must ascend");
        }
        (self.debt_slowdown_bytes >= self.debt_stop_bytes)
            .then_some("lsm.debt_slowdown_bytes must be below lsm.debt_stop_bytes")
    }
}
