//! The parts that the store, its engines and their parts share: how they are called, and what each requires
//! of the other.
//!
//! | file | what it owns |
//! |---|---|
//! | `engine.rs` | what the store requires of an engine |
//! | `request.rs` | writers' requests, and the groups in which engines receive them |
//! | `condition.rs` | what must hold for a write to take place |
//! | `snapshots.rs` | the versions that somebody may still read |
//! | `empty_ranges.rs` | ranges of keys that walks have found empty, for later walks to skip |
//! | `events.rs` | telling listeners what happens |
//! | `health.rs` | the failure after which nothing is written any more |
//! | `lent.rs` | values that are shown where they lie |
//! | `recent_writes.rs` | which keys may have been written since a transaction began |
//! | `range_tombstones.rs` | deleted ranges, and what they hide |
//! | `deadlines.rs` | entries that expire, and whether they are due |
//! | `filters.rs` | compaction filters, and the places of the entries that they let go |
//! | `keyspace_tables.rs` | how the tables of keyspaces are written that have settings of their own |
//! | `masked.rs` | an engine as readers see it: without what is hidden or due |
//! | `merging.rs` | operands that lie in the engine, and folding them |
//! | `memory.rs` | the budget of DRAM, and how much of it each part has borrowed |
//! | `files.rs` | the files of tables: opened when they are read, removed when nobody may read them any more |
//! | `table_reads.rs` | whether tables are read through mappings or by calls |
//! | `scrub.rs` | passes over all tables, to compare their checksums |
//! | `report.rs` | the results of `check`, `scrub` and `repair` |

pub(crate) mod condition;
pub(crate) mod deadlines;
pub(crate) mod empty_ranges;
pub(crate) mod engine;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod filters;
pub(crate) mod health;
pub(crate) mod keyspace_tables;
pub(crate) mod lent;
pub(crate) mod masked;
pub(crate) mod memory;
pub(crate) mod merging;
pub(crate) mod range_tombstones;
pub(crate) mod recent_writes;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod scrub;
pub(crate) mod snapshots;
pub(crate) mod table_reads;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use terrace_base::Result;
use terrace_base::alarm::Alarm;
use terrace_disk::{Descriptors, Fs, MeteredFs, SparingFs};
use terrace_table::BlockCache;

use self::deadlines::Deadlines;
use self::empty_ranges::EmptyRanges;
use self::events::Events;
use self::files::Files;
use self::filters::Filters;
use self::health::Health;
use self::keyspace_tables::KeyspaceTables;
use self::memory::Memory;
use self::merging::Merging;
use self::range_tombstones::RangeTombstones;
use self::recent_writes::RecentWrites;
use self::scrub::ScrubFigures;
use self::snapshots::Snapshots;
use self::table_reads::TableReader;
use crate::env::Env;
use crate::latency::{Timers, Timing};
use crate::options::Options;
use crate::stats::Counters;

/// Calls of [`Core::look_at_clock_seldom`] of which one looks.
const SHORT_CALLS: u32 = 16;

/// The store's shared state.
#[derive(Debug)]
pub(crate) struct Core {
    pub dir: PathBuf,
    pub options: Options,
    pub env: Env,
    pub fs: Arc<MeteredFs>,
    pub files: Arc<Files>,
    pub snapshots: Arc<Snapshots>,
    pub empty_ranges: EmptyRanges,
    pub range_tombstones: RangeTombstones,
    pub recent_writes: RecentWrites,
    pub deadlines: Deadlines,
    pub filters: Filters,
    pub keyspace_tables: KeyspaceTables,
    pub merging: Merging,
    pub health: Health,
    pub events: Arc<Events>,
    pub counters: Counters,
    pub timers: Arc<Timers>,
    pub memory: Arc<Memory>,
    pub table_reader: Arc<TableReader>,
    /// Rings when a piece of a scrub is due.
    pub alarm: Arc<Alarm>,
    pub scrub: ScrubFigures,
    /// Calls of [`look_at_clock_seldom`](Self::look_at_clock_seldom).
    short_calls: AtomicU32,
    /// Whether everything written is lost at the close: then nothing is compacted.
    pub is_scratch: bool,
}

