//! Options of the engine `sptree`.

use super::settings::{EngineOptions, GIB, KIB, Setting, Slot};

/// Options of the `sptree` engine; each open may choose differently.
#[derive(Debug, Clone)]
pub struct SptreeOptions {
    /// Whether new entries of the index go to write buffers in DRAM and a log first: fewer blocks written, more DRAM.
    pub buffered: bool,
    /// Bits of filter for each entry of a leaf: 1, 2 or 4.
    pub filter_bits: usize,
    /// Bytes of log after which a new one begins, if there are write buffers.
    pub log_bytes: u64,
    /// Entries after which a leaf is split, 4 to 64; of 64, one stays free for the new word of a key that is there.
    /// Less than 64 is for tests.
    pub leaf_entries: usize,
}

impl Default for SptreeOptions {
    fn default() -> Self {
        SptreeOptions { buffered: false, filter_bits: 1, log_bytes: 16 << 20, leaf_entries: 64 }
    }
}

impl EngineOptions for SptreeOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let set = |name, slot| Setting { name, slot };
        vec![
            set("sptree.buffered", Slot::Flag(&mut self.buffered)),
            set("sptree.filter_bits", Slot::OneOf(&mut self.filter_bits, &[1, 2, 4])),
            set("sptree.log_bytes", Slot::Whole(&mut self.log_bytes, 4 * KIB..=GIB)),
            set("sptree.leaf_entries", Slot::Whole(&mut self.leaf_entries, 4..=64)),
        ]
    }
}
