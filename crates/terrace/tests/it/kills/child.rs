//! The process that is killed: it opens the database, writes with two threads and says what it has done.
//!
//! ```text
//! @opening       before the database is opened
//! @open          after
//! @ack THREAD    the thread's next operation has returned
//! @closing       both threads are done; the database is being closed
//! @closed        and that was all
//! ```
//!
//! Or it repairs the database, and says only that it begins and ends.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use terrace::{
    BucketMemtableKind, Db, EngineKind, LabOptions, LabTrees, Options, PoolChoice, Profile, SlmOptions,
    TableReads, TieringKind, TlsmOptions, WipOptions,
};
use terrace_base::rng::Rng;

use super::ops::{Op, Ops, THREADS};

/// The variable that makes this binary the process that is killed.
pub const TASK: &str = "TERRACE_KILLS_TASK";

/// What the process is to do.
#[derive(Debug, Clone)]
pub struct Task {
    /// The database.
    pub dir: PathBuf,
    /// Its engine.
    pub engine: EngineKind,
    /// Where its pool lies.
    pub pool: PoolChoice,
    /// The seed of the run.
    pub seed: u64,
    /// Which process of the run this is.
    pub session: u64,
    /// Operations of each thread; none if the process is to repair the database.
    pub ops: u64,
}

impl Task {
    /// Starts the process.
    pub fn start(&self) -> Child {
        let pool = if self.pool == PoolChoice::Auto { "auto" } else { "dram" };
        let dir = self.dir.to_str().expect("a path in UTF-8");
        let engine = self.engine.name();
        let task = format!("{pool}\n{}\n{}\n{}\n{engine}\n{dir}", self.seed, self.session, self.ops);
        let test = format!("{}::the_process_that_is_killed", module_path!().rsplit_once("::").unwrap().0);
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test.split_once("::").unwrap().1, "--nocapture", "--test-threads=1"])
            .env(TASK, task)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Reads what [`start`](Task::start) has written.
    pub fn parse(text: &str) -> Task {
        let parts: Vec<&str> = text.splitn(6, '\n').collect();
        let numbers: Vec<u64> = parts[1..4].iter().map(|n| n.parse().unwrap()).collect();
        let pool = match parts[0] {
            "auto" => PoolChoice::Auto,
            profile => PoolChoice::Emulated { path: None, profile: Profile::parse(profile).unwrap() },
        };
        let [seed, session, ops] = numbers[..] else { panic!("a task has three numbers") };
        let engine = EngineKind::parse(parts[4]).unwrap();
        Task { dir: parts[5].into(), engine, pool, seed, session, ops }
    }

    /// Whatever can go on in the background does.
    pub fn options(&self) -> Options {
        let slm = SlmOptions {
            memtable_bytes: 4096,
            table_bytes: 4096,
            block_bytes: 256,
            garbage_share: 0.1,
            ..SlmOptions::default()
        };
        Options {
            engine: self.engine,
            lsm: crate::harness::tiny_lsm(),
            pool: self.pool.clone(),
            memory_budget: 1 << 20,
            pm_bytes: 8 << 20,
            pool_extent_bytes: 4096,
            map_logs: !self.seed.wrapping_add(self.session).is_multiple_of(4),
            table_reads: match self.seed.wrapping_add(self.session) % 3 {
                0 => TableReads::Calls,
                _ => TableReads::Mapped,
            },
            slm,
            wip: self.buckets(),
            tlsm: self.lists(),
            lab: self.trees(),
            ..Options::default()
        }
    }

    /// Runs lie elsewhere in the next process.
    fn lists(&self) -> TlsmOptions {
        let mut rng = Rng::new(self.seed ^ self.session.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let tierings = [TieringKind::None, TieringKind::Leveled, TieringKind::Lru, TieringKind::Lru];
        let tiering = tierings[rng.below(4) as usize];
        TlsmOptions {
            tiering,
            // Where nothing may become a table there is to be room.
            list_bytes: if tiering == TieringKind::None { 0 } else { [0, 256 << 10][rng.below(2) as usize] },
            ..crate::harness::tiny_tlsm()
        }
    }

    /// The trees fill up, and the next process wants others.
    fn trees(&self) -> LabOptions {
        let mut rng = Rng::new(self.seed ^ self.session.wrapping_mul(0x1656_67b1_9e37_79f9));
        let trees = [LabTrees::Both, LabTrees::Both, LabTrees::Both, LabTrees::Values, LabTrees::None];
        LabOptions {
            trees: trees[rng.below(5) as usize],
            value_tree_bytes: (4 << 10) << rng.below(4),
            ..crate::harness::tiny_lab()
        }
    }

    /// Buckets are split and joined, and the next process wants them otherwise.
    fn buckets(&self) -> WipOptions {
        let mut rng = Rng::new(self.seed ^ self.session.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let kinds = [BucketMemtableKind::Hash, BucketMemtableKind::Skiplist, BucketMemtableKind::Adaptive];
        let sublevels = 2 + rng.below(3) as usize;
        WipOptions {
            memtable: kinds[rng.below(3) as usize],
            freeze_on_overflow: rng.one_in(4),
            log_bytes: (16 << 10) << rng.below(5),
            sublevels,
            min_sublevels: 2,
            bucket_bytes: (12 << 10) << rng.below(4),
            split_into: 2 + rng.below(5) as usize,
            filter_bits_per_key: [0, 10][rng.below(2) as usize],
            ..crate::harness::tiny_wip()
        }
    }
}

/// Carries out `task`, and is killed meanwhile.
pub fn carry_out(task: &Task) {
    say("\n@opening");
    if task.ops == 0 {
        Db::repair_in(super::run::env(), &task.dir, task.options()).unwrap();
        return say("@closed");
    }
    let db = Db::open(&task.dir, task.options()).unwrap();
    say("@open");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = &db;
            let ops = Ops::new(task.seed, task.session, thread).take(task.ops as usize);
            scope.spawn(move || write_as(db, thread, ops));
        }
    });
    say("@closing");
    db.close().unwrap();
    say("@closed");
}

fn write_as(db: &Db, thread: usize, ops: impl Iterator<Item = Op>) {
    let mut held = None;
    for (i, op) in ops.enumerate() {
        // Snapshots, so that there are version chains; each is held for a while and dropped.
        match i % 64 {
            20 => held = Some(db.snapshot()),
            60 => held = None,
            _ => {}
        }
        op.run(db).unwrap();
        say(&format!("@ack {thread}"));
    }
    drop(held);
}

/// One write to the pipe, which takes a line wholly or not at all.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}
