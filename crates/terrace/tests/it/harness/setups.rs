//! Sets of options under which the same operations must give the same answers.

use terrace::{
    BucketMemtableKind, Compression, EngineKind, LabOptions, LabTrees, ListDesign, LogPlace, LsmOptions,
    Options, SlmOptions, SplitOptions, SptreeOptions, TableReads, TieringKind, TlsmOptions, TurboOptions,
    WipOptions,
};
use terrace_pmem::Granularity;

use super::Engine;

/// What does the background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// The thread that waits for it: every run is the same.
    Inline,
    /// This many threads.
    Threads(usize),
}

/// A kind of machine and the options of the database on it.
#[derive(Debug, Clone)]
pub struct Setup {
    /// What it is called when a test fails.
    pub name: &'static str,
    /// What its persistent memory is like.
    pub granularity: Granularity,
    /// What does the background work.
    pub background: Background,
    options: Options,
}

impl Setup {
    /// The options to open the database with.
    pub fn options(&self) -> Options {
        self.options.clone()
    }

    /// Memtables large enough never to be flushed by themselves.
    pub fn roomy(engine: &Engine, granularity: Granularity) -> Setup {
        let mut setup = Setup::tiny("roomy", engine);
        setup.granularity = granularity;
        setup.options.slm.memtable_bytes = 1 << 20;
        setup.options.lsm.memtable_bytes = 1 << 20;
        setup.options.lab.levels.memtable_bytes = 1 << 20;
        setup.options.tlsm.levels.memtable_bytes = 1 << 20;
        setup.options.wip.memtable_bytes = 1 << 20;
        setup.options.wip.most_memtable_bytes = 1 << 20;
        setup.options.wip.bucket_bytes = 8 << 20;
        setup.options.wip.log_bytes = 8 << 20;
        setup.options.split.records_bytes = 0;
        setup.options.split.boundary_bytes = 4096;
        setup
    }

    /// Memtables and tables so small that flushes and compactions happen all the time.
    pub fn tiny(name: &'static str, engine: &Engine) -> Setup {
        let slm = SlmOptions {
            memtable_bytes: 4096,
            table_bytes: 2048,
            block_bytes: 256,
            garbage_share: 0.1,
            ..SlmOptions::default()
        };
        let options = Options {
            engine: engine.kind,
            memory_budget: 1 << 20,
            // Tables are closed and opened again all the time.
            max_open_tables: 2,
            pm_bytes: 8 << 20,
            pool_extent_bytes: 4096,
            // Which operation looks at the clock is not the same in every run.
            scrub_days: 0,
            slm,
            ..tiny_engines()
        };
        Setup { name, granularity: Granularity::CacheLine, background: Background::Inline, options }
    }

    /// The same on other persistent memory, or on none.
    pub fn on(self, granularity: Granularity) -> Setup {
        self.with(|s| s.granularity = granularity)
    }

    fn with(mut self, change: impl FnOnce(&mut Setup)) -> Setup {
        change(&mut self);
        self
    }

    /// The same with background threads.
    pub fn threaded(self, threads: usize) -> Setup {
        self.with(|s| s.background = Background::Threads(threads))
    }
}

/// Options with those of every engine that are small in the same way in all suites.
pub fn tiny_engines() -> Options {
    Options {
        lsm: tiny_lsm(),
        turbo: tiny_turbo(),
        sptree: tiny_sptree(),
        split: tiny_split(),
        wip: tiny_wip(),
        lab: tiny_lab(),
        tlsm: tiny_tlsm(),
        ..Options::default()
    }
}

/// Options of `lsm` with which a few keys fill tables on several levels.
pub fn tiny_lsm() -> LsmOptions {
    LsmOptions {
        memtable_bytes: 4096,
        table_bytes: 2048,
        block_bytes: 256,
        l0_tables: 2,
        l0_slowdown_tables: 3,
        l0_stop_tables: 6,
        base_level_bytes: 4096,
        level_multiplier: 3.0,
        ..LsmOptions::default()
    }
}

/// Options of `lab` with which a few keys fill the tree of values, and tables on several levels.
pub fn tiny_lab() -> LabOptions {
    LabOptions {
        levels: tiny_lsm(),
        value_tree_bytes: 8 << 10,
        hint_tree_bytes: 4 << 10,
        ..LabOptions::default()
    }
}

