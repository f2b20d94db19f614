//! A database's figures: shapes, sizes and counts, in bytes unless named otherwise.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_pmem::{PmStats, thread_slot};
use terrace_table::Kind;

use crate::batch::Op;
use crate::latency::Latencies;

mod scrubs;

pub use scrubs::ScrubStats;

/// Levels whose tables are counted apart.
pub const COUNTED_LEVELS: usize = 8;

/// A snapshot of a database's figures. Counts are since it was opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The engine's name.
    pub engine: &'static str,
    /// The pool's medium, in plain words.
    pub media: String,
    /// What an acknowledged write survives, in plain words.
    pub durability: String,
    /// Where the commit log lies and how it is written, in plain words; empty if there is none.
    pub log: String,
    /// How tables are read, and why, in plain words.
    pub table_reads: String,
    /// The emulation's name, when persistent memory is emulated.
    pub emulated: Option<String>,
    /// A line about the work of opening.
    pub opened: String,
    /// The current background failure, if there is one; otherwise that the next opening will not trust the pool, if the
    /// system has told that it could not write all of it back.
    pub failure: Option<String>,
    /// The first floor.
    pub dram: DramStats,
    /// The second floor.
    pub pm: PmFloor,
    /// The third floor.
    pub ssd: SsdStats,
    /// Operations and background work.
    pub counts: Counts,
    /// How long operations took.
    pub latencies: Latencies,
    /// What was compared with its checksums, read or not.
    pub scrub: ScrubStats,
    /// Buckets, of an engine that has them; otherwise all zero.
    pub buckets: BucketStats,
    /// The tree of values, of an engine that has one; otherwise all zero.
    pub values: ValueStats,
    /// The tree of hints, of an engine that has one; otherwise all zero.
    pub hints: HintStats,
    /// Runs in the pool, of an engine that has them; otherwise all zero.
    pub lists: ListStats,
    /// What the `split` engine has migrated, and has in slots.
    pub split: SplitStats,
    /// What was done to each keyspace that is open, by name; the figures above have it with everything else.
    pub keyspaces: BTreeMap<String, KeyspaceStats>,
}

/// What was done to a keyspace through its handles since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// Point reads.
    pub gets: u64,
    /// Puts and merges.
    pub puts: u64,
    /// Deletions.
    pub deletes: u64,
    /// Bytes of keys and values that were put, and of keys that were deleted.
    pub user_bytes: u64,
}

/// Ranges of keys with their own memtables and tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketStats {
    /// The number of buckets.
    pub buckets: u64,
    /// Sublevels of the bucket that has the most.
    pub most_sublevels: u64,
    /// Buckets that were split since the database was opened.
    pub splits: u64,
    /// Buckets that were joined since then.
    pub joins: u64,
    /// Bytes of commit log that are needed.
    pub log_bytes: u64,
    /// The holder of its oldest part, in words.
    pub log_held_by: String,
}

/// Newest values kept in the pool, above tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueStats {
    /// Keys whose newest versions are kept.
    pub keys: u64,
    /// Bytes of the pool that they take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub bound: u64,
    /// Keys admitted since the database was opened.
    pub admitted: u64,
    /// Versions that were replaced there since then.
    pub updated: u64,
    /// Keys that left since then.
    pub evicted: u64,
}

/// What is known of where stale values lie in tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HintStats {
    /// Keys whose place is known.
    pub keys: u64,
    /// Bytes of the pool that this takes.
    pub bytes: u64,
    /// Bytes that it may take.
    pub bound: u64,
    /// Bytes of tables that are known to be stale.
    pub stale_bytes: u64,
    /// Values that became stale in their places since the database was opened.
    pub outdated: u64,
    /// Blocks of tables that compactions have left out unread since then.
    pub passed_blocks: u64,
}

/// Runs that lie in the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListStats {
    /// The number of lists.
    pub lists: u64,
    /// Records that they lead to.
    pub entries: u64,
    /// Bytes of the pool that they and their buffers take.
    pub bytes: u64,
    /// Bytes that would be left if buffers held nothing that no list leads to.
    pub live_bytes: u64,
    /// Bytes that they may take.
    pub bound: u64,
    /// Lists that became tables since the database was opened, to make room.
    pub evicted: u64,
    /// Lists rewritten since then, to empty buffers that were mostly dead.
    pub emptied: u64,
    /// Merges continued after a crash.
    pub resumed: u64,
    /// Bytes of records that flushes and merges copied into buffers since then.
    pub copied_bytes: u64,
}

