//! How a database is opened: the options that matter, and those of each engine.
//!
//! | file | what it owns |
//! |---|---|
//! | `kind.rs` | the engines |
//! | `slm.rs`, `lsm.rs`, `turbo.rs`, `sptree.rs`, `split.rs`, `wip.rs`, `lab.rs`, `tlsm.rs` | the options of one engine, and their names and ranges |
//! | `pool.rs` | the place of the pool |
//! | `table_reads.rs` | how tables are read |
//! | `table_settings.rs` | settings of a keyspace's tables by name |
//! | `settings.rs` | the allowed values of named options |
//! | `list.rs` | all options with their values, as a list and as a file |
//! | `file.rs` | options read from a file |

mod file;
mod kind;
mod lab;
mod list;
mod lsm;
mod pool;
mod settings;
mod slm;
mod split;
mod sptree;
mod table_reads;
mod table_settings;
#[cfg(test)]
mod tests;
mod tlsm;
mod turbo;
mod wip;

use terrace_base::{Error, Result};
pub use terrace_table::Compression;

use crate::events::Listeners;
use crate::keyspaces::CompactionFilter;

pub use self::kind::{BufferPlace, EngineKind};
pub use self::lab::{LabOptions, LabTrees};
pub use self::list::OptionInfo;
pub use self::lsm::{LogPlace, LsmOptions};
pub use self::pool::PoolChoice;
pub(crate) use self::pool::{POOL_NAME, lasting};
use self::settings::{EngineOptions, KIB, MIB, Setting, Slot, TIB};
pub use self::slm::SlmOptions;
pub use self::split::SplitOptions;
pub use self::sptree::SptreeOptions;
pub use self::table_reads::TableReads;
pub use self::tlsm::{ListDesign, TieringKind, TlsmOptions};
pub use self::turbo::TurboOptions;
pub use self::wip::{BucketMemtableKind, WipOptions};

/// The most tables open at a time if the user has not set a number.
const MOST_OPEN_TABLES: u64 = 1 << 16;

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
    /// The place of the pool.
    pub pool: PoolChoice,
    /// DRAM for block cache, B-trees over memtables, open tables, flush and compaction, in bytes. `stats` gives the
    /// breakdown. Memtables and tables become smaller if they would need too much of it.
    pub memory_budget: u64,
    /// The size limit of the pool, in bytes. It bounds what the database may hold: the page of limits says
    /// how much an engine needs (`docs/limits.md`).
    pub pm_bytes: u64,
    /// Whether every write waits until it survives a power cut (on media where that is not free).
    pub sync: bool,
    /// Threads for flush and compaction. Databases of one process that ask for the same number share them;
    /// they are started only when there is work.
    pub background_threads: usize,
    /// Most tables whose files are open at a time; a table is opened when it is read, and the least recently
    /// read ones are closed for others. 0 selects half of what the process may have open (`ulimit -n`), up to
    /// 65536: the rest is for the program itself, logs, jobs and other databases.
    pub max_open_tables: usize,
    /// Whether commit logs in files are written through a mapping, if the file system suits that: a write is
    /// then a copy, without a system call. A write survives the same failures either way. `slm` gathers
    /// writes for a call.
    pub map_logs: bool,
    /// How tables are read. The option changes the costs, and not the results.
    pub table_reads: TableReads,
    /// Compression of table blocks.
    pub compression: Compression,
    /// Refuses all writes, and writes nothing itself: a full disk, a file system mounted read-only or files that this user
    /// may not write are no obstacle. The database must exist. The effects of an unclean end are repaired
    /// only in memory; if the pool is on a device, only opening it for writing does that.
    pub read_only: bool,
    /// Creates the database if there is none.
    pub create_if_missing: bool,
    /// Bytes of an allocation unit of the pool, a power of two; fixed when the pool is created. 0: 64 KiB, and 32 KiB
    /// in `slm` on an ordinary file, if `pm_bytes` is 1 GiB or more.
    pub pool_extent_bytes: u64,
    /// The days in which all tables are compared with their checksums once, in the background, read or not: what has
    /// rotted is told to `listeners`, and by [`Stats::scrub`](crate::Stats::scrub). 0: never. A database that is open
    /// for less than ten minutes does nothing of the sort, nor does one that is opened to be read.
    pub scrub_days: u32,
    /// The most bytes that this reads in a second.
    pub scrub_rate_bytes: u64,
    /// Whether it is measured how long operations take: see [`Latencies`](crate::Latencies).
    pub latencies: bool,
    /// Who hears of flushes, compactions, stalls and failures.
    pub listeners: Listeners,
    /// What compactions let go of the default keyspace's entries. `None`: nothing.
    pub compaction_filter: Option<CompactionFilter>,
    /// The `slm` engine's own options.
    pub slm: SlmOptions,
    /// The `lsm` engine's own options.
    pub lsm: LsmOptions,
    /// The `turbo` engine's own options.
    pub turbo: TurboOptions,
    /// The `sptree` engine's own options.
    pub sptree: SptreeOptions,
    /// The `split` engine's own options.
    pub split: SplitOptions,
    /// The `wip` engine's own options.
    pub wip: WipOptions,
    /// The `lab` engine's own options.
    pub lab: LabOptions,
    /// The `tlsm` engine's own options.
    pub tlsm: TlsmOptions,
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
            max_open_tables: 0,
            map_logs: true,
            table_reads: TableReads::default(),
            compression: Compression::None,
            read_only: false,
            create_if_missing: true,
            pool_extent_bytes: 0,
            scrub_days: 30,
            scrub_rate_bytes: 8 << 20,
            latencies: true,
            listeners: Listeners::default(),
            compaction_filter: None,
            slm: SlmOptions::default(),
            lsm: LsmOptions::default(),
            turbo: TurboOptions::default(),
            sptree: SptreeOptions::default(),
            split: SplitOptions::default(),
            wip: WipOptions::default(),
            lab: LabOptions::default(),
            tlsm: TlsmOptions::default(),
        }
    }
}

