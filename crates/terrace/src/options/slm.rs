//! Options of the engine `slm`.

use super::settings::{BLOCK_BYTES, EngineOptions, MANY, MEMTABLE_BYTES, Setting, Slot, TABLE_BYTES};

/// Options of the `slm` engine; the defaults are the paper's (SLM-DB, section 6.1) unless something better
/// was found: see [`published`](Self::published).
#[derive(Debug, Clone)]
pub struct SlmOptions {
    /// Bytes of a memtable; there are two. At most a sixteenth of the pool, and less if the memory budget is
    /// small.
    pub memtable_bytes: u64,
    /// A table with a smaller share of live keys becomes a compaction candidate.
    pub live_key_threshold: f64,
    /// Garbage makes tables candidates only when at least this share of all entries in tables is garbage:
    /// space that may be wasted so that less has to be written. 0 for the paper's choice.
    pub garbage_share: f64,
    /// Whether leaf scans run even if no range was read since the last one, as the paper's do. Tables of keys
    /// that were written in random order are then merged again and again.
    pub unasked_leaf_scans: bool,
    /// A leaf scan that meets more tables than this makes them candidates.
    pub leaf_scan_files: usize,
    /// Keys in a sub-range of a range query.
    pub sequentiality_keys: usize,
    /// A sub-range that meets more tables than this makes them candidates.
    pub sequentiality_files: usize,
    /// Most tables merged by one compaction.
    pub max_merge_files: usize,
    /// Bytes at which a compaction or flush starts the next table. Less if the memory budget is small.
    pub table_bytes: u64,
    /// Bytes at which a table starts the next block.
    pub block_bytes: usize,
}

impl Default for SlmOptions {
    fn default() -> Self {
        SlmOptions {
            memtable_bytes: 64 << 20,
            live_key_threshold: 0.7,
            garbage_share: 0.2,
            unasked_leaf_scans: false,
            leaf_scan_files: 10,
            sequentiality_keys: 30,
            sequentiality_files: 4,
            max_merge_files: 8,
            table_bytes: 16 << 20,
            block_bytes: 1024,
        }
    }
}

impl SlmOptions {
    /// The published choices where the defaults differ (SLM-DB, sections 3.3 and 6.1): blocks as large as
    /// LevelDB's, tables as large as memtables, garbage collected and leaves scanned without a request.
    pub fn published() -> Self {
        SlmOptions {
            garbage_share: 0.0,
            unasked_leaf_scans: true,
            sequentiality_files: 8,
            table_bytes: 64 << 20,
            block_bytes: 4096,
            ..SlmOptions::default()
        }
    }
}

impl EngineOptions for SlmOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let set = |name, slot| Setting { name, slot };
        vec![
            set("slm.memtable_bytes", Slot::Whole(&mut self.memtable_bytes, MEMTABLE_BYTES)),
            set("slm.live_key_threshold", Slot::Share(&mut self.live_key_threshold)),
            set("slm.garbage_share", Slot::Share(&mut self.garbage_share)),
            set("slm.unasked_leaf_scans", Slot::Flag(&mut self.unasked_leaf_scans)),
            set("slm.leaf_scan_files", Slot::Whole(&mut self.leaf_scan_files, MANY)),
            set("slm.sequentiality_keys", Slot::Whole(&mut self.sequentiality_keys, MANY)),
            set("slm.sequentiality_files", Slot::Whole(&mut self.sequentiality_files, MANY)),
            set("slm.max_merge_files", Slot::Whole(&mut self.max_merge_files, 2..=10_000)),
            set("slm.table_bytes", Slot::Whole(&mut self.table_bytes, TABLE_BYTES)),
            set("slm.block_bytes", Slot::Whole(&mut self.block_bytes, BLOCK_BYTES)),
        ]
    }
}