/// What the `split` engine has migrated, and has in slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitStats {
    /// Whether there is such an engine.
    pub is_there: bool,
    /// Whether the drive has a cache that a power cut empties, so that each submission ends with a flush of it.
    pub cache_is_volatile: bool,
    /// Records migrated from persistent memory to tables since the database was opened.
    pub migrated: u64,
    /// Bytes of the tables that were written for them.
    pub migrated_bytes: u64,
    /// Bytes of dead entries in tables, once they are counted.
    pub dead_bytes: u64,
    /// Items in slots, including those that readers and snapshots may still need; complete only once they are
    /// counted.
    pub items: u64,
    /// Bytes of their sectors.
    pub item_bytes: u64,
    /// Of these, bytes of items that nothing leads to any more.
    pub retired_bytes: u64,
    /// Bytes of blocks of the file of slots that are held.
    pub held_bytes: u64,
    /// Bytes of its blocks that are free and still take space.
    pub free_bytes: u64,
    /// Bytes of space that the file takes.
    pub file_bytes: u64,
    /// Submissions of items since the database was opened, and items in them.
    pub submissions: u64,
    /// See [`submissions`](Self::submissions).
    pub submitted: u64,
    /// Device syncs that made them durable.
    pub device_syncs: u64,
}

/// DRAM held, against the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DramStats {
    /// `Options::memory_budget`.
    pub budget: u64,
    /// Cached blocks.
    pub block_cache: u64,
    /// Open tables: index, filter and metadata, and for mapped ones the record of verified blocks, a 256th of
    /// their size.
    pub tables: u64,
    /// DRAM parts of memtables.
    pub memtables: u64,
    /// DRAM parts of persistent indexes.
    pub index: u64,
    /// Allocator state of the pool.
    pub allocator: u64,
    /// Keys and buffers of flush and compaction, and what walks of `split` have begun to read.
    pub jobs: u64,
    /// The process's memory, as the system counts it, including the resident parts of mapped pools and
    /// tables; `None` if the system does not report it.
    pub resident: Option<u64>,
    /// Blocks found in the cache.
    pub cache_hits: u64,
    /// Blocks that had to be read.
    pub cache_misses: u64,
}

impl DramStats {
    /// The sum of all.
    pub fn total(&self) -> u64 {
        self.block_cache + self.tables + self.memtables + self.index + self.allocator + self.jobs
    }
}

/// The pool.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct PmFloor {
    /// Whether it is persistent memory, real or emulated. A pool in an ordinary file is none.
    pub is_memory: bool,
    /// Bytes of the pool file now.
    pub size: u64,
    /// Bytes to which it may grow.
    pub max_size: u64,
    /// Bytes allocated.
    pub used: u64,
    /// Bytes of memtables.
    pub memtables: u64,
    /// Bytes of the index.
    pub index: u64,
    /// Version chains, kept for snapshots.
    pub chains: u64,
    /// Flushes, drains, media writes and reads.
    pub traffic: PmStats,
}

/// Tables, logs and manifest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SsdStats {
    /// Live tables.
    pub tables: u64,
    /// Tables whose files are open now; see `Options::max_open_tables`.
    pub open_tables: u64,
    /// Mapped tables, including dropped ones of which somebody still holds a value.
    pub mapped_tables: u64,
    /// Bytes of them. They count towards no budget: the system takes their memory back when it is needed.
    pub mapped_bytes: u64,
    /// Bytes of these that are in memory, as the system counts them.
    pub mapped_resident: u64,
    /// Mappings that the system could not read since the database was opened; their tables are read by calls.
    pub failed_maps: u64,
    /// Unneeded files that still exist: somebody still reads them, or they could not be removed yet.
    pub obsolete_files: u64,
    /// Bytes of live tables.
    pub table_bytes: u64,
    /// Entries in live tables.
    pub table_entries: u64,
    /// Entries that the index points to.
    pub live_entries: u64,
    /// Bytes written to files.
    pub bytes_written: u64,
    /// Bytes read from files by calls; reads through mappings are not counted.
    pub bytes_read: u64,
    /// Read operations, likewise.
    pub reads: u64,
    /// Durability waits.
    pub syncs: u64,
}