/// Options of `tlsm` with which a few keys fill lists on several levels, and tables below them.
pub fn tiny_tlsm() -> TlsmOptions {
    TlsmOptions { levels: tiny_lsm(), tiering: TieringKind::Leveled, pm_levels: 1, ..TlsmOptions::default() }
}

/// Options of `wip` with which a few keys fill levels, and buckets are split and joined.
pub fn tiny_wip() -> WipOptions {
    WipOptions {
        memtable_bytes: 2048,
        most_memtable_bytes: 4096,
        log_bytes: 16 << 10,
        sublevels: 2,
        min_sublevels: 2,
        jitter: 1,
        bucket_bytes: 12 << 10,
        split_into: 3,
        block_bytes: 256,
        ..WipOptions::default()
    }
}

/// The same with another kind of memtable for each of three seeds, where there are several kinds.
pub fn with_memtables_of(seed: u64, mut options: Options) -> Options {
    let kinds = [BucketMemtableKind::Adaptive, BucketMemtableKind::Skiplist, BucketMemtableKind::Hash];
    options.wip.memtable = kinds[(seed % 3) as usize];
    options.wip.freeze_on_overflow = seed % 3 == 2;
    options
}

/// Options of `turbo` with which few keys make shards grow.
fn tiny_turbo() -> TurboOptions {
    TurboOptions { shards: 4, initial_buckets: 1, probing_scope: 4 }
}

/// Options of `sptree` with which few keys split leaves.
fn tiny_sptree() -> SptreeOptions {
    SptreeOptions { leaf_entries: 6, ..SptreeOptions::default() }
}

/// Options of `split` with which a few keys are large, or migrate, and tables are rewritten.
pub fn tiny_split() -> SplitOptions {
    SplitOptions {
        boundary_bytes: 160,
        records_bytes: 6 << 10,
        run_bytes: 2048,
        block_bytes: 256,
        garbage_share: 0.1,
        max_merge_runs: 3,
        leaf_entries: 6,
        ..SplitOptions::default()
    }
}

/// Every set of options for `engine`.
pub fn setups(engine: &Engine) -> Vec<Setup> {
    let mut setups = common_setups(engine);
    if engine.kind.needs_memory() {
        setups.retain(|s| s.granularity != Granularity::Page);
    }
    if engine.kind.keeps_all_in_memory() {
        setups.retain(|s| !["always compacting", "one record a block, no cache"].contains(&s.name));
    }
    setups.extend(match engine.kind {
        EngineKind::Sptree => sptree_setups(engine),
        EngineKind::Split => split_setups(engine),
        EngineKind::Lsm => lsm_setups(engine),
        EngineKind::Lab => lab_setups(engine),
        EngineKind::Tlsm => tlsm_setups(engine),
        EngineKind::Wip => wip_setups(engine),
        _ => Vec::new(),
    });
    setups
}

fn sptree_setups(engine: &Engine) -> Vec<Setup> {
    vec![Setup::tiny("write buffers", engine).with(|s| {
        s.options.sptree.buffered = true;
        s.options.sptree.log_bytes = 4096;
    })]
}

fn split_setups(engine: &Engine) -> Vec<Setup> {
    let boundary = |name, bytes| Setup::tiny(name, engine).with(|s| s.options.split.boundary_bytes = bytes);
    vec![boundary("all in slots", 64), boundary("nothing in slots", 1 << 20)]
}

fn lsm_setups(engine: &Engine) -> Vec<Setup> {
    let in_files = Setup::tiny("log in files, synced", engine).with(|s| {
        s.options.lsm.log = LogPlace::Ssd;
        s.options.sync = true;
    });
    let in_parts = Setup::tiny("parts side by side", engine).with(|s| {
        s.options.background_threads = 4;
        s.options.lsm.table_bytes = 1024;
        s.options.lsm.filter_bits_per_key = 0;
    });
    vec![in_files, in_parts.threaded(4)]
}

