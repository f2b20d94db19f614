//! One index on one pool, through a list of steps.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_base::clock::{Clock, SystemClock};
use terrace_base::{Error, Result};
use terrace_pmem::{MediaRequest, Pool, PoolOptions, Profile};

use super::pairs::{PairKeys, Pairs};
use super::phase::{Ground, Op, run_phase};
use super::phase_outcome::PhaseOutcome;
use super::subject::{Setup, Subject, Visitor};

/// One step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Operations of one kind, measured.
    Run(Op),
    /// How far probes go.
    Probes,
    /// Drops the index and its pool without closing them and opens both again.
    Recover,
    /// Verifies the index's invariants.
    Check,
    /// Merges buffered changes into the structure; its PM traffic counts for the phase before.
    Flush,
    /// Ends the process by SIGKILL, with everything open.
    Die,
}

impl Step {
    /// The step of that name.
    pub fn parse(text: &str) -> Option<Step> {
        Some(match text {
            "probes" => Step::Probes,
            "recover" => Step::Recover,
            "check" => Step::Check,
            "flush" => Step::Flush,
            "die" => Step::Die,
            op => Step::Run(op.parse().ok()?),
        })
    }
}

/// Where measured pools lie.
#[derive(Debug, Clone)]
pub struct Place {
    /// The file or device.
    pub path: PathBuf,
    /// The profile that it emulates, or `None` to use it as it is.
    pub profile: Option<Profile>,
}

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Where.
    pub place: Place,
    /// Bytes of the pool that are touched beforehand; it may grow.
    pub pool_bytes: u64,
    /// Whether blocks written are counted.
    pub count_xplines: bool,
    /// The shape of pairs.
    pub pairs: Pairs,
    /// Changes that a write buffer takes, where there are buffers; the structure's own figure if there is none.
    pub buffer: Option<usize>,
    /// Pairs an insert phase inserts.
    pub num: u64,
    /// Most operations of a read, miss or scan phase.
    pub reads: u64,
    /// Pairs a scan asks for.
    pub scan: usize,
    /// Keys that reads announce before they read them, where an index makes use of that.
    pub ahead: u64,
    /// Threads.
    pub threads: usize,
    /// The steps.
    pub steps: Vec<Step>,
}

impl Spec {
    fn setup(&self) -> Setup {
        Setup { pairs: self.pairs, buffer: self.buffer }
    }
}

/// How far probes for absent keys went.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Probes {
    /// Pairs in the index.
    pub pairs: u64,
    /// Share of slots in use.
    pub load_factor: f64,
    /// Probes that went `i + 1` buckets far.
    pub histogram: Vec<u64>,
}

impl Probes {
    /// Buckets looked at on average.
    pub fn average(&self) -> f64 {
        let all: u64 = self.histogram.iter().sum();
        let sum: u64 = self.histogram.iter().zip(1..).map(|(n, distance)| n * distance).sum();
        sum as f64 / all.max(1) as f64
    }
}

/// Times of an opening after an unclean stop, in milliseconds from its beginning.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Recovery {
    /// Pairs in the index.
    pub pairs: u64,
    /// Until the pool was open.
    pub pool_ms: f64,
    /// Until the index was open.
    pub open_ms: f64,
    /// Until the first read was answered.
    pub first_read_ms: f64,
    /// Until everything that is rebuilt was.
    pub rebuilt_ms: f64,
}

/// Bytes held when everything was inserted.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Footprint {
    /// Pairs in the index.
    pub pairs: u64,
    /// Bytes of DRAM according to the index.
    pub dram_bytes: u64,
    /// Bytes of the pool according to the index.
    pub pm_bytes: u64,
    /// Bytes of the pool according to the pool.
    pub pool_used_bytes: u64,
}

