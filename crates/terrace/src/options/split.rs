//! Options of the engine `split`.

use super::settings::{BLOCK_BYTES, EngineOptions, GIB, MANY, Setting, Slot, TABLE_BYTES, TIB};

/// Options of the `split` engine; the defaults are the paper's (SplitKV, section 3) where it gives any.
#[derive(Debug, Clone)]
pub struct SplitOptions {
    /// Items whose key and value together have at least this many bytes go to the SSD at once.
    pub boundary_bytes: u64,
    /// Bytes of persistent memory for records; 0 for what the index leaves of the pool. Records beyond it are
    /// migrated, and refused only when the pool is full.
    pub records_bytes: u64,
    /// Migration begins when records take this share of their bytes of persistent memory.
    pub high_share: f64,
    /// It ends when they take this share.
    pub low_share: f64,
    /// Bytes at which migration starts the next table. At most a sixteenth of the pool.
    pub run_bytes: u64,
    /// Bytes at which a table starts the next block.
    pub block_bytes: usize,
    /// A table with a smaller share of live entries may be rewritten.
    pub live_threshold: f64,
    /// It is rewritten when at least this share of all entries in tables is dead.
    pub garbage_share: f64,
    /// Most tables that are rewritten together.
    pub max_merge_runs: usize,
    /// Keys in a sub-range of a range that is read.
    pub sequentiality_keys: usize,
    /// Tables are rewritten together when a range has a sub-range that meets more of them than this.
    pub sequentiality_runs: usize,
    /// The same for a stretch of keys, as many as two average tables hold, after ranges were read.
    pub leaf_scan_runs: usize,
    /// Entries of a leaf of the index after which it is split.
    pub leaf_entries: usize,
}

impl Default for SplitOptions {
    fn default() -> Self {
        SplitOptions {
            boundary_bytes: 4096,
            records_bytes: 0,
            high_share: 0.8,
            low_share: 0.7,
            run_bytes: 16 << 20,
            block_bytes: 4096,
            live_threshold: 0.8,
            garbage_share: 0.2,
            max_merge_runs: 8,
            sequentiality_keys: 30,
            sequentiality_runs: 4,
            leaf_scan_runs: 10,
            leaf_entries: 64,
        }
    }
}

impl EngineOptions for SplitOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let set = |name, slot| Setting { name, slot };
        vec![
            set("split.boundary_bytes", Slot::Whole(&mut self.boundary_bytes, 64..=2 * GIB)),
            set("split.records_bytes", Slot::Whole(&mut self.records_bytes, 0..=16 * TIB)),
            set("split.high_share", Slot::Share(&mut self.high_share)),
            set("split.low_share", Slot::Share(&mut self.low_share)),
            set("split.run_bytes", Slot::Whole(&mut self.run_bytes, TABLE_BYTES)),
            set("split.block_bytes", Slot::Whole(&mut self.block_bytes, BLOCK_BYTES)),
            set("split.live_threshold", Slot::Share(&mut self.live_threshold)),
            set("split.garbage_share", Slot::Share(&mut self.garbage_share)),
            set("split.max_merge_runs", Slot::Whole(&mut self.max_merge_runs, 2..=10_000)),
            set("split.sequentiality_keys", Slot::Whole(&mut self.sequentiality_keys, MANY)),
            set("split.sequentiality_runs", Slot::Whole(&mut self.sequentiality_runs, MANY)),
            set("split.leaf_scan_runs", Slot::Whole(&mut self.leaf_scan_runs, MANY)),
            set("split.leaf_entries", Slot::Whole(&mut self.leaf_entries, 4..=64)),
        ]
    }

    fn contradiction(&self) -> Option<&'static str> {
        (self.low_share > self.high_share).then_some("split.low_share must not be above split.high_share")
    }
}
