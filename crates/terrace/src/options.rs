//! How a database is opened: the options that matter, and those of each engine.

use std::path::PathBuf;

use terrace_base::{Error, Result};
use terrace_pmem::Profile;
pub use terrace_table::Compression;

/// Which design stores the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EngineKind {
    /// SLM-DB (FAST '19): persistent memtable, one level of SSTables, a persistent B+-tree over all keys.
    #[default]
    Slm,
    /// A leveled LSM-tree in the manner of LevelDB and RocksDB: memtables in DRAM, a commit log, leveled compaction.
    Lsm,
    /// TurboHash (Spot-On): everything in persistent memory behind a hash table, in no order.
    Turbo,
    /// SPTree (Spot-On): everything in persistent memory behind a range index with its inner nodes in DRAM.
    Sptree,
}

impl EngineKind {
    /// Every engine of this build.
    pub const ALL: &'static [EngineKind] =
        &[EngineKind::Slm, EngineKind::Lsm, EngineKind::Turbo, EngineKind::Sptree];

    /// The engine's name on the command line, in `stats` and in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Slm => "slm",
            EngineKind::Lsm => "lsm",
            EngineKind::Turbo => "turbo",
            EngineKind::Sptree => "sptree",
        }
    }

    /// The engine's number in files.
    pub(crate) fn number(self) -> u8 {
        match self {
            EngineKind::Slm => 1,
            EngineKind::Lsm => 2,
            EngineKind::Turbo => 3,
            EngineKind::Sptree => 4,
        }
    }

    /// The engine that a file is for, by what it says of where it comes from.
    pub(crate) fn of_origin(origin: u64) -> Option<EngineKind> {
        Self::ALL.iter().copied().find(|engine| u64::from(engine.number()) == origin >> 56)
    }

    /// Whether it keeps keys in order: where it does not, there are no iterators over ranges.
    pub fn is_ordered(self) -> bool {
        self != EngineKind::Turbo
    }

    /// Whether it keeps everything in persistent memory and needs such, real or emulated.
    pub fn needs_memory(self) -> bool {
        matches!(self, EngineKind::Turbo | EngineKind::Sptree)
    }

    /// The engine called `name`.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|e| e.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|e| e.name()).collect();
            Error::invalid(format!("no engine is called {name:?}; there are: {}", known.join(", ")))
        })
    }
}

/// Where the persistent-memory pool lies.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum PoolChoice {
    /// A file `pool` in the database directory, used as whatever its file system offers: persistent
    /// memory on a DAX file system, an ordinary file with a commit log beside it elsewhere.
    #[default]
    Auto,
    /// This file on a DAX file system, or this devdax device.
    Path(PathBuf),
    /// An ordinary file treated as persistent memory, with the latency and bandwidth of `profile`.
    /// Power-safe only in name: for measurements and tests.
    Emulated {
        /// The pool file; `pool` in the database directory where it is not given.
        path: Option<PathBuf>,
        /// The medium to stand for.
        profile: Profile,
    },
}

/// How a database is opened. The defaults suit a machine without persistent memory.
///
/// ```
/// let options = terrace::Options { memory_budget: 64 << 20, ..Default::default() };
/// assert!(options.create_if_missing);
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// The design that stores the data; fixed when the database is created.
    pub engine: EngineKind,
    /// Where the pool lies.
    pub pool: PoolChoice,
    /// DRAM for block cache, guides, open tables, flush and compaction, in bytes. `stats` gives the breakdown. Memtables
    /// and tables become smaller where they would need too much of it.
    pub memory_budget: u64,
    /// Size to which the pool may grow, in bytes. It bounds what the database may hold: how much an engine needs,
    /// says its page of limits (`docs/engines/slm-limits.md`).
    pub pm_bytes: u64,
    /// Whether every write waits until it is power-safe (on media where that is not free).
    pub sync: bool,
    /// Threads for flush and compaction.
    pub background_threads: usize,
    /// Compression of table blocks.
    pub compression: Compression,
    /// Refuses all writes, and writes nothing itself: a full disk, a file system mounted read-only or files that this user
    /// may not write are no obstacle. The database must exist. What an unclean end has left is put right in memory
    /// alone; where the pool is on a device, only opening it for writing does that.
    pub read_only: bool,
    /// Creates the database where there is none.
    pub create_if_missing: bool,
    /// Bytes of an allocation unit of the pool; fixed when the pool is created.
    pub pool_extent_bytes: u64,
    /// The `slm` engine's own options.
    pub slm: SlmOptions,
    /// The `lsm` engine's own options.
    pub lsm: LsmOptions,
    /// The `turbo` engine's own options.
    pub turbo: TurboOptions,
    /// The `sptree` engine's own options.
    pub sptree: SptreeOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            engine: EngineKind::default(),
            pool: PoolChoice::default(),
            memory_budget: 256 << 20,
            pm_bytes: 16 << 30,
            sync: false,
            background_threads: 2,
            compression: Compression::None,
            read_only: false,
            create_if_missing: true,
            pool_extent_bytes: 64 << 10,
            slm: SlmOptions::default(),
            lsm: LsmOptions::default(),
            turbo: TurboOptions::default(),
            sptree: SptreeOptions::default(),
        }
    }
}

