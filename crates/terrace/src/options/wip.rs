//! Options of the engine `wip`.

use super::lsm::LogPlace;
use super::settings::{BLOCK_BYTES, Choice, EngineOptions, FILTER_BITS, GIB, KIB, Setting, Slot, TIB};

/// The kind of a bucket's memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BucketMemtableKind {
    /// A hash table: the cheapest to write to. A range read sorts what it meets there.
    Hash,
    /// A list that is always in order; a skiplist in the paper, here with a B+-tree over its nodes.
    Skiplist,
    /// A hash table, and such a list while many ranges are read.
    #[default]
    Adaptive,
}

impl Choice for BucketMemtableKind {
    const NAMES: &'static [&'static str] = &["hash", "skiplist", "adaptive"];

    fn number(&self) -> usize {
        *self as usize
    }

    fn take(&mut self, number: usize) {
        *self = [Self::Hash, Self::Skiplist, Self::Adaptive][number];
    }
}

/// Options of the `wip` engine (WipDB, Zhao's dissertation, chapter 2); the defaults are the paper's and its authors'
/// unless stated otherwise.
#[derive(Debug, Clone)]
pub struct WipOptions {
    /// Bytes in DRAM at which a bucket's memtable is flushed, if memory is short.
    pub memtable_bytes: u64,
    /// Bytes at which a bucket's memtable is flushed, if few buckets have memory for more (the paper's are
    /// never more than `memtable_bytes`).
    pub most_memtable_bytes: u64,
    /// The largest share of `memory_budget` for all memtables together.
    pub memtables_share: f64,
    /// The kind of memtables.
    pub memtable: BucketMemtableKind,
    /// A hash table is flushed as soon as one of its lines overflows, as published; otherwise only by its
    /// bytes.
    pub freeze_on_overflow: bool,
    /// Where the commit log lies.
    pub log: LogPlace,
    /// Bytes of commit log beyond which the buckets that hold it back are flushed.
    pub log_bytes: u64,
    /// Sublevels of a level that are merged into one of the next (`T`).
    pub sublevels: usize,
    /// Sublevels at which a level that is read may be merged.
    pub min_sublevels: usize,
    /// Sublevels that a level may wait for beyond `sublevels`, a different number for each, so that evenly
    /// filled buckets are not merged all at once.
    pub jitter: usize,
    /// Bytes at which a bucket is full: it is merged as a whole, and split if more than half of that lives. The paper's
    /// figure is four times as much.
    pub bucket_bytes: u64,
    /// Buckets into which one is split (`N`).
    pub split_into: usize,
    /// Whether frequently read levels are compacted first.
    pub read_aware: bool,
    /// The weight of reads against sublevels in choosing what is compacted first.
    pub read_weight: f64,
    /// Bytes at which a table starts the next block.
    pub block_bytes: usize,
    /// Bits of Bloom filter per key; 0 for no filters.
    pub filter_bits_per_key: u32,
}

impl Default for WipOptions {
    fn default() -> Self {
        WipOptions {
            memtable_bytes: 2 << 20,
            most_memtable_bytes: 32 << 20,
            memtables_share: 0.5,
            memtable: BucketMemtableKind::default(),
            freeze_on_overflow: false,
            log: LogPlace::default(),
            log_bytes: 512 << 20,
            sublevels: 8,
            min_sublevels: 4,
            jitter: 5,
            bucket_bytes: 292 << 20,
            split_into: 8,
            read_aware: true,
            read_weight: 10.0,
            block_bytes: 4096,
            filter_bits_per_key: 10,
        }
    }
}

impl EngineOptions for WipOptions {
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let set = |name, slot| Setting { name, slot };
        vec![
            set("wip.memtable_bytes", Slot::Whole(&mut self.memtable_bytes, KIB..=GIB)),
            set("wip.most_memtable_bytes", Slot::Whole(&mut self.most_memtable_bytes, KIB..=64 * GIB)),
            set("wip.memtables_share", Slot::Real(&mut self.memtables_share, 0.01..=0.9)),
            set("wip.memtable", Slot::OneNamed(&mut self.memtable)),
            set("wip.freeze_on_overflow", Slot::Flag(&mut self.freeze_on_overflow)),
            set("wip.log", Slot::OneNamed(&mut self.log)),
            set("wip.log_bytes", Slot::Whole(&mut self.log_bytes, 16 * KIB..=16 * TIB)),
            set("wip.sublevels", Slot::Whole(&mut self.sublevels, 2..=64)),
            set("wip.min_sublevels", Slot::Whole(&mut self.min_sublevels, 2..=64)),
            set("wip.jitter", Slot::Whole(&mut self.jitter, 0..=64)),
            set("wip.bucket_bytes", Slot::Whole(&mut self.bucket_bytes, 4 * KIB..=64 * GIB)),
            set("wip.split_into", Slot::Whole(&mut self.split_into, 2..=64)),
            set("wip.read_aware", Slot::Flag(&mut self.read_aware)),
            set("wip.read_weight", Slot::Real(&mut self.read_weight, 0.0..=1000.0)),
            set("wip.block_bytes", Slot::Whole(&mut self.block_bytes, BLOCK_BYTES)),
            set("wip.filter_bits_per_key", Slot::Whole(&mut self.filter_bits_per_key, FILTER_BITS)),
        ]
    }

    fn contradiction(&self) -> Option<&'static str> {
        if self.memtable_bytes > self.most_memtable_bytes {
            return Some("wip.most_memtable_bytes must be at least wip.memtable_bytes");
        }
        if self.bucket_bytes < 2 * self.memtable_bytes {
            return Some("wip.bucket_bytes must be at least twice wip.memtable_bytes");
        }
        (self.min_sublevels > self.sublevels).then_some("wip.min_sublevels must be at most wip.sublevels")
    }
}
