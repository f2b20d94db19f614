//! One store doing one script in a process of its own: the child's end.
//!
//! The parent writes one line of JSON, a [`Spec`], and reads one [`Event`] a line until the child ends. The child opens
//! nothing before the line has come: by then its memory is bounded.

use std::cell::RefCell;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_base::clock::{Clock, SystemClock};

use super::contender::Contender;
use super::entrant::PmSetup;
use super::machine::{self, Counters};
use super::results::{Reopening, Step};
use super::script::{NOT_DRAWN_AGAIN, Script};
use crate::keys::{KeyMaker, KeyOrder};
use crate::outcome::Outcome;
use crate::peers::{Settings, Setup};
use crate::run::{Plan, Watch};
use crate::store::{Store, StoreResult};
use crate::suite::{Contents, Provider, Suite};
use crate::tally::{History, Tally};
use crate::trace::Trace;
use crate::values::Sizes;
use crate::workload::{Action, KeyChoice, Workload};

/// The orders of a child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The store's name.
    pub entrant: String,
    /// Its script.
    pub script: Script,
    /// A directory on the SSD, the child's own.
    pub dir: PathBuf,
    /// A directory on emulated persistent memory, the child's own.
    pub pm_dir: PathBuf,
    /// The medium that it stands for.
    pub profile: String,
    /// The seed of random numbers.
    pub seed: u64,
    /// The trace that `replay` replays.
    pub trace: Option<PathBuf>,
    /// Whether to open the store of a killed child instead of running the script.
    pub reopen: bool,
}

/// A message of a child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The store is open.
    Opened {
        /// With these settings.
        settings: Settings,
        /// After so many seconds.
        seconds: f64,
    },
    /// A benchmark begins.
    Begin {
        /// Its place in the script.
        index: usize,
    },
    /// A benchmark has ended.
    Step(Box<Step>),
    /// A killed store is open again.
    Reopened(Reopening),
    /// The store was closed.
    Closed {
        /// In so many seconds.
        seconds: f64,
        /// The process's counters.
        total: Counters,
        /// Key and value bytes that it wrote.
        user_bytes: u64,
    },
    /// It did not work.
    Failed(String),
}

/// Seconds that the step goes on in which the parent kills the child.
const UNTIL_KILLED_SECONDS: f64 = 120.0;

/// Carries out the orders in the line that is read from `input`.
pub fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> StoreResult<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let spec: Spec = serde_json::from_str(&line)?;
    let stage = Rc::new(RefCell::new(Stage::new(&spec, output)));
    let done = if spec.reopen { reopen(&spec, &stage) } else { work(&spec, &stage) };
    if let Err(e) = done {
        stage.borrow_mut().say(&Event::Failed(e.to_string()))?;
    }
    Ok(())
}

/// The state that the hooks around a suite share.
struct Stage<'a> {
    output: &'a mut dyn Write,
    block: Option<PathBuf>,
    clock: SystemClock,
    start: Counters,
    before: Counters,
    /// The benchmark that has ended and is not reported yet.
    ended: Option<(&'static Workload, Step)>,
    /// Records and bytes of one, as the last fill left them.
    filled: Option<(u64, f64)>,
    names: Vec<&'static str>,
    user_bytes: u64,
    last: Duration,
    failure: Option<String>,
}

impl<'a> Stage<'a> {
    fn new(spec: &Spec, output: &'a mut dyn Write) -> Self {
        let block = machine::block_stat(&spec.dir);
        let now = Counters::now(block.as_deref());
        Stage {
            output,
            block,
            clock: SystemClock::new(),
            start: now,
            before: now,
            ended: None,
            filled: None,
            names: Vec::new(),
            user_bytes: 0,
            last: Duration::ZERO,
            failure: None,
        }
    }

    fn say(&mut self, event: &Event) -> StoreResult<()> {
        let line = serde_json::to_string(event)?;
        writeln!(self.output, "{line}")?;
        Ok(self.output.flush()?)
    }