/// Options of the `slm` engine; the defaults are the paper's (SLM-DB, section 6.1) where nothing better was found:
/// see [`published`](Self::published).
#[derive(Debug, Clone)]
pub struct SlmOptions {
    /// Bytes of a memtable; there are two. Never more than a sixteenth of the pool, and less where
    /// the memory budget is small.
    pub memtable_bytes: u64,
    /// A table with a smaller share of live keys becomes a compaction candidate.
    pub live_key_threshold: f64,
    /// Garbage makes tables candidates only when at least this share of all entries in tables is garbage: what
    /// may be wasted so that less has to be written. 0 for the paper's choice.
    pub garbage_share: f64,
    /// Whether leaf scans run although nobody has read a range since the last one, as the paper's do. Tables of
    /// keys that were written in random order are then merged again and again.
    pub unasked_leaf_scans: bool,
    /// A leaf scan that meets more tables than this makes them candidates.
    pub leaf_scan_files: usize,
    /// Keys in a sub-range of a range query.
    pub sequentiality_keys: usize,
    /// A sub-range that meets more tables than this makes them candidates.
    pub sequentiality_files: usize,
    /// Tables merged by one compaction at most.
    pub max_merge_files: usize,
    /// Bytes at which a compaction or flush starts the next table. Less where the memory budget is small.
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
    /// The published choices where the defaults are others (SLM-DB, sections 3.3 and 6.1): blocks as large as
    /// LevelDB's, tables as large as memtables, garbage collected and leaves scanned without being asked.
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

/// Where the commit log of an engine with its write buffer in DRAM lies; fixed when the database is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogPlace {
    /// On persistent memory where the pool is on such, else in files.
    #[default]
    Auto,
    /// On persistent memory; an error where there is none.
    Pm,
    /// In files of the database directory; no pool is made.
    Ssd,
}

impl LogPlace {
    /// The place called `name`: `auto`, `pm` or `ssd`.
    pub(crate) fn parse(name: &str) -> Option<LogPlace> {
        match name {
            "auto" => Some(LogPlace::Auto),
            "pm" => Some(LogPlace::Pm),
            "ssd" => Some(LogPlace::Ssd),
            _ => None,
        }
    }
}

/// Options of the `lsm` engine; the defaults are RocksDB's.
#[derive(Debug, Clone)]
pub struct LsmOptions {
    /// Bytes of a memtable, in DRAM.
    pub memtable_bytes: u64,
    /// Memtables at most: the one being written and those that wait for their flush.
    pub memtables: usize,
    /// Where the commit log lies.
    pub log: LogPlace,
    /// Levels, level 0 included.
    pub levels: usize,
    /// Tables on level 0 that start a compaction.
    pub l0_tables: usize,
    /// Tables on level 0 from which on writers are slowed down, more with each.
    pub l0_slowdown_tables: usize,
    /// Tables on level 0 at which writers wait.
    pub l0_stop_tables: usize,
    /// Bytes waiting to be compacted from which on writers are slowed down.
    pub debt_slowdown_bytes: u64,
    /// Bytes waiting to be compacted at which writers wait.
    pub debt_stop_bytes: u64,
    /// Bytes of the uppermost level below level 0, at most. The sizes of the levels follow from what the last one
    /// holds (RocksDB's `level_compaction_dynamic_level_bytes`).
    pub base_level_bytes: u64,
    /// How many times as much a level holds as the one above it.
    pub level_multiplier: f64,
    /// Bytes at which a compaction starts the next table.
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

/// Options of the `turbo` engine; fixed when the database is created.
#[derive(Debug, Clone)]
pub struct TurboOptions {
    /// Shards, rounded up to a power of two. Each takes 32 bytes of PM and as many of DRAM and grows by itself; one for
    /// about 2,000 keys is right.
    pub shards: u32,
    /// Buckets of a shard when its first key comes, rounded up to a power of two.
    pub initial_buckets: u32,
    /// Most buckets that a search looks at.
    pub probing_scope: u32,
}

impl Default for TurboOptions {
    fn default() -> Self {
        TurboOptions { shards: 1 << 13, initial_buckets: 4, probing_scope: 16 }
    }
}

/// Options of the `sptree` engine; each open may choose anew.
#[derive(Debug, Clone)]
pub struct SptreeOptions {
    /// Whether new entries of the index go to write buffers in DRAM and a log first: fewer blocks written, more DRAM.
    pub buffered: bool,
    /// Bits of filter for each entry of a leaf: 1, 2 or 4.
    pub filter_bits: usize,
    /// Bytes of log after which a new one is begun, where there are write buffers.
    pub log_bytes: u64,
    /// Entries after which a leaf is split, 4 to 64. Less than 64 is for tests.
    pub leaf_entries: usize,
}

impl Default for SptreeOptions {
    fn default() -> Self {
        SptreeOptions { buffered: false, filter_bits: 1, log_bytes: 16 << 20, leaf_entries: 64 }
    }
}

/// How one write is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Waits until the write is power-safe, on media where the default is not.
    pub sync: bool,
}

impl WriteOptions {
    /// Waits for power safety.
    pub const SYNC: WriteOptions = WriteOptions { sync: true };
}