fn lab_setups(engine: &Engine) -> Vec<Setup> {
    let trees = |name, trees| Setup::tiny(name, engine).with(|s| s.options.lab.trees = trees);
    let large = Setup::tiny("all values in the pool, threads", engine)
        .with(|s| (s.options.lab.value_tree_bytes, s.options.lab.hint_tree_bytes) = (1 << 20, 1 << 20));
    vec![trees("no trees", LabTrees::None), trees("no hints", LabTrees::Values), large.threaded(3)]
}

fn tlsm_setups(engine: &Engine) -> Vec<Setup> {
    let tiers = |name, tiering, list_bytes| {
        Setup::tiny(name, engine)
            .with(|s| (s.options.tlsm.tiering, s.options.tlsm.list_bytes) = (tiering, list_bytes))
    };
    let mut setups = vec![
        tiers("all in the pool", TieringKind::None, 0),
        tiers("the oldest lists leave", TieringKind::Lru, 160 << 10),
        tiers("hardly any room for lists, threads", TieringKind::Lru, 24 << 10).threaded(3),
    ];
    setups.extend([ListDesign::Ps, ListDesign::Bac].map(|design| {
        tiers("each record by itself", TieringKind::Lru, 0).with(|s| {
            s.options.tlsm.design = design;
            s.options.tlsm.levels.filter_bits_per_key = 0;
        })
    }));
    setups
}

fn wip_setups(engine: &Engine) -> Vec<Setup> {
    let in_files = Setup::tiny("log in files, synced", engine).with(|s| {
        s.options.wip.log = LogPlace::Ssd;
        s.options.sync = true;
    });
    let skiplists = Setup::tiny("skiplists", engine).with(|s| {
        s.options.wip.memtable = BucketMemtableKind::Skiplist;
        s.options.wip.read_aware = false;
    });
    let full_lines = Setup::tiny("full lines are flushed", engine).with(|s| {
        s.options.background_threads = 4;
        s.options.wip.memtable = BucketMemtableKind::Hash;
        s.options.wip.freeze_on_overflow = true;
        s.options.wip.filter_bits_per_key = 0;
    });
    vec![in_files, skiplists, full_lines.threaded(4)]
}

fn common_setups(engine: &Engine) -> Vec<Setup> {
    vec![
        Setup::tiny("tiny", engine),
        Setup::tiny("eadr", engine).with(|s| s.granularity = Granularity::Byte),
        Setup::tiny("page", engine).with(|s| s.granularity = Granularity::Page),
        Setup::tiny("page, synced, compressed", engine).with(|s| {
            s.granularity = Granularity::Page;
            s.options.sync = true;
            s.options.compression = Compression::Lz4;
        }),
        Setup::tiny("always compacting", engine).with(|s| {
            s.options.slm.live_key_threshold = 0.99;
            s.options.slm.garbage_share = 0.0;
            s.options.slm.unasked_leaf_scans = true;
            s.options.slm.leaf_scan_files = 1;
            s.options.slm.sequentiality_keys = 3;
            s.options.slm.sequentiality_files = 1;
            s.options.slm.max_merge_files = 3;
            s.options.slm.table_bytes = 1024;
            s.options.lsm.table_bytes = 1024;
            s.options.lsm.l0_tables = 1;
            s.options.lsm.base_level_bytes = 1024;
            s.options.lsm.level_multiplier = 2.0;
            s.options.lab.levels = s.options.lsm.clone();
            s.options.tlsm.levels = s.options.lsm.clone();
            s.options.split.records_bytes = 1;
            s.options.split.garbage_share = 0.0;
            s.options.split.live_threshold = 0.99;
            s.options.split.run_bytes = 1024;
            s.options.split.sequentiality_keys = 3;
            s.options.split.sequentiality_runs = 1;
            s.options.split.leaf_scan_runs = 1;
        }),
        Setup::tiny("one record a block, no cache", engine).with(|s| {
            s.options.slm.block_bytes = 1;
            s.options.lsm.block_bytes = 1;
            s.options.lab.levels.block_bytes = 1;
            s.options.tlsm.levels.block_bytes = 1;
            s.options.split.block_bytes = 1;
            s.options.memory_budget = 1024;
            s.options.table_reads = TableReads::Calls;
        }),
        Setup::roomy(engine, Granularity::CacheLine),
        Setup::tiny("threads", engine).threaded(2),
    ]
}