/// The outcome of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The index.
    pub index: String,
    /// The shape of pairs.
    pub pairs: Pairs,
    /// Threads.
    pub threads: usize,
    /// Pairs an insert phase inserts.
    pub num: u64,
    /// Pairs a scan asks for.
    pub scan: usize,
    /// The pool's media.
    pub media: String,
    /// Each phase in order.
    pub phases: Vec<PhaseOutcome>,
    /// Each `probes` step in order.
    pub probes: Vec<Probes>,
    /// Each `recover` step in order.
    pub recoveries: Vec<Recovery>,
    /// After each insert phase.
    pub footprints: Vec<Footprint>,
    /// The findings of the index's own check.
    pub findings: Vec<String>,
}

impl Run {
    /// Operations whose answer was wrong.
    pub fn wrong(&self) -> u64 {
        self.phases.iter().map(|p| p.wrong).sum()
    }

    /// The first phase of a kind.
    pub fn phase(&self, op: Op) -> Option<&PhaseOutcome> {
        self.phases.iter().find(|p| p.op == op)
    }
}

/// Runs a spec on whichever index is named.
pub struct Runner<'a> {
    /// The index's name.
    pub name: &'a str,
    /// The plan of a run.
    pub spec: &'a Spec,
    /// The pool holds an index already, left by a process that was killed when it had inserted `num` pairs. The
    /// first step recovers it.
    pub resumes: bool,
    /// Told of each phase as it ends.
    pub report: &'a mut dyn FnMut(&PhaseOutcome),
}

impl Visitor for Runner<'_> {
    type Out = Result<Run>;

    fn visit<S: Subject>(self) -> Result<Run> {
        let open = if self.resumes {
            None
        } else {
            let pool = create_pool(self.spec)?;
            let subject = Arc::new(S::create(&pool, self.spec.setup())?);
            Some((pool, subject))
        };
        let live = 0..if self.resumes { self.spec.num } else { 0 };
        let mut bench = Bench {
            spec: self.spec,
            run: empty_run(self.name, self.spec),
            ground: Ground {
                pairs: self.spec.pairs,
                live,
                round: 0,
                scan: self.spec.scan,
                ahead: self.spec.ahead,
            },
            open,
        };
        for step in &self.spec.steps {
            bench.step(*step, self.report)?;
        }
        bench.run.media = bench.open.map_or_else(String::new, |(pool, _)| pool.media().describe());
        Ok(bench.run)
    }
}

fn empty_run(name: &str, spec: &Spec) -> Run {
    Run {
        index: name.to_string(),
        pairs: spec.pairs,
        threads: spec.threads,
        num: spec.num,
        scan: spec.scan,
        media: String::new(),
        phases: Vec::new(),
        probes: Vec::new(),
        recoveries: Vec::new(),
        footprints: Vec::new(),
        findings: Vec::new(),
    }
}

struct Bench<'a, S> {
    spec: &'a Spec,
    run: Run,
    ground: Ground,
    /// Dropped before the pool it lies in is opened again.
    open: Option<(Pool, Arc<S>)>,
}