    /// As `say`, where no error can be returned: it is kept for later.
    fn tell(&mut self, event: &Event) {
        if let Err(e) = self.say(event) {
            self.failure = Some(e.to_string());
        }
    }

    fn begin(&mut self, drop_caches: bool) {
        if drop_caches && !self.names.is_empty() {
            machine::drop_caches();
        }
        let index = self.names.len();
        self.tell(&Event::Begin { index });
        self.before = Counters::now(self.block.as_deref());
    }

    fn end(&mut self, workload: &'static Workload, outcome: &Outcome) {
        let counters = Counters::now(self.block.as_deref()).since(&self.before);
        let earlier = self.names.iter().filter(|name| **name == workload.name).count();
        self.names.push(workload.name);
        let name = match earlier {
            0 => workload.name.to_string(),
            n => format!("{} ({})", workload.name, n + 1),
        };
        self.user_bytes += outcome.counts.bytes_written;
        let step = Step { name, outcome: outcome.clone(), counters, ..Step::default() };
        self.ended = Some((workload, step));
    }

    /// Reports the benchmark that has ended. Its database now holds `contents`.
    fn report(&mut self, script: &Script, dirs: (&Path, &Path), contents: Contents) {
        let Some((workload, mut step)) = self.ended.take() else { return };
        if workload.fills() {
            self.filled = distinct(workload, contents.records).map(|share| (contents.records, share));
        }
        let record = (script.key_size + script.value_size) as f64;
        step.live_bytes = self.filled.map(|(records, share)| {
            let added = contents.records.saturating_sub(records) as f64;
            ((records as f64 * share + added) * record) as u64
        });
        step.dram_bytes = machine::own_memory(std::process::id());
        step.ssd_bytes = machine::disk_usage(dirs.0);
        step.pm_bytes = machine::disk_usage(dirs.1);
        self.tell(&Event::Step(Box::new(step)));
        self.last = self.clock.now();
    }
}

/// The share of `records` keys that are there after a fill with so many writes; `None` where sizes vary or some go.
fn distinct(workload: &Workload, records: u64) -> Option<f64> {
    match (workload.action, workload.sizes) {
        (Action::Operations { mix, keys: KeyChoice::Sequential, .. }, Sizes::Planned)
            if mix.insert == 100 =>
        {
            Some(1.0)
        }
        // Each key is missed by all draws with probability (1 - 1/n)^n.
        (Action::Operations { mix, keys: KeyChoice::Uniform, .. }, Sizes::Planned) if mix.update == 100 => {
            let n = records.max(1) as f64;
            Some(1.0 - (1.0 - 1.0 / n).powf(n))
        }
        _ => None,
    }
}

/// The databases of a session, one after the other.
struct Folders<'s, 'o> {
    spec: &'s Spec,
    contender: Contender,
    made: u32,
    stage: Rc<RefCell<Stage<'o>>>,
}

impl Folders<'_, '_> {
    fn setup(&self) -> Setup {
        setup(self.spec, &self.contender, self.made)
    }
}

fn setup(spec: &Spec, contender: &Contender, number: u32) -> Setup {
    Setup {
        dir: spec.dir.join(number.to_string()),
        pm_dir: spec.pm_dir.join(number.to_string()),
        memory: spec.script.memory,
        buffer: spec.script.write_buffer,
        sync: spec.script.sync,
        // Its own options take precedence.
        options: [&spec.script.options[..], &contender.set].concat(),
    }
}

fn pm_setup(spec: &Spec) -> PmSetup {
    PmSetup { profile: spec.profile.clone(), bytes: spec.script.pm_bytes }
}

impl Provider for Folders<'_, '_> {
    fn fresh(&mut self) -> StoreResult<Arc<dyn Store>> {
        if self.made > 0 {
            let last = self.setup();
            std::fs::remove_dir_all(&last.dir)?;
            // Most stores have nothing there.
            let _ = std::fs::remove_dir_all(&last.pm_dir);
        }
        self.made += 1;
        let clock = SystemClock::new();
        let opened = self.contender.entrant()?.open_honest(&self.setup(), &pm_setup(self.spec))?;
        let seconds = clock.now().as_secs_f64();
        self.stage.borrow_mut().say(&Event::Opened { settings: opened.settings, seconds })?;
        Ok(opened.store)
    }