/// The options of each engine, out of all.
macro_rules! of_engines {
    ($options:ident) => {
        [
            &mut $options.slm as &mut dyn EngineOptions,
            &mut $options.lsm,
            &mut $options.turbo,
            &mut $options.sptree,
            &mut $options.split,
            &mut $options.wip,
            &mut $options.lab,
            &mut $options.tlsm,
        ]
    };
}

impl Options {
    /// Sets an option by name, such as `slm.block_bytes` to `4096`. Sizes are in bytes, or have a unit: `4KiB`.
    /// [`list`](Self::list) has the names, and the values that each may have.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such option, with the one that may be meant and a list of those that there
    /// are, or if it cannot have that value, with its range. Opening refuses combinations that cannot work together.
    ///
    /// ```
    /// let mut options = terrace::Options::default();
    /// options.set("slm.block_bytes", "4096")?;
    /// assert_eq!(options.slm.block_bytes, 4096);
    /// let refused = options.set("slm.block_bites", "4096").unwrap_err();
    /// assert!(refused.to_string().contains("no option slm.block_bites, but slm.block_bytes"));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut all = self.settings();
        if let Some(setting) = all.iter_mut().find(|setting| setting.name == name) {
            return setting.set(value);
        }
        // For a named engine, its own options; otherwise all.
        let engine = name.split_once('.').map(|(engine, _)| format!("{engine}."));
        let of_engine = |setting: &&Setting<'_>| engine.as_ref().is_some_and(|e| setting.name.starts_with(e));
        let mut names: Vec<&str> = all.iter().filter(of_engine).map(|setting| setting.name).collect();
        if names.is_empty() {
            names = all.iter().map(|setting| setting.name).collect();
        }
        let meant = nearest(name, &names).map(|meant| format!(", but {meant}")).unwrap_or_default();
        Err(Error::invalid(format!("there is no option {name}{meant}; there are: {}", names.join(", "))))
    }

    /// The options of the chosen engine alone: their names and values, as [`set`](Self::set) takes them.
    ///
    /// ```
    /// let options = terrace::Options { engine: terrace::EngineKind::Lsm, ..Default::default() };
    /// assert!(options.of_engine().contains(&("lsm.memtables", "2".to_string())));
    /// ```
    pub fn of_engine(&self) -> Vec<(&'static str, String)> {
        let prefix = format!("{}.", self.engine.name());
        let mut all = self.clone();
        let own = all.settings().into_iter().filter(|setting| setting.name.starts_with(&prefix));
        own.map(|setting| (setting.name, setting.slot.shown())).collect()
    }

    /// Refuses values out of their ranges, and those that cannot work together, by name. Opening does so, too.
    ///
    /// # Errors
    /// `InvalidArgument`, which names the option and what it may be.
    ///
    /// ```
    /// let mut options = terrace::Options::default();
    /// options.set("lsm.l0_stop_tables", "10")?; // each alone may be so
    /// assert!(options.validate().unwrap_err().to_string().contains("must ascend"));
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn validate(&self) -> Result<()> {
        let mut options = self.clone();
        options.settings().iter().try_for_each(Setting::check)?;
        let extent_bytes = self.pool_extent_bytes;
        if extent_bytes != 0 && (!extent_bytes.is_power_of_two() || extent_bytes < 4 * KIB) {
            return Err(Error::invalid("pool_extent_bytes must be 0, or a power of two from 4096 on"));
        }
        self.check_pool_size()?;
        if self.compaction_filter.is_some() {
            self.engine.check_compacts()?;
        }
        match options.of_engines().into_iter().find_map(|engine| engine.contradiction()) {
            Some(message) => Err(Error::invalid(message)),
            None => Ok(()),
        }
    }

    /// The options of each engine.
    fn of_engines(&mut self) -> [&mut dyn EngineOptions; EngineKind::ALL.len()] {
        of_engines!(self)
    }

    /// Every option, by its name.
    fn settings(&mut self) -> Vec<Setting<'_>> {
        let set = |name, slot| Setting { name, slot };
        let mut all = vec![
            set("engine", Slot::OneNamed(&mut self.engine)),
            set("pool", Slot::Pool(&mut self.pool)),
            set("memory_budget", Slot::Whole(&mut self.memory_budget, KIB..=16 * TIB)),
            set("pm_bytes", Slot::Whole(&mut self.pm_bytes, 64 * KIB..=16 * TIB)),
            set("sync", Slot::Flag(&mut self.sync)),
            set("background_threads", Slot::Whole(&mut self.background_threads, 1..=256)),
            set("max_open_tables", Slot::Whole(&mut self.max_open_tables, 0..=1_000_000)),
            set("map_logs", Slot::Flag(&mut self.map_logs)),
            set("table_reads", Slot::OneNamed(&mut self.table_reads)),
            set("compression", Slot::OneNamed(&mut self.compression)),
            set("read_only", Slot::Flag(&mut self.read_only)),
            set("create_if_missing", Slot::Flag(&mut self.create_if_missing)),
            set("pool_extent_bytes", Slot::Whole(&mut self.pool_extent_bytes, 0..=64 * MIB)),
            set("scrub_days", Slot::Whole(&mut self.scrub_days, 0..=3650)),
            set("scrub_rate_bytes", Slot::Whole(&mut self.scrub_rate_bytes, 4 * KIB..=TIB)),
            set("latencies", Slot::Flag(&mut self.latencies)),
        ];
        all.extend(of_engines!(self).into_iter().flat_map(EngineOptions::settings));
        all
    }

    /// The number of tables that may be open at a time.
    pub(crate) fn most_open_tables(&self) -> usize {
        match self.max_open_tables {
            0 => share_of(terrace_disk::descriptor_limit()),
            asked => asked,
        }
    }

    /// Refuses a pool too small for what the engine fills at a time: memtables if they lie there, else extents.
    fn check_pool_size(&self) -> Result<()> {
        let (least, smaller) = match self.engine {
            EngineKind::Slm => {
                (4 * self.slm.memtable_bytes.min(MIB), "four times a smaller slm.memtable_bytes")
            }
            _ if self.pool_extent_bytes == 0 => (4 * MIB, "64 times a smaller pool_extent_bytes"),
            _ => (64 * self.pool_extent_bytes.min(64 * KIB), "64 times a smaller pool_extent_bytes"),
        };
        if self.pm_bytes < least {
            return Err(Error::invalid(format!("pm_bytes must be at least 4 MiB, or {smaller}")));
        }
        Ok(())
    }
}

/// The name that `wrong` may stand for: a third of its letters differ at most.
fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
    let distance = |name: &str| strsim::damerau_levenshtein(wrong, name);
    // An enemy's name may be long, and comparing costs its length times that of each option.
    let near = names.iter().filter(|name| wrong.len() <= 2 * name.len());
    let (distance, name) = near.map(|name| (distance(name), *name)).min()?;
    (3 * distance <= wrong.len()).then_some(name)
}

/// Tables that may be open in a process with this limit of open files.
fn share_of(descriptors: Option<u64>) -> usize {
    let half = descriptors.map_or(MOST_OPEN_TABLES, |limit| limit / 2);
    half.clamp(1, MOST_OPEN_TABLES) as usize
}

/// Options of one write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Waits until the write survives a power cut, on media where the default does not. So does what a conditional
    /// write is told of that does not take place.
    pub sync: bool,
}

impl WriteOptions {
    /// Waits until the write survives a power cut.
    pub const SYNC: WriteOptions = WriteOptions { sync: true };
}
