//! A run: one database, one killed process after another.

use std::fmt::{self, Display};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use terrace::env::RealPm;
use terrace::{Db, EngineKind, Env, PoolChoice};
use terrace_base::rng::Rng;

use super::child::Task;
use super::judge::{Expected, Verdict};
use super::ops::THREADS;
use crate::harness::{Map, copy_files};

/// Operations of each thread of a process, at most.
const MAX_OPS: u64 = 600;

/// When a process is killed: this many turns of an empty loop after it has said something.
#[derive(Debug, Clone, Copy)]
struct Axe {
    after: Heard,
    turns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Opening,
    Acknowledgements(u64),
    Closing,
}

/// Where what a killed process left is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Court {
    /// Where it is; it is closed in order afterwards.
    InPlace,
    /// On a copy: the next process finds what this one left.
    Copy,
    /// On a copy that was repaired.
    RepairedCopy,
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Tally {
    kills: u64,
    opening: u64,
    closing: u64,
    acknowledged: u64,
    in_flight: u64,
    done: u64,
    copies: u64,
    repairs: u64,
    /// The most buckets that were found.
    buckets: u64,
}

/// One database and what it must hold.
pub struct Run {
    dir: TempDir,
    engine: EngineKind,
    pool: PoolChoice,
    seed: u64,
    rng: Rng,
    session: u64,
    expected: Map,
    tally: Tally,
}

impl Run {
    /// A run on an empty directory.
    pub fn new(engine: EngineKind, pool: PoolChoice, seed: u64) -> Run {
        let dir = temporary();
        std::fs::create_dir(dir.path().join("db")).unwrap();
        let (rng, tally) = (Rng::new(seed), Tally::default());
        Run { dir, engine, pool, seed, rng, session: 0, expected: Map::new(), tally }
    }

    /// Kills and judges until `kills` processes were killed; what happened, as a report.
    pub fn kill(mut self, kills: u64) -> impl Display {
        while self.tally.kills < kills {
            self.session += 1;
            let (task, axe) = self.plan();
            let acknowledged = self.watch(&task, axe);
            let court = match self.rng.below(6) {
                0..3 => Court::InPlace,
                3..5 => Court::Copy,
                _ => Court::RepairedCopy,
            };
            let outcome = std::panic::catch_unwind(|| self.judge(&task, acknowledged, court));
            let Ok(verdict) = outcome else {
                let (seed, session, dir) = (self.seed, self.session, self.dir.keep());
                panic!("seed {seed}, process {session}, {axe:?}, {court:?}; kept in {}", dir.display());
            };
            self.count(&verdict, acknowledged, court);
            self.expected = verdict.found;
        }
        let is_split = self.engine != EngineKind::Wip || self.tally.buckets > 1;
        assert!(is_split || kills < 10, "no bucket was ever split: {}", self.tally);
        self.tally
    }

    fn plan(&mut self) -> (Task, Axe) {
        let ops = 1 + self.rng.below(MAX_OPS);
        let after = match self.rng.below(10) {
            0 => Heard::Opening,
            1 => Heard::Closing,
            _ => Heard::Acknowledgements(self.rng.below(THREADS as u64 * ops)),
        };
        let most = 1 << self.rng.below(if after == Heard::Opening { 19 } else { 16 });
        let axe = Axe { after, turns: self.rng.below(most) };
        let Run { engine, pool, seed, session, .. } = self;
        let dir = self.dir.path().join("db");
        (Task { dir, engine: *engine, pool: pool.clone(), seed: *seed, session: *session, ops }, axe)
    }