impl<S: Subject> Bench<'_, S> {
    fn step(&mut self, step: Step, report: &mut dyn FnMut(&PhaseOutcome)) -> Result<()> {
        match step {
            Step::Run(op) => self.phase(op, report),
            Step::Recover => self.recover(),
            Step::Flush => self.flush(),
            Step::Die => die(),
            Step::Probes | Step::Check => {
                let Some((_, subject)) = &self.open else { return Ok(()) };
                if step == Step::Check {
                    self.run.findings.extend(subject.check()?);
                } else if let (Some(histogram), Some(load_factor)) =
                    (subject.probe_histogram()?, subject.load_factor())
                {
                    self.run.probes.push(Probes { pairs: subject.len(), load_factor, histogram });
                }
                Ok(())
            }
        }
    }

    fn phase(&mut self, op: Op, report: &mut dyn FnMut(&PhaseOutcome)) -> Result<()> {
        let Some((pool, subject)) = &self.open else { return Ok(()) };
        let live = self.ground.live.end - self.ground.live.start;
        let count = match op {
            Op::Insert => self.spec.num,
            Op::Update | Op::Delete => live,
            Op::Read | Op::Miss => live.min(self.spec.reads),
            Op::Scan => live.min(self.spec.reads / self.spec.scan.max(1) as u64),
        };
        if op == Op::Scan && !S::SCANS || count == 0 {
            return Ok(());
        }
        let outcome = run_phase(subject, pool, &self.ground, op, count, self.spec.threads)?;
        match op {
            Op::Insert => {
                self.ground.live.end += count;
                self.run.footprints.push(Footprint {
                    pairs: live + count,
                    dram_bytes: subject.dram_bytes(),
                    pm_bytes: subject.pm_bytes(),
                    pool_used_bytes: pool.used_bytes(),
                });
            }
            Op::Update => self.ground.round += 1,
            Op::Delete => self.ground.live.start = self.ground.live.end,
            Op::Read | Op::Miss | Op::Scan => {}
        }
        report(&outcome);
        self.run.phases.push(outcome);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let Some((pool, subject)) = &self.open else { return Ok(()) };
        let before = pool.stats();
        subject.flush()?;
        if let Some(last) = self.run.phases.last_mut() {
            last.add_traffic(&pool.stats().since(&before));
        }
        Ok(())
    }

    fn recover(&mut self) -> Result<()> {
        let pairs = self.ground.live.end - self.ground.live.start;
        drop(self.open.take());
        let clock = SystemClock::new();
        let ms = |at: Duration| at.as_secs_f64() * 1e3;
        let begun = clock.now();
        let pool = Pool::open(&self.spec.place.path, &pool_options(self.spec))?;
        let pool_ms = ms(clock.now() - begun);
        let subject = Arc::new(S::open(&pool, self.spec.setup())?);
        let open_ms = ms(clock.now() - begun);
        let number = self.ground.live.start;
        let found = subject.get(PairKeys::new(self.spec.pairs).key(number))?.is_some();
        let first_read_ms = ms(clock.now() - begun);
        subject.finish_opening()?;
        let rebuilt_ms = ms(clock.now() - begun);
        if !found && !self.ground.live.is_empty() {
            self.run.findings.push("the first key is not there after recovery".to_string());
        }
        self.run.recoveries.push(Recovery { pairs, pool_ms, open_ms, first_read_ms, rebuilt_ms });
        self.open = Some((pool, subject));
        Ok(())
    }
}

fn pool_options(spec: &Spec) -> PoolOptions {
    PoolOptions {
        size: spec.pool_bytes,
        media: spec.place.profile.map_or(MediaRequest::Auto, MediaRequest::Emulated),
        count_xplines: spec.count_xplines,
        ..PoolOptions::default()
    }
}

fn create_pool(spec: &Spec) -> Result<Pool> {
    let path = &spec.place.path;
    let pool = Pool::create(path, &pool_options(spec))?;
    wait_for_pages(path, spec.pool_bytes)?;
    Ok(pool)
}

fn die() -> Result<()> {
    use rustix::process::{Signal, getpid, kill_process};
    kill_process(getpid(), Signal::KILL).map_err(|e| Error::invalid(format!("cannot kill itself: {e}")))
}

/// Waits until the pages of the file have been touched in the background, as far as they are going to be.
fn wait_for_pages(path: &Path, bytes: u64) -> Result<()> {
    let clock = SystemClock::new();
    let taken = || fs::metadata(path).map(|m| m.blocks() * 512).map_err(|e| Error::io(path, "stat", e));
    let (mut before, mut idle) = (0, 0);
    while idle < 20 {
        let now = taken()?;
        if now >= bytes {
            return Ok(());
        }
        idle = if now > before { 0 } else { idle + 1 };
        before = now;
        clock.sleep(Duration::from_millis(20));
    }
    Ok(())
}