impl Core {
    pub fn new(dir: PathBuf, options: Options, env: Env) -> Result<Arc<Core>> {
        Self::over(dir, options, env, false)
    }

    /// For a database whose environment keeps nothing.
    pub fn scratch(dir: PathBuf, options: Options, env: Env) -> Result<Arc<Core>> {
        Self::over(dir, options, env, true)
    }

    fn over(dir: PathBuf, options: Options, env: Env, is_scratch: bool) -> Result<Arc<Core>> {
        options.validate()?;
        let events = Events::new(&options.listeners);
        let memory = Memory::new(options.memory_budget);
        let descriptors = Descriptors::new(options.most_open_tables());
        let sparing = SparingFs::new(env.fs.clone(), descriptors.clone());
        let alarm = Arc::<Alarm>::default();
        let timers = Timers::new(options.latencies, env.clock.clone(), alarm.clone());
        let fs = Arc::new(MeteredFs::watched(Arc::new(sparing), timers.watch()));
        let clock = env.clock.clone();
        let filters = Filters::new(options.compaction_filter.as_ref());
        Ok(Arc::new(Core {
            files: Files::new(fs.clone(), &dir, descriptors),
            fs,
            dir,
            table_reader: Arc::new(TableReader::new(options.table_reads)),
            options,
            env,
            snapshots: Arc::default(),
            empty_ranges: EmptyRanges::default(),
            range_tombstones: RangeTombstones::default(),
            recent_writes: RecentWrites::default(),
            deadlines: Deadlines::new(clock),
            filters,
            keyspace_tables: KeyspaceTables::default(),
            merging: Merging::default(),
            health: Health::new(events.clone()),
            events,
            counters: Counters::default(),
            timers,
            memory,
            alarm,
            scrub: ScrubFigures::default(),
            short_calls: AtomicU32::default(),
            is_scratch,
        }))
    }

    /// Whether a table may come to be otherwise than it is by being written again, whatever versions it has: filters
    /// meet it, its operands are folded, or its keyspaces want other tables.
    pub fn may_change_tables(&self) -> bool {
        self.filters.are_there() || self.merging.may_have_any() || self.keyspace_tables.were_any()
    }

    /// Blocks in memory.
    pub fn cache(&self) -> &Arc<BlockCache> {
        self.memory.cache()
    }

    /// Does what is due now and then: decides again how tables are read, and has them compared.
    pub fn look_at_clock(&self) {
        let now = self.env.clock.now();
        self.table_reader.reconsider(&*self.fs, now);
        self.alarm.look(now);
    }

    /// The same for something so short that a look at the clock is a good part of it: most calls do nothing.
    pub fn look_at_clock_seldom(&self) {
        // Beside others some calls may not count.
        let calls = self.short_calls.load(Ordering::Relaxed);
        self.short_calls.store(calls.wrapping_add(1), Ordering::Relaxed);
        if calls.is_multiple_of(SHORT_CALLS) {
            self.look_at_clock();
        }
    }

    /// A point read begins: it is counted, and perhaps timed.
    #[inline]
    pub fn begin_get(&self) -> Timing<'_> {
        self.counters.gets.add(1);
        self.timers.get()
    }

    /// Waits for `delay`, to throttle a writer, and counts it.
    pub fn slow_down(&self, delay: Duration) {
        if !delay.is_zero() {
            self.env.clock.sleep(delay);
            self.note_stall(delay, false);
        }
    }

    /// Does what a writer has to wait for, and counts the time.
    pub fn stalled(&self, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let _span = tracing::debug_span!("stall").entered();
        let start = self.env.clock.now();
        let outcome = wait();
        self.note_stall(self.env.clock.now() - start, true);
        outcome
    }

    /// The metered file system.
    pub fn fs(&self) -> &dyn Fs {
        &*self.fs
    }
}