    /// Runs a process until it is killed or done; returns what each thread acknowledged.
    fn watch(&mut self, task: &Task, axe: Axe) -> [u64; THREADS] {
        let mut child = task.start();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut acknowledged, mut killed) = (String::new(), [0; THREADS], false);
        while lines.read_line(&mut line).unwrap() > 0 {
            let mut heard = None;
            match line.strip_suffix('\n').unwrap_or_default() {
                "@opening" => heard = Some(Heard::Opening),
                "@closing" => heard = Some(Heard::Closing),
                other => {
                    if let Some(thread) = other.strip_prefix("@ack ") {
                        acknowledged[thread.parse::<usize>().unwrap()] += 1;
                    }
                }
            }
            let enough = matches!(axe.after, Heard::Acknowledgements(n) if n < acknowledged.iter().sum());
            if !killed && (heard == Some(axe.after) || enough) {
                (0..axe.turns).for_each(|_| std::hint::spin_loop());
                child.kill().unwrap();
                killed = true;
            }
            line.clear();
        }
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        // It may have been done before the axe fell; failing is another matter.
        assert!(status.code().is_none_or(|code| code == 0), "process {} failed: {said}", self.session);
        if status.code().is_none() {
            self.tally.kills += 1;
            self.tally.opening += u64::from(axe.after == Heard::Opening);
            self.tally.closing += u64::from(axe.after == Heard::Closing);
        }
        acknowledged
    }

    fn judge(&self, task: &Task, acknowledged: [u64; THREADS], court: Court) -> Verdict {
        let Task { seed, session, ops, .. } = *task;
        let expected = Expected { before: &self.expected, seed, session, ops, acknowledged };
        if court == Court::InPlace {
            return expected.judge(&Db::open(&task.dir, task.options()).unwrap());
        }
        let copy = temporary();
        copy_files(&task.dir, copy.path());
        if court == Court::RepairedCopy {
            self.kill_repairs(task, copy.path());
            let report = Db::repair_in(env(), copy.path(), task.options());
            if matches!(&report, Err(e) if e.to_string().contains("no database")) && self.expected.is_empty()
            {
                return Verdict::default();
            }
            assert_eq!(report.unwrap().lost, Vec::<String>::new());
        }
        expected.judge(&Db::open_in(env(), copy.path(), task.options()).unwrap())
    }

    /// Has repairs of the database in `dir` begun and killed.
    fn kill_repairs(&self, task: &Task, dir: &Path) {
        let mut rng = Rng::new(task.seed ^ task.session);
        for _ in 0..rng.below(4) {
            let repair = Task { dir: dir.into(), ops: 0, ..task.clone() };
            let mut child = repair.start();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            if lines.map_while(Result::ok).any(|line| line == "@opening") {
                let most = 1 << (10 + rng.below(14));
                (0..rng.below(most)).for_each(|_| std::hint::spin_loop());
            }
            // It may have ended; whether it has failed says the one that is let be.
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    fn count(&mut self, verdict: &Verdict, acknowledged: [u64; THREADS], court: Court) {
        let tally = &mut self.tally;
        tally.acknowledged += acknowledged.iter().sum::<u64>();
        tally.in_flight += verdict.in_flight;
        tally.done += verdict.done;
        tally.buckets = tally.buckets.max(verdict.buckets);
        tally.copies += u64::from(court != Court::InPlace);
        tally.repairs += u64::from(court == Court::RepairedCopy);
    }
}

/// A directory in memory, where there is one: what a kill takes does not depend on the medium, and nobody
/// has to wait for it.
fn temporary() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let place = if shared_memory.is_dir() { shared_memory.into() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("terrace-kills-").tempdir_in(place).unwrap()
}

/// Where a copy of a pool is taken for the pool itself, which nobody was writing to when it was made.
pub(super) fn env() -> Env {
    Env { pm: Arc::new(RealPm::with_copies()), ..Env::real(2) }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { kills, opening, closing, acknowledged, in_flight, done, copies, repairs, buckets } = self;
        write!(
            f,
            "{kills} kills ({opening} while opening, {closing} while closing), {acknowledged} operations \
             acknowledged and all there, {in_flight} in flight of which {done} were done; {copies} judged on \
             copies, {repairs} of them repaired; {buckets} buckets at most"
        )
    }
}
