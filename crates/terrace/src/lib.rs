//! Terrace: an embeddable, ordered key-value store for machines with three floors of memory: DRAM,
//! byte-addressable persistent memory and SSD. It works without persistent memory, too.
//!
//! Start with [`Db::open`].

mod background;
mod batch;
mod commit_log;
mod compaction;
mod core;
mod db;
mod engine;
pub mod env;
mod events;
#[cfg(feature = "metrics")]
mod exporter;
mod keyspaces;
mod latency;
mod leveled;
mod levels;
mod located;
pub mod manifest;
mod memtable;
mod options;
mod pool;
mod repair;
mod salvage;
mod scratch;
mod stats;
mod sync;
mod tables;
mod versions;

pub use batch::{MAX_KEY_BYTES, MAX_VALUE_BYTES, WriteBatch};
pub use bytes::Bytes;
pub use core::report::{CheckReport, RepairReport, ScrubReport};
pub use db::{
    CasMismatch, Db, DbIter, Entries, Expiry, Explanation, Ingest, Ingested, Isolation, KeyRange, Keyspace,
    KeyspaceOptions, Savepoint, Snapshot, Transaction, TransactionIter, TransactionKeyspace,
    TransactionOptions, lock_path,
};
pub use engine::{InSlots, SlotsFile};
pub use env::{Env, PmSpace};
pub use events::{Event, EventListener, Listeners};
#[cfg(feature = "metrics")]
pub use exporter::export_metrics;
pub use keyspaces::{CompactionFilter, FilterDecision, FilterEntry, MergeOperator, TableSettings};
pub use latency::{Latencies, Latency};
pub use options::{
    BucketMemtableKind, BufferPlace, Compression, EngineKind, LabOptions, LabTrees, ListDesign, LogPlace,
    LsmOptions, OptionInfo, Options, PoolChoice, SlmOptions, SplitOptions, SptreeOptions, TableReads,
    TieringKind, TlsmOptions, TurboOptions, WipOptions, WriteOptions,
};
pub use repair::{RepairOptions, Whose};
pub use stats::{
    BucketStats, COUNTED_LEVELS, Counts, DramStats, HintStats, KeyspaceStats, ListStats, PmFloor, ScrubStats,
    SplitStats, SsdStats, Stats, ValueStats,
};
pub use terrace_base::clock::{Clock, ManualClock};
pub use terrace_base::trail::{BlockFrom, Touch};
pub use terrace_base::{Error, ErrorKind, Result};
pub use terrace_pmem::Profile;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;

#[cfg(doctest)]
mod guide_examples {
    #[doc = include_str!("../../../docs/guide/deleting.md")]
    struct Deleting;
    #[doc = include_str!("../../../docs/guide/expiring.md")]
    struct Expiring;
    #[doc = include_str!("../../../docs/guide/filtering.md")]
    struct Filtering;
    #[doc = include_str!("../../../docs/guide/ingesting.md")]
    struct Ingesting;
    #[doc = include_str!("../../../docs/guide/keyspaces.md")]
    struct Keyspaces;
    #[doc = include_str!("../../../docs/guide/merging.md")]
    struct Merging;
}

/// The memtables of engines, alone, for the benchmark.
#[doc(hidden)]
pub mod bare_memtables;
/// Decoders of what the store keeps in logs, for the fuzzer.
#[doc(hidden)]
pub mod fuzzing;