    fn existing(&mut self) -> StoreResult<Option<(Arc<dyn Store>, Contents)>> {
        Ok(None)
    }

    fn note(&mut self, contents: Contents) -> StoreResult<()> {
        let setup = self.setup();
        let mut stage = self.stage.borrow_mut();
        stage.report(&self.spec.script, (&setup.dir, &setup.pm_dir), contents);
        stage.failure.take().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

fn plan(spec: &Spec) -> StoreResult<Plan> {
    let script = &spec.script;
    let seconds = if script.kill { UNTIL_KILLED_SECONDS } else { script.seconds };
    Ok(Plan {
        num: script.records,
        duration: Some(Duration::try_from_secs_f64(seconds)?),
        threads: script.threads,
        key_size: script.key_size,
        value_size: script.value_size,
        batch: script.batch,
        seed: spec.seed,
        trace: spec.trace.as_deref().map(Trace::load).transpose()?.map(Arc::new),
        ..Plan::default()
    })
}

fn work(spec: &Spec, stage: &Rc<RefCell<Stage<'_>>>) -> StoreResult<()> {
    let contender = Contender::parse(&spec.entrant)?;
    let workloads = workloads(spec)?;
    let mut plan = plan(spec)?;
    if spec.script.kill {
        plan.tally = Some(Arc::new(Tally::create(&spec.dir, plan.threads)?));
    }
    let suite = Suite { workloads: &workloads, plan };
    suite.validate()?;
    let mut folders = Folders { spec, contender, made: 0, stage: stage.clone() };
    let bounded = spec.script.bound.is_some();
    suite.run(
        &mut folders,
        &mut |_, _| {
            stage.borrow_mut().begin(bounded);
            Arc::new(Watch::default())
        },
        &mut |workload, outcome| {
            // The list holds the workload that is shown.
            let known = workloads.iter().find(|w| w.name == workload.name);
            if let Some(workload) = known {
                stage.borrow_mut().end(workload, outcome);
            }
        },
    )?;
    let mut stage = stage.borrow_mut();
    let seconds = stage.clock.now().saturating_sub(stage.last).as_secs_f64();
    let total = Counters::now(stage.block.as_deref()).since(&stage.start);
    let user_bytes = stage.user_bytes;
    stage.say(&Event::Closed { seconds, total, user_bytes })
}

/// Opens the store of a killed child and looks for the writes that it had acknowledged.
fn reopen(spec: &Spec, stage: &Rc<RefCell<Stage<'_>>>) -> StoreResult<()> {
    let [fill, update] = workloads(spec)?[..] else { return Err(NOT_DRAWN_AGAIN.into()) };
    let plan = plan(spec)?;
    let mut history = History::draw(fill, update, &plan, &spec.dir)?;
    let contender = Contender::parse(&spec.entrant)?;
    let clock = SystemClock::new();
    let opened = contender.entrant()?.open_honest(&setup(spec, &contender, 1), &pm_setup(spec))?;
    let open = clock.now();
    let mut keys = KeyMaker::new(plan.key_size, KeyOrder::Hashed);
    opened.store.get(keys.key(0), &mut |_| {})?;
    let first_read = clock.now().saturating_sub(open);
    let kept = history.look_for(&*opened.store)?;
    stage.borrow_mut().say(&Event::Reopened(Reopening {
        open_seconds: open.as_secs_f64(),
        first_read_seconds: first_read.as_secs_f64(),
        kept,
    }))
}

fn workloads(spec: &Spec) -> StoreResult<Vec<&'static Workload>> {
    Ok(Workload::parse_list(&spec.script.steps.join(","))?)
}