/// Operations and background work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Keys put.
    pub puts: u64,
    /// Keys deleted.
    pub deletes: u64,
    /// Batches that deleted ranges of keys.
    pub range_deletes: u64,
    /// Point reads.
    pub gets: u64,
    /// Iterators made.
    pub iterators: u64,
    /// Key and value bytes put.
    pub user_bytes: u64,
    /// Groups committed.
    pub commit_groups: u64,
    /// Batches in those groups.
    pub committed_batches: u64,
    /// Commits of transactions that were refused for what others had written.
    pub conflicts: u64,
    /// Memtables flushed.
    pub flushes: u64,
    /// Compactions done.
    pub compactions: u64,
    /// Tables written by flush and compaction.
    pub tables_written: u64,
    /// Bytes of tables written, by level; the last counts for all below it, too.
    pub level_bytes: [u64; COUNTED_LEVELS],
    /// Bytes written by flushes.
    pub flush_bytes: u64,
    /// Bytes written by compactions.
    pub compaction_bytes: u64,
    /// Writes that were slowed or had to wait.
    pub stalls: u64,
    /// Nanoseconds they waited.
    pub stall_nanos: u64,
    /// Background failures.
    pub background_errors: u64,
    /// Snapshots and iterators open now.
    pub snapshots: u64,
    /// Keys in the index.
    pub index_keys: u64,
}

impl Stats {
    /// SSD bytes written per user byte; `None` before the first write.
    pub fn ssd_write_amplification(&self) -> Option<f64> {
        ratio(self.ssd.bytes_written, self.counts.user_bytes)
    }

    /// PM bytes written, in media blocks of 256 bytes, per user byte.
    pub fn pm_write_amplification(&self) -> Option<f64> {
        ratio(self.pm.traffic.xpline_writes * terrace_pmem::XPLINE_BYTES, self.counts.user_bytes)
    }

    /// SSD table bytes per byte of live entries, estimated by their share of all entries.
    pub fn ssd_space_amplification(&self) -> Option<f64> {
        ratio(self.ssd.table_entries, self.ssd.live_entries)
    }
}

fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// Relaxed counters behind [`Counts`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: Counter,)*
            level_bytes: [Counter; COUNTED_LEVELS],
        }

        impl Counters {
            /// The counters now; figures not counted here are zero.
            pub fn snapshot(&self) -> Counts {
                let level_bytes = std::array::from_fn(|level| self.level_bytes[level].get());
                Counts { $($name: self.$name.get(),)* level_bytes, ..Counts::default() }
            }
        }
    };
}

counters!(
    puts,
    deletes,
    range_deletes,
    gets,
    iterators,
    user_bytes,
    commit_groups,
    committed_batches,
    conflicts,
    flushes,
    compactions,
    tables_written,
    flush_bytes,
    compaction_bytes,
    stalls,
    stall_nanos,
    background_errors,
);

impl Counters {
    /// Counts a flush of `memtables` memtables into tables of `level`.
    pub fn count_flush(&self, memtables: u64, level: usize, bytes: u64) {
        self.flushes.add(memtables);
        self.flush_bytes.add(bytes);
        self.count_tables(level, bytes);
    }

    /// Counts a compaction into tables of `level`.
    pub fn count_compaction(&self, level: usize, bytes: u64) {
        self.compactions.add(1);
        self.compaction_bytes.add(bytes);
        self.count_tables(level, bytes);
    }

    fn count_tables(&self, level: usize, bytes: u64) {
        self.level_bytes[level.min(COUNTED_LEVELS - 1)].add(bytes);
    }

    /// Counts a single write that was a group of its own.
    pub fn count_write(&self, op: Op<'_>) {
        match op.kind {
            Kind::Put | Kind::Operand => self.puts.add(1),
            Kind::Delete => self.deletes.add(1),
        }
        self.user_bytes.add((op.key.len() + op.value.len()) as u64);
        self.commit_groups.add(1);
        self.committed_batches.add(1);
    }
}

/// A relaxed counter, in parts on separate cache lines, over which threads are spread.
#[derive(Debug, Default)]
pub(crate) struct Counter([Part; PARTS]);

/// Parts of a counter.
const PARTS: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Part(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, n: u64) {
        self.0[thread_slot::current() % PARTS].0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.iter().map(|part| part.0.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}
